"""The fixture worlds keep to their rules: games worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.worlds import last_card
from tests.worlds.bandit import Bandit, Target, Truncation, TwoStep
from tests.worlds.last_card import FOLD, PAY, PAY_TWO, LastCard
from tests.worlds.messages import Messages, State
from tests.worlds.two_teams import State as Load
from tests.worlds.two_teams import TwoTeams

from shoal.testing.probes import Memory

KEY = jax.random.key(0)


def play_cards(*moves):
    """Cards 5, 1, 3. Each move is the mover's; the others' actions must not matter. Returns state and all rewards."""
    env, rewards, over = LastCard(), [], False
    params = env.default_params()
    state = env.reset(KEY, params).replace(cards=jnp.array([5, 1, 3], jnp.int32))
    for move in moves:
        assert not over
        actions = jnp.full(3, FOLD).at[state.turn].set(move)
        state, outcome = env.step(KEY, state, {"player": actions}, params)
        rewards.append(outcome.reward["player"].tolist())
        over = bool(outcome.terminated)
    return state, rewards, over


def test_last_card_played_to_the_end():
    """Player 1 folds and loses its ante; 0 (paid 1+2+1) beats 2 (paid 1+1+1) and takes the pot of 8."""
    _, rewards, over = play_cards(PAY_TWO, FOLD, PAY, PAY, PAY)
    assert over
    assert rewards == [[0, 0, 0], [0, -1, 0], [0, 0, 0], [0, 0, 0], [4, 0, -3]]


def test_last_card_ends_when_one_is_left():
    _, rewards, over = play_cards(FOLD, FOLD)
    assert over
    assert rewards == [[-1, 0, 0], [0, -1, 2]]


def test_last_card_says_who_may_act_and_who_is_there():
    state, _, over = play_cards(PAY_TWO, FOLD, PAY)
    assert not over
    obs = LastCard().observe(state, {})["player"]
    assert obs.active.tolist() == [True, False, False]
    assert obs.present.tolist() == [True, False, True]
    assert obs.legal.tolist() == [[True, True, False], [False, True, False], [False, True, False]]
    np.testing.assert_allclose(obs.view[0], [5 / 6, 3, 6, 0, 1, 0, 1, 1], rtol=1e-6)


def test_last_card_takes_an_illegal_two_for_one():
    state, _, _ = play_cards(PAY_TWO, PAY, PAY, PAY_TWO)
    assert state.paid.tolist() == [4, 2, 2]


def test_last_card_deals_different_cards():
    deals = jax.vmap(lambda key: LastCard().reset(key, {"ante": 1.0}).cards)(jax.random.split(KEY, 50))
    assert all(len(set(deal)) == 3 for deal in deals.tolist())
    assert isinstance(LastCard().reset(KEY, {"ante": 1.0}), last_card.State)


def test_two_teams_move_the_load_together():
    """Nudge 0.05 * (1 + 0) / 2 and pull 0.2 * (1 + 1 - 1) / 3 carry the load from 0 to 0.0916667."""
    env = TwoTeams()
    start = Load(jnp.float32(0), jnp.float32(0), jnp.float32(0.5), jnp.int32(9))
    actions = {"scout": jnp.array([2, 1]), "carrier": jnp.array([[1.0], [1.0], [-1.0]])}
    state, outcome = env.step(KEY, start, actions, env.default_params())
    np.testing.assert_allclose(state.load, 0.0916667, atol=1e-6)
    np.testing.assert_allclose(outcome.reward["scout"], [-0.4083333] * 2, atol=1e-6)
    np.testing.assert_allclose(outcome.reward["carrier"], [-0.4083333] * 3, atol=1e-6)
    assert bool(outcome.truncated)
    assert not bool(outcome.terminated)


def test_words_are_heard_one_step_later_and_the_goal_is_seen_by_the_speaker_only():
    env = Messages()
    state = State(jnp.int32(2), jnp.full(2, -1, jnp.int32), jnp.int32(0))
    view = env.observe(state, ())["agent"].view
    assert view.tolist() == [[1, 0, 0, 0, 1, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0, 0, 0]]
    actions = {"agent": jnp.array([[0, 3], [2, 1]])}
    state, outcome = env.step(KEY, state, actions, ())
    assert outcome.reward["agent"].tolist() == [0, 0], "the first step is for talking"
    view = env.observe(state, ())["agent"].view
    assert view.tolist() == [[1, 0, 0, 0, 1, 0, 1, 0, 0], [0, 1, 0, 0, 0, 0, 0, 0, 1]]
    _, outcome = env.step(KEY, state, actions, ())
    assert outcome.reward["agent"].tolist() == [1, 1]


@pytest.mark.parametrize("right", [True, False])
def test_the_cue_is_shown_once_and_asked_for_after_the_delay(right):
    env = Memory(delay=2)
    state = env.reset(KEY, ())
    answer = state.cue if right else 1 - state.cue
    views, rewards, ends = [], [], []
    for _ in range(4):
        views.append(env.observe(state, ())["agent"].view[0].tolist())
        state, outcome = env.step(KEY, state, {"agent": answer[None]}, ())
        rewards.append(float(outcome.reward["agent"][0]))
        ends.append(bool(outcome.terminated))
    assert views[1:] == [[0, 0, 0], [0, 0, 0], [0, 0, 1]]
    assert sum(views[0]) == 1
    assert rewards == [0, 0, 0, float(right)]
    assert ends == [False, False, False, True]


def test_the_one_agent_probes():
    bandit = Bandit()
    assert bandit.best == 1
    _, outcome = bandit.step(KEY, (), {"agent": jnp.array([1])}, bandit.default_params())
    np.testing.assert_allclose(outcome.reward["agent"], [0.9], rtol=1e-6)
    assert bool(outcome.terminated)

    _, outcome = Target().step(KEY, jnp.full((1, 1), 0.8), {"agent": jnp.full((1, 1), 0.1)}, ())
    np.testing.assert_allclose(outcome.reward["agent"], [-0.09], rtol=1e-5)

    state, flags = Truncation(length=2).reset(KEY, ()), []
    for _ in range(2):
        state, outcome = Truncation(length=2).step(KEY, state, {"agent": jnp.zeros(1, int)}, ())
        flags.append((float(outcome.reward["agent"][0]), bool(outcome.terminated), bool(outcome.truncated)))
    assert flags == [(1.0, False, False), (1.0, False, True)]

    for first in (0, 1):
        state, outcome = TwoStep().step(KEY, TwoStep().reset(KEY, ()), {"agent": jnp.array([first])}, ())
        assert float(outcome.reward["agent"][0]) == 0
        _, outcome = TwoStep().step(KEY, state, {"agent": jnp.array([1 - first])}, ())
        assert float(outcome.reward["agent"][0]) == first
        assert bool(outcome.terminated)
