"""What the card games have in common: who sits where, views as bits, and the picture of a card table."""

import math

import jax
import jax.numpy as jnp

from shoal.core.types import Circles, Labels, Lines, Polygons, Scene, Seat

PLAYERS: dict[str, tuple[Seat, ...]] = {f"player_{i}": (("player", i),) for i in range(2)}
"""One group of two seats, each a player of its own."""

_BOUNDS = (-6.0, -4.0, 6.0, 4.0)
_CARD = (1.6, 2.3)  # width and height
_HANDS = ((-4.0, 0.0), (4.0, 0.0))
_BOARD = (0.0, 0.0)
_FELT, _GREY, _CHIP, _TURN, _CALL, _RAISE = 3, 0, 7, 7, 6, 4  # colours
_OWN = (1, 2)
_ABOVE, _BELOW = 1.75, -1.75  # of a hand: who holds it, and what its holder did last
_WORDS = ("checks", "calls", "bets", "raises", "folds")


def others(seat: Seat) -> jax.Array:
    """Bool `[2]`: who does not sit in that seat."""
    return jnp.arange(2) != seat[1]


def unpack_bits(bits: jax.Array, width: int) -> jax.Array:
    """The lowest `width` bits of each number as 0.0 and 1.0, lowest first; `[..., width]`.

    A view of zeros and ones is kept as one number: it then costs one fused pass to hand out, however wide it is.
    """
    return ((bits[..., None] >> jnp.arange(width)) & 1).astype(jnp.float32)


def without(index: jax.Array, *taken: jax.Array) -> jax.Array:
    """The card number `index`, counting from 0, among those not `taken`, which must be given in rising order."""
    for card in taken:
        index = index + (index >= card)
    return index


def picture(
    hands: jax.Array,
    names: tuple[str, ...],
    paid: jax.Array,
    most: int,
    turn: jax.Array,
    betting: jax.Array,
    folded: jax.Array,
    words: tuple[tuple[str, str], tuple[str, str]],
    board: tuple[jax.Array, jax.Array] | None = None,
    hidden: jax.Array | None = None,
) -> Scene:
    """A card table.

    hands: cards `[2]`, of which `names` are the faces. paid: chips `[2]` in the pot, `most` at most. turn: bool `[2]`,
    who is to move. betting: `[rounds, places, 2]`, whether that place was a call or a raise. folded: bool `[2]`. words:
    what a call and a raise are called, each before and after the first raise of its round. board: the public card and
    whether it lies open. hidden: bool `[2]`, whose hand lies face down; None: nobody's.
    """
    places = [*_HANDS] if board is None else [*_HANDS, _BOARD]
    cards = hands if board is None else jnp.append(hands, board[0])
    open_hands = jnp.ones(2, bool) if hidden is None else ~hidden
    is_open = open_hands if board is None else jnp.append(open_hands, board[1])
    colour = jnp.append(jnp.where(folded, _GREY, jnp.array(_OWN)), jnp.full(len(places) - 2, _GREY)).astype(jnp.int32)
    return Scene(
        bounds=_BOUNDS,
        polygons=_felt_and_cards(places, colour),
        lines=_frames(turn),
        circles=_chips_and_bets(paid, most, betting),
        labels=_join(_faces(places, cards, names, is_open), _holders(), _last_words(betting, folded, words)),
    )


def _felt_and_cards(places: list[tuple[float, float]], colour: jax.Array) -> Polygons:
    """The table and the cards on it; one that is not open yet lies face down."""
    corners = 24
    angles = [2.0 * math.pi * i / corners for i in range(corners)]
    felt = [(5.8 * math.cos(a), 3.8 * math.sin(a)) for a in angles]
    width, height = _CARD
    outline = [(-width, -height), (width, -height), (width, height), (-width, height)]
    # All polygons of a scene have as many corners: those of a card are repeated.
    cards = [[(x + dx / 2, y + dy / 2) for dx, dy in outline for _ in range(corners // 4)] for x, y in places]
    return Polygons(
        points=jnp.array([felt, *cards], jnp.float32),
        colour=jnp.append(jnp.int32(_FELT), colour),
        visible=jnp.ones(len(places) + 1, bool),
    )


def _frames(turn: jax.Array) -> Lines:
    """A frame around the hand of who is to move."""
    width, height = _CARD[0] / 2 + 0.2, _CARD[1] / 2 + 0.2
    outline = [(-width, -height), (width, -height), (width, height), (-width, height)]
    start = [(x + dx, y + dy) for x, y in _HANDS for dx, dy in outline]
    end = [(x + dx, y + dy) for x, y in _HANDS for dx, dy in [*outline[1:], outline[0]]]
    return Lines(
        start=jnp.array(start, jnp.float32),
        end=jnp.array(end, jnp.float32),
        colour=jnp.full(8, _TURN, jnp.int32),
        visible=jnp.repeat(turn, 4, total_repeat_length=8),
    )


def _chips_and_bets(paid: jax.Array, most: int, betting: jax.Array) -> Circles:
    """Chips beside the hands, in columns of five, and above the board a row of dots for each round of betting."""
    rounds, places, _ = betting.shape
    chip = [(side * (2.5 - 0.5 * (i // 5)), -1.0 + 0.5 * (i % 5)) for side in (-1, 1) for i in range(most)]
    bet = [(0.6 * (i - (places - 1) / 2), 2.6 - 0.6 * r) for r in range(rounds) for i in range(places)]
    happened = betting.reshape(-1, 2) > 0
    return Circles(
        position=jnp.array(chip + bet, jnp.float32),
        radius=jnp.full(len(chip) + len(bet), 0.22),
        colour=jnp.append(
            jnp.full(len(chip), _CHIP, jnp.int32), jnp.where(happened[:, 1], _RAISE, _CALL).astype(jnp.int32)
        ),
        visible=jnp.append((jnp.arange(most) < paid[:, None]).ravel(), happened.any(-1)),
    )


def _faces(places: list[tuple[float, float]], cards: jax.Array, names: tuple[str, ...], is_open: jax.Array) -> Labels:
    """Texts are fixed, so every face is there at every place, and one of them is visible."""
    shown = (jnp.arange(len(names)) == cards[:, None]) & is_open[:, None]
    return Labels(
        position=jnp.repeat(jnp.array(places, jnp.float32), len(names), axis=0),
        visible=shown.ravel(),
        text=names * len(places),
    )


def _holders() -> Labels:
    """The players' names above their hands."""
    places = [(x, y + _ABOVE) for x, y in _HANDS]
    return Labels(jnp.array(places, jnp.float32), jnp.ones(len(places), bool), text=tuple(PLAYERS))


def _last_words(betting: jax.Array, folded: jax.Array, words: tuple[tuple[str, str], tuple[str, str]]) -> Labels:
    """What each player did last, below its hand: in this round or, if that has just begun, in the one before."""
    happened = betting.any(-1)
    newest = jnp.maximum(jnp.sum(happened.any(-1)) - 1, 0)
    round, happened = betting[newest], happened[newest]
    raised = round[:, 1] > 0
    answers = (jnp.cumsum(raised) - raised > 0).astype(jnp.int32)
    meaning = jnp.array([[_WORDS.index(word) for word in pair] for pair in words])[raised.astype(jnp.int32), answers]
    places = jnp.arange(len(happened))
    own = (places % 2 == jnp.arange(2)[:, None]) & happened  # [player, place]
    last = jnp.max(jnp.where(own, places, 0), axis=1)
    word = jnp.where(folded, _WORDS.index("folds"), meaning[last])
    said = (jnp.arange(len(_WORDS)) == word[:, None]) & (own.any(1) | folded)[:, None]
    below = [(x, y + _BELOW) for x, y in _HANDS for _ in _WORDS]
    return Labels(jnp.array(below, jnp.float32), said.ravel(), text=_WORDS * len(_HANDS))


def _join(*labels: Labels) -> Labels:
    return Labels(
        jnp.concatenate([each.position for each in labels]),
        jnp.concatenate([each.visible for each in labels]),
        text=sum((each.text for each in labels), ()),
    )
