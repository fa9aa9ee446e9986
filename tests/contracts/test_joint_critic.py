"""One learner, two groups with different views and actions, one critic over both."""

import jax
import numpy as np
import pytest

from shoal.core.registry import register
from shoal.training.experiment import Experiment, Learner
from shoal.training.runner import Local, run
from tests.contracts.joint_critic import JointCritic
from tests.worlds.two_teams import TwoTeams

register("test/two_teams", TwoTeams)


@pytest.mark.slow
def test_a_joint_critic_trains_two_different_groups():
    experiment = Experiment(
        "test/two_teams", learners={"team": Learner(JointCritic())}, num_envs=128, num_steps=20, total_env_steps=400_000
    )
    _, spec = experiment.setup.learners["team"]
    assert set(spec.groups) == {"scout", "carrier"}
    result = run(experiment, on=Local(devices=1))
    first, last = result.lines[0], result.lines[-1]
    assert last["value_loss"] < first["value_loss"]
    # Both groups are paid the same; standing still costs about 33, the learnt policy well under half of it.
    assert last["return"] > 0.5 * first["return"]
    # Each group's policy has its own shape, and the critic's weights are not a policy's.
    shapes = {name: p.weights["params"]["Dense_0"]["kernel"].shape for name, p in result.policies.items()}
    assert shapes == {"scout": (32, 3), "carrier": (32, 1)}
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.policies))
