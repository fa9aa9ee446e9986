"""An algorithm and a torso of one's own train, resume, sweep, join populations and the cluster like those that ship."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal.cluster.plan import ClusterPlan
from shoal.cluster.run import Cluster
from shoal.cluster.tasks.pool import PoolConfig
from shoal.cluster.transport.launcher import ThreadLauncher
from shoal.networks import MemoryTorso, Network
from shoal.populations.league import ROLES
from shoal.populations.pbt.plan import PBT, Range
from shoal.populations.population import PopulationConfig
from shoal.populations.psro import PSRO
from shoal.presets import resolve
from shoal.training.run import load_policies, open_run
from shoal.training.runner import Local, resume, run
from shoal.training.sweep import Sweep, summarise
from tests.docs.guides import Guide


class Average(MemoryTorso):
    """What was seen, averaged over the episode so far."""

    decay: float = 0.5

    def __call__(self, seen, memory):
        mean = self.decay * memory["mean"] + (1 - self.decay) * seen
        return jnp.append(mean, memory["age"] / 10), {"mean": mean, "age": memory["age"] + 1}

    def initial_memory(self):
        return {"mean": jnp.zeros(11), "age": jnp.float32(0)}


@pytest.fixture(params=["algorithm", "torso"])
def own(request):
    """Either REINFORCE as the guide has it, which uses nothing of ours, or A2C with a torso that remembers."""
    names = {"__name__": "guide"}
    guide = Guide("your-own-algorithm.md")
    guide.run(names, guide.block("class Reinforce("))
    shoal.register_torso("average")(Average)
    if request.param == "algorithm":
        return names["Reinforce"]()
    return shoal.A2C(network=Network(torso="average", torso_options={"decay": 0.25}, hidden=(4,)))


HERE = Local(devices=1)
SIZES = {"num_envs": 8, "num_steps": 4}


def kuhn(algorithm, updates, **changes):
    learners = {"player": shoal.Learner(algorithm)}
    total = 32 * updates
    return shoal.Experiment("cards/kuhn", learners=learners, total_env_steps=total, **SIZES, **changes)


def assert_close(one, other, tolerance=0.0):
    """Trees of the same weights, to the bit unless told otherwise."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for ours, theirs in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance)


def test_trained_resumed_and_evaluated(own, tmp_path):
    whole = run(kuhn(own, 4), on=Local(1))
    run(kuhn(own, 2), tmp_path / "run", on=Local(1))
    assert open_run(tmp_path / "run").experiment == kuhn(own, 2)
    resumed = resume(tmp_path / "run", on=HERE, total_env_steps=4 * 32)
    assert_close(resumed.policies, whole.policies)
    setup, stored, _ = load_policies(tmp_path / "run")
    assert_close(stored, whole.policies)
    played = [shoal.evaluate(setup, policies, episodes=16) for policies in (stored, whole.policies)]
    assert_close(played[0].returns, played[1].returns)


def test_swept(own, tmp_path):
    plan = Sweep(kuhn(own, 2), {"learning_rate": (1e-4, 1e-2)})
    result = summarise(plan, run(plan, tmp_path / "sweep", on=HERE))
    assert [point.values for point in result.points] == [{"learning_rate": 1e-4}, {"learning_rate": 1e-2}]
    assert all(failure is None for point in result.points for failure in point.failures)


class Stop(shoal.Callback):
    """Stops a run after two updates."""

    def on_update(self, event):
        if event.update == 2:
            event.stop()


@pytest.mark.parametrize("own", ["algorithm", pytest.param("torso", marks=pytest.mark.slow)], indirect=True)
def test_tuned_while_members_train(own, tmp_path):
    rates = {"learning_rate": Range(1e-4, 1e-1, log=True)}
    plan = PBT(kuhn(own, 8), rates, members=4, interval=2, fraction=0.5, measure="return/player_0")
    whole = run(plan, on=HERE)
    stopped = run(plan, tmp_path / "run", on=HERE, callbacks=Stop())
    resumed = resume(tmp_path / "run", on=HERE)
    assert (stopped.interrupted, resumed.update) == (True, 8)
    assert_close(resumed.policies, whole.policies)
    assert resumed.standing == whole.standing
    assert stopped.standing["values"] != whole.standing["values"], "bad members became copies, with other values"


def test_synchronous_actors_make_the_same_weights(own, tmp_path):
    on = Cluster(plan=ClusterPlan(actors=2), launcher=ThreadLauncher())
    result = run(kuhn(own, 3), tmp_path / "run", on=on)
    assert_close(result.policies, run(kuhn(own, 3), on=Local(1)).policies, 1e-6)


def settings(algorithm):
    experiment = resolve("psro/kuhn")
    learners = {name: dataclasses.replace(one, algorithm=algorithm) for name, one in experiment.learners.items()}
    experiment = dataclasses.replace(experiment, learners=learners, total_env_steps=64, **SIZES)
    return PopulationConfig(experiment, PSRO(iterations=1, episodes=16))


@pytest.mark.parametrize("own", ["algorithm", pytest.param("torso", marks=pytest.mark.slow)], indirect=True)
def test_a_population_grows_and_is_opened_again(own, tmp_path):
    state = run(settings(own), tmp_path / "run", on=HERE).standing["state"]
    assert [len(bank) for bank in state.banks.values()] == [2, 2]
    again = resume(tmp_path / "run", on=HERE).standing["state"]
    np.testing.assert_array_equal(again.table.total, state.table.total)
    assert_close([bank.policies for bank in again.banks.values()], [bank.policies for bank in state.banks.values()])


@pytest.mark.slow
@pytest.mark.parametrize("own", ["algorithm", "torso"], indirect=True)
def test_a_league_of_all_roles(own, tmp_path):
    league = PSRO("league", {"exploit_every": 1}, iterations=1, episodes=16)
    state = run(dataclasses.replace(settings(own), psro=league), tmp_path / "run", on=HERE).standing["state"]
    for bank in state.banks.values():
        assert [member.info.get("role", "main") for member in bank.members] == ["main", *ROLES]
        weights = [np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(bank[i])]) for i in range(len(bank))]
        assert len({one.tobytes() for one in weights}) == 4, "all were trained"
    assert np.isfinite(state.table.mean).all()
    again = resume(tmp_path / "run", on=HERE).standing["state"]
    np.testing.assert_array_equal(again.table.total, state.table.total)


@pytest.mark.slow
def test_a_population_by_tasks_is_that_of_one_machine(own, tmp_path):
    here = run(settings(own), on=HERE).standing["state"]
    on = Cluster(pool=PoolConfig(workers=1), launcher=ThreadLauncher())
    there = run(settings(own), tmp_path / "run", on=on).standing["state"]
    for name, bank in here.banks.items():
        assert_close(there.banks[name].policies, bank.policies, 1e-6)
