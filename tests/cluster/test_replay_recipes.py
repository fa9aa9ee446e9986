"""Ape-X and R2D2: who sets priorities, what an update costs, and that nothing but time is lost when somebody dies."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from shooting import Killer, disturbed

from shoal.algorithms import A2C, DQN
from shoal.algorithms import q_learning as q
from shoal.algorithms.registry import ALGORITHMS, register_algorithm
from shoal.cluster import training as runner
from shoal.cluster.plan import ClusterPlan
from shoal.cluster.replay.actor import PriorityEstimator, ladder, steps_by_learner
from shoal.cluster.replay.learner import LEAD, ReplayLearning
from shoal.cluster.run import Cluster
from shoal.cluster.transport.launcher import ThreadLauncher
from shoal.cluster.workers import rollouts
from shoal.cluster.workers.rollouts import EnvShare, Share
from shoal.core.algorithm import Algorithm, Prioritises
from shoal.core.errors import OptionError
from shoal.networks.torsos import Network
from shoal.ops import replay as buffers
from shoal.presets import resolve
from shoal.training.evaluate import evaluate
from shoal.training.experiment import Experiment, Learner
from shoal.training.fused import policies_of
from shoal.training.metrics import read_metrics
from shoal.training.run import load_policies
from shoal.training.runner import run

ENVS, STEPS = 8, 4
SMALL = Network(hidden=(16,), activation="relu")
MEMORY = Network(hidden=(16,), activation="relu", recurrent="gru", recurrent_size=8)
APEX = DQN(prioritised=True, n_step=3, batch_size=16, gradient_steps=2, warm_up=96, buffer_size=2000, network=SMALL)
R2D2 = dataclasses.replace(APEX, sequence=4, burn_in=2, network=MEMORY)


def of(algorithm, updates=40, env="control/cartpole"):
    return Experiment(env, {}, (), {"team": Learner(algorithm)}, ENVS, STEPS, ENVS * STEPS * updates)


def played(tmp_path, experiment, plan, *hooks):
    """A run and its `cluster.json`."""
    _, result = disturbed(tmp_path, experiment, plan, *hooks)
    return result, json.loads((tmp_path / "run" / "cluster.json").read_text())


def rolled(algorithm, count):
    """Steps of some rollouts of a fresh policy, and that policy."""
    experiment = of(algorithm)
    learning = ReplayLearning(experiment)
    state = learning.fresh()[0]["team"]
    copies = EnvShare(rollouts.program_of(experiment), Share(0, ENVS))
    made = [copies.roll(policies_of({"team": state}))[0] for _ in range(count)]
    return learning, state, [steps_by_learner(one, learning.own)["team"] for one in made]


def test_actors_prioritise_windows_as_the_learner_would():
    learning, state, pieces = rolled(APEX, 4)
    algorithm, spec = learning.own["team"]
    estimate = PriorityEstimator(algorithm, spec)
    priorities = np.concatenate([estimate(state.params, (), piece) for piece in pieces])
    whole = jax.tree.map(lambda *leaves: np.concatenate(leaves), *pieces)
    window, rows = algorithm.window, 4 * STEPS
    starts = np.arange(rows - window + 1)
    windows = jax.tree.map(
        lambda leaf: leaf[np.arange(window)[:, None] + starts].reshape(window, -1, *leaf.shape[2:]), whole
    )
    own = state.replace(target=q.join_weights(state.params, ()))
    errors = algorithm.errors(own, windows)
    expected = buffers.priorities(errors, state.hyper["priority_exponent"]).reshape(len(starts), ENVS)
    assert priorities.shape == (rows, ENVS)
    np.testing.assert_allclose(priorities[window - 1 :], expected, rtol=1e-5)  # each at the row where it ends


def test_sequences_are_prioritised_by_their_steps():
    learning, state, pieces = rolled(R2D2, 4)
    algorithm, spec = learning.own["team"]
    estimate = PriorityEstimator(algorithm, spec)
    priorities = np.concatenate([estimate(state.params, (), piece) for piece in pieces])
    single = PriorityEstimator(dataclasses.replace(algorithm, sequence=1, burn_in=0, priority_exponent=1.0), spec)
    errors = np.concatenate([single(state.params, (), piece) for piece in pieces]) / 1.0 - 1e-6
    end = 15  # of the last window: it learns from rows 8 to 11, whose own windows end 3 rows later
    learnt = errors[end - 3 : end + 1]
    expected = (0.9 * learnt.max(axis=0) + 0.1 * learnt.mean(axis=0) + 1e-6) ** algorithm.priority_exponent
    np.testing.assert_allclose(priorities[end], expected, rtol=1e-4)
    estimate.forget()
    np.testing.assert_allclose(estimate(state.params, (), pieces[0]), priorities[:STEPS], rtol=1e-5)


def test_every_actor_explores_to_its_own_degree():
    assert ladder(0, 1) == pytest.approx(0.4)
    assert [ladder(i, 3) for i in range(3)] == pytest.approx([0.4, 0.4**4.5, 0.4**8])
    assert ladder(7, 3) == pytest.approx(0.4**8)  # one that came later


@pytest.mark.parametrize(("recipe", "algorithm"), [("apex", APEX), ("r2d2", R2D2)])
def test_actors_set_priorities_and_the_learner_only_corrects_them(tmp_path, recipe, algorithm):
    updates = 40
    result, status = played(tmp_path, of(algorithm, updates), ClusterPlan(recipe, actors=2, shards=2))
    assert result.update == updates
    first = -(-algorithm.warm_up // (ENVS * STEPS))  # the first update that learns
    inserted = 0
    for name in ("replay-0", "replay-1"):
        figures, messages = status["services"][name], status["messages"][name]
        assert figures["judged"] == figures["pushed"] > 0
        assert figures["written"] + figures["late"] <= figures["drawn"]  # priorities of what was learnt from, no others
        assert messages["learner>draw"] >= updates - first + 1
        assert messages["learner>reprioritise"] <= messages["learner>draw"]
        assert "learner>push" not in messages
        inserted += figures["inserted"]
    assert "dataset" not in status["services"]
    cost = ENVS * STEPS
    assert updates * cost <= inserted <= (updates + LEAD + 1) * cost  # neither side runs away
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [line["update"] for line in lines] == list(range(1, updates + 1))
    assert max(line["staleness"] for line in lines) > 0
    assert all(line["loss"] == 0 for line in lines[: first - 1])
    assert all(line["loss"] > 0 for line in lines[first:])
    assert sum(line["episodes"] for line in lines) > 5


VICTIMS = ("replay-0", "learner-0", "actor-0", "parameters", "coordinator")


@pytest.mark.parametrize("victim", VICTIMS)
def test_whoever_dies_apex_ends_with_all_updates(tmp_path, victim):
    plan = ClusterPlan("apex", actors=2, shards=2, commit_seconds=0.05)
    result, status = played(tmp_path, of(APEX, 60), plan, Killer(victim, 5, 30))
    assert result.update == 60
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [line["update"] for line in lines] == list(range(1, 61))
    if victim in status["restarts"]:
        assert status["restarts"][victim] >= 1


@pytest.mark.parametrize("victim", ["replay-0", "actor-0"])
def test_whoever_dies_r2d2_ends_with_all_updates(tmp_path, victim):
    plan = ClusterPlan("r2d2", actors=2, commit_seconds=0.05)
    assert played(tmp_path, of(R2D2, 40), plan, Killer(victim, 10))[0].update == 40


def test_a_mixer_reaches_the_actors(tmp_path):
    algorithm = dataclasses.replace(APEX, mixer="monotonic", mixer_hidden=8)
    result, status = played(tmp_path, of(algorithm, 8, "mpe/simple_spread"), ClusterPlan("apex", actors=1))
    assert result.update == 8
    assert status["services"]["parameters"]["shared"] == 8


@pytest.mark.parametrize(
    ("recipe", "algorithm", "said"),
    [
        ("apex", dataclasses.replace(APEX, prioritised=False), "prioritised=False. Set it to True"),
        (
            "apex",
            A2C(),
            r"recipe apex needs .*Prioritises \(.*\), but a2c does not\. Choose --algo dqn",
        ),
        ("r2d2", APEX, "network.recurrent='none'"),
        ("apex", dataclasses.replace(APEX, warm_up=10**6), "would never learn"),
    ],
)
def test_what_does_not_fit_is_refused(recipe, algorithm, said):
    with pytest.raises(OptionError, match=said):
        runner.check(of(algorithm), ClusterPlan(recipe, actors=2))


def _ask(member):
    return lambda self, *args: getattr(R2D2, member)(*args)


_MEMBERS = {"init", "act", "value", "update", "initial_memory", *Prioritises.__abstractmethods__}
_asked: dict[str, object] = {member: _ask(member) for member in _MEMBERS}
_asked |= {"traits": property(lambda self: R2D2.traits), "name": "replaying", "__module__": __name__}
Foreign = dataclasses.dataclass(frozen=True)(type("Foreign", (Algorithm, Prioritises), _asked))
"""An algorithm that is no DQN and has what the contract names, nothing else: all of it is asked of one."""


@pytest.fixture
def _registered():
    register_algorithm("replaying")(Foreign)
    yield
    ALGORITHMS.table.pop("replaying")


@pytest.mark.usefixtures("_registered")
def test_whoever_has_the_protocol_is_welcome():
    assert not isinstance(Foreign(), DQN)
    for recipe in ("apex", "r2d2", "gorila"):
        runner.check(of(Foreign()), ClusterPlan(recipe, actors=2))


@pytest.mark.slow
@pytest.mark.usefixtures("_registered")
@pytest.mark.parametrize("recipe", ["apex", "r2d2", "gorila"])
def test_whoever_has_the_protocol_learns(tmp_path, recipe):
    result, status = played(tmp_path, of(Foreign(), 12), ClusterPlan(recipe, actors=2))
    assert result.update == 12
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert lines[-1]["loss"] > 0
    assert (status["services"]["replay-0"]["judged"] > 0) == (recipe != "gorila")


@pytest.mark.slow
def test_apex_on_ray(tmp_path):
    from shoal.cluster.transport.ray_launcher import RayLauncher

    plan = ClusterPlan("apex", actors=2, shards=2)
    launcher = RayLauncher("local", runner.needs(plan))
    result = run(of(APEX, 30), tmp_path / "run", on=Cluster(plan=plan, launcher=launcher))
    assert result.update == 30
    status = json.loads((tmp_path / "run" / "cluster.json").read_text())
    assert status["services"]["replay-1"]["judged"] > 0


WIDE = Network(hidden=(128, 128), activation="relu")
SOLVES = DQN(
    learning_rate=5e-4,
    n_step=3,
    batch_size=128,
    gradient_steps=8,
    warm_up=1000,
    prioritised=True,
    anneal=True,
    network=WIDE,
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "algorithm", "steps", "total"),
    [
        ("apex", SOLVES, 4, 200_000),
        ("r2d2", resolve("r2d2/cartpole").learners["team"].algorithm, 8, 300_000),
    ],
)
def test_cartpole_is_solved(tmp_path, recipe, algorithm, steps, total):
    experiment = Experiment("control/cartpole", {}, (), {"team": Learner(algorithm)}, 16, steps, total)
    run(
        experiment,
        tmp_path / "run",
        on=Cluster(plan=ClusterPlan(recipe, actors=2, shards=2), launcher=ThreadLauncher()),
    )
    setup, policies, _ = load_policies(tmp_path / "run")
    assert evaluate(setup, policies, 256).total_mean_return > 450


@pytest.mark.slow
def test_a_team_learns_by_apex(tmp_path):
    algorithm = dataclasses.replace(SOLVES, learning_rate=1e-3, gamma=0.9, n_step=1, mixer="sum")
    experiment = Experiment("mpe/simple_spread", {}, (), {"team": Learner(algorithm)}, 64, 5, 100_000)
    run(experiment, tmp_path / "run", on=Cluster(plan=ClusterPlan("apex", actors=2), launcher=ThreadLauncher()))
    setup, policies, _ = load_policies(tmp_path / "run")
    trained, chance = (evaluate(setup, one, 512).total_mean_return for one in (policies, None))
    assert trained > chance + 5
