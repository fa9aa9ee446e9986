"""`shoal resume` of any kind of run has the same options; what costs time is imported by those who need it."""

import subprocess
import sys

import pytest

from shoal.populations.evolution.program import Evolution
from shoal.populations.population import PopulationConfig
from shoal.presets import resolve
from shoal.training.experiment import Experiment
from shoal.training.run import create

from .conftest import assert_refused


@pytest.fixture
def population(tmp_path):
    """A run of `shoal psro` that has not begun."""
    create(tmp_path / "population", PopulationConfig(resolve("psro/kuhn"), oracle="exact"))
    return tmp_path / "population"


@pytest.fixture
def evolution(tmp_path):
    """A run of `shoal evolve` that has not begun."""
    plan = Evolution(Experiment("control/cartpole"), population=8, generations=1, max_steps=4)
    create(tmp_path / "evolution", plan)
    return tmp_path / "evolution"


def test_a_population_has_no_time_between_checkpoints(shoal, population):
    outcome = shoal("resume", population, "--checkpoint-minutes", "2")
    assert_refused(outcome, "saved after every iteration", "leave out --checkpoint-minutes")


def test_exact_responses_need_no_devices(shoal, population, tmp_path):
    words = "exact responses are worked out without devices: leave out --devices"
    assert_refused(shoal("resume", population, "--devices", "1"), words)
    args = ("--oracle", "exact", "--devices", "1", "--run-dir", tmp_path / "run")
    assert_refused(shoal("psro", "cards/kuhn", *args), words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--checkpoint-minutes", "0"), "--checkpoint-minutes must be greater than 0"),
        (("--devices", "0"), "devices must be greater than 0"),
        (("--generations", "3"), "unknown option --generations"),
    ],
)
def test_options_are_checked_whatever_the_kind(shoal, population, evolution, args, words):
    assert_refused(shoal("resume", population, *args), words)
    assert_refused(shoal("resume", evolution, *args), words)
    assert_refused(shoal("evolve", evolution, *args), words)


def test_an_evolution_goes_on_with_as_many_devices_as_it_is_told(shoal, evolution):
    """So many are not there: the option reaches the program."""
    assert_refused(shoal("resume", evolution, "--devices", "1000"), "1000")


@pytest.mark.parametrize("kind", ["psro", "evolution"])
def test_an_unknown_world(shoal, tmp_path, kind):
    experiment = Experiment("test/elsewhere")
    if kind == "psro":
        create(tmp_path / "run", PopulationConfig(experiment))
    else:
        create(tmp_path / "run", Evolution(experiment, population=8))
    assert_refused(shoal("resume", tmp_path / "run"), "unknown world 'test/elsewhere'", "--import FILE")


def test_options_without_a_meaning_are_not_shown(shoal):
    shown = shoal("evolve", "control/cartpole", "--help").out
    assert "--seed " in shown
    assert "--population " in shown
    assert "use only the first N devices" in shown
    for option in ("--num-envs", "--num-steps", "--total-env-steps", "--num-seeds"):
        assert option not in shown


def test_a_training_imports_nothing_of_populations():
    """Solvers of games take half a second to import, which `shoal train` would have to wait for."""
    names = (
        "scipy",
        "shoal.games",
        "shoal.populations",
        "shoal.populations.population",
        "shoal.populations.pbt.plan",
        "shoal.populations.evolution.plan",
    )
    commands = "shoal.cli.commands.train, shoal.cli.commands.evaluate"
    code = f"import sys, {commands}; print([n for n in {names} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
