"""Pictures of a population: the numbers on the page are those of the table, and every panel is drawn."""

import contextlib
import copy
import json
import re

import matplotlib.image
import numpy as np
import pytest
from test_replay_page import browser  # noqa: F401  # a fixture: one page of a headless browser

from shoal.core.errors import OptionError
from shoal.viz import draw_population, write_population
from shoal.viz import population as pictures
from shoal.viz.curves import drawing
from shoal.viz.population import mixtures_over_time, shown_table

BLUE, ORANGE = "#2f6fde", "#ec7a2c"


def member(born, parent=None, **info):
    return {"name": str(born), "parent": parent, "born": born, "frozen": False, "info": info}


def population(**changes):
    """Two policies against three, after two iterations."""
    payoffs = np.array([[0.5, -1.25, 0.0], [1.0, 2.0, -0.75]])
    data = {
        "env": "cards/kuhn",
        "oracle": "learned",
        "meta_solver": "nash",
        "players": ["one", "two"],
        "sizes": [2, 3],
        "iteration": 2,
        "seconds": 3.0,
        "nash_conv": 0.1,
        "exploitability": 0.05,
        "value": [0.25, -0.25],
        "value_error": [0.01, 0.01],
        "payoffs": [payoffs.tolist(), (-payoffs).tolist()],
        "errors": [(0.01 + payoffs**2 / 100).tolist()] * 2,
        "episodes": [[100, 200, 300], [400, 500, 1600]],
        "mixtures": {"one": [0.25, 0.75], "two": [0.5, 0.5, 0.0]},
        "elo": {"one": [1480.0, 1530.0], "two": [1500.0, 1470.0, 1520.0]},
        "alpha_rank": {"one": [0.0, 1.0], "two": [0.1, 0.2, 0.7]},
        "effective": {"one": 1.5, "two": 1.5},
        "behaviour": {
            "sampled": True,
            "situations": {"one": 1200, "two": 1300},
            "diversity": {"one": 0.5, "two": 0.25},
            "expected": {"one": 0.1875, "two": 0.125},
            "distances": {"one": [[0, 0.5], [0.5, 0]], "two": [[0, 0.25, 0.125], [0.25, 0, 0.375], [0.125, 0.375, 0]]},
        },
        "members": {"one": [member(0), member(1, 0, earned=0.5)], "two": [member(0), member(1, 0), member(2, 1)]},
        "history": [
            {"iteration": 0, "nash_conv": 2.0, "exploitability": 1.0, "mixtures": [[1.0], [1.0]]},
            {"iteration": 1, "nash_conv": 0.5, "exploitability": 0.25, "mixtures": [[0.5, 0.5], [0.2, 0.8]]},
            {
                "iteration": 2,
                "nash_conv": 0.1,
                "exploitability": 0.05,
                "gain": [0.3, 0.1],
                "mixtures": [[0.25, 0.75], [0.5, 0.5, 0.0]],
            },
        ],
    }
    return copy.deepcopy(data) | changes


def of_three():
    """A third player with two policies, of which it plays the second with 3/4."""
    data = population()
    payoffs, errors = (np.array(data[name]) for name in ("payoffs", "errors"))
    data["players"].append("three")
    data["sizes"].append(2)
    data["value"].append(0.0)
    data["value_error"].append(0.0)
    data["payoffs"] = np.stack([np.stack([payoffs[0], payoffs[0] + 4], -1)] * 3).tolist()
    data["errors"] = np.stack([np.stack([errors[0], errors[0]], -1)] * 3).tolist()
    data["episodes"] = np.full((2, 3, 2), 100).tolist()
    data["mixtures"]["three"] = [0.25, 0.75]
    data["members"]["three"] = [member(0), member(1)]
    data |= {"elo": None, "alpha_rank": None, "nash_conv": None, "exploitability": None, "behaviour": None}
    data["history"] = [{"iteration": 1, "gain": [0.1, 0.2, 0.3]}, {"iteration": 2, "gain": [0.0, 0.1, -0.1]}]
    return data


def on_page(path):
    [text] = re.findall(r'<script id="data"[^>]*>(.*?)</script>', path.read_text(), re.DOTALL)
    return json.loads(text)


def has_colour(path, colour, at_least=20):
    pixels = matplotlib.image.imread(path)[:, :, :3]
    wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return bool((np.abs(pixels - wanted).max(-1) < 0.02).sum() >= at_least)


def test_numbers_on_the_page_are_those_of_the_table(tmp_path):
    data, path = population(), tmp_path / "population.html"
    write_population(path, data, title="Kuhn </script>", run="runs/kuhn")
    shown = on_page(path)
    assert shown["table"] == {"mean": data["payoffs"], "error": data["errors"], "episodes": data["episodes"]}
    for name in ("behaviour", "mixtures", "elo", "alpha_rank", "members", "history", "value", "nash_conv"):
        assert shown[name] == data[name]
    assert shown["title"] == "Kuhn </script>"
    assert not re.search(r"(src|href)\s*=\s*[\"'](?!data:)", path.read_text())


def test_more_players_are_shown_as_two_with_the_others_mixed(tmp_path):
    table = shown_table(of_three())
    np.testing.assert_allclose(table["mean"][0], np.array(population()["payoffs"][0]) + 3)
    error = np.array(population()["errors"][0]) * np.sqrt(0.25**2 + 0.75**2)
    np.testing.assert_allclose(table["error"][2], error)
    assert table["episodes"] == [[200, 200, 200]] * 2
    draw_population(tmp_path / "three.png", of_three(), title="three")
    assert matplotlib.image.imread(tmp_path / "three.png").shape[0] > 1000  # three rows of panels


def test_mixtures_over_time():
    steps, weights = mixtures_over_time(population(), 1)
    assert steps.tolist() == [0, 1, 2]
    assert weights.tolist() == [[1.0, 0.2, 0.5], [0.0, 0.8, 0.5], [0.0, 0.0, 0.0]]
    early = population(history=[{"iteration": 2, "nash_conv": 0.1, "exploitability": 0.05}])
    steps, weights = mixtures_over_time(early, 1)
    assert steps.tolist() == [2]
    assert weights[:, 0].tolist() == [0.5, 0.5, 0.0]


def test_a_picture(tmp_path):
    path = tmp_path / "population.png"
    draw_population(path, population(), title="Kuhn $x$ 群れ")
    assert has_colour(path, BLUE)
    assert has_colour(path, ORANGE)
    tall = matplotlib.image.imread(path).shape[0]
    draw_population(path, population(behaviour=None), title="Kuhn")
    assert matplotlib.image.imread(path).shape[0] < tall  # a map of distances for each player needs a row more


def test_no_legend_lies_over_what_is_drawn(tmp_path, monkeypatch):
    """Also on a logarithmic scale, and with bars as high as the panel."""
    figures = []

    @contextlib.contextmanager
    def kept(*args, **options):
        with drawing(*args, **options) as figure:
            figures.append(figure)
            yield figure

    monkeypatch.setattr(pictures, "drawing", kept)
    steep = population(mixtures={"one": [1.0, 0.0], "two": [1.0, 0.0, 0.0]})
    for data in (steep, population(history=[{"iteration": 1, "gain": [2.0, 1.0]}], alpha_rank=None)):
        draw_population(tmp_path / "population.png", data, title="Kuhn")
    panels = [axes for figure in figures for axes in figure.axes if axes.get_legend()]
    assert len(panels) == 6
    assert {axes.get_yscale() for axes in panels} == {"linear", "log"}
    for axes in panels:
        low = axes.get_legend().get_window_extent().y0
        points = [axes.transData.transform(line.get_xydata()) for line in axes.lines]
        points += [axes.transData.transform(dots.get_offsets()) for dots in axes.collections]
        points += [bar.get_window_extent().get_points() for bar in axes.patches]
        assert max(found[:, 1].max() for found in points) <= low, axes.get_title(loc="left")


@pytest.mark.parametrize("oracle", ["learned", "exact"])
def test_a_population_of_one(tmp_path, oracle):
    data = population(sizes=[1, 1], payoffs=[[[0.0]], [[0.0]]], errors=[[[None]], [[None]]], episodes=[[1]])
    alone = {"one": [1.0], "two": [1.0]}
    data |= {"mixtures": alone, "alpha_rank": alone, "elo": {"one": [1500.0], "two": [1500.0]}, "oracle": oracle}
    data |= {"members": {"one": [member(0)], "two": [member(0)]}, "history": data["history"][:1]}
    nothing = {"one": 0.0, "two": 0.0}
    alike = {"diversity": nothing, "expected": nothing, "distances": {"one": [[0.0]], "two": [[0.0]]}}
    data["behaviour"] |= alike
    draw_population(tmp_path / "population.png", data, title="alone")
    write_population(tmp_path / "population.html", data, title="alone")
    assert on_page(tmp_path / "population.html")["table"]["error"] == [[[None]], [[None]]]


def test_self_play_without_payoffs(tmp_path):
    nothing = [[None] * 3] * 2
    data = population(payoffs=[nothing] * 2, errors=[nothing] * 2, episodes=[[0] * 3] * 2, value=[None] * 2)
    data |= {"elo": None, "alpha_rank": None, "effective": None, "value_error": [None] * 2}
    draw_population(tmp_path / "population.png", data, title="self-play")
    write_population(tmp_path / "population.html", data, title="self-play")
    assert on_page(tmp_path / "population.html")["table"]["mean"] == [nothing] * 2


def test_nothing_to_draw(tmp_path):
    with pytest.raises(OptionError, match="at least one iteration"):
        draw_population(tmp_path / "population.png", population(history=[]), title="none")


def test_maps_can_be_read_without_pointing(tmp_path, browser):  # noqa: F811
    """Ticks, numbers in small tables, a colour scale whose end is the greatest payoff; players in their colours."""
    path = tmp_path / "population.html"
    write_population(path, population(colours={"one": 4}), title="Kuhn", run="my runs/kuhn")
    browser.open(path, width=1400, height=1000)
    texts = "[...document.querySelectorAll('{}')].map((node) => node.textContent)"
    assert browser.js(texts.format("#payoffs .tick.x")) == ["0", "1", "2"]
    assert browser.js(texts.format("#payoffs .tick.y")) == ["0", "1"]
    assert browser.js(texts.format("#payoffs .bar span")) == ["−2", "−1", "0", "+1", "+2"]
    assert browser.js(texts.format("#payoffs .cell"))[1] == "−1.25\n±0.026"
    pixels = "[...document.querySelector('#payoffs canvas').getContext('2d').getImageData(0, 1, 2, 1).data]"
    shades = browser.js(pixels)
    half, full = shades[:3], shades[4:7]
    assert full == [32, 92, 200]
    assert half != full  # half of the greatest payoff is not drawn as the greatest
    assert browser.js("[0, 1].map(colour)") == ["var(--c4)", "var(--c1)"]
    browser.js("document.querySelector('#payoffs canvas').click()")
    assert browser.js("document.querySelector('#watch').textContent").startswith(
        "shoal population 'my runs/kuhn' --watch"
    )
    assert browser.complaints() == []


def test_pointing_at_an_entry_shows_it(tmp_path, browser):  # noqa: F811
    path = tmp_path / "population.html"
    write_population(path, population(), title="Kuhn", run="runs/kuhn")
    browser.open(path, width=1400, height=1000)
    canvas = "document.querySelector('#payoffs canvas').getBoundingClientRect()"
    left, top, wide, tall = browser.js(f"(({{x, y, width, height}}) => [x, y, width, height])({canvas})")
    at = (left + wide * 2.5 / 3, top + tall * 1.5 / 2)  # row 1, column 2
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=at[0], y=at[1])
    said = "one 1 (75.0 %) – two 2 (0.0 %): −0.75 ± 0.016, 1,600 episodes"
    browser.wait(f"document.querySelector('#entry').textContent === {json.dumps(said)}")
    assert browser.js("document.querySelector('#tip').style.visibility") == "visible"
    browser.drag(at, at)
    assert browser.js("document.querySelector('#watch').textContent") == "shoal population runs/kuhn --watch 1,2"
    browser.choose("#whose", 1)
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=at[0] - 3, y=at[1])
    browser.wait("document.querySelector('#entry').textContent.includes('0.75 ± 0.016')")
    rows = browser.js("[...document.querySelectorAll('#members table')].map((t) => t.tBodies[0].rows[0].innerText)")
    assert rows[0].split() == ["1", "75.0", "%", "1530", "100.0", "%", "1", "0", "0.5"]
    canvas = "document.querySelectorAll('.behaviour canvas')[1].getBoundingClientRect()"
    left, top, wide, tall = browser.js(f"(({{x, y, width, height}}) => [x, y, width, height])({canvas})")
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=left + wide * 2.5 / 3, y=top + tall * 1.5 / 3)
    browser.wait("document.querySelector('#tip').textContent === 'two 1 – two 2\\n0.375 apart'")
    assert "0.25 on average, 0.125 for two drawn" in browser.js("document.querySelectorAll('.behaviour')[1].innerText")
    assert browser.complaints() == []
    unplayed = {"payoffs": [[[None] * 3] * 2] * 2, "errors": [[[None] * 3] * 2] * 2, "elo": None, "alpha_rank": None}
    for data in (of_three(), population(oracle="exact"), population(**unplayed, value=[None] * 2)):
        write_population(path, data, title="other")
        browser.open(path, scheme="dark")
        assert browser.complaints() == []
