"""The page of how a run learnt: whole in itself, and in a browser a drag along the curve plays another point."""

import json
import re

import numpy as np
import pytest
from tests.viz.test_raster import path
from tests.viz.test_replay_page import browser as browser

from shoal.core.errors import OptionError
from shoal.viz import history_page
from shoal.viz.replay import replay_data


def points(number=3):
    found = []
    for i in range(number):
        scene = path([[0.2 + 0.1 * i + 0.02 * t, 0.5] for t in range(8)])
        data = replay_data(
            scene, title="</script><b>", subtitle=f"point {i}", series={"return of agent": np.arange(8.0)}
        )
        found.append(
            {"update": i, "env_steps": 100 * i, "page": "replay.html", "data": data, "returns": {"agent": 7.0}}
        )
    return found


def page(number=3):
    return history_page(points(number), [0, 100, 200], [1.0, float("nan"), 3.0], title="<i>", label="return").decode()


def test_the_page_is_whole_and_nothing_in_it_is_markup():
    text = page()
    assert "<title>&lt;i&gt;</title>" in text
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])
    assert data["curve"] == {"steps": [0, 100, 200], "values": [1.0, None, 3.0]}
    assert [point["env_steps"] for point in data["points"]] == [0, 100, 200]
    assert data["pages"]["replay.html"].count("@data@") == 1
    assert "@include" not in data["pages"]["replay.html"], "parts that pages share are in it"
    with pytest.raises(OptionError, match="points must be at least one"):
        history_page([], [], [], title="", label="")


def test_dragging_along_the_curve_plays_another_point(browser, tmp_path):
    file = tmp_path / "history.html"
    file.write_text(page())
    browser.open(file, width=800, height=700)
    there = "document.querySelectorAll('iframe').length === 1 && !document.querySelector('iframe').className"
    browser.wait(there)
    assert browser.js("shoal.shown") == 2
    assert "after 2 updates, 200 env steps" in browser.js("document.getElementById('said').textContent")
    last = browser.screenshot()
    box = browser.js(
        "(({left, width, top}) => [left, width, top])(document.getElementById('chart').getBoundingClientRect())"
    )
    at = (box[0] + 0.04 * box[1], box[2] + 20)
    browser.drag((box[0] + 0.9 * box[1], at[1]), at)
    browser.wait(f"shoal.shown === 0 && {there}")
    browser.settle()
    assert (browser.screenshot() != last).any()
    browser.key("ArrowRight")
    browser.wait("shoal.shown === 1")
    assert browser.complaints() == []
