"""Central inference: the rollouts that actors would make themselves, no weights at actors, nothing lost but steps."""

import dataclasses
import json
import threading

import jax
import numpy as np
import pytest
from shooting import Killer, disturbed

from shoal.algorithms import Impala
from shoal.cluster import training as runner
from shoal.cluster.plan import ClusterPlan
from shoal.cluster.run import Cluster
from shoal.cluster.services.dataset import Queue
from shoal.cluster.services.parameters import ParameterService
from shoal.cluster.transport.launcher import ThreadLauncher
from shoal.cluster.workers import inference, rollouts
from shoal.cluster.workers.host_envs import HostEnvShare
from shoal.cluster.workers.inference import InferenceServer
from shoal.cluster.workers.rollouts import EnvShare, Share
from shoal.cluster.workers.stepping import EnvSlices, num_slices
from shoal.cluster.workers.weights import POLICIES, policy_layout
from shoal.core.errors import OptionError
from shoal.networks.torsos import Network
from shoal.training.experiment import Experiment, Learner
from shoal.training.fused import policies_of
from shoal.training.metrics import read_metrics
from shoal.training.runner import run


def of(env, updates=20, num_envs=8, num_steps=4, **options):
    learners = {"learner": Learner(Impala(network=Network(hidden=(16,), **options)))}
    return Experiment(env, {}, (), learners, num_envs, num_steps, num_envs * num_steps * updates)


class Alone:
    """A server with its services, and weights that never change."""

    def __init__(self, experiment, version=3):
        self.launcher, store = ThreadLauncher(), ThreadLauncher().store
        self.experiment, self.program = experiment, rollouts.program_of(experiment)
        self.policies = policies_of(self.program.init().learners)
        handles = {"parameters": self.launcher.start("parameters", ParameterService, store)}
        handles["dataset"] = self.launcher.start("dataset", Queue, 8)
        self.queue = handles["dataset"]
        packed = policy_layout(self.program).pack(self.policies)
        handles["parameters"].once.push(POLICIES, version, packed, 0)
        self.handle = self.launcher.start("inference", InferenceServer, experiment.to_dict(), handles, store)

    def play(self, parts, steps):
        """Steps parts side by side, each in a thread, as actors would."""

        def work(part):
            for _ in range(steps):
                part.step(self.handle.once.act(part.request))
            self.handle.once.act(part.request)  # it says how the last step went

        threads = [threading.Thread(target=work, args=(part,)) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def taken(self, count):
        items = self.queue.once.take(count, 0, None, 0.0)
        assert len(items) == count
        return sorted(items, key=lambda item: (item.round, item.share))


def assert_same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=jax.tree_util.keystr(path))


def without_episodes(made):
    return made.replace(steps=made.steps.replace(episodes=None))


@pytest.mark.parametrize(
    ("env", "recurrent", "anew"), [("mpe/simple_spread", "gru", 0), ("control/cartpole", "none", 2)]
)
def test_the_rollouts_are_those_that_actors_would_make(env, recurrent, anew):
    """Four rollouts of 8 steps go beyond simple_spread's 25, where episodes are cut and final views are valued."""
    experiment = of(env, num_steps=8, recurrent=recurrent, recurrent_size=8)
    alone = Alone(experiment)
    own = EnvShare(alone.program, Share(0, 8, anew))
    parts = EnvSlices(alone.program, "actor-0", Share(0, 8, anew)).parts
    for _ in range(4):
        alone.play(parts, 8)
        items = alone.taken(2)
        assert [(item.maker, item.share, item.version) for item in items] == [("actor-0", 0, 3), ("actor-0", 4, 3)]
        wanted, _ = own.roll(alone.policies)
        found = rollouts.join_rollouts([item.ref for item in items])
        assert_same(without_episodes(found), without_episodes(wanted))
        assert found.steps.episodes.count.sum() == wanted.steps.episodes.count.sum()
    if env == "mpe/simple_spread":
        assert np.any(found.steps.truncated)
        assert np.any(found.steps.final_value["agent"] != 0)
    alone.launcher.stop()


def test_environments_of_the_host_too():
    pytest.importorskip("gymnasium")
    experiment = of("gymnasium:CartPole-v1", num_steps=16, recurrent="none")
    alone = Alone(experiment)
    own = HostEnvShare(alone.program, Share(0, 8))
    halves = EnvSlices(alone.program, "actor-0", Share(0, 8))
    for _ in range(2):
        alone.play(halves.parts, 16)
        found = rollouts.join_rollouts([item.ref for item in alone.taken(2)])
        assert_same(without_episodes(found), without_episodes(own.roll(alone.policies)[0]))
    assert found.steps.terminated.any()
    own.close()
    halves.close()
    alone.launcher.stop()


def test_requests_are_answered_together(monkeypatch):
    monkeypatch.setattr(inference, "PATIENCE", 5.0)
    monkeypatch.setattr(inference, "RECENT", 60.0)
    alone = Alone(of("control/cartpole", num_steps=6, recurrent="none"))
    parts = [EnvSlices(alone.program, f"actor-{i}", Share(i, 1)).parts[0] for i in range(3)]
    alone.play(parts, 12)
    figures = alone.handle.once.figures()
    assert figures["requests"] == 3 * 13
    assert figures["batch"] > 2.0
    assert figures["rollouts"] == 3 * 2
    alone.launcher.stop()


def test_a_request_that_comes_twice_counts_once_and_a_gap_begins_anew():
    alone = Alone(of("control/cartpole", num_steps=3, recurrent="none"))
    part = EnvSlices(alone.program, "actor-0", Share(0, 1)).parts[0]
    for _ in range(3):
        first, again = (alone.handle.once.act(part.request) for _ in range(2))
        assert_same(first, again)
        part.step(first)
    alone.handle.once.act(part.request)
    alone.handle.once.act(part.request)
    assert len(alone.taken(1)) == 1
    actions = alone.handle.once.act(part.request)
    part.step(actions)  # one step that the server hears nothing of, as if it had restarted
    part.step(actions)
    alone.play([part], 3)
    (item,) = alone.taken(1)
    assert int(item.ref.clock) == 6  # steps 4 and 5 are in no rollout
    alone.launcher.stop()


def test_a_full_queue_holds_actors_up():
    alone = Alone(of("control/cartpole", num_steps=1, recurrent="none"))
    part = EnvSlices(alone.program, "actor-0", Share(0, 1)).parts[0]
    for _ in range(8):
        part.step(alone.handle.once.act(part.request))
    alone.handle.once.act(part.request)  # the eighth rollout fills it
    part.step(alone.handle.once.act(part.request))
    assert alone.handle.once.act(part.request) is None
    alone.taken(1)
    assert alone.handle.once.act(part.request) is not None
    assert len(alone.taken(8)) == 8
    alone.launcher.stop()


def test_copies_that_are_sick_are_replaced():
    alone = Alone(of("control/cartpole", num_steps=2, recurrent="none"))
    part = EnvSlices(alone.program, "actor-0", Share(0, 8)).parts[0]
    part.wrong[1] = part.clock
    alone.play([part], 2)
    steps = alone.taken(1)[0].ref.steps
    np.testing.assert_array_equal(steps.observation["agent"].view[:, 1], steps.observation["agent"].view[:, 2])
    alone.launcher.stop()


def run_with_hooks(tmp_path, experiment, plan, *hooks, launcher=None):
    _, result = disturbed(tmp_path, experiment, plan, *hooks, launcher=launcher)
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [line["update"] for line in lines] == list(range(1, experiment.num_updates + 1))
    return result, lines, json.loads((tmp_path / "run" / "cluster.json").read_text())


def test_actors_pull_no_weights_and_staleness_is_measured(tmp_path):
    result, lines, status = run_with_hooks(
        tmp_path, of("control/cartpole", 40, recurrent="none"), ClusterPlan("seed", actors=2)
    )
    assert result.update == 40
    messages = status["messages"]
    assert [name for name in messages["parameters"] if name.startswith("actor")] == []
    assert messages["parameters"]["inference>pull"] >= 1
    assert [name for name in messages["dataset"] if name.startswith("actor")] == []
    assert messages["dataset"]["inference>push"] >= 40 * 4
    assert messages["inference"]["actor>act"] >= 40 * 2 * 2 * 4  # of each half, at each step
    assert max(line["staleness_max"] for line in lines) > 0


@pytest.mark.parametrize("victim", ["inference", "actor-0", "learner-0", "parameters", "dataset", "coordinator"])
def test_whoever_dies_the_run_ends_with_all_updates(tmp_path, victim):
    experiment = of("control/cartpole", 200, recurrent="none")
    killer = Killer(victim, 3, 40, 80)
    plan = ClusterPlan("seed", actors=2, commit_seconds=0.05)
    result, _, _ = run_with_hooks(tmp_path, experiment, plan, killer)
    assert result.update == 200
    assert not killer.updates


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["inference", "actor-1"])
def test_on_ray(tmp_path, victim):
    from shoal.cluster.transport.ray_launcher import RayLauncher

    plan = ClusterPlan("seed", actors=2, commit_seconds=0.2)
    launcher = RayLauncher("local", runner.needs(plan))
    experiment = dataclasses.replace(of("control/cartpole", 180, recurrent="none"), seed=1)
    killer = Killer(victim, 5, 60)
    result, _, status = run_with_hooks(tmp_path, experiment, plan, killer, launcher=launcher)
    assert result.update == 180
    assert not killer.updates
    assert "actor>pull" not in status["messages"]["parameters"]


def test_an_odd_number_of_copies_is_not_cut_in_halves():
    assert [num_slices(copies) for copies in (1, 2, 3, 8)] == [1, 2, 1, 2]


def test_it_is_for_those_who_correct_for_lag_alone(tmp_path):
    experiment = Experiment("control/cartpole", num_envs=8, num_steps=4)
    with pytest.raises(
        OptionError, match=r"recipe seed needs .*traits\.corrects_lag\), but \w+ does not. Choose --algo impala"
    ):
        run(experiment, tmp_path / "run", on=Cluster(plan=ClusterPlan("seed"), launcher=ThreadLauncher()))
