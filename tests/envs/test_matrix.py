"""Matrix games: payoffs, rounds, views, bad input, exact tables."""

import dataclasses
import itertools
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyspiel
import pytest

import shoal
from shoal.cli import main
from shoal.cli.commands.bench import BenchTrainOptions
from shoal.cli.targets import parse_target
from shoal.core import registry
from shoal.core.errors import OptionError
from shoal.envs.tabular import tabulate
from shoal.testing import check_env
from shoal.training.experiment import Experiment

CLASSICS = {
    "matrix/rock_paper_scissors": "matrix_rps",
    "matrix/matching_pennies": "matrix_mp",
    "matrix/prisoners_dilemma": "matrix_pd",
    "matrix/stag_hunt": "matrix_sh",
}
THREE = np.random.default_rng(0).normal(size=(3, 2, 3, 4)).round(3)


def play(env, *rounds, params=None):
    """Payoffs `[rounds, players]` and the last state and outcome."""
    params = env.default_params() if params is None else params
    state, payoffs, outcome = env.deal(jnp.int32(0)), [], None
    for chosen in rounds:
        actions = {name: jnp.array([action]) for name, action in zip(env.groups, chosen, strict=True)}
        state, outcome = env.step(None, state, actions, params)
        payoffs.append([float(outcome.reward[name][0]) for name in env.groups])
    return np.array(payoffs), state, outcome


@pytest.mark.parametrize("id", CLASSICS)
def test_payoffs_are_those_of_openspiel(id):
    theirs, env = pyspiel.load_matrix_game(CLASSICS[id]), shoal.make(id)
    expected = [theirs.row_utilities(), theirs.col_utilities()]
    np.testing.assert_array_equal(env.default_params().payoffs, np.array(expected, np.float32))
    assert env.num_actions == (theirs.num_rows(), theirs.num_cols())
    assert [name.capitalize() for name in env.moves] == [theirs.row_action_name(i) for i in range(theirs.num_rows())]
    for row, column in itertools.product(*map(range, env.num_actions)):
        payoffs, _, outcome = play(env, (row, column))
        np.testing.assert_array_equal(payoffs[0], [matrix[row][column] for matrix in expected])
        assert outcome.terminated
        assert not outcome.truncated
        shares = [((row == i) + (column == i)) / 2 for i in range(len(env.moves))]
        assert [float(outcome.metrics[name]) for name in env.moves] == shares


def test_any_tensor_for_any_number_of_players():
    env = shoal.make("matrix/game", payoffs=THREE)
    assert [group.action.n for group in env.groups.values()] == [2, 3, 4]
    assert len(env.players) == 3
    start, params = env.deal(jnp.int32(0)), env.default_params()
    chosen = np.array(list(itertools.product(range(2), range(3), range(4))))
    actions = {name: jnp.array(column)[:, None] for name, column in zip(env.groups, chosen.T, strict=True)}
    reward = jax.jit(jax.vmap(lambda actions: env.step(None, start, actions, params)[1].reward))(actions)
    for player, name in enumerate(env.groups):
        np.testing.assert_allclose(reward[name][:, 0], THREE[(player, *chosen.T)], atol=1e-6)
    assert check_env(env, num_steps=10).ok
    assert env == shoal.make("matrix/game", payoffs=THREE.tolist()), "lists and arrays are the same game"
    assert hash(env) == hash(shoal.make("matrix/game", payoffs=json.loads(json.dumps(env.payoffs))))


def test_one_matrix_is_a_zero_sum_game():
    env = shoal.make("matrix/game", payoffs=[[1, 2, 3], [4, 5, 6]])
    assert env.num_actions == (2, 3)
    np.testing.assert_array_equal(play(env, (1, 2))[0], [[6, -6]])


def test_payoffs_are_params():
    env = shoal.make("matrix/stag_hunt")
    games = jax.tree.map(lambda leaf: jnp.stack([leaf, 10 * leaf]), env.default_params())
    actions = {name: jnp.zeros(1, jnp.int32) for name in env.groups}
    state = env.deal(jnp.int32(0))
    reward = jax.vmap(lambda params: env.step(None, state, actions, params)[1].reward["player_0"])(games)
    np.testing.assert_array_equal(reward, [[2.0], [20.0]])


def test_a_game_played_once_has_nothing_to_see():
    env = shoal.make("matrix/rock_paper_scissors")
    for state in (env.reset(jax.random.key(0), ()), play(env, (0, 1))[1]):
        for seen in env.observe(state, ()).values():
            np.testing.assert_array_equal(seen.view, [[1.0]])


def test_repeated_games_show_the_last_round_from_ones_own_place():
    env = shoal.make("matrix/game", payoffs=THREE, num_rounds=3)
    start = env.observe(env.reset(jax.random.key(0), env.default_params()), ())
    for seen in start.values():
        np.testing.assert_array_equal(seen.view, [[1] + [0] * 9])
    payoffs, state, outcome = play(env, (0, 0, 0), (1, 2, 3))
    np.testing.assert_allclose(payoffs[1], THREE[:, 1, 2, 3], atol=1e-6)
    assert not outcome.terminated
    assert not outcome.truncated
    first, second, third = [0, 1], [0, 0, 1], [0, 0, 0, 1]
    views = {name: seen.view[0].tolist() for name, seen in env.observe(state, ()).items()}
    assert views == {
        "player_0": [0, *first, *second, *third],
        "player_1": [0, *second, *third, *first],
        "player_2": [0, *third, *first, *second],
    }
    _, _, outcome = play(env, (0, 0, 0), (1, 2, 3), (1, 1, 1))
    assert outcome.truncated
    assert not outcome.terminated, "it is cut short: the future counts"


def test_the_iterated_dilemma_is_the_dilemma_again_and_again():
    env = shoal.make("matrix/iterated_prisoners_dilemma")
    assert env.num_rounds == 100
    assert env.payoffs == shoal.make("matrix/prisoners_dilemma").payoffs
    payoffs, *_ = play(env, (0, 0), (0, 1), (1, 0), (1, 1))
    np.testing.assert_array_equal(payoffs, [[5, 5], [0, 10], [10, 0], [1, 1]])


@pytest.mark.parametrize(
    ("payoffs", "words"),
    [
        ([[1, 2], [3]], "payoffs must be a tensor of finite numbers.*got rows of different lengths$"),
        ([[[1, 2], [3, 4]], [[1, 2], 3]], "payoffs must be.*got rows of different lengths$"),
        ([1, 2], r"payoffs must be a tensor.*got a tensor of shape \(2,\)$"),
        ([], r"payoffs must be a tensor.*got a tensor of shape \(0,\)$"),
        ([[], []], r"payoffs must be a tensor.*got a tensor of shape \(2, 0\)$"),
        (3.0, r"payoffs must be a tensor.*got 3.0$"),
        ("rps", "payoffs must be a tensor.*got 'rps'"),
        (None, "payoffs must be a tensor.*got None"),
        ([["1", "2"], ["3", "4"]], r"payoffs must be a tensor.*got \(\('1', '2'\), \('3', '4'\)\)$"),
        ([["1"] * 30] * 2, r"payoffs must be a tensor.*got \(\('1', .*\.\.\.$"),
        ([[True, False]], "payoffs must be a tensor"),
        ([[1, float("nan")]], r"payoffs\[0, 1\] must be a finite number, got nan"),
        ([[1, 2], [3, 1e60]], r"payoffs\[1, 1\] must be a finite number, got 1e\+60"),
        (np.zeros((3, 2, 2)), r"the first axis of payoffs must be 2, one entry for each of the 2 players.*got 3"),
        (np.zeros((2, 2, 2, 2)), "the first axis of payoffs must be 3.*got 2"),
    ],
)
def test_bad_payoffs_are_refused(payoffs, words):
    with pytest.raises(OptionError, match=f"matrix/game: {words}"):
        shoal.make("matrix/game", payoffs=payoffs)


def test_other_options_are_checked_under_the_worlds_own_name():
    for id in (*CLASSICS, "matrix/game", "matrix/iterated_prisoners_dilemma"):
        with pytest.raises(OptionError, match=f"{id}: num_rounds must be a whole number, at least 1, got 0"):
            shoal.make(id, num_rounds=0)
        with pytest.raises(OptionError, match=f"{id}: num_rounds must be at most 2147483647, got 2147483648"):
            shoal.make(id, num_rounds=2**31)
        with pytest.raises(OptionError, match=f"{id}: payoffs must be"):
            shoal.make(id, payoffs=[1])
    with pytest.raises(
        OptionError, match=r"stag_hunt: numbers of actions in payoffs must be 2 for .*stag, hare.*\(2, 3\)"
    ):
        shoal.make("matrix/stag_hunt", payoffs=[[1, 2, 3], [4, 5, 6]])


@pytest.mark.parametrize(
    ("id", "policies", "values", "nash_conv"),
    [
        ("matrix/rock_paper_scissors", ([1 / 3] * 3, [1 / 3] * 3), [0, 0], 0),
        ("matrix/rock_paper_scissors", ([1, 0, 0], [0.5, 0.5, 0]), [-0.5, 0.5], 1 + 0.5),
        ("matrix/matching_pennies", ([0.5, 0.5], [0.8, 0.2]), [0, 0], 0.6),
        ("matrix/prisoners_dilemma", ([0, 1], [0, 1]), [1, 1], 0),
        ("matrix/prisoners_dilemma", ([1, 0], [1, 0]), [5, 5], 10),
        ("matrix/stag_hunt", ([1, 0], [1, 0]), [2, 2], 0),
        ("matrix/stag_hunt", ([0, 1], [0, 1]), [1, 1], 0),
    ],
)
def test_exact_tables_of_games_played_once(id, policies, values, nash_conv):
    game = tabulate(shoal.make(id))
    plans = [game.plan(player, np.array([policy])) for player, policy in enumerate(policies)]
    np.testing.assert_allclose(game.values(plans), values, atol=1e-12)
    np.testing.assert_allclose(game.nash_conv(plans), nash_conv, atol=1e-12)


def test_exact_tables_of_three_players():
    game = tabulate(shoal.make("matrix/game", payoffs=THREE))
    rng = np.random.default_rng(1)
    mixes = [rng.dirichlet(np.ones(size)) for size in THREE.shape[1:]]
    plans = [game.plan(player, mix[None]) for player, mix in enumerate(mixes)]
    exact = np.float32(THREE).astype(np.float64)
    np.testing.assert_allclose(game.values(plans), np.einsum("pabc,a,b,c->p", exact, *mixes), atol=1e-12)
    best = np.einsum("abc,a,c->b", exact[1], mixes[0], mixes[2]).max()
    value, plan = game.best_response(1, plans)
    np.testing.assert_allclose(value, best, atol=1e-12)
    np.testing.assert_allclose(game.values([plans[0], plan, plans[2]])[1], best, atol=1e-12)
    table = game.payoff_table([np.stack([plan, plan]) for plan in plans])
    np.testing.assert_allclose(table[:, 0, 1, 0], game.values(plans), atol=1e-12)
    with pytest.raises(OptionError, match="payoff_matrix: number of players must be 2, got 3"):
        game.payoff_matrix()


def test_exact_tables_of_two_rounds_and_no_more():
    game = tabulate(shoal.make("matrix/prisoners_dilemma", num_rounds=2))
    assert [len(sets) for sets in game.sets] == [5, 5]
    plans = [game.plan(player, np.eye(2)[np.ones(5, int)]) for player in range(2)]
    np.testing.assert_allclose(game.values(plans), [2, 2], atol=1e-12)
    assert game.nash_conv(plans) == 0
    with pytest.raises(OptionError, match="player_0 forgets"):
        tabulate(shoal.make("matrix/prisoners_dilemma", num_rounds=3))


@dataclasses.dataclass(frozen=True)
class Nested(shoal.Env):
    table: tuple[Any, ...] = ()


def test_nested_lists_become_nested_tuples(monkeypatch):
    """A world must be hashable, and JSON knows lists only."""
    monkeypatch.setitem(registry.WORLDS.table, "test/nested", Nested)
    world = shoal.make("test/nested", table=[[1, [2, 3]], ([4], "five")])
    assert world.table == ((1, (2, 3)), ((4,), "five"))
    hash(world)


def test_payoffs_on_the_command_line(capsys):
    bench = ["bench", "env", "matrix/game", "--num-envs", "4", "--num-steps", "2", "--seconds", "0.01", "--json"]
    assert main([*bench, "--env.payoffs", "[[0, -1, 1.5], [1, 0, -1]]", "--env.num-rounds", "2"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["options"] == {"payoffs": [[0.0, -1.0, 1.5], [1.0, 0.0, -1.0]], "num_rounds": 2}
    for text, words in {
        "[[0, -1], [1": "is not JSON such as",
        "[[0, -1], [1]]": "matrix/game: --env.payoffs must be a tensor",
        "4": "matrix/game: --env.payoffs must be a tensor",
    }.items():
        assert main([*bench, "--env.payoffs", text]) == 2
        assert words in capsys.readouterr().err


def test_a_tensor_survives_the_run_folder():
    """Three players with different numbers of actions, from the command line into `config.json` and back."""
    args = ["matrix/game", "--env.payoffs", json.dumps(THREE.tolist()), "--env.num-rounds", "2"]
    experiment = parse_target(BenchTrainOptions, args, "shoal train").experiment
    again = Experiment.from_dict(json.loads(json.dumps(experiment.to_dict())))
    for setup in (experiment.setup, again.setup):
        assert setup.env == shoal.make("matrix/game", payoffs=THREE, num_rounds=2)
        assert [group.action.n for group in setup.spec.groups.values()] == [2, 3, 4]
        assert len(setup.algorithms) == 3
