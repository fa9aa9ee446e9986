"""Policies of other runs in a bank: where they come from, that nobody trains on them, and what does not fit."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest

from shoal.algorithms import A2C, PPO
from shoal.cli import main
from shoal.core.errors import OptionError, RunError
from shoal.games.payoff import PayoffTable
from shoal.networks.torsos import Network
from shoal.populations import league
from shoal.populations.bank import Member, PolicyBank
from shoal.populations.game import Game
from shoal.populations.oracles import LearnedOracle
from shoal.populations.policy_import import import_from_training
from shoal.populations.population import PopulationConfig, beginning, oracle_of
from shoal.populations.psro import PSRO
from shoal.presets import resolve
from shoal.training import checkpoint
from shoal.training.experiment import Experiment, Learner
from shoal.training.run import create, load_policies
from shoal.training.runner import Local, resume, run
from tests.populations.folders import save

TINY = PPO(minibatches=2, epochs=1, gamma=1.0, network=Network(hidden=(8,), share_torso=True))
SIZES = {"num_envs": 32, "num_steps": 4, "total_env_steps": 32 * 4}


def tiny(algorithm=TINY) -> Experiment:
    experiment = resolve("psro/kuhn")
    learners = {name: dataclasses.replace(one, algorithm=algorithm) for name, one in experiment.learners.items()}
    return dataclasses.replace(experiment, learners=learners, **SIZES)


def settings(*imports, **changes) -> PopulationConfig:
    plan = PSRO("uniform", iterations=1, episodes=64)
    return dataclasses.replace(PopulationConfig(tiny(), plan, imports=tuple(map(str, imports))), **changes)


def same(one, other) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


SHARED = Experiment("cards/kuhn", learners={"learner": Learner(TINY)}, **SIZES)
"""Kuhn, one policy for both seats."""


META = {"update": 1, "env_steps": 1, "devices": 1, "seconds": 0.0, "pending": []}


def as_if_trained(path, **changes):
    """A run of `shoal train` with fresh policies."""
    begun = create(path, dataclasses.replace(SHARED, **changes))
    [(algorithm, spec)] = begun.experiment.setup.learners.values()
    seeds = jax.random.split(jax.random.key(5), begun.experiment.num_seeds)
    each = [algorithm.init(key, spec).params for key in seeds]
    params = jax.tree.map(lambda *leaves: np.stack(leaves), *each) if len(each) > 1 else each[0]
    checkpoint.save(begun.checkpoints, 1, {"learners": {"learner": {"params": params}}}, META)
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return as_if_trained(tmp_path_factory.mktemp("runs") / "trained")


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """A population of fresh networks, of whom the second has no weight."""
    path, own = tmp_path_factory.mktemp("runs") / "grown", settings()
    oracle = oracle_of(own, devices=1)
    assert isinstance(oracle, LearnedOracle)
    state = beginning(own, oracle)
    for number in (1, 2):
        new = oracle._trainer(1).fresh(number)
        banks = {name: bank.add(new[name], Member(str(number))) for name, bank in state.banks.items()}
        state = dataclasses.replace(state, banks=banks)
    mixtures = (np.array([0.4, 0.0, 0.6]), np.array([0.0, 0.0, 1.0]))
    table, line = (
        PayoffTable.empty(2).grow((3, 3)),
        {"iteration": 2, "population": 3, "support": [2, 1], "seconds": 1.0},
    )
    create(path, own)
    save(path, dataclasses.replace(state, table=table, mixtures=mixtures, history=(line,), iteration=2))
    return path, state


def test_one_policy_of_a_training_joins_the_banks_of_all_it_plays_for(trained):
    own = settings(trained, trained)
    state = beginning(own, oracle_of(own, devices=1))
    _, policies, _ = load_policies(trained)
    for bank in state.banks.values():
        assert [member.frozen for member in bank.members] == [False, True]  # given twice, it joins once
        assert bank.members[1].info == {
            "run": str(trained),
            "checkpoint": "step-0000000001.npz",
            "policy": "player",
        }
        assert same(bank[1], policies["player"])
        assert bank.newest == 0


def test_the_support_of_another_population(grown):
    path, other = grown
    own = settings(path)
    state = beginning(own, oracle_of(own, devices=1))
    first, second = state.banks.values()
    assert [member.info.get("member") for member in first.members] == [None, 0, 2]
    assert [member.info.get("member") for member in second.members] == [None, 2]
    assert second.members[1].info["player"] == "player_1"
    assert same(first[2], other.banks["player_0"][2])


def test_what_a_population_imported_itself_says_where_it_first_came_from(trained, tmp_path):
    own = settings(trained)
    state = beginning(own, oracle_of(own, devices=1))
    mixtures, line = (np.array([0.5, 0.5]),) * 2, {"iteration": 0, "population": 2, "support": [2, 2], "seconds": 1.0}
    table = PayoffTable.empty(2).grow((2, 2))
    create(tmp_path / "between", own)
    save(tmp_path / "between", dataclasses.replace(state, table=table, mixtures=mixtures, history=(line,)))
    after = settings(trained, tmp_path / "between")
    bank = beginning(after, oracle_of(after, devices=1)).banks["player_0"]
    assert [member.info.get("run") for member in bank.members] == [None, str(trained), str(tmp_path / "between")]


def test_a_warm_start_is_from_the_newest_that_is_not_frozen(trained):
    own = settings(trained, warm_start=True)
    oracle = oracle_of(own, devices=1)
    state = dataclasses.replace(beginning(own, oracle), mixtures=(np.array([0.5, 0.5]),) * 2)
    assert isinstance(oracle, LearnedOracle)
    given = oracle._training_inputs(state)
    for player, bank in state.banks.items():
        assert same(jax.tree.map(lambda leaf: leaf[0], given.initial_policies[player]), bank[0])
        assert oracle._parents(state)[player] == 0
    assert given.opponent_mixtures["player_0"]["player_1"][0, :2].tolist() == [0.5, 0.5]  # it is met all the same


def test_nothing_takes_the_place_of_a_frozen_policy():
    bank = PolicyBank.of(np.zeros(1), Member("0")).add(np.ones(1), Member("1", frozen=True))
    with pytest.raises(OptionError, match="policy '1' of the bank is frozen"):
        bank.replace_policy(1, np.zeros(1))
    assert bank.add(np.ones(1), Member("2")).newest == 2


def test_in_a_league_frozen_policies_are_opponents_only():
    bank = PolicyBank.of(np.zeros(1), Member("0")).add(np.ones(1), Member("1", frozen=True))
    assert league.newest(bank, "main") == league.newest(bank, "main_exploiter") == 0
    probabilities = league.opponents("main", np.array([1.0, 0.0]), bank)
    np.testing.assert_allclose(probabilities, [0.35 + 0.15, 0.5])


def test_exact_plans_of_another_population(tmp_path):
    plan = PSRO("nash", iterations=20, target_nash_conv=1e-9)
    solved = run(PopulationConfig(resolve("psro/kuhn"), plan, "exact"), tmp_path / "solved").standing["state"]
    own = PopulationConfig(
        resolve("psro/kuhn"), PSRO("nash", iterations=1), "exact", imports=(str(tmp_path / "solved"),)
    )
    state = own.program().begin()
    support = [int((mixture > 1e-3 * mixture.max()).sum()) for mixture in solved.mixtures]
    assert [len(bank) for bank in state.banks.values()] == [1 + count for count in support]
    assert run(own).lines[0]["nash_conv"] == pytest.approx(0.0, abs=1e-9)  # the equilibrium is there from the start


@pytest.mark.slow
def test_resume_to_the_bit_without_the_runs_that_were_imported(tmp_path):
    source = tmp_path / "source"
    run(SHARED, source, on=Local(devices=1))
    longer = settings(source, psro=PSRO("uniform", iterations=2, episodes=64), warm_start=True)
    whole = run(longer, on=Local(devices=1)).standing["state"]
    run(settings(source, warm_start=True), tmp_path / "part", on=Local(devices=1))
    config = tmp_path / "part" / "config.json"
    config.write_text(config.read_text().replace('"iterations": 1', '"iterations": 2'))
    shutil.rmtree(source)
    again = resume(tmp_path / "part", on=Local(devices=1)).standing["state"]
    assert json.loads(config.read_text())["psro"]["imports"] == [str(source)]
    for name, bank in whole.banks.items():
        assert again.banks[name].members == bank.members
        assert all(same(bank[i], again.banks[name][i]) for i in range(4))
        assert [member.parent for member in bank.members] == [None, None, 0, 2]
        assert [member.frozen for member in bank.members] == [False, True, False, False]
    np.testing.assert_array_equal(whole.table.total, again.table.total)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"levels": 2}, {"psro": PSRO("league", iterations=2, episodes=64)}])
def test_pipelines_and_leagues_leave_frozen_policies_alone(trained, grown, changes):
    own = settings(trained, grown[0], **{"psro": PSRO("uniform", iterations=2, episodes=64)} | changes)
    first, state = beginning(own, oracle_of(own, devices=1)), run(own, on=Local(devices=1)).standing["state"]
    assert state.table.sizes == ((7, 6) if "levels" in changes else (10, 9))
    for name, bank in state.banks.items():
        before = first.banks[name]
        assert all(same(bank[i], before[i]) for i in range(len(before)))
        assert [member.frozen for member in bank.members] == [
            *(member.frozen for member in before.members),
            *[False] * (len(bank) - len(before)),
        ]
        assert all(member.parent is None or not bank.members[member.parent].frozen for member in bank.members)


def test_what_does_not_fit(trained, grown, tmp_path):
    def refused(words, *imports, **changes):
        own = settings(*imports, **changes)
        with pytest.raises(RunError, match=words):
            beginning(own, oracle_of(own, devices=1))

    wide = dataclasses.replace(TINY, network=Network(hidden=(16,), share_torso=True))
    deep = dataclasses.replace(TINY, network=Network(hidden=(8, 8), share_torso=True))
    refused("cannot be imported for player_0: policy 'player' does not fit", trained, experiment=tiny(wide))
    refused("another network or algorithm", grown[0], experiment=tiny(deep))
    refused("was trained by ppo, those of this population are trained by a2c", trained, experiment=tiny(A2C()))
    refused("no such folder", tmp_path / "none")
    refused("no config.json", tmp_path)
    refused(r"tables, not networks", trained, oracle="exact")
    refused(r"population of learned responses, this one is of exact ones", grown[0], oracle="exact")
    create(tmp_path / "empty", SHARED)
    refused("has no checkpoint yet", tmp_path / "empty")
    create(tmp_path / "other", dataclasses.replace(SHARED, env="cards/leduc"))
    refused("is a run of another world: of 'cards/leduc', not of 'cards/kuhn'", tmp_path / "other")


def test_of_several_seeds_the_first(tmp_path):
    path = as_if_trained(tmp_path / "seeds", num_seeds=2)
    found = import_from_training(path, Game(tiny()))["player_1"][0].policy
    assert same(found, load_policies(path, 0)[1]["player"])
    assert not same(found, load_policies(path, 1)[1]["player"])


def test_on_the_command_line(trained, tmp_path, capsys):
    def refused(command, *args):
        assert main([command, "cards/kuhn", "--run-dir", str(tmp_path / "new"), *args]) == 2
        assert not (tmp_path / "new").exists()
        return capsys.readouterr().err

    assert f"{tmp_path} is not a run folder" in refused("psro", "--import-policies", f"{trained},{tmp_path}")
    assert "tables, not networks" in refused("psro", "--import-policies", str(trained), "--oracle", "exact")
    assert "none is not a run folder" in refused("league", "--import-policies", "none")
    assert "'cards/kuhn' is not symmetric" in refused("psro", "--symmetric", "--oracle", "exact")
