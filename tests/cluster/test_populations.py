"""Populations by tasks: the results of one machine, whoever dies meanwhile."""

import dataclasses
import hashlib
import json

import jax
import numpy as np
import pytest
from shooting import shooting

from shoal.algorithms import PPO
from shoal.cluster.run import Cluster
from shoal.cluster.tasks import populations
from shoal.cluster.tasks.pool import PoolConfig
from shoal.cluster.transport.launcher import ThreadLauncher
from shoal.networks.torsos import Network
from shoal.populations.population import PopulationConfig
from shoal.populations.psro import PSRO
from shoal.presets import resolve
from shoal.training import checkpoint
from shoal.training.runner import Local, resume, run

TINY = PPO(minibatches=2, epochs=1, gamma=1.0, network=Network(hidden=(8,), share_torso=True))


def settings(**changes) -> PopulationConfig:
    experiment = resolve("psro/kuhn")
    learners = {name: dataclasses.replace(learner, algorithm=TINY) for name, learner in experiment.learners.items()}
    experiment = dataclasses.replace(
        experiment, learners=learners, num_envs=32, num_steps=4, total_env_steps=32 * 4 * 3
    )
    plan = PSRO(iterations=changes.pop("iterations", 1), episodes=64, **changes.pop("psro", {}))
    return PopulationConfig(experiment, plan, **changes)


def policies(state):
    return [np.asarray(leaf) for bank in state.banks.values() for leaf in jax.tree.leaves(bank.policies)]


def fingerprint(state) -> str:
    """Of banks and payoff table."""
    found = hashlib.sha256()
    for array in (*policies(state), state.table.count, state.table.total, state.table.squares):
        found.update(array.tobytes())
    return found.hexdigest()


def same(one, other):
    np.testing.assert_array_equal(one.table.count, other.table.count)
    np.testing.assert_allclose(one.table.total, other.table.total, atol=1e-6)
    for ours, theirs in zip(policies(one), policies(other), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_the_population_of_one_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(populations, "EPISODES", 100)  # every line-up is a task
    state = run(
        settings(), tmp_path / "run", on=Cluster(pool=PoolConfig(workers=2), launcher=ThreadLauncher())
    ).standing["state"]
    same(state, run(settings(), on=Local(devices=1)).standing["state"])
    told = json.loads((tmp_path / "run" / "cluster.json").read_text())
    assert told["services"]["board"] | {"handed": 2 + 1 + 3, "open": 0, "done": 0} == told["services"]["board"]
    assert not list((tmp_path / "run" / "tasks").glob("*.npz"))  # safe in the checkpoint
    restored = resume(tmp_path / "run", on=Local(devices=1)).standing["state"]
    assert fingerprint(restored) == fingerprint(state)


def test_what_was_done_before_the_driver_died_is_not_done_again(tmp_path, monkeypatch):
    whole = run(
        settings(), tmp_path / "whole", on=Cluster(pool=PoolConfig(workers=1), launcher=ThreadLauncher())
    ).standing["state"]

    save = checkpoint.save

    def full(folder, step, *rest, **options):
        if step and folder.name == "checkpoints":  # of the driver: results of tasks are kept elsewhere
            raise OSError("disk full")
        save(folder, step, *rest, **options)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save", full)
        with pytest.raises(OSError, match="disk full"):
            run(settings(), tmp_path / "run", on=Cluster(pool=PoolConfig(workers=1), launcher=ThreadLauncher()))
    state = resume(tmp_path / "run", on=Cluster(pool=PoolConfig(workers=1), launcher=ThreadLauncher())).standing[
        "state"
    ]
    assert fingerprint(state) == fingerprint(whole)
    assert json.loads((tmp_path / "run" / "cluster.json").read_text())["services"]["board"]["handed"] == 0


KINDS = {
    "last": {"psro": {"meta_solver": "last"}},
    "league": {"psro": {"meta_solver": "league", "solver_options": {"exploit_every": 1}}},
    "pipeline": {"levels": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["last", "league", "pipeline"])
def test_other_populations(tmp_path, kind):
    chosen = settings(**KINDS[kind])
    state = run(chosen, tmp_path / "run", on=Cluster(pool=PoolConfig(workers=2), launcher=ThreadLauncher())).standing[
        "state"
    ]
    same(state, run(chosen, on=Local(devices=1)).standing["state"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_nothing_is_lost_whoever_is_shot(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(populations, "EPISODES", 100)
    chosen = settings(iterations=3)
    undisturbed = run(
        chosen, tmp_path / "calm", on=Cluster(pool=PoolConfig(workers=2), launcher=ThreadLauncher())
    ).standing["state"]
    launcher = ThreadLauncher()
    with shooting(launcher, ["board", "worker-0", "worker-1"], seed, shots=4, apart=(1, 4)) as killed:
        state = run(chosen, tmp_path / "shot", on=Cluster(pool=PoolConfig(workers=2), launcher=launcher)).standing[
            "state"
        ]
    assert killed
    assert fingerprint(state) == fingerprint(undisturbed)
    assert fingerprint(resume(tmp_path / "shot", on=Local(devices=1)).standing["state"]) == fingerprint(undisturbed)


@pytest.mark.slow
def test_by_processes(tmp_path):
    pytest.importorskip("ray")

    team = PoolConfig(workers=2)
    state = run(settings(), tmp_path / "run", on=Cluster("local", pool=team)).standing["state"]
    same(state, run(settings(), on=Local(devices=1)).standing["state"])
