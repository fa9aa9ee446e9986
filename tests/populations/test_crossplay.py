"""Cross-play of policies made by hand: payoffs that are known exactly, one program for all that act alike."""

import dataclasses
import warnings
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.algorithms import A2C, PPO
from shoal.batching.regroup import unwrap_regrouped
from shoal.core.algorithm import ActOutput, Algorithm, Stochastic
from shoal.core.errors import OptionError
from shoal.envs.tabular import tabulate
from shoal.games.cross_table import CrossTable, cross_lineups, find_relation
from shoal.networks import Network
from shoal.populations.crossplay import Contender, CrossPlay
from shoal.training.experiment import Experiment, Learner

RPS = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])
MIXES = {"rock": [1, 0, 0], "paper": [0, 1, 0], "even": [1 / 3, 1 / 3, 1 / 3], "biased": [0.5, 0.3, 0.2]}


@dataclasses.dataclass(frozen=True)
class ByHand(Algorithm, Stochastic):
    """Plays actions with the probabilities that are its weights. taste: changes nothing in how it acts."""

    taste: float = 1.0
    name: ClassVar[str] = "by_hand"

    def init(self, key, spec) -> Any:
        raise OptionError("never trained")

    def initial_memory(self, params):
        return ()

    def action_probabilities(self, params, observation, memory):
        return params, memory

    def act(self, params, observation, memory, key, explore):
        likely = jnp.log(params + 1e-9)
        return ActOutput(jax.random.categorical(key, likely) if explore else jnp.argmax(params), memory)

    def value(self, params, observation, memory):
        return jnp.float32(0.0)

    def update(self, state, experience, key, axis=None):
        return state, {}


def experiment(algorithm, **options):
    return Experiment("matrix/rock_paper_scissors", learners={"learner": Learner(algorithm)}, **options)


def by_hand(name, mix, algorithm=None):
    setup = experiment(algorithm or ByHand()).setup
    return Contender(name, setup, {player: jnp.array([mix], jnp.float32) for player in setup.algorithms}, samples=True)


def count_programs(games, lineups):
    """How many programs line-ups `[M, sides]` need."""
    return len({games._key(lineup) for lineup in lineups})


def play(contenders, episodes, seed=0, devices=1):
    games = CrossPlay(tuple(contenders), contenders[0].setup.env.players, devices=devices)
    lineups, place = cross_lineups(len(contenders), len(games.sides))
    returns = games.play(lineups, episodes, seed)
    return games, CrossTable(returns, place, find_relation(returns, "competitive", False))


@pytest.fixture(scope="module")
def hands():
    return play([by_hand(name, mix) for name, mix in MIXES.items()], 4000)


def test_the_matrix_is_the_exact_one_within_its_errors(hands):
    _, table = hands
    mixes = np.array(list(MIXES.values()))
    exact = mixes @ RPS @ mixes.T
    second = mixes @ (RPS**2) @ mixes.T
    for mean, error in (
        (table.by_side[0][0], table.by_side[1][0]),
        (table.by_side[0][1], table.by_side[1][1]),
        (table.matrix[0], table.matrix[1]),
    ):
        assert (np.abs(mean - exact) <= 4.5 * error + 1e-12).all()
    np.testing.assert_allclose(table.by_side[1][0], np.sqrt((second - exact**2) / 4000), rtol=0.08, atol=1e-9)
    assert table.matrix[0][1, 0] == 1.0, "paper always beats rock"
    assert table.relation == "zero-sum"


def test_changing_sides_changes_the_sign(hands):
    _, table = hands
    mean = table.matrix[0]
    np.testing.assert_allclose(mean, -mean.T, atol=1e-12)
    np.testing.assert_allclose(table.win_rate[0], 1 - table.win_rate[0].T, atol=1e-12)


def test_one_program_is_traced_for_all_lineups(hands):
    games, _ = hands
    [program] = games.programs.values()
    assert program.program._cache_size() == 1
    assert program.batch == 4096, "sixteen line-ups of 4,000 episodes, in batches"


def test_errors_shrink_as_the_root_of_the_episodes(hands):
    _, many = hands
    _, few = play([by_hand(name, mix) for name, mix in MIXES.items()], 1000)
    played = many.by_side[1][0] > 0
    np.testing.assert_allclose(
        (few.by_side[1] / np.where(many.by_side[1] > 0, many.by_side[1], 1))[0][played], 2, rtol=0.12
    )


def test_the_same_seed_gives_the_same_bits_and_a_twin_plays_alike():
    pair = [by_hand("one", [0.5, 0.3, 0.2]), by_hand("two", [0.2, 0.2, 0.6]), by_hand("twin", [0.5, 0.3, 0.2])]
    (_, table), (_, again), (_, other) = (play(pair, 64, seed) for seed in (0, 0, 1))
    assert table.returns.tobytes() == again.returns.tobytes()
    assert table.returns.tobytes() != other.returns.tobytes()
    np.testing.assert_array_equal(table.matrix[0][0, 1], table.matrix[0][2, 1])


def test_rows_take_turns_in_all_combinations():
    """A contender of two seeds, rock and paper, against one of rock and scissors: each pair a quarter of the time."""
    setup = experiment(ByHand()).setup
    rows = {"a": jnp.eye(3)[jnp.array([0, 1])], "b": jnp.eye(3)[jnp.array([0, 2])]}
    pair = [Contender(name, setup, dict.fromkeys(setup.algorithms, mix), samples=True) for name, mix in rows.items()]
    _, table = play(pair, 8)
    assert table.earned(0, 0, 1).tolist() == [0, 1, 1, -1] * 2, "rock-rock, paper-rock, rock-scissors, paper-scissors"
    assert table.earned(0, 0, 0).tolist() == [0.0] * 8, "each seed meets itself"
    assert table.by_side[0][0, 0, 1] == 0.25


def test_a_mixture_is_drawn_anew_for_every_episode():
    setup = experiment(ByHand()).setup
    bank = {player: jnp.eye(3) for player in setup.algorithms}
    weights = {"player_0": np.array([0.7, 0.0, 0.3]), "player_1": np.array([0.0, 1.0, 0.0])}
    mixed = Contender("mixed", setup, bank, weights, samples=True)
    _, table = play([mixed, by_hand("rock", [1, 0, 0])], 4000)
    share = 0.3  # scissors lose to rock
    assert abs(table.earned(0, 0, 1).mean() + share) < 4 * np.sqrt(share * (1 - share) / 4000)
    assert set(table.earned(1, 0, 1)) == {1.0}, "as the second player it always plays paper"


def test_options_that_do_not_change_how_it_acts_need_no_other_program():
    small = Network(hidden=(4,))
    runs = []
    for name, algorithm in {"slow": A2C(learning_rate=1e-4, network=small), "fast": A2C(network=small)}.items():
        setup = experiment(algorithm).setup
        state = setup.learners["learner"][0].init(jax.random.key(0), setup.learners["learner"][1])
        runs.append(Contender(name, setup, jax.tree.map(lambda leaf: leaf[None], dict(state.params)), samples=True))
    wide = experiment(PPO(network=Network(hidden=(6,)))).setup
    state = wide.learners["learner"][0].init(jax.random.key(0), wide.learners["learner"][1])
    other = Contender("wide", wide, jax.tree.map(lambda leaf: leaf[None], dict(state.params)), samples=True)
    chance = Contender("random", None)
    sides = runs[0].setup.env.players
    lineups, _ = cross_lineups(2, 2)
    assert count_programs(CrossPlay(tuple(runs), sides), lineups) == 1
    assert count_programs(CrossPlay((runs[0], other), sides), lineups) == 4
    assert count_programs(CrossPlay((*runs, other, chance), sides), cross_lineups(4, 2)[0]) == 4, (
        "random play needs none of its own"
    )
    greedy = dataclasses.replace(runs[1], samples=False)
    assert count_programs(CrossPlay((runs[0], greedy), sides), lineups) == 4


def test_kuhn_poker_against_its_exact_tables():
    """Turns, cards and calls: policies that bet with a fixed probability, and what they earn by the game's tables."""
    setup = Experiment("cards/kuhn", learners={"learner": Learner(ByHand())}).setup
    tables = tabulate(unwrap_regrouped(setup.env))
    bets = np.array([[0.5, 0.5], [0.1, 0.9], [0.8, 0.2]], np.float32)
    pair = [
        Contender(str(i), setup, dict.fromkeys(setup.algorithms, jnp.array([mix])), samples=True)
        for i, mix in enumerate(bets)
    ]
    games = CrossPlay(tuple(pair), unwrap_regrouped(setup.env).players, devices=1)
    lineups, _ = cross_lineups(3, 2)
    returns = games.play(lineups, 4000)
    mean, error = returns.mean(axis=1), returns.std(axis=1) / np.sqrt(4000)
    for lineup, earned, spread in zip(lineups, mean, error, strict=True):
        plans = [tables.plan(p, np.tile(bets[i], (len(tables.sets[p]), 1))) for p, i in enumerate(lineup)]
        assert (np.abs(earned - tables.values(plans)) < 4.5 * spread).all()
    assert len(games.programs) == 1


def test_random_play_is_uniform():
    _, table = play([by_hand("rock", [1, 0, 0]), Contender("random", None)], 3000)
    mean, error = table.matrix
    assert abs(mean[0, 1]) < 4.5 * error[0, 1]
    assert error[0, 1] < 0.02


class Greedy(Algorithm):
    """A policy of which only the best action is known."""

    init, act, value, update = ByHand.init, ByHand.act, ByHand.value, ByHand.update


def test_policies_that_cannot_be_sampled_are_named():
    setup = experiment(ByHand()).setup
    one = by_hand("rock", [1, 0, 0], Greedy())
    with pytest.warns(UserWarning, match=r"rock: policies of 'player_0' \(Greedy\), .* instead of sampling"):
        CrossPlay((one, by_hand("paper", [0, 1, 0])), setup.env.players)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CrossPlay((dataclasses.replace(one, samples=False), by_hand("paper", [0, 1, 0])), setup.env.players)


def test_sides_must_cover_every_seat_once():
    one = by_hand("rock", [1, 0, 0])
    with pytest.raises(OptionError, match=r"player_1\[0\] must be played by exactly one side, got '0 times'"):
        CrossPlay((one, one), {"all": (("player_0", 0),)})
    with pytest.raises(OptionError, match="everybody plays at random"):
        CrossPlay((Contender("random", None),), {})
