"""Pictures of a tournament: numbers on the page are those of the table, in a real browser too."""

import copy

import matplotlib.image
import pytest
from test_population_pictures import BLUE, has_colour, on_page
from test_replay_page import browser  # noqa: F401  # a fixture: one page of a headless browser

from shoal.viz import draw_tournament, write_tournament
from shoal.viz.tournament import headline

UNSURE = {"mean": [[0.0] * 3] * 3, "error": [[None] * 3] * 3}
"""A table of one episode."""


def entrant(name, **more):
    return {"name": name, "kind": "run", "run": f"/runs/{name}", "updates": 10, "finished": True} | more


def tournament(**changes):
    """Three entrants of a zero-sum game, the second the best."""
    mean, error = [[0.0, -0.5, 0.25], [0.5, 0.0, 1.0], [-0.25, -1.0, 0.0]], [[0.0, 0.01, 0.02]] * 3
    won = [[0.5, 0.25, 0.625], [0.75, 0.5, 1.0], [0.375, 0.0, 0.5]]
    data = {
        "env": "cards/kuhn",
        "relation": "zero-sum",
        "sides": {"left": ["player[0]"], "right": ["player[1]"]},
        "entrants": [entrant("a"), entrant("<b>&'"), {"name": "random", "kind": "random"}],
        "order": [1, 0, 2],
        "episodes": 1000,
        "seed": 0,
        "policy": "greedy",
        "seeds": "mean",
        "programs": 1,
        "matrix": {"mean": mean, "error": error},
        "by_side": {side: {"mean": mean, "error": error} for side in ("left", "right")},
        "with_others": {"mean": [-0.125, 0.75, -0.625], "error": [0.01, 0.01, 0.01]},
        "win_rate": {"mean": won, "error": error},
        "elo": {"rating": [1480.0, 1600.0, 1420.0], "low": [1470.0, 1580.0, 1400.0], "high": [1490.0, 1620.0, 1440.0]},
        "cross_play": None,
        "exploit": None,
    }
    return copy.deepcopy(data) | changes


def team(**changes):
    """The same without anything to win."""
    nothing = {"win_rate": None, "elo": None, "relation": "team"}
    summary = {"self_play": 0.0, "cross_play": 0.5, "gap": -0.5}
    return tournament(**nothing, cross_play=summary | {f"{name}_error": 0.125 for name in summary}, **changes)


def exploited():
    gains = {side: {"value": 0.0, "earned": 0.5, "gain": 0.5, "error": 0.0625} for side in ("left", "right")}
    found = {"gains": gains, "nash_conv_at_least": 1.0, "error": 0.125}
    return tournament(exploit={"total_env_steps": 5000, "entrants": [found, found, None]})


def test_numbers_on_the_page_are_those_of_the_table(tmp_path):
    data, path = tournament(), tmp_path / "tournament.html"
    write_tournament(path, data, title="Kuhn </script>")
    shown = on_page(path)
    assert {name: shown[name] for name in data} == data
    assert shown["title"] == "Kuhn </script>"
    assert "@include" not in path.read_text()
    assert "<b>&" not in path.read_text(), "names are data, never markup"
    assert headline(team()).endswith("self-play 0 ± 0.12, cross-play 0.5 ± 0.12, gap -0.5 ± 0.12; 1 compiled program")


@pytest.mark.parametrize("data", [tournament(), team(), tournament(matrix=UNSURE)])
def test_a_picture(tmp_path, data):
    draw_tournament(tmp_path / "tournament.png", data, title="Kuhn $x$ 群れ")
    assert has_colour(tmp_path / "tournament.png", BLUE)
    assert matplotlib.image.imread(tmp_path / "tournament.png").shape[1] > 1500


def test_the_page_in_a_browser(tmp_path, browser):  # noqa: F811
    path = tmp_path / "tournament.html"
    write_tournament(path, exploited(), title="Kuhn")
    browser.open(path, width=1400, height=1000)
    texts = "[...document.querySelectorAll('{}')].map((node) => node.textContent)"
    assert browser.js(texts.format("#table .cell"))[:3] == ["0\n±0.01", "+0.5\n±0", "+1\n±0.02"], "the best first"
    rows = browser.js("[...document.querySelectorAll('#entrants tbody tr')].map((row) => row.innerText.split('\\t'))")
    assert rows[0][:5] == ["1", "<b>&'", "0.75 ± 0.01", "1600", "1580 to 1620"]
    assert rows[0][5:8] == ["0.5 ± 0.063", "0.5 ± 0.063", "1 ± 0.13"]
    assert rows[2][5:8] == ["–", "–", "–"]
    browser.choose("#what", 3)
    assert browser.js(texts.format("#table .cell"))[1].startswith("75.0 %")
    assert browser.js("document.querySelectorAll('#strength circle').length") == 3
    assert browser.complaints() == []
    for data in (team(), tournament(matrix=UNSURE)):
        write_tournament(path, data, title="other")
        browser.open(path, scheme="dark")
        assert browser.complaints() == []
