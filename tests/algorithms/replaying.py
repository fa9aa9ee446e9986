"""What tests of DDPG and SAC share: learners, windows of played experience, and critics asked one view at a time."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from shoal import Discrete, Env, Group, Observation, Outcome
from shoal.algorithms import replay as stored
from shoal.core.algorithm import LearnerSpec
from shoal.core.env import describe
from tests.algorithms.playing import played
from tests.worlds.bandit import Target


@dataclasses.dataclass(frozen=True)
class Match(Env):
    """Two agents see nothing and are paid 1 if their choices differ and 0.4 if both choose 0."""

    kind = "cooperative"

    @property
    def groups(self):
        return {"agent": Group(2, Discrete(2))}

    def reset(self, key, params):
        return ()

    def step(self, key, state, actions, params):
        a, b = actions["agent"]
        paid = jnp.where(a != b, 1.0, jnp.where(a == 0, 0.4, 0.0))
        return (), Outcome({"agent": jnp.full(2, paid)}, jnp.ones((), bool), jnp.zeros((), bool))

    def observe(self, state, params):
        return {"agent": Observation(jnp.eye(2))}


@functools.cache
def fresh_replayer(algorithm, env, seed=0, num_envs=8, num_steps=24):
    """A learner of all groups of a world."""
    spec = describe(env)
    whole = LearnerSpec(spec.groups, spec.state, 1, spec.observations, num_envs, num_steps)
    return jax.jit(lambda key: algorithm.init(key, whole))(jax.random.key(seed))


def warmed(state):
    """The learner with policies that no longer play at random."""
    return state.replace(params={name: one.replace(warm=jnp.asarray(True)) for name, one in state.params.items()})


def windows_of(algorithm, env, state, start=0):
    """The windows that begin at one row of what is played: leaves `[W, E, ...]`."""
    return window_at(algorithm, played(algorithm, env, state.params), start)


def window_at(algorithm, experience, start):
    return stored.take_rows(algorithm.make_steps(experience), start, start + algorithm.window)


def one_window(group, views, final_views, action, flag=None):
    """One window of two rows of one copy with one agent, paid 2 in each. flag: set in the first row."""
    seen = {"agent": Observation(jax.ShapeDtypeStruct((1, 1), jnp.float32))}
    shape = stored.example_step(LearnerSpec({"agent": group}, None, 1, seen), (), False)
    zeros = jax.tree.map(lambda leaf: jnp.zeros((2, 1, *leaf.shape), leaf.dtype), shape)
    flags = {flag: jnp.array([[True], [False]])} if flag else {}
    views, final_views = (jnp.array(row, jnp.float32).reshape(2, 1, 1, 1) for row in (views, final_views))
    return zeros.replace(
        observation={"agent": Observation(views)},
        final_observation={"agent": Observation(final_views)},
        action={"agent": jnp.full_like(zeros.action["agent"], action)},
        reward={"agent": jnp.full((2, 1, 1), 2.0)},
        **flags,
    )


def target_batch(flag=None):
    """A window of `Target`: views 0.5, then 0.8, with a final view of -0.6 beside the first; action 0.25."""
    return one_window(Target().groups["agent"], [0.5, 0.8], [-0.6, 0.0], 0.25, flag)


@functools.partial(jax.jit, static_argnums=0)
def forward(algorithm, state, batch):
    """What actors and critics make of a batch: actors, features, and both for what followed."""
    return algorithm.forward(state.weights, state, batch)


@functools.partial(jax.jit, static_argnums=0)
def targets(algorithm, state, batch, seed=0):
    ahead = forward(algorithm, state, batch)[2:]
    return algorithm.traced(state.hyper).target(state, batch, *ahead, jax.random.key(seed))


@functools.partial(jax.jit, static_argnums=0)
def gradients(algorithm, state, batch, seed=0):
    return algorithm.gradients(state, batch, jax.random.key(seed))


@functools.partial(jax.jit, static_argnums=0)
def step(algorithm, state, gradients):
    return algorithm.apply(state, gradients)


@jax.jit
def shaken(state, seed=5):
    """The learner with slow networks that differ from the others."""
    leaves, shape = jax.tree.flatten(state.target)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    moved = [leaf + 0.3 * jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
    return state.replace(target=jax.tree.unflatten(shape, moved))


@functools.partial(jax.jit, static_argnums=1)
def slow_values(state, name, view, action):
    """What each of the slow own critics says of one agent's action vector: `[K, out]`. No memory."""
    policy, slow, said = state.params[name], state.target["critic"], []
    for k in range(len(jax.tree.leaves(slow["join"])[0])):
        trunk, join = jax.tree.map(lambda leaf, k=k: leaf[k], (slow["trunk"][name], slow["join"]))
        features, _ = policy.critic.apply(trunk, view, ())
        one = {name: action[None]}
        said.append(state.head.apply(join, {name: features[None]}, one, one, {name: None})[name][0])
    return jnp.stack(said)


@functools.partial(jax.jit, static_argnums=1)
def actor_says(state, name, weights, view):
    """What one agent's actor puts out. No memory."""
    return state.params[name].actor.apply(weights[name], view, ())[0]


def biggest(tree):
    return max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(tree))


def same(a, b, atol=1e-6):
    return biggest(jax.tree.map(lambda x, y: np.asarray(x) - np.asarray(y), a, b)) <= atol
