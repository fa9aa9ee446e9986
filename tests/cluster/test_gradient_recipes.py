"""A3C and Gorila: gradients travel and nothing else, each with its staleness; nothing is lost when somebody dies."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from shooting import Killer, disturbed

from shoal.algorithms import A2C, DQN
from shoal.cluster import training as runner
from shoal.cluster.plan import ClusterPlan
from shoal.cluster.run import Cluster
from shoal.cluster.services.dataset import Item
from shoal.cluster.services.parameters import ParameterService
from shoal.cluster.transport.launcher import ThreadLauncher
from shoal.cluster.workers import rollouts
from shoal.cluster.workers.gradient_workers import GradientActor
from shoal.cluster.workers.gradients import WEIGHTS, Gradients, combine_gradients, without_optimisers
from shoal.cluster.workers.learner import Learning
from shoal.cluster.workers.rollouts import EnvShare, Share
from shoal.core.errors import OptionError
from shoal.networks.torsos import Network
from shoal.training.evaluate import evaluate
from shoal.training.experiment import Experiment, Learner
from shoal.training.fused import policies_of
from shoal.training.metrics import read_metrics
from shoal.training.run import load_policies
from shoal.training.runner import run

ENVS, STEPS = 8, 4
SMALL = Network(hidden=(16,), activation="relu")
ROLLOUTS = A2C(network=SMALL)
WINDOWS = DQN(n_step=2, batch_size=16, gradient_steps=3, warm_up=96, buffer_size=2000, network=SMALL)
WEIGHT_BYTES = 4 * (4 * 16 + 16 + 16 * 2 + 2)  # of one network with two actions


def of(algorithm, updates=40, env="control/cartpole"):
    return Experiment(env, {}, (), {"team": Learner(algorithm)}, ENVS, STEPS, ENVS * STEPS * updates)


def played(tmp_path, experiment, plan, *hooks):
    """A run and its `cluster.json`."""
    _, result = disturbed(tmp_path, experiment, plan, *hooks)
    return result, json.loads((tmp_path / "run" / "cluster.json").read_text())


def test_a_gradient_that_travelled_makes_the_same_update():
    experiment, launcher = of(ROLLOUTS), ThreadLauncher()
    learning = Learning(experiment, 1)
    learners, tripped = learning.fresh()
    parameters = launcher.start("parameters", ParameterService, launcher.store)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(without_optimisers(learners))]
    parameters.once.push(WEIGHTS, 0, leaves, 0)
    actor = GradientActor(experiment.to_dict(), 0, ENVS, {"parameters": parameters}, launcher.store)
    assert actor.weights.pull()
    made, _ = EnvShare(rollouts.program_of(experiment), Share(0, ENVS)).roll(policies_of(actor.weights.value))
    gradients, metrics = actor._gradient(actor.weights.value, made)
    algorithm = experiment.learners["team"].algorithm
    applied = algorithm.count_update(algorithm.apply(learners["team"], gradients["team"]))  # pyright: ignore
    loss = float(metrics["loss/agent"])
    whole, _, row = learning.learn(learners, tripped, np.int32(0), learning.put_on_devices(made))
    assert int(applied.updates) == int(whole["team"].updates) == 1
    for ours, theirs in zip(jax.tree.leaves(applied.params), jax.tree.leaves(whole["team"].params), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)
    assert row[learning.program.names.index("loss/agent")] == pytest.approx(loss, rel=1e-5)


def test_figures_of_rollouts_are_put_together():
    told = [
        {"episodes": 2.0, "return/a": 10.0, "length": 4.0, "world/x": 1.0, "loss": 3.0},
        {"episodes": 1.0, "return/a": 5.0, "length": 2.0, "world/x": 2.0, "loss": 5.0},
    ]
    assert combine_gradients(told) == {"episodes": 3.0, "return/a": 15.0, "length": 6.0, "world/x": 1.5, "loss": 4.0}


def test_the_queue_takes_gradients_only():
    queue = Gradients(2)
    assert queue.push(Item("actor-0", 0, 0, 0, None, "gradient", 8))
    with pytest.raises(AssertionError):
        queue.push(Item("actor-0", 0, 1, 0, None, "rollout", 8))
    assert queue.figures()["kinds"] == {"gradient": 1}


def test_a3c_moves_gradients_and_no_rollouts(tmp_path):
    updates, plan = 40, ClusterPlan("a3c", actors=2)
    result, status = played(tmp_path, of(ROLLOUTS, updates), plan)
    assert result.update == updates
    messages, queue = status["messages"], status["services"]["dataset"]
    assert not any(name.startswith("replay") for name in messages)
    assert queue["kinds"] == {"gradient": queue["pushed"]}
    assert queue["pushed"] >= 2 * updates + queue["dropped"]
    # Torsos of actor and critic, and their heads: 2 numbers and 1.
    assert queue["largest_bytes"] == 4 * (2 * (4 * 16 + 16) + 16 * 2 + 2 + 16 + 1)
    assert {name for name in messages["dataset"] if name.endswith(">push")} == {"actor>push"}
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert max(line["staleness"] for line in lines) > 0
    assert max(line["staleness_max"] for line in lines) <= plan.max_staleness
    assert sum(line["episodes"] for line in lines) > 5
    assert status["services"]["parameters"] == {"policies": updates, "weights": 2 * updates}


def test_gorila_moves_gradients_and_no_rollouts(tmp_path):
    updates, plan = 40, ClusterPlan("gorila", actors=2, learners=2, shards=2)
    result, status = played(tmp_path, of(WINDOWS, updates), plan)
    assert result.update == updates
    messages, queue = status["messages"], status["services"]["dataset"]
    learning = updates - 96 // (ENVS * STEPS) + 1  # updates, but for those before the replay is warm
    assert queue["kinds"] == {"gradient": queue["pushed"]}
    assert queue["pushed"] >= 3 * learning
    assert queue["largest_bytes"] == WEIGHT_BYTES
    assert {name for name in messages["dataset"] if name.endswith(">push")} == {"worker>push"}
    for name in ("replay-0", "replay-1"):
        assert messages[name]["worker>draw"] >= 3 * learning
        assert "learner>draw" not in messages[name]  # it only hears how many steps there are
        assert status["services"][name]["judged"] == 0
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert max(line["staleness"] for line in lines) > 0
    assert max(line["staleness_max"] for line in lines) <= plan.max_staleness
    assert sum(line["episodes"] for line in lines) > 5
    assert status["services"]["parameters"]["weights"] == 3 * updates


@pytest.mark.parametrize("victim", ["actor-0", "learner-0", "dataset", "parameters"])
def test_whoever_dies_a3c_ends_with_all_updates(tmp_path, victim):
    plan = ClusterPlan("a3c", actors=2, commit_seconds=0.05)
    result, _ = played(tmp_path, of(ROLLOUTS, 80), plan, Killer(victim, 5, 40))
    assert result.update == 80
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [line["update"] for line in lines] == list(range(1, 81))


@pytest.mark.parametrize("victim", ["replay-0", "learner-0", "learner-1", "actor-0", "dataset"])
def test_whoever_dies_gorila_ends_with_all_updates(tmp_path, victim):
    plan = ClusterPlan("gorila", actors=2, learners=2, commit_seconds=0.05)
    result, _ = played(tmp_path, of(WINDOWS, 50), plan, Killer(victim, 5, 25))
    assert result.update == 50
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [line["update"] for line in lines] == list(range(1, 51))


def test_running_statistics_are_refused():
    with pytest.raises(OptionError, match="normalise_values=True"):
        runner.check(of(dataclasses.replace(ROLLOUTS, normalise_values=True)), ClusterPlan("a3c", actors=2))
    with pytest.raises(OptionError, match=r"SplitsUpdate \(.*prepare\), but dqn does not\. Choose --algo a2c, or"):
        runner.check(of(WINDOWS), ClusterPlan("a3c", actors=2))


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "algorithm"), [("a3c", ROLLOUTS), ("gorila", WINDOWS)])
def test_gradients_travel_on_ray(tmp_path, recipe, algorithm):

    plan = ClusterPlan(recipe, actors=2)
    result = run(of(algorithm, 20), tmp_path / "run", on=Cluster("local", plan))
    assert result.update == 20
    status = json.loads((tmp_path / "run" / "cluster.json").read_text())
    assert set(status["services"]["dataset"]["kinds"]) == {"gradient"}


WIDE = Network(hidden=(128, 128), activation="relu")
LEARNS = DQN(learning_rate=5e-4, n_step=3, batch_size=128, gradient_steps=8, warm_up=1000, anneal=True, network=WIDE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "algorithm", "steps", "total", "least"),
    [
        ("a3c", A2C(learning_rate=1e-3, anneal=True), 5, 400_000, 450),
        ("gorila", LEARNS, 8, 200_000, 200),
    ],
)
def test_cartpole_is_learnt_from_gradients(tmp_path, recipe, algorithm, steps, total, least):
    experiment = Experiment("control/cartpole", {}, (), {"team": Learner(algorithm)}, 16, steps, total)
    run(
        experiment,
        tmp_path / "run",
        on=Cluster(plan=ClusterPlan(recipe, actors=2, learners=2), launcher=ThreadLauncher()),
    )
    setup, policies, _ = load_policies(tmp_path / "run")
    assert evaluate(setup, policies, 256).total_mean_return > least
