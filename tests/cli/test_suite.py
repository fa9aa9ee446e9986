"""The suite measures what training runs, in one row each, and every row can be repeated by a command."""

import json
import shlex
import statistics

import jax
import pytest

from shoal.api import suite
from shoal.api.suite import HEADLINE, SMALL, Work, measure, suite_for
from shoal.cli import app
from shoal.cli.commands import bench
from shoal.core.errors import OptionError
from shoal.training import bench as training_bench

TINY = Work("tiny", "tag/grid", {"num_envs": 4, "num_steps": 2})


@pytest.mark.parametrize("work", [*HEADLINE, *SMALL], ids=lambda work: work.name)
def test_every_row_is_measured_by_the_command_it_names(work, monkeypatch):
    """The command of a row hands the same work to the same function as the suite does."""
    asked = []

    def keep(*args, **options):
        asked.append((args, {name: value for name, value in options.items() if name not in ("repeats", "seed")}))
        raise OptionError("seen")

    for module in (suite, bench):
        monkeypatch.setattr(module, "bench_env", keep)
        monkeypatch.setattr(module, "bench_train", keep)
    assert measure(work, 2.0)["refused"] == "seen"
    assert app.main(shlex.split(work.command(2.0))[1:]) == 2
    (ours, told), (args, options) = asked
    if work.trains:
        assert args == ours
    else:
        assert args[:2] == (ours[0], dict(ours[1]))
    assert {name: options[name] for name in told} == told


def test_a_row_is_complete_and_its_rate_the_median():
    row = measure(TINY, 0.01, 3)
    wanted = {"work", "env_steps_per_s", "spread", "precision", "command", "commit", "device", "versions", "compile_s"}
    assert wanted <= set(row)
    assert len(row["repeats"]) == 3
    assert row["env_steps_per_s"] == statistics.median(row["repeats"])
    assert row["spread"] == [min(row["repeats"]), max(row["repeats"])]
    assert row["precision"] == "float32"
    assert row["kernels"] == ""  # no networks play
    assert row["command"] == "shoal bench env tag/grid --num-envs 4 --num-steps 2 --seconds 0.01"
    assert jax.config.values["jax_enable_compilation_cache"]  # again


def test_networks_in_bfloat16_are_said_and_used():
    (work,) = (work for work in HEADLINE if work.name == "simple_spread PPO, 4,096 copies, bfloat16")
    assert work.experiment.num_envs == 4096
    assert work.experiment.learners["agent"].algorithm.network.dtype == "bfloat16"
    assert "--algo.network.dtype bfloat16" in work.command(1.0)
    assert suite.precision(work.dtype) == "networks in bfloat16, weights in float32"


def test_what_does_not_fit_is_a_row_without_figures(monkeypatch):
    monkeypatch.setattr("shoal.training.memory.free_bytes", lambda: 1)
    row = measure(TINY, 0.01)
    assert "of memory" in row["refused"]
    assert "env_steps_per_s" not in row
    assert bench._suite_table([row]).row_count == 1


def test_a_peers_rate_is_compared(monkeypatch):
    found = {
        "repeats": [30.0, 10.0, 20.0],
        "kernels": "",
        "agent_steps_per_s": 1.0,
        "env_steps_per_cpu_s": 1.0,
        "compile_s": 0.5,
    }
    monkeypatch.setattr(Work, "run", lambda *args: found)
    row = measure(Work("mine", "tag/grid", peer="another", peer_rate=5.0))
    assert (row["env_steps_per_s"], row["ratio"], row["peer"]) == (20.0, 4.0, "another")


def test_a_cpu_gets_small_rows():
    assert suite_for("cpu") == SMALL
    assert suite_for("gpu") == HEADLINE
    assert len({work.name for work in (*SMALL, *HEADLINE)}) == len(SMALL) + len(HEADLINE)


def test_the_table_is_printed_and_kept(shoal, tmp_path, monkeypatch):
    slow = Work("slow", "tag/grid", long=True)
    monkeypatch.setattr(bench, "suite_for", lambda platform: (TINY, slow))
    rates = {
        "repeats": [2e6, 1e6, 3e6],
        "kernels": "networks: told",
        "agent_steps_per_s": 1e7,
        "env_steps_per_cpu_s": 5e5,
        "compile_s": 0.5,
    }
    monkeypatch.setattr(Work, "run", lambda self, seconds, repeats: rates)
    shown = shoal("bench", "suite", "--quick", "--out", tmp_path / "rows.json")
    assert shown.code == 0
    assert "2M " in shown.out
    assert "1M to 3M" in shown.out
    assert "slow" not in shown.out
    assert "networks: told" in shown.out
    assert [row["work"] for row in json.loads((tmp_path / "rows.json").read_text())] == ["tiny"]
    both = shoal("bench", "suite", "--json").json["rows"]
    assert [row["work"] for row in both] == ["tiny", "slow"]
    unknown = shoal("bench", "suite", "--only", "chess")
    assert unknown.code == 2
    assert "no row's name contains 'chess'. Rows for this device: tiny; slow" in unknown.err
    nowhere = shoal("bench", "suite", "--out", tmp_path / "no" / "rows.json")
    assert nowhere.code == 2
    assert "make it first" in nowhere.err


def test_the_rate_of_several_timings_is_their_median():
    timings = [{"calls": calls, "wall": 2.0, "cpu": 4.0, "last": None} for calls in (10, 40, 20)]
    mesh = training_bench.make_mesh(1, 1, 1)
    result = training_bench._result(timings, 3, 5, 1.0, mesh)
    assert result["repeats"] == [15.0, 60.0, 30.0]
    assert (result["env_steps_per_s"], result["agent_steps_per_s"]) == (30.0, 150.0)
    assert (result["env_steps_per_cpu_s"], result["steps"], result["wall_s"]) == (15.0, 210, 6.0)
