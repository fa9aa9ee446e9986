"""Population-based training: one program, copies that are copies, runs that go on to the bit, members that fail."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.algorithms import A2C, DDPG, DQN, PPO, SAC
from shoal.core.errors import NonFiniteError, OptionError, RunError
from shoal.core.registry import register
from shoal.networks.torsos import Network
from shoal.populations.pbt.plan import PBT, Range
from shoal.populations.pbt.program import make_pbt_program
from shoal.training import checkpoint
from shoal.training import program as programs
from shoal.training.callbacks import Observers
from shoal.training.experiment import Experiment, Learner
from shoal.training.loop import Loop, Saving
from shoal.training.metrics import read_metrics
from shoal.training.run import create, load_policies, open_run
from shoal.training.runner import Local, resume, run
from shoal.training.serialise import from_plain, to_plain
from tests.worlds.bandit import Bandit, Target

TINY = Network(hidden=(4,))
RATES = {"learning_rate": Range(1e-4, 1e-1, log=True)}
REPLAY = {"network": TINY, "warm_up": 64, "buffer_size": 640, "batch_size": 16, "gradient_steps": 1}


@pytest.fixture(autouse=True)
def _worlds():
    register("test/bandit", Bandit)
    register("test/target", Target)


def bandit(updates=8, algorithm=A2C(network=TINY), **changes):
    sizes = {"num_envs": 16, "num_steps": 4, "total_env_steps": 64 * updates}
    return Experiment(**{"env": "test/bandit"} | sizes | changes, learners={"l": Learner(algorithm)})


def plan(members=5, interval=2, fraction=0.4, **changes):
    return PBT(
        **{"experiment": bandit(), "over": RATES} | changes, members=members, interval=interval, fraction=fraction
    )


def column(program, table, name, count):
    return np.asarray(table)[:, :count, program.names.index(name)]


def with_rates(state, rates):
    """The state with other learning rates, which lie where the old ones do: elsewhere would be another program."""
    learner = state.members.learners["l"]
    old = learner.hyper["learning_rate"]
    hyper = learner.hyper | {"learning_rate": jax.device_put(np.asarray(rates, np.float32), old.sharding)}
    return state.replace(members=state.members.replace(learners={"l": learner.replace(hyper=hyper)}))


def same(one, other):
    one, other = (jax.tree.map(_raw, tree) for tree in (one, other))
    return all(jax.tree.leaves(jax.tree.map(lambda a, b: bool(np.array_equal(a, b, equal_nan=True)), one, other)))


def _raw(leaf):
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def lane(tree, member):
    return jax.tree.map(lambda leaf: leaf[member], tree)


@pytest.fixture(scope="module")
def program():
    """Five members of eight updates, compared after every second one."""
    register("test/bandit", Bandit)
    return make_pbt_program(plan(), 1)


def test_copies_are_copies_and_all_else_is_left_alone(program):
    """After two updates the two worst take over all that was learnt by the two best, but for their own worlds."""
    never = make_pbt_program(plan(interval=7), 1)
    assert not same(lane(program.init().learners["l"].params, 0), lane(program.init().learners["l"].params, 1))
    state, table = program.advance(program.init(), program.counts[2])
    alone, untouched = never.advance(never.init(), never.counts[2])
    source = column(program, table, "pbt/source", 2).astype(int)
    assert (source[:, 0] == np.arange(5)).all()
    source = source[:, 1]
    scores = column(program, table, "return/agent", 2).sum(1) / 128
    np.testing.assert_allclose(column(program, table, "pbt/score", 2)[:, 1], scores, rtol=1e-6)
    order = np.argsort(-scores)
    assert set(source[order[3:]]) <= set(order[:2])
    assert (source[order[:3]] == order[:3]).all()
    rates = np.asarray(alone.learners["l"].hyper["learning_rate"])
    new = np.asarray(state.learners["l"].hyper["learning_rate"])
    learnt, before = (jax.device_get(each.learners["l"].replace(hyper={})) for each in (state, alone))
    for member, taken in enumerate(source):
        assert same(lane(learnt, member), lane(before, taken))
        assert (new[member] == rates[member]) == (member == taken)
    assert same(state.members.worlds, alone.members.worlds)
    np.testing.assert_allclose(state.record.score, scores[source], rtol=1e-6)
    columns = len(program.inner.names)
    np.testing.assert_array_equal(np.asarray(table)[..., :columns], np.asarray(untouched)[..., :columns])


def test_one_compilation_a_donated_state_and_nothing_for_the_host(program):
    state = program.init()
    held = jax.tree.leaves(state.members.learners)[0]
    state, _ = program.advance(state, program.counts[1])
    assert held.is_deleted()
    with jax.transfer_guard("disallow"):
        for count in (1, 2, 4):
            state, table = program.advance(state, program.counts[count])
    assert program.advance._cache_size() == 1
    assert int(state.members.update[0]) == 8
    whole, again = program.advance(program.init(), program.counts[8])
    assert same(state, whole)  # whatever the size of the calls
    assert np.array_equal(np.asarray(table)[:, :4], np.asarray(again)[:, 4:8])
    moved = (column(program, again, "pbt/source", 8) != np.arange(5)[:, None]).any(0)
    assert moved.tolist() == [False, True, False, True, False, True, False, False]  # not after the last


def test_it_finds_a_rate_that_learns():
    """All begin with a rate that learns nothing; uniform play of the bandit earns 0.5, the best arm 0.9."""
    over = {"learning_rate": Range(1e-6, 1e-1, log=True)}
    found = make_pbt_program(plan(8, 5, 0.25, experiment=bandit(updates=160), over=over), 1)
    state, table = found.advance(with_rates(found.init(), [1e-6] * 8), found.counts[160])
    earned = column(found, table, "return/agent", 160)
    assert earned[:, :5].sum(1).max() / 320 < 0.65
    member = int(found.best(state).member)
    assert state.learners["l"].hyper["learning_rate"][member] > 1e-3
    assert earned[member, -5:].sum() / 320 > 0.8


@pytest.mark.slow
def test_runs_go_on_to_the_bit_with_members_that_fail(tmp_path, monkeypatch):
    """A line covers three updates, so that rows, and copies among them, wait for the line's end in checkpoints.

    The upper end of the range is too much for anybody, and seed 6 begins with one member there.
    """
    monkeypatch.setattr(programs, "LINES", 3)
    wide = plan(interval=4, over={"learning_rate": Range(1e-3, 1e38, log=True)}, experiment=bandit(updates=11, seed=6))
    result = run(wide, tmp_path / "run", on=Local(devices=1), checkpoint_seconds=0.0)
    folder = open_run(tmp_path / "run", None)
    assert folder.config == wide
    lines = read_metrics(folder.metrics)
    wanted = checkpoint.read_arrays(checkpoint.latest(folder.checkpoints))
    assert [line["update"] for line in lines] == [3, 6, 9, 11]
    assert all(len(line["pbt/learning_rate"]) == len(line["pbt/source"]) == 5 for line in lines)
    assert [line["pbt/score"][4] is None for line in lines] == [True, False, False, False]
    assert lines[1]["pbt/source"][4] != 4
    checkpoint.latest(folder.checkpoints).unlink()
    held = checkpoint.read_meta(checkpoint.latest(folder.checkpoints))
    assert held["update"] < 11
    assert held["pending"]
    other = resume(tmp_path / "run")
    found = checkpoint.read_arrays(checkpoint.latest(folder.checkpoints))
    assert set(found) == set(wanted)
    assert all(np.array_equal(found[name], wanted[name], equal_nan=True) for name in wanted)
    assert other.standing == result.standing
    for one, two in zip(lines, read_metrics(folder.metrics), strict=True):
        assert {**one, "seconds": 0} == {**two, "seconds": 0}
    _, policies, meta = load_policies(tmp_path / "run")
    assert same(policies, result.policies)
    assert meta["pbt"]["member"] == result.standing["member"]
    scores = result.standing["scores"]
    assert scores[result.standing["member"]] == max(score for score in scores if score is not None)


def test_a_run_of_another_kind_is_refused(tmp_path):
    create(tmp_path / "plain", bandit())
    with pytest.raises(RunError, match="not of population-based training"):
        open_run(tmp_path / "plain", "pbt")


def test_a_member_that_fails_is_replaced(program):
    rates = np.full(5, 1e-2)
    rates[3] = 1e38
    state, table = program.advance(with_rates(program.init(), rates), program.counts[6])
    fault = column(program, table, "fault", 6)
    assert fault[3, 1] > 0
    assert fault[:3].max() == 0
    source = column(program, table, "pbt/source", 6)[:, 1]
    assert source[3] in (0, 1, 2, 4)
    assert not (source[[0, 1, 2, 4]] == 3).any()
    assert fault[3, 2] == 0
    assert np.isnan(column(program, table, "pbt/score", 6)[3, 1])
    assert not np.asarray(state.members.latch.kind).any()
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(state.learners["l"].params))


def test_when_all_fail_it_says_so(program):
    loop = Loop(program, None, Observers(), Saving(math.inf))
    with pytest.raises(NonFiniteError, match=r"all 5 members have failed. The first: .* in update"):
        loop.run(with_rates(program.init(), [1e38] * 5), None)


@pytest.mark.slow
def test_a_replay_stays_with_its_member_and_is_emptied_if_that_failed():
    learner = DQN(prioritised=True, **REPLAY)
    program = make_pbt_program(plan(experiment=bandit(algorithm=learner, updates=9), interval=4), 1)
    rates = np.full(5, 1e-2)
    rates[3] = 1e38
    state, table = program.advance(with_rates(program.init(), rates), program.counts[3])
    before = jax.device_get(state.learners["l"].replay.store.reward["agent"])
    state, table = program.advance(state, program.counts[1])
    source = column(program, table, "pbt/source", 1)[:, 0].astype(int)
    replay = state.learners["l"].replay
    assert source[3] != 3
    assert replay.written.tolist() == [16, 16, 16, 0, 16]
    assert float(jnp.max(replay.priority[3])) == 0.0
    assert float(jnp.max(replay.priority[0])) > 0.0
    assert np.array_equal(replay.store.reward["agent"][:, :12], before[:, :12])  # everybody's own
    state, table = program.advance(state, program.counts[4])
    assert np.asarray(table)[3, :4, program.names.index("fault")].max() == 0


@pytest.mark.slow
def test_two_devices_agree_with_one():
    """In a world whose returns are hardly ever the same: a tie may be broken by rounding."""
    same_plan = plan(experiment=bandit(env="test/target"))
    one, two = (make_pbt_program(same_plan, devices) for devices in (1, 2))
    results = [program.advance(program.init(), program.counts[4])[1] for program in (one, two)]
    np.testing.assert_allclose(*(np.asarray(table)[:, :4] for table in results), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "env", "over"),
    [
        (DDPG(critic="global", **REPLAY), "mpe/simple_spread", {"actor_learning_rate": Range(1e-4, 1e-2, log=True)}),
        (DQN(mixer="monotonic", **REPLAY), "mpe/simple_spread", {"gamma": Range(0.9, 0.99)}),
        (SAC(critic="attention", **REPLAY), "mpe/simple_spread", {"target_rate": Range(1e-3, 1e-1, log=True)}),
        (PPO(network=Network(hidden=(4,), recurrent="gru", recurrent_size=4), epochs=1), "test/bandit", RATES),
    ],
    ids=["maddpg", "qmix", "maac", "recurrent ppo"],
)
def test_any_algorithm_nests(algorithm, env, over, tmp_path):
    experiment = Experiment(
        env, learners={"l": Learner(algorithm)}, num_envs=8, num_steps=25, total_env_steps=8 * 25 * 5
    )
    nested = PBT(experiment, over, members=3, interval=2)
    result = run(nested, tmp_path / "run", on=Local(devices=1))
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [line["update"] for line in lines if line["pbt/source"] != [0, 1, 2]] == [2, 4]
    assert all(score is not None for score in result.standing["scores"])
    assert same(load_policies(tmp_path / "run")[1], result.policies)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: plan(members=1), "pbt: members must be a whole number, 2 or more, got 1"),
        (lambda: plan(interval=8), "interval must be .* less than the updates of the run, 8, got 8"),
        (lambda: plan(interval=0), "interval must be .* at least 1"),
        (lambda: plan(over={}), "over must be at least one option with its range"),
        (lambda: plan(over={"gamma": (0.9, 0.8)}), "over must be a mapping, each entry a Range"),
        (lambda: plan(over={"learning_rat": Range(0.1, 0.2)}), "^pbt: unknown option 'learning_rat'. Did you mean"),
        (lambda: plan(over={"gamma": Range(0.9, 1.5)}), "gamma must be at least 0 and at most 1, got 1.5"),
        (lambda: plan(over={"entropy_coef": Range(0.0, 0.1), "l.entropy_coef": Range(0.0, 0.1)}), "both set"),
        (lambda: plan(fraction=0.6), "fraction must be greater than 0 and at most 0.5, got 0.6"),
        (lambda: plan(factor=1.0), "factor must be greater than 1"),
        (lambda: plan(resample=1.5), "resample must be at least 0 and at most 1"),
        (lambda: plan(experiment=bandit(num_seeds=2)), "num_seeds must be 1"),
        (lambda: make_pbt_program(plan(measure="return/agnt"), 1), "^pbt: unknown measure 'return/agnt'. Did you mean"),
        (
            lambda: make_pbt_program(PBT(Experiment("pong"), RATES, interval=1), 1),
            "the players compete.*return/left, return/right",
        ),
    ],
)
def test_bad_input(make, words):
    with pytest.raises(OptionError, match=words):
        make()


def test_plans_survive_json():
    one = plan(over={"l.learning-rate": Range(1e-4, 1e-2, log=True), "gamma": Range(0.9, 1.0)}, measure="return")
    assert from_plain(PBT, json.loads(json.dumps(to_plain(one))), "pbt") == one
    with pytest.raises(OptionError, match=r"unknown entry 'membrs'. Did you mean 'members'"):
        from_plain(PBT, to_plain(one) | {"membrs": 3}, "pbt")
