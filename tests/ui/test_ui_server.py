"""The server without a browser: what it answers, what it refuses, what it survives."""

import base64
import hashlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from shoal.cli import main
from shoal.core.errors import OptionError
from shoal.training import compared_runs
from shoal.training.comparison import compare as compare_runs
from shoal.ui.app import GROUPS, STATIC, make_app
from shoal.ui.commands import recorded_command
from shoal.ui.endpoints import compare
from shoal.ui.inventory import read_index
from shoal.ui.replays import fill
from shoal.ui.server import Site, names_of
from tests.ui.conftest import NASTY, TOKEN
from tests.ui.folders import append_lines, keep_scene, make_lines, make_run

_BASE = "http://127.0.0.1:8000"
_BEARER = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def app(root):
    return make_app(root, TOKEN)


@pytest.fixture
def client(app):
    return TestClient(app, _BASE, headers=_BEARER)


@pytest.fixture
def stranger(app):
    """A browser that was never shown the address."""
    return TestClient(app, _BASE, follow_redirects=False)


def _get(client, path, **query):
    response = client.get(path, params=query)
    assert response.status_code == 200, response.text
    return response.json()


def test_the_list_has_every_run(client, root):
    found = _get(client, "/api/runs")
    assert found["root"] == str(root)
    by_name = {entry["name"]: entry for entry in found["entries"]}
    assert set(by_name) == {"spread_ippo_1", "spread_ippo_2", "spread_mappo_1", "tag_ippo_1", NASTY, "broken"}
    assert by_name["spread_ippo_2"]["num_seeds"] == 5
    assert by_name["spread_mappo_1"]["status"] == "finished"
    assert by_name["tag_ippo_1"]["status"] == "stopped"
    assert by_name["broken"]["status"] == "unreadable"
    assert by_name["spread_ippo_1"]["tags"] == ["baseline"]


def test_a_run_shows_what_can_be_known_of_it(client, root):
    found = _get(client, "/api/run", run="tag_ippo_1")
    assert found["config"]["experiment"]["env"] == "mpe/simple_tag"
    assert found["metrics"][:2] == ["return", "return/agent"]
    assert {file["name"] for file in found["files"]} == {"config.json", "metrics.jsonl"}
    assert found["offset"] == (root / "tag_ippo_1" / "metrics.jsonl").stat().st_size
    assert found["pages"] == []
    commands = [each["command"] for each in found["commands"]]
    assert f"shoal resume {root / 'tag_ippo_1'}" in commands


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("shoal train demo --seed 3", True),
        ("shoal train 'my world'", True),
        ("shoal train demo; rm -rf ~", False),
        ("shoal train $(reboot)", False),
        ("rm -rf ~", False),
        ("shoal train demo\nreboot", False),
        ("shoal 'unclosed", False),
        (3, False),
    ],
)
def test_a_recorded_command_is_a_command_of_shoal_or_not_shown(text, shown):
    assert recorded_command({"provenance": {"command": text}}) == (text if shown else None)


def test_an_unreadable_run_is_shown_with_its_problem(client):
    found = _get(client, "/api/run", run="broken")
    assert "damaged or cut short" in found["entry"]["problem"]
    assert found["metrics"] == []


def test_a_comparison_is_that_of_the_command(client, root, monkeypatch):
    """To the digit from all lines; nearly, and with a note, from some points of a long run."""
    names = ["spread_ippo_1", "spread_mappo_1"]
    final = compare_runs([root / name for name in names]).final
    whole = _get(client, "/api/compare", run=names)
    assert {group: one["iqm"] for group, one in whole["panels"][0]["final"].items()} == {
        group: one.iqm for group, one in final.items()
    }
    monkeypatch.setattr(compare, "WHOLE_BYTES", 0)
    monkeypatch.setattr(compare, "SAMPLED_POINTS", 30)
    monkeypatch.setattr(compared_runs, "read_metrics", None)  # which takes seconds for each long run
    some = _get(client, "/api/compare", run=names)
    assert [note for note in some["notes"] if "is compared at 30 points" in note][1].startswith(
        "spread_mappo_1 is long"
    )
    for group, one in some["panels"][0]["final"].items():
        assert one["iqm"] == pytest.approx(final[group].iqm, abs=1.5)


def test_the_command_of_a_comparison_says_the_same(client, root, capsys):
    names = ["spread_ippo_1", "tag_ippo_1"]
    chosen = {"metric": "return/agent", "by": "gamma", "at": 32_000, "normalise": "1"}
    shown = _get(client, "/api/compare", run=names, **chosen)
    words = shlex.split(shown["command"])
    assert words == [
        *("shoal", "compare", *(str(root / name) for name in names)),
        *("--metric=return/agent", "--by=gamma", "--at=32000", "--normalise"),
    ]
    assert main([*words[1:], "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    final = {group: one["iqm"] for group, one in printed["panels"]["all environments"]["final"].items()}
    assert {group: one["iqm"] for group, one in shown["panels"][0]["final"].items()} == pytest.approx(final)
    plain = _get(client, "/api/compare", run=[*names, "broken"])["command"]
    assert shlex.split(plain) == words[:4], "what is as usual is not said, and what cannot be compared is not named"


def test_a_command_is_quoted_and_nothing_that_a_terminal_would_act_on(root):
    asked = {**compare.DEFAULTS, "by": "env_options.$(touch ran); 'reboot"}
    command = compare.command_of([root / NASTY], asked)
    assert shlex.split(command) == ["shoal", "compare", str(root / NASTY), f"--by={asked['by']}"]
    assert subprocess.run(["sh", "-c", f"set -- {command}; echo $#"], capture_output=True).stdout == b"4\n"
    assert compare.command_of([root / "a\x1b[201~b"], asked) is None


@pytest.mark.parametrize("at", ["0", "-3", "1e6", "much", "9" * 30])
def test_where_runs_are_judged_must_be_a_number_of_steps(client, at):
    for path in ("/api/compare", "/api/compare/file"):
        found = client.get(path, params={"run": "spread_ippo_1", "at": at, "name": "final.csv"})
        assert found.status_code == 400, found.text
        assert "at must be a whole number" in found.json()["error"]


def test_curves_have_a_column_per_seed(client):
    found = _get(client, "/api/series", run="spread_ippo_1", metric=["return", "entropy/agent"], points=20)
    assert set(found) == {"return", "entropy/agent"}
    curve = found["return"]
    assert len(curve["env_steps"]) == len(curve["seconds"]) == len(curve["values"]) <= 20
    assert {len(row) for row in curve["values"]} == {3}
    assert curve["env_steps"][-1] == 60 * 1600
    assert curve["values"][0][0] < -60 < -40 < curve["values"][-1][0]


@pytest.mark.parametrize(
    "name", ["../secret", "..", "/etc", "a/../../secret", "nothing", "spread_ippo_1/checkpoints", "\0"]
)
def test_nothing_outside_of_the_runs_is_read(client, name):
    for path in ("/api/run", "/api/config", "/page"):
        response = client.get(path, params={"run": name})
        assert response.status_code == 404, (path, response.text)
        assert "unknown run" in response.json()["error"]


@pytest.mark.parametrize(
    "name", ["../config.json", "/etc/passwd", "checkpoints/../config.json", "", "link", "inner/secret"]
)
def test_no_file_outside_of_a_run_is_handed_out(client, root, tmp_path, name):
    (tmp_path / "secret").write_text("secret")
    for link, target in (("link", tmp_path / "secret"), ("inner", tmp_path)):
        if not (root / "tag_ippo_1" / link).is_symlink():
            (root / "tag_ippo_1" / link).symlink_to(target)
    response = client.get("/api/file", params={"run": "tag_ippo_1", "name": name})
    assert response.status_code == 400
    assert "secret" not in response.text.replace("inner/secret", "")


def test_a_link_to_a_run_elsewhere_is_no_run(client, root, tmp_path):
    make_run(tmp_path / "elsewhere", lines=2)
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    assert client.get("/api/run", params={"run": "linked"}).status_code == 404
    assert "linked" not in [entry["name"] for entry in _get(client, "/api/runs")["entries"]]
    (root / "linked").unlink()


def test_files_are_saved_and_never_shown(client):
    response = client.get("/api/file", params={"run": "tag_ippo_1", "name": "config.json"})
    assert json.loads(response.content)["kind"] == "training"
    assert response.headers["content-disposition"] == "attachment"
    assert response.headers["content-type"] == "application/octet-stream"
    assert response.headers["x-content-type-options"] == "nosniff"


def test_the_token_becomes_a_cookie(stranger):
    assert stranger.get("/api/runs").status_code == 403
    assert stranger.get("/").status_code == 403
    assert stranger.get("/static/app.js").status_code == 403
    assert stranger.get("/?token=wrong").status_code == 403
    assert stranger.get("/api/runs", headers={"authorization": "Bearer wrong"}).status_code == 403
    response = stranger.get(f"/?token={TOKEN}")
    assert (response.status_code, response.headers["location"]) == (303, "/")
    cookie = response.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert stranger.get("/").status_code == 200
    assert stranger.get("/api/runs").status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:8000", "localhost.evil", "10.0.0.1", "", "[::"]
)
def test_other_hosts_are_refused(client, host):
    assert client.get("/api/runs", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1:1", "localhost", "LOCALHOST:80", "[::1]:8000"])
def test_names_of_this_machine_are_answered(client, host):
    assert client.get("/api/runs", headers={"host": host}).status_code == 200


def test_a_server_for_others_answers_to_its_name_and_to_addresses(root):
    assert names_of("127.0.0.1") == {"127.0.0.1", "localhost", "::1"}
    assert "lab.example" in names_of("lab.example")
    client = TestClient(make_app(root, TOKEN, names_of("0.0.0.0")), "http://10.1.2.3:80", headers=_BEARER)
    assert client.get("/api/runs").status_code == 200
    assert client.get("/api/runs", headers={"host": "evil.example"}).status_code == 421


def test_writes_need_token_origin_and_json(client, stranger, root):
    body = {"run": "spread_ippo_2", "tags": ["good", "seed-2"], "note": "it <b>works</b>"}
    own = {"origin": _BASE}
    assert stranger.post("/api/annotate", json=body, headers=own).status_code == 403
    assert client.post("/api/annotate", json=body).status_code == 403
    assert client.post("/api/annotate", json=body, headers={"origin": "http://evil.example"}).status_code == 403
    assert client.post("/api/annotate", json=body, headers={"origin": "null"}).status_code == 403
    text = {**own, "content-type": "text/plain"}
    assert client.post("/api/annotate", content=json.dumps(body), headers=text).status_code == 415
    assert not (root / "spread_ippo_2" / "notes.json").exists()
    answer = client.post("/api/annotate", json=body, headers=own)
    assert answer.status_code == 200
    assert answer.json()["tags"] == ["good", "seed-2"]
    assert json.loads((root / "spread_ippo_2" / "notes.json").read_text())["note"] == "it <b>works</b>"
    (root / "spread_ippo_2" / "notes.json").unlink()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"tags": []}, "name a run"),
        ({"run": "spread_ippo_1", "tags": "x"}, "list of texts"),
        ({"run": "spread_ippo_1", "note": 3}, "a text"),
        ([], "JSON object"),
    ],
)
def test_a_wrong_write_says_what_was_expected(client, body, words):
    answer = client.post("/api/annotate", json=body, headers={"origin": _BASE})
    assert answer.status_code == 400
    assert words in answer.json()["error"]


@pytest.mark.parametrize(
    "path",
    [
        "/api/run",
        "/api/run?run=a&run=b",
        "/api/series?run=spread_ippo_1",
        "/api/series?run=spread_ippo_1&metric=return&points=1e9",
        "/api/events?run=a",
        "/api/events?run=a&after=-1",
        "/page?run=spread_ippo_1&name=evil.html",
    ],
)
def test_a_wrong_address_says_what_was_expected(client, path):
    response = client.get(path)
    assert response.status_code == 400
    assert "must be" in response.json()["error"]


def test_pages_forbid_what_they_do_not_need(client):
    policy = client.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "unsafe" not in policy
    text = "".join(path.read_text() for path in STATIC.rglob("*.*") if path.suffix in (".js", ".html", ".css"))
    for far in ("http://", "https://"):
        left = [part[:40] for part in text.split(far)[1:] if not part.startswith("www.w3.org/")]
        assert left == [], "the page must not name another machine"
    index = (STATIC / "index.html").read_text()
    assert "onclick" not in index
    assert "<script>" not in index


def test_markup_in_a_replay_does_not_run(client, root):
    """Of a replay in a run folder only the data is taken: its scripts, and other pages, are not shown."""
    replay = root / "spread_mappo_1" / "replay.html"
    data = json.dumps({"title": "</title><script>alert(1)</script>", "length": 1}).replace("<", r"\u003c")
    replay.write_text(f'<script>steal()</script><script type="application/json" id="data">{data}</script>')
    answer = client.get("/page", params={"run": "spread_mappo_1"})
    replay.unlink()
    assert answer.status_code == 200
    assert "steal()" not in answer.text
    assert answer.text.count("alert(1)") == answer.text.count(r"\u003cscript\u003ealert(1)") + answer.text.count(
        "&lt;script&gt;alert(1)"
    )
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts; default-src 'none'")
    assert "unsafe-inline" not in policy.split("script-src")[1]
    assert policy.count("sha256-") == 2


@pytest.mark.parametrize(
    "content", ["", "<html>", '<script id="data">{"a":</script>', '<script id="data">[1]</script>']
)
def test_a_page_that_is_not_ours_is_refused(client, root, content):
    replay = root / "spread_mappo_1" / "replay.html"
    replay.write_text(content)
    answer = client.get("/page", params={"run": "spread_mappo_1"})
    replay.unlink()
    assert answer.status_code == 400
    assert "shoal watch" in answer.json()["error"]


def test_every_world_is_described_in_motion(client):
    """Each world has its film, options with texts and presets with returns; the films are small enough to ship."""
    worlds = {world["id"]: world for world in _get(client, "/api/environments")["worlds"]}
    assert worlds.keys() == read_index()["worlds"].keys()
    for id, world in worlds.items():
        assert world["film"] is not None, f"{id} has no film: run docs/build_gallery.py"
        assert client.get(world["film"]).content[8:12] == b"WEBP"
        assert id in [preset["name"] for preset in world["presets"]]
    tag = worlds["mpe/simple_tag"]
    assert {"name": "num_adversaries", "default": 3, "text": "who hunt"} in tag["options"]
    assert tag["groups"]["adversary"]["action"] == "5 choices"
    known = next(one["known"] for one in worlds["control/cartpole"]["presets"] if one["name"] == "a2c/cartpole")
    assert known["returns"]["agent"]["mean"] > known["random"]["agent"]
    assert sum(path.stat().st_size for path in (STATIC / "worlds").iterdir()) < 300_000


@pytest.mark.parametrize("name", ["replay.html", "film.html", "population.html"])
def test_a_packaged_page_is_whole(name):
    """What it includes is part of it, is part of what the policy admits, and is no module any more."""
    shown = fill(name, {"title": "t"})
    assert "@include" not in shown.content
    scripts = re.findall(r"<script>(.*?)</script>", shown.content, re.S)
    assert len(scripts) == 2
    for script in scripts:
        assert not re.search(r"^export ", script, re.M)
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in shown.policy


def test_kept_episodes_are_listed_and_shown(client, root):
    for update in (60, 0, 20):
        keep_scene(root / "spread_mappo_1", update, title="</script><b>")
    points = _get(client, "/api/run", run="spread_mappo_1")["scenes"]
    assert points == [{"update": update, "env_steps": 1600 * update} for update in (0, 20, 60)]
    assert _get(client, "/api/scenes", run="spread_mappo_1")["scenes"] == points
    found = _get(client, "/api/scene", run="spread_mappo_1", update=20)
    assert found == {"update": 20, "env_steps": 32000, "label": "", "returns": {"agent": -60.0}}
    keep_scene(root / "spread_mappo_1", 40, "member 5 (best)")
    assert _get(client, "/api/scene", run="spread_mappo_1", update=40)["label"] == "member 5 (best)"
    page = client.get("/scene", params={"run": "spread_mappo_1", "update": 20})
    assert "<b>" not in page.text.split('id="data"')[1].split("</script>")[0]
    assert page.headers["content-security-policy"].startswith("sandbox allow-scripts; default-src 'none'")
    shutil.rmtree(root / "spread_mappo_1" / "scenes")


@pytest.mark.parametrize("update", ["1", "-1", "x", "../config", "99999999999999999999"])
def test_no_other_file_is_taken_for_an_episode(client, root, update):
    keep_scene(root / "spread_mappo_1", 3)
    for path in ("/api/scene", "/scene"):
        assert client.get(path, params={"run": "spread_mappo_1", "update": update}).status_code == 400
    shutil.rmtree(root / "spread_mappo_1" / "scenes")


def test_a_damaged_or_linked_episode_is_refused(client, root, tmp_path):
    run = root / "spread_mappo_1"
    keep_scene(run, 3, length=4000, ends=[5000])
    answer = client.get("/scene", params={"run": "spread_mappo_1", "update": 3})
    assert answer.status_code == 400
    assert "data.ends must be frames" in answer.json()["error"]
    shutil.rmtree(run / "scenes")
    (tmp_path / "scenes").mkdir()
    (run / "scenes").symlink_to(tmp_path / "scenes")
    assert _get(client, "/api/run", run="spread_mappo_1")["scenes"] == []
    assert client.get("/scene", params={"run": "spread_mappo_1", "update": 3}).status_code == 400
    (run / "scenes").unlink()


def _events(site, query: str, stop: threading.Event, found: list[str]) -> None:
    """Reads a stream of events as a browser does, until told to leave."""
    with socket.create_connection(("127.0.0.1", site.port)) as line:
        request = f"GET /api/events?{query} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        line.sendall(request.encode())
        line.settimeout(0.1)
        while not stop.is_set():
            try:
                found.append(line.recv(1 << 16).decode())
            except TimeoutError:
                continue


def _wait(condition, seconds=15.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def test_new_lines_are_streamed_and_a_browser_may_leave(site, root):
    run = make_run(root / "live", lines=5, total_lines=60, num_seeds=2)
    offset, stop, found = (run / "metrics.jsonl").stat().st_size, threading.Event(), []
    reader = threading.Thread(target=_events, args=(site, f"list=0&run=live&after={offset}", stop, found))
    reader.start()
    _wait(lambda: "event: entries" in "".join(found))
    append_lines(run, make_lines(3, 60, 2, -30.0, 0, first=6))
    _wait(lambda: "event: lines" in "".join(found))
    told = next(part for part in "".join(found).split("\n\n") if "event: lines" in part)
    data = json.loads(told.split("data: ", 1)[1])
    assert [line["update"] for line in data["lines"]] == [6, 7, 8]
    assert data["offset"] == (run / "metrics.jsonl").stat().st_size
    for part in run.iterdir():  # it is removed while it is followed
        part.rmdir() if part.is_dir() else part.unlink()
    run.rmdir()
    _wait(lambda: "event: gone" in "".join(found))
    stop.set()
    reader.join()
    client = TestClient(site.app, _BASE, headers=_BEARER)
    assert "live" not in [entry["name"] for entry in _get(client, "/api/runs")["entries"]]


def test_two_servers_cannot_share_a_port(site, root):
    with pytest.raises(OptionError, match=f"--port {site.port}: another program answers there"):
        Site(root, port=site.port)


def test_a_host_that_is_not_here_is_said(root):
    with pytest.raises(OptionError, match=r"--host 203\.0\.113\.7"):
        Site(root, host="203.0.113.7")


def test_the_server_needs_no_jax_and_starts_at_once(root):
    code = f"""
import sys, time
begin = time.perf_counter()
from shoal.ui.app import make_app
make_app({str(root)!r}, "token")
import shoal.ui.server, shoal.cli.commands.ui
assert "jax" not in sys.modules, "jax was imported"
print(time.perf_counter() - begin)
"""
    source = str(Path(__file__).parents[2] / "src")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 5, "on an idle machine it takes a quarter of a second"


def test_every_group_of_endpoints_has_its_own_addresses():
    paths = [route.path for group in GROUPS for route in group.ROUTES]
    assert len(paths) == len(set(paths))
