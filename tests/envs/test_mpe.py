"""The particle worlds: step-by-step agreement with mpe2, and rules worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.core.env import describe
from shoal.core.errors import OptionError
from shoal.core.spaces import Box, Discrete
from shoal.envs.mpe import _physics as physics
from shoal.envs.mpe.simple_spread import SimpleSpread
from shoal.envs.mpe.simple_spread import State as SpreadState
from shoal.envs.mpe.simple_tag import SimpleTag, _border_penalty
from shoal.envs.mpe.simple_tag import State as TagState

KEY = jax.random.key(7)


def names(env):
    """Our agents' names, in the order of the state and of mpe2's world."""
    return [f"{name}_{i}" for name, group in env.groups.items() for i in range(group.size)]


def reference(env):
    """The same world by mpe2."""
    from mpe2 import simple_spread_v3, simple_tag_v3

    shared = {"max_cycles": env.max_steps, "continuous_actions": env.continuous}
    if isinstance(env, SimpleSpread):
        return simple_spread_v3.parallel_env(N=env.num_agents, local_ratio=env.local_ratio, **shared)
    return simple_tag_v3.parallel_env(
        num_good=env.num_good, num_adversaries=env.num_adversaries, num_obstacles=env.num_obstacles, **shared
    )


def set_reference_state(theirs, state):
    """Puts mpe2's world into our state (one copy, numpy leaves)."""
    world = theirs.unwrapped.world
    for agent, position, velocity in zip(world.agents, state.position, state.velocity, strict=True):
        agent.state.p_pos = position.astype(np.float64)
        agent.state.p_vel = velocity.astype(np.float64)
    fixed = state.landmark if isinstance(state, SpreadState) else state.obstacle
    for landmark, position in zip(world.landmarks, fixed, strict=True):
        landmark.state.p_pos = position.astype(np.float64)
    theirs.unwrapped.steps = int(state.t)


def start(env, i):
    """A start state: drawn by `reset` when i is even, else moving, and crowded or at the border by turns."""
    key, speed_key = jax.random.split(jax.random.fold_in(KEY, i))
    state = env.reset(key, env.default_params())
    unusual = state._replace(
        position=jnp.where(i % 4 == 1, 0.35 * state.position, 0.95 * jnp.sign(state.position) + 0.1 * state.position),
        velocity=jax.random.uniform(speed_key, state.velocity.shape, minval=-1.0, maxval=1.0),
    )
    return jax.tree.map(lambda usual, other: jnp.where(i % 2 == 0, usual, other), state, unusual)


def play(env, count, squeeze):
    """Our side: states before each step, actions, and what came of them; leaves are `[T, E, ...]`.

    With `squeeze`, the crowded copies are drawn together and slowed before every step, so that they stay crowded.
    """
    params = env.default_params()

    def one(t, i, state):
        key = jax.random.fold_in(jax.random.fold_in(KEY, t), i)
        keys = jax.random.split(key, len(env.groups))
        actions = {
            name: jax.vmap(group.action.sample)(jax.random.split(key, group.size))
            for key, (name, group) in zip(keys, env.groups.items(), strict=True)
        }
        if squeeze:
            held = jnp.where(i % 4 == 1, 0.7, 1.0)
            state = state._replace(position=held * state.position, velocity=held**3 * state.velocity)
        after, outcome = env.step(key, state, actions, params)
        return after, (state, actions, outcome, env.observe(after, params))

    @jax.jit
    def run():
        copies = jnp.arange(count)
        state = jax.vmap(lambda i: start(env, i))(copies)
        body = lambda state, t: jax.vmap(one, (None, 0, 0))(t, copies, state)  # noqa: E731
        return jax.lax.scan(body, state, jnp.arange(env.max_steps))[1]

    return jax.tree.map(np.asarray, run())


def assert_agrees(env, count, synchronise=True):
    """Plays `count` episodes with both, mpe2 put into our state before every step (or before the first one only)."""
    theirs = reference(env)
    steps = play(env, count, squeeze=synchronise)
    for episode in range(count):
        theirs.reset(seed=0)
        for t in range(env.max_steps):
            state, actions, ours, seen = jax.tree.map(lambda leaf: leaf[t, episode], steps)  # noqa: B023
            if synchronise or t == 0:
                set_reference_state(theirs, state)
            flat = [action for group in env.groups for action in actions[group]]
            moves = {name: a if env.continuous else int(a) for name, a in zip(names(env), flat, strict=True)}
            views, rewards, terminated, truncated, _ = theirs.step(moves)
            where = f"episode {episode}, step {t}"
            for group, size in ((name, group.size) for name, group in env.groups.items()):
                members = [f"{group}_{i}" for i in range(size)]
                expected = np.stack([views[name] for name in members])
                np.testing.assert_allclose(seen[group].view, expected, atol=1e-5, err_msg=where)
                expected = np.array([rewards[name] for name in members])
                np.testing.assert_allclose(ours.reward[group], expected, atol=1e-5, err_msg=where)
            assert set(terminated.values()) == {bool(ours.terminated)} == {False}, where
            assert set(truncated.values()) == {bool(ours.truncated)} == {t == env.max_steps - 1}, where
    return steps


MANY = physics.UNROLL + 2


@pytest.mark.parametrize(
    ("env", "count"),
    [
        (SimpleSpread(), 52),
        (SimpleSpread(continuous=True), 52),
        (SimpleSpread(num_agents=1), 4),
        (SimpleSpread(num_agents=4, local_ratio=0.2, max_steps=7), 8),
        (SimpleSpread(num_agents=MANY, max_steps=2, continuous=True), 4),
        (SimpleTag(), 52),
        (SimpleTag(continuous=True), 52),
        (SimpleTag(num_good=3, num_adversaries=2, num_obstacles=0, max_steps=7, continuous=True), 8),
        (SimpleTag(num_good=2, num_adversaries=MANY, num_obstacles=MANY, max_steps=2), 4),
    ],
    ids=str,
)
def test_agrees_with_mpe2(env, count):
    steps = assert_agrees(env, count)
    metrics = steps[2].metrics
    if count > 50:  # the starts are such that the rare events are tried, and often
        assert np.sum(metrics["touches" if isinstance(env, SimpleSpread) else "catches"] > 0) > 100
    if count > 50 and isinstance(env, SimpleTag):
        before = steps[0].position[:, :, env.num_adversaries :]
        assert np.sum(np.abs(before) > 1.0) > 100


@pytest.mark.parametrize("env", [SimpleSpread(), SimpleTag()], ids=["spread", "tag"])
def test_agrees_with_mpe2_over_whole_episodes(env):
    assert_agrees(env, 8, synchronise=False)


def test_spaces_and_sizes():
    spread = describe(SimpleSpread()).groups["agent"]
    assert (spread.size, spread.action, spread.observation.shape) == (3, Discrete(5), (18,))
    tag = describe(SimpleTag(continuous=True)).groups
    assert tag["adversary"].observation.shape == (16,)
    assert tag["agent"].observation.shape == (14,)
    assert tag["agent"].action == Box((5,), low=0.0, high=1.0)
    assert describe(SimpleSpread()).state.shape == (54,)


def test_spread_by_hand():
    """Agents 0 and 1 touch (0.2 apart, radii 0.15), agent 2 is far; landmarks at known distances."""
    env = SimpleSpread()
    state = SpreadState(
        position=jnp.array([[0.0, 0.0], [0.2, 0.0], [5.0, 0.0]]),
        velocity=jnp.array([[0.0, 0.0], [0.0, 0.0], [0.0, 1.0]]),
        landmark=jnp.array([[0.0, 1.0], [0.2, -2.0], [5.0, 0.1]]),
        t=jnp.int32(24),
    )
    params = env.default_params()
    after, outcome = jax.jit(env.step)(KEY, state, {"agent": jnp.array([0, 2, 3])}, params)
    # Overlap 0.1 pushes with 100 * 0.1 = 10, times 0.1 s; the move to the right adds 5 * 0.1.
    np.testing.assert_allclose(after.velocity, [[-1.0, 0.0], [1.5, 0.0], [0.0, 0.75 - 0.5]], atol=1e-5)
    np.testing.assert_allclose(after.position, [[0.0, 0.0], [0.2, 0.0], [5.0, 0.1]], atol=1e-6)
    # Nearest distances: 1 (agent 0), 2 (agent 1), 0 (agent 2, after its move).
    np.testing.assert_allclose(outcome.reward["agent"], [-0.5 - 1.5, -0.5 - 1.5, -1.5], atol=1e-6)
    assert bool(outcome.truncated)
    assert not bool(outcome.terminated)
    view = jax.jit(env.observe)(after, params)["agent"].view
    np.testing.assert_allclose(
        view[1], [1.5, 0, 0.2, 0, -0.2, 1, 0, -2, 4.8, 0.1, -0.2, 0, 4.8, 0.1, 0, 0, 0, 0], atol=1e-5
    )


def test_tag_by_hand():
    """Two adversaries on one agent, the other agent out of the square, speeds limited."""
    env = SimpleTag(num_good=2, num_adversaries=2, num_obstacles=1)
    state = TagState(
        position=jnp.array([[0.0, 0.0], [0.0, 0.1], [0.05, 0.05], [2.5, -0.95]]),
        velocity=jnp.array([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 1.0]]),
        obstacle=jnp.array([[-3.0, -3.0]]),
        t=jnp.int32(0),
    )
    params = env.default_params()
    stay = {"adversary": jnp.zeros(2, int), "agent": jnp.array([0, 2])}
    step = jax.jit(env.step)
    after, outcome = step(KEY, state, stay, params)
    # Agent 1: |x| = 2.5 costs min(e^3, 10) = 10, |y| = 0.95 - 0.1 = 0.85 costs nothing.
    np.testing.assert_allclose(outcome.reward["adversary"], [20.0, 20.0], atol=1e-5)
    np.testing.assert_allclose(outcome.reward["agent"], [-20.0, -10.0], atol=1e-5)
    assert float(outcome.metrics["catches"]) == 2.0
    # Agent 1 had (0, 1), damped to (0, 0.75), plus 4 * 0.1 to the right.
    np.testing.assert_allclose(after.velocity[3], [0.4, 0.75], atol=1e-6)
    fast, _ = step(KEY, after._replace(velocity=20.0 * after.velocity), stay, params)
    np.testing.assert_allclose(jnp.linalg.norm(fast.velocity, axis=1), [1.0, 1.0, 1.3, 1.3], atol=1e-5)
    view = jax.jit(env.observe)(after, params)
    np.testing.assert_allclose(view["adversary"].view[0, -4:], after.velocity[2:].ravel(), atol=1e-6)
    np.testing.assert_allclose(view["agent"].view[1, -2:], after.velocity[2], atol=1e-6)


def test_border_penalty():
    x = jnp.array([0.0, 0.89, 0.95, 1.0, 1.5, 3.0])
    np.testing.assert_allclose(_border_penalty(x), [0.0, 0.0, 0.5, 1.0, np.e, 10.0], atol=1e-5)


def test_continuous_actions_are_clipped():
    action = jnp.array([[9.0, -1.0, 2.0, 0.25, 0.75]])
    np.testing.assert_allclose(physics.steering(action, continuous=True), [[1.0, 0.5]])


def test_what_is_not_a_move_stays():
    np.testing.assert_array_equal(physics.steering(jnp.array([-1, 5, 99]), continuous=False), np.zeros((3, 2)))


def test_discs_on_the_same_spot_stay_finite():
    env = SimpleSpread()
    state = SpreadState(jnp.zeros((3, 2)), jnp.zeros((3, 2)), jnp.zeros((3, 2)), jnp.int32(0))
    state, outcome = jax.jit(env.step)(KEY, state, {"agent": jnp.zeros(3, int)}, env.default_params())
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves((state, outcome)))


@pytest.mark.parametrize("n", [1, 2, 5, 6])
def test_ring_of_pairs_equals_all_pairs(n, monkeypatch):
    these = physics.discs(jax.random.uniform(KEY, (n, 2)), jnp.linspace(0.1, 0.3, n))

    def sums(these):
        force = physics.sum_over_others(physics.repulsion, these, mirror=-1.0)
        return force, physics.sum_over_others(physics.touching, these, mirror=1.0)

    ring = jax.jit(sums)(these)
    monkeypatch.setattr(physics, "UNROLL", 0)
    matrix = jax.jit(lambda these: sums(these))(these)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5), ring, matrix)


def test_params_are_traced():
    """Randomised parameters are a vmap: a heavier damping slows the same agent more."""
    env = SimpleSpread()
    state = env.reset(KEY, env.default_params())._replace(velocity=jnp.ones((3, 2)))
    many = jax.tree.map(lambda leaf: jnp.full(2, leaf, jnp.float32), env.default_params())
    many = many._replace(damping=jnp.array([0.0, 1.0]), radius=jnp.zeros(2))
    stay = {"agent": jnp.zeros(3, int)}
    after = jax.jit(jax.vmap(lambda params: env.step(KEY, state, stay, params)[0]))(many)
    np.testing.assert_allclose(after.velocity, np.stack([np.ones((3, 2)), np.zeros((3, 2))]), atol=1e-5)


@pytest.mark.parametrize(
    ("world", "options", "said"),
    [
        (SimpleSpread, {"num_agents": 0}, "mpe/simple_spread: num_agents must be a whole number, at least 1, got 0"),
        (SimpleSpread, {"max_steps": 2.5}, "max_steps must be a whole number"),
        (SimpleSpread, {"local_ratio": 1.5}, "local_ratio must be between 0 and 1, got 1.5"),
        (SimpleSpread, {"local_ratio": float("nan")}, "local_ratio must be a finite number"),
        (SimpleSpread, {"continuous": 1}, "continuous must be True or False, got 1"),
        (SimpleTag, {"num_good": -1}, "mpe/simple_tag: num_good must be a whole number, at least 1, got -1"),
        (SimpleTag, {"num_adversaries": True}, "num_adversaries must be a whole number"),
        (SimpleTag, {"num_obstacles": -1}, "num_obstacles must be a whole number, at least 0, got -1"),
        (SimpleTag, {"max_steps": 0}, "max_steps must be a whole number, at least 1, got 0"),
    ],
)
def test_bad_options(world, options, said):
    with pytest.raises(OptionError, match=said):
        world(**options)


def test_scenes():
    spread, tag = SimpleSpread(), SimpleTag()
    scene = spread.scene(spread.reset(KEY, spread.default_params()), spread.default_params())
    assert scene.circles.names == ("", "", "", "agent_0", "agent_1", "agent_2")
    np.testing.assert_array_equal(scene.circles.colour, [0, 0, 0, 1, 1, 1])
    scene = tag.scene(tag.reset(KEY, tag.default_params()), tag.default_params())
    assert scene.circles.names == ("", "", "adversary_0", "adversary_1", "adversary_2", "agent_0")
    np.testing.assert_array_equal(scene.circles.colour, [0, 0, 4, 4, 4, 3])
    np.testing.assert_allclose(scene.circles.radius, [0.2, 0.2, 0.075, 0.075, 0.075, 0.05], atol=1e-6)
