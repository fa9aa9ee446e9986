"""Evolution in one program: members play what their weights say, one compilation, resume to the bit, bad input."""

import dataclasses
import json
import os
import signal
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.algorithms import DDPG, PPO
from shoal.core.algorithm import Experience, Trajectory
from shoal.core.errors import NonFiniteError, OptionError
from shoal.core.registry import register
from shoal.core.types import Observation
from shoal.networks.torsos import Network
from shoal.populations.evolution.hybrid import close_trajectory
from shoal.populations.evolution.members import play
from shoal.populations.evolution.program import Evolution, make_evolution_program
from shoal.populations.evolution.strategies import ARS, ERL, OpenES, SeedChainGA
from shoal.training import checkpoint
from shoal.training.evaluate import evaluate
from shoal.training.experiment import Experiment, Learner
from shoal.training.fused import policies_of
from shoal.training.run import load_policies, open_run
from shoal.training.runner import Local, resume, run
from shoal.training.serialise import from_plain
from tests.worlds.bandit import Bandit, Target, Truncation
from tests.worlds.two_teams import TwoTeams

TINY = Network(hidden=(4,))
DDPG_TINY = DDPG(network=TINY, buffer_size=512, warm_up=8, batch_size=8, gradient_steps=2)


@pytest.fixture(autouse=True)
def _worlds():
    register("test/bandit", Bandit)
    register("test/target", Target)
    register("test/truncation", Truncation)
    register("test/two_teams", TwoTeams)


def plan(env="test/bandit", strategy=None, algorithm=None, **changes):
    experiment = Experiment(env, learners={"l": Learner(algorithm or PPO(network=TINY))})
    sizes = {"population": 8, "generations": 6, "episodes": 2}
    return Evolution(changes.pop("experiment", experiment), strategy or OpenES(), **sizes | changes)


def two_teams(**learners):
    own = {name: Learner(PPO(network=TINY), {name: (name,)}) for name in ("scout", "carrier")}
    return Experiment("test/two_teams", learners=own | learners)


def test_members_play_what_their_weights_say():
    """Three members, each with a bias for another arm, are paid what the three arms pay."""
    program = make_evolution_program(plan(population=2, normalise_views=False), devices=1)
    policies = policies_of(program.init().learners)
    choices = []
    for arm in range(3):
        part = jax.tree.map(jnp.zeros_like, PPO().acting_weights(policies["agent"]))
        part["policy_head"]["bias"] = jax.nn.one_hot(arm, 3)
        own = policies["agent"].replace(weights={"params": policies["agent"].weights["params"] | part})
        choices.append(program.genome.vector({"agent": own}))
    ids = jnp.zeros(6, jnp.uint32)
    params = (jnp.stack(choices), policies)
    episode_stats = play(program.setup.vectorised(6), program.actor, params, jax.random.key(0), ids, 100)
    np.testing.assert_allclose(episode_stats.fitness, [0.1, 0.1, 0.9, 0.9, 0.5, 0.5], atol=1e-6)
    assert episode_stats.length.tolist() == [1] * 6
    assert episode_stats.over.all()


def test_fitness_is_the_mean_over_episodes():
    """What the target pays depends on where it is: the mean fitness is the mean return of all episodes."""
    program = make_evolution_program(plan("test/target", population=2, episodes=4, normalise_views=False), devices=1)
    _, table = program.advance(program.init(), program.counts[1])
    line = dict(zip(program.names, np.asarray(table)[0].tolist(), strict=True))
    assert line["episodes"] == 8
    assert line["fitness/mean"] == pytest.approx(line["return/agent"] / 8, rel=1e-5)


def test_only_the_actor_evolves():
    program = make_evolution_program(plan())
    carry = program.init()
    before = policies_of(jax.device_get(carry.learners))["agent"]
    carry, _ = program.advance(carry, program.counts[2])
    after = policies_of(jax.device_get(carry.learners))["agent"]
    sizes = [leaf.size for leaf in jax.tree.leaves(PPO().acting_weights(before))]
    assert program.genome.size == sum(sizes) == (1 * 4 + 4) + (4 * 3 + 3)
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), before.weights["params"], after.weights["params"])
    assert jax.tree.leaves(moved["policy_head"]) == [True, True]
    assert not any(jax.tree.leaves([moved["critic_torso"], moved["value_head"]]))


def test_one_compilation_and_a_donated_carry():
    program = make_evolution_program(plan("test/target"), devices=1)
    carry, counts = program.init(), program.counts
    old = jax.tree.leaves(carry.learners)[0]
    with jax.transfer_guard("disallow"):
        for count in (1, 3, 2):
            carry, table = program.advance(carry, counts[count])
    assert program.advance._cache_size() == 1
    assert old.is_deleted()
    assert int(carry.generation) == 6
    assert table.shape[1] == len(program.names)


@pytest.mark.slow
def test_common_starts_are_the_same_for_all_members():
    """Equal members have equal fitness if they meet the same starts, and else do not."""
    spread = {}
    for common in (True, False):
        strategy = SeedChainGA(std=0.0, parents=1)
        program = make_evolution_program(plan("test/target", strategy, common_starts=common, episodes=1), devices=1)
        _, table = program.advance(program.init(), program.counts[2])
        spread[common] = np.asarray(table)[:2, program.names.index("fitness/std")]
    assert (spread[True] == 0.0).all()
    assert (spread[False] > 1e-3).all()


def test_statistics_are_those_of_the_views():
    """Of the first generation: 8 members and the centre see the same 500 starts, uniform on [-1, 1]."""
    program = make_evolution_program(plan("test/target", episodes=500), devices=1)
    carry, _ = program.advance(program.init(), program.counts[1])
    stats = policies_of(carry.learners)["agent"].view_stats
    starts = program.setup.vectorised(500).reset(
        jax.random.split(jax.random.fold_in(program.init().key, 0), 4)[1], jnp.arange(500, dtype=jnp.uint32)
    )
    views = starts.observation["agent"].view
    assert float(stats.count) == 9 * 500
    np.testing.assert_allclose(stats.mean, views.mean((0, 1)), atol=1e-5)
    np.testing.assert_allclose(stats.std, views.std((0, 1)), rtol=1e-4)


def test_devices_agree():
    """Each device plays half of the members; the rest is the same."""
    ends = []
    for devices in (1, 2):
        program = make_evolution_program(plan("test/target", population=16), devices=devices)
        carry, table = program.advance(program.init(), program.counts[3])
        ends.append((np.asarray(program.plan.strategy.centre(carry.search)), np.asarray(table)[:3]))
    np.testing.assert_allclose(ends[0][0], ends[1][0], atol=1e-4)
    np.testing.assert_allclose(ends[0][1], ends[1][1], atol=1e-3)


SLOWLY = [pytest.param(strategy, marks=pytest.mark.slow) for strategy in (ARS(), SeedChainGA(std=0.3))]


@pytest.mark.parametrize("strategy", [OpenES(std=0.2, learning_rate=0.1), *SLOWLY], ids=lambda one: one.name)
def test_the_best_continuous_action_is_found(strategy):
    """Half the view is paid 0. Doing nothing is paid -1/12 in the mean, at random -5/12."""
    change = plan("test/target", strategy, population=64, generations=40, episodes=16)
    result = run(change, on=Local(devices=1))
    assert result.update == 40
    found = evaluate(change.played.setup, result.policies, 512, seed=9).mean_return["agent"]
    assert found > -0.01
    assert result.lines[-1]["fitness/best"] > result.lines[0]["fitness/best"]
    assert result.lines[-1]["env_steps"] == 64 * 16 * 40  # one step each


@pytest.mark.slow
@pytest.mark.parametrize(("world", "enough", "sizes"), [("cartpole", 475.0, (15, 1)), ("pendulum", -200.0, (100, 4))])
def test_es_solves_classic_control(world, enough, sizes):
    algorithm = PPO(network=Network(hidden=(16,)))
    change = plan(f"control/{world}", OpenES(), algorithm, population=512, generations=sizes[0], episodes=sizes[1])
    result = run(change)
    assert evaluate(change.played.setup, result.policies, 512, seed=1000).mean_return["agent"] >= enough


@pytest.mark.parametrize("others", ["random", pytest.param("frozen", marks=pytest.mark.slow)])
def test_one_side_evolves(others):
    """Fitness is the return of the side that evolves, the sum over its agents: 2 scouts, not 3 carriers."""
    frozen = two_teams(carrier=Learner(PPO(network=TINY), {"carrier": ("carrier",)}, frozen=True))
    change = plan(experiment=frozen) if others == "frozen" else plan(experiment=two_teams(), evolve=("scout",))
    program = make_evolution_program(change, devices=1)
    assert program.evolving == ("scout",)
    _, table = program.advance(program.init(), program.counts[1])
    row = dict(zip(program.names, np.asarray(table)[0], strict=True))
    np.testing.assert_allclose(row["fitness/mean"], row["return/scout"] / row["episodes"], rtol=1e-5)
    np.testing.assert_allclose(row["return/carrier"] / 3, row["return/scout"] / 2, rtol=1e-5)


@pytest.mark.slow
def test_both_groups_of_a_team_evolve_as_one():
    change = plan(experiment=two_teams(), population=64, generations=40, episodes=32)
    result = run(change, on=Local(devices=1))
    assert result.lines[-1]["fitness/mean"] > 0.8 * result.lines[0]["fitness/mean"]


@pytest.mark.slow
def test_weights_of_another_run_are_where_it_starts(tmp_path):
    algorithm = PPO(network=TINY, minibatches=1, normalise_views=True)
    experiment = Experiment(
        "test/bandit", learners={"l": Learner(algorithm)}, num_envs=4, num_steps=2, total_env_steps=8
    )
    run(experiment, tmp_path / "run", on=Local(devices=1))
    _, policies, _ = load_policies(tmp_path / "run")
    learner = Learner(algorithm, weights=str(tmp_path / "run"))
    program = make_evolution_program(plan(experiment=dataclasses.replace(experiment, learners={"l": learner})))
    carry = program.begin()
    np.testing.assert_array_equal(carry.search.mean, program.genome.vector(policies))
    np.testing.assert_array_equal(jax.tree.leaves(policies)[0], jax.tree.leaves(policies_of(carry.learners))[0])


def test_episodes_that_do_not_end_are_cut_off():
    program = make_evolution_program(
        plan("test/truncation", experiment=Experiment("test/truncation", {"length": 50}), max_steps=7)
    )
    _, table = program.advance(program.init(), program.counts[1])
    row = dict(zip(program.names, np.asarray(table)[0], strict=True))
    assert row["fitness/best"] == row["fitness/policy"] == 7.0
    assert row["return/agent"] / row["episodes"] == row["length"] / row["episodes"] == 7.0


def erl_plan(**changes):
    """Episodes of 10 steps, in pieces of 4."""
    world = Experiment("test/truncation", {"length": 10}, learners={"l": Learner(DDPG_TINY)})
    sizes = {"population": 4, "generations": 4, "experiment": world}
    return plan(strategy=ERL(piece=4, elite_share=0.25), **sizes | changes)


@pytest.mark.slow
def test_erl_trains_a_learner_and_takes_its_actor_in():
    program = make_evolution_program(erl_plan())
    carry = program.init()
    fresh = np.asarray(program.genome.vector(policies_of(carry.gradient)))
    carry, table = program.advance(carry, program.counts[1])
    actor = np.asarray(program.genome.vector(policies_of(carry.gradient)))
    assert np.abs(actor - fresh).max() > 1e-5
    np.testing.assert_array_equal(carry.search.members[-1], actor)
    # Three pieces of all copies, (4 members + the explorer) x 2 episodes.
    replay = carry.gradient["l"].replay
    assert int(replay.written) == 12
    assert replay.num_envs == 10
    assert replay.store.truncated[9].all()  # episodes end by themselves after 10 steps
    assert replay.store.truncated[11].all()  # and the generation ends after 12
    assert replay.store.first[:12, 0].tolist() == [True] + 9 * [False] + [True, False]
    row = dict(zip(program.names, np.asarray(table)[0], strict=True))
    assert row["episodes"] == 8
    assert row["length"] == 80
    assert row["critic_loss"] > 0
    best = program.plan.strategy.centre(carry.search)
    np.testing.assert_array_equal(program.genome.vector(policies_of(carry.learners)), best)


def test_what_is_cut_short_bootstraps_from_its_last_view():
    """Two copies, two steps; the first has ended by itself, the second is cut, and only there a final view is set."""
    view = jnp.arange(4.0).reshape(2, 2, 1, 1)
    track = Trajectory(
        observation=Observation(view),
        action=jnp.zeros((2, 2, 1)),
        reward=jnp.zeros((2, 2, 1)),
        extras={},
        final_value=jnp.zeros((2, 2, 1)),
        memory=(),
        last_observation=Observation(jnp.full((2, 1, 1), 9.0)),
        last_memory=(),
        final_observation=Observation(jnp.zeros((2, 2, 1, 1))),
    )
    flags = jnp.zeros((2, 2), bool)
    whole = Experience({"a": track}, flags, flags.at[1, 0].set(True), flags)
    learning = {"l": (None, dataclasses.make_dataclass("Spec", ["groups"])({"a": None}))}
    cut = close_trajectory(whole, jnp.bool_(True), learning)
    assert cut.truncated.tolist() == [[False, False], [False, True]]
    assert cut.trajectories["a"].final_observation.view[..., 0, 0].tolist() == [[0.0, 0.0], [0.0, 9.0]]
    same = close_trajectory(whole, jnp.bool_(False), learning)
    assert not same.truncated.any()


class Stopper:
    """Asks the loop to stop, as Ctrl-C does."""

    def __init__(self, after):
        self.after = after

    def __call__(self, progress):
        if progress.update >= self.after and threading.current_thread() is threading.main_thread():
            self.after = 10**9
            os.kill(os.getpid(), signal.SIGINT)


def lines(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


@pytest.mark.parametrize("kind", ["open_es", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ga", "erl"))])
def test_resume_gives_the_same_bits(tmp_path, kind):
    changes = {"generations": 14}
    change = {
        "open_es": lambda: plan("test/target", **changes, episodes=3),
        "ga": lambda: plan("test/bandit", SeedChainGA(), **changes),
        "erl": lambda: erl_plan(**changes),
    }[kind]()
    devices = 2 if kind == "open_es" else 1
    run(change, tmp_path / "whole", on=Local(devices=devices))
    stopped = run(change, tmp_path / "parts", on=Local(devices=devices), listener=Stopper(2), checkpoint_seconds=0.0)
    assert stopped.interrupted
    assert 2 <= stopped.update < 14
    assert open_run(tmp_path / "parts", None).config == change.at_home()
    finished = resume(tmp_path / "parts")
    assert finished.update == 14
    folders = [tmp_path / name / "checkpoints" for name in ("whole", "parts")]
    jax.tree.map(np.testing.assert_array_equal, *(checkpoint.read_arrays(checkpoint.latest(f)) for f in folders))
    assert lines(tmp_path / "whole") == lines(tmp_path / "parts")
    setup, policies, meta = load_policies(tmp_path / "parts")
    assert meta["env_steps"] == lines(tmp_path / "parts")[-1]["env_steps"] > 0
    assert evaluate(setup, policies, 8).episodes == 8


@pytest.mark.parametrize(
    ("generations", "every", "at"),
    [(9, 50, [60, 100, 160, 180]), pytest.param(401, 100, [120, 200, 320, 400], marks=pytest.mark.slow)],
)
def test_evaluations_are_by_the_env_steps_played(tmp_path, generations, every, at):
    """20 of them a generation; lines of metrics are of one generation, or of two. A resumed run has the same."""
    experiment = Experiment("mpe/simple_spread", {"max_steps": 5}, eval_every=every, eval_episodes=2)
    played = plan(experiment=experiment, generations=generations, population=4, episodes=1)
    run(played, tmp_path / "whole", on=Local(devices=1))
    found = [line["env_steps"] for line in lines(tmp_path / "whole") if "eval/return" in line]
    assert (found[:4], found[-1]) == (at, 20 * generations)
    run(played, tmp_path / "parts", on=Local(devices=1), listener=Stopper(2), checkpoint_seconds=0.0)
    resume(tmp_path / "parts")
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")


class Broken(Bandit):
    """An arm that pays NaN."""

    def step(self, key, state, actions, params):
        state, outcome = super().step(key, state, actions, params)
        return state, outcome.replace(reward={"agent": jnp.where(actions["agent"] == 0, jnp.nan, 1.0)})


@pytest.mark.parametrize("every", [0, 1])
def test_nan_is_reported_and_not_saved(tmp_path, every):
    register("test/broken", Broken)
    broken, told = plan("test/broken", generations=20), []
    broken = dataclasses.replace(broken, experiment=broken.experiment.replace(eval_every=every, eval_episodes=2))
    with pytest.raises(NonFiniteError, match=r"became NaN or infinite in generation 1 of world 'test/broken'"):
        run(broken, tmp_path / "run", on=Local(devices=1), listener=lambda progress: told.append(progress.update))
    assert told[-1] < 20, "it ends soon, evaluated or not"
    stored = checkpoint.read_arrays(checkpoint.latest(tmp_path / "run" / "checkpoints"))
    assert stored["generation"] == 0
    assert all(np.isfinite(leaf).all() for leaf in stored.values() if leaf.dtype == np.float32)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: plan(population=1), "population must be a whole number, at least 2, got 1"),
        (lambda: plan(population=7), "population must be even"),
        (lambda: plan(generations=0), "generations must be greater than 0"),
        (lambda: plan(episodes=1.5), "episodes must be a whole number"),
        (lambda: plan(population=10**18), r"population must be less than 2\^31, as all of its"),
        (lambda: plan(max_steps=10**18), r"max_steps must be less than 2\^31"),
        (lambda: plan(experiment=Experiment("test/bandit", num_seeds=2)), "num_seeds must be 1"),
        (
            lambda: make_evolution_program(plan(evolve=("agnt",))),
            "unknown policy to evolve 'agnt'. Did you mean 'agent'",
        ),
        (lambda: make_evolution_program(plan(), devices=3), "multiple of the devices, 3, got 8"),
        (lambda: make_evolution_program(plan(experiment=Experiment("matrix/matching_pennies"))), "the players compete"),
        (lambda: make_evolution_program(plan(strategy=ERL())), "'ppo', which has no replay"),
        (
            lambda: make_evolution_program(plan("test/two_teams", ERL(), DDPG_TINY, evolve=("scout",))),
            "all policies of 'l'",
        ),
        (lambda: from_plain(Evolution, {"populaton": 3}, "evolution"), "unknown entry 'populaton'"),
    ],
)
def test_bad_input(make, words):
    with pytest.raises(OptionError, match=words):
        make()


def test_a_frozen_policy_does_not_evolve():
    frozen = two_teams(carrier=Learner(PPO(network=TINY), {"carrier": ("carrier",)}, frozen=True))
    with pytest.raises(OptionError, match="'carrier' belongs to a frozen learner"):
        make_evolution_program(plan(experiment=frozen, evolve=("carrier",)))
