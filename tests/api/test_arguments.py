"""What users give for arguments: what is evidently meant is taken, all else is refused in words that name arguments."""

import dataclasses

import numpy as np
import pytest

import shoal
from shoal.api.words import spell
from shoal.core.errors import OptionError, RunError, ShoalError, UnknownNameError

from .conftest import SMALL

GAME = "matrix/matching_pennies"


def test_policies_and_runs_are_played_where_weights_are(pennies):
    run = pennies[0]
    wanted = shoal.evaluate(run, episodes=16).returns
    played = shoal.evaluate(run.experiment, {name: run.policy(name) for name in run.policies}, episodes=16).returns
    np.testing.assert_array_equal(played["player_0"], wanted["player_0"])
    played = shoal.evaluate(run, {"player_0": run, "player_1": run.policy("player_1")}, episodes=16).returns
    np.testing.assert_array_equal(played["player_0"], wanted["player_0"])


@pytest.mark.parametrize(
    ("policies", "words"),
    [
        ("runs/x", "policies must be a mapping of names to policies, got 'runs/x'"),
        ({"player_0": "runs/x"}, r"policies\['player_0'\] must be weights such as run.policies has, a policy or a run"),
        ({"player_0": None}, r"policies\['player_0'\] must be weights"),
        ({"player_9": np.zeros(1)}, "unknown policy 'player_9'"),
    ],
)
def test_policies_that_are_none(pennies, policies, words):
    with pytest.raises((OptionError, UnknownNameError), match=words):
        shoal.evaluate(pennies[0], policies, episodes=4)
    with pytest.raises((OptionError, UnknownNameError), match=words):
        shoal.evaluate(GAME, policies, episodes=4)


def test_a_policy_of_another_algorithm_is_refused(pennies):
    with pytest.raises(OptionError, match=r"Policy\('player_0'.*has another algorithm.*shoal.match plays"):
        shoal.evaluate(pennies[0], {"player_0": pennies[1].policy("player_0")}, episodes=4)


def test_opponents_are_folders_runs_or_policies(pennies):
    run = pennies[0]
    other = dataclasses.replace(
        run, policies={"player_0": run.policies["player_1"], "player_1": run.policies["player_0"]}
    )
    by_folder = run.evaluate(16, opponents={"player_1": run.path}).returns["player_0"]
    for same in (str(run.path), run, run.policy("player_1")):
        np.testing.assert_array_equal(run.evaluate(16, opponents={"player_1": same}).returns["player_0"], by_folder)
    swapped = shoal.evaluate(run, episodes=16, opponents={"player_1": other})
    np.testing.assert_array_equal(
        swapped.returns["player_0"],
        run.evaluate(16, opponents={"player_1": run.policy("player_0")}).returns["player_0"],
    )
    with pytest.raises(RunError, match=r"opponents player_1: the policy 'player_1' there does not fit"):
        run.evaluate(4, opponents={"player_1": pennies[1]})
    with pytest.raises(
        OptionError, match=r"opponents\['player_1'\] must be a run, its folder, a policy, or 'random', got 3"
    ):
        run.evaluate(4, opponents={"player_1": 3})
    with pytest.raises(OptionError, match=r"opponents must be a mapping"):
        shoal.evaluate(run, episodes=4, opponents="random")


def test_learners_start_from_runs_that_are_kept(pennies, tmp_path):
    run = pennies[0]
    same = {"algorithm": "a2c"} | SMALL | {"total_env_steps": 40}
    by_folder = shoal.train(GAME, weights={"player_0": run.path}, sharing="group", **same)
    by_run = shoal.train(GAME, weights={"player_0": run}, sharing="group", **same)
    assert by_run.experiment == by_folder.experiment
    with pytest.raises(OptionError, match=r"weights are of a run in memory alone. Train it with a run_dir"):
        shoal.train(GAME, weights={"player_0": by_run}, sharing="group", **same)
    with pytest.raises(OptionError, match=r"as it was after 3 updates"):
        shoal.train(GAME, weights={"player_0": dataclasses.replace(run, update=3)}, sharing="group", **same)
    with pytest.raises(
        OptionError, match=r"weights must be a run, its folder, or a mapping of learners to these, got 5"
    ):
        shoal.train(GAME, weights=5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"env": "x"}, "shoal.train: env must be a mapping with options of the world.* got 'x'"),
        ({"devices": "x"}, "devices must be a number of devices, at least 1, got 'x'"),
        ({"devices": 0}, "devices must be a number of devices, at least 1, got 0"),
        ({"run_dir": 5}, "run_dir must be a folder, or 'auto' for one below runs/, got 5"),
        ({"listener": 5}, "listener must be a function, got 5"),
        ({"checkpoint_seconds": "x"}, "checkpoint_seconds must be a number greater than 0, got 'x'"),
        ({"checkpoint_every": "x"}, "checkpoint_every must be 0 .by time alone. or more, got 'x'"),
        ({"checkpoint_every": 1.5}, "checkpoint_every must be 0 .by time alone. or more, got 1.5"),
        ({"freeze": 5}, "shoal.train: freeze must be names of learners, got 5"),
        ({"cluster": 5}, "cluster must be 'auto', an address, or a mapping"),
        ({"env_workers": 2}, "is compiled: env_workers is for environments of other libraries"),
    ],
)
def test_arguments_of_another_kind(options, words):
    with pytest.raises(OptionError, match=words):
        shoal.train(GAME, **{"progress": False} | options)


def test_numbers_of_an_evaluation_and_runs_to_import():
    for name in ("episodes", "seed"):
        with pytest.raises(OptionError, match=rf"evaluate: {name} must be a whole number, got 'x'"):
            shoal.evaluate(GAME, **{name: "x"})
    with pytest.raises(OptionError, match=r"import_policies must be folders of runs, got 5"):
        shoal.psro("cards/kuhn", import_policies=5)
    with pytest.raises(RunError, match=r"policies to import: .*/none is not a run folder"):
        shoal.psro("cards/kuhn", import_policies="none")


@pytest.mark.parametrize("path", [None, 5])
def test_what_is_loaded_and_resumed_has_a_folder(path):
    with pytest.raises(OptionError, match=r"shoal.load: path must be the folder of a run, got"):
        shoal.load(path)
    with pytest.raises(OptionError, match=r"shoal.resume: run must be a run, a population, or the folder of one, got"):
        shoal.resume(path)
    with pytest.raises(OptionError, match=r"shoal.match: players\['player_0'\] must be a run, a population"):
        shoal.match({"player_0": path, "player_1": "random"})


def test_who_is_compared_and_who_evolves_where_players_compete():
    small = {"population": 4, "generations": 1, "progress": False}
    with pytest.raises(OptionError, match=r"Name the policies that evolve, evolve=NAME; its policies are player_0, pl"):
        shoal.evolve(GAME, **small)
    for one in ("player_0", ["player_0"], ("player_0",)):
        assert shoal.evolve(GAME, evolve=one, **small).update == 1
    with pytest.raises(OptionError, match=r"evolve must be a tuple, each entry text, got 5"):
        shoal.evolve(GAME, evolve=5, **small)
    with pytest.raises(OptionError, match=r"Name one, measure=NAME, of return/player_0, return/player_1"):
        shoal.pbt(GAME, learning_rate=shoal.log(1e-4, 1e-2), members=2, progress=False)


def test_a_world_is_vectorised_by_its_id():
    assert shoal.vectorise("mpe/simple_spread", 4) == shoal.vectorise(shoal.make("mpe/simple_spread"), 4)
    with pytest.raises(ShoalError, match=r"unknown world 'mpe/simple_spred'"):
        shoal.vectorise("mpe/simple_spred", 4)
    with pytest.raises(OptionError, match=r"shoal.vectorise: env must be a world, shoal.make.ID., or its id, got 5"):
        shoal.vectorise(5, 4)
    with pytest.raises(OptionError, match=r"shoal.vectorise: num_envs must be a number of copies, at least 1, got '4'"):
        shoal.vectorise("mpe/simple_spread", "4")


def test_errors_name_arguments(pennies):
    with pytest.raises(RunError, match=r"runs with evaluations \(eval_every=STEPS\) keep one"):
        shoal.load(pennies[0].path, checkpoint="best")
    with pytest.raises(RunError, match=r"Continue it with `shoal resume .*or choose another folder with run_dir"):
        shoal.train(GAME, pennies[0].path, **SMALL)


@pytest.mark.parametrize(
    ("text", "spelt"),
    [
        ("leave out --env-workers", "leave out env_workers"),
        ("keep one (--eval-every STEPS).", "keep one (eval_every=STEPS)."),
        ("Use ddpg (--algo ddpg)", "Use ddpg (algorithm ddpg)"),
        ("go on with `shoal resume x --env-workers 2`", "go on with `shoal resume x --env-workers 2`"),
        ("saved; resume with: shoal resume x --env-workers 2", "saved; resume with: shoal resume x --env-workers 2"),
        ("name the file that registers it: --import FILE.", "import the file that registers it first."),
        ("repeat it: --import a.py (in Python, shoal.trust)", "repeat it: --import a.py (in Python, shoal.trust)"),
        ("a -- b, x--y", "a -- b, x--y"),
    ],
)
def test_options_are_spelt_as_arguments(text, spelt):
    assert spell(text) == spelt
