"""The plot of a sweep: lines, maps, panels, and marks for what failed."""

import matplotlib.image
import numpy as np
import pytest

from shoal.core.errors import OptionError
from shoal.viz import draw_sweep

BLUE, RED = "#2f6fde", "#d93f4c"


def _table(over, results, random=None):
    points = [{"values": v, "returns": list(r), "mean": None if None in r else float(np.mean(r))} for v, r in results]
    return {"over": over, "points": points, "measure": ["return/agent"], "random": random}


def _has_colour(path, colour, at_least=20):
    pixels = matplotlib.image.imread(path)[:, :, :3]
    wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return bool((np.abs(pixels - wanted).max(-1) < 0.02).sum() >= at_least)


def test_one_option_is_a_line(tmp_path):
    path = tmp_path / "sweep.png"
    over = {"learning_rate": {"start": 1e-3, "stop": 1e-1, "count": 3, "log": True}}
    results = [({"learning_rate": 10.0**-i}, (1.0 + i, 2.0 + i)) for i in (3, 2, 1)]
    draw_sweep(path, _table(over, results), title="a world")
    assert _has_colour(path, BLUE)
    assert not _has_colour(path, RED)
    results[0] = (results[0][0], (1.0, None))
    draw_sweep(path, _table(over, results), title="a world")
    assert _has_colour(path, RED)


def test_two_options_are_a_map(tmp_path):
    path = tmp_path / "sweep.png"
    over = {"a": [0.1, 0.2], "b": [1.0, 100.0]}
    results = [({"a": a, "b": b}, (a * b,)) for a in (0.1, 0.2) for b in (1.0, 100.0)]
    draw_sweep(path, _table(over, results), title="a world")
    assert _has_colour(path, "#fde725", 1000)  # the best
    assert _has_colour(path, "#440154", 1000)  # the worst
    assert not _has_colour(path, RED)
    results[0] = (results[0][0], (None,))
    draw_sweep(path, _table(over, results), title="a world")
    assert _has_colour(path, RED)


@pytest.mark.parametrize("random", [None, 3])
def test_more_options_are_panels_also_if_nothing_succeeded(tmp_path, random):
    path = tmp_path / "sweep.png"
    over = {name: [0.1, 0.2] for name in "abcd"}
    good = [(dict.fromkeys("abcd", value), (value,)) for value in (0.1, 0.2)]
    draw_sweep(path, _table(over, good, random), title="a world")
    high, wide = matplotlib.image.imread(path).shape[:2]
    assert wide > 2 * high * 0.7
    assert _has_colour(path, BLUE) == (random is None)  # dots alone are paler
    bad = [(values, (None,)) for values, _ in good]
    draw_sweep(path, _table(over, bad, random), title="a world")
    assert _has_colour(path, RED)


def test_nothing_to_draw(tmp_path):
    with pytest.raises(OptionError, match="at least one point"):
        draw_sweep(tmp_path / "sweep.png", _table({"a": [0.1]}, []), title="a world")
