"""Population-based training by tasks: the members of one machine, whoever dies meanwhile."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from shooting import shooting

from shoal.cluster.history import read_cluster_history
from shoal.cluster.run import Cluster
from shoal.cluster.tasks.pool import PoolConfig
from shoal.cluster.transport.launcher import ThreadLauncher
from shoal.populations.pbt.plan import PBT, Range
from shoal.presets import resolve
from shoal.training.runner import Local, resume, run


def plan(updates: int = 5) -> PBT:
    experiment = resolve("control/cartpole")
    experiment = dataclasses.replace(experiment, num_envs=8, num_steps=32, total_env_steps=8 * 32 * updates)
    return PBT(experiment, {"learning_rate": Range(1e-4, 1e-2, log=True)}, members=4, interval=2)


def leaves(result):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(result.policies)]


def test_the_members_of_one_machine(tmp_path):
    result = run(plan(), tmp_path / "run", on=Cluster(pool=PoolConfig(workers=2), launcher=ThreadLauncher()))
    ours = run(plan(), on=Local(devices=1))
    assert (result.update, result.standing["member"]) == (5, ours.standing["member"])
    np.testing.assert_allclose(result.standing["scores"], ours.standing["scores"], rtol=1e-4)
    np.testing.assert_allclose(*(one.standing["values"]["learning_rate"] for one in (result, ours)), rtol=1e-5)
    for one, other in zip(leaves(result), leaves(ours), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5, rtol=1e-5)
    sources = [[line["pbt/source"] for line in each.lines] for each in (result, ours)]
    assert sources[0] == sources[1]
    assert any(source != [0, 1, 2, 3] for source in sources[0])  # somebody was copied
    told = json.loads((tmp_path / "run" / "cluster.json").read_text())
    assert told["services"]["board"]["handed"] == 3 * 4  # stretches of 2, 2 and 1 updates
    *_, last = read_cluster_history(tmp_path / "run")
    assert (last["queues"], last["restarts"]) == ({"board": 0}, 0)
    assert resume(tmp_path / "run", on=Local(devices=1)).standing["member"] == result.standing["member"]


@pytest.mark.slow
def test_whoever_is_shot_the_members_are_the_same(tmp_path):
    calm = run(plan(12), tmp_path / "calm", on=Cluster(pool=PoolConfig(workers=2), launcher=ThreadLauncher()))
    launcher = ThreadLauncher()
    with shooting(launcher, ["board", "worker-0", "worker-1"], seed=0, shots=4, apart=(2, 6)) as killed:
        shot = run(plan(12), tmp_path / "shot", on=Cluster(pool=PoolConfig(workers=2), launcher=launcher))
    assert killed
    assert calm.standing["scores"] == shot.standing["scores"]
    assert all((one == other).all() for one, other in zip(leaves(calm), leaves(shot), strict=True))
