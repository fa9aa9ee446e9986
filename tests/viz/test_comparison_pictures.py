"""Pictures of comparisons: what is drawn, for whom, in which colours."""

import io
import re

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure

from shoal.core.errors import OptionError
from shoal.training.compared_runs import ComparedRun, flatten
from shoal.training.comparison import KINDS, compare
from shoal.viz.palette import PALETTE


def make_run(name, scores, env="test/world", rows=10):
    lines = [{"env_steps": 100 * i, "return": [i * score for score in scores]} for i in range(1, rows + 1)]
    settings = flatten({"env": env, "seed": 0, "num_seeds": len(scores)})
    return ComparedRun(name, settings, tuple(range(len(scores))), lines)


@pytest.fixture(scope="module")
def found():
    names = ("plain", "$a_b^", "_hidden")  # as mathematics the second is none, and matplotlib leaves out the third
    return compare([make_run(name, (1.0 + i, 2.0 + i, 4.0)) for i, name in enumerate(names)], by="run")


def _pixels(content):
    return matplotlib.image.imread(io.BytesIO(content))[:, :, :3]


@pytest.mark.parametrize("kind", KINDS)
def test_every_picture_has_every_name(found, kind):
    axes = found.plot(kind)
    texts = [text.get_text() for legend in axes.figure.legends for text in legend.get_texts()]
    texts += [label.get_text() for label in axes.get_yticklabels()]
    assert {"plain", "$a_b^", "_hidden"} <= set(texts)
    assert axes.get_title(loc="left") == "test/world"
    assert axes._repr_png_().startswith(b"\x89PNG")


def test_groups_have_colours_of_the_palette_in_order(found):
    pixels = _pixels(found.pictures("final", "png")["png"])
    for colour in PALETTE[1:4]:
        wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        assert (np.abs(pixels - wanted).max(-1) < 0.02).sum() > 50
    lines = found.plot("curves").lines
    assert [line.get_color() for line in lines] == list(PALETTE[1:4])


def test_no_dot_of_final_performance_lies_on_the_edge():
    same = compare([make_run(name, (1.0, 1.0, 4.0)) for name in "ab"], by="run")
    axes = same.plot("final")
    low, high = axes.get_xlim()
    places = [float(x) for line in axes.lines for x in line.get_xdata()]
    assert min(places) - low > 0.02 * (high - low)
    assert high - max(places) > 0.02 * (high - low)


def test_more_groups_than_colours_are_told_apart_by_dashes():
    many = compare([make_run(f"run {i}", (float(i), i + 1.0)) for i in range(10)], by="run")
    styles = {(line.get_color(), str(line.get_linestyle())) for line in many.plot("curves").lines}
    assert len(styles) == 10


def test_the_line_is_the_iqm_and_the_band_its_interval(found):
    axes = found.plot("curves")
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), found.curves["plain"].iqm)
    corners = axes.collections[0].get_paths()[0].vertices
    assert corners[:, 1].min() == found.curves["plain"].low.min()
    assert corners[:, 1].max() == found.curves["plain"].high.max()


def test_one_seed_has_no_band():
    axes = compare([make_run("a", (1.0,))]).plot("curves")
    assert (len(axes.lines), len(axes.collections)) == (1, 0)
    alone = compare([make_run("a", (1.0, 2.0), rows=1)]).plot("curves")
    assert alone.lines[0].get_marker() == "o"


def test_the_cells_of_improvement(found):
    axes = found.plot("improvement")
    cells = [text.get_text() for text in axes.texts]
    assert len(cells) == 6
    assert cells[0].startswith(f"{found.improvement.probability[0, 1]:.2f}\n")


def test_a_panel_for_each_environment_and_axes_of_ones_own():
    runs = [make_run("a", (1.0, 2.0)), make_run("b", (1.0, 2.0), env="test/other")]
    apart = compare(runs, by="run")
    every = apart.plot("final")
    assert [axes.get_title(loc="left") for axes in every] == ["test/world", "test/other"]
    own = Figure().subplots(1, 2)
    assert apart.plot("curves", axes=own) == list(own)
    assert [text.get_text() for text in own[0].get_legend().get_texts()] == ["a", "b"]
    with pytest.raises(OptionError, match="axes must be one for each environment, 2, got 1"):
        apart.plot("curves", axes=own[0])


def test_files_are_the_same_each_time_and_text_stays_text(found):
    first, again = found.pictures("profile", "svg", "pdf"), found.pictures("profile", "svg", "pdf")
    assert first == again
    assert re.search(rb">\s*\$a_b\^\s*<", first["svg"])
    assert first["pdf"].startswith(b"%PDF")
