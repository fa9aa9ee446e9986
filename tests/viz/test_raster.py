"""Scenes as pixels: what covers how much, in which colour, and how it moves between two frames."""

import dataclasses

import numpy as np
import pytest

from shoal.core.errors import OptionError
from shoal.core.types import Circles, Labels, Lines, Polygons, Scene
from shoal.viz.motion import read_motion
from shoal.viz.raster import THEMES, MissingPillowError, Painter, SceneRenderer, mix, plain_text

pytest.importorskip("PIL", reason="Pillow is not installed: pip install 'shoal-rl[video]'")
RED = 4


def circle(**changes):
    """A circle of radius 0.2 in the middle of the unit square."""
    fields = {
        "position": np.array([[0.5, 0.5]]),
        "radius": np.array([0.2]),
        "colour": np.array([RED]),
        "visible": np.array([True]),
        "names": ("agent_0",),
    }
    return Circles(**(fields | changes))


def path(places, visible=None, bounds=(0.0, 0.0, 1.0, 1.0)):
    """An agent that is at these places, one a frame."""
    places = np.asarray(places, float)
    number = len(places)
    seen = np.ones((number, 1), bool) if visible is None else np.asarray(visible, bool)[:, None]
    ones = np.ones((number, 1))
    return Scene(
        bounds, circles=Circles(places[:, None], 0.05 * ones, RED * ones.astype(int), seen, names=("agent_0",))
    )


def share(pixels, colour):
    return float(np.mean(np.all(np.abs(pixels.astype(int) - colour) < 6, axis=-1)))


def test_a_circle_covers_its_area_in_its_colour():
    draw = SceneRenderer(240)
    pixels = draw(Scene(circles=circle()))
    assert pixels.dtype == np.uint8
    height, width, _ = pixels.shape
    red = THEMES["light"].palette[RED]
    assert share(pixels, red) * height * width == pytest.approx(np.pi * (0.2 * 240) ** 2, rel=0.1)
    assert share(draw(Scene(circles=circle(visible=np.array([False])))), red) == 0
    assert share(draw(Scene(circles=circle(colour=np.array([RED + 8])))), red) > 0.1, "colours start over"
    assert share(draw(Scene(circles=circle(position=np.array([[np.nan, 0.5]])))), red) == 0
    inner = pixels[50:-50, 50:-50]
    shades = {tuple(pixel) for pixel in inner.reshape(-1, 3).tolist()}
    assert len(shades) > 10, "edges are smooth"


def test_somebody_without_a_name_is_a_place_among_those_who_have_one():
    both = circle(
        position=np.array([[0.25, 0.5], [0.75, 0.5]]),
        radius=np.array([0.2, 0.2]),
        colour=np.array([RED, RED]),
        visible=np.array([True, True]),
        names=("agent_0", ""),
    )
    pixels, light = SceneRenderer(200)(Scene(circles=both)), THEMES["light"]
    middle, quarter = pixels.shape[0] // 2, pixels.shape[1] // 4
    assert tuple(pixels[middle, quarter]) == light.palette[RED]
    assert tuple(pixels[middle, 3 * quarter]) == mix(light.palette[RED], light.arena, 0.28)


def test_a_heading_is_a_nose():
    red = THEMES["light"].palette[RED]
    pixels = SceneRenderer(200)(Scene(circles=circle(heading=np.array([np.pi / 2]))))
    rows, columns = np.nonzero(np.all(np.abs(pixels.astype(int) - red) < 6, axis=-1))
    above, below = 103 - rows.min(), rows.max() - 103
    assert above > 1.5 * below, "up is up"
    assert abs((columns.min() + columns.max()) / 2 - 103) < 3


def test_all_kinds_of_shapes_light_and_dark():
    polygons = Polygons(np.array([[[0.0, 0], [0.5, 0], [0.5, 0.5]]]), np.array([3]), np.array([True]))
    lines = Lines(np.array([[0.0, 1]]), np.array([[1.0, 0]]), np.array([5]), np.array([True]))
    labels = Labels(np.array([[0.8, 0.8], [0.1, 0.1]]), np.array([True, False]), ("here", "hidden"))
    kinds = {"polygons": polygons, "lines": lines, "circles": circle(), "labels": labels}
    for name, theme in THEMES.items():
        draw = SceneRenderer(200, name)
        empty = draw(Scene(circles=circle(visible=np.array([False]))))
        assert share(empty, theme.arena) > 0.7
        for kind, shapes in kinds.items():
            assert (draw(Scene(**{kind: shapes})) != empty).any(), kind
        large = SceneRenderer(640, name)(Scene(lines=lines))
        assert share(large, mix(theme.palette[5], theme.arena, 0.75)) > 0.001


def test_the_picture_has_the_shape_of_the_bounds():
    wide = SceneRenderer(200)(dataclasses.replace(Scene(circles=circle()), bounds=(0.0, 0.0, 2.0, 1.0)))
    assert wide.shape[1] - wide.shape[0] == 100


def test_motion_glides_but_does_not_jump_or_overshoot():
    motion = read_motion(path([[0.1, 0.5], [0.2, 0.5], [0.3, 0.5], [0.9, 0.5], [0.95, 0.5]]))
    circles = motion.shapes["circles"]
    assert circles.at(0.5).points[0, 0].tolist() == pytest.approx([0.15, 0.5])
    assert circles.at(2.5).points[0, 0, 0] == pytest.approx(0.3), "a jump is no motion"
    turning = read_motion(path([[0.1, 0.5], [0.2, 0.5], [0.1, 0.5]])).shapes["circles"]
    xs = [turning.at(t).points[0, 0, 0] for t in np.linspace(0, 2, 41)]
    assert max(xs) == pytest.approx(0.2)
    vanishing = read_motion(path([[0.1, 0.5], [0.2, 0.5], [0.2, 0.5]], [True, True, False])).shapes["circles"]
    assert [vanishing.at(t).presence[0] for t in (1, 1.25, 2)] == [1, 0.75, 0]
    assert motion.groups == {"agent": RED}


def test_agents_leave_trails_and_rings():
    scene = path([[0.2 + 0.05 * t, 0.5] for t in range(8)], [True] * 7 + [False])
    motion = read_motion(scene)
    plain, traced = (np.array(Painter(motion.bounds, 200, trails=on).picture(motion, 6)) for on in (False, True))
    behind = (slice(95, 115), slice(70, 90))
    assert (plain[behind] == 255).all(-1).mean() > 0.8
    assert (traced[behind] != plain[behind]).any()
    gone = np.array(Painter(motion.bounds, 200).picture(motion, 7))
    empty = np.array(Painter(motion.bounds, 200).picture(read_motion(path([[0.5, 0.5]], [False]))))
    assert (gone != empty).any(), "a ring where it vanished"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SceneRenderer()(Scene()), "the scene is empty"),
        (lambda: SceneRenderer(8)(Scene(circles=circle())), "size must be a number of pixels from 64 to 4096, got 8"),
        (lambda: SceneRenderer(theme="pink")(Scene(circles=circle())), "theme must be light or dark, got 'pink'"),
        (lambda: SceneRenderer()(Scene((0.0, 0.0, 0.0, 1.0), circles=circle())), "bounds must be"),
    ],
)
def test_what_cannot_be_drawn(make, words):
    with pytest.raises(OptionError, match=words):
        make()


def test_text_is_drawn_on_one_line():
    assert plain_text("a\nb\x1b[0m" + 300 * "c").startswith("a b [0mccc")
    assert len(plain_text(300 * "c")) == 200


def test_missing_pillow_is_said_by_name(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "PIL.Image", None)
    with pytest.raises(MissingPillowError, match=r"need Pillow: pip install 'shoal-rl\[video\]'"):
        SceneRenderer()(Scene(circles=circle()))
