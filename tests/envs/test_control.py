"""The control worlds: step-by-step agreement with Gymnasium, start distributions, options and pictures."""

import dataclasses
from collections.abc import Callable

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal import presets
from shoal.core.env import Env
from shoal.core.errors import OptionError
from shoal.core.registry import make
from shoal.core.spaces import Box
from shoal.envs.control import _hill as hill
from shoal.envs.control import acrobot, cartpole, pendulum
from shoal.envs.control._angles import wrap_angle

KEY = jax.random.key(3)
NUM_STATES = 400
ACROBOT_RANGE = np.array([1, 1, 1, 1, 4 * np.pi, 9 * np.pi])
CAR_RANGE = np.array([1.2, 0.07])


@dataclasses.dataclass(frozen=True)
class Case:
    """How to compare one world. States are drawn around those where something happens, `[NUM_STATES]` of them."""

    original: str
    draw: Callable[[np.random.Generator], tuple]
    inject: Callable[[gymnasium.Env, tuple], None]
    skilled: Callable[[np.ndarray], float]  # a view to the action of somebody who can play
    atol: np.ndarray | float = 1e-6  # beside 1e-5 relative


def uniform(random, *ranges):
    return [random.uniform(low, high, NUM_STATES).astype(np.float32) for low, high in ranges]


def times(limit):
    """Half of the states are far from the time limit, the others at it or one or two steps before."""
    return np.where(np.arange(NUM_STATES) % 2 == 0, 10, limit - 1 - np.arange(NUM_STATES) % 3).astype(np.int32)


def draw_cartpole(random):
    x, v, angle, w = uniform(random, (-2.45, 2.45), (-3, 3), (-0.22, 0.22), (-3, 3))
    near = np.arange(NUM_STATES) % 4 == 0
    x = np.where(near, np.sign(x) * random.uniform(2.35, 2.4, NUM_STATES), x).astype(np.float32)
    return cartpole.State(x, v, angle, w, times(500))


def draw_acrobot(random):
    a, b, v, w = uniform(random, (-np.pi, np.pi), (-np.pi, np.pi), (-12, 12), (-28, 28))
    slow = np.where(np.arange(NUM_STATES) % 3 > 0, 0.1, 1.0).astype(np.float32)
    return acrobot.State((a, b), (slow * v, slow * w), times(500))


def draw_hill(limit, goal):
    def draw(random):
        x, v = uniform(random, (-1.2, 0.6), (-0.07, 0.07))
        kind = np.arange(NUM_STATES) % 4
        x = np.where(kind == 0, random.uniform(goal - 0.05, goal + 0.01, NUM_STATES), x)
        x = np.where(kind == 1, random.uniform(-1.2, -1.15, NUM_STATES), x)
        x[:4] = -1.2  # at the wall
        return hill.State(x.astype(np.float32), v, times(limit))

    return draw


def draw_pendulum(random):
    angle, v = uniform(random, (-np.pi, np.pi), (-8, 8))
    return pendulum.State(angle, v, times(200))


def inject_hill(theirs, state):
    theirs.unwrapped.state = np.array(state[:2], np.float64)


def inject_car_continuous(theirs, state):
    theirs.unwrapped.state = np.array(state[:2], np.float32)  # as the original keeps it


def inject_cartpole(theirs, state):
    theirs.unwrapped.state = np.array(state[:4], np.float64)
    theirs.unwrapped.steps_beyond_terminated = None


def inject_acrobot(theirs, state):
    theirs.unwrapped.state = np.array([*state.angle, *state.velocity], np.float64)


def balance(view):
    return view[2] + 0.3 * view[3] + 0.02 * view[1] > 0


def rock(view):
    return np.sign(view[1] + 1e-9)


CASES = {
    "control/cartpole": Case("CartPole-v1", draw_cartpole, inject_cartpole, balance),
    # Relative to the range: at full speed a link turns by 5 radians in a step, where rounding grows tenfold.
    "control/acrobot": Case(
        "Acrobot-v1", draw_acrobot, inject_acrobot, lambda view: 2 * (view[5] > 0), 1e-5 * ACROBOT_RANGE
    ),
    "control/mountain_car": Case(
        "MountainCar-v0", draw_hill(200, 0.5), inject_hill, lambda view: 1 + rock(view), CAR_RANGE * 1e-6
    ),
    "control/mountain_car_continuous": Case(
        "MountainCarContinuous-v0", draw_hill(999, 0.45), inject_car_continuous, rock, CAR_RANGE * 1e-6
    ),
    "control/pendulum": Case("Pendulum-v1", draw_pendulum, inject_hill, lambda view: 2 * np.sign(view[2])),
}
IDS = list(CASES)


def random_actions(env: Env, count):
    """Actions of one agent, `[count, 1, ...]`; of a box, some are outside it."""
    space = env.groups["agent"].action
    keys = jax.random.split(KEY, count)
    actions = np.asarray(jax.vmap(space.sample)(keys))[:, None]
    return 1.3 * actions if isinstance(space, Box) else actions


def their_step(theirs, action):
    """One step of the original, its time limit included."""
    action = np.asarray(action[0], np.float32) if action.dtype == np.float32 else int(action[0])
    view, reward, terminated, truncated, _ = theirs.step(action)
    return view, reward, terminated, truncated


def restarted(theirs, case, state):
    """Puts the original, time limit included, into one of our states."""
    theirs.reset(seed=0)
    case.inject(theirs, state)
    theirs._elapsed_steps = int(state.t)


def original(case):
    """With the time limit as the outermost wrapper."""
    return gymnasium.make(case.original, disable_env_checker=True)


def our_step(env):
    params = env.default_params()

    def step(state, action):
        state, outcome = env.step(KEY, state, {"agent": action}, params)
        return state, env.observe(state, params)["agent"].view[0], outcome

    return step


def assert_agree(case, where, view, outcome, theirs):
    their_view, reward, terminated, truncated = theirs
    limit = 1e-5 * np.abs(their_view) + case.atol
    assert (np.abs(view - their_view.astype(np.float64)) <= limit).all(), f"{where}: {view} against {their_view}"
    np.testing.assert_allclose(outcome.reward["agent"], [reward], rtol=1e-5, atol=1e-6, err_msg=where)
    assert (bool(outcome.terminated), bool(outcome.truncated)) == (terminated, truncated), where


@pytest.mark.parametrize("id", IDS)
def test_every_step_agrees_from_random_states(id):
    case, env = CASES[id], make(id)
    states = case.draw(np.random.default_rng(1))
    actions = random_actions(env, NUM_STATES)
    after = jax.tree.map(np.asarray, jax.jit(jax.vmap(our_step(env)))(jax.tree.map(jnp.asarray, states), actions))
    theirs, ends = original(case), []
    for i in range(NUM_STATES):
        state, (_, view, outcome) = jax.tree.map(lambda leaf: leaf[i], (states, after))  # noqa: B023
        restarted(theirs, case, state)
        expected = their_step(theirs, actions[i])
        assert_agree(case, f"{id}, state {i}: {state}", view, outcome, expected)
        ends.append(expected[2:])
    terminated, truncated = np.array(ends).mean(0)
    assert 0.1 < truncated < 0.4
    assert terminated == 0 if id == "control/pendulum" else 0.03 < terminated < 0.8


@pytest.mark.parametrize("id", IDS)
@pytest.mark.parametrize("skilled", [False, True])
def test_whole_episodes_agree(id, skilled):
    """From start to end, the original put into our state before every step; both know the end by themselves."""
    case, env = CASES[id], make(id)
    step = jax.jit(our_step(env))
    theirs = original(case)
    actions = random_actions(env, 1000)
    state = jax.jit(env.reset)(KEY, env.default_params())
    theirs.reset(seed=0)
    view, over, t = np.zeros(6), False, 0
    while not over:
        action = np.array(case.skilled(view)).reshape(actions[t].shape).astype(actions.dtype) if skilled else actions[t]
        case.inject(theirs, jax.tree.map(np.asarray, state))
        state, view, outcome = jax.tree.map(np.asarray, step(state, action))
        expected = their_step(theirs, action)
        assert_agree(case, f"{id}, step {t}", view, outcome, expected)
        over, t = bool(expected[2] or expected[3]), t + 1
    limit = gymnasium.spec(case.original).max_episode_steps
    assert env.max_steps == limit
    # The skilled balance the pole until the time is up and get over the hill or the line; the others do not.
    ends_in_time = (skilled != (id == "control/cartpole")) and id != "control/pendulum"
    assert (t < limit) == ends_in_time


@pytest.mark.parametrize("id", IDS)
def test_starts_are_drawn_alike(id):
    """Bounds, means and standard deviations of every number that is seen, over many starts of each."""
    env = make(id)
    params = env.default_params()
    draws = jax.vmap(lambda key: env.observe(env.reset(key, params), params)["agent"].view[0])
    ours = np.asarray(jax.jit(draws)(jax.random.split(KEY, 4000)))
    theirs = gymnasium.make(CASES[id].original, disable_env_checker=True)
    views = np.array([theirs.reset(seed=seed)[0] for seed in range(1000)])
    spread = views.std(0) + 1e-9
    np.testing.assert_allclose(ours.mean(0) / spread, views.mean(0) / spread, atol=0.15)
    np.testing.assert_allclose(ours.std(0) / spread, np.where(views.std(0) > 0, 1.0, 0.0), atol=0.1)
    for bound in (np.min, np.max):
        np.testing.assert_allclose(bound(ours, 0) / spread, bound(views, 0) / spread, atol=0.15)


def test_sutton_barto_reward():
    case = CASES["control/cartpole"]
    env = make("control/cartpole", sutton_barto_reward=True)
    theirs = gymnasium.make("CartPole-v1", disable_env_checker=True, sutton_barto_reward=True)
    step = jax.jit(our_step(env))
    for angle in (0.0, 0.25):
        state = cartpole.State(*np.float32([0.0, 0.0, angle, 0.0]), np.int32(0))
        restarted(theirs, case, state)
        action = np.array([1])
        _, view, outcome = step(state, action)
        assert_agree(case, f"angle {angle}", view, outcome, their_step(theirs, action))


@pytest.mark.parametrize("id", ["control/mountain_car", "control/mountain_car_continuous"])
def test_goal_velocity(id):
    env = make(id, goal_velocity=0.03)
    step = jax.jit(our_step(env))
    action = jnp.zeros(env.groups["agent"].action.shape if "continuous" in id else ())[None] + 1  # rolls, or gives gas
    for velocity, reached in ((0.02, False), (0.05, True)):
        state = hill.State(jnp.float32(0.5), jnp.float32(velocity), jnp.int32(0))
        assert bool(step(state, action)[2].terminated) == reached


def test_gravity_of_the_pendulum():
    theirs = gymnasium.make("Pendulum-v1", disable_env_checker=True, g=3.0)
    case, state = CASES["control/pendulum"], pendulum.State(np.float32(1.0), np.float32(0.5), np.int32(0))
    restarted(theirs, case, state)
    action = np.float32([[0.7]])
    _, view, outcome = our_step(make("control/pendulum", gravity=3.0))(state, action)
    assert_agree(case, "g = 3", view, outcome, their_step(theirs, action))


def test_params_are_traced():
    """Poles of different lengths side by side."""
    env = make("control/cartpole")
    lengths = jnp.array([0.25, 0.5, 1.0])
    state = cartpole.State(*(jnp.float32(x) for x in (0.0, 0.0, 0.1, 0.0)), jnp.int32(0))

    def speed(length):
        params = env.default_params()._replace(half_length=length)
        return env.step(KEY, state, {"agent": jnp.array([0])}, params)[0].angular_velocity

    speeds = np.asarray(jax.vmap(speed)(lengths))
    np.testing.assert_allclose(speeds[0] / speeds, [1.0, 2.0, 4.0], rtol=0.05)  # long poles fall slowly


def test_numbers_that_are_no_actions():
    for id, like in (("control/cartpole", 0), ("control/acrobot", 1), ("control/mountain_car", 1)):
        env = make(id)
        state = env.reset(KEY, env.default_params())
        odd, known = (our_step(env)(state, jnp.array([a]))[1] for a in (77, like))
        np.testing.assert_array_equal(odd, known)


def test_angles_are_wrapped():
    angles = np.float32([-9.0, -np.pi, -1.0, 0.0, 3.1, 3.2, 7.0, 12.0])
    ours = np.asarray(wrap_angle(jnp.asarray(angles)))
    assert (np.abs(ours) <= np.float32(np.pi)).all()
    np.testing.assert_allclose(np.exp(1j * ours.astype(np.float64)), np.exp(1j * angles.astype(np.float64)), atol=2e-6)
    np.testing.assert_array_equal(ours[2:5], angles[2:5])


@pytest.mark.parametrize("id", IDS)
def test_scene_shows_the_agent(id):
    env = make(id)
    params = env.default_params()
    draw = jax.jit(lambda key: env.scene(env.reset(key, params), params))
    for seed in range(3):
        scene = draw(jax.random.key(seed))
        left, bottom, right, top = scene.bounds
        shown = np.concatenate([np.asarray(scene.polygons.points).reshape(-1, 2), np.asarray(scene.circles.position)])
        assert (shown >= [left, bottom]).all()
        assert (shown <= [right, top]).all()
        assert any(scene.circles.names)


def test_scene_of_a_leaning_pole():
    env = make("control/cartpole")
    state = cartpole.State(*(jnp.float32(x) for x in (1.5, 0.0, 0.2, 0.0)), jnp.int32(0))
    scene = env.scene(state, env.default_params())
    pivot, tip = (np.asarray(scene.circles.position[scene.circles.names.index(name)]) for name in ("cart", "pole"))
    np.testing.assert_allclose(tip - pivot, [np.sin(0.2), np.cos(0.2)], atol=1e-6)
    assert pivot[0] == 1.5


def test_scene_of_the_acrobot_ends_on_the_goal_line():
    env = make("control/acrobot")
    state = acrobot.State(
        (jnp.float32(np.pi / 2), jnp.float32(np.pi / 2)), (jnp.float32(0), jnp.float32(0)), jnp.int32(0)
    )
    scene = env.scene(state, env.default_params())
    np.testing.assert_allclose(scene.circles.position[1:], [[1.0, 0.0], [1.0, 1.0]], atol=1e-6)
    np.testing.assert_allclose(scene.lines.start[0, 1], 1.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("id", "env_steps", "least"),
    [
        ("control/cartpole", 500_000, 400),
        ("control/acrobot", 500_000, -120),
        ("control/pendulum", 1_500_000, -250),
        ("control/mountain_car", 4_000_000, -130),
        ("control/mountain_car_continuous", 4_000_000, 85),
    ],
)
def test_presets_learn(id, env_steps, least):
    experiment = dataclasses.replace(presets.get(id), total_env_steps=env_steps)
    policies = shoal.train(experiment).policies
    assert shoal.evaluate(experiment.setup, policies, episodes=256).mean_return["agent"] > least


@pytest.mark.parametrize(
    ("id", "options", "said"),
    [(id, {"max_steps": 0}, f"{id}: max_steps must be a whole number, at least 1, got 0") for id in IDS]
    + [
        ("control/cartpole", {"sutton_barto_reward": 1}, "sutton_barto_reward must be True or False, got 1"),
        ("control/mountain_car", {"goal_velocity": float("nan")}, "goal_velocity must be a finite number, got nan"),
        ("control/mountain_car_continuous", {"goal_velocity": "0"}, "goal_velocity must be a finite number, got '0'"),
        ("control/pendulum", {"gravity": float("inf")}, "gravity must be a finite number, got inf"),
    ],
)
def test_bad_options(id, options, said):
    with pytest.raises(OptionError, match=said):
        make(id, **options)
