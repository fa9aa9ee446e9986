"""The server and its page: who is refused, and a person's games in a real browser."""

import http.client
import json

import pytest

from shoal.core.errors import OptionError
from shoal.human.results import read_episodes, replay_rewards
from shoal.human.server import MOST_BYTES, Table, read_static
from shoal.human.session import Session
from tests.ui.test_ui_looks import violations

ME = "person-one"
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def table(kuhn, tmp_path):
    with Table(Session(kuhn, 0.0, seed=3, results=tmp_path / "r.jsonl")) as table:
        yield table


def ask(table, path, body=None, headers=(), token=None, method=None):
    """Status and text of an answer. path: below the token."""
    own = token if token is not None else table.address.split("/")[3]
    connection = http.client.HTTPConnection("127.0.0.1", table.port, timeout=10)
    try:
        sent = {**({"Origin": f"http://127.0.0.1:{table.port}", **JSON} if body is not None else {}), **dict(headers)}
        connection.request(method or ("GET" if body is None else "POST"), f"/{own}/{path}", body, sent)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())
    finally:
        connection.close()


def message(**more):
    return json.dumps({"person": ME, **more})


def test_the_page_and_its_files(table):
    status, text, headers = ask(table, "")
    assert (status, "play.js" in text) == (200, True)
    assert "<script>" not in text, "nothing is written into the page itself"
    assert "script-src 'self'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    for name in ("play.js", "controls.js", "scene.js", "play.css"):
        assert ask(table, name)[:2] == (200, read_static(name).decode())
    assert ask(table, "server.py")[0] == 404
    assert ask(table, "..%2F..%2Fpyproject.toml")[0] == 404


def test_without_the_token_nothing_is_told(table):
    for token in ("", "wrong", "%00", "é".encode().hex()):
        status, text, _ = ask(table, "", token=token)
        assert (status, "token" in text) == (403, True)
        assert ask(table, "act", message(action=[0]), token=token)[0] == 403


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "evil.example:80", "127.0.0.1", ""])
def test_other_hosts_are_refused(table, host):
    assert ask(table, "", headers={"Host": host})[0] == 421


def test_other_pages_cannot_play(table):
    assert ask(table, "command", message(name="start"), {"Origin": "http://evil.example"})[0] == 403
    assert ask(table, "command", message(name="start"), {"Origin": "null"})[0] == 403
    assert ask(table, "command", message(name="start"), {"Content-Type": "text/plain"})[0] == 415
    assert table.session.phase == "ready"


def test_messages_that_are_too_large_or_no_messages(table):
    status, text, _ = ask(table, "act", "x" * (MOST_BYTES + 1))
    assert (status, "16,384 bytes" in text) == (413, True)
    assert ask(table, "act", iter([b"{}"]), {"Transfer-Encoding": "chunked"})[0] == 413
    for body in ("{", "[]", "{}", '{"person": 3}', "[" * 5000, '{"person": "x", "action": NaN}'):
        status, text, _ = ask(table, "act", body)
        assert (status, bool(json.loads(text)["refused"])) == (422, True), body
    assert ask(table, "act", method="PUT", body="{}")[0] == 405
    assert ask(table, "events")[0] == 400


def test_illegal_actions_and_a_second_person_are_refused_in_words(table):
    assert ask(table, "command", message(name="start"))[0] == 409, "nobody sits there"
    connection = http.client.HTTPConnection("127.0.0.1", table.port, timeout=10)
    connection.request("GET", f"/{table.address.split('/')[3]}/events?person={ME}")
    stream = connection.getresponse()
    assert stream.readline() == b"event: table\n"
    assert ask(table, "command", message(name="start"))[0] == 200
    status, text, _ = ask(table, "act", message(action=[2], step=0))
    assert (status, json.loads(text)["refused"]) == (422, "action: move must be a choice from 0 to 1, got 2")
    status, text, _ = ask(table, "events?person=person-two")
    assert "somebody plays player[0] already" in text
    assert ask(table, "act", json.dumps({"person": "person-two", "action": [0], "step": 0}))[0] == 409
    stream.close()
    connection.close()


def test_a_port_that_is_taken_is_said(table, pong):
    with pytest.raises(OptionError, match="another program answers there"):
        Table(Session(pong, 10.0), port=table.port)


def test_a_hand_of_kuhn_poker_by_clicking(browser, table):
    browser.visit(table.address, "Boolean(window.shoal?.state)")
    assert browser.js("document.getElementById('who').textContent") == "You play player[0] against random play"
    browser.click("#start")
    browser.wait("shoal.state.phase === 'playing' && shoal.state.active")
    assert browser.js("shoal.state.scene.labels.filter(([, , , text]) => 'JQK'.includes(text)).length") == 1
    assert browser.js("document.getElementById('turn').textContent") == "Your turn"
    assert browser.js("[...document.querySelectorAll('#controls button')].map((b) => b.title)") == ["pass", "bet"]
    browser.click("#controls button[title=bet]")
    browser.wait("shoal.state.phase === 'over'")
    assert "Episode over" in browser.js("document.getElementById('headline').textContent")
    (episode,) = read_episodes(table.session.results)
    assert episode["actions"]["player"][0][0] == 1
    assert replay_rewards(episode)["player"].tolist() == episode["rewards"]["player"]
    browser.key("Enter")
    browser.wait("shoal.state.phase === 'playing'")
    browser.key("1")
    browser.wait("shoal.state.step > 0")
    assert browser.complaints() == []


def test_a_second_window_is_told_that_the_seat_is_taken(browser, table):
    table.session.join("somebody else")
    told = "document.getElementById('headline')?.textContent.includes('somebody plays') ?? false"
    browser.visit(table.address, told)
    assert browser.js("document.getElementById('start').hidden")


def test_pong_by_keys(browser, pong, tmp_path):
    with Table(Session(pong, 20.0, results=tmp_path / "r.jsonl")) as table:
        browser.visit(table.address, "Boolean(window.shoal?.state)")
        browser.key("Enter")
        browser.wait("shoal.state.phase === 'playing'")
        browser.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowUp", code="ArrowUp")
        browser.wait("shoal.state.step > 4")
        assert browser.js("document.querySelector('#controls [aria-pressed=true]').title") == "up"
        browser.call("Input.dispatchKeyEvent", type="keyUp", key="ArrowUp", code="ArrowUp")
        browser.key("Escape")
        browser.wait("shoal.state.phase === 'paused'")
        assert browser.js("shoal.action[0]") == 0
        assert browser.complaints() == []
    (episode,) = read_episodes(tmp_path / "r.jsonl")
    assert episode["ended"] == "abandoned"
    assert [1] in episode["actions"]["left"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_accessible_on_a_phone_and_on_a_desk_in_both_themes(browser, table, axe, scheme):
    for width in (360, 1280):
        browser.visit(table.address, "Boolean(window.shoal?.state)", width=width, scheme=scheme)
        check_looks(browser, axe)  # before the game, or while it pauses
        browser.key("Enter")
        browser.wait("shoal.state.phase === 'playing' && shoal.state.active")
        check_looks(browser, axe)
        browser.key("?")
        browser.wait("document.getElementById('keys').open")
        check_looks(browser, axe)
    assert browser.complaints() == []


def check_looks(browser, axe):
    browser.settle()
    assert violations(browser, axe) == []
    assert browser.js("document.documentElement.scrollWidth <= innerWidth")
