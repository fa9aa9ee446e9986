"""Kuhn and Leduc poker against OpenSpiel, over every history of their trees."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pyspiel
import pytest

import shoal
from shoal import presets
from shoal.core.errors import OptionError
from shoal.envs.cards.kuhn import Kuhn
from shoal.envs.cards.leduc import CALL, FOLD, RAISE, Leduc
from shoal.envs.tabular import tabulate
from shoal.training.runner import Local, run


class Node(NamedTuple):
    """One history of OpenSpiel's tree: cards dealt, actions taken, and what it says about it."""

    cards: list[int]
    actions: list[int]
    views: list[list[float]]
    legal: list[int]
    mover: int
    returns: list[float]


GAMES = {
    "kuhn": ("kuhn_poker", "cards/kuhn", {}, {"decision": 24, "terminal": 30, "views": 12}),
    "leduc": ("leduc_poker", "cards/leduc", {}, {"decision": 3780, "terminal": 5520, "views": 936}),
    "leduc by rank": (
        "leduc_poker(suit_isomorphism=true)",
        "cards/leduc",
        {"suit_isomorphism": True},
        {"decision": 774, "terminal": 1116, "views": 288},
    ),
}


def histories(state, cards=(), actions=()):
    """Every history but those where a card is to be dealt."""
    if state.is_chance_node():
        for card, _ in state.chance_outcomes():
            yield from histories(state.child(card), (*cards, card), actions)
        return
    views = [state.information_state_tensor(player) for player in range(2)]
    yield Node(list(cards), list(actions), views, state.legal_actions(), state.current_player(), state.returns())
    for action in state.legal_actions():
        yield from histories(state.child(action), cards, (*actions, action))


def deals_of(env, by_rank):
    """The number of a deal by its cards."""
    states = jax.vmap(env.deal)(jnp.arange(env.num_deals))
    columns = [*np.asarray(states.cards).T, *([np.asarray(states.public)] if hasattr(states, "public") else [])]
    cards = np.stack(columns, axis=1) // (2 if by_rank else 1)
    return {tuple(row): i for i, row in enumerate(cards.tolist())}


@functools.cache
def compared(name):
    """Every history, and what our world hands out in it."""
    theirs, id, options, _ = GAMES[name]
    env = shoal.make(id, **options)
    nodes = list(histories(pyspiel.load_game(theirs).new_initial_state()))
    deals = deals_of(env, options.get("suit_isomorphism", False))
    # A card that OpenSpiel has not dealt yet may be any of those left.
    starts = {key[:n]: index for key, index in deals.items() for n in range(2, len(key) + 1)}
    length = max(len(node.actions) for node in nodes)
    padded = np.array([node.actions + [0] * (length - len(node.actions)) for node in nodes])

    def replay(start, actions, count):
        def body(carry, entry):
            state, reward, over = carry
            t, action = entry
            joint = jnp.where(env.observe(state, ())["player"].active, action, 1 - action)  # who waits is ignored
            following, outcome = env.step(None, state, {"player": joint}, ())
            taken = t < count
            state = jax.tree.map(lambda new, old: jnp.where(taken, new, old), following, state)
            reward = reward + jnp.where(taken, outcome.reward["player"], 0.0)
            return (state, reward, jnp.where(taken, outcome.terminated, over)), None

        start = (env.deal(start), jnp.zeros(2), jnp.bool_(False))
        (state, reward, over), _ = jax.lax.scan(body, start, (jnp.arange(length), actions))
        return env.observe(state, ())["player"], reward, over

    first = jnp.array([starts[tuple(node.cards)] for node in nodes])
    counts = jnp.array([len(node.actions) for node in nodes])
    seen, reward, over = jax.tree.map(np.asarray, jax.jit(jax.vmap(replay))(first, jnp.asarray(padded), counts))
    return nodes, seen, reward, over


@pytest.fixture(params=GAMES)
def game(request):
    return (*compared(request.param), GAMES[request.param][3])


def test_the_tree_is_as_large_as_published(game):
    nodes, _, _, over, sizes = game
    decisions = [node for node in nodes if node.legal]
    assert (len(decisions), int(over.sum())) == (sizes["decision"], sizes["terminal"])
    views = {(node.mover, tuple(node.views[node.mover])) for node in decisions}
    assert len(views) == sizes["views"]


def test_views_of_both_players_are_equal_in_every_history(game):
    nodes, seen, *_ = game
    np.testing.assert_array_equal(seen.view, np.array([node.views for node in nodes], np.float32))


def test_legal_actions_and_turns_are_equal_in_every_history(game):
    nodes, seen, _, _, _ = game
    for i, node in enumerate(nodes):
        movers = [player for player in range(2) if seen.active[i, player]]
        assert movers == ([node.mover] if node.legal else [])
        legal = np.ones((2, 2), bool) if seen.legal is None else seen.legal[i]
        assert not node.legal or np.flatnonzero(legal[node.mover]).tolist() == node.legal


def test_returns_and_ends_are_equal_in_every_history(game):
    nodes, _, reward, over, _ = game
    np.testing.assert_array_equal(over, [not node.legal for node in nodes])
    np.testing.assert_array_equal(reward, np.array([node.returns for node in nodes], np.float32))


@pytest.mark.parametrize("id", ["cards/kuhn", "cards/leduc"])
def test_every_deal_is_equally_likely(id):
    env = shoal.make(id)
    keys = jax.random.split(jax.random.key(0), 60_000)
    states = jax.jit(jax.vmap(lambda key: env.reset(key, ())))(keys)
    cards = [*np.asarray(states.cards).T, *([np.asarray(states.public)] if id == "cards/leduc" else [])]
    _, counts = np.unique(np.stack(cards), axis=1, return_counts=True)
    assert len(counts) == env.num_deals
    expected = len(keys) / env.num_deals
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected)


def test_an_illegal_action_counts_as_a_call():
    env = shoal.make("cards/leduc")

    def play(*actions):
        state = env.deal(jnp.int32(17))
        for action in actions:
            state, _ = env.step(None, state, {"player": jnp.array([action, action])}, ())
        return [np.asarray(leaf).tolist() for leaf in state]

    assert play(FOLD) == play(CALL), "nothing to answer"
    assert play(RAISE, RAISE, RAISE) == play(RAISE, RAISE, CALL), "a third raise"


def test_players_have_a_seat_each():
    for id in ("cards/kuhn", "cards/leduc"):
        assert list(shoal.make(id).players.values()) == [(("player", 0),), (("player", 1),)]


def test_options_are_checked():
    with pytest.raises(OptionError, match="cards/leduc: suit_isomorphism must be True or False, got 1"):
        shoal.make("cards/leduc", suit_isomorphism=1)


@pytest.mark.slow
def test_self_play_comes_near_the_equilibrium():
    """The preset, judged by the exact tables: uniform play has a NashConv of 0.917."""
    experiment = presets.get("cards/kuhn")
    policy = run(experiment, on=Local(devices=1)).policies["player"]
    game = tabulate(shoal.make("cards/kuhn"))

    def plan(player):
        logits, _ = jax.vmap(lambda view: policy.network.apply(policy.weights, view, (), method="actor"))(
            jnp.asarray(game.sets[player].views)
        )
        return game.plan(player, np.asarray(jax.nn.softmax(logits)))

    trained, uniform = [plan(0), plan(1)], [game.plan(player, game.uniform(player)) for player in range(2)]
    assert game.nash_conv(trained) < 0.3
    gains = game.values([trained[0], uniform[1]])[0] + game.values([uniform[0], trained[1]])[1]
    assert gains > 0.15, "against random play, over both seats"


@functools.cache
def _compiled(world):
    def step(state, move):
        return world.step(None, state, {"player": jnp.full(2, move)}, ())[0]

    return jax.jit(step), jax.jit(lambda state: world.scene(state, ()).labels)


def _said(world, moves):
    """The texts on the table after each of some moves, without the cards' faces."""
    step, draw = _compiled(world)
    state, said = world.deal(jnp.int32(0)), []
    for move in moves:
        state = step(state, jnp.int32(move))
        labels = draw(state)
        texts = [text for text, seen in zip(labels.text, np.asarray(labels.visible), strict=True) if seen]
        said.append([text for text in texts if len(text) > 2])
    return said


@pytest.mark.parametrize(
    ("world", "moves", "words"),
    [
        (Kuhn(), [0, 1, 0], [["checks"], ["checks", "bets"], ["folds", "bets"]]),
        (Kuhn(), [1, 1], [["bets"], ["bets", "calls"]]),
        (Leduc(), [2, 2, 0], [["bets"], ["bets", "raises"], ["folds", "raises"]]),
        (Leduc(), [1, 1, 1, 2, 1], [["checks"], ["checks"] * 2, ["checks"], ["checks", "bets"], ["calls", "bets"]]),
    ],
)
def test_pictures_name_the_hands_and_say_what_was_done(world, moves, words):
    assert _said(world, moves) == [["player_0", "player_1", *each] for each in words]
