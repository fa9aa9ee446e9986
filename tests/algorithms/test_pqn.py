"""PQN's λ-returns and gradients, worked out by hand for tables: ends of episodes, waiting, absence, teams."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import Observation
from shoal.algorithms import PQN
from shoal.algorithms.pqn import TEAM
from shoal.core.algorithm import Experience, Trajectory
from shoal.core.errors import OptionError
from shoal.networks.mixers import mix
from shoal.networks.sequences import unroll
from shoal.networks.torsos import Network
from shoal.testing.probes import Memory
from tests.algorithms.playing import fresh, played
from tests.algorithms.tables import ONLINE, TABLE, learner, mask, one_hot
from tests.worlds.last_card import LastCard

HALF = {"gamma": 0.5, "trace_lambda": 0.5, "network": TABLE}


def track(view, action, reward, final=0.0, value=None, **masks):
    """One copy's track. view: `[T + 1][n]`, the last being what follows; value: what was recorded, else the best."""
    shape = np.asarray(view).shape
    seen = {
        name: mask(masks[name], shape) if name in masks else jnp.ones(shape, bool) for name in ("active", "present")
    }
    recorded = ONLINE.max(axis=1)[np.asarray(view)][:-1] if value is None else np.asarray(value)
    final = np.broadcast_to(np.asarray(final, np.float32), recorded.shape)
    return Trajectory(
        observation=Observation(one_hot(view)[:-1, None], **{name: m[:-1, None] for name, m in seen.items()}),
        action=jnp.asarray(action, jnp.int32)[:, None],
        reward=jnp.asarray(reward, jnp.float32)[:, None],
        extras={"value": jnp.asarray(recorded, jnp.float32)[:, None]},
        final_value=jnp.asarray(final)[:, None],
        memory=(),
        last_observation=Observation(one_hot(view)[-1][None], **{name: m[-1][None] for name, m in seen.items()}),
        last_memory=(),
    )


def experience(tracks, terminated=(), truncated=()):
    steps = next(iter(tracks.values())).reward.shape[0]

    def flag(where):
        return jnp.asarray([[t in where] for t in range(steps)])

    return Experience(tracks, flag(()), flag(terminated), flag(truncated))


@functools.partial(jax.jit, static_argnums=0)
def learnt(algorithm, state, whole):
    batch = algorithm.prepare(state, whole)
    gradients, metrics = algorithm.gradients(state, batch)
    tables = {name: one["params"]["head"]["kernel"] for name, one in gradients["agents"].items()}
    return {name: target[:, 0] for name, target in batch.target.items()}, tables, metrics


# Views 0, 1, 2, then 3: the best values are 2, 5, 7 and 4. Rewards 1, 2, 3.
LAST = 3 + 0.5 * 4
MIDDLE = 2 + 0.5 * (0.5 * 7 + 0.5 * LAST)


@pytest.mark.parametrize(
    ("ends", "targets"),
    [
        ({}, [1 + 0.5 * (0.5 * 5 + 0.5 * MIDDLE), MIDDLE, LAST]),
        ({"terminated": (1,)}, [1 + 0.5 * (0.5 * 5 + 0.5 * 2), 2, LAST]),
        ({"truncated": (1,)}, [1 + 0.5 * (0.5 * 5 + 0.5 * (2 + 0.5 * 9)), 2 + 0.5 * 9, LAST]),
        (
            {"truncated": (2,)},
            [1 + 0.5 * (0.5 * 5 + 0.5 * (2 + 0.25 * 7 + 0.25 * 7.5)), 2 + 0.25 * 7 + 0.25 * 7.5, 7.5],
        ),
    ],
)
def test_returns_by_hand(ends, targets):
    """Where an episode is cut short, its final view is worth 9."""
    algorithm = PQN(**HALF)
    whole = experience({"a": track([[0], [1], [2], [3]], [[1], [0], [0]], [[1], [2], [3]], final=9.0)}, **ends)
    target, table, metrics = learnt(algorithm, learner(algorithm), whole)
    np.testing.assert_allclose(target["a"][:, 0], targets, rtol=1e-6)
    gaps = np.array([2.0, 5.0, 0.0]) - targets
    assert float(metrics["loss"]) == pytest.approx(np.mean(gaps**2), rel=1e-5)
    assert float(metrics["q"]) == pytest.approx(7 / 3, rel=1e-5)
    expected = np.zeros((5, 2))
    expected[0, 1], expected[1, 0], expected[2, 0] = 2 * gaps / 3
    np.testing.assert_allclose(table["a"], expected, rtol=1e-5)


def test_who_waits():
    """It waits in view 1 and in view 3: there the mean is what it is worth, and what it learns."""
    algorithm = PQN(**HALF)
    active = [[1], [0], [1], [0]]
    one = track([[0], [1], [2], [3]], [[1], [0], [0]], [[1], [2], [3]], active=active)
    target, table, _ = learnt(algorithm, learner(algorithm), experience({"a": one}))
    last = 3 + 0.5 * (4 - 1) / 2
    middle = 2 + 0.5 * (0.5 * 7 + 0.5 * last)  # λ counts own decisions: the step spent waiting is none
    np.testing.assert_allclose(target["a"][:, 0], [1 + 0.5 * middle, middle, last], rtol=1e-6)
    gap = 2 * (4 - middle) / 3
    np.testing.assert_allclose(table["a"][1], [gap / 2, gap / 2], rtol=1e-5)


def test_who_is_absent():
    """The second agent leaves after the first step: nothing follows, and the rest does not count."""
    algorithm = PQN(**HALF)
    there = [[1, 1], [1, 0], [1, 0]]
    one = track([[0, 4], [1, 3], [2, 3]], [[1, 0], [0, 0]], [[1, 6], [2, 90]], active=there, present=there)
    target, table, metrics = learnt(algorithm, learner(algorithm, {"a": 2}), experience({"a": one}))
    stays = 2 + 0.5 * 7
    np.testing.assert_allclose(target["a"][:, 0], [1 + 0.5 * (0.5 * 5 + 0.5 * stays), stays], rtol=1e-6)
    assert float(target["a"][0, 1]) == 6.0
    gaps = np.array([2 - target["a"][0, 0], 5 - stays, 6 - 6.0])
    assert float(metrics["loss"]) == pytest.approx(np.sum(gaps**2) / 3, rel=1e-5)
    assert not np.asarray(table["a"][3]).any()


TRACKS = {
    "a": track([[0, 3], [1, 2]], [[1, 0]], [[3, 6]], final=[[2.0, 1.0]]),
    "b": track([[2], [4]], [[1]], [[9]], final=[[4.0]]),
}


@pytest.mark.parametrize(("ends", "ahead"), [({}, 5 + 7 + 8), ({"terminated": (0,)}, 0), ({"truncated": (0,)}, 7)])
def test_a_sum_by_hand(ends, ahead):
    algorithm = PQN(mixer="sum", **HALF)
    state = learner(algorithm, {"a": 2, "b": 1})
    target, table, metrics = learnt(algorithm, state, experience(TRACKS, **ends))
    np.testing.assert_allclose(target[TEAM], [6 + 0.5 * ahead], rtol=1e-6)
    gap = 13 - (6 + 0.5 * ahead)
    assert float(metrics["loss"]) == pytest.approx(gap**2, rel=1e-5)
    assert float(metrics["q"]) == pytest.approx(13 / 3, rel=1e-5)
    assert [float(table["a"][0, 1]), float(table["a"][3, 0]), float(table["b"][2, 1])] == pytest.approx([2 * gap] * 3)


@pytest.mark.parametrize("cut", [False, True])
def test_a_monotonic_mixer(cut):
    """The state of the moment goes with the values: that of the final view where the episode was cut short."""
    algorithm = PQN(mixer="monotonic", mixer_hidden=4, **HALF)
    assert algorithm.traits.needs_global_state
    assert algorithm.traits.records_final_observations  # it must know the state of final views
    state = learner(algorithm, {"a": 2, "b": 1}, state=2)
    now, later, final = jnp.array([0.5, -1.0]), jnp.array([2.0, 1.0]), jnp.array([-3.0, 0.25])
    tracks = {
        name: one.replace(
            observation=one.observation.replace(state=now[None, None]),
            last_observation=one.last_observation.replace(state=later[None]),
            final_observation=one.observation.replace(state=final[None, None]),
        )
        for name, one in TRACKS.items()
    }
    target, _, metrics = learnt(algorithm, state, experience(tracks, truncated=(0,) if cut else ()))
    values, seen = ([2.0, 1.0, 4.0], final) if cut else ([5.0, 7.0, 8.0], later)
    expected = 6 + 0.5 * float(mix("monotonic", state.mixer, jnp.array(values), seen))
    np.testing.assert_allclose(target[TEAM], [expected], rtol=1e-5)
    chosen = float(mix("monotonic", state.mixer, jnp.array([2.0, 4.0, 7.0]), now))
    assert float(metrics["loss"]) == pytest.approx((chosen - expected) ** 2, rel=1e-4)


@pytest.mark.parametrize("mixer", ["none", pytest.param("sum", marks=pytest.mark.slow)])
def test_chunks_change_nothing(mixer):
    network = Network(hidden=(8,), recurrent="gru", recurrent_size=4)
    whole, chunked = (PQN(mixer=mixer, network=network, chunk_samples=n) for n in (10_000, 60))
    state = fresh(whole, LastCard())
    batch = jax.jit(whole.prepare)(state, played(whole, LastCard(), state.params, 10, 4))
    (one, logged), (other, again) = (jax.jit(a.gradients)(state, batch) for a in (whole, chunked))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), one, other)
    assert float(logged["loss"]) == pytest.approx(float(again["loss"]), rel=1e-5)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(one)) > 1e-3


def test_values_are_recorded_as_they_were_while_acting():
    """What `act` records of a view is what unrolling the same experience says of it, memory included."""
    algorithm = PQN(network=Network(hidden=(8,), recurrent="gru", recurrent_size=4))
    state = fresh(algorithm, Memory())
    whole = played(algorithm, Memory(), state.params, 12, 3)
    one, policy = whole.trajectories["agent"], state.params["agent"]
    values, _ = jax.jit(lambda w: unroll(policy.network, w, one.observation, whole.first, one.memory))(policy.weights)
    np.testing.assert_allclose(one.extras["value"], values.max(-1), atol=1e-6)


def test_epsilon_and_learning_rate_fall():
    algorithm = PQN(epsilon_fraction=0.5, epochs=1, minibatches=2, network=Network(hidden=(8,)))
    state = fresh(algorithm, LastCard())
    state = state.replace(hyper=state.hyper | {"total_updates": jnp.float32(4.0)})
    whole = played(algorithm, LastCard(), state.params, 5, 4)
    update = jax.jit(algorithm.update)
    epsilon, moved = [], []
    for i in range(5):
        after, _ = update(state, whole, jax.random.key(i))
        before, now = (one.params["player"].weights["params"]["head"]["kernel"] for one in (state, after))
        moved.append(float(jnp.abs(now - before).max()))
        state = after
        epsilon.append(float(state.params["player"].epsilon))
    np.testing.assert_allclose(epsilon, [1 - 0.95 / 2, 0.05, 0.05, 0.05, 0.05], rtol=1e-5)
    assert min(moved[:4]) > 0.0
    assert moved[4] == 0.0


def test_what_is_refused():
    with pytest.raises(OptionError, match=r"PQN: trace_lambda must be at least 0\.0 and at most 1\.0, got 2\.0"):
        PQN(trace_lambda=2.0)
    with pytest.raises(OptionError, match="PQN: minibatches must be a whole number, at least 1, got 0"):
        PQN(minibatches=0)
    with pytest.raises(OptionError, match=r"PQN: epsilon_end must be at most epsilon_start, 0\.01.*, got 0\.05"):
        PQN(epsilon_start=0.01)
