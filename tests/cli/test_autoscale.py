"""The number of copies is searched for without risk to the process that asks."""

import sys

import pytest

from shoal.cli.commands import bench
from shoal.core.errors import OptionError
from shoal.training import autoscale
from shoal.training.autoscale import Trial, fastest, measure_apart, search, sizes


def rated(rates):
    """A measurement that knows the rate of each size; a text is a problem."""

    def measure(size):
        found = rates[size]
        return Trial(size, problem=found) if isinstance(found, str) else Trial(size, found, found, 1.0)

    return measure


def test_sizes_are_multiples_in_doubling_steps():
    assert sizes(4, 64, 512) == [64, 128, 256, 512]
    assert sizes(6, 64, 400) == [96, 192, 384]
    with pytest.raises(OptionError, match="least must be"):
        sizes(4, 64, 32)
    with pytest.raises(OptionError, match="100 or more: 100 minibatches"):
        sizes(100, 1, 64)


def test_two_sizes_without_a_gain_end_the_search():
    trials = search([1, 2, 4, 8, 16, 32], rated({1: 10.0, 2: 20.0, 4: 20.9, 8: 30.0, 16: 31.0, 32: 31.4}))
    assert [trial.num_envs for trial in trials] == [1, 2, 4, 8, 16, 32]  # 4 gains too little, but 8 gains again
    trials = search([1, 2, 4, 8, 16], rated({1: 10.0, 2: 9.0, 4: 10.4, 8: 99.0, 16: 99.0}))
    assert [trial.num_envs for trial in trials] == [1, 2, 4]
    assert fastest(trials) == trials[2]


def test_what_does_not_fit_ends_the_search():
    told = []
    trials = search([1, 2, 4], rated({1: 10.0, 2: "too much", 4: 40.0}), told.append)
    assert [trial.num_envs for trial in trials] == [1, 2]
    assert told == trials
    assert fastest(trials).num_envs == 1
    assert fastest([Trial(1, problem="no")]) is None


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("import os; os.kill(os.getpid(), 9)", "ended by SIGKILL: the system ran out of memory"),
        ("import os; os.abort()", "ended by SIGABRT"),
        ("import sys; sys.exit('a word')", "exit code 1: a word"),
        ("import sys; print('error: too much', file=sys.stderr); sys.exit(2)", "too much"),
        ("import time; time.sleep(60)", "ended after 1 s"),
    ],
)
def test_a_process_that_dies_is_a_problem_not_an_error(program, problem):
    trial = measure_apart([sys.executable, "-S", "-c", program], 8, timeout=1.0)
    assert trial.env_steps_per_s is None
    assert problem in trial.problem


def test_a_process_that_answers_is_read():
    answer = '{"env_steps_per_s": 2.0, "env_steps_per_cpu_s": 1.0, "compile_s": 0.5}'
    assert measure_apart([sys.executable, "-S", "-c", f"print('{answer}')"], 8) == Trial(8, 2.0, 1.0, 0.5)


def test_the_command_recommends_an_option(shoal, monkeypatch):
    asked = []

    def measure(command, size):
        asked.append(command)
        return rated({64: 1e6, 128: 3e6, 256: "error"})(size)

    monkeypatch.setattr(autoscale, "measure_apart", measure)
    words = ["tag/grid", "--algo", "a2c", "--seconds", "1", "--least=64"]
    shown = shoal("bench", "autoscale", *words)
    assert shown.code == 0
    assert "fastest here: --num-envs 128, as in: shoal train tag/grid --algo a2c --num-envs 128" in shown.out
    assert asked[0][1:] == [
        *("-P", "-m", "shoal", "bench", "train", "tag/grid", "--algo", "a2c"),
        *("--num-envs", "64", "--seconds", "1.0", "--json"),
    ]
    found = shoal("bench", "autoscale", *words, "--json").json
    assert (found["num_envs"], found["option"]) == (128, "--num-envs 128")
    assert [trial["env_steps_per_s"] for trial in found["trials"]] == [1e6, 3e6, None]


def test_bad_input(shoal, monkeypatch):
    monkeypatch.setattr(autoscale, "measure_apart", lambda command, size: Trial(size, problem="no room"))
    for words, said in (
        (["--num-envs", "8"], "it is what is searched for"),
        (["--least", "0"], "least must be greater than 0"),
        (["--most", "1"], "least must be between 1 and most"),
        ([], "no number of copies could be measured. 64: no room"),
    ):
        outcome = shoal("bench", "autoscale", "tag/grid", *words)
        assert outcome.code == 2
        assert said in outcome.err


def test_options_are_taken_out():
    words = ["demo", "--least", "4", "--seed", "1", "--most=9", "--json"]
    assert bench._without(words, ("--least", "--most"), ("--json",)) == ["demo", "--seed", "1"]


@pytest.mark.slow
def test_a_real_search(shoal):
    """Real processes: both sizes are measured."""
    words = ["control/cartpole", "--num-steps", "8", "--seconds", "0.2", "--least", "8", "--most", "16", "--json"]
    found = shoal("bench", "autoscale", *words).json
    assert [trial["num_envs"] for trial in found["trials"]] == [8, 16]
    assert all(trial["env_steps_per_s"] > 0 for trial in found["trials"])
