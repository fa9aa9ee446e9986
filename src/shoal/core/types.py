"""The data that passes between worlds, algorithms and runners.

Shape letters: `T` time, `E` environments (copies), `n` agents of a group. Worlds are written for one copy, so
the shapes here have no leading axes; runners add `[E]` or `[T, E]` in front.
"""

import dataclasses
from typing import Any

import jax
from flax import struct

from shoal.core.spaces import ActionSpace

PyTree = Any
Actions = dict[str, jax.Array]
"""The actions of all agents, `[n, ...]` by group."""
Seat = tuple[str, int]
"""An agent's place: (group, index within the group)."""


@dataclasses.dataclass(frozen=True)
class Group:
    """Agents with identical spaces.

    `observation` is derived from `Env.observe` when left out (see `describe`). `movers` promises that at most
    that many agents of the group are active at once (1 in a turn-based game): rollout and update then work on the
    movers only.
    """

    size: int
    action: ActionSpace
    observation: PyTree = None
    movers: int | None = None


class Observation(struct.PyTreeNode):
    """The observations of the agents of one group.

    view: array or dict of arrays `[n, ...]`.
    legal: bool `[n, num_logits]`, every row with a true entry, or None if every action is always legal.
    active: bool `[n]`, which agents act now; None means all.
    present: bool `[n]`, which agents may still act or get rewards in this episode; None: all. Active implies present.
    state: the world's global state, filled in by the runner for learners whose critic needs it; one per copy.
    """

    view: PyTree
    legal: jax.Array | None = None
    active: jax.Array | None = None
    present: jax.Array | None = None
    state: PyTree = None


class Outcome(struct.PyTreeNode):
    """The outcome of a step.

    reward: per group, float32 `[n]`. terminated: the episode is over. truncated: it was cut short (a time limit), and
    values are bootstrapped from the final view. metrics: named float scalars for the logs.
    """

    reward: dict[str, jax.Array]
    terminated: jax.Array
    truncated: jax.Array
    metrics: dict[str, jax.Array] = struct.field(default_factory=dict)


class Circles(struct.PyTreeNode):
    """Discs; a finite `heading` (radians) draws a nose. Named circles can be followed in a replay."""

    position: jax.Array  # [k, 2]
    radius: jax.Array  # [k]
    colour: jax.Array  # [k] int32, index into the palette
    visible: jax.Array  # [k] bool
    heading: jax.Array | None = None  # [k]
    names: tuple[str, ...] = struct.field(pytree_node=False, default=())


class Polygons(struct.PyTreeNode):
    """Filled polygons, all with the same number of corners."""

    points: jax.Array  # [k, corners, 2]
    colour: jax.Array  # [k] int32
    visible: jax.Array  # [k] bool


class Lines(struct.PyTreeNode):
    """Straight lines."""

    start: jax.Array  # [k, 2]
    end: jax.Array  # [k, 2]
    colour: jax.Array  # [k] int32
    visible: jax.Array  # [k] bool


class Labels(struct.PyTreeNode):
    """Short texts, centred at their positions; `text` is fixed when the program is compiled."""

    position: jax.Array  # [k, 2]
    visible: jax.Array  # [k] bool
    text: tuple[str, ...] = struct.field(pytree_node=False, default=())


class Scene(struct.PyTreeNode):
    """A picture of a world as arrays; drawn by `shoal.viz`, never by the world.

    Palette: 0 grey, 1 blue, 2 orange, 3 green, 4 red, 5 purple, 6 teal, 7 yellow. Later kinds are drawn on top:
    polygons, lines, circles, labels. `bounds` is (left, bottom, right, top) in world units.
    """

    bounds: tuple[float, float, float, float] = struct.field(pytree_node=False, default=(0.0, 0.0, 1.0, 1.0))
    polygons: Polygons | None = None
    lines: Lines | None = None
    circles: Circles | None = None
    labels: Labels | None = None
