"""Training by services: equal to the fused runner where nobody runs ahead, and never less than all updates."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from shooting import Killer, disturbed

from shoal.algorithms import PQN
from shoal.cluster import training as runner
from shoal.cluster.advice import pool_from_status
from shoal.cluster.history import read_cluster_history
from shoal.cluster.plan import ClusterPlan
from shoal.cluster.run import Cluster
from shoal.cluster.tasks.pool import PoolConfig
from shoal.cluster.transport.launcher import ThreadLauncher
from shoal.cluster.transport.service import WorkerError
from shoal.core.errors import OptionError, RunError, ShoalError
from shoal.presets import resolve
from shoal.training import checkpoint
from shoal.training.experiment import Experiment, Learner
from shoal.training.metrics import read_metrics
from shoal.training.run import find_checkpoint, open_run
from shoal.training.runner import Local, resume, run


def small(preset, updates=5, num_envs=16, num_steps=8, **changes):
    experiment = dataclasses.replace(resolve(preset), num_envs=num_envs, num_steps=num_steps, **changes)
    return dataclasses.replace(experiment, total_env_steps=num_envs * num_steps * updates)


def largest_difference(one, other):
    """Of numbers up to 1 as it is; of greater ones, such as running statistics, as a share of them."""

    def between(a, b):
        a, b = np.asarray(a), np.asarray(b)
        return float(np.max(np.abs(a - b) / np.maximum(np.abs(b), 1)))

    found = jax.tree.map(between, one, other)
    return max(jax.tree.leaves(found))


@pytest.fixture(scope="module")
def alone():
    """Weights of the fused runner, worked out once a world."""
    known = {}

    def of(experiment):
        if experiment.env not in known:
            known[experiment.env] = run(experiment, on=Local(devices=1)).policies
        return known[experiment.env]

    return of


@pytest.mark.parametrize(
    ("preset", "actors"),
    [
        ("mpe/simple_spread", 2),
        ("tag/grid", 4),
        pytest.param("mpe/simple_spread", 1, marks=pytest.mark.slow),
        pytest.param("mpe/simple_spread", 4, marks=pytest.mark.slow),
        pytest.param("tag/grid", 1, marks=pytest.mark.slow),
        pytest.param("tag/grid", 2, marks=pytest.mark.slow),
    ],
)
def test_synchronous_equals_fused(tmp_path, alone, preset, actors):
    experiment = small(preset)
    result = run(experiment, tmp_path / "run", on=Cluster(plan=ClusterPlan(actors=actors), launcher=ThreadLauncher()))
    assert result.update == 5
    assert largest_difference(result.policies, alone(experiment)) < 1e-6
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [line["update"] for line in lines] == [1, 2, 3, 4, 5]
    assert all(line["staleness"] == line["staleness_max"] == 0.0 for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("actors", [1, 2, 4])
@pytest.mark.parametrize("preset", ["mpe/simple_spread", "tag/grid"])
def test_synchronous_equals_fused_on_ray(tmp_path, alone, preset, actors):
    from shoal.cluster.transport.ray_launcher import RayLauncher

    plan, experiment = ClusterPlan(actors=actors), small(preset)
    launcher = RayLauncher("local", runner.needs(plan))
    result = run(experiment, tmp_path / "run", on=Cluster(plan=plan, launcher=launcher))
    assert largest_difference(result.policies, alone(experiment)) < 1e-6


ROLES = ("actor-0", "learner-0", "parameters", "dataset", "coordinator")


@pytest.mark.parametrize("recipe", ["sync", "stale"])
@pytest.mark.parametrize("victim", ROLES)
def test_whoever_dies_the_run_ends_with_all_updates(tmp_path, recipe, victim):
    experiment = small("mpe/simple_spread", updates=60, num_envs=8, num_steps=4)
    killer = Killer(victim, 3, 20, 40)
    supervisor, result = disturbed(tmp_path, experiment, ClusterPlan(recipe, actors=2, commit_seconds=0.05), killer)
    assert result.update == 60
    assert not killer.updates  # it was killed every time
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [line["update"] for line in lines] == list(range(1, 61))
    if victim.startswith(("actor", "learner")):
        assert sum(worker.restarts for worker in supervisor.workers.values()) >= 3
    if victim != "coordinator":  # which forgets what it only shows
        assert killer.committed == sorted(killer.committed)


def test_asynchronous_ones_are_behind_and_stale_ones_within_the_bound(tmp_path):
    experiment = small("impala/simple_spread", updates=40, num_envs=8, num_steps=4)
    _, result = disturbed(tmp_path / "a", experiment, ClusterPlan("impala", actors=2))
    lines = read_metrics(tmp_path / "a" / "run" / "metrics.jsonl")
    assert result.update == 40
    assert max(line["staleness_max"] for line in lines) > 0
    disturbed(tmp_path / "s", experiment, ClusterPlan("stale", actors=2, max_staleness=1))
    lines = read_metrics(tmp_path / "s" / "run" / "metrics.jsonl")
    assert 0 < max(line["staleness_max"] for line in lines) <= 1


def test_stopped_and_resumed(tmp_path):
    experiment = small("mpe/simple_spread", updates=50, num_envs=8, num_steps=4)

    def stop(supervisor):
        if supervisor.status.get("learner", {}).get("update", 0) >= 10:
            supervisor.services["coordinator"].once.stop()

    _, first = disturbed(tmp_path, experiment, ClusterPlan(actors=2), stop)
    assert first.interrupted
    assert 10 <= first.update < 50
    second = resume(tmp_path / "run", on=Cluster(launcher=ThreadLauncher()))
    assert second.update == 50
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [line["update"] for line in lines] == list(range(1, 51))
    status = json.loads((tmp_path / "run" / "cluster.json").read_text())
    assert status["services"]["parameters"] == {"policies": 50}
    assert status["messages"]["parameters"]["actor>pull"] >= 40


def test_evaluated_as_on_one_machine_and_trained_further(tmp_path):
    """The same evaluations and best checkpoint; then more updates, with schedules that end later."""
    experiment = small("mpe/simple_spread", updates=4, eval_every=2 * 128, eval_episodes=8)
    run(experiment, tmp_path / "alone", on=Local(devices=1))
    run(experiment, tmp_path / "run", on=Cluster(plan=ClusterPlan(actors=2), launcher=ThreadLauncher()))
    found = {}
    for name in ("alone", "run"):
        opened = open_run(tmp_path / name)
        best = checkpoint.read_meta(find_checkpoint(opened, "best"))
        evaluated = {line["update"]: line.get("eval/return") for line in read_metrics(opened.metrics)}
        found[name] = [evaluated[2], evaluated[4], best["best"], best["update"]]
        assert evaluated[1] is evaluated[3] is None
    assert found["run"] == pytest.approx(found["alone"])
    result = resume(tmp_path / "run", on=Cluster(launcher=ThreadLauncher()), total_env_steps=6 * 128)
    assert result.update == 6
    longer = open_run(tmp_path / "run").experiment
    assert longer.total_env_steps == 6 * 128
    assert [line["update"] for line in result.lines if "eval/return" in line] == [2, 4, 6]
    like = {"learners": longer.program(1).shapes().learners}
    newest = checkpoint.latest(tmp_path / "run" / "checkpoints")
    (learner,) = checkpoint.load(newest, like, partial=True)["learners"].values()
    assert learner.hyper["total_updates"] == 6


def test_actors_join_and_leave_while_it_runs(tmp_path):
    experiment = small("impala/simple_spread", updates=3000, num_envs=8, num_steps=4)
    seen = []

    def change(supervisor):
        update = supervisor.status.get("learner", {}).get("update", 0)
        if update >= 5 and len(supervisor.workers) == 3 and not seen:
            runner.recipe_of("impala").actor(supervisor, 2)
        if supervisor.status and supervisor.status["workers"].get("actor-2", {}).get("rounds", 0) >= 3 and not seen:
            seen.append(update)
            supervisor.remove(0)
        if seen and update > seen[0] + 20:
            supervisor.services["coordinator"].once.stop()

    supervisor, result = disturbed(tmp_path, experiment, ClusterPlan("impala", actors=2), change)
    assert seen
    assert result.update > seen[0] + 20  # it went on with the new one
    assert sorted(supervisor.workers) == ["actor-1", "actor-2", "learner-0"]


def test_what_cannot_work_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(
        OptionError,
        match=r"'agent': the recipe impala .* \(traits.corrects_lag\), but ppo does not. Choose --algo impala",
    ):
        run(
            small("mpe/simple_spread"),
            tmp_path / "run",
            on=Cluster(plan=ClusterPlan("impala"), launcher=ThreadLauncher()),
        )
    with pytest.raises(ShoalError, match="one seed"):
        run(
            small("mpe/simple_spread", num_seeds=2),
            tmp_path / "run",
            on=Cluster(plan=ClusterPlan(), launcher=ThreadLauncher()),
        )
    assert not (tmp_path / "run").exists()


def test_a_full_disk_is_waited_for_then_said_and_nothing_committed_is_lost(tmp_path, monkeypatch):
    experiment = small("mpe/simple_spread", updates=30, num_envs=8, num_steps=4)
    save, room = checkpoint.save, {"left": 3}

    def full(*args, **options):
        if room["left"] <= 0:
            raise RunError("cannot write the checkpoint: No space left on device")
        room["left"] -= 1
        return save(*args, **options)

    monkeypatch.setattr(checkpoint, "save", full)
    plan = ClusterPlan(actors=2, commit_seconds=0.02, retries=2)
    with pytest.raises(WorkerError, match=r"learner-0 failed 3 times in a row.*No space left on device.*\n.*resume"):
        disturbed(tmp_path, experiment, plan)
    committed = checkpoint.read_meta(checkpoint.latest(tmp_path / "run" / "checkpoints"))["update"]
    room["left"] = 1

    def make_room(supervisor):
        room["left"] += any("No space" in event["what"] for event in supervisor.events) and 1000

    supervisor = runner.TrainingSupervisor(open_run(tmp_path / "run"), plan, ThreadLauncher())
    supervisor.hooks.append(make_room)
    assert supervisor.run().update == 30
    assert supervisor.workers["learner-0"].restarts >= 1
    noted = [line["restarts"] for line in read_cluster_history(tmp_path / "run")]
    assert noted[-1] > 3, "those of the driver before are counted"
    assert noted == sorted(noted)
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [line["update"] for line in lines] == list(range(1, 31))
    assert committed > 0


def test_a_bound_on_divergence_is_for_those_who_can_estimate_it():
    pqn, frozen = Learner(PQN()), Learner(PQN(), frozen=True)
    plan = ClusterPlan("stale", actors=2, max_divergence=0.1)
    with pytest.raises(OptionError, match=r"needs an algorithm with EstimatesKL.*which PQN does not have"):
        runner.check(Experiment("mpe/simple_spread", learners={"l": pqn}, num_envs=8), plan)
    runner.check(Experiment("mpe/simple_spread", learners={"l": frozen}, num_envs=8), plan)
    runner.check(Experiment("mpe/simple_spread", learners={"l": pqn}, num_envs=8), ClusterPlan("stale", actors=2))


def test_folders_of_earlier_versions_call_the_time_limit_of_a_task_patience(tmp_path):
    (tmp_path / "config.json").write_text('{"cluster": {"actors": 3, "patience": 5.0}}')
    assert runner.plan_of(tmp_path) == ClusterPlan(actors=3, task_timeout=5.0)
    assert pool_from_status({"workers": 3, "patience": 5.0}) == PoolConfig(workers=3, task_timeout=5.0)
