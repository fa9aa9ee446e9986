"""Learnt populations: who meets whom, what is compiled, payoffs against exact ones, resuming to the bit."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.algorithms import PPO
from shoal.batching.vectorise import vectorise
from shoal.core.algorithm import LearnerSpec
from shoal.core.env import describe
from shoal.networks.torsos import Network
from shoal.populations.game import Game
from shoal.populations.matches import Matches
from shoal.populations.opponents import OpponentMemory, Opponents, draw
from shoal.populations.oracles import LearnedOracle
from shoal.populations.population import PopulationConfig, oracle_of, restore
from shoal.populations.psro import PSRO, begin_population, psro
from shoal.populations.responses import Responses
from shoal.presets import resolve
from shoal.training import checkpoint
from shoal.training.experiment import Experiment
from shoal.training.runner import Local, resume, run
from tests.populations.folders import Killed, kill_in
from tests.worlds.bandit import Bandit

TINY = PPO(minibatches=2, epochs=1, gamma=1.0, network=Network(hidden=(8,), share_torso=True))


def tiny(game="psro/kuhn", **changes) -> Experiment:
    experiment = resolve(game)
    learners = {name: dataclasses.replace(learner, algorithm=TINY) for name, learner in experiment.learners.items()}
    sizes = {"num_envs": 32, "num_steps": 4, "total_env_steps": 32 * 4 * 3}
    return dataclasses.replace(experiment, learners=learners, **sizes | changes)


def test_draws_follow_the_mixture_and_never_what_has_no_chance():
    mixture = jnp.array([0.0, 0.7, 0.0, 0.3, 0.0])
    uniform = jnp.append(jax.random.uniform(jax.random.key(0), (20_000,)), jnp.array([0.0, 1.0]))
    drawn = np.asarray(draw(mixture, uniform))
    assert set(drawn.tolist()) == {1, 3}
    assert np.mean(drawn == 1) == pytest.approx(0.7, abs=0.02)


def test_opponents_are_drawn_per_copy_and_kept_for_the_episode():
    world = Game(tiny("psro/leduc")).world
    opponents = Opponents(TINY, 4)
    responses = Responses(Game(tiny("psro/leduc")), 4, devices=1)
    _, spec = responses.programs["player_0"].setup.learners["player_1"]
    bank = opponents.init(jax.random.key(0), spec).params["player_1"]
    bank = bank.replace(mixture=jnp.array([0.25, 0.25, 0.5, 0.0]))
    copies = vectorise(world, 512)
    worlds = jax.jit(copies.reset)(jax.random.key(1))
    memory = OpponentMemory(jnp.zeros((512, 1), jnp.int32), ())
    play = jax.jit(
        lambda observation, memory, keys, worlds: opponents.act_batch(bank, observation, memory, keys, worlds, 1)
    )
    step = jax.jit(copies.step)
    before, seen, changed = None, [], 0
    for _ in range(6):
        observation = jax.tree.map(lambda leaf: leaf[:, 1:], worlds.observation["player"])
        keys = jnp.broadcast_to(worlds.key[:, None], (512, 1))
        action, memory = play(observation, memory, keys, worlds)
        index = np.asarray(memory.index[:, 0])
        if before is not None:
            same = ~np.asarray(worlds.first)
            np.testing.assert_array_equal(index[same], before[same])
            changed += int((index[~same] != before[~same]).sum())
        seen.append(index)
        before = index
        # the first player checks or calls for ever; episodes end at different times
        moves = jnp.concatenate([jnp.ones((512, 1), jnp.int32), action.reshape(512, 1)], axis=1)
        worlds, _, _ = step(worlds, {"player": moves})
    assert changed > 100
    shares = np.bincount(seen[0], minlength=4) / 512
    np.testing.assert_allclose(shares, [0.25, 0.25, 0.5, 0.0], atol=0.07)


def test_seats_draw_apart():
    """Two groups of one world, whose opponents are drawn from the same mixture, do not get the same ones."""
    opponents = Opponents(TINY, 2)
    worlds = jax.jit(vectorise(Bandit(), 64).reset)(jax.random.key(0))
    seen, keys = worlds.observation["agent"], worlds.key[:, None]
    spec = LearnerSpec(describe(Bandit()).groups, None)
    bank = jax.jit(lambda key: opponents.init(key, spec).params["agent"])(jax.random.key(0))
    bank = bank.replace(mixture=jnp.array([0.5, 0.5]))
    memory = OpponentMemory(jnp.zeros((64, 1), jnp.int32), ())
    play = jax.jit(opponents.act_batch, static_argnums=5)
    drawn = [np.asarray(play(bank, seen, memory, keys, worlds, seat)[1].index) for seat in range(3)]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert 16 < (drawn[one] == drawn[other]).sum() < 48


@pytest.mark.slow
def test_sampled_payoffs_agree_with_exact_ones():
    game = Game(tiny())
    oracle = LearnedOracle(game, episodes=4000)
    state = begin_population(oracle.first())
    plan = PSRO(iterations=2, episodes=4000, meta_solver="uniform")
    *_, state = psro(state, plan, oracle.respond, oracle.evaluate, oracle.measure)
    assert game.tables is not None
    exact = game.tables.payoff_table(oracle.plans(game.tables, state))
    off = np.abs(state.table.mean - exact) / state.table.standard_error
    assert state.table.count.min() == 4000
    assert off.max() < 4.0


def test_results_do_not_depend_on_batches():
    game = Game(tiny())
    first = Responses(game, 1).fresh(0)
    banks = {player: jax.tree.map(lambda leaf: leaf[None], policy) for player, policy in first.items()}
    lineups = np.zeros((1, 2), int)
    many = Matches(game, batch=256, devices=1).play(banks, lineups, 300, seed=0, first=5)
    few = Matches(game, batch=64, devices=1).play(banks, lineups, 300, seed=0, first=5)
    np.testing.assert_allclose(many[0], few[0])
    np.testing.assert_allclose(many[1], few[1])


@pytest.mark.slow
def test_a_long_psro_compiles_each_program_at_most_four_times():
    settings = PopulationConfig(tiny(total_env_steps=32 * 4), PSRO(iterations=40, episodes=4, meta_solver="uniform"))
    oracle = oracle_of(settings, devices=1)
    *_, state = psro(begin_population(oracle.first()), settings.psro, oracle.respond, oracle.evaluate, oracle.measure)
    assert isinstance(oracle, LearnedOracle)
    assert state.table.sizes == (41, 41)
    trainers = [trainer for trainer in oracle._responses.values() if "_starts" in vars(trainer)]
    assert 1 <= len(trainers) <= 4
    compiled = [one for trainer in trainers for one in trainer._starts.values()]
    compiled += [program.advance for trainer in trainers for program in trainer.programs.values()]
    assert all(one._cache_size() == 1 for one in compiled)
    assert oracle.matches.program._cache_size() <= 4


@pytest.mark.slow
def test_resume_to_the_bit(tmp_path):
    settings = PopulationConfig(tiny(), PSRO(iterations=2, episodes=64, meta_solver="nash"))
    whole = run(settings, tmp_path / "whole", on=Local(devices=1)).standing["state"]
    with pytest.raises(Killed):
        run(settings, tmp_path / "part", on=Local(devices=1), listener=kill_in(2))
    assert max(checkpoint.steps(tmp_path / "part" / "checkpoints")) == 1
    again = resume(tmp_path / "part", on=Local(devices=1)).standing["state"]
    jax.tree.map(
        np.testing.assert_array_equal,
        {name: bank.policies for name, bank in whole.banks.items()},
        {name: bank.policies for name, bank in again.banks.items()},
    )
    np.testing.assert_array_equal(whole.table.total, again.table.total)
    assert [line["value"] for line in whole.history] == [line["value"] for line in again.history]
    assert again.banks["player_0"].members == whole.banks["player_0"].members


@pytest.mark.slow
def test_a_pipeline_trains_on_and_lets_go_of_one_policy_a_round(tmp_path):
    experiment = dataclasses.replace(tiny(), keep_checkpoints=4)
    settings = PopulationConfig(experiment, PSRO(iterations=3, episodes=64, meta_solver="uniform"), levels=2)
    state = run(settings, tmp_path / "run", on=Local(devices=1)).standing["state"]
    saved = checkpoint.steps(tmp_path / "run" / "checkpoints")
    states = [restore(saved[step], settings, oracle_of(settings, devices=1)) for step in range(4)]
    assert [len(one.banks["player_0"]) for one in states] == [1, 3, 4, 5]

    def same(a, b, index):
        one, two = states[a].banks["player_1"][index], states[b].banks["player_1"][index]
        return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True))

    assert not same(1, 2, 1)  # it was live in the second round
    assert same(2, 3, 1)  # and done after it
    assert not same(2, 3, 2)
    assert (state.table.count == 64).all()  # entries of those that changed were played anew, others were not
    config = tmp_path / "run" / "config.json"
    config.write_text(config.read_text().replace('"iterations": 3', '"iterations": 4'))
    assert len(resume(tmp_path / "run", on=Local(devices=1)).standing["state"].banks["player_0"]) == 6


@pytest.mark.slow
def test_a_league_keeps_snapshots_of_all_roles():
    settings = PopulationConfig(tiny(), PSRO(meta_solver="league", iterations=2, episodes=64))
    state = run(settings, on=Local(devices=1)).standing["state"]
    setup = [member.info.get("role") for member in state.banks["player_0"].members]
    assert setup == [None, "main", "main_exploiter", "league_exploiter", "main", "main_exploiter", "league_exploiter"]
    assert state.banks["player_0"].members[4].parent == 1
    assert [int(np.argmax(mixture)) for mixture in state.mixtures] == [4, 4]


@pytest.mark.slow
@pytest.mark.parametrize(("game", "value"), [("psro/rock_paper_scissors", 0.0), ("psro/kuhn", -1 / 18)])
def test_learnt_responses_reach_the_value_on_paper(game, value):
    state = run(
        PopulationConfig(
            resolve(game), PSRO(iterations=14, meta_solver="nash" if "rock" in game else "fictitious_play")
        )
    ).standing["state"]
    assert state.values[0] == pytest.approx(value, abs=0.05)
    assert state.history[-1]["nash_conv"] < 0.15
