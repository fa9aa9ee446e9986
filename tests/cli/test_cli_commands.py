import dataclasses
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import jax
import pytest

import shoal as package
from shoal.api import progress
from shoal.cli import run_results
from shoal.cli.commands import watch
from shoal.cli.run_options import TrainOptions
from shoal.cli.targets import parse_target
from shoal.cli.terminal import console, pluralise
from shoal.core.registry import import_file
from shoal.ops.kernels import trust
from shoal.presets import names, share
from shoal.training import checkpoint
from shoal.training.evaluate import evaluate
from shoal.training.experiment import Experiment
from shoal.training.loop import TrainingResult
from shoal.training.metrics import read_metrics
from shoal.training.run import RunFolder, open_run

from .conftest import SMALL, assert_refused


def test_overview_and_version(shoal):
    overview = shoal()
    assert overview.code == 0
    assert overview == shoal("--help") == shoal("-h")
    for words in ("train TARGET", "resume RUN", "bench env WORLD", "doctor", "shoal train demo"):
        assert words in overview.out
    assert shoal("--version").out == f"shoal {package.__version__}\n"
    module = subprocess.run([sys.executable, "-m", "shoal", "--version"], capture_output=True, text=True)
    assert (module.returncode, module.stdout) == (0, f"shoal {package.__version__}\n")
    bench = shoal("bench", "--help").out
    assert "bench env" in bench
    assert "resume" not in bench


def test_help_of_train_without_and_with_a_target(shoal):
    general = shoal("train", "--help")
    assert general.code == 0
    for words in ("TARGET is a world or a preset", "demo", "--run-dir", "--import", "--algo.learning-rate"):
        assert words in general.out
    assert "--env." not in general.out
    special = shoal("train", "mpe/simple_tag", "--help-all")
    assert special.code == 0
    for words in (
        "--env.num-adversaries",
        "who hunt (default: 3)",
        "--learners.agent.[no-]frozen",
        "copies of the world",
    ):
        assert words in special.out


@pytest.mark.parametrize(
    "command",
    [
        "resume",
        "eval",
        "watch",
        "envs",
        "presets",
        "doctor",
        "bench env",
        "bench train",
        "bench suite",
        "bench autoscale",
    ],
)
def test_every_command_has_help(shoal, command):
    outcome = shoal(*command.split(), "--help")
    assert outcome.code == 0
    assert f"usage: shoal {command}" in outcome.out
    assert "--json" in outcome.out


def test_envs(shoal, world):
    listed = {entry["id"]: entry for entry in shoal("envs", "--json").json["envs"]}
    shipped = {id for id in listed if not id.startswith("test/")}  # other tests may have registered worlds of theirs
    assert {"battle/open", "mpe/simple_spread", "mpe/simple_tag", "tag/continuous", "tag/grid"} <= shipped
    assert listed["mpe/simple_spread"]["groups"] == {"agent": {"size": 3, "view": {"": [18]}, "action": "5 choices"}}
    assert listed["mpe/simple_spread"]["options"]["num_agents"] == 3
    outcome = shoal("envs", "--import", world)
    assert outcome.code == 0
    for words in ("mpe/simple_spread", "tag/continuous", "21 x 21 choices", "test/tiny", "prey", "mixed"):
        assert words in outcome.out


def test_a_world_that_cannot_be_described_is_listed_with_the_reason(shoal, tmp_path):
    file = tmp_path / "no_groups.py"
    file.write_text(
        "import dataclasses, shoal\n"
        "@shoal.register('test/no_groups')\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class NoGroups(shoal.Env):\n    pass\n"
    )
    listed = {entry["id"]: entry for entry in shoal("envs", "--import", file, "--json").json["envs"]}
    assert "must define the property `groups`" in listed["test/no_groups"]["error"]
    assert "must define the property `groups`" in shoal("envs", "--import", file).out


def test_presets(shoal):
    assert [entry["name"] for entry in shoal("presets", "--json").json["presets"]] == names()
    assert "reference/simple_spread_ippo" in shoal("presets").out


def test_doctor(shoal):
    report = shoal("doctor", "--json").json
    assert report["devices"][0]["platform"] == "cpu"
    assert {"shoal", "jax", "python"} <= set(report["versions"])
    assert report["cache"]["folder"]
    assert {report[name] for name in ("mlp_kernels", "mlp_bf16_kernels", "neighbours_kernels")} == {"no CUDA device"}


def test_doctor_says_which_kernels_are_not_used_and_why(shoal, monkeypatch):
    told = {"mlp": None, "mlp_bf16": "it disagrees", "neighbours": "compute capability 7.0, it needs 7.5"}
    monkeypatch.setattr(trust, "find_problem", lambda trial: told[trial.source])
    monkeypatch.setattr(trust, "find_kept_problems", lambda: {"mlp 01ab, 64 inputs": "it disagrees"})
    lines = [" ".join(line.split()) for line in shoal("doctor").out.splitlines()]
    assert "kernels of small networks used" in lines
    assert "kernels of small networks in bfloat16 not used: it disagrees" in lines
    assert "kernels of the neighbour search not used: compute capability 7.0, it needs 7.5" in lines
    assert "not used: mlp 01ab, 64 inputs it disagrees" in lines


def test_help_with_another_algorithm_is_about_it(shoal):
    usual = shoal("train", "mpe/simple_spread", "--help").out
    special = shoal("train", "mpe/simple_spread", "--algo", "sac", "--help-all").out
    assert "PPO" in usual.partition("options")[0]
    assert "mpe/simple_spread, with sac in place" in special
    assert "PPO" not in special.partition("options")[0]
    assert "--algo.target-entropy-share" in special


def test_the_devices_that_are_named_are_those_in_use(shoal, world, tmp_path):
    """There are two, but four copies are not worth a second one."""
    outcome = shoal("train", "test/tiny", "--import", world, "--run-dir", tmp_path / "run", *SMALL)
    assert "compiling for 1 device ..." in outcome.out
    assert outcome.out.count("networks: plain XLA (no CUDA device)\n") == 1
    assert len(jax.local_devices()) == 2
    assert checkpoint.read_meta(checkpoint.latest(tmp_path / "run" / "checkpoints"))["devices"] == 1


def test_evaluations_and_the_best_checkpoint_are_told(shoal, world, tmp_path):
    """Of hunters and prey that are said to cooperate: else their sum has no best."""
    text, world = world.read_text(), tmp_path / "cooperative.py"
    world.write_text(text.replace('kind: ClassVar[str] = "mixed"', 'kind: ClassVar[str] = "cooperative"'))
    more = ("--eval-every", "32", "--eval-episodes", "4", "--checkpoint-every", "32", "--keep-checkpoints", "9")
    run = tmp_path / "run"
    outcome = shoal("train", "test/tiny", "--import", world, "--run-dir", run, *SMALL, *more, "--json")
    told = [line.split(":")[0] for line in outcome.err.splitlines() if line.startswith("evaluation")]
    assert told == [f"evaluation after update {update}" for update in (1, 2, 3)]
    assert "| return prey 8.00 |" in outcome.err
    best = outcome.json["best_checkpoint"]
    line = read_metrics(run / "metrics.jsonl")[best["update"] - 1]
    assert best["return"] == pytest.approx(line["eval/return"], abs=1e-4)
    command = f"shoal eval {run} --import {world} --checkpoint best"
    newest = ", the newest" * (best["update"] == 3)
    said = f"best in evaluation: return {best['return']:.2f} after update {best['update']}{newest}: {command}"
    assert said in outcome.err.splitlines()
    assert shoal(*shlex.split(command)[1:], "--episodes", "4", "--json").json["updates"] == best["update"]
    assert list(checkpoint.steps(run / "checkpoints")) == [0, 1, 2, 3]


def test_what_is_refused_is_refused_before_a_folder_is_told_of(shoal, world, trained, tmp_path):
    """Weights that do not fit are found when the first ones are made, a place that cannot be written even later."""
    small = [*SMALL[:-1], "5"]
    outcome = shoal("train", "test/tiny", "--import", world, *small, "--weights", f"hunter={trained}")
    assert_refused(outcome, "weights from", "does not fit")
    assert "run folder:" not in outcome.out
    (tmp_path / "file").write_text("")
    outcome = shoal("train", "test/tiny", "--import", world, *SMALL, "--run-dir", tmp_path / "file" / "run")
    assert_refused(outcome, "cannot create the run folder")
    assert "run folder:" not in outcome.out
    missing = f"csv:path={tmp_path}/missing/x.csv"
    outcome = shoal("train", "test/tiny", "--import", world, *SMALL, "--run-dir", tmp_path / "run", "--log", missing)
    assert_refused(outcome, "missing")
    assert "run folder:" not in outcome.out


def test_a_run_folder_has_everything(trained):
    files = {path.name for path in trained.iterdir()}
    assert {"config.json", "metrics.jsonl", "checkpoints", "curves.png", "replay.html"} <= files
    assert (trained / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "test/tiny" in (trained / "replay.html").read_text()


def test_eval_reports_per_group_and_in_all(shoal, world, trained):
    result = shoal("eval", trained, "--import", world, "--episodes", "4", "--json").json
    means = result["mean_return"]
    assert means["prey"] == 8.0  # 2 for each of 4 steps
    assert means["all"] == pytest.approx(means["hunter"] + means["prey"], abs=1e-4)
    assert set(result["standard_error"]) == {"hunter", "prey", "all"}
    assert (result["episodes"], result["updates"], result["env_steps"]) == (4, 3, 96)
    assert len(result["weights_sha256"]) == 64
    random = shoal("eval", trained, "--import", world, "--episodes", "4", "--random", "--json").json
    assert random["mean_return"]["hunter"] != means["hunter"]
    assert "weights_sha256" not in random  # no weights have played
    text = shoal("eval", trained, "--import", world, "--episodes", "4").out
    assert "hunter" in text
    assert result["weights_sha256"] in text


def test_watch_writes_a_page(shoal, world, trained, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("shoal.cli.commands.watch.webbrowser.open", lambda url: opened.append(url) or True)
    page = tmp_path / "page.html"
    outcome = shoal("watch", trained, "--import", world, "--out", page, "--open")
    assert (outcome.code, outcome.out) == (0, f"{page}\n")
    assert opened == [page.as_uri()]
    assert "<script" in page.read_text()
    assert shoal("watch", trained, "--import", world, "--out", page, "--json").json["replay"] == str(page)
    assert_refused(
        shoal("watch", trained, "--import", world, "--seed-index", "1"), "--seed-index must be between 0 and 0"
    )


def test_watch_serves_on_loopback_and_nothing_but_the_page(tmp_path, monkeypatch):
    page = tmp_path / "replay.html"
    page.write_text("hello")
    (tmp_path / "secret").write_text("no")
    servers = []
    serve = watch.http.server.ThreadingHTTPServer.serve_forever
    monkeypatch.setattr(
        watch.http.server.ThreadingHTTPServer, "serve_forever", lambda self: servers.append(self) or serve(self, 0.01)
    )
    thread = threading.Thread(target=watch._serve, args=(page, 0, watch.console()))
    thread.start()
    while not servers:
        pass
    host, port = servers[0].server_address
    assert host == "127.0.0.1"
    assert urllib.request.urlopen(f"http://127.0.0.1:{port}/").read() == b"hello"
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/secret")
    servers[0].shutdown()
    thread.join()


def test_an_interrupted_run_goes_on_to_the_same_bits(shoal, world, trained, tmp_path, monkeypatch):
    run = tmp_path / "run"
    show, shown = progress._PlainLines.__call__, []

    def interrupt(self, news):
        show(self, news)
        shown.append(news)
        if len(shown) == 1:  # a second Ctrl-C would not wait for anything to be saved
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(progress._PlainLines, "__call__", interrupt)
        stopped = shoal("train", "test/tiny", "--import", world, "--run-dir", run, *SMALL, "--json")
    assert stopped.code == 130
    assert stopped.json["interrupted"]
    assert stopped.json["updates"] < 3
    assert f"shoal resume {run} --import {world}" in stopped.err
    resumed = shoal("resume", run, "--import", world)
    assert resumed.code == 0
    assert "curves: " in resumed.out
    assert "replay: " in resumed.out
    hashes = [
        shoal("eval", r, "--import", world, "--episodes", "4", "--json").json["weights_sha256"] for r in (run, trained)
    ]
    assert hashes[0] == hashes[1]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs terminals")
@pytest.mark.usefixtures("terminal_signals")
def test_a_closed_terminal_saves_the_run(shoal, world, tmp_path):
    """As SIGTERM does, though nothing can be shown any more."""
    own = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.executable, sys.argv[1:])"
    run, (ours, theirs) = tmp_path / "run", os.openpty()
    more = ["--total-env-steps", "100000000", "--checkpoint-minutes", "1000"]
    train = [sys.executable, "-m", "shoal", "train", "test/tiny", "--import", world, "--run-dir", run, *SMALL, *more]
    command = [sys.executable, "-c", own, *map(str, train)]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    shown = b""
    try:
        while b"agent steps/s" not in shown:
            shown += os.read(ours, 4096)
        os.close(ours)
        assert process.wait(timeout=120) in (2, 130)
    finally:
        process.kill()
        process.wait()
    newest = checkpoint.latest(run / "checkpoints")
    assert checkpoint.read_meta(newest)["update"] > 0


def test_a_run_folder_that_is_removed_while_training(shoal, world, tmp_path, monkeypatch):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(progress._PlainLines, "__call__", lambda self, news: shutil.rmtree(run, ignore_errors=True))
        gone = shoal("train", "test/tiny", "--import", world, "--run-dir", run, *SMALL)
    assert gone.code == 2
    assert gone.err == (
        f"error: the run folder {run} is gone: it was removed or renamed during the run. If it has another name now, "
        "continue it with `shoal resume`; otherwise start a new run.\n"
    )
    assert not run.exists()


@pytest.mark.slow
def test_a_world_whose_code_goes_to_another_folder(shoal, world, tmp_path, monkeypatch):
    """All that is typed is meant from where the command began, and all that is shown can be typed there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    wanderer = tmp_path / "wanderer.py"
    wanderer.write_text(f"import os\n{world.read_text()}\nos.chdir({str(tmp_path / 'elsewhere')!r})\n")
    outcome = shoal("train", "test/tiny", "--import", wanderer, "--run-dir", "run", *SMALL)
    assert outcome.code == 0, outcome.err
    assert "run folder: run; compiling" in outcome.out
    assert f"shoal eval run --import {wanderer}" in outcome.out
    assert {"config.json", "metrics.jsonl", "curves.png", "replay.html"} <= {
        path.name for path in Path("../run").iterdir()
    }
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        ([-3.0, -2.0], "last: return a -2.00 | episode length 5.0\n"),
        ([-3.0, None], "last: return a -3.00 | episode length 5.0 (until update 1: no episode has ended since)\n"),
        (
            [None, None],
            "no return yet: each copy has played 16 steps, and no episode has ended. Raise --total-env-steps",
        ),
    ],
)
def test_a_run_that_ends_between_episodes(tmp_path, capsys, ended, words):
    """The newest return is told, with its age; or that there is none, and what to do."""
    run = RunFolder(tmp_path, Experiment("matrix/matching_pennies", num_steps=8))
    lines = [
        {"update": i + 1, "env_steps": 8, "return/a": value, "return": value, "length": value and 5.0}
        for i, value in enumerate(ended)
    ]
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = TrainingResult({}, 2, [], 1.0, 0.0)
    run_results.say_returns(console(), run, result)
    assert capsys.readouterr().out.startswith(words)
    told = run_results.summary_of(run, result)
    known = [(i + 1, value) for i, value in enumerate(ended) if value is not None]
    assert told["training_return"] == ({"a": known[-1][1]} if known else {})
    assert told["training_return_update"] == (known[-1][0] if known else None)


def test_a_finished_run_says_so_and_how_to_train_further(shoal, world, run):
    (run / "replay.html").unlink()
    again = shoal("resume", run, "--import", world)
    assert again.code == 0
    assert "is finished already: all of its 3 updates are made" in again.out
    (command,) = [line.strip() for line in again.out.splitlines() if line.startswith("  shoal train")]
    assert command == f"shoal train {run} --import {world} --total-env-steps 192"
    assert (run / "replay.html").exists()  # what was missing is drawn
    further = parse_target(TrainOptions, shlex.split(command)[2:], "shoal train").experiment
    before = open_run(run).experiment
    assert before.learners["prey"].algorithm.name == "a2c"  # not that of the world's preset
    assert further == dataclasses.replace(before, total_env_steps=192)
    result = shoal("resume", run, "--import", world, "--json").json
    assert (result["updates"], result["interrupted"]) == (3, False)


def test_a_run_stopped_before_its_first_checkpoint_begins_anew(shoal, world, trained, tmp_path, monkeypatch):
    run = tmp_path / "run"

    def interrupt(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shoal.training.loop.Loop.run", interrupt)
        stopped = shoal("train", "test/tiny", "--import", world, "--run-dir", run, *SMALL)
    assert stopped.code == 130
    assert f"Go on with: shoal resume {run}" in stopped.out
    assert shoal("resume", run, "--import", world, "--json").json["updates"] == 3
    evaluated = [shoal("eval", r, "--import", world, "--episodes", "4", "--json").json for r in (run, trained)]
    assert evaluated[0]["weights_sha256"] == evaluated[1]["weights_sha256"]


def test_interrupting_before_anything_happened(shoal, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("shoal.cli.commands.listings.envs", interrupt)
    outcome = shoal("envs")
    assert (outcome.code, outcome.out) == (130, "")


@pytest.mark.slow
def test_frozen_opponents_and_several_seeds(shoal, world, trained, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # as if it were not installed
    run = tmp_path / "run"
    outcome = shoal(
        *("train", "test/tiny", "--import", world, "--run-dir", run, *SMALL, "--num-seeds", "2", "--seed", "5"),
        *("--freeze", "prey", "--weights", f"prey={trained}"),
    )
    assert outcome.code == 0
    assert "no curves.png: drawing needs matplotlib: pip install 'shoal-rl[plot]'" in outcome.out
    assert (run / "replay.html").is_file()
    names = {name for line in read_metrics(run / "metrics.jsonl") for name in line}
    assert any("loss" in name and "hunter" in name for name in names)
    assert not any("loss" in name and "prey" in name for name in names)
    result = shoal("eval", run, "--import", world, "--episodes", "4", "--json").json
    assert result["mean_return"]["prey"] == [8.0, 8.0]
    assert len(result["mean_return"]["hunter"]) == 2
    assert len(set(result["weights_sha256"])) == 2
    crossed = shoal("eval", trained, "--import", world, "--episodes", "4", "--opponent", f"hunter={run}", "--json").json
    plain = shoal("eval", trained, "--import", world, "--episodes", "4", "--json").json
    assert crossed["mean_return"]["hunter"] == pytest.approx(result["mean_return"]["hunter"][0], abs=1e-5)
    assert crossed["weights_sha256"] not in (plain["weights_sha256"], *result["weights_sha256"][1:])
    assert_refused(shoal("eval", trained, "--import", world, "--opponent", "huntr=x"), "Did you mean 'hunter'?")


def test_one_is_no_plural(shoal, world):
    sizes = ("--num-envs", "1", "--num-steps", "1", "--total-env-steps", "1", "--seconds", "0.01")
    outcome = shoal("bench", "train", "test/tiny", "--import", world, "--algo", "a2c", *sizes)
    assert "; 1 copy x 1 step, 1 update; seed 0" in outcome.out
    assert pluralise(3, "copy", "copies") == "3 copies"
    assert pluralise(0, "step") == "0 steps"


def test_a_shared_policy_is_still_evaluated_per_group(world):
    import_file(str(world))
    setup = share(Experiment(env="test/tiny"), "all").setup
    assert list(setup.spec.groups) == ["shared"]
    result = evaluate(setup, None, episodes=4)
    assert list(result.returns) == ["hunter", "prey"]
    assert result.returns["prey"].tolist() == [8.0] * 4


BENCH_KEYS = {
    *("env_steps_per_s", "agent_steps_per_s", "env_steps_per_cpu_s", "compile_s", "steps", "device", "versions"),
}


def test_bench_env(shoal, world):
    outcome = shoal(
        *("bench", "env", "test/tiny", "--import", world, "--env.hunters", "3"),
        *("--num-envs", "4", "--num-steps", "10", "--seconds", "0.05", "--json"),
    )
    assert set(outcome.json) >= BENCH_KEYS
    assert outcome.json["agents"] == 4
    assert outcome.json["agent_steps_per_s"] == pytest.approx(4 * outcome.json["env_steps_per_s"])
    assert outcome.json["options"] == {"hunters": 3}


def test_bench_train(shoal, world):
    outcome = shoal("bench", "train", "test/tiny", "--import", world, *SMALL, "--seconds", "0.05", "--json")
    assert set(outcome.json) >= BENCH_KEYS
    assert outcome.json["steps"] == outcome.json["updates"] * 32


def test_a_reader_that_goes_away_is_no_news_but_no_success():
    script = "import sys; from shoal.cli import main; sys.exit(main(['--help']))"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait() == 141, "as if SIGPIPE had ended it"


def test_the_installed_command_prints_one_json_object(tmp_path):
    command = [sys.executable, "-c", "import sys; from shoal.cli import main; sys.exit(main())", "train", "nowhere"]
    outcome = subprocess.run([*command, "--json"], capture_output=True, text=True, cwd=tmp_path)
    assert (outcome.returncode, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith("error: unknown world or preset 'nowhere'")
    assert list(tmp_path.iterdir()) == []
    listed = subprocess.run([*command[:3], "presets", "--json"], capture_output=True, text=True, cwd=tmp_path)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert json.loads(listed.stdout)["presets"]
