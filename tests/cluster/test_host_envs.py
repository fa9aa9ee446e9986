"""Environments of the host in actors: the host runner's weights, and one that fails costs nobody else anything."""

import dataclasses
import json
import threading

import jax
import numpy as np
import pytest

from shoal.algorithms import PPO
from shoal.cluster.plan import ClusterPlan
from shoal.cluster.run import Cluster
from shoal.cluster.transport.launcher import ThreadLauncher
from shoal.cluster.transport.service import WorkerError
from shoal.cluster.workers import rollouts
from shoal.cluster.workers.host_envs import HostEnvShare
from shoal.cluster.workers.rollouts import Share
from shoal.core import registry
from shoal.core.errors import NonFiniteWorldError, WorldError
from shoal.core.host import HostEnvProxy
from shoal.core.host import SerialHostBatch as OneByOne
from shoal.core.spaces import Box, Discrete
from shoal.core.types import Group, Observation, Outcome
from shoal.networks.torsos import Network
from shoal.training.experiment import Experiment, Learner
from shoal.training.fused import policies_of
from shoal.training.metrics import read_metrics
from shoal.training.runner import Local, run

ID = "gymnasium:walk"
"""A name that the tests fill in: the library is never asked."""
LENGTH = 5


class Walk:
    """Two agents on a line. Each sees where it stands, drawn from the seed, and the step; episodes last 5 steps.

    A step moves by the action less one and pays minus the distance from 0.
    """

    name = ID
    groups = {"walker": Group(2, Discrete(3), Box((2,)))}
    players = {"walker": (("walker", 0), ("walker", 1))}
    masked = leaving = False

    def __init__(self, number=0, fault=lambda env: None):
        self.number, self.fault = number, fault
        self.total, self.closed = 0, False

    def reset(self, seed):
        if seed is not None:
            self.seed, self.draws = seed, np.random.default_rng(seed)
        self.at, self.t = self.draws.normal(size=2), 0
        return self.seen()

    def seen(self):
        return {"walker": Observation(np.stack([self.at, [self.t / LENGTH] * 2], 1).astype(np.float32))}

    def step(self, actions):
        self.total += 1
        self.t += 1
        self.at = self.at + 0.1 * (np.asarray(actions["walker"]) - 1.0)
        seen, reward = self.seen(), -np.abs(self.at).astype(np.float32)
        wrong = self.fault(self)
        if wrong == "observation":
            seen["walker"].view[1, 0] = np.nan
        if wrong == "reward":
            reward[0] = np.inf
        return seen, Outcome({"walker": reward}, np.bool_(False), np.bool_(self.t == LENGTH))

    def close(self):
        self.closed = True


class Whole:
    """A batch that is nobody's business inside."""

    def __init__(self, envs):
        self.inner = OneByOne(envs)
        self.num_envs, self.reset, self.step = len(envs), self.inner.reset, self.inner.step
        self.close = self.inner.close


@pytest.fixture
def walks(monkeypatch):
    """Lets the id stand for walks with a fault; every one that is made is kept, numbered in order."""
    made = []

    def put(fault=lambda env: None, together=False):
        made.clear()

        def one():
            made.append(Walk(len(made), fault))
            return made[-1]

        def opened(count):
            envs = [one() for _ in range(count)]
            return Whole(envs) if together else OneByOne(envs)

        proxy = HostEnvProxy(ID, dict(Walk.groups), dict(Walk.players), opened)
        monkeypatch.setattr(registry, "_foreign", lambda id, options: proxy)
        return made

    return put


FLAT = Network(hidden=(16,))
GRU = Network(hidden=(16,), recurrent="gru", recurrent_size=8)


def experiment(network=FLAT, num_envs=8, num_steps=8, updates=5, **changes):
    learner = Learner(PPO(minibatches=2, epochs=2, network=network))
    return Experiment(
        ID,
        learners={"learner": learner},
        num_envs=num_envs,
        num_steps=num_steps,
        total_env_steps=num_envs * num_steps * updates,
        **changes,
    )


def rolled(plan, share, times=1, buffers=2):
    """What a share does with the first weights, in some rollouts."""
    program = rollouts.program_of(plan)
    policies = jax.device_get(policies_of(program.init().learners))
    held = HostEnvShare(program, share, buffers)
    try:
        return [held.roll(policies) for _ in range(times)]
    finally:
        held.close()


def assert_close(one, other):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6, rtol=1e-5), one, other)


@pytest.mark.parametrize(
    ("network", "actors", "together"),
    [
        (FLAT, 2, False),
        (FLAT, 1, True),
        pytest.param(FLAT, 1, False, marks=pytest.mark.slow),
        pytest.param(FLAT, 4, False, marks=pytest.mark.slow),
        pytest.param(GRU, 2, False, marks=pytest.mark.slow),
    ],
)
def test_gives_the_host_runners_weights(walks, tmp_path, network, actors, together):
    walks(together=together)
    plan = experiment(network)
    result = run(plan, tmp_path / "run", on=Cluster(plan=ClusterPlan(actors=actors), launcher=ThreadLauncher()))
    assert result.update == 5
    assert_close(result.policies, run(plan, on=Local(devices=1)).policies)


def test_parts_make_no_difference(walks):
    made = walks()
    plan = experiment(num_envs=6)
    one, two = (rolled(plan, Share(1, 5), 2, buffers) for buffers in (1, 2))
    for (a, well), (b, fine) in zip(one, two, strict=True):
        assert_close(a, b)
        assert well.all()
        assert fine.all()
    assert a.steps.reward["walker"].shape == (8, 5, 2)
    assert a.clock == 9  # the second rollout of eight steps, counted from 1
    assert float(np.sum(one[0][0].steps.episodes.count)) == 5  # of five steps each, one ended in eight
    assert all(env.closed for env in made)


def test_seeds_are_those_of_the_host_runner_and_others_after_a_restart(walks):
    made = walks()
    plan = experiment(num_envs=4, seed=3)
    wanted = np.random.SeedSequence(3).generate_state(4).tolist()
    rolled(plan, Share(0, 2))
    rolled(plan, Share(2, 2))
    assert [env.seed for env in made] == wanted
    rolled(plan, Share(0, 2, restarts=1))
    rolled(plan, Share(0, 2, restarts=2))
    assert len({env.seed for env in made}) == len(made) == 8


def sick(number, steps, how):
    """Copy `number` is wrong in some steps."""

    def fault(env):
        if env.number != number or env.total not in steps:
            return None
        if how == "said":
            raise NonFiniteWorldError("observation is NaN")
        return how

    return fault


@pytest.mark.parametrize("how", ["observation", "reward", "said"])
def test_an_episode_that_gives_nan_is_cut_short_before_it_and_another_begun(walks, how):
    plan = experiment(num_envs=4)
    walks()
    sound = rolled(plan, Share(0, 4), 2)
    made = walks(sick(1, [3], how))
    found = rolled(experiment(num_envs=4), Share(0, 4), 2)  # an experiment builds its world once
    others = [0, 2, 3]
    for (a, _), (b, learnt) in zip(sound, found, strict=True):
        assert learnt.all()
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(b))
        np.testing.assert_array_equal(a.steps.reward["walker"][:, others], b.steps.reward["walker"][:, others])
    steps, before = found[0][0].steps, sound[0][0].steps
    np.testing.assert_array_equal(steps.reward["walker"][:2, 1], before.reward["walker"][:2, 1])
    assert steps.reward["walker"][2, 1].tolist() == [0.0, 0.0]
    assert steps.truncated[:, 1].tolist() == [False, False, True, False, False, False, False, True]  # the next: whole
    assert steps.first[:, 1].tolist() == [True, False, False, True, False, False, False, False]
    assert steps.final_value["walker"][2, 1].any()  # bootstraps from what was seen before
    assert [env.total for env in made] == [16] * 4


def held_by(plan, rollouts_made=1, share=None, buffers=1):
    """Copies after some rollouts, closed."""
    program = rollouts.program_of(plan)
    policies = jax.device_get(policies_of(program.init().learners))
    held = HostEnvShare(program, share or Share(0, plan.num_envs), buffers)
    try:
        found = [held.roll(policies) for _ in range(rollouts_made)]
    finally:
        held.close()
    return held, found


def test_only_a_copy_that_keeps_giving_nan_is_left_out(walks):
    made = walks(lambda env: "reward" if env.number == 1 or (env.number == 2 and env.total % 25 == 0) else None)
    held, found = held_by(experiment(num_envs=4), 12)  # 96 steps
    assert held.out.tolist() == [False, True, False, False]
    assert [env.total for env in made] == [96, 10, 96, 96]  # ten times in a row
    assert held.resets == 10 + 3  # 3 of 96 steps are forgiven
    assert [learnt.tolist() for _, learnt in found[:2]] == [[True] * 4, [True, False, True, True]]
    assert not found[-1][0].steps.reward["walker"][:, 1].any()


def test_where_all_keep_giving_nan_it_is_said(walks, tmp_path):
    walks(lambda env: "reward")
    with pytest.raises(WorkerError, match="every copy of an actor gives NaN or infinity, again and again"):
        run(
            experiment(num_envs=4),
            tmp_path / "run",
            on=Cluster(plan=ClusterPlan(actors=1, retries=1), launcher=ThreadLauncher()),
        )


def test_a_batch_that_steps_itself_is_not_listened_to_until_that_episode_is_over(walks):
    made = walks(sick(1, [3], "reward"), together=True)
    held, ((first, learnt), (second, later)) = held_by(experiment(num_envs=4), 2)
    assert learnt.tolist() == [True, False, True, True]
    assert later.all()
    assert held.resets == 1
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((first, second)))
    assert np.flatnonzero(first.steps.reward["walker"][:, 1].any(axis=1)).tolist() == [0, 1, 5, 6, 7]
    assert first.steps.first[:, 1].tolist() == [True, False, False, False, False, True, False, False]
    assert second.steps.reward["walker"][:, 1].all()
    assert [env.total for env in made] == [16] * 4


def test_nan_now_and_then_does_not_end_a_run_and_is_reported(walks, tmp_path):
    """In 0.4 % of the steps: all copies have given it by the end."""
    draws = np.random.default_rng(0)
    made = walks(lambda env: "observation" if draws.random() < 0.004 else None)
    plan = experiment(num_envs=4, num_steps=64, updates=20)
    result = run(plan, tmp_path / "run", on=Cluster(plan=ClusterPlan(actors=1), launcher=ThreadLauncher()))
    assert result.update == 20
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.policies))
    status = json.loads((tmp_path / "run" / "cluster.json").read_text())
    told = status["workers"]["actor-0"]
    assert told["quarantined"] == []
    assert 10 < told["nan_resets"] < 40
    assert status["restarts"]["actor-0"] == 0
    assert all(env.total >= 20 * 64 for env in made)
    logged = sum(line["nan_resets"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl"))
    assert 10 < logged <= told["nan_resets"]  # those of the last rollout came too late


def test_a_run_goes_on_without_the_sick_copy_and_reports_it(walks, tmp_path):
    walks(sick(2, range(10**6), "observation"))
    result = run(experiment(), tmp_path / "run", on=Cluster(plan=ClusterPlan(actors=1), launcher=ThreadLauncher()))
    assert result.update == 5
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.policies))
    status = json.loads((tmp_path / "run" / "cluster.json").read_text())
    assert status["workers"]["actor-0"]["quarantined"] == [2]
    assert status["restarts"]["actor-0"] == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("together", [False, True])
def test_whatever_an_environment_raises_gets_the_usual_words(walks, error, together):
    def fault(env):
        if env.number == 1 and env.total == 3:
            raise error("enough")

    walks(fault, together=together)
    which = "" if together else "copy 5, "
    with pytest.raises(WorldError, match=rf"^{ID}, {which}step 3: step raised {error.__name__}: enough$"):
        rolled(experiment(num_envs=8), Share(4, 4))


def broken(env):
    if env.number == 1 and env.total == 3:
        raise ValueError("a wheel came off")


def test_an_error_says_which_copy_and_when(walks):
    made = walks(broken)
    with pytest.raises(
        WorldError, match=rf"^{ID}, copy 5, step 3: step raised ValueError: a wheel came off$"
    ) as caught:
        rolled(experiment(num_envs=8), Share(4, 4))
    assert isinstance(caught.value.__cause__, ValueError)
    assert all(env.closed for env in made)


def test_an_environment_that_raises_once_is_begun_anew(walks, tmp_path):
    made = walks(broken)
    result = run(
        experiment(num_envs=4), tmp_path / "run", on=Cluster(plan=ClusterPlan(actors=1), launcher=ThreadLauncher())
    )
    assert result.update == 5
    status = json.loads((tmp_path / "run" / "cluster.json").read_text())
    assert status["restarts"]["actor-0"] == 1
    assert "a wheel came off" in status["events"][0]["what"]
    assert len(made) == len({env.seed for env in made}) == 8


def test_an_environment_that_always_raises_ends_the_run_by_name(walks, tmp_path):
    def always(env):
        raise ValueError("no road")

    walks(always)
    text = rf"actor-0 failed 3 times in a row.*{ID}, copy 0, step 1: step raised ValueError: no road"
    with pytest.raises(WorkerError, match=text):
        run(
            experiment(num_envs=4),
            tmp_path / "run",
            on=Cluster(plan=ClusterPlan(actors=1, retries=2), launcher=ThreadLauncher()),
        )


def test_an_environment_that_hangs_is_replaced(walks, tmp_path):
    go_on = threading.Event()

    def stuck(env):
        if env.number == 1 and env.total == 20:  # in the third rollout
            go_on.wait(60)

    made = walks(stuck)
    try:
        result = run(
            experiment(num_envs=4),
            tmp_path / "run",
            on=Cluster(plan=ClusterPlan(actors=1, task_timeout=1.0), launcher=ThreadLauncher()),
        )
    finally:
        go_on.set()
    assert result.update == 5
    status = json.loads((tmp_path / "run" / "cluster.json").read_text())
    told = [event["what"] for event in status["events"] if event["worker"] == "actor-0"]
    assert told[0].startswith("hung for 1 s in rollout 2")
    assert len(made) == 8


@pytest.mark.parametrize(("part", "said"), [(0, "observation is NaN"), (1, "reward of agent 'agent_1' is NaN")])
def test_bridges_say_that_it_is_nan_and_the_copy_begins_anew(part, said):
    pytest.importorskip("mpe2", reason="mpe2 is not installed: pip install mpe2")
    plan = dataclasses.replace(experiment(num_envs=4), env="pettingzoo:mpe2.simple_spread_v3")
    program = rollouts.program_of(plan)
    held = HostEnvShare(program, Share(0, 4), 2)
    one = held._stages[0].envs[1]
    inner, calls = one.env.step, []

    def step(actions):
        told = inner(actions)
        calls.append(said)
        told[part]["agent_1"] = told[part]["agent_1"] * np.nan
        return told

    one.env.step = step
    with pytest.raises(NonFiniteWorldError, match=said):
        one.step({"agent": np.zeros(3, np.int32)})
    made, learnt = held.roll(jax.device_get(policies_of(program.init().learners)))
    held.close()
    assert learnt.all()
    assert held.resets == len(calls) - 1 == plan.num_steps
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(made))


@pytest.mark.slow
def test_mpe2_on_ray_gives_the_host_runners_weights(tmp_path):
    pytest.importorskip("mpe2", reason="mpe2 is not installed: pip install mpe2")

    learner = Learner(PPO(minibatches=2, epochs=2, network=FLAT))
    name = "pettingzoo:mpe2.simple_spread_v3"
    plan = Experiment(name, learners={"learner": learner}, num_envs=8, num_steps=30, total_env_steps=8 * 30 * 5)
    cluster = ClusterPlan(actors=2)
    result = run(plan, tmp_path / "run", on=Cluster("local", cluster))
    assert_close(result.policies, run(plan, on=Local(devices=1)).policies)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_environment_that_ends_its_actor_is_named_in_the_run(walks, tmp_path, error):
    def always(env):
        raise error

    walks(always)
    text = rf"actor-0 failed 2 times in a row.*{ID}, copy 0, step 1: step raised {error.__name__}"
    with pytest.raises(WorkerError, match=text):
        run(
            experiment(num_envs=4),
            tmp_path / "run",
            on=Cluster(plan=ClusterPlan(actors=1, retries=1), launcher=ThreadLauncher()),
        )
