"""Real processes on Ray: shot with SIGKILL, nodes that come and go, a driver that dies. No commit is ever lost."""

import contextlib
import dataclasses
import importlib.util
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import rich.console
from listening import listening

from shoal.cli.app import main
from shoal.cluster import training as runner
from shoal.cluster.plan import ClusterPlan
from shoal.cluster.run import Cluster
from shoal.cluster.transport.service import WorkerError
from shoal.training import checkpoint
from shoal.training.metrics import read_metrics
from shoal.training.runner import run

pytest.importorskip("ray", reason="Ray is not installed: pip install 'shoal-rl[cluster]'")

ROOT = Path(__file__).parents[2]


def faults():
    """benchmarks/cluster_faults.py, where the faults are made that the table in the repository is of."""
    spec = importlib.util.spec_from_file_location("cluster_faults", ROOT / "benchmarks" / "cluster_faults.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def injected(kind, seed, root, **more):
    module = faults()
    row = module.KINDS[kind](kind, seed, root, **more)
    assert row["updates_lost"] == 0
    return row


def test_shot_processes_come_back_and_nobody_listens_but_on_loopback(tmp_path):
    module, found = faults(), {}

    def look_and_shoot(name, shoot=module.shoot):
        def hit(supervisor):
            family = module.family(os.getpid())
            found.update(listening=listening([pid for pid, _ in family]), agents=agents_among(family))
            shoot(name)(supervisor)

        return hit

    module.shoot = look_and_shoot
    row = module.KINDS["learner"]("learner", 0, tmp_path, updates=60)
    assert row["updates_lost"] == 0
    assert row["ended"] == [60, 60]
    assert row["recover_s"] is not None
    assert len(found["listening"]) >= 8  # this process, raylet (2), head, and at least four workers
    assert [(who, str(at)) for who, at in found["listening"] if not at.is_loopback] == []
    assert found["agents"] == []  # a raylet dies with its dashboard agent


def agents_among(family):
    """Processes that are a dashboard agent of Ray, whatever they call themselves."""
    found = []
    for pid, _ in family:
        with contextlib.suppress(OSError):
            told = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if "DashboardAgent" in told[0] or any(part.endswith("dashboard/agent.py") for part in told[:5]):
                found.append(pid)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "kind", ["actor", "learner", "inference server", "parameter service", "dataset shard", "coordinator"]
)
def test_every_role_may_die_at_any_time(tmp_path, kind, seed):
    row = injected(kind, seed, tmp_path, updates=150)
    assert row["ended"] == [150, 150]
    lines = read_metrics(tmp_path / f"{kind}-{seed}" / "metrics.jsonl")
    assert [line["update"] for line in lines] == list(range(1, 151))


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # as Ray starts nodes
@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_nodes_come_and_go(tmp_path, seed):
    row = injected("node removed and another added", seed, tmp_path, updates=200)
    assert row["ended"] == [200, 200]
    assert row["moved"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("kind", ["environment raises once", "environment hangs", "environment gives NaN"])
def test_environments_fail_and_the_run_goes_on(tmp_path, kind, seed):
    row = injected(kind, seed, tmp_path, updates=150)
    assert row["ended"] == [150, 150]
    assert row["recover_s"] < 30
    assert row.get("nan_resets", 1) == 1


@pytest.mark.slow
def test_an_environment_that_always_raises_is_named(tmp_path):
    row = injected("environment always raises", 0, tmp_path, updates=150)
    assert row["ended"][0] < 150
    assert "gymnasium:FaultyWalk-v0" in row["said"]
    assert "the road is gone" in row["said"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_the_driver_is_killed_and_resumed(tmp_path, seed):
    row = injected("driver killed and resumed", seed, tmp_path, updates=300)
    assert row["ended"] == [1500, 1500]
    assert row["recover_s"] is not None


@pytest.mark.slow
def test_a_killer_of_any_process_costs_nothing(tmp_path):
    row = faults().killer("killer", 0, tmp_path, seconds=60.0, iterations=24)
    assert sum(row["shots"].values()) >= 3
    assert row["ended"] == [24, 24]
    assert row["policies_lost"] == row["payoff_entries_lost"] == 0
    assert row["equal"]


class TestBadInput:
    """Said within 10 seconds, with what to do, and no run folder is left behind."""

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (["--cluster", "127.0.0.1:1"], "nobody answers at 127.0.0.1:1"),
            (["--cluster", "nowhere"], "must be auto or an address"),
            (["--actors", "2"], "add --cluster auto"),
            (["--cluster", "auto", "--actors", "0"], "actors must be greater than 0"),
            (["--cluster", "auto", "--recipe", "impla"], "Did you mean 'impala'"),
            (["--cluster", "auto", "--recipe", "impala"], "Choose --algo impala"),
            (["--cluster", "auto", "--actors", "3", "--num-envs", "64"], "Try 66"),
            (["--cluster", "auto", "--num-seeds", "2"], "one seed"),
            (["--cluster", "auto", "--devices", "1"], "--learner-cpus"),
            (["--cluster", "auto", "--shards", "3"], "--shards has no effect with the recipe sync"),
            (["--cluster", "auto", "--recipe", "ddppo", "--actors", "3"], "--actors has no effect"),
            (["--cluster", "auto", "--recipe", "ddppo", "--learners", "3", "--num-envs", "64"], "Try 72"),
        ],
    )
    def test_options(self, tmp_path, capsys, options, said):
        began = time.monotonic()
        assert main(["train", "mpe/simple_spread", "--run-dir", str(tmp_path / "run"), *options]) == 2
        assert said in capsys.readouterr().err.replace("\n", " ")
        assert time.monotonic() - began < 10
        assert not (tmp_path / "run").exists()

    @pytest.mark.slow
    def test_more_than_the_cluster_has(self, tmp_path, capsys):
        options = ["--cluster", "auto", "--learner-gpus", "1", "--run-dir", str(tmp_path / "run")]
        assert main(["train", "mpe/simple_spread", *options]) == 2
        assert "asks for 1 GPUs, but the cluster has 0" in capsys.readouterr().err.replace("\n", " ")

    @pytest.mark.slow
    def test_other_versions_and_worlds_that_cannot_travel(self, monkeypatch):
        from shoal.cluster.transport import ray_join
        from shoal.cluster.transport import ray_launcher as ray_launcher
        from shoal.core.errors import OptionError

        real = ray_join.versions
        launcher = ray_launcher.RayLauncher("local", {"CPU": 1})
        try:
            monkeypatch.setattr(ray_join, "versions", lambda: real() | {"jax": "0.0.1"})
            with pytest.raises(OptionError, match="Install the same versions on all nodes"):
                check_against(ray_join, real)
            import threading

            setting = launcher.setting
            launcher.setting = dataclasses.replace(setting, script={"world": {"my/world": threading.Lock()}})
            with pytest.raises(OptionError, match=r"registers itself: world my/world\. Put it into a file"):
                launcher.start("actor-0", dict)
            launcher.setting = dataclasses.replace(setting, imports=("/no/such/world.py",))
            with pytest.raises(WorkerError, match=r"actor-1: could not be made ready:.*/no/such/world\.py"):
                launcher.start("actor-1", dict).once.keys()
        finally:
            launcher.stop()


def check_against(ray_join, real):
    """Nodes answer with what they really have; this process pretends to have something else."""
    import ray

    before = ray.remote
    ray_join.ray.remote = lambda function: before(real)
    try:
        ray_join.check_versions()
    finally:
        ray_join.ray.remote = before


def test_status_advise_and_scale(tmp_path, capsys):
    folder = tmp_path / "run"
    assert main(["cluster", "status", str(folder)]) == 2
    assert "not a run folder" in capsys.readouterr().err
    experiment = faults().experiment_of(0, 12)
    from shoal.cluster.transport.launcher import ThreadLauncher

    run(experiment, folder, on=Cluster(plan=ClusterPlan(actors=2), launcher=ThreadLauncher()))
    assert main(["cluster", "status", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "update 12 of 12" in shown
    assert "actor-1" in shown
    assert main(["cluster", "status", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == 12
    assert main(["cluster", "advise", str(folder), "--json"]) == 0
    advice = json.loads(capsys.readouterr().out)
    assert advice["wanted"] >= 1
    assert advice["actors"] == 2
    assert main(["cluster", "scale", str(folder), "--actors", "3"]) == 2
    assert "is not running" in capsys.readouterr().err.replace("\n", " ")
    told = json.loads((folder / "cluster.json").read_text()) | {"running": True, "absent": ["actor-7"]}
    (folder / "cluster.json").write_text(json.dumps(told))
    assert main(["cluster", "scale", str(folder), "--actors", "3"]) == 2
    assert "waits for all of its 2 actors" in capsys.readouterr().err.replace("\n", " ")
    assert main(["cluster", "status", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "12 of 12, running" in shown
    assert "waits for free resources" in shown
    for gone in ({"pid": dead_process()}, {"began": "1"}):  # the second: its number is another's by now
        (folder / "cluster.json").write_text(json.dumps(told | {"driver": told["driver"] | gone}))
        assert main(["cluster", "status", str(folder)]) == 0
        assert "not running" in capsys.readouterr().out
    elsewhere = told["driver"] | {"where": "another machine", "pid": dead_process()}
    (folder / "cluster.json").write_text(json.dumps(told | {"driver": elsewhere}))
    assert main(["cluster", "status", str(folder)]) == 0
    assert "12 of 12, running" in capsys.readouterr().out
    os.utime(folder / "cluster.json", (0, 0))  # nobody has written it for long
    assert main(["cluster", "status", str(folder)]) == 0
    assert "not running" in capsys.readouterr().out
    assert main(["resume", str(folder), "--cluster", "auto"]) == 0  # finished: nothing is started
    assert "finished already" in capsys.readouterr().out
    forged_ones_are_shown_or_refused(folder, told)


def forged_ones_are_shown_or_refused(folder, told):
    """Whatever stands in any place of a status: it is shown, or refused in a line."""
    from shoal.cli.commands import cluster
    from shoal.cluster.advice import advise, read_status
    from shoal.core.errors import OptionError, RunError

    hostile = [None, -1, 0, 10**400, float("nan"), float("inf"), "x", "", [], [None], {}, {"x": None}, True]
    refused, nowhere = 0, rich.console.Console(file=io.StringIO())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "console", lambda: nowhere)
        patch.setattr(cluster, "parse", lambda *_: cluster.StatusOptions(run=str(folder), json=False))
        for forged in itertools.islice(forgeries(told, hostile), 0, None, STRIDE):
            (folder / "cluster.json").write_text(json.dumps(forged))
            for look in (lambda: cluster.status([]), lambda: advise(read_status(folder)).text):
                with contextlib.suppress(RunError, OptionError):
                    look()
                    continue
                refused += 1
    assert refused > 600 / STRIDE


STRIDE = 7
"""Of all forgeries, every seventh is tried: some 150, of every kind."""


def forgeries(value, hostile):
    """Data with one entry removed, or replaced; large tables by their first two."""
    if isinstance(value, dict):
        for name in list(value)[:40]:
            yield {other: entry for other, entry in value.items() if other != name}
            for changed in forgeries(value[name], hostile):
                yield value | {name: changed}
    elif isinstance(value, list):
        for i, entry in enumerate(value[:2]):
            for changed in forgeries(entry, hostile):
                yield [*value[:i], changed, *value[i + 1 :]]
    yield from (other for other in hostile if other is not value)


def dead_process():
    """The number of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.mark.parametrize("text", ["{}", "[]", "{", '{"plan": {}, "workers": 3}'])
def test_a_damaged_status_is_refused(tmp_path, capsys, text):
    (tmp_path / "cluster.json").write_text(text)
    for command in (["status"], ["advise"], ["scale", "--actors", "2"]):
        assert main(["cluster", command[0], str(tmp_path), *command[1:]]) == 2
        assert "is damaged" in capsys.readouterr().err


def test_advice_by_hand():
    from shoal.cluster.advice import advise

    worker = {"seconds": {"pull": 0.0, "roll": 2.0, "push": 0.0}}
    status = {
        "workers": {"actor-0": worker, "actor-1": worker, "learner-0": {"seconds": {}}},
        "learner": {"made": 10, "spent": {"wait": 5.0, "learn": 4.0, "publish": 1.0}},
        "copies": 100,
        "steps": 10,
        "plan": {"actors": 2},
    }
    found = advise(status)
    assert found.actor_rate == 500.0  # 1,000 steps in 2 s
    assert found.learner_rate == 4000.0  # 10 updates of 2,000 steps in 5 s
    assert (found.wanted, found.waiting) == (8, 0.5)
    assert "add 6" in found.text


JOINS = """
import sys
from shoal.core.errors import OptionError
from shoal.cluster.transport import ray_join
try:
    assert ray_join.join(sys.argv[1])[0] == sys.argv[1]
    print("joined", ray_join.ray.get(ray_join.ray.remote(lambda: 4).remote()))
except OptionError as error:
    print(error)
"""


@pytest.mark.slow
def test_only_who_has_the_token_gets_in(tmp_path):
    """Into a Ray of our own, which has one that is nowhere written down; and so do others' whose token is known."""
    from shoal.cluster.transport import ray_join

    before = dict(os.environ)
    launcher = ray_launcher("local")
    try:
        node = ray_join.ray._private.worker._global_node
        raylet = next(pid for pid, name in faults().family(os.getpid()) if name == "raylet")
        told = dict(entry.split("=", 1) for entry in Path(f"/proc/{raylet}/environ").read_text().split("\0") if entry)
        token = told["RAY_AUTH_TOKEN"]
        assert len(token) == 64
        kept = tmp_path / "token"
        kept.write_text(token)
        for settings, said in (
            ({}, "asks for a token"),
            ({"RAY_AUTH_MODE": "disabled"}, "asks for a token"),
            ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}, "asks for a token"),
            ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(kept)}, "joined 4"),
            ({"RAY_AUTH_TOKEN_PATH": str(kept)}, "joined 4"),  # as Ray itself takes it
        ):
            # For Ray, 127.0.0.1 means this machine's address in the net unless there is to be no net.
            alone = {"HOME": str(tmp_path), "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
            environment = {**os.environ, **alone, **settings}
            command = [sys.executable, "-c", JOINS, node.gcs_address]
            found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
            assert said in found.stdout, (settings, found.stdout, found.stderr)
        logs = list(Path(node.get_session_dir_path()).rglob("*.*"))
        assert len(logs) > 5
        assert not [path for path in logs if path.is_file() and token in path.read_text(errors="replace")]
    finally:
        launcher.stop()
    assert {name: value for name, value in os.environ.items() if "AUTH" in name} == {
        name: value for name, value in before.items() if "AUTH" in name
    }


def ray_launcher(address, plan=None, **more):
    from shoal.cluster.transport.ray_launcher import RayLauncher

    return RayLauncher(address, runner.needs(plan or ClusterPlan(actors=1)), **more)


@pytest.mark.slow
def test_learners_without_a_centre_meet_on_loopback(tmp_path):
    module, found = faults(), []
    plan, experiment = ClusterPlan("ddppo", learners=2), module.experiment_of(0, 20)
    supervisor = module.begun(experiment, plan, tmp_path / "run", ray_launcher("local", plan))

    def look(supervisor):
        if supervisor.status.get("learner", {}).get("update", 0) >= 3 and not found:
            found.extend(listening([pid for pid, _ in module.family(os.getpid())]))

    supervisor.hooks.append(look)
    assert supervisor.run().update == 20
    assert len(found) >= 9  # with that of the first learner, where all meet
    assert [(who, str(at)) for who, at in found if not at.is_loopback] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["training", "population"])
def test_status_says_within_3_s_that_the_driver_is_gone(tmp_path, capsys, kind):
    module, folder = faults(), tmp_path / "run"
    sizes = ["--num-envs", "16", "--num-steps", "8", "--total-env-steps", str(10**9)]
    training = ["train", "mpe/simple_spread", "--cluster", "auto", *sizes]
    population = [*module.POPULATION, "--iterations", "1000", "--cluster", "auto", "--workers", "1"]
    process = module.shoal(*(training if kind == "training" else population), "--run-dir", str(folder))
    try:
        for _ in range(600):
            if (folder / "cluster.json").exists():
                break
            assert process.poll() is None
            time.sleep(0.2)
        assert main(["cluster", "status", str(folder), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["running"] is True
    finally:
        process.kill()
        killed = time.monotonic()
        process.wait()
    assert main(["cluster", "status", str(folder)]) == 0
    assert time.monotonic() - killed < 3
    assert "not running" in capsys.readouterr().out
    assert main(["cluster", "scale", str(folder), "--actors" if kind == "training" else "--workers", "3"]) == 2


@pytest.mark.slow
@pytest.mark.usefixtures("terminal_signals")
def test_a_closed_terminal_loses_nothing(tmp_path):
    """SIGHUP goes to the driver and to all processes of its Ray at once; what was learnt is saved."""
    folder = tmp_path / "run"
    sizes = ["--num-envs", "16", "--num-steps", "8", "--total-env-steps", str(10**9)]
    command = [sys.executable, "-m", "shoal", "train", "mpe/simple_spread", "--cluster", "auto", *sizes]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen([*command, "--run-dir", str(folder)], start_new_session=True, **pipes)
    try:
        for _ in range(900):
            with contextlib.suppress(OSError, KeyError):
                if json.loads((folder / "cluster.json").read_text())["learner"]["update"] >= 20:
                    break
            assert process.poll() is None
            time.sleep(0.2)
        reached = json.loads((folder / "cluster.json").read_text())["learner"]["update"]
        os.killpg(process.pid, signal.SIGHUP)
        said = process.communicate(timeout=60)[0]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    newest = checkpoint.read_meta(checkpoint.latest(folder / "checkpoints"))["update"]
    assert newest >= reached
    assert "is gone" not in said
    assert f"shoal resume {folder}" in said.replace("\n", " ")
