import io

import jax.numpy as jnp
import numpy as np
import pytest

from shoal.core.errors import OptionError, RunError
from shoal.core.types import Circles, Labels, Lines, Polygons, Scene
from shoal.viz import draw_scene

image = pytest.importorskip("matplotlib.image", reason="matplotlib is not installed: pip install 'shoal-rl[plot]'")


def drawn(tmp_path, scene, **options):
    draw_scene(tmp_path / "scene.png", scene, **options)
    return image.imread(io.BytesIO((tmp_path / "scene.png").read_bytes()))[..., :3]


def circle(**changes):
    fields = {
        "position": jnp.array([[0.5, 0.5]]),
        "radius": jnp.array([0.2]),
        "colour": jnp.array([4]),
        "visible": jnp.array([True]),
    }
    return Circles(**(fields | changes))


def share_of(pixels, colour):
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return float(np.mean(np.all(np.abs(pixels - [red, green, blue]) < 0.02, axis=-1)))


def test_a_circle_covers_its_area_in_its_colour(tmp_path):
    pixels = drawn(tmp_path, Scene(circles=circle()))
    assert share_of(pixels, "#d93f4c") == pytest.approx(np.pi * 0.2**2, rel=0.1)
    assert share_of(drawn(tmp_path, Scene(circles=circle(visible=jnp.array([False])))), "#d93f4c") == 0
    assert share_of(drawn(tmp_path, Scene(circles=circle(colour=jnp.array([9])))), "#2f6fde") > 0.1, "colours go round"


def test_all_kinds_of_shapes(tmp_path):
    polygons = Polygons(jnp.array([[[0.0, 0], [0.5, 0], [0.5, 0.5]]]), jnp.array([3]), jnp.array([True]))
    lines = Lines(jnp.array([[0.0, 1]]), jnp.array([[1.0, 0]]), jnp.array([5]), jnp.array([True]))
    labels = Labels(jnp.array([[0.8, 0.8], [0.1, 0.1]]), jnp.array([True, False]), ("here", "hidden"))
    heading = jnp.array([0.3])
    scene = Scene(polygons=polygons, lines=lines, circles=circle(heading=heading), labels=labels)
    empty, full = drawn(tmp_path, Scene()), drawn(tmp_path, scene)
    assert full.shape == empty.shape
    assert share_of(full, "#8157d1") > 0.001
    assert share_of(full, "#1b1f26") > share_of(empty, "#1b1f26")


def test_the_picture_has_the_shape_of_the_bounds(tmp_path):
    height, width, _ = drawn(tmp_path, Scene(bounds=(0.0, 0.0, 2.0, 1.0)), height=1.0, dpi=100).shape
    assert (height, width) == (100, 200)


def test_a_place_that_cannot_be_written_to(tmp_path):
    with pytest.raises(RunError, match="cannot write"):
        draw_scene(tmp_path / "nowhere" / "scene.png", Scene())


@pytest.mark.parametrize(
    ("scene", "options", "words"),
    [
        (None, {}, "scene must be a shoal.Scene, as .* returns it, got None"),
        (Scene(), {"height": 0}, "height must be a finite number greater than 0, got 0"),
        (Scene(), {"height": float("nan")}, "height must be .* got nan"),
        (Scene(), {"height": "3"}, "height must be .* got '3'"),
        (Scene(), {"dpi": -1}, "dpi must be a finite number greater than 0, got -1"),
    ],
)
def test_what_cannot_be_drawn(tmp_path, scene, options, words):
    with pytest.raises(OptionError, match=f"draw_scene: {words}"):
        draw_scene(tmp_path / "scene.png", scene, **options)
    assert not list(tmp_path.iterdir())
