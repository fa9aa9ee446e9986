"""Shapes over time, and what they look like between two frames: as on the replay page, but in numpy.

A shape glides from one frame to the next along a curve without corners. It does not where it appears, vanishes or
jumps (a world that wraps around, a respawn). A jump is long both for the world and for what shapes usually do.
"""

import dataclasses
import re
from typing import Any

import numpy as np

from shoal.core.errors import OptionError
from shoal.core.types import Scene

PALETTE_SIZE = 8
SHAPES = ("polygons", "lines", "circles", "labels")
"""Kinds of shapes, those on top last."""
_MEMBER = re.compile(r"[\s_#-]*\d+$")


@dataclasses.dataclass(frozen=True)
class Moment:
    """Shapes of one kind at one time. presence: 1 while visible, falling to 0 where a shape vanishes."""

    points: np.ndarray  # [k, corners, 2]
    presence: np.ndarray  # [k]
    colour: np.ndarray  # [k]
    radius: np.ndarray | None = None  # [k]
    heading: np.ndarray | None = None  # [k]


@dataclasses.dataclass(frozen=True)
class Shapes:
    """Shapes of one kind, over time. broken: whether a shape does not glide from a frame to the next."""

    points: np.ndarray  # [T, k, corners, 2]
    visible: np.ndarray  # [T, k] bool
    colour: np.ndarray  # [T, k]
    broken: np.ndarray  # [T, k] bool
    usual: float  # the median length of a step
    radius: np.ndarray | None = None  # [T, k]
    heading: np.ndarray | None = None  # [T, k]
    texts: tuple[str, ...] = ()  # names of circles, or what labels say

    @property
    def length(self) -> int:
        return len(self.visible)

    def at(self, time: float) -> Moment:
        """The shapes at a time in frames."""
        frame = min(int(time), self.length - 1)
        share = min(time - frame, 1.0)
        if share <= 0 or frame + 1 >= self.length:
            return self._moment(frame)
        broken = self.broken[frame]
        radius = heading = None
        if self.radius is not None:
            turned = self.radius[frame] + share * (self.radius[frame + 1] - self.radius[frame])
            radius = np.where(broken, self.radius[frame], turned)
        if self.heading is not None:
            turn = self.heading[frame + 1] - self.heading[frame]
            shortest = turn - 2 * np.pi * np.round(turn / (2 * np.pi))
            moving = ~broken & np.isfinite(shortest)
            heading = self.heading[frame] + np.where(moving, shortest, 0.0) * share
        vanishing = self.visible[frame] & ~self.visible[frame + 1]
        presence = self.visible[frame] * np.where(vanishing, 1 - share, 1.0)
        return Moment(self._glide(frame, share), presence, self.colour[frame], radius, heading)

    def _moment(self, frame: int) -> Moment:
        radius = None if self.radius is None else self.radius[frame]
        heading = None if self.heading is None else self.heading[frame]
        return Moment(self.points[frame], self.visible[frame].astype(float), self.colour[frame], radius, heading)

    def _glide(self, frame: int, share: float) -> np.ndarray:
        """Points between two frames: slopes at the frames are harmonic means, so that nothing overshoots."""
        here, slope = self.points[frame], self.points[frame + 1] - self.points[frame]
        enter = leave = slope
        if frame > 0:
            smooth = _harmonic(here - self.points[frame - 1], slope)
            enter = np.where(self.broken[frame - 1][:, None, None], slope, smooth)
        if frame + 2 < self.length:
            smooth = _harmonic(slope, self.points[frame + 2] - self.points[frame + 1])
            leave = np.where(self.broken[frame + 1][:, None, None], slope, smooth)
        rest = 1 - share
        moved = here + slope * share * share * (3 - 2 * share) + share * rest * (enter * rest - leave * share)
        return np.where(self.broken[frame][:, None, None], here, moved)


@dataclasses.dataclass(frozen=True)
class Motion:
    """A scene over time: its shapes by kind, as far as it has any."""

    bounds: tuple[float, float, float, float]
    shapes: dict[str, Shapes]

    @property
    def length(self) -> int:
        return next(iter(self.shapes.values())).length

    @property
    def groups(self) -> dict[str, int]:
        """Colours by group, of circles that are called `group_0`, `group_1`, ..."""
        found: dict[str, int] = {}
        circles = self.shapes.get("circles")
        for name, colour in zip(circles.texts, circles.colour[0], strict=False) if circles else ():
            if name:
                found.setdefault(_MEMBER.sub("", name) or "agent", int(colour))
        return found


def read_motion(scene: Scene, still: bool = False) -> Motion:
    """The motion of a Scene whose arrays have a leading time axis. still: without one, a single moment."""
    low, high = np.array(scene.bounds, float).reshape(2, 2)
    if not (np.isfinite([low, high]).all() and (low < high).all()):
        raise OptionError(
            f"a scene's bounds must be (left, bottom, right, top), finite and not empty, got {scene.bounds}"
        )
    found = {}
    for kind in SHAPES:
        drawn = getattr(scene, kind)
        if drawn is not None:
            found[kind] = _read_shapes(kind, drawn, still, high - low)
    if not found:
        raise OptionError("the scene is empty: the world must define `scene(state, params)` to be drawn")
    return Motion((*low.tolist(), *high.tolist()), found)


def _read_shapes(kind: str, drawn: Any, still: bool, size: np.ndarray) -> Shapes:
    def array(values: Any, dtype: Any = float) -> np.ndarray:
        read = np.asarray(values).astype(dtype)
        return read[None] if still else read

    visible = array(drawn.visible, bool)
    radius = heading = None
    if kind == "polygons":
        points = array(drawn.points)
    elif kind == "lines":
        points = np.stack([array(drawn.start), array(drawn.end)], axis=2)
    else:
        points = array(drawn.position)[:, :, None]
    if kind == "circles":
        radius = array(drawn.radius)
        heading = None if drawn.heading is None else array(drawn.heading)
        texts = (*drawn.names, *[""] * (visible.shape[1] - len(drawn.names)))
    else:
        texts = tuple(drawn.text) if kind == "labels" else ()
    colour = np.zeros(visible.shape, int) if kind == "labels" else array(drawn.colour, int) % PALETTE_SIZE
    visible = visible & np.isfinite(points).all((2, 3))
    if radius is not None:
        visible = visible & np.isfinite(radius)
    points = np.where(np.isfinite(points), points, 0.0)
    broken, usual = _breaks(points, visible, size)
    return Shapes(points, visible, colour, broken, usual, radius, heading, texts)


def _breaks(points: np.ndarray, visible: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, float]:
    """Where shapes do not glide, `[T, k]`, and how far they usually go in a step."""
    broken = np.ones(visible.shape, bool)
    if len(visible) < 2 or not visible.shape[1]:
        return broken, 0.0
    steps = np.linalg.norm(np.diff(points, axis=0), axis=-1).max(axis=-1)
    broken[:-1] = ~(visible[:-1] & visible[1:])
    moves = steps[~broken[:-1] & (steps > 1e-6 * size[0])]
    usual = float(np.median(moves)) if moves.size else 0.0
    broken[:-1] |= steps > max(0.25 * float(size.min()), 2.5 * usual)
    return broken, usual


def _harmonic(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    same = a * b > 0
    return np.where(same, 2 * a * b / np.where(same, a + b, 1.0), 0.0)
