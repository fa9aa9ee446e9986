"""DQN's targets and gradients, worked out by hand for tables: ends of episodes, waiting, absence, teams."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import Discrete, MultiDiscrete
from shoal.algorithms import DQN
from shoal.networks.mixers import mix
from shoal.ops import replay as buffers
from tests.algorithms.tables import ONLINE, SLOW, TABLE, errors, learner, learnt, window

stepped = jax.jit(lambda algorithm, state: algorithm.step(state, jax.random.key(0)), static_argnums=0)
HALF = {"gamma": 0.5, "network": TABLE, "buffer_size": 100}
FIVE = np.zeros((5, 2))


def at(*places):
    """A table of zeros but for some places (view, action, number)."""
    table = FIVE.copy()
    for view, action, number in places:
        table[view, action] += number
    return table


def check(algorithm, batch, value, target, place, **learner_options):
    """The error is that of `value` against `target`, and only the value at `place` is moved."""
    gradient, loss, error = errors(algorithm, learner(algorithm, **learner_options), batch)
    assert loss == pytest.approx((value - target) ** 2, rel=1e-5)
    assert error == pytest.approx([abs(value - target)], rel=1e-5)
    np.testing.assert_allclose(gradient["a"], at((*place, 2 * (value - target))), rtol=1e-5)


@pytest.mark.parametrize(
    ("double", "ends", "following"),
    [
        (True, {}, 10),  # online prefers action 0 in view 1, slow says 10
        (False, {}, 20),  # slow's own best
        (True, {"terminated": (0,)}, 0),
        (True, {"truncated": (0,)}, 30),  # online prefers action 1 in view 2, the final one
        (False, {"truncated": (0,)}, 40),
        (True, {"terminated": (0,), "truncated": (0,)}, 0),
    ],
)
def test_one_step(double, ends, following):
    """View 0, action 1, reward 3, then view 1; where the episode is cut short, its final view is 2."""
    batch = window({"a": {"view": [[0], [1]], "action": [[1], [0]], "reward": [[3], [9]], "final": [[2], [4]]}}, **ends)
    check(DQN(double=double, **HALF), batch, 2.0, 3 + 0.5 * following, (0, 1))


@pytest.mark.parametrize(
    ("ends", "target"),
    [
        ({}, 1 + 0.5 * 2 + 0.25 * 4 + 0.125 * SLOW[3, 0]),
        ({"terminated": (1,)}, 1 + 0.5 * 2),
        ({"truncated": (1,)}, 1 + 0.5 * 2 + 0.25 * SLOW[4, 1]),
        ({"truncated": (2,)}, 1 + 0.5 * 2 + 0.25 * 4 + 0.125 * SLOW[1, 0]),
        ({"truncated": (1,), "terminated": (2,)}, 1 + 0.5 * 2 + 0.25 * SLOW[4, 1]),
        ({"terminated": (0,), "truncated": (1,)}, 1),
    ],
)
def test_three_steps(ends, target):
    """Rewards 1, 2, 4 in views 0, 1, 2, then view 3; final views, where it is cut short: 3, 4, 1."""
    group = {"view": [[0], [1], [2], [3]], "action": [[0], [1], [1], [0]], "reward": [[1], [2], [4], [100]]}
    batch = window({"a": group | {"final": [[3], [4], [1], [0]]}}, **ends)
    check(DQN(n_step=3, **HALF), batch, 1.0, target, (0, 0))


def test_a_sequence_has_one_error_a_row():
    algorithm = DQN(sequence=2, **HALF)
    group = {"view": [[0], [2], [3]], "action": [[0], [1], [0]], "reward": [[1], [2], [100]]}
    gradient, loss, error = errors(algorithm, learner(algorithm), window({"a": group}))
    wanted = [1 + 0.5 * SLOW[2, 1], 2 + 0.5 * SLOW[3, 0]]
    np.testing.assert_allclose(error, [wanted[0] - 1, 7 - wanted[1]], rtol=1e-5)
    assert loss == pytest.approx(np.mean(error**2), rel=1e-5)
    np.testing.assert_allclose(gradient["a"], at((0, 0, -error[0]), (2, 1, error[1])), rtol=1e-5)


def test_who_waits_next_is_worth_the_mean():
    """In view 1 the agent may not act: it is worth the mean of 10 and 20, or the one that is legal."""
    group = {"view": [[0], [1]], "action": [[1], [0]], "reward": [[3], [0]], "active": [[1], [0]]}
    check(DQN(**HALF), window({"a": group}), 2.0, 3 + 0.5 * 15, (0, 1))
    legal = {"legal": [[[True, True]], [[False, True]]]}
    check(DQN(**HALF), window({"a": group | legal}), 2.0, 3 + 0.5 * 20, (0, 1))


def test_who_waits_now_learns_its_mean():
    """What it "did" means nothing: the mean of 1 and 2 is moved, both of them by half."""
    group = {"view": [[0], [1]], "action": [[1], [0]], "reward": [[3], [0]], "active": [[0], [1]]}
    gradient, loss, _ = errors(DQN(**HALF), learner(DQN(**HALF)), window({"a": group}))
    gap = 1.5 - (3 + 0.5 * 10)
    assert loss == pytest.approx(gap**2, rel=1e-5)
    np.testing.assert_allclose(gradient["a"], at((0, 0, gap), (0, 1, gap)), rtol=1e-5)


def test_n_counts_own_decisions():
    """Two decisions are views 0 and 2: the step spent waiting in between only adds reward and discount."""
    group = {"view": [[0], [1], [2]], "action": [[0], [0], [0]], "reward": [[1], [2], [4]], "active": [[1], [0], [1]]}
    check(DQN(n_step=2, **HALF), window({"a": group}), 1.0, 1 + 0.5 * 2 + 0.25 * SLOW[2, 1], (0, 0))


def test_illegal_actions_are_never_bootstrapped_from():
    """Online prefers action 0 in view 1, and may only take 1."""
    group = {"view": [[0], [1]], "action": [[1], [0]], "reward": [[3], [0]]}
    legal = {"legal": [[[True, True]], [[False, True]]]}
    check(DQN(**HALF), window({"a": group | legal}), 2.0, 3 + 0.5 * 20, (0, 1))


def test_who_is_absent_does_not_count():
    """Of three agents one is gone, and one leaves: nothing follows for it."""
    group = {
        "view": [[0, 3, 2], [1, 1, 1]],
        "action": [[1, 0, 0], [0, 0, 0]],
        "reward": [[3, 50, 7], [0, 0, 0]],
        "present": [[1, 0, 1], [1, 0, 0]],
        "active": [[1, 0, 1], [1, 0, 0]],
    }
    gradient, loss, error = errors(DQN(**HALF), learner(DQN(**HALF), {"a": 3}), window({"a": group}))
    stays, leaves = 2 - (3 + 0.5 * 10), 0 - 7
    assert loss == pytest.approx((stays**2 + leaves**2) / 2, rel=1e-5)
    assert error == pytest.approx([(abs(stays) + abs(leaves)) / 2], rel=1e-5)
    np.testing.assert_allclose(gradient["a"], at((0, 1, stays), (2, 0, leaves)), rtol=1e-5)


def test_parts_of_an_action():
    """A MultiDiscrete action is worth the mean of its parts, now and next."""
    online = np.array([[1.0, 2.0, 3.0, 5.0, 9.0], [4.0, 0.0, 1.0, 8.0, 2.0]], np.float32)
    slow = np.array([[0.0, 0.0, 0.0, 0.0, 0.0], [10.0, 90.0, 1.0, 30.0, 70.0]], np.float32)
    algorithm = DQN(**HALF)
    state = learner(algorithm, space=MultiDiscrete((2, 3)), online=online, slow=slow)
    batch = window({"a": {"view": [[0], [1]], "action": [[[1, 2]], [[0, 0]]], "reward": [[3], [0]]}})
    seen = {"a": batch.observation["a"].replace(view=batch.observation["a"].view[..., :2])}
    final = {"a": batch.final_observation["a"].replace(view=batch.final_observation["a"].view[..., :2])}
    gradient, _, error = errors(algorithm, state, batch.replace(observation=seen, final_observation=final))
    gap = (2 + 9) / 2 - (3 + 0.5 * (10 + 30) / 2)
    assert error == pytest.approx([abs(gap)], rel=1e-5)
    np.testing.assert_allclose(gradient["a"], [[0, gap, 0, 0, gap], [0] * 5], rtol=1e-5)


TEAM = {
    "a": {"view": [[0, 3], [1, 2]], "action": [[1, 0], [0, 0]], "reward": [[3, 6], [0, 0]], "final": [[2, 4], [0, 0]]},
    "b": {"view": [[2], [4]], "action": [[1], [0]], "reward": [[9], [0]], "final": [[3], [0]]},
}


@pytest.mark.parametrize(
    ("ends", "following"), [({}, 10 + 30 + 16), ({"terminated": (0,)}, 0), ({"truncated": (0,)}, 30 + 16 - 8)]
)
def test_a_sum_by_hand(ends, following):
    """2 + 4 + 7 is what the team is worth; it is paid the mean of 3, 6 and 9, and all share the error."""
    algorithm = DQN(mixer="sum", **HALF)
    gradient, loss, error = errors(algorithm, learner(algorithm, {"a": 2, "b": 1}), window(TEAM, **ends))
    gap = 13 - (6 + 0.5 * following)
    assert loss == pytest.approx(gap**2, rel=1e-5)
    assert error == pytest.approx([abs(gap)], rel=1e-5)
    np.testing.assert_allclose(gradient["a"], at((0, 1, 2 * gap), (3, 0, 2 * gap)), rtol=1e-5)
    np.testing.assert_allclose(gradient["b"], at((2, 1, 2 * gap)), rtol=1e-5)


def test_a_sum_without_the_absent():
    """The second agent of the first group is gone: no value, no reward, and none of the mean."""
    gone = {"present": [[1, 0], [1, 0]], "active": [[1, 0], [1, 0]]}
    algorithm = DQN(mixer="sum", **HALF)
    groups = {"a": TEAM["a"] | gone, "b": TEAM["b"]}
    gradient, _, error = errors(algorithm, learner(algorithm, {"a": 2, "b": 1}), window(groups))
    gap = (2 + 7) - ((3 + 9) / 2 + 0.5 * (10 + 16))
    assert error == pytest.approx([abs(gap)], rel=1e-5)
    np.testing.assert_allclose(gradient["a"], at((0, 1, 2 * gap)), rtol=1e-5)


@pytest.mark.parametrize(("ends", "following"), [({}, (10, 30, 16)), ({"truncated": (0,)}, (30, 16, -8))])
def test_a_monotonic_mixer(ends, following):
    """The online mixer now, the slow one later, each with the state of its moment: final where it was cut short."""
    algorithm = DQN(mixer="monotonic", mixer_hidden=4, **HALF)
    state = learner(algorithm, {"a": 2, "b": 1}, state=2)
    slow = {"params": {name: {k: 2 * x for k, x in one.items()} for name, one in state.mixer["params"].items()}}
    state = state.replace(target=state.target | {"mixer": slow})
    states = jnp.array([[0.5, -1.0], [2.0, 1.0]]), jnp.array([[-3.0, 0.25], [0.0, 0.0]])
    _, _, error = errors(algorithm, state, window(TEAM, state=states[0], final_state=states[1], **ends))
    ahead = states[1][0] if ends else states[0][1]
    now = mix("monotonic", state.mixer, jnp.array([2.0, 4.0, 7.0]), states[0][0])
    later = mix("monotonic", slow, jnp.array(following, jnp.float32), ahead)
    assert error == pytest.approx([abs(float(now - (6 + 0.5 * later)))], rel=1e-4)


def test_weights_of_windows():
    """Importance weights scale the squared errors, window by window, and not what they are reported to be."""
    algorithm = DQN(**HALF)
    one = window({"a": {"view": [[0], [1]], "action": [[1], [0]], "reward": [[3], [0]]}})
    other = window({"a": {"view": [[2], [1]], "action": [[1], [0]], "reward": [[3], [0]]}})
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), one, other)
    gradient, (metrics, error) = learnt(algorithm, learner(algorithm), both, jnp.array([1.0, 0.25]))
    gaps = np.array([2 - 8, 7 - 8])
    np.testing.assert_allclose(error, [np.abs(gaps)], rtol=1e-5)
    assert float(metrics["loss"]) == pytest.approx((gaps[0] ** 2 + 0.25 * gaps[1] ** 2) / 2, rel=1e-5)
    table = gradient["agents"]["a"]["params"]["head"]["kernel"]
    np.testing.assert_allclose(table, at((0, 1, gaps[0]), (2, 1, 0.25 * gaps[1])), rtol=1e-5)


@pytest.mark.parametrize(("updates", "undone"), [(0, 0.5), (5, 0.75), (10, 1.0)])
def test_what_is_drawn_more_often_weighs_less(updates, undone):
    """Of four draws three are of the window with three times the priority; more of it is undone as the run goes on."""
    algorithm = DQN(prioritised=True, importance_exponent=0.5, batch_size=4, **HALF)
    one = window({"a": {"view": [[0], [1]], "action": [[1], [0]], "reward": [[3], [0]]}})
    other = window({"a": {"view": [[2], [1]], "action": [[1], [0]], "reward": [[3], [0]]}})
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), one, other)
    replay = buffers.Replay(both, jnp.int32(2), jnp.array([[3.0, 1.0], [0.0, 0.0]]))
    state = learner(algorithm).replace(replay=replay, updates=jnp.int32(updates))
    state, metrics = stepped(algorithm, state)
    gaps, weight = (2 - 8, 7 - 8), (1 / 3) ** undone  # odds of 3/2 and 1/2, the largest weight being 1
    assert float(metrics["loss"]) == pytest.approx((3 * weight * gaps[0] ** 2 + gaps[1] ** 2) / 4, rel=1e-5)
    np.testing.assert_allclose(state.replay.priority, [[6**0.6, 1.0], [0.0, 0.0]], rtol=1e-4)


def test_priorities_by_hand():
    """Nine tenths of the largest error of a window, one tenth of the mean, to some power."""
    error = jnp.array([[4.0, 0.0], [2.0, 0.0]])
    np.testing.assert_allclose(buffers.priorities(error, jnp.float32(1.0)), [3.6 + 0.3, 0.0], atol=1e-5)
    np.testing.assert_allclose(buffers.priorities(error, jnp.float32(0.5))[0], np.sqrt(3.9), rtol=1e-5)
    assert float(buffers.priorities(error, jnp.float32(0.5))[1]) > 0.0


def test_what_views_are_worth():
    """`value` is the best legal action of the online table; the mean for who may not act."""
    policy = learner(DQN(**HALF)).params["a"]
    seen = window({"a": {"view": [[1]], "action": [[0]], "reward": [[0]]}}).observation["a"]
    one = seen.replace(view=seen.view[0, 0, 0], active=jnp.asarray(True), present=None)
    value = DQN(**HALF).value
    assert float(value(policy, one, ())) == ONLINE[1].max()
    assert float(value(policy, one.replace(active=jnp.asarray(False)), ())) == ONLINE[1].mean()
    assert float(value(policy, one.replace(legal=jnp.array([False, True])), ())) == ONLINE[1, 1]
    assert policy.network.action == Discrete(2)
