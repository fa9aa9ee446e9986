"""Experience for the tests of algorithms: played in a world, or written down by hand."""

import functools
import math

import jax
import jax.numpy as jnp

from shoal import Discrete, Group, Observation
from shoal.batching.policies import Policies
from shoal.batching.rollout import make_experience, rollout
from shoal.batching.vectorise import Vectorised
from shoal.core.algorithm import Experience, LearnerSpec, Trajectory
from shoal.core.env import describe
from shoal.core.spaces import Box


def fresh(algorithm, env, seed=0):
    """A learner of all groups of a world."""
    spec = describe(env)
    return jax.jit(lambda key: algorithm.init(key, LearnerSpec(spec.groups, spec.state)))(jax.random.key(seed))


def played(algorithm, env, params, num_steps=24, num_envs=8, seed=1):
    """What happens when `params` play a world."""
    return _player(algorithm, env, num_steps, num_envs)(params, jax.random.key(seed))


@functools.cache
def _player(algorithm, env, num_steps, num_envs):
    groups = describe(env).groups
    actor = Policies(dict.fromkeys(groups, algorithm), groups)
    vectorised = Vectorised(env, num_envs, with_state=algorithm.traits.needs_global_state)

    def play(params, key):
        worlds = vectorised.reset(key)
        memory = actor.initial_memory(params, num_envs)
        after, last, steps = rollout(vectorised, actor, params, worlds, memory, num_steps)
        return make_experience(steps, memory, after.observation, last)

    return jax.jit(play)


def by_hand(
    reward, log_prob=-math.log(2), value=0.0, action=None, final_value=0.0, terminated=False, truncated=False, **seen
):
    """The track of a group that sees nothing, from `[T, E, n]` numbers or one for all; flags are `[T, E]`.

    seen: masks of the observation, `[T + 1, E, n]`.
    """
    reward = jnp.asarray(reward, jnp.float32)
    shape = reward.shape
    masks = {name: jnp.asarray(mask, bool) for name, mask in seen.items()}

    def full(numbers):
        return jnp.broadcast_to(jnp.asarray(numbers, jnp.float32), shape)

    track = Trajectory(
        observation=Observation(jnp.zeros((*shape, 1)), **{name: mask[:-1] for name, mask in masks.items()}),
        action=jnp.zeros(shape, jnp.int32) if action is None else jnp.asarray(action, jnp.int32),
        reward=reward,
        extras={"log_prob": full(log_prob), "value": full(value)},
        final_value=full(final_value),
        memory=(),
        last_observation=Observation(jnp.zeros((*shape[1:], 1)), **{name: mask[-1] for name, mask in masks.items()}),
        last_memory=(),
    )
    flags = [jnp.broadcast_to(jnp.asarray(flag, bool), shape[:2]) for flag in (False, terminated, truncated)]
    return track, flags


def experience_by_hand(**tracks):
    """Experience of the tracks that `by_hand` made; the flags are those of the first."""
    first, terminated, truncated = next(iter(tracks.values()))[1]
    return Experience({name: track for name, (track, _) in tracks.items()}, first, terminated, truncated)


def blank(algorithm, sizes, value, seed=0):
    """A learner whose two actions are as likely as each other and whose every critic says `value`, whatever is seen."""
    groups = {name: Group(size, Discrete(2), Box((1,))) for name, size in sizes.items()}
    state = algorithm.init(jax.random.key(seed), LearnerSpec(groups, None))
    params = {}
    for name, policy in state.params.items():
        weights = jax.tree.map(jnp.zeros_like, policy.weights)
        weights["params"]["value_head"]["bias"] += value
        params[name] = policy.replace(weights=weights)
    return state.replace(params=params)
