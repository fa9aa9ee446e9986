"""The replay page in a real browser: Chromium, driven over a pipe with the DevTools protocol."""

import json
import time

import numpy as np
import pytest
from tests.chromium import Browser, box_of, find_browser

from shoal.core.types import Circles, Labels, Lines, Polygons, Scene
from shoal.viz import write_replay

_LENGTH = 200


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(find_browser(), str(tmp_path_factory.mktemp("profile")))
    yield browser
    browser.close()


def _scene() -> Scene:
    """Ten world units square. Movers 0 and 1 go right, the second wraps around between frames 50 and 51; the ghost
    vanishes after frame 30; the place stands still."""
    frame = np.arange(_LENGTH)
    right = 1 + 0.04 * frame
    wrapped = np.where(frame <= 50, 7.5 + 0.04 * frame, 0.5 + 0.04 * (frame - 51))
    still = np.full(_LENGTH, 5.0)
    position = np.stack([[right, still], [wrapped, still - 2], [still, still + 3], [still, still]], axis=1)
    position = position.transpose(2, 1, 0)
    every = np.ones((_LENGTH, 4))
    visible = every > 0
    visible[31:, 2] = False
    circles = Circles(
        position=position,
        radius=every * 0.3,
        colour=(every * [1, 2, 3, 0]).astype(int),
        visible=visible,
        heading=np.where(np.arange(4) == 0, 0.1 + 6.0 * (frame[:, None] % 2), np.nan),
        names=("mover 0", "mover 1", "ghost"),
    )
    one = np.ones((_LENGTH, 1), bool)
    return Scene(
        bounds=(0.0, 0.0, 10.0, 10.0),
        polygons=Polygons(points=np.tile([[[1, 1], [2, 1], [2, 2]]], (_LENGTH, 1, 1, 1)), colour=5 * one, visible=one),
        lines=Lines(start=position[:, :1], end=position[:, 3:], colour=6 * one, visible=one),
        circles=circles,
        labels=Labels(position=position[:, 3:], visible=one, text=("home",)),
    )


@pytest.fixture(scope="module")
def replay(tmp_path_factory):
    path = tmp_path_factory.mktemp("replay") / "replay.html"
    series = {"mover return": np.linspace(-1, 5, _LENGTH), "other": np.full(_LENGTH, np.nan)}
    ends = np.arange(_LENGTH) == 120
    write_replay(path, _scene(), title="A <b>test</b>", subtitle="sub", series=series, episode_ends=ends)
    return path


@pytest.fixture
def page(browser, replay):
    """The page, just opened; whatever a test does with it must not make it complain."""
    browser.open(replay)
    yield browser
    assert browser.complaints() == []


def test_curves_have_the_colour_of_their_group_or_a_spare_one(page):
    colours = page.js("[...document.querySelectorAll('.spark')].map((spark) => spark.style.color)")
    own = page.js("document.querySelector('#legend i').style.background")
    assert colours == [own, "var(--c1)" if own != "var(--c1)" else "var(--c2)"]


def test_it_plays_by_itself_and_pauses(page):
    assert page.js("shoal.playing")
    page.wait("shoal.frame >= 4")
    page.key(" ")
    assert not page.js("shoal.playing")
    held = page.js("shoal.time")
    time.sleep(0.15)
    assert page.js("shoal.time") == held
    page.click("#play")
    page.wait(f"shoal.playing && shoal.time > {held} + 1")
    assert page.js("document.querySelector('#play').getAttribute('aria-label')") == "Pause"


def test_it_starts_over(page):
    page.js(f"shoal.seek({_LENGTH - 3})")
    page.wait(f"shoal.frame === {_LENGTH - 1}")
    page.wait("shoal.frame < 20")


def test_scrubbing_jumps_and_goes_on(page):
    left, width, y = page.js(f"(({{x, y, width, height}}) => [x, width, y + height / 2])({box_of('#scrub')})")
    page.drag((left + 12, y), (left + 0.75 * width, y))
    frame = page.js("shoal.frame")
    assert 0.7 * _LENGTH < frame < 0.85 * _LENGTH
    assert page.js("shoal.playing")
    page.js("shoal.pause(); shoal.seek(0)")
    page.drag((left + width / 2, y), (left + width / 2, y))
    assert abs(page.js("shoal.frame") - _LENGTH / 2) < 0.05 * _LENGTH
    assert not page.js("shoal.playing")


def test_keys_step_through_frames(page):
    page.js("shoal.seek(10)")
    page.key("ArrowRight")
    frame = page.js("shoal.time")
    assert frame == int(frame)
    assert not page.js("shoal.playing")
    page.key("ArrowRight", shift=True)
    assert page.js("shoal.time") == frame + 10
    page.key("ArrowLeft")
    assert page.js("shoal.time") == frame + 9
    page.key("End")
    assert page.js("shoal.frame") == _LENGTH - 1
    page.key("Home")
    page.settle()
    assert page.js("document.querySelector('#counter').textContent") == f"1 / {_LENGTH}  ·  episode 1"


def test_speed_changes_how_fast_time_goes(page):
    def frames_in_a_while(speed: float) -> float:
        page.choose("#speed", str(speed))
        assert page.js("shoal.speed") == speed
        begin = "shoal.seek(0); shoal.play(); const begin = performance.now()"
        later = "setTimeout(() => done(shoal.time / (performance.now() - begin)), 250)"
        return page.js(f"new Promise((done) => {{ {begin}; {later}; }})")

    assert frames_in_a_while(8) > 5 * frames_in_a_while(0.25) > 0
    page.key("]")
    assert page.js("shoal.speed") == 0.5


def test_following_moves_the_camera(page):
    page.js("shoal.pause(); shoal.seek(50)")
    before = page.js("shoal.camera")
    assert (before["x"], before["y"]) == (5, 5)
    page.choose("#follow", "0")
    assert page.js("shoal.followed") == "mover 0"
    page.wait("Math.abs(shoal.camera.x - 3) < 0.01 && Math.abs(shoal.agent('mover 0').x - 3) < 0.01")
    assert page.js("shoal.camera.scale") > 1.5 * before["scale"]
    page.js("shoal.seek(180)")
    page.wait("Math.abs(shoal.camera.x - (1 + 0.04 * 180)) < 0.01")
    page.key("Escape")
    page.wait("shoal.camera.x === 5 && shoal.followed === null")


def test_clicking_an_agent_follows_it_and_dragging_lets_go(page):
    page.js("shoal.pause(); shoal.seek(20)")
    page.settle()
    x, y = page.js("(({screenX, screenY}) => [screenX, screenY])(shoal.agent('ghost'))")
    page.drag((x + 3, y), (x + 3, y))
    assert page.js("shoal.followed") == "ghost"
    page.wait("Math.abs(shoal.camera.y - 8) < 0.01")
    page.drag((300, 300), (360, 300))
    assert page.js("shoal.followed") is None
    assert page.js("shoal.camera.x") < 5


def test_the_wheel_zooms_about_the_pointer(page):
    page.js("shoal.pause(); shoal.seek(20)")
    page.settle()
    place = page.js("(({screenX, screenY}) => [screenX, screenY])(shoal.agent('mover 1'))")
    scale = page.js("shoal.camera.scale")
    page.call("Input.dispatchMouseEvent", type="mouseWheel", x=place[0], y=place[1], deltaX=0, deltaY=-100)
    page.wait(f"shoal.camera.scale > 1.1 * {scale}")
    after = page.js("(({screenX, screenY}) => [screenX, screenY])(shoal.agent('mover 1'))")
    np.testing.assert_allclose(after, place, atol=0.5)


def test_movement_is_smooth_except_where_it_must_not_be(page):
    def agent(name: str, when: float) -> dict[str, float]:
        return page.js(f"(shoal.pause(), shoal.seek({when}), shoal.agent({json.dumps(name)}))")

    assert agent("mover 0", 10.5)["x"] == pytest.approx(1.42, abs=2e-3)
    assert agent("mover 0", 11)["x"] == pytest.approx(1.44, abs=1e-3)
    assert agent("mover 1", 50.9)["x"] == pytest.approx(9.5, abs=1e-3)  # it wraps around: no gliding back
    assert agent("mover 1", 51)["x"] == pytest.approx(0.5, abs=1e-3)
    assert agent("mover 0", 120.5)["x"] == pytest.approx(5.8, abs=1e-3)  # an episode ends
    shortest = 0.1 + (6.0 - 2 * np.pi) / 2  # from 0.1 to 6.1 through 0, not through 3
    assert agent("mover 0", 10.5)["heading"] == pytest.approx(shortest, abs=1e-3)
    assert agent("ghost", 30)["presence"] == 1
    assert agent("ghost", 30.75)["presence"] == pytest.approx(0.25)
    assert agent("ghost", 31)["presence"] == 0


def test_panels_say_who_is_there_and_what_they_got(page):
    page.js("shoal.pause(); shoal.seek(40)")
    page.settle()
    legend = page.js("[...document.querySelectorAll('#legend li')].map((row) => row.innerText.split('\\n').join('|'))")
    assert [row.replace("\t", "|") for row in legend] == ["mover|2", "ghost|0 / 1"]
    numbers = page.js("[...document.querySelectorAll('figure .number')].map((number) => number.textContent)")
    assert numbers == ["0.21", "–"]  # -1 + 6 * 40 / 199
    assert page.js("document.querySelector('h1').textContent") == "A <b>test</b>".replace("/", "/\u200b")
    assert page.js("document.title") == "A <b>test</b>"


def test_controls_have_names_and_can_be_reached(page):
    nameless = "[...document.querySelectorAll('button, select, input, canvas')].filter((e) => !e.ariaLabel).length"
    assert page.js(nameless) == 0
    page.js("document.activeElement.blur()")
    reached = []
    for _ in range(9):
        page.call("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab", windowsVirtualKeyCode=9)
        reached.append(page.js("document.activeElement.id"))
    assert reached == ["play", "back", "forward", "scrub", "speed", "follow", "trails", "fit", "help"]


def test_pictures_show_the_world_and_change(browser, replay):
    browser.open(replay)
    browser.js("shoal.pause(); shoal.seek(10)")
    browser.settle()
    first = browser.screenshot()
    browser.js("shoal.seek(110)")
    browser.settle()
    second = browser.screenshot()
    assert first.shape == (640, 900, 3)
    assert len(np.unique((first * 255).astype(int).reshape(-1, 3), axis=0)) > 50
    assert (np.abs(first - second).max(-1) > 0.1).mean() > 0.001
    blue = np.array([0x2F, 0x6F, 0xDE]) / 255
    x, y = browser.js("(({screenX, screenY}) => [screenX, screenY])(shoal.agent('mover 0'))")
    np.testing.assert_allclose(second[round(y), round(x)], blue, atol=0.02)
    browser.open(replay, width=390, height=700, scheme="dark")
    browser.js("shoal.pause(); shoal.seek(10)")
    browser.settle()
    small = browser.screenshot()
    assert small.mean() < 0.25 < first.mean()
    overflow = "document.documentElement.scrollWidth > innerWidth"
    assert not browser.js(overflow)
    right = browser.js(
        "Math.max(...[...document.querySelectorAll('#transport *')].map((e) => e.getBoundingClientRect().right))"
    )
    assert right <= 390
    assert browser.complaints() == []


def test_text_is_never_code(browser, tmp_path):
    nasty = "<img src=x onerror=window.hacked=1></script><script>window.hacked=1</script>"
    circles = _scene().circles.replace(names=(nasty,))
    label = Labels(position=np.full((_LENGTH, 1, 2), 5.0), visible=np.ones((_LENGTH, 1), bool), text=(nasty,))
    scene = Scene(bounds=(0.0, 0.0, 10.0, 10.0), circles=circles, labels=label)
    series = {nasty: np.zeros(_LENGTH)}
    write_replay(tmp_path / "nasty.html", scene, title=nasty, subtitle=nasty, series=series)
    browser.open(tmp_path / "nasty.html")
    browser.wait("shoal.frame >= 1")
    assert browser.js("[typeof window.hacked, document.images.length]") == ["undefined", 0]
    assert browser.js("document.title") == nasty
    assert browser.js("document.querySelector('#subtitle').textContent") == nasty
    assert browser.js("document.querySelector('#follow').options[1].text") == nasty
    assert browser.complaints() == []


def test_one_frame_and_one_shape_are_enough(browser, tmp_path):
    one = np.ones((1, 1), bool)
    circles = Circles(position=np.zeros((1, 1, 2)), radius=one * 0.1, colour=one * 1, visible=one)
    write_replay(tmp_path / "still.html", Scene(circles=circles), title="still", series={"a": np.zeros(1)})
    browser.open(tmp_path / "still.html")
    browser.settle()
    assert browser.js("[shoal.playing, shoal.frame, shoal.followed]") == [False, 0, None]
    assert browser.complaints() == []


@pytest.mark.parametrize("name", ["film.html", "history.html", "population.html", "replay.html", "tournament.html"])
def test_every_page_has_the_same_head(name):
    from shoal.viz.replay import filled_page

    page = filled_page(name, "a <title>", {}).decode()
    head = page[: page.index("<style>")]
    assert head.startswith("<!doctype html>")
    assert "<title>a &lt;title&gt;</title>" in head
    assert head.count("script-src 'sha256-") == 1
    assert "@" not in head
    assert page.count("<head>") == page.count("</head>") == 1
