"""Learners that average gradients: equal to one learner, whole again after any death, not held up by the slowest."""

import dataclasses
import functools
import json
import threading

import jax
import numpy as np
import pytest
from shooting import Killer, disturbed

from shoal.algorithms import A2C, DQN, PPO, PQN, Impala
from shoal.cluster import training as runner
from shoal.cluster.plan import ClusterPlan
from shoal.cluster.run import Cluster
from shoal.cluster.transport.launcher import ThreadLauncher
from shoal.cluster.workers import rollouts
from shoal.cluster.workers.group import GroupLearning, Rendezvous
from shoal.cluster.workers.learner import Learning
from shoal.cluster.workers.rollouts import EnvShare, Share
from shoal.cluster.workers.segments import Segments, pad_rollout
from shoal.core.errors import OptionError
from shoal.networks.torsos import Network
from shoal.presets import resolve
from shoal.training.experiment import Experiment, Learner
from shoal.training.fused import policies_of
from shoal.training.metrics import read_metrics
from shoal.training.runner import Local, run


def of(env, updates=5, num_envs=8, num_steps=8, recurrent="none", algorithm=PPO):
    network = Network(hidden=(16,), recurrent=recurrent, recurrent_size=8)
    learners = {"learner": Learner(algorithm(network=network))}
    return Experiment(env, {}, (), learners, num_envs, num_steps, num_envs * num_steps * updates)


def largest_difference(one, other):
    found = jax.tree.map(lambda a, b: float(np.max(np.abs(np.asarray(a) - np.asarray(b)))), one, other)
    return max(jax.tree.leaves(found))


def weights(policies):
    return {name: policy.weights for name, policy in policies.items()}


def test_all_meet_and_a_newcomer_ends_the_group():
    meeting, found = Rendezvous(2), {}

    def join(rank, token):
        found[token] = meeting.join(rank, token, f"address of {token}", 5.0)

    threads = [threading.Thread(target=join, args=(rank, f"{rank}a")) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"0a": (1, "address of 0a"), "1a": (1, "address of 0a")}
    assert meeting.whole(1)
    assert meeting.join(1, "1b", "address of 1b", 0.0) is None  # learner-1 died, and is back
    assert not meeting.whole(1)  # so learner-0 ends itself, and comes back too
    assert meeting.join(0, "0b", "address of 0b", 0.0) == (2, "address of 0b")
    assert meeting.join(1, "1b", "address of 1b", 0.0) == (2, "address of 0b")
    assert meeting.whole(2)


def test_one_who_dies_while_waiting_is_replaced():
    meeting = Rendezvous(2)
    assert meeting.join(0, "0a", "a", 0.0) is None
    assert meeting.join(0, "0b", "b", 0.0) is None
    assert meeting.join(1, "1a", "c", 0.0) == (1, "b")


def test_a_meeting_that_died_learns_from_its_members():
    meeting = Rendezvous(2)
    assert meeting.whole(7)
    assert meeting.join(0, "0c", "c", 0.0) is None
    assert not meeting.whole(7)
    assert meeting.join(1, "1c", "d", 0.0) == (8, "c")


def test_enough_have_finished():
    meeting = Rendezvous(3)
    assert not meeting.enough(0, 1, 0, False, 2)
    assert not meeting.enough(0, 1, 0, True, 2)
    assert not meeting.enough(0, 1, 0, True, 2)  # said twice, counted once
    assert meeting.enough(1, 1, 0, True, 2)
    assert meeting.enough(2, 1, 0, False, 2)  # the third may stop
    assert not meeting.enough(1, 1, 1, False, 2)  # a new rollout
    assert meeting.enough(2, 1, 0, False, 2)  # who is still at the old one may stop
    assert not meeting.enough(1, 2, 0, False, 2)  # a new group


@pytest.mark.parametrize(("env", "recurrent"), [("mpe/simple_spread", "gru"), ("control/cartpole", "none")])
def test_a_rollout_that_ended_early_teaches_what_a_short_one_does(env, recurrent):
    """Of 8 steps 4 are made: the update is that of a rollout of 4 steps, whatever stands in the other rows."""
    long, short = of(env, recurrent=recurrent), of(env, num_steps=4, recurrent=recurrent)
    policies = policies_of(rollouts.program_of(short).init().learners)
    calls = []

    def enough(finished):
        calls.append(finished)
        return len(calls) == 2

    segments = Segments(long, Share(0, 8), 4)
    cut, healthy = segments.roll(policies, enough)
    assert segments.made == 4
    assert healthy.all()
    assert cut.steps.first.shape == (8, 8)
    assert not np.any(cut.steps.observation["agent"].active[4:])
    assert np.all(cut.steps.truncated[3])
    whole, _ = EnvShare(rollouts.program_of(short), Share(0, 8)).roll(policies)
    made = {}
    for name, experiment, rollout in (("cut", long, cut), ("whole", short, whole)):
        learning = Learning(experiment, 1)
        learners, tripped = learning.fresh()
        if name == "cut":
            rollout = junk_in_rows_not_made(rollout)
        learners, _, _ = learning.learn(learners, tripped, np.int32(0), learning.put_on_devices(rollout))
        made[name] = jax.device_get(policies_of(learners))
    assert largest_difference(weights(made["cut"]), weights(made["whole"])) < 1e-6
    assert largest_difference(weights(made["cut"]), weights(jax.device_get(policies))) > 1e-4  # it did learn


def junk_in_rows_not_made(made):
    def junk(leaf):
        leaf = np.array(leaf)
        leaf[4:] = 100.0
        return leaf

    return made.replace(steps=made.steps.replace(reward=jax.tree.map(junk, made.steps.reward)))


def test_a_whole_rollout_is_not_changed_by_masks():
    experiment = of("control/cartpole")
    policies = policies_of(rollouts.program_of(experiment).init().learners)
    whole, _ = EnvShare(rollouts.program_of(experiment), Share(0, 8)).roll(policies)
    same = pad_rollout(whole, {}, 8)
    assert np.all(same.steps.observation["agent"].present)
    np.testing.assert_array_equal(same.steps.truncated, whole.steps.truncated)
    np.testing.assert_array_equal(same.steps.reward["agent"], whole.steps.reward["agent"])


def run_with_hooks(tmp_path, experiment, plan, *hooks, launcher=None):
    _, result = disturbed(tmp_path, experiment, plan, *hooks, launcher=launcher)
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [line["update"] for line in lines] == list(range(1, experiment.num_updates + 1))
    assert all(line["staleness_max"] == 0.0 for line in lines)
    return result, json.loads((tmp_path / "run" / "cluster.json").read_text())


def test_one_learner_is_the_fused_runner(tmp_path):
    experiment = of("control/cartpole")
    result, status = run_with_hooks(tmp_path, experiment, ClusterPlan("ddppo", learners=1))
    assert largest_difference(result.policies, run(experiment, on=Local(devices=1)).policies) < 1e-6
    assert sorted(status["messages"]) == ["coordinator", "meeting"]  # no weights and no rollouts are sent anywhere


@pytest.mark.parametrize("victim", ["learner-0", "coordinator", "meeting"])
def test_whoever_dies_the_run_ends_with_all_updates(tmp_path, victim):
    killer = Killer(victim, 3, 20)
    plan = ClusterPlan("ddppo", learners=1, commit_seconds=0.05)
    result, _ = run_with_hooks(tmp_path, of("control/cartpole", 60), plan, killer)
    assert result.update == 60
    assert not killer.updates


def test_a_group_of_one_is_plain_learning():
    experiment = of("control/cartpole")
    one, other = GroupLearning(experiment, 1), Learning(experiment, 1)
    assert largest_difference(one.fresh()[0], other.fresh()[0]) == 0.0


def test_what_cannot_work_is_refused(tmp_path):
    with pytest.raises(OptionError, match=r"num_envs must be a multiple of 12 .3 learners x 4 minibatches.*Try 12"):
        run(
            of("control/cartpole"),
            tmp_path / "a",
            on=Cluster(plan=ClusterPlan("ddppo", learners=3), launcher=ThreadLauncher()),
        )
    with pytest.raises(OptionError, match="backups must be less than the number of learners, 2, got 2"):
        run(
            of("control/cartpole"),
            tmp_path / "b",
            on=Cluster(plan=ClusterPlan("ddppo", learners=2, backups=2), launcher=ThreadLauncher()),
        )
    with pytest.raises(OptionError, match=r"ddppo wait for each other .*, got eval_every 100"):
        runner.check(of("control/cartpole").replace(eval_every=100), ClusterPlan("ddppo", learners=1))
    assert runner.needs(ClusterPlan("ddppo", actors=7, learners=3, backups=1)) == {"CPU": 3.0}


@pytest.mark.slow
def test_two_learners_equal_one(tmp_path, monkeypatch):
    """In processes that compile as users' do: what these tests set compiles in haste, and rounds differently.

    In haste two learners are 1.01e-6 from one, and so are two devices of the fused runner from one of its devices.
    """
    from shoal.cluster.transport.ray_launcher import RayLauncher

    monkeypatch.delenv("XLA_FLAGS", raising=False)
    experiment = dataclasses.replace(resolve("mpe/simple_spread"), num_envs=16, num_steps=8, total_env_steps=5 * 128)
    made = {}
    for learners in (1, 2):
        plan = ClusterPlan("ddppo", learners=learners)
        launcher = RayLauncher("local", runner.needs(plan))
        result, _ = run_with_hooks(tmp_path / str(learners), experiment, plan, launcher=launcher)
        made[learners] = weights(result.policies)
    assert largest_difference(made[1], made[2]) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["learner-0", "learner-1"])
def test_a_group_that_lost_a_member_begins_anew(tmp_path, victim):
    from shoal.cluster.transport.ray_launcher import RayLauncher

    plan = ClusterPlan("ddppo", learners=2, backups=1, commit_seconds=0.2)
    launcher, killer = RayLauncher("local", runner.needs(plan)), Killer(victim, 5)
    result, status = run_with_hooks(tmp_path, of("control/cartpole", 190), plan, killer, launcher=launcher)
    assert result.update == 190
    assert not killer.updates
    assert status["services"]["meeting"]["generation"] >= 2


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [A2C, Impala, PQN])
def test_whatever_learns_from_rollouts_alone_can_learn_in_a_group(tmp_path, algorithm):
    experiment = of("mpe/simple_spread", algorithm=algorithm)
    result = run(
        experiment, tmp_path / "run", on=Cluster(plan=ClusterPlan("ddppo", learners=1), launcher=ThreadLauncher())
    )
    assert largest_difference(result.policies, run(experiment, on=Local(devices=1)).policies) < 1e-6


@pytest.mark.parametrize("algorithm", [DQN, functools.partial(PQN, mixer="monotonic")])
def test_who_needs_more_than_rollouts_is_refused(algorithm):
    with pytest.raises(OptionError, match=r"recipe ddppo needs .*, but \w+ does not. Choose --algo a2c or impala or"):
        runner.check(of("mpe/simple_spread", algorithm=algorithm), ClusterPlan("ddppo", learners=1))
