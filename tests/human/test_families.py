"""A person plays a world of every family in a real browser: what is pressed moves the person's own seat that way."""

from typing import Any, NamedTuple

import numpy as np
import pytest

import shoal
from shoal.human.game import Game
from shoal.human.results import read_episodes, replay_rewards
from shoal.human.server import Table
from shoal.human.session import Session
from shoal.training.experiment import Experiment
from tests.chromium import box_of
from tests.human.test_page import check_looks

pytestmark = pytest.mark.slow

WAYS = {"ArrowRight": (0, 1), "ArrowLeft": (0, -1), "ArrowUp": (1, 1), "ArrowDown": (1, -1)}
"""What an arrow means: the coordinate of the picture that it changes, and its sign."""
MINE = "shoal.state.scene.circles.find((shape) => shape[6] === shoal.table.name).slice(2, 4)"
"""Where the picture shows the person."""
PADDLE = "(([, , ...corners]) => [0, (corners[1] + corners[5]) / 2])(shoal.state.scene.polygons[{}])"


class Family(NamedTuple):
    """A world that goes on by itself. far: what counts as moved, in the world's units; mine: where the person is."""

    env: str
    options: dict[str, Any]
    seat: tuple[str, int]
    far: float
    ways: tuple[str, ...] = tuple(WAYS)
    mine: str = MINE


FAMILIES = {
    "pong": Family("pong", {"points": 9}, ("right", 0), 0.1, ("ArrowUp", "ArrowDown"), PADDLE.format(1)),
    "tag": Family("tag/grid", {}, ("tagger", 1), 2),
    "mpe": Family("mpe/simple_tag", {"max_steps": 500}, ("agent", 0), 0.2),
    "battle": Family("battle/open", {"num_agents": 3, "map_size": 20, "max_steps": 300}, ("red", 1), 1),
    "swarm": Family("swarm/pursuit", {"max_steps": 500}, ("pursuer", 0), 0.3),
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return FAMILIES[request.param]


@pytest.fixture
def table(family, tmp_path):
    game = Game(Experiment(family.env, family.options).setup, {}, family.seat)
    with Table(Session(game, game.world.play_fps, seed=5, results=tmp_path / "r.jsonl")) as table:
        yield table


def begin(browser, table, **look) -> None:
    browser.visit(table.address, "Boolean(window.shoal?.state)", **look)
    browser.key("Enter")
    browser.wait("shoal.state.phase === 'playing'")


def arrow(browser, kind: str, key: str) -> None:
    browser.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)


def wait_until_moved(browser, family: Family, way: str) -> None:
    """Waits until the picture shows the person farther that way than now."""
    axis, sign = WAYS[way]
    begun = browser.js(family.mine)[axis]
    browser.wait(f"{sign} * ({family.mine}[{axis}] - {begun}) >= {family.far}")


def check_results(table) -> dict[str, Any]:
    """What is in the file is an episode that plays again to the same rewards."""
    table.close()
    (episode,) = read_episodes(table.session.results)
    replayed = replay_rewards(episode)
    assert {name: rewards.tolist() for name, rewards in replayed.items()} == episode["rewards"]
    return episode


def test_arrow_keys_move_the_person(browser, table, family, axe):
    begin(browser, table, scheme="dark")
    check_looks(browser, axe)
    for way in family.ways:
        arrow(browser, "keyDown", way)
        wait_until_moved(browser, family, way)
        arrow(browser, "keyUp", way)
    browser.key("Escape")
    browser.wait("shoal.state.phase === 'paused'")
    assert browser.complaints() == []
    check_results(table)


def touch(browser, kind: str, *points: tuple[float, float]) -> None:
    browser.call("Input.dispatchTouchEvent", type=kind, touchPoints=[{"x": x, "y": y} for x, y in points])


def middle(browser, selector: str) -> list[float]:
    """Where it is on the screen, once it has been scrolled there."""
    browser.js(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
    return browser.js(f"((box) => [box.x + box.width / 2, box.y + box.height / 2])({box_of(selector)})")


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "swarm"], indirect=True)
def test_a_finger_on_a_button_moves_the_person_on_a_phone(browser, table, family, axe):
    begin(browser, table, width=360, height=740)
    check_looks(browser, axe)
    for way in family.ways:
        name = ("move " if family.env == "battle/open" else "") + way.removeprefix("Arrow").lower()
        touch(browser, "touchStart", middle(browser, f"#controls button[aria-label='{name}']"))
        wait_until_moved(browser, family, way)
        touch(browser, "touchEnd")
        browser.wait("!document.querySelector('#controls [aria-pressed=true]')")
    assert browser.complaints() == []
    check_results(table)


@pytest.mark.parametrize("family", ["swarm"], indirect=True)
@pytest.mark.parametrize("by", ["mouse", "finger"])
def test_dragging_the_stick_steers_and_letting_go_brakes(browser, table, family, by):
    begin(browser, table, **({"width": 360, "height": 740} if by == "finger" else {}))
    x, y = middle(browser, ".stick")
    events = {
        "mouse": ("mousePressed", "mouseMoved", "mouseReleased"),
        "finger": ("touchStart", "touchMove", "touchEnd"),
    }
    begun, moved, ended = events[by]

    def point(kind: str, x: float, y: float) -> None:
        if by == "finger":
            touch(browser, kind, *([] if kind == "touchEnd" else [(x, y)]))
        else:
            browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    point(begun, x, y)
    point(moved, x + 80, y)
    assert browser.js("shoal.action[0] > 0.8 && Math.abs(shoal.action[1]) < 0.1")
    wait_until_moved(browser, family, "ArrowRight")
    point(moved, x, y - 80)
    wait_until_moved(browser, family, "ArrowUp")
    point(ended, x, y - 80)
    assert browser.js("shoal.action") == [0, 0]
    assert browser.complaints() == []
    steered = np.array(check_results(table)["actions"]["pursuer"])[:, 0]
    assert steered[:, 0].max() > 0.8
    assert steered[:, 1].max() > 0.8


def test_an_attack_hits_the_enemy_who_stands_there(browser, tmp_path):
    """The world waits here, so that the enemy stands still while the person aims."""
    game = Game(Experiment("battle/open", {"num_agents": 1, "map_size": 6, "max_steps": 300}).setup, {}, ("red", 0))
    letters = {
        (-1, 1): "q",
        (0, 1): "w",
        (1, 1): "e",
        (-1, 0): "a",
        (1, 0): "d",
        (-1, -1): "z",
        (0, -1): "s",
        (1, -1): "c",
    }
    arrows = {(1, 0): "ArrowRight", (-1, 0): "ArrowLeft", (0, 1): "ArrowUp", (0, -1): "ArrowDown"}
    with Table(Session(game, 0.0, seed=2, results=tmp_path / "r.jsonl")) as table:
        begin(browser, table)
        for step in range(80):
            x, y, their_x, their_y = browser.js(
                "['red_0', 'blue_0'].flatMap((name) => shoal.state.scene.circles.find((c) => c[6] === name))"
                ".filter((_, i) => i % 7 === 2 || i % 7 === 3)"
            )
            dx, dy = round(their_x - x), round(their_y - y)
            near = max(abs(dx), abs(dy)) == 1
            far = (np.sign(dx), 0) if abs(dx) >= abs(dy) else (0, np.sign(dy))
            browser.key(letters[dx, dy] if near else arrows[far])
            browser.wait(f"shoal.state.step > {step}")
            if browser.js("shoal.state.reward > 0"):
                break
        assert near, "only an attack is rewarded"
        assert browser.js("shoal.state.reward > 0"), "no attack has hit"
        assert browser.complaints() == []
        check_results(table)


@pytest.fixture(scope="module")
def leduc_run(tmp_path_factory):
    small = {"num_envs": 8, "num_steps": 5, "total_env_steps": 400, "hidden": (4,), "devices": 1, "progress": False}
    return shoal.train("cards/leduc", tmp_path_factory.mktemp("runs") / "leduc", **small)


def test_leduc_poker_against_a_run_by_keys_clicks_and_touch(browser, leduc_run, tmp_path):
    table = shoal.play("cards/leduc", leduc_run.path, out=tmp_path / "r.jsonl", open=False, wait=False)
    labels = "shoal.state.scene.labels.map((label) => label[3])"
    with table:
        begin(browser, table)
        told = browser.js("document.getElementById('who').textContent")
        assert told == f"You play player[0] against {leduc_run.path} (after 10 updates, greedy)"
        hands = browser.js(f"{labels}.filter((text) => /[JQK]./.test(text))")
        assert len(hands) == 1, "one's own card, not the other's"
        assert browser.js("document.querySelector('#controls button[title=fold]').disabled"), "nothing to answer yet"
        browser.key("f")
        browser.key("3")
        browser.wait("shoal.state.step > 0")
        assert browser.js("document.getElementById('said').textContent").startswith("you: raise")
        assert "bets" in browser.js(labels)
        plays = ["click", "touch"]
        while browser.js("shoal.state.phase") == "playing":
            browser.wait("shoal.state.phase === 'over' || shoal.state.active")
            if browser.js("shoal.state.phase === 'over'"):
                break
            step, selector = browser.js("shoal.state.step"), "#controls button[title=call]"
            if plays and plays.pop() == "touch":
                touch(browser, "touchStart", middle(browser, selector))
                touch(browser, "touchEnd")
            else:
                browser.click(selector)
            browser.wait(f"shoal.state.step > {step}")
        browser.wait("shoal.state.phase === 'over'")
        assert browser.complaints() == []
    episode = check_results(table)
    assert episode["actions"]["player"][0][0] == 2
    assert episode["return"] == browser.js("shoal.state.return")
    assert episode["opponents"]["updates"] == 10
