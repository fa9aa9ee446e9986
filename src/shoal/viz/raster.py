"""A scene as pixels, by Pillow: the same shapes, colours and layers as on the replay page, without matplotlib.

Shapes are drawn several times larger than wanted and then averaged, which smooths their edges. What does not move (the
arena and its grid) is drawn once.
"""

import dataclasses
import functools
import math
from typing import Any

import numpy as np

from shoal.core.errors import ShoalError, install_command, require
from shoal.core.types import Scene
from shoal.viz.motion import Moment, Motion, Shapes, read_motion
from shoal.viz.palette import PALETTE

INSTALL = install_command("video")
LEAST, MOST = 64, 4096
"""The least and the most pixels of the longer side of a picture."""
_REFERENCE = 640
"""The size in pixels at which line widths are those of the replay page."""
_NOSE = 1.75  # radii from the middle of an agent to the tip
_RIPPLE = 9  # frames that a ring lasts where an agent vanished
_TRAIL = 22  # frames of a trail at most
_CROWD = 120  # from so many agents on, trails are drawn more simply
_COARSEST = 16.0  # sizes of the world; what is farther away is not drawn

Colour = tuple[int, int, int]


class MissingPillowError(ShoalError, ImportError):
    """Pillow is not installed."""


def pillow() -> Any:
    """The package PIL with the modules that are used here; says how to install it if it is missing."""
    try:
        import PIL.Image
        import PIL.ImageDraw
        import PIL.ImageFont
    except ImportError as error:
        raise MissingPillowError(f"films and rendered pictures need Pillow: {INSTALL}") from error
    return PIL


@dataclasses.dataclass(frozen=True)
class Theme:
    """Colours of a picture. palette: by the index that worlds choose."""

    page: Colour
    arena: Colour
    edge: Colour
    grid: Colour
    ink: Colour
    muted: Colour
    palette: tuple[Colour, ...]


def _rgb(text: str) -> Colour:
    return int(text[1:3], 16), int(text[3:5], 16), int(text[5:7], 16)


def _theme(*plain: str, palette: tuple[str, ...]) -> Theme:
    return Theme(*map(_rgb, plain), palette=tuple(map(_rgb, palette)))


_DARK = ("#818b99", "#5c9dff", "#ff9a4d", "#48c47d", "#ff6673", "#a98bff", "#35c6c2", "#f3ca4b")
THEMES = {
    "light": _theme("#f3f4f7", "#ffffff", "#d5d9e0", "#eef0f4", "#1b1f26", "#667080", palette=PALETTE),
    "dark": _theme("#0c0f14", "#141920", "#2a313c", "#1b212a", "#e8ebf0", "#929cab", palette=_DARK),
}
"""The colours of the replay page."""


def mix(colour: Colour, ground: Colour, share: float) -> Colour:
    """A colour that covers a share of the ground."""
    return tuple(round(g + (c - g) * share) for c, g in zip(colour, ground, strict=True))  # type: ignore[return-value]


@functools.lru_cache(maxsize=16)
def font(pixels: int) -> Any:
    return pillow().ImageFont.load_default(pixels)


class Painter:
    """Draws motions within one set of bounds, the longer side of the arena `size` pixels long.

    margin: pixels around the arena. trails: whether agents leave traces of where they were.
    """

    def __init__(
        self,
        bounds: tuple[float, float, float, float],
        size: int = 480,
        theme: str = "light",
        margin: int | None = None,
        trails: bool = True,
    ):
        whole = isinstance(size, int | np.integer) and not isinstance(size, bool) and LEAST <= size <= MOST
        require(whole, "shoal.viz", "size", size, f"a number of pixels from {LEAST} to {MOST}")
        require(theme in THEMES, "shoal.viz", "theme", theme, "light or dark")
        self.theme, self.trails = THEMES[theme], trails
        left, bottom, right, top = self.bounds = bounds
        self.scale = size / max(right - left, top - bottom)
        self.unit = min(max(size / _REFERENCE, 0.5), 3.0)
        self.margin = math.ceil(6 * self.unit) if margin is None else margin
        inner = [max(round((right - left) * self.scale), 8), max(round((top - bottom) * self.scale), 8)]
        self.width, self.height = inner[0] + 2 * self.margin, inner[1] + 2 * self.margin
        self.finer = 4 if size <= 360 else 3 if size <= 1000 else 2
        self._ground = self._draw_ground()

    def picture(self, motion: Motion, time: float = 0.0) -> Any:
        """The motion at a time in frames, as a `PIL.Image` in RGB."""
        image = self._ground.copy()
        pen = pillow().ImageDraw.Draw(image, "RGBA")
        shapes = motion.shapes
        if "polygons" in shapes:
            self._polygons(pen, shapes["polygons"].at(time))
        if "lines" in shapes:
            self._lines(pen, shapes["lines"].at(time))
        if "circles" in shapes:
            self._circles(pen, shapes["circles"], time)
        image = image.reduce(self.finer)
        if "labels" in shapes:
            self._labels(pillow().ImageDraw.Draw(image), shapes["labels"], time)
        return image

    def _draw_ground(self) -> Any:
        theme, finer = self.theme, self.finer
        PIL = pillow()
        image = PIL.Image.new("RGB", (self.width * finer, self.height * finer), theme.page)
        pen = PIL.ImageDraw.Draw(image)
        inset, one = self.margin * finer, max(1, round(finer * min(self.unit, 1.0)))
        box = (inset, inset, image.width - inset - 1, image.height - inset - 1)
        pen.rounded_rectangle(box, 10 * self.unit * finer, theme.arena)
        left, bottom, right, top = self.bounds
        for low, high, across in ((left, right, True), (bottom, top, False)):
            for value in _round_numbers(low, high, 45 * self.unit / self.scale):
                x, y = self._pixels(np.array([value, value])).tolist()
                pen.line([x, box[1], x, box[3]] if across else [box[0], y, box[2], y], theme.grid, one)
        corner = PIL.Image.new("L", image.size, 0)  # the grid must not reach into the rounded corners
        PIL.ImageDraw.Draw(corner).rounded_rectangle(box, 10 * self.unit * finer, 255)
        page = PIL.Image.new("RGB", image.size, theme.page)
        image = PIL.Image.composite(image, page, corner)
        PIL.ImageDraw.Draw(image).rounded_rectangle(box, 10 * self.unit * finer, None, theme.edge, one)
        return image

    def _pixels(self, points: np.ndarray) -> np.ndarray:
        """World coordinates `[..., 2]` as those of the enlarged picture."""
        left, _, _, top = self.bounds
        far = _COARSEST * max(self.width, self.height)
        x = self.margin + np.clip((points[..., 0] - left) * self.scale, -far, far)
        y = self.margin + np.clip((top - points[..., 1]) * self.scale, -far, far)
        return np.stack([x, y], axis=-1) * self.finer

    def _wide(self, pixels: float) -> int:
        """The width of a line, in pixels of the enlarged picture."""
        return max(1, round(pixels * self.unit * self.finer))

    def _polygons(self, pen: Any, now: Moment) -> None:
        points, wide = self._pixels(now.points), self._wide(1.5)
        for i in np.flatnonzero(now.presence):
            colour, alpha = self.theme.palette[now.colour[i]], now.presence[i]
            corners = points[i].ravel().tolist()
            pen.polygon(corners, fill=(*colour, round(255 * 0.16 * alpha)))
            stroke = mix(colour, self.theme.arena, 0.7 * alpha)
            pen.line([*corners, *corners[:4]], fill=stroke, width=wide, joint="curve")

    def _lines(self, pen: Any, now: Moment) -> None:
        points, wide = self._pixels(now.points), self._wide(1.6)
        for i in np.flatnonzero(now.presence):
            colour = mix(self.theme.palette[now.colour[i]], self.theme.arena, 0.75 * now.presence[i])
            pen.line(points[i].ravel().tolist(), fill=colour, width=wide)

    def _circles(self, pen: Any, circles: Shapes, time: float) -> None:
        now = circles.at(time)
        assert now.radius is not None
        named = np.array([bool(name) for name in circles.texts])
        agents = named if named.any() else np.ones_like(named)
        least = float(np.clip(22 / math.sqrt(max(named.sum(), 1)), 2.6, 7)) * self.unit
        radius = np.maximum(now.radius * self.scale, np.where(agents, least, 2.5 * self.unit)) * self.finer
        centre = self._pixels(now.points[:, 0])
        if self.trails:
            self._trails(pen, circles, time, agents, centre, radius)
        for i in np.argsort(-now.radius, kind="stable").tolist():
            if now.presence[i] > 0:
                (self._agent if agents[i] else self._place)(pen, now, i, centre[i], float(radius[i]))
        for i in np.flatnonzero(agents).tolist():
            self._ripple(pen, circles, time, i)

    def _place(self, pen: Any, now: Moment, i: int, centre: np.ndarray, radius: float) -> None:
        """A circle without a name is a place, not somebody: a pale disc."""
        colour, arena = self.theme.palette[now.colour[i]], self.theme.arena
        alpha = now.presence[i]
        fill, edge = mix(colour, arena, 0.28 * alpha), mix(colour, arena, alpha)
        pen.ellipse(_box(centre, radius), fill=fill, outline=edge, width=self._wide(1.75))

    def _agent(self, pen: Any, now: Moment, i: int, centre: np.ndarray, radius: float) -> None:
        arena, alpha = self.theme.arena, now.presence[i]
        colour = (*self.theme.palette[now.colour[i]], round(255 * alpha))
        rim = float(np.clip(0.16 * radius, 0.75 * self.unit * self.finer, 2 * self.unit * self.finer))
        heading = math.nan if now.heading is None else float(now.heading[i])
        if alpha == 1:
            _body(pen, centre, radius + rim / 2, heading, arena)
        _body(pen, centre, radius - rim / 2, heading, colour)

    def _ripple(self, pen: Any, circles: Shapes, time: float, i: int) -> None:
        """A ring that widens where an agent has just vanished."""
        frame = min(int(time), circles.length - 1)
        assert circles.radius is not None
        for gone in range(max(1, frame - _RIPPLE), frame + 1):
            if circles.visible[gone, i] or not circles.visible[gone - 1, i]:
                continue
            age = (time - gone) / (_RIPPLE + 1)
            start = max(circles.radius[gone - 1, i] * self.scale, 5 * self.unit) * self.finer
            colour = self.theme.palette[circles.colour[gone - 1, i]]
            box = _box(self._pixels(circles.points[gone - 1, i, 0]), start * (1 + 2.6 * (1 - (1 - age) ** 2)))
            ring = mix(colour, self.theme.arena, max(0.75 * (1 - age), 0.0))
            pen.ellipse(box, outline=ring, width=self._wide(2 * (1 - age)))

    def _trails(
        self, pen: Any, circles: Shapes, time: float, agents: np.ndarray, centre: np.ndarray, radius: np.ndarray
    ) -> None:
        """Where agents have been, thinner and paler with age, back to the last break."""
        frame = min(int(time), circles.length - 1)
        left, bottom, right, top = self.bounds
        few = 0.13 * min(right - left, top - bottom) / circles.usual if circles.usual else _TRAIL
        longest = int(np.clip(round(few), 4, _TRAIL))
        first = max(0, frame - longest)
        past = self._pixels(circles.points[first : frame + 1, :, 0])
        crowd = agents.sum() > _CROWD
        arena = self.theme.arena
        for i in np.flatnonzero(agents & circles.visible[frame]):
            breaks = np.flatnonzero(circles.broken[first:frame, i])
            begin = int(breaks[-1]) + 1 if breaks.size else 0
            points = [*past[begin:, i].tolist()]
            if time > frame:
                points.append(centre[i].tolist())
            thickest = float(np.clip(0.9 * radius[i], 1.4 * self.unit * self.finer, 10 * self.unit * self.finer))
            colour = self.theme.palette[circles.colour[frame, i]]
            for k in range(len(points) - 1):
                share = 1 - (len(points) - 1 - k) / (longest + 1)
                fill = mix(colour, arena, 0.45 * share * share)
                wide = max(1, round(thickest * (0.3 + 0.7 * share)))
                pen.line([*points[k], *points[k + 1]], fill=fill, width=wide)
                if not crowd:  # fills the gap between two pieces that meet at an angle
                    pen.ellipse(_box(points[k + 1], wide / 2), fill=fill)

    def _labels(self, pen: Any, labels: Shapes, time: float) -> None:
        now = labels.at(time)
        places = self._pixels(now.points[:, 0]) / self.finer
        size = font(max(9, round(13 * self.unit)))
        for i in np.flatnonzero(now.presence):
            ink = mix(self.theme.ink, self.theme.arena, now.presence[i])
            text = plain_text(labels.texts[i])
            look = {"fill": ink, "font": size, "anchor": "mm", "stroke_fill": self.theme.arena}
            pen.text(places[i].tolist(), text, stroke_width=max(1, round(2 * self.unit)), **look)


class SceneRenderer:
    """Turns scenes of one world into pictures `[height, width, 3]` of uint8, the longer side about `size` long."""

    def __init__(self, size: int = 480, theme: str = "light"):
        self.size, self.theme = size, theme
        self._painter: Painter | None = None

    def __call__(self, scene: Scene) -> np.ndarray:
        motion = read_motion(scene, still=True)
        if self._painter is None or self._painter.bounds != motion.bounds:
            self._painter = Painter(motion.bounds, self.size, self.theme, trails=False)
        return np.array(self._painter.picture(motion))


def plain_text(text: str, longest: int = 200) -> str:
    """A text on one line, without letters that cannot be drawn."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:longest])


def _box(centre: Any, radius: float) -> list[float]:
    x, y = float(centre[0]), float(centre[1])
    return [x - radius, y - radius, x + radius, y + radius]


def _body(pen: Any, centre: np.ndarray, radius: float, heading: float, fill: Any) -> None:
    """A disc or, with a heading, half a disc whose sides bend together into a nose."""
    if not math.isfinite(heading):
        pen.ellipse(_box(centre, radius), fill=fill)
        return
    ahead = np.array([math.cos(heading), -math.sin(heading)]) * radius
    turn = np.array([ahead, [-ahead[1], ahead[0]]])
    pen.polygon((centre + _outline() @ turn).ravel().tolist(), fill=fill)


@functools.cache
def _outline() -> np.ndarray:
    """Corners of an agent that looks to the right, of radius 1."""
    turns = np.linspace(0.5 * np.pi, 1.5 * np.pi, 15)
    back = np.stack([np.cos(turns), np.sin(turns)], axis=-1)
    share = np.linspace(0, 1, 7)[1:, None]
    bottom, middle, tip = (np.array(point) for point in ((0.0, -1.0), (0.75, -1.0), (_NOSE, 0.0)))
    side = (1 - share) ** 2 * bottom + 2 * share * (1 - share) * middle + share**2 * tip
    return np.concatenate([back, side, (side * [1, -1])[-2::-1]])


def _round_numbers(low: float, high: float, least: float) -> list[float]:
    """Round numbers between two others, at least so far apart."""
    power = 10 ** math.floor(math.log10(least))
    spacing = power * next(n for n in (1, 2, 5, 10) if n * power >= least * (1 - 1e-9))
    return [n * spacing for n in range(math.ceil(low / spacing), math.ceil(high / spacing))]
