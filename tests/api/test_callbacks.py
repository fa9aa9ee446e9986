"""Callbacks are told what happens and may stop a run; loggers get every line once, from Python and the command line."""

import csv
import json
import math
import os
import shutil
import sys
import types

import pytest

import shoal
from shoal.cluster.plan import ClusterPlan
from shoal.cluster.run import Cluster
from shoal.cluster.transport.launcher import ThreadLauncher
from shoal.core.errors import OptionError, RunError, UnknownNameError
from shoal.training.callbacks import Observers
from shoal.training.loggers import CSV, make_loggers, recorded_loggers
from shoal.training.metrics import read_metrics, tidy
from shoal.training.run import weights_sha256

from .conftest import SMALL

GAME = "matrix/matching_pennies"
TINY = SMALL | {"algorithm": "a2c"}


class Diary(shoal.Callback):
    def __init__(self, stop_at=None):
        self.told, self.stop_at = [], stop_at

    def on_update(self, event):
        self.told.append(("update", event.update, event.policies))

    def on_evaluation(self, event):
        self.told.append(("evaluation", event.update, event.mean_return))
        assert set(event.policies) == {"player_0", "player_1"}
        if event.update == self.stop_at:
            event.stop()

    def on_checkpoint(self, event):
        self.told.append(("checkpoint", event.update, event.checkpoint.name))

    def of(self, kind):
        return [entry[1:] for entry in self.told if entry[0] == kind]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that a callback stops after 4 of 10 updates, with a CSV, and the same run gone on with."""
    diary, later, folder = Diary(stop_at=4), Diary(), tmp_path_factory.mktemp("runs") / "stopped"
    often = {"eval_every": 80, "eval_episodes": 4}
    run = shoal.train(GAME, folder, callbacks=diary, loggers="csv", **often, **TINY)
    rows = (folder / "metrics.csv").read_text()
    resumed = shoal.resume(run, callbacks=later, devices=1, progress=False)
    return run, diary, rows, resumed, later


def test_a_callback_stops_a_run_that_can_go_on(stopped):
    run, diary, _, resumed, later = stopped
    assert (run.update, run.interrupted) == (4, True)
    assert (resumed.update, resumed.interrupted) == (10, False)
    assert [update for update, _ in diary.of("evaluation")] == [2, 4]
    assert [update for update, _ in later.of("evaluation")] == [6, 8, 10]
    assert diary.of("update")[-1] == (4, None)


def test_a_run_that_was_stopped_ends_as_one_that_was_not(stopped):
    whole = shoal.train(GAME, **TINY)
    assert weights_sha256(whole.policies) == weights_sha256(stopped[3].policies)


def test_evaluations_and_checkpoints_are_told(stopped):
    run, diary, *_ = stopped
    lines = {line["update"]: line for line in read_metrics(run.path / "metrics.jsonl")}
    for update, mean in diary.of("evaluation"):
        assert mean == pytest.approx(lines[update]["eval/return"], abs=1e-6)
    assert diary.of("checkpoint")[0] == (0, "checkpoints")
    assert diary.of("checkpoint")[-1] == (4, "checkpoints")


def test_a_csv_is_the_tidy_table_of_metrics_also_after_going_on(stopped):
    run, _, first, resumed, _ = stopped
    rows = list(csv.reader((run.path / "metrics.csv").read_text().splitlines()))
    assert rows[0] == ["update", "env_steps", "seed", "name", "value"]
    table = tidy(read_metrics(run.path / "metrics.jsonl"), [0])
    assert [int(row[0]) for row in rows[1:]] == table["update"].tolist()
    assert [float(row[4]) for row in rows[1:]] == pytest.approx(table["value"].tolist())
    assert resumed.metrics["value"].tolist() == table["value"].tolist()
    assert (run.path / "metrics.csv").read_text().startswith(first)


def test_the_command_line_logs_too(tmp_path, capsys):
    from shoal.cli import main

    sizes = ["--num-envs", "8", "--num-steps", "5", "--total-env-steps", "400", "--devices", "1", "--algo", "a2c"]
    where = ["--run-dir", str(tmp_path / "run"), "--log", "csv", "--log", f"csv:path={tmp_path / 'other.csv'}"]
    assert main(["train", GAME, *sizes, "--algo.network.hidden", "4", *where, "--json"]) == 0
    assert (tmp_path / "run" / "metrics.csv").read_text() == (tmp_path / "other.csv").read_text() != ""
    more = ["--total-env-steps", "480", "--devices", "1", "--json"]
    capsys.readouterr()
    with pytest.warns(UserWarning, match="was also logged by 'csv:path="):
        assert main(["train", str(tmp_path / "run"), *more]) == 0
    assert "run folder:" in capsys.readouterr().err
    assert len(json.loads((tmp_path / "run" / "config.json").read_text())["loggers"]) == 1, "what announces is not kept"
    rows = (tmp_path / "run" / "metrics.csv").read_text()
    assert rows.splitlines()[-1].startswith("12,480,"), "it goes on with the loggers that it has"
    assert main(["train", str(tmp_path / "run"), "--log", "none", "--total-env-steps", "560", *more[2:]]) == 0
    assert (tmp_path / "run" / "metrics.csv").read_text() == rows
    assert main(["train", GAME, "--log", "cvs"]) == 2
    assert "unknown logger 'cvs'. Did you mean 'csv'?" in capsys.readouterr().err


def test_weights_and_biases_is_offline_unless_told(monkeypatch, tmp_path):
    calls = []
    run = types.SimpleNamespace(
        log=lambda data, step: calls.append((step, data)), finish=lambda: calls.append("finish")
    )
    module = types.SimpleNamespace(init=lambda **options: calls.append(options) or run)
    monkeypatch.setitem(sys.modules, "wandb", module)
    (logger,) = make_loggers(["wandb:project=mine"])
    experiment = shoal.Experiment(GAME, num_seeds=2)
    logger.open(experiment, tmp_path / "run", 0)
    logger.write({"update": 1, "env_steps": 40, "return": [1.0, 3.0], "length": [None, None]})
    logger.close()
    assert (calls[0]["project"], calls[0]["mode"], calls[0]["name"]) == ("mine", "offline", "run")
    assert json.loads(json.dumps(calls[0]["config"]))["learners"]["learner"]["algorithm"]["algorithm"] == "PPO"
    assert calls[1:] == [(40, {"update": 1, "return": 2.0}), "finish"]


def test_tensorboard_elsewhere(tmp_path):
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed: pip install tensorboardX")
    (logger,) = make_loggers([f"tensorboard:path={tmp_path / 'board'}"])
    logger.open(shoal.Experiment(GAME), None, 0)
    logger.write({"update": 1, "env_steps": 40, "return": 1.0})
    logger.close()
    assert len(list((tmp_path / "board").iterdir())) == 1


class Mine(shoal.Logger):
    def __init__(self):
        self.updates, self.closed = [], 0

    def write(self, line):
        self.updates.append(line["update"])

    def close(self):
        self.closed += 1


def test_loggers_of_a_population_get_numbers_alone_and_go_on_where_it_was_stopped(tmp_path):
    class Enough(shoal.Callback):
        checkpoints = 0

        def on_checkpoint(self, event):
            self.checkpoints += 1
            assert len(event.policies["player_0"]) == event.update + 1
            if event.update == 1:
                event.stop()

    logger, enough = Mine(), Enough()
    options = {"loggers": ["csv", logger], "progress": False}
    grown = shoal.psro("cards/kuhn", tmp_path / "kuhn", iterations=3, oracle="exact", callbacks=[enough], **options)
    assert (grown.interrupted, enough.checkpoints, logger.updates) == (True, 2, [0, 1])
    assert not shoal.resume(grown, **options).interrupted
    assert logger.updates == [0, 1, 2, 3]
    rows = list(csv.DictReader((tmp_path / "kuhn" / "metrics.csv").read_text().splitlines()))
    known = [float(row["value"]) for row in rows if row["name"] == "nash_conv"]
    assert known == [line["nash_conv"] for line in shoal.load(tmp_path / "kuhn").history]
    assert "mixtures" not in {row["name"] for row in rows}


def test_a_run_that_goes_on_keeps_the_loggers_it_was_given_last(stopped, tmp_path):
    folder = shutil.copytree(stopped[0].path, tmp_path / "run")
    assert json.loads((folder / "config.json").read_text())["loggers"] == ["csv"]

    def updates():
        rows = csv.DictReader((folder / "metrics.csv").read_text().splitlines())
        return max(int(row["update"]) for row in rows)

    quiet = {"devices": 1, "progress": False}
    shoal.resume(folder, total_env_steps=480, **quiet)
    assert updates() == 12, "by itself"
    shoal.resume(folder, total_env_steps=560, loggers=[], **quiet)
    assert json.loads((folder / "config.json").read_text())["loggers"] == []
    shoal.resume(folder, total_env_steps=640, **quiet)
    assert updates() == 12, "told otherwise, it stays so"


def test_a_run_folder_opens_no_logger_that_writes_elsewhere(stopped, tmp_path):
    folder = shutil.copytree(stopped[0].path, tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())

    def named(*names):
        (folder / "config.json").write_text(json.dumps(config | {"loggers": list(names)}))
        return recorded_loggers(folder)

    for name in (f"csv:path={tmp_path / 'stolen.csv'}", "wandb:mode=online"):
        with pytest.warns(UserWarning, match="writes outside the run folder and is not opened") as told:
            assert named("csv", name) == ("csv",)
        assert name in str(told[0].message)
    with pytest.raises(RunError, match=r"config.json: unknown logger 'cvs'.*empty for none"):
        named("cvs")
    with pytest.raises(RunError, match="'loggers' must be a short list of names"):
        named(3)
    with pytest.raises(RunError, match="'loggers' must be a short list of names"):
        named(*["csv"] * 1000)


def test_a_logger_is_not_led_astray_by_what_lies_in_a_folder(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "metrics.csv")
    with pytest.raises(RunError, match=r"metrics\.csv"):
        CSV().open(shoal.Experiment(GAME), tmp_path, 4)
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=lambda **options: None))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "wandb").symlink_to(tmp_path / "elsewhere")
    (logger,) = make_loggers("wandb")
    with pytest.raises(RunError, match="wandb"):
        logger.open(shoal.Experiment(GAME), tmp_path, 4)


def test_an_evaluation_says_whether_it_is_the_best_so_far():
    class Best(shoal.Callback):
        def __init__(self):
            self.found = []

        def on_evaluation(self, event):
            self.found.append((event.mean_return, event.best))

    told, often = Best(), {"eval_every": 80, "eval_episodes": 4}
    shoal.train("ippo/simple_spread", callbacks=told, env={"max_steps": 5}, minibatches=1, epochs=1, **often, **SMALL)
    means = [mean for mean, _ in told.found]
    assert [best for _, best in told.found] == [
        mean > max(means[:i], default=-math.inf) for i, mean in enumerate(means)
    ]
    assert len(means) == 5
    rivals = Best()
    shoal.train(GAME, callbacks=rivals, **often, **TINY)
    assert not any(best for _, best in rivals.found), "where players compete, there is none"


@pytest.mark.parametrize(
    ("loggers", "words"),
    [
        (["cvs"], "unknown logger 'cvs'. Did you mean 'csv'"),
        (["csv:paht=x"], "logger csv: unknown option 'paht'. Did you mean 'path'"),
        (["csv:path"], "NAME:OPTION=VALUE,OPTION=VALUE, got 'csv:path'"),
        (["wandb:mode=offlin"], "logger wandb: mode must be offline or online, got 'offlin'"),
        ([print], "loggers: each must be a name such as 'csv'"),
        (3, "loggers must be a name such as 'csv', a shoal.Logger, or a list of these, got 3"),
    ],
)
def test_loggers_that_are_none(loggers, words):
    with pytest.raises((OptionError, UnknownNameError), match=words):
        shoal.train(GAME, loggers=loggers)


def test_what_is_missing_is_said_before_anything_is_trained(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(OptionError, match=r"wandb needs the package wandb: pip install 'shoal-rl\[wandb\]'"):
        shoal.train(GAME, tmp_path / "run", loggers=["wandb"])
    assert not (tmp_path / "run").exists()


def test_a_table_needs_a_place_and_callbacks_are_callbacks():
    with pytest.raises(OptionError, match="csv has nowhere to write: give the run a run_dir"):
        CSV().open(shoal.Experiment(GAME), None, 0)
    with pytest.raises(OptionError, match=r"callbacks: each must be an instance of shoal.Callback, got <class"):
        Observers(callbacks=[shoal.Callback])
    with pytest.raises(OptionError, match=r"callbacks must be an instance of shoal.Callback, or a list of them, got <"):
        shoal.train(GAME, callbacks=shoal.Callback)


@pytest.fixture(scope="module")
def on_cluster(tmp_path_factory):
    """A training on a cluster of threads, with a callback that stops it early."""

    class Enough(shoal.Callback):
        checkpoints = ()

        def on_update(self, event):
            if event.update >= 3:
                event.stop()

        def on_checkpoint(self, event):
            assert set(event.policies) == {"player_0", "player_1"}
            self.checkpoints += (event.checkpoint,)

    logger, enough, folder = Mine(), Enough(), tmp_path_factory.mktemp("runs") / "cluster"
    sizes = {"num_envs": 8, "num_steps": 5, "total_env_steps": 40 * 400, "hidden": (4,), "progress": False}
    cluster = Cluster(plan=ClusterPlan(actors=2), launcher=ThreadLauncher())
    told = {"callbacks": [enough], "loggers": [logger]}
    return shoal.train(GAME, folder, algorithm="a2c", cluster=cluster, **told, **sizes), logger, enough


def test_callbacks_and_loggers_on_a_cluster(on_cluster):
    run, logger, enough = on_cluster
    assert run.interrupted
    assert 3 <= run.update < 400
    assert logger.updates
    assert logger.updates == [line["update"] for line in run.lines], "each line once"
    assert set(enough.checkpoints) == {run.path / "checkpoints"}
    assert logger.closed == 1
    assert run.path.is_dir()
    assert run.evaluate(episodes=4).episodes == 4
