"""`shoal sweep`: a table, a plot, a JSON file; and mistakes that are explained."""

import json
import os
import signal
import sys

import matplotlib.image
import pytest

from shoal.api import progress
from shoal.api.pictures import keep_sweep
from shoal.cli.commands.sweep import parse_values
from shoal.core.errors import OptionError
from shoal.training.experiment import Experiment
from shoal.training.run import create
from shoal.training.sweep import Range, Sweep

from .conftest import SMALL, assert_refused


def test_a_sweep_leaves_a_table_and_a_plot(shoal, world, tmp_path):
    out = tmp_path / "new" / "sweep"
    args = ["--over", "learning-rate=1e-4:1e-2:2:log", "--num-seeds", "2", "--measure", "return/hunter"]
    outcome = shoal("sweep", "test/tiny", "--import", world, *SMALL, *args, "--run-dir", out)
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert any("2 points x 2 seeds" in line for line in lines)
    assert any("update 3/3" in line for line in lines)
    table = json.loads((out / "sweep.json").read_text())
    points = table["points"]
    assert [point["values"] for point in points] == [{"learning-rate": rate} for rate in (1e-4, 1e-2)]
    assert all(len(point["returns"]) == len(point["curves"]) == 2 for point in points)
    best = max(points, key=lambda point: point["mean"])
    assert table["best"] == {"values": best["values"], "mean": best["mean"]}
    shown = [line.split()[0] for line in lines if line.startswith((" ", "0.")) and "-" in line and " to " in line]
    ranked = sorted(points, key=lambda point: -point["mean"])
    assert [float(value) for value in shown] == [point["values"]["learning-rate"] for point in ranked]
    assert table["command"].startswith("shoal sweep test/tiny --import")
    assert table["measure"] == ["return/hunter"]
    assert table["versions"]["jax"]
    assert table["wall_s"] > 0
    assert table["compile_s"] > 0
    assert matplotlib.image.imread(out / "sweep.png").shape[0] > 100
    again = shoal("sweep", "test/tiny", "--import", world, *SMALL, *args, "--run-dir", out)
    assert_refused(again, "already exists", f"shoal resume {out}", "--run-dir")


def test_wrong_options_for_a_sweep_that_goes_on(shoal, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = Sweep(Experiment("matrix/matching_pennies"), {"gamma": (0.9, 0.99)})
    create(tmp_path / "parts", plan)
    assert_refused(shoal("resume", "parts", "--cluster", "auto"), "is a sweep", "leave out --cluster")
    assert_refused(shoal("resume", "parts", "--checkpoint-minutes", "0"), "--checkpoint-minutes must be greater than 0")
    assert_refused(shoal("sweep", "parts", "--over", "gamma=0.9"), "unknown option --over")
    for command in ("eval", "watch", "train"):
        assert_refused(shoal(command, "parts"), "is a run of `shoal sweep`, not of training")


@pytest.mark.slow
@pytest.mark.usefixtures("terminal_signals")
def test_a_stopped_sweep_goes_on(shoal, world, tmp_path, monkeypatch):
    args = ["sweep", "test/tiny", "--import", world, *SMALL, "--over", "learning_rate=1e-3,1e-2"]
    monkeypatch.chdir(tmp_path)
    show, told = progress._PlainLines.__call__, []

    def hang_up(self, news):
        show(self, news)
        told.append(news)
        if len(told) == 1:
            os.kill(os.getpid(), signal.SIGHUP)  # the terminal is closed

    with monkeypatch.context() as patch:
        patch.setattr(progress._PlainLines, "__call__", hang_up)
        stopped = shoal(*args, "--run-dir", "parts", "--json")
    assert (stopped.code, stopped.json["interrupted"], stopped.json["updates"]) == (130, True, 2)
    assert f"Go on with: shoal resume parts --import {world}" in stopped.err
    resumed = shoal("resume", "parts", "--import", world, "--json")
    assert resumed.code == 0, resumed.err
    whole = shoal(*args, "--run-dir", "whole", "--json").json
    own = ("wall_s", "compile_s", "command", "run_dir", "out")
    assert {**resumed.json, **dict.fromkeys(own)} == {**whole, **dict.fromkeys(own)}
    assert json.loads((tmp_path / "parts" / "sweep.json").read_text())["updates"] == 3
    finished = shoal("sweep", "parts", "--import", world)
    assert finished.code == 0
    assert "table: parts/sweep.json" in finished.out


@pytest.mark.slow
def test_json_and_a_point_that_failed(shoal, world, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    over = ["--over", "learning_rate=1e-3,1e38", "--over", "gamma=0.9,0.99"]
    outcome = shoal("sweep", "test/tiny", "--import", world, *SMALL, *over, "--json")
    assert outcome.code == 0
    assert "failed (nan)" in outcome.err
    assert "2 of 4 points failed" in outcome.err
    assert [point["mean"] is None for point in outcome.json["points"]] == [False, False, True, True]
    (folder,) = (tmp_path / "sweeps").iterdir()
    assert outcome.json["out"] == str(folder)
    assert (folder / "sweep.png").exists()


def test_all_points_failed(shoal, world, tmp_path):
    outcome = shoal(
        *("sweep", "test/tiny", "--import", world, *SMALL, "--run-dir", tmp_path / "s", "--random", "4"),
        *("--over", "gamma=0.9:0.99:log", "--over", "learning_rate=1e37:1e38", "--over", "gae_lambda=0.9,0.95"),
    )
    assert_refused(outcome, "every point failed", "NaN or infinite in update")
    assert (tmp_path / "s" / "sweep.png").exists()
    assert json.loads((tmp_path / "s" / "sweep.json").read_text())["best"] is None


def test_without_matplotlib_it_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    point = {"values": {"gamma": 0.9}, "returns": [1.0], "mean": 1.0}
    table = {"experiment": {"env": "demo"}, "over": {"gamma": [0.9]}, "points": [point], "measure": ["return/a"]}
    assert keep_sweep(tmp_path, table) == (None, "drawing needs matplotlib: pip install 'shoal-rl[plot]'")
    assert [file.name for file in tmp_path.iterdir()] == ["sweep.json"]


def test_values():
    assert parse_values("a", "1e-4:1e-2:32:log") == Range(1e-4, 1e-2, 32, log=True)
    assert parse_values("a", "0:1:5") == parse_values("a", "0:1:5:lin") == Range(0.0, 1.0, 5)
    assert parse_values("a", "0.1:1:log") == Range(0.1, 1.0, None, log=True)
    assert parse_values("a", "0.1,0.2") == (0.1, 0.2)
    assert parse_values("a", "3") == (3.0,)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1:2:3:4", "a range is START:STOP:COUNT"),
        ("1:2:x", "how many values, then log or lin; got 'x'"),
        ("1:2:3:loog", "a range is START:STOP:COUNT"),
        ("1:2:2.5", "how many values"),
        ("a:2:3", "'a' is not a number"),
        ("1,,2", "'' is not a number"),
        ("2:1:3", "stop must be greater than its start, 2"),
        ("0:1:3:log", "start must be greater than 0 if it is logarithmic"),
        ("1:2:1", "count must be at least 2"),
    ],
)
def test_malformed_values(text, words):
    with pytest.raises(OptionError, match=words):
        parse_values("gamma", text)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "over what?"),
        (["--over", "gamma"], "--over must be OPTION=VALUES"),
        (["--over", "gama=0.9,0.8"], "Did you mean 'gamma'"),
        (["--over", "epochs=1,2"], "epochs cannot be swept: it is of type int"),
        (["--over", "gamma=0.9,2"], "gamma must be at least 0 and at most 1, got 2.0"),
        (["--over", "gamma=0.9,0.8", "--over", "gamma=0.7"], "once"),
        (
            ["--over", "gamma=0.9:0.99"],
            "--over gamma=0.9:0.99: how many values? Give START:STOP:COUNT, as --over",
        ),
        (["--over", "gamma=0.9:0.99:log"], "as --over gamma=0.9:0.99:8:log, or --random N"),
        (["--over", "gamma=0.9,0.8", "--random", "3"], "random must be at most 2, all combinations"),
        (["--over", "gamma=0.9", "--algo", "dqn", "--total-env-steps", "2000"], "would never learn"),
        (["--over", "gamma=0.9", "--weights", "agent=nowhere"], "nowhere is not a run folder"),
        (["--over", "gamma=0.9:0.99", "--random", "0"], "random must be greater than 0"),
        (["--over", "gamma=0.9,0.8", "--num-seeds", "0"], "seeds must be greater than 0"),
        (["--over", "gamma=0.9,0.8", "--rando", "3"], "Did you mean --random"),
    ],
)
def test_bad_input(shoal, tmp_path, args, words):
    assert_refused(shoal("sweep", "demo", *args, "--run-dir", tmp_path / "s"), words)
    assert not (tmp_path / "s").exists()


def test_bad_measure(shoal, world, tmp_path):
    outcome = shoal(
        *("sweep", "test/tiny", "--import", world, *SMALL, "--over", "gamma=0.9", "--measure", "return/huntr"),
        *("--run-dir", tmp_path / "s"),
    )
    assert_refused(outcome, "Did you mean 'return/hunter'")
    assert "compiling" not in outcome.out
    assert not (tmp_path / "s").exists()


def test_what_cannot_be_swept_is_listed_once(shoal):
    outcome = shoal("sweep", "mpe/simple_spread", "--algo", "dqn", "--over", "clip_eps=0.1,0.2")
    assert_refused(outcome, "unknown option 'clip_eps'")
    assert outcome.err.count("learning_rate") == 1


@pytest.mark.slow
def test_no_episode_ended(shoal, world, tmp_path):
    """Episodes last for four steps, and there are two."""
    outcome = shoal(
        *("sweep", "test/tiny", "--import", world, *SMALL, "--num-steps", "2", "--total-env-steps", "8"),
        *("--over", "gamma=0.9,0.8", "--run-dir", tmp_path / "s"),
    )
    assert_refused(outcome, "no episode ended in 8 env steps; raise --total-env-steps")
    assert "failed" not in outcome.out + outcome.err
    assert "nan" not in outcome.out
    assert "2 of 2 points: no episode ended" in outcome.out
    assert json.loads((tmp_path / "s" / "sweep.json").read_text())["points"][0]["failures"][0].startswith("no episode")
