"""Populations from Python: grown further, as if they had been grown at once; and in matches."""

import dataclasses

import jax
import numpy as np
import pytest

import shoal
from shoal.core.errors import OptionError, UnknownNameError

FAST = {"algorithm": "a2c", "learning_rate": 0.1}  # policies that differ after two updates
TINY = {"num_envs": 8, "num_steps": 4, "total_env_steps": 64, "hidden": (4,), "episodes": 16} | FAST
QUIET = {"devices": 1, "progress": False}


def assert_same(one, other):
    """Two populations with the same policies, payoffs and figures, but for the time that they took."""
    for name, bank in one.state.banks.items():
        for i in range(len(bank)):
            ours, theirs = (jax.tree.leaves(found.state.banks[name][i]) for found in (one, other))
            for left, right in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(left, right)
    np.testing.assert_array_equal(one.payoffs, other.payoffs)
    for ours, theirs in zip(one.history, other.history, strict=True):
        assert {k: v for k, v in ours.items() if not k.endswith(("_s", "seconds"))} == {
            k: v for k, v in theirs.items() if not k.endswith(("_s", "seconds"))
        }


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """A population of two iterations, grown by two more, and one of four at once."""
    folder = tmp_path_factory.mktemp("runs") / "kuhn"
    few = shoal.psro("cards/kuhn", folder, iterations=2, **TINY, **QUIET)
    more = shoal.resume(few, iterations=4, **QUIET)
    return few, more, shoal.psro("cards/kuhn", iterations=4, **TINY, **QUIET)


def test_a_population_that_is_grown_further_is_one_that_was_grown_at_once(grown):
    few, more, whole = grown
    assert [len(population.history) for population in grown] == [3, 5, 5]
    assert_same(more, whole)
    assert shoal.load(few.path).config.psro.iterations == 4, "the folder has the new total"
    assert not shoal.load(few.path).interrupted


@pytest.mark.slow
def test_so_is_a_league(tmp_path):
    options = {"exploit_every": 2, **TINY, **QUIET}
    few = shoal.league("cards/kuhn", tmp_path / "kuhn", iterations=1, **options)
    more = shoal.resume(few, iterations=2, **QUIET)
    assert_same(more, shoal.league("cards/kuhn", iterations=2, **options))
    roles = sorted((member.born, member.info["role"]) for member in more.members("player_1")[1:])
    assert roles == [(1, "main"), (2, "league_exploiter"), (2, "main"), (2, "main_exploiter")]


def test_members_say_where_policies_come_from(grown):
    _, more, _ = grown
    members = more.members("player_0")
    assert [member.born for member in members] == [0, 1, 2, 3, 4]
    assert len(members) == len(more.policies("player_0"))
    with pytest.raises(UnknownNameError, match="unknown player 'player_2'"):
        more.members("player_2")


def test_what_cannot_be_grown_further(grown, tmp_path):
    path = grown[0].path
    with pytest.raises(OptionError, match=r"has a total of 4 iterations, and 3 are fewer.* give a larger iterations"):
        shoal.resume(path, iterations=3)
    with pytest.raises(OptionError, match=r"is a population, which is not continued .* by total_env_steps, but"):
        shoal.resume(path, total_env_steps=100)
    reached = shoal.psro("cards/kuhn", tmp_path / "kuhn", iterations=1, oracle="exact", target_nash_conv=9.0, **QUIET)
    with pytest.raises(OptionError, match=r"stopped by its target .* after 0 iterations.*import_policies"):
        shoal.resume(reached, iterations=2)


def test_the_command_grows_a_population_further(tmp_path, capsys):
    from shoal.cli import main

    path = str(tmp_path / "kuhn")
    assert main(["psro", "cards/kuhn", "--oracle", "exact", "--iterations", "1", "--run-dir", path]) == 0
    assert main(["psro", path, "--iterations", "3"]) == 0
    assert_same(shoal.load(path), shoal.psro("cards/kuhn", iterations=3, oracle="exact", progress=False))
    assert main(["psro", path, "--iterations", "2"]) == 2
    assert "has a total of 3 iterations, and 2 are fewer" in capsys.readouterr().err.replace("\n", " ")


def test_a_single_policy_plays_in_a_match(grown):
    population, seats = grown[1], ("player_0", "player_1")
    count, total = population.state.table.count, population.state.table.total
    for numbers in ((0, 0), (2, 4)):
        sides = {player: (population, number) for player, number in zip(seats, numbers, strict=True)}
        played = shoal.match(sides, episodes=2000)
        mean = total[(0, *numbers)] / count[numbers]
        error = played.standard_error["player_0"] + 2.0 / np.sqrt(count[numbers])
        assert abs(played.mean_return["player_0"] - mean) < 3 * error
    by_folder = shoal.match({"player_0": (population.path, -1), "player_1": (str(population.path), 0)}, episodes=64)
    by_number = shoal.match({"player_0": (population, 4), "player_1": (population, 0)}, episodes=64)
    np.testing.assert_array_equal(by_folder.returns["player_0"], by_number.returns["player_0"])


def test_a_population_plays_its_mixture_a_policy_for_each_episode(grown):
    population = grown[1]
    first, last = (
        shoal.match({"player_0": (population, i), "player_1": "random"}, episodes=512).returns["player_0"]
        for i in (0, 4)
    )
    assert (first != last).any()

    def play(*shares):
        mixture = np.array(shares)
        state = dataclasses.replace(population.state, mixtures=(mixture, mixture))
        mixed = dataclasses.replace(population, state=state)
        return shoal.match({"player_0": mixed, "player_1": "random"}, episodes=512).returns["player_0"]

    np.testing.assert_array_equal(play(0, 0, 0, 0, 1), last)
    both = play(0.5, 0, 0, 0, 0.5)
    assert ((both == first) | (both == last)).all(), "in every episode it is one of the two"
    told = first != last
    assert 0.25 < (both == first)[told].mean() < 0.75


def test_populations_meet_runs_and_each_other(grown):
    population = grown[1]
    run = shoal.train(
        "cards/kuhn", algorithm="pqn", sharing="all", num_envs=8, num_steps=4, total_env_steps=64, **QUIET
    )
    played = shoal.match({"player_0": population, "player_1": run}, episodes=8)
    assert played.episodes == 8
    assert shoal.match({"player_0": population.path, "player_1": (population, 1)}, episodes=8).episodes == 8
    with pytest.raises(OptionError, match=r"must be between -5 and 4, got 5"):
        shoal.match({"player_0": (population, 5), "player_1": run}, episodes=8)
    with pytest.raises(OptionError, match=r"players\['player_1'\] must be between 0 and 0, got 3"):
        shoal.match({"player_0": population, "player_1": (run, 3)}, episodes=8)  # of a run, the number is a seed's
    exact = shoal.psro("cards/kuhn", iterations=1, oracle="exact", progress=False)
    with pytest.raises(OptionError, match=r"exact responses: .*there is nothing to play; .*\(oracle ppo\)"):
        shoal.match({"player_0": exact, "player_1": run}, episodes=8)
