"""Step-by-step agreement of the particle worlds with mpe2, from the same states and with the same actions."""

import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from shoal.core.env import describe
from shoal.core.spaces import Box, Discrete, action_dtype, action_shape
from shoal.envs.mpe import _physics as physics
from shoal.envs.mpe.simple import Simple
from shoal.envs.mpe.simple_adversary import SimpleAdversary
from shoal.envs.mpe.simple_crypto import SimpleCrypto
from shoal.envs.mpe.simple_push import SimplePush
from shoal.envs.mpe.simple_reference import SimpleReference
from shoal.envs.mpe.simple_speaker_listener import SimpleSpeakerListener
from shoal.envs.mpe.simple_spread import SimpleSpread
from shoal.envs.mpe.simple_tag import SimpleTag
from shoal.envs.mpe.simple_world_comm import SimpleWorldComm

KEY = jax.random.key(7)
COUNT = 200
MANY = physics.UNROLL + 2

MODULES = {
    Simple: "simple_v3",
    SimpleAdversary: "simple_adversary_v3",
    SimpleCrypto: "simple_crypto_v3",
    SimplePush: "simple_push_v3",
    SimpleReference: "simple_reference_v3",
    SimpleSpeakerListener: "simple_speaker_listener_v4",
    SimpleSpread: "simple_spread_v3",
    SimpleTag: "simple_tag_v3",
    SimpleWorldComm: "simple_world_comm_v3",
}
THEIR_NAMES = {"max_steps": "max_cycles", "continuous": "continuous_actions", "num_agents": "N"}
BOTH_KINDS = [world(continuous=continuous) for world in MODULES for continuous in (False, True)]
OTHER_SIZES = [
    (SimpleAdversary(num_agents=1, max_steps=7), 4),
    (SimpleAdversary(num_agents=4, max_steps=7, continuous=True), 8),
    (SimpleAdversary(num_agents=MANY, max_steps=2), 4),
    (SimpleReference(local_ratio=0.2, max_steps=7), 8),
    (SimpleSpread(num_agents=1), 4),
    (SimpleSpread(num_agents=4, local_ratio=0.2, max_steps=7), 8),
    (SimpleSpread(num_agents=MANY, max_steps=2, continuous=True), 4),
    (SimpleTag(num_good=3, num_adversaries=2, num_obstacles=0, max_steps=7, continuous=True), 8),
    (SimpleTag(num_good=2, num_adversaries=MANY, num_obstacles=MANY, max_steps=2), 4),
    (SimpleWorldComm(num_good=1, num_adversaries=1, num_obstacles=0, num_food=1, num_forests=0, max_steps=7), 8),
    (SimpleWorldComm(num_good=3, num_adversaries=2, num_food=3, num_forests=3, max_steps=7, continuous=True), 8),
    (SimpleWorldComm(num_good=3, num_adversaries=2, num_obstacles=2, num_forests=MANY, max_steps=2), 2),
]


def options(env):
    """Our options by mpe2's names."""
    return {THEIR_NAMES.get(name, name): value for name, value in vars(env).items()}


def reference(env, build="raw_env"):
    """The same world by mpe2, bare or with its public face."""
    module = importlib.import_module(f"mpe2.{MODULES[type(env)]}")
    return getattr(module, build)(**options(env))


class Script:
    """Stands in for mpe2's random numbers: hands out the draws that lead to one of our states."""

    def __init__(self, state, world):
        choices = [np.ravel(getattr(state, name)) for name in ("goal", "key") if hasattr(state, name)]
        self.choices = [int(choice) for chosen in choices for choice in chosen]
        landmarks = getattr(state, "landmark", getattr(state, "obstacle", np.zeros((len(world.landmarks), 2))))
        movers = list(getattr(state, "position", ()))
        agents = [movers.pop(0) if agent.movable else np.zeros(2) for agent in world.agents]
        again = landmarks[len(landmarks) - len(getattr(world, "food", ())) - len(getattr(world, "forests", ())) :]
        self.places = [np.asarray(place, np.float64) for place in (*agents, *landmarks, *again)]

    def integers(self, size):
        choice = self.choices.pop(0)
        assert 0 <= choice < size
        return choice

    def uniform(self, low, high, size):
        place = self.places.pop(0)
        assert place.shape == (size,)
        return place.copy()


def begin(theirs, state):
    """Lets mpe2 reset itself into our state, by its own rules."""
    script = Script(state, theirs.world)
    theirs.np_random = script
    theirs.scenario.reset_world(theirs.world, script)
    assert not script.places
    assert not script.choices
    synchronise(theirs, state, ())


def synchronise(theirs, states, at):
    """Puts those who move where they are with us, in the state `at` these indices."""
    movers = [agent for agent in theirs.world.agents if agent.movable]
    for i, agent in enumerate(movers):
        agent.state.p_pos = states.position[at][i].astype(np.float64)
        agent.state.p_vel = states.velocity[at][i].astype(np.float64)


def some_actions(env, count, numbers):
    """Random actions `[T, E, n]` by group."""
    actions = {}
    for name, group in env.groups.items():
        shape = (env.max_steps, count, group.size, *action_shape(group.action))
        is_box = isinstance(group.action, Box)
        actions[name] = numbers.uniform(size=shape) if is_box else numbers.integers(group.action.n, size=shape)
        actions[name] = actions[name].astype(action_dtype(group.action))
    return actions


def start(env, i):
    """A start state: drawn by `reset` when i is even, else moving, and crowded or at the border by turns."""
    state = env.reset(jax.random.fold_in(KEY, i), env.default_params())
    if not hasattr(state, "position"):
        return state
    crowded = {name: 0.35 * getattr(state, name) for name in set(state._fields) & {"position", "landmark", "obstacle"}}
    at_border = 0.95 * jnp.sign(state.position) + 0.1 * state.position
    speed = jnp.where(i % 2 == 1, state.position[::-1, ::-1], 0.0)
    kinds = state, state._replace(**crowded, velocity=speed), state, state._replace(position=at_border, velocity=speed)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves)[i % 4], *kinds)


@functools.cache
def program(env):
    """Plays one of our episodes a row of `actions` `[T, E]`: start states and first views, then all that came of it.

    `hold` draws the crowded copies together and slows them before every step, so that they stay crowded.
    """
    params = env.default_params()

    def one(state, hold, actions):
        if hasattr(state, "position"):
            state = state._replace(position=hold * state.position, velocity=hold**3 * state.velocity)
        after, outcome = env.step(KEY, state, actions, params)
        return after, (state, outcome, env.observe(after, params))

    def run(hold, actions):
        copies = jnp.arange(jax.tree.leaves(actions)[0].shape[1])
        holds = jnp.where(copies % 4 == 1, hold, 1.0)
        state = jax.vmap(lambda i: start(env, i))(copies)
        first = jax.vmap(lambda state: env.observe(state, params))(state)
        body = lambda state, actions: jax.vmap(one)(state, holds, actions)  # noqa: E731
        return state, first, jax.lax.scan(body, state, actions)[1]

    return jax.jit(run)


def play(env, count, hold):
    """Our side: start states, first views, then states before each step, actions, and what came of them."""
    actions = some_actions(env, count, np.random.default_rng(7))
    state, first, (states, outcome, seen) = jax.tree.map(np.asarray, program(env)(hold, actions))
    return state, first, states, actions, outcome, seen


def names(env):
    """Our agents' names, in the order of mpe2's world."""
    return [f"{name}_{i}" for name, group in env.groups.items() for i in range(group.size)]


def in_a_row(env, by_group, t, episode):
    """Something of one step for each agent, in the order of mpe2's world."""
    return [row for name in env.groups for row in by_group[name][t, episode]]


def assert_equal(env, ours, theirs, what):
    """Compares all at once; `theirs` is indexed `[t, episode, agent]`."""
    for name, group in env.groups.items():
        first = names(env).index(f"{name}_0")
        expected = [[row[first : first + group.size] for row in step] for step in theirs]
        np.testing.assert_allclose(ours[name], np.array(expected), atol=1e-5, rtol=1e-5, err_msg=f"{what} of {name}")


def assert_agrees(env, count):
    """Plays `count` episodes with both, mpe2 put into our state before every step: contacts are chaotic."""
    theirs = reference(env)
    first_state, first_seen, states, actions, outcome, seen = play(env, count, hold=0.7)
    agents = names(env)
    assert [agent.name for agent in theirs.world.agents] == agents
    first_views = [[] for _ in range(1)]
    views, rewards = [[[] for _ in range(env.max_steps)] for _ in range(2)]
    for episode in range(count):
        theirs.reset(seed=0)
        begin(theirs, jax.tree.map(lambda leaf: leaf[episode], first_state))  # noqa: B023
        first_views[0].append([theirs.observe(agent) for agent in agents])
        for t in range(env.max_steps):
            synchronise(theirs, states, (t, episode))
            moves = in_a_row(env, actions, t, episode)
            theirs.current_actions = moves if env.continuous else [int(move) for move in moves]
            theirs._execute_world_step()
            views[t].append([theirs.observe(agent) for agent in agents])
            rewards[t].append([theirs.rewards[agent] for agent in agents])
    first = {name: observation.view[None] for name, observation in first_seen.items()}
    assert_equal(env, first, first_views, "first views")
    assert_equal(env, {name: observation.view for name, observation in seen.items()}, views, "views")
    assert_equal(env, outcome.reward, rewards, "rewards")
    return states, outcome


@pytest.mark.parametrize("env", BOTH_KINDS, ids=str)
def test_agrees_with_mpe2(env):
    states, outcome = assert_agrees(env, COUNT)
    # The starts are such that the rare events are tried, and often.
    for event in {"touches", "catches", "meals"} & set(outcome.metrics):
        assert np.sum(outcome.metrics[event] > 0) > 100, event
    if isinstance(env, SimpleTag | SimpleWorldComm):
        assert np.sum(np.abs(states.position[:, :, env.num_adversaries :]) > 1.0) > 100


@pytest.mark.parametrize(("env", "count"), OTHER_SIZES, ids=str)
def test_agrees_with_mpe2_in_other_sizes(env, count):
    assert_agrees(env, count)


@pytest.mark.parametrize("env", BOTH_KINDS, ids=str)
def test_whole_episodes_through_the_public_interface(env):
    """Spaces, names, views, rewards and ends over 4 episodes of `parallel_env`, set to our state at the start only."""
    theirs = reference(env, "parallel_env")
    spec = describe(env).groups
    assert theirs.possible_agents == names(env)
    for name in names(env):
        group = spec[name.rsplit("_", 1)[0]]
        assert theirs.observation_space(name).shape == group.observation.shape
        assert same_space(theirs.action_space(name), group.action)
    first_state, _, _, actions, outcome, seen = play(env, COUNT, hold=1.0)
    for episode in range(4):
        theirs.reset(seed=0)
        begin(theirs.unwrapped, jax.tree.map(lambda leaf: leaf[episode], first_state))  # noqa: B023
        for t in range(env.max_steps):
            moves = in_a_row(env, actions, t, episode)
            moves = moves if env.continuous else [int(move) for move in moves]
            views, rewards, terminated, truncated, _ = theirs.step(dict(zip(names(env), moves, strict=True)))
            where = f"episode {episode}, step {t}"
            our_views = in_a_row(env, {name: observation.view for name, observation in seen.items()}, t, episode)
            our_rewards = in_a_row(env, outcome.reward, t, episode)
            for name, view, reward in zip(names(env), our_views, our_rewards, strict=True):
                np.testing.assert_allclose(view, views[name], atol=1e-5, rtol=1e-5, err_msg=where)
                np.testing.assert_allclose(reward, rewards[name], atol=1e-5, rtol=1e-5, err_msg=where)
            assert set(terminated.values()) == {bool(outcome.terminated[t, episode])} == {False}, where
            assert set(truncated.values()) == {bool(outcome.truncated[t, episode])} == {t == env.max_steps - 1}, where


def same_space(theirs, ours):
    match ours:
        case Discrete(n):
            return theirs == spaces.Discrete(n)
        case Box(shape, low, high):
            return theirs == spaces.Box(low, high, shape)
