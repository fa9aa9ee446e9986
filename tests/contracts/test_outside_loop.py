"""A plain Python loop that calls `act` and `update` from outside, as a cluster's actors and learners will.

Two "actors" each hold half of the copies and step them one call at a time; the learner joins their experience. The
weights are the fused program's.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.algorithms import PPO
from shoal.batching.policies import Policies
from shoal.batching.rollout import Step, make_experience, step
from shoal.networks.torsos import Network
from shoal.training.experiment import Experiment, Learner
from shoal.training.fused import make_fused_program

UPDATES = 5


def stack(trees, axis):
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves], axis), *trees)


def join(a, b, axis):
    return jax.tree.map(lambda x, y: np.concatenate([x, y], axis), a, b)


def join_experience(a, b):
    """Two actors' experience as one: time-major leaves join along axis 1, the others along axis 0."""
    tracks = {}
    for name, left in a.trajectories.items():
        right = b.trajectories[name]
        timed = ("observation", "action", "reward", "extras", "final_value")
        whole = {f: join(getattr(left, f), getattr(right, f), 1) for f in timed}
        whole |= {
            f: join(getattr(left, f), getattr(right, f), 0) for f in ("memory", "last_observation", "last_memory")
        }
        tracks[name] = left.replace(**whole)
    flags = {f: join(getattr(a, f), getattr(b, f), 1) for f in ("first", "terminated", "truncated")}
    return a.replace(trajectories=tracks, **flags)


class OutsideActor:
    """Half of the copies, one jitted step at a time, everything else on the host."""

    def __init__(self, setup, key, ids, policies):
        self.vectorised = setup.vectorised(len(ids))
        self.actor = Policies(setup.algorithms, setup.spec.groups)
        self.worlds = self.vectorised.reset(key, ids)
        self.memory = self.actor.initial_memory(policies, len(ids))
        self.step = jax.jit(
            lambda policies, worlds, memory: step(self.vectorised, self.actor, policies, worlds, memory)
        )

    def collect(self, policies, num_steps):
        before, steps = jax.device_get(self.memory), []
        for _ in range(num_steps):
            self.worlds, self.memory, record = self.step(policies, self.worlds, self.memory)
            steps.append(record)
        stacked: Step = stack(steps, 0)
        return jax.device_get(make_experience(stacked, before, self.worlds.observation, self.memory))


@pytest.mark.parametrize(
    ("world", "recurrent"), [("mpe/simple_spread", "none"), pytest.param("tag/grid", "gru", marks=pytest.mark.slow)]
)
def test_outside_equals_fused(world, recurrent):
    algorithm = PPO(minibatches=2, epochs=2, network=Network(hidden=(16,), recurrent=recurrent, recurrent_size=8))
    experiment = Experiment(world, learners={"l": Learner(algorithm)}, num_envs=8, num_steps=32, seed=7)
    program = make_fused_program(experiment, devices=1)
    carry = program.init()
    start = jax.device_get(carry.learners["l"])
    fused, _ = program.advance(carry, program.counts[UPDATES])

    setup = experiment.setup
    world_key, _, update_key = jax.random.split(jax.random.key(jnp.uint32(7)), 3)
    learner = jax.tree.map(jnp.asarray, start)
    halves = jnp.arange(8, dtype=jnp.uint32).reshape(2, 4)
    actors = [OutsideActor(setup, world_key, ids, learner.params) for ids in halves]
    update = jax.jit(algorithm.update)
    for i in range(UPDATES):
        whole = join_experience(*(actor.collect(learner.params, 32) for actor in actors))
        key = jax.random.fold_in(jax.random.fold_in(update_key, i), 0)
        learner, _ = update(learner, whole, key)

    expected = jax.device_get(fused.learners["l"])
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), start.params, expected.params)
    assert max(jax.tree.leaves(moved)) > 1e-4, "training must have changed something"
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6), learner.params, expected.params)
