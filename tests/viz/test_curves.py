"""Learning curves: what is drawn, what is left out, and what happens when it cannot be."""

import sys

import matplotlib.image
import numpy as np
import pytest

import shoal
from shoal.core.errors import OptionError, ShoalError
from shoal.viz import curves, draw_curves
from shoal.viz.palette import INK, PALETTE, colours_of, scene_colours
from shoal.viz.plot import Band, plot_curves


def _rows(count: int, seeds: int = 0) -> list[dict]:
    def value(x: float):
        return x if not seeds else [x + seed for seed in range(seeds)]

    return [
        {
            "update": i,
            "env_steps": 1000 * i,
            "return": value(float(i)),
            "return/tagger": value(2.0 * i),
            "return/runner": value(-1.0 * i) if i % 2 else None,
            "length": value(20.0),
            "loss/policy": float("nan"),
            "note": "text",
        }
        for i in range(count)
    ]


def _pixels(path) -> np.ndarray:
    return matplotlib.image.imread(path)[:, :, :3]


def _has_colour(pixels: np.ndarray, colour: str, at_least: int = 50) -> bool:
    wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return bool((np.abs(pixels - wanted).max(-1) < 0.02).sum() >= at_least)


def test_rows_become_curves():
    found = {curve.name: curve for curve in curves.read_curves(_rows(5, seeds=2))}
    assert list(found) == ["return", "return/tagger", "return/runner", "length"]
    np.testing.assert_array_equal(found["return/tagger"].values, [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]])
    np.testing.assert_array_equal(found["return/tagger"].mean, [0.5, 2.5, 4.5, 6.5, 8.5])
    np.testing.assert_array_equal(found["return/runner"].steps, [1000, 3000])  # the rows in between have none


def test_a_seed_without_a_value_is_left_out_of_the_mean():
    (curve,) = curves.read_curves([{"env_steps": 0, "x": [1.0, None, 3.0]}, {"env_steps": 1, "x": [None, None, None]}])
    np.testing.assert_array_equal(curve.steps, [0])
    np.testing.assert_array_equal(curve.mean, [2.0])


def test_what_runs_side_by_side_has_a_name():
    figure_class, _ = curves.matplotlib_classes()
    figure = figure_class()
    rows = [{"env_steps": 1000, "return": [1.0, 2.0, 3.0], "pbt/source": [0, 0, 2]}]
    found = curves.read_curves(rows)
    assert [curve.name for curve in found] == ["return"]  # whose copies they are is no curve
    curves._head(figure, found, "a world", "members", 2.0)
    assert figure.texts[1].get_text() == "1k environment steps, mean and range of 3 members"


def test_smoothing_by_hand():
    values = np.zeros((24, 1))
    values[[0, 10]] = 3.0
    smooth = curves._smooth(values)[:, 0]  # a window of three; at the ends, what was measured
    np.testing.assert_allclose(smooth[[0, 1, 2, 9, 10, 11, 12, 23]], [3, 1, 0, 1, 1, 1, 0, 0], atol=1e-12)
    np.testing.assert_allclose(curves._smooth(np.arange(5.0)[:, None])[:, 0], np.arange(5.0), atol=1e-12)


def test_smoothing_bends_no_straight_line_and_skips_what_is_unknown():
    line = np.linspace(-80.0, -20.0, 200)[:, None]
    np.testing.assert_allclose(curves._smooth(line), line, atol=1e-10)
    values = np.array([[1.0], [np.nan], [3.0], [5.0]] * 12)
    smooth = curves._smooth(values)[:, 0]  # windows of five: 2, 2 / 5, 1, -, 3, 5, 1 ...
    np.testing.assert_allclose(smooth[[0, 1, 2, 3]], [1.0, 2.0, (1 + 3 + 5 + 1) / 4, 3.0])


def test_the_line_begins_where_the_run_began_and_stays_within_its_band():
    """A curve that rises steeply at first: its left end is not drawn higher than anything that was measured there."""
    rise = -80.0 + 50.0 * (1 - np.exp(-np.arange(200) / 6.0))
    noise = np.random.default_rng(0).normal(size=(200, 3))
    rows = [{"env_steps": i, "return/a": (rise[i] + 5 * noise[i]).tolist()} for i in range(200)]
    (curve,) = curves.read_curves(rows)
    np.testing.assert_allclose(curve.smooth[[0, -1]], curve.values[[0, -1]])
    assert (curve.smooth.min(1) <= curve.mean).all()
    assert (curve.mean <= curve.smooth.max(1)).all()
    assert np.abs(curve.mean - rise).max() < 8.0


def test_opposed_groups_have_no_return_together():
    found = curves.read_curves(_rows(5))
    assert [curve.name for curve in curves._shown_returns(found, opposed=False)] == [
        "return",
        "return/tagger",
        "return/runner",
    ]
    assert [curve.name for curve in curves._shown_returns(found, opposed=True)] == ["return/tagger", "return/runner"]
    alone = curves.read_curves([{"env_steps": 0, "return": 1.0}])
    assert [curve.name for curve in curves._shown_returns(alone, opposed=True)] == ["return"]


def test_a_logarithmic_range_is_drawn_on_a_logarithmic_axis(tmp_path, monkeypatch):
    scales = {}
    draw = curves._draw_small

    def noted(axes, curve, colour, log):
        draw(axes, curve, colour, log)
        scales[curve.name] = axes.get_yscale()

    monkeypatch.setattr(curves, "_draw_small", noted)
    rows = [{"env_steps": i, "pbt/learning_rate": 10.0**-i, "pbt/gamma": 0.9, "pbt/zero": 0.0} for i in range(1, 4)]
    draw_curves(tmp_path / "curves.png", rows, title="t", log=("pbt/learning_rate", "pbt/zero"))
    assert scales == {"pbt/learning_rate": "log", "pbt/gamma": "linear", "pbt/zero": "linear"}


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.25, "0.25"), (-12.34, "−12.3"), (999.9, "1k"), (25600, "25.6k"), (1234567, "1.23M"), (2e9, "2G")],
)
def test_numbers_are_short(value, text):
    assert curves.short_number(value) == text


def test_a_line_for_every_group_and_all(tmp_path):
    draw_curves(tmp_path / "curves.png", _rows(60), title="A title with $maths_ and <tags>")
    pixels = _pixels(tmp_path / "curves.png")
    assert pixels.shape[1] == 1584
    assert all(_has_colour(pixels, colour) for colour in (PALETTE[1], PALETTE[2], INK))
    assert not _has_colour(pixels, PALETTE[4])


def test_groups_have_the_colours_of_their_world(tmp_path):
    colours = scene_colours(shoal.make("tag/grid"))
    assert colours == {"tagger": 4, "runner": 1}
    draw_curves(tmp_path / "curves.png", _rows(60), title="tag", colours=colours, opposed=True)
    pixels = _pixels(tmp_path / "curves.png")
    assert _has_colour(pixels, PALETTE[4])
    assert not _has_colour(pixels, PALETTE[2])


def test_names_without_a_colour_get_free_ones():
    assert colours_of(["a", "b", "c"]) == {"a": 1, "b": 2, "c": 3}
    assert colours_of(["a", "b", "c"], {"b": 1}) == {"a": 2, "b": 1, "c": 3}
    many = colours_of([str(i) for i in range(20)])
    assert set(many.values()) == set(range(8))


def test_several_seeds_draw_a_band(tmp_path):
    draw_curves(tmp_path / "one.png", [{"env_steps": i, "return/a": 1.0 * i} for i in range(9)], title="one")
    draw_curves(tmp_path / "two.png", [{"env_steps": i, "return/a": [1.0 * i, 3.0 * i]} for i in range(9)], title="two")
    band = "#dee8fa"  # the first colour at 16 % over white
    assert not _has_colour(_pixels(tmp_path / "one.png"), band, at_least=5000)
    assert _has_colour(_pixels(tmp_path / "two.png"), band, at_least=5000)


@pytest.mark.parametrize("rows", [_rows(1), [{"env_steps": 0, "length": 3}], [{"env_steps": 5, "return": 1.0}]])
def test_little_data_is_drawn(tmp_path, rows):
    draw_curves(tmp_path / "curves.png", rows, title="文")  # a script that the font may lack
    assert _pixels(tmp_path / "curves.png").std() > 0.01


@pytest.mark.parametrize(
    ("rows", "message"),
    [([], "got none"), ([{"env_steps": 1, "loss": None}], "got none"), ([{"loss": 1.0}], "each have `env_steps`")],
)
def test_nothing_to_draw_is_named(tmp_path, rows, message):
    with pytest.raises(OptionError, match=message):
        draw_curves(tmp_path / "curves.png", rows, title="t")


def test_missing_matplotlib_says_what_to_install(tmp_path, monkeypatch):
    for module in ("matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ShoalError, match=r"pip install 'shoal-rl\[plot\]'"):
        draw_curves(tmp_path / "curves.png", _rows(3), title="t")


def test_more_metrics_than_a_picture_holds_are_refused(tmp_path):
    row = {"env_steps": 1} | {f"x{i}": 1.0 for i in range(513)}
    with pytest.raises(OptionError, match="rows must be of at most 512 metrics, got 513"):
        draw_curves(tmp_path / "curves.png", [row], title="t")


def test_a_pdf_of_new_axes_has_no_fonts_of_type_3(tmp_path):
    axes = plot_curves({"mine": Band(np.arange(3), np.arange(3.0))}, title="mine")
    axes.figure.savefig(tmp_path / "mine.pdf")
    content = (tmp_path / "mine.pdf").read_bytes()
    assert b"/Type3" not in content
    assert b"/CIDFontType2" in content
