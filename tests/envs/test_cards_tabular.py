"""Exact tables against figures that are known, against OpenSpiel, and against games worked out by hand."""

import dataclasses
import functools
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import pyspiel
import pytest

import shoal
from shoal import Discrete, Env, Group, Observation, Outcome
from shoal.core.errors import OptionError
from shoal.envs import _tree
from shoal.envs.cards import kuhn, leduc
from shoal.envs.tabular import tabulate

GAMES = {
    "kuhn": ("kuhn_poker", "cards/kuhn", {}),
    "leduc": ("leduc_poker", "cards/leduc", {}),
    "leduc by rank": ("leduc_poker(suit_isomorphism=true)", "cards/leduc", {"suit_isomorphism": True}),
}


@functools.cache
def tables(name):
    _, id, options = GAMES[name]
    return tabulate(shoal.make(id, **options))


def random_policies(game, seed):
    """Some actions are never taken, so that some sets are never reached."""
    rng = np.random.default_rng(seed)
    policies = []
    for sets in game.sets:
        weight = sets.legal * rng.dirichlet(np.full(sets.legal.shape[1], 0.4), len(sets)).round(2)
        weight += (weight.sum(1, keepdims=True) == 0) * sets.legal
        policies.append(weight / weight.sum(1, keepdims=True))
    return policies


@functools.cache
def spiel_states(name):
    """A state of every information set of OpenSpiel's game, by its tensor."""
    found, left = {}, [pyspiel.load_game(GAMES[name][0]).new_initial_state()]
    while left:
        state = left.pop()
        if state.is_terminal():
            continue
        if not state.is_chance_node():
            player = state.current_player()
            found.setdefault((player, tuple(state.information_state_tensor(player))), state)
        left.extend(state.child(action) for action in state.legal_actions())
    return found


def spiel_policy(name, policies):
    """Our policies as OpenSpiel wants them."""
    table = {}
    for (player, tensor), state in spiel_states(name).items():
        sets = tables(name).sets[player]
        (row,) = np.flatnonzero((sets.views == np.array(tensor)).all(axis=1))
        legal = state.legal_actions()
        assert np.flatnonzero(sets.legal[row]).tolist() == legal
        table[state.information_state_string()] = [(action, float(policies[player][row, action])) for action in legal]
    return pyspiel.TabularPolicy(table)


@pytest.mark.parametrize(
    ("name", "sets", "sequences", "entries", "value", "nash_conv"),
    [
        ("kuhn", 6, 13, 30, 0.125, 0.916667),
        ("leduc", 468, 1093, 4920, -0.078125, 4.747222),
        ("leduc by rank", 144, 337, 966, -0.078125, 4.747222),
    ],
)
def test_known_figures(name, sets, sequences, entries, value, nash_conv):
    game = tables(name)
    assert [len(own) for own in game.sets] == [sets, sets]
    assert [own.num_sequences for own in game.sets] == [sequences, sequences]
    assert len(game.payoffs) == entries
    np.testing.assert_allclose(game.payoffs.sum(axis=1), 0.0, atol=1e-15)
    plans = [game.plan(player, game.uniform(player)) for player in range(2)]
    np.testing.assert_allclose(game.values(plans), [value, -value], atol=1e-12)
    np.testing.assert_allclose(game.nash_conv(plans), nash_conv, atol=1e-6)
    np.testing.assert_allclose(game.exploitability(plans), nash_conv / 2, atol=1e-6)


def test_kuhns_equilibria_cannot_be_exploited():
    """Player 0 bets a jack with probability α, a king with 3α and calls with a queen with α + 1/3; α is in [0, 1/3]."""
    game = tables("kuhn")

    def bets(player, chance):
        """The policy that bets with probability `chance[card, what was done so far]`."""
        views = game.sets[player].views
        rows = []
        for view in views:
            card = "JQK"[int(np.argmax(view[2:5]))]
            past = "".join("-pb"[int(bits @ [1, 2])] for bits in view[5:].reshape(3, 2)).rstrip("-")
            rows.append([1 - chance[card, past], chance[card, past]])
        return game.plan(player, np.array(rows))

    for alpha in (0.0, 0.2, 1 / 3):
        first = {("J", ""): alpha, ("Q", ""): 0, ("K", ""): 3 * alpha}
        first |= {("J", "pb"): 0, ("Q", "pb"): alpha + 1 / 3, ("K", "pb"): 1}
        second = {("J", "p"): 1 / 3, ("Q", "p"): 0, ("K", "p"): 1, ("J", "b"): 0, ("Q", "b"): 1 / 3, ("K", "b"): 1}
        plans = [bets(0, first), bets(1, second)]
        np.testing.assert_allclose(game.values(plans), [-1 / 18, 1 / 18], atol=1e-12)
        assert game.nash_conv(plans) < 1e-12


@pytest.mark.parametrize(("name", "times"), [("kuhn", 10), ("leduc", 2), ("leduc by rank", 2)])
def test_random_policies_against_openspiel(name, times):
    theirs, game = pyspiel.load_game(GAMES[name][0]), tables(name)
    for seed in range(times):
        policies = random_policies(game, seed)
        plans = [game.plan(player, policies[player]) for player in range(2)]
        policy = spiel_policy(name, policies)
        np.testing.assert_allclose(game.nash_conv(plans), pyspiel.nash_conv(theirs, policy), atol=1e-9)
        np.testing.assert_allclose(game.exploitability(plans), pyspiel.exploitability(theirs, policy), atol=1e-9)
        for player in range(2):
            value, plan = game.best_response(player, plans)
            expected = pyspiel.TabularBestResponse(theirs, player, policy).value_from_state(theirs.new_initial_state())
            np.testing.assert_allclose(value, expected, atol=1e-9)
            best = [plan if p == player else plans[p] for p in range(2)]
            np.testing.assert_allclose(game.values(best)[player], value, atol=1e-12)


def test_plans_and_policies_convert_both_ways():
    game = tables("leduc")
    for player, policy in enumerate(random_policies(game, 0)):
        sets = game.sets[player]
        plan = game.plan(player, policy)
        assert plan[0] == 1.0
        flow = np.append(plan, 0.0)[sets.sequence].sum(axis=1)
        np.testing.assert_allclose(flow, plan[sets.parent], atol=1e-15)
        back = game.policy(player, plan)
        reached = plan[sets.parent] > 0
        assert 0 < reached.sum() < len(sets)
        np.testing.assert_allclose(back[reached], policy[reached], atol=1e-12)
        np.testing.assert_allclose(back[~reached], game.uniform(player)[~reached], atol=1e-15)


def test_a_mixture_is_a_mixture_of_plans_and_not_of_policies():
    game = tables("leduc")
    policies = [random_policies(game, seed) for seed in range(3)]
    plans = [game.plan(player, np.stack([own[player] for own in policies])) for player in range(2)]
    share = np.array([0.5, 0.3, 0.2])
    mixed = [share @ bank for bank in plans]
    by_state = [game.plan(p, np.einsum("m,mia->ia", share, np.stack([own[p] for own in policies]))) for p in range(2)]
    table = game.payoff_table(plans)
    assert table.shape == (2, 3, 3)
    np.testing.assert_allclose(table[0], plans[0] @ game.payoff_matrix() @ plans[1].T, atol=1e-12)
    np.testing.assert_allclose(table[:, 1, 2], game.values([plans[0][1], plans[1][2]]), atol=1e-12)
    np.testing.assert_allclose(game.values(mixed), share @ table @ share, atol=1e-12)
    again = [game.plan(player, game.policy(player, mixed[player])) for player in range(2)]
    np.testing.assert_allclose(game.values(again), game.values(mixed), atol=1e-12)
    assert np.abs(game.values(by_state) - game.values(mixed)).max() > 1e-3


def test_policies_that_are_none_are_refused():
    with pytest.raises(OptionError, match=r"player_1's policy must be \[..., 6, 2\], got \(6, 3\)"):
        tables("kuhn").plan(1, np.ones((6, 3)))
    illegal = np.ones((468, 3)) / 3  # at the start nobody may fold
    for policy in (illegal, tables("leduc").uniform(0) * [1, 3, -1], np.full((468, 3), np.nan)):
        with pytest.raises(OptionError, match="player_0's policy must be probabilities that sum to 1"):
            tables("leduc").plan(0, policy)
    with pytest.raises(OptionError, match=r"in the set 2, where \[0, 1\] are legal, it is \[0.5, inf\]"):
        tables("kuhn").plan(0, np.where(np.arange(12).reshape(6, 2) == 5, np.inf, 0.5))
    with pytest.raises(OptionError, match="player_0's policy must be an array of numbers, got 'uniform'"):
        tables("kuhn").plan(0, "uniform")


def plan_with(entry, value):
    """Kuhn's uniform plan, but for one entry."""
    plan = tables("kuhn").plan(0, tables("kuhn").uniform(0))
    plan[entry] = value
    return plan


BAD_PLANS = [
    (np.ones(14), r"must be an array of shape \[13\], got an array of shape \(14,\)$"),
    (np.ones((6, 2)) / 2, r"shape \[13\], got an array of shape \(6, 2\). This looks like a policy: .* game.plan\("),
    ([1, 2], r"must be an array of shape \[13\], got \[1, 2\]"),
    (None, r"must be an array of shape \[13\], got None"),
    ("uniform", "must be an array of numbers, got 'uniform'"),
    (3 * np.ones(13), "must be a realisation plan, .* but its entry 0 is 3, which is no probability"),
    (plan_with(5, np.nan), "its entry 5 is nan"),
    (plan_with(5, np.inf), "its entry 5 is inf"),
    (plan_with(5, -0.5), "its entry 5 is -0.5"),
    (np.zeros(13), "its entry 0, of the empty sequence, is 0 and not 1"),
    (plan_with(12, 0.75), "over the actions of the information set 5 it sums to 1 and not to 0.5"),
]


@pytest.mark.parametrize(("plan", "words"), BAD_PLANS, ids=range(len(BAD_PLANS)))
def test_plans_that_are_none_are_refused(plan, words):
    game = tables("kuhn")
    sound = game.plan(1, game.uniform(1))
    for caller in (game.values, game.nash_conv, game.exploitability, lambda plans: game.best_response(1, plans)):
        with pytest.raises(OptionError, match=rf"(values|nash_conv|best_response): player_0's plan .*{words}"):
            caller([plan, sound])
    value, _ = game.best_response(0, [plan, sound])  # which does not look at its own
    assert value == game.best_response(0, [None, sound])[0] == 0.5


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda plan: [plan], "got a list of 1"),
        (lambda plan: plan, r"got an array of shape \(13,\)"),
        (lambda plan: (plan, plan, plan), "got a tuple of 3"),
        (lambda plan: {"player_0": plan, "player_1": plan}, "got {'player_0'"),
        (lambda _: None, "got None"),
        (lambda _: np.float64(1), r"got an array of shape \(\)"),
    ],
)
def test_there_must_be_a_plan_for_each_player(given, words):
    game = tables("kuhn")
    plans = given(plan_with(0, 1.0))
    for caller in (game.values, game.nash_conv, game.payoff_table, lambda plans: game.best_response(0, plans)):
        with pytest.raises(OptionError, match=rf"a plan for each of the 2 players \(player_0, player_1\), {words}"):
            caller(plans)


def test_banks_of_plans_are_checked_too():
    game = tables("kuhn")
    first, second = (np.stack([game.plan(player, game.uniform(player))] * 3) for player in range(2))
    assert game.payoff_table([first, second[:2]]).shape == (2, 3, 2)
    assert game.payoff_table([first[:0], second]).shape == (2, 0, 3)
    with pytest.raises(OptionError, match=r"payoff_table: player_1's plan .* \[m, 13\], got an array of shape \(13,\)"):
        game.payoff_table([first, second[0]])
    with pytest.raises(OptionError, match=r"player_0's plan must be a realisation plan, .* the information set 5"):
        game.payoff_table([np.stack([first[0], plan_with(12, 0.75)]), second])
    with pytest.raises(OptionError, match=r"policy: player_0's plan .* This looks like a policy"):
        game.policy(0, game.uniform(0))


@pytest.mark.parametrize("player", [7, 2, -1, None, "player_0", True])
def test_players_that_do_not_exist_are_refused(player):
    game = tables("kuhn")
    plans = [plan_with(0, 1.0)] * 2
    calls = {
        "uniform": lambda: game.uniform(player),
        "plan": lambda: game.plan(player, game.uniform(0)),
        "policy": lambda: game.policy(player, plans[0]),
        "best_response": lambda: game.best_response(player, plans),
        "payoff_matrix": lambda: game.payoff_matrix(player),
    }
    for caller, call in calls.items():
        with pytest.raises(OptionError, match=f"{caller}: player must be a whole number from 0 to 1.* got {player!r}"):
            call()


def test_rounding_is_no_reason_to_refuse_a_plan():
    game = tables("leduc")
    plans = [game.plan(player, policy) for player, policy in enumerate(random_policies(game, 1))]
    single = [jnp.asarray(plan, jnp.float32) for plan in plans]
    np.testing.assert_allclose(game.nash_conv(single), game.nash_conv(plans), atol=1e-5)
    np.testing.assert_allclose(game.values([plan - 1e-9 for plan in plans]), game.values(plans), atol=1e-6)


@pytest.mark.parametrize("module", [kuhn, leduc])
def test_the_example_of_the_page_prints_what_it_says(module, capsys):
    lines = module.__doc__.split("**Exact analysis.**")[1].splitlines()
    example = [line.removeprefix("    ") for line in lines if line.startswith("    ")]
    exec("\n".join(example), {"shoal": shoal})
    assert capsys.readouterr().out.strip() == example[-1].split("# ")[1]


@dataclasses.dataclass(frozen=True)
class Forgetful(Env):
    """One player makes two decisions and cannot tell them apart."""

    teams: bool = False
    num_deals: ClassVar[int] = 1

    @property
    def groups(self):
        return {"player": Group(1 + self.teams, Discrete(2))}

    def deal(self, index):
        return index

    def step(self, key, state, actions, params):
        reward = {"player": jnp.ones(1 + self.teams)}
        return state + 1, Outcome(reward, state >= 1, jnp.bool_(False))

    def observe(self, state, params):
        return {"player": Observation(jnp.zeros((1 + self.teams, 1)))}


class Pull(Forgetful):
    """It has no list of actions."""

    @property
    def groups(self):
        return {"player": Group(1, shoal.Box((1,)))}


def test_games_that_have_no_such_tables_are_refused(monkeypatch):
    with pytest.raises(OptionError, match="player forgets what it has done"):
        tabulate(Forgetful())
    with pytest.raises(OptionError, match="player has 2 seats"):
        tabulate(Forgetful(teams=True))
    with pytest.raises(OptionError, match="the actions of 'player' are Box"):
        tabulate(Pull())
    with pytest.raises(OptionError, match="SimpleSpread does not say how it can be dealt"):
        tabulate(shoal.make("mpe/simple_spread"))
    monkeypatch.setattr(_tree, "MAX_NODES", 20)
    with pytest.raises(OptionError, match="Kuhn has more than 20 histories"):
        tabulate(shoal.make("cards/kuhn"))
