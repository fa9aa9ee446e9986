"""How differently policies behave: distances by hand, in tables and in situations that were played."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.algorithms import PPO
from shoal.networks.torsos import Network
from shoal.populations import diversity as measured
from shoal.populations.bank import Member
from shoal.populations.behaviour import differences
from shoal.populations.diversity import Behaviours, compare, mean_difference
from shoal.populations.game import Game
from shoal.populations.oracles import ExactOracle, LearnedOracle
from shoal.populations.psro import PSROState, begin_population
from shoal.presets import resolve

TINY = PPO(minibatches=2, epochs=1, gamma=1.0, network=Network(hidden=(8,), share_torso=True))


def small(game: str) -> Game:
    experiment = resolve(game)
    learners = {name: dataclasses.replace(learner, algorithm=TINY) for name, learner in experiment.learners.items()}
    return Game(dataclasses.replace(experiment, learners=learners, num_envs=32, num_steps=4))


def test_distances_by_hand():
    probabilities = np.array(
        [
            [[1.0, 0.0], [0.5, 0.5], [1.0, 0.0]],
            [[0.5, 0.5], [0.5, 0.5], [0.0, 1.0]],
            [[0.0, 1.0], [0.5, 0.5], [0.0, 1.0]],
        ]
    )
    every = differences(probabilities, np.ones((3, 3)))
    np.testing.assert_allclose(every, np.array([[0, 1.5, 2], [1.5, 0, 0.5], [2, 0.5, 0]]) / 3)
    # the third situation follows from the first action of the first: the last policy never gets there
    reach = np.array([[1, 1, 1], [1, 1, 0.5], [1, 1, 0]])
    own = differences(probabilities, reach)
    np.testing.assert_allclose(own, [[0, 1.0 / 2.5, 0.5], [1.0 / 2.5, 0, 0.25], [0.5, 0.25, 0]])
    assert mean_difference(own) == pytest.approx((0.4 + 0.5 + 0.25) / 3)
    assert mean_difference(np.zeros((1, 1))) == 0.0


def test_plain_data():
    found = Behaviours(False, {"one": 2}, {"one": np.array([[0.0, 0.5], [0.5, 0.0]])})
    plain = found.plain((np.array([0.25, 0.75]),))
    assert plain["diversity"] == {"one": 0.5}
    assert plain["expected"]["one"] == pytest.approx(2 * 0.25 * 0.75 * 0.5)
    assert plain["distances"] == {"one": [[0.0, 0.5], [0.5, 0.0]]}


def test_plans_of_a_game_are_compared_where_both_lead():
    tables = small("psro/kuhn").tables
    assert tables is not None
    sets = tables.sets[0]
    bet = np.zeros(sets.legal.shape)
    bet[:, 1] = 1.0  # from the start: its own later decisions are never met
    late = bet.copy()
    late[sets.stages[0]] = np.eye(2)[0]  # passes first, and always calls
    fold = np.zeros(sets.legal.shape)
    fold[:, 0] = 1.0
    plans = [tables.plan(0, policy) for policy in (bet, late, fold)]
    state = begin_population({"player_0": plans[0], "player_1": tables.plan(1, tables.uniform(1))}, 4)
    bank = state.banks["player_0"]
    for name, plan in zip("12", plans[1:], strict=True):
        bank = bank.add(plan, Member(name))
    state = dataclasses.replace(state, banks={**state.banks, "player_0": bank})
    found = compare(ExactOracle(tables), state)
    assert found is not None
    assert not found.sampled
    assert found.situations == {"player_0": 6, "player_1": 6}
    # bet against either: all that both meet is the first decision; the other two agree there and differ later
    np.testing.assert_allclose(found.distances["player_0"], [[0, 1, 1], [1, 0, 0.5], [1, 0.5, 0]])
    np.testing.assert_allclose(found.distances["player_1"], [[0.0]])


def leaning(policy, actions: dict[int, float]):
    """A policy that ignores what it sees: its last layer's bias is given, all its weights are 0."""

    def one(path, leaf):
        if jax.tree_util.keystr(path).endswith("['policy_head']['bias']"):
            return jnp.array([actions.get(i, 0.0) for i in range(3)])
        return jnp.zeros_like(leaf)

    return policy.replace(weights=jax.tree_util.tree_map_with_path(one, policy.weights))


def test_situations_are_played_where_there_are_no_tables(monkeypatch):
    monkeypatch.setattr(measured, "STEPS", 8)
    oracle = LearnedOracle(small("psro/pong"), devices=1)
    first = oracle.first()
    state = begin_population({player: leaning(policy, {}) for player, policy in first.items()}, 4)
    banks = {}
    for player, bank in state.banks.items():
        for number, actions in enumerate(({0: 50.0}, {0: 50.0}, {1: 50.0})):
            bank = bank.add(leaning(first[player], actions), Member(str(number)))
        banks[player] = bank
    mixtures = (np.array([0.25, 0.25, 0.25, 0.25]),) * 2
    found = compare(oracle, PSROState(banks, state.table, mixtures, 3))
    assert found is not None
    assert found.sampled
    assert found.situations == {"left": 2048, "right": 2048}
    # even play is 2/3 from any action; the next two are the same, and never do what the last does
    wanted = np.array([[0, 2, 2, 2], [2, 0, 0, 3], [2, 0, 0, 3], [2, 3, 3, 0]]) / 3
    for player in ("left", "right"):
        np.testing.assert_allclose(found.distances[player], wanted, atol=1e-5)
