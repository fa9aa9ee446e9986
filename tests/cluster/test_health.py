"""Copies that give NaN: restarted and counted; only those that keep doing so are left out."""

import dataclasses
import json
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import Discrete, Env, Group, Observation, Outcome, register
from shoal.algorithms import PPO, Impala
from shoal.cluster.plan import ClusterPlan
from shoal.cluster.run import Cluster
from shoal.cluster.transport.launcher import ThreadLauncher
from shoal.cluster.workers import rollouts
from shoal.cluster.workers.rollouts import EnvShare, Share
from shoal.networks.torsos import Network
from shoal.training.experiment import Experiment, Learner
from shoal.training.fused import policies_of
from shoal.training.health import Health
from shoal.training.runner import run


@register("test/shaky")
@dataclasses.dataclass(frozen=True)
class Shaky(Env):
    """An agent on a line, in episodes without end. Now and then it is nowhere, and stays there."""

    rate: float = 0.004
    kind: ClassVar[str] = "cooperative"

    @property
    def groups(self):
        return {"walker": Group(1, Discrete(3))}

    def reset(self, key, params):
        return jax.random.normal(key)

    def step(self, key, state, actions, params):
        lost = jax.random.uniform(key) < self.rate
        state = jnp.where(lost, jnp.nan, state + 0.1 * (actions["walker"][0] - 1.0))
        no = jnp.bool_(False)
        return state, Outcome({"walker": -jnp.abs(state)[None]}, no, no)

    def observe(self, state, params):
        return {"walker": Observation(state[None, None])}


def experiment(algorithm, updates=20, num_envs=8, num_steps=16, **options):
    learner = Learner(algorithm(network=Network(hidden=(8,))))
    sizes = {"num_envs": num_envs, "num_steps": num_steps, "total_env_steps": num_envs * num_steps * updates}
    return Experiment("test/shaky", env_options=options, learners={"learner": learner}, **sizes)


def test_what_is_forgiven_and_what_is_not():
    health = Health(3, 0.05)
    for turn in range(1, 401):
        # One always gives it, one in every 25th turn, one in every 10th.
        health.turn(np.array([False, turn % 25 != 0, turn % 10 != 0]) | health.out)
        if turn in (9, 10):
            assert health.out.tolist() == [turn == 10, False, False]
    assert health.out.tolist() == [True, False, True]
    assert health.resets == 10 + 16 + 18  # the last: 1 at first, then 1 - 9 * 0.05 more each time


def test_a_world_that_gave_nan_begins_anew_and_is_learnt_from_again():
    plan = experiment(PPO)
    program = rollouts.program_of(plan)
    policies = jax.device_get(policies_of(program.init().learners))
    held, learnt = EnvShare(program, Share(0, 8)), []
    for _ in range(30):
        made, sound = held.roll(policies)
        whole = jax.tree.map(lambda leaf, sound=sound: leaf[:, sound], made.steps.replace(episodes=None, metrics={}))
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(whole))
        learnt.append(sound)
    share = np.mean(learnt)
    assert 0.88 < share < 0.98  # 0.996 ** 16 is 0.938
    assert held.resets == np.size(learnt) - np.sum(learnt)
    assert not held.out.any()


@pytest.mark.parametrize(("recipe", "algorithm"), [("sync", PPO), ("seed", Impala), ("ddppo", PPO)])
def test_runs_in_worlds_that_give_nan_now_and_then_end_with_all_updates(tmp_path, recipe, algorithm):
    plan = ClusterPlan(recipe) if recipe == "ddppo" else ClusterPlan(recipe, actors=1)
    result = run(experiment(algorithm), tmp_path / "run", on=Cluster(plan=plan, launcher=ThreadLauncher()))
    assert result.update == 20
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.policies))
    workers = json.loads((tmp_path / "run" / "cluster.json").read_text())["workers"].values()
    assert sum(worker["nan_resets"] for worker in workers) >= 3
    assert not any(worker["quarantined"] for worker in workers)
