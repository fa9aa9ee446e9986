"""Real processes on Ray: shot with SIGKILL, nodes that come and go, a driver that dies. No commit is ever lost."""

import dataclasses
import importlib.util
import json
import os
import time
from pathlib import Path

import pytest

from shoal.cli.app import main
from shoal.execution.cluster import runner
from shoal.execution.cluster.fabric import WorkerError
from shoal.execution.cluster.plan import Plan
from shoal.execution.logging import read_metrics

pytest.importorskip("ray", reason="Ray is not installed: pip install 'shoal[cluster]'")

ROOT = Path(__file__).parents[3]


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


def test_shot_processes_come_back(tmp_path):
    row = injected("learner", 0, tmp_path, updates=60)
    assert row["ended"] == [60, 60]
    assert row["recover_s"] is not None


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
    assert row.get("quarantined", 1) == 1


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
    row = faults().killer("killer", 0, tmp_path, seconds=60.0, iterations=6)
    assert sum(row["shots"].values()) >= 3
    assert row["ended"] == [6, 6]
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
        from shoal.core.errors import OptionError
        from shoal.execution.cluster import ray_fabric, ray_join

        real = ray_join.versions
        fabric = ray_fabric.RayFabric("local", {"CPU": 1})
        try:
            monkeypatch.setattr(ray_join, "versions", lambda: real() | {"jax": "0.0.1"})
            with pytest.raises(OptionError, match="Install the same versions on all nodes"):
                check_against(ray_join, real)
            import threading

            setting = dataclasses.replace(fabric.setting, worlds={"my/world": threading.Lock()})
            fabric.setting = setting
            with pytest.raises(OptionError, match="Put the world into a file"):
                fabric.start("actor-0", dict)
            fabric.setting = dataclasses.replace(setting, worlds={}, imports=("/no/such/world.py",))
            with pytest.raises(WorkerError, match=r"actor-1: could not be made ready:.*/no/such/world\.py"):
                fabric.start("actor-1", dict).call("keys")
        finally:
            fabric.stop()


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
    from shoal.execution.cluster.fabric import Threads

    runner.train(experiment, folder, Plan(actors=2), Threads())
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
    os.utime(folder / "cluster.json", (0, 0))  # nobody has written it for long
    assert main(["cluster", "status", str(folder)]) == 0
    assert "not running" in capsys.readouterr().out
    assert main(["resume", str(folder), "--cluster", "auto"]) == 0  # finished: nothing is started
    assert "finished already" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["{}", "[]", "{", '{"plan": {}, "workers": 3}'])
def test_a_damaged_status_is_refused(tmp_path, capsys, text):
    (tmp_path / "cluster.json").write_text(text)
    for command in (["status"], ["advise"], ["scale", "--actors", "2"]):
        assert main(["cluster", command[0], str(tmp_path), *command[1:]]) == 2
        assert "is damaged" in capsys.readouterr().err


def test_advice_by_hand():
    from shoal.execution.cluster.advice import advise

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
