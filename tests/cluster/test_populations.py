"""Populations by tasks: the results of one machine, whoever dies meanwhile."""

import dataclasses
import hashlib
import json

import jax
import numpy as np
import pytest
from shooting import shooting

from shoal.algorithms import PPO
from shoal.cluster.tasks import populations
from shoal.cluster.tasks.pool import PoolConfig
from shoal.cluster.transport.launcher import ThreadLauncher
from shoal.networks.torsos import Network
from shoal.populations import psro_run
from shoal.populations.psro import PSRO
from shoal.populations.psro_run import PSROSettings
from shoal.presets import resolve

TINY = PPO(minibatches=2, epochs=1, gamma=1.0, network=Network(hidden=(8,), share_torso=True))


def settings(**changes) -> PSROSettings:
    experiment = resolve("psro/kuhn")
    learners = {name: dataclasses.replace(learner, algorithm=TINY) for name, learner in experiment.learners.items()}
    experiment = dataclasses.replace(
        experiment, learners=learners, num_envs=32, num_steps=4, total_env_steps=32 * 4 * 3
    )
    plan = PSRO(iterations=changes.pop("iterations", 1), episodes=64, **changes.pop("psro", {}))
    return PSROSettings(experiment, plan, **changes)


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
    state = populations.psro_on_cluster(settings(), tmp_path / "run", PoolConfig(workers=2), ThreadLauncher())
    same(state, psro_run.start(settings(), devices=1))
    told = json.loads((tmp_path / "run" / "cluster.json").read_text())
    assert told["services"]["board"] | {"handed": 2 + 1 + 3, "open": 0, "done": 0} == told["services"]["board"]
    assert not list((tmp_path / "run" / "tasks").glob("*.npz"))  # safe in the checkpoint
    restored = psro_run.resume_psro(tmp_path / "run", devices=1)
    assert fingerprint(restored) == fingerprint(state)


def test_what_was_done_before_the_driver_died_is_not_done_again(tmp_path, monkeypatch):
    whole = populations.psro_on_cluster(settings(), tmp_path / "whole", PoolConfig(workers=1), ThreadLauncher())

    save = psro_run.save

    def full(folder, state):
        if state.iteration:
            raise OSError("disk full")
        save(folder, state)

    with monkeypatch.context() as patched:
        patched.setattr(psro_run, "save", full)
        with pytest.raises(OSError, match="disk full"):
            populations.psro_on_cluster(settings(), tmp_path / "run", PoolConfig(workers=1), ThreadLauncher())
    state = populations.resume_psro_on_cluster(tmp_path / "run", PoolConfig(workers=1), ThreadLauncher())
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
    state = populations.psro_on_cluster(chosen, tmp_path / "run", PoolConfig(workers=2), ThreadLauncher())
    same(state, psro_run.start(chosen, devices=1))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_nothing_is_lost_whoever_is_shot(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(populations, "EPISODES", 100)
    chosen = settings(iterations=3)
    undisturbed = populations.psro_on_cluster(chosen, tmp_path / "calm", PoolConfig(workers=2), ThreadLauncher())
    launcher = ThreadLauncher()
    with shooting(launcher, ["board", "worker-0", "worker-1"], seed, shots=4, apart=(1, 4)) as killed:
        state = populations.psro_on_cluster(chosen, tmp_path / "shot", PoolConfig(workers=2), launcher)
    assert killed
    assert fingerprint(state) == fingerprint(undisturbed)
    assert fingerprint(psro_run.resume_psro(tmp_path / "shot", devices=1)) == fingerprint(undisturbed)


@pytest.mark.slow
def test_by_processes(tmp_path):
    pytest.importorskip("ray")
    from shoal.cluster.transport.ray_launcher import RayLauncher

    team = PoolConfig(workers=2)
    state = populations.psro_on_cluster(settings(), tmp_path / "run", team, RayLauncher("local", team.needs))
    same(state, psro_run.start(settings(), devices=1))
