"""Screens of special kinds of runs: populations, sweeps and population-based training, clusters."""

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from shoal.core.processes import module_command
from shoal.games.ratings import elo
from shoal.training.sweep import _score
from shoal.ui.app import STATIC, make_app
from shoal.ui.cluster import history_of
from shoal.ui.replays import fill
from shoal.viz.palette import BEND, SHADES
from tests.ui.conftest import NASTY, TOKEN
from tests.ui.folders import (
    REPLAY,
    append_lines,
    make_cluster,
    make_pbt,
    make_population,
    make_run,
    make_sweep,
    note_history,
    population_line,
    write_population_checkpoint,
    write_status,
)
from tests.ui.test_ui_looks import violations

_GOLDEN = Path(__file__).parents[1] / "golden" / "runs"
_OWN = {"origin": "http://127.0.0.1"}
_COPIED = ("psro", "psro_exact", "league", "pbt", "sweep", "cluster", "cluster_psro")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Runs of every special kind, and a plain one."""
    root = tmp_path_factory.mktemp("special")
    for name in _COPIED:
        shutil.copytree(_GOLDEN / name, root / name)
    make_population(root / "pong_psro")
    make_population(root / "three", 3, ("a", "b", "c"))
    make_population(root / NASTY, 2, (NASTY, "it's; reboot"))
    make_sweep(root / "rates")
    make_pbt(root / "tuned")
    make_cluster(root / "many")
    make_run(root / "plain")
    return root


@pytest.fixture(scope="module")
def app(root):
    return make_app(root, TOKEN)


@pytest.fixture(scope="module")
def client(app):
    return TestClient(app, "http://127.0.0.1", headers={"authorization": f"Bearer {TOKEN}"})


def _get(client, path: str, run: str, status: int = 200, **query) -> dict:
    answer = client.get(path, params={"run": run, **query})
    assert answer.status_code == status, answer.text
    return answer.json()


def test_the_list_knows_the_screens_of_a_run(client):
    entries = {entry["name"]: entry["screens"] for entry in client.get("/api/runs").json()["entries"]}
    assert entries["plain"] == []
    assert entries["psro"] == entries["league"] == ["population"]
    assert entries["cluster_psro"] == ["population", "cluster"]
    assert entries["sweep"] == entries["pbt"] == ["tuning"]


# Populations


def test_a_population_has_payoffs_mixtures_and_ratings(client):
    found = _get(client, "/api/population", "psro")
    assert found["problem"] is None
    assert found["meta_solver"] == "fictitious_play"
    inner = found["found"]
    assert inner["players"] == ["player_0", "player_1"]
    assert [[len(row) for row in rows] for rows in inner["table"]["mean"]] == [[2, 2], [2, 2]]
    assert inner["table"]["mean"][0][0][0] == pytest.approx(found["history"][0]["value"])
    assert inner["table"]["episodes"][0][0] == 64
    assert len(inner["elo"]["player_0"]) == 2
    assert found["history"][1]["mixtures"] == [[1.0, 0.0], [1.0, 0.0]]
    assert found["commands"]["watch"].startswith("shoal population ")


def test_ratings_have_intervals_that_hold_what_other_episodes_would_say(client, root):
    """95 % of those of tables that are played anew, here of a game of zero sum."""
    inner = _get(client, "/api/population", "pong_psro")["found"]
    ratings, margins = (np.array(inner[name]["left"] + inner[name]["right"]) for name in ("elo", "elo_margin"))
    mean, error = np.array(inner["table"]["mean"]), np.array(inner["table"]["error"])[0]
    size, reach, draws = len(error), mean.max() - mean.min(), np.random.default_rng(0)
    played = np.zeros((2 * size, 2 * size))
    spread = []
    for _ in range(400):
        off = error * draws.normal(size=error.shape)
        share = np.clip(0.5 + (mean[0] - mean[1] + 2 * off) / (2 * reach), 0, 1)
        played[:size, size:], played[size:, :size] = share, 1 - share.T
        spread.append(elo(played))
    assert ratings == pytest.approx(np.mean(spread, axis=0), abs=10)
    assert margins == pytest.approx(1.96 * np.std(spread, axis=0), rel=0.2)


def test_ratings_of_exact_tables_are_exact_and_those_of_few_results_not_known(client):
    assert set(_get(client, "/api/population", "psro_exact")["found"]["elo_margin"]["player_0"]) == {0.0}
    assert _get(client, "/api/population", "league")["found"]["elo_margin"]["player_0"] == [None]


def test_exact_populations_offer_nothing_to_watch(client):
    found = _get(client, "/api/population", "psro_exact")
    assert found["exact"] is True
    assert found["commands"] is None


def test_of_three_players_the_last_is_mixed(client):
    table = _get(client, "/api/population", "three")["found"]["table"]
    assert (len(table["mean"]), len(table["mean"][0]), len(table["mean"][0][0])) == (3, 3, 3)
    expected = sum(weight * (2 - (2 + 0 + c) / 3) / 3 for weight, c in ((0.25, 1), (0.75, 2)))
    assert table["mean"][0][2][0] == pytest.approx(expected)


def test_commands_quote_what_a_folder_says(client, root):
    found = _get(client, "/api/population", NASTY)
    seats = found["commands"]["seats"]
    assert seats[0] == f"'{NASTY}={root / NASTY}:'"
    assert seats[1].startswith("'it'\"'\"'s; reboot=")


def test_a_population_without_a_checkpoint_shows_its_lines(client, root):
    run = make_population(root / "young", 2)
    shutil.rmtree(run / "checkpoints")
    found = _get(client, "/api/population", "young")
    assert found["found"] is None
    assert "no checkpoint yet" in found["problem"]
    assert [line["iteration"] for line in found["history"]] == [0, 1]
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "step-0000000001.npz").write_bytes(b"PK nothing of the kind")
    assert "damaged or cut short" in _get(client, "/api/population", "young")["problem"]
    append_lines(run, [{"iteration": "two"}])
    assert "must be a whole number" in _get(client, "/api/population", "young", 400)["error"]
    shutil.rmtree(run)


def test_other_runs_are_no_populations(client):
    assert "is not a population" in _get(client, "/api/population", "plain", 400)["error"]


def test_the_map_has_the_colours_of_the_pages():
    text = (STATIC / "lib" / "maps.js").read_text("utf-8")
    for theme, shades in SHADES.items():
        line = re.search(rf"{theme}: {{(.*)}}", text)
        assert line is not None
        found = dict(re.findall(r'(\w+): "(#\w+)"', line[1]))
        assert found == {name: shades[name] for name in found}
        assert len(found) == 4
    assert f"BEND = {BEND};" in text


def test_the_population_screen(page, root):
    shown = page("#/runs")
    shown.wait("Boolean(document.querySelector('tr[data-name=pong_psro] a.special'))")
    shown.click("tr[data-name=pong_psro] a.special")
    shown.wait("location.hash === '#/population/pong_psro' && Boolean(document.querySelector('.map-entry'))")
    text = "document.querySelector('main').textContent"
    assert "6 × 6" in shown.js(text)
    assert shown.js("document.querySelectorAll('.map-entry').length") == 36
    assert shown.js("document.querySelectorAll('.map-box canvas').length") == 3
    shown.js("document.querySelector('.map-box canvas').focus()")
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "Enter"):
        shown.key(key)
    assert "left 1 (weight 0.0 %) against right 2" in shown.js("document.querySelector('.map-told').textContent")
    codes = shown.js("[...document.querySelectorAll('.match code')].map((each) => each.textContent)")
    assert codes == [
        f"shoal population {root / 'pong_psro'} --watch 1,2",
        f"shoal match left={root / 'pong_psro'}:1 right={root / 'pong_psro'}:2",
    ]
    write_population_checkpoint(root / "pong_psro", 7, ("left", "right"))
    append_lines(root / "pong_psro", [population_line(6)])
    shown.wait(f"{text}.includes('7 × 7') && document.querySelectorAll('.map-entry').length === 49")
    assert "Match 1 – 2" in shown.js(text)


def test_a_match_is_played_from_its_entry(page, site, root, tmp_path, monkeypatch):
    """The page of the match stands in a frame without an origin; the run folder stays as it is."""
    (tmp_path / "made.html").write_text(REPLAY)
    program = tmp_path / "program.py"
    program.write_text(
        f"import shutil, sys; print(sys.argv); shutil.copy({str(tmp_path / 'made.html')!r}, sys.argv[2])"
    )
    monkeypatch.setattr(site.app.state.matches, "program", (sys.executable, "-S", str(program)))
    before = sorted(root.joinpath("three").rglob("*"))
    shown = page("#/population/three")
    shown.wait("Boolean(document.querySelector('.map-entry'))")
    shown.js("document.querySelector('.map-box canvas').focus()")
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "Enter"):
        shown.key(key)
    shown.js("window.said = 0; addEventListener('message', ({ data }) => { said += data.shoal === 'at'; }); undefined")
    shown.click(".match .button.main")
    shown.wait("document.querySelector('.match iframe')?.title === 'Match 1 – 2 – 2'")
    shown.wait("said > 0")
    assert shown.js("document.querySelector('.match iframe').getAttribute('sandbox')") == "allow-scripts"
    first = shown.js("document.querySelector('.match iframe').getAttribute('src')")
    shown.js("[...document.querySelectorAll('.match .button')].at(-1).click()")
    shown.wait(f"(document.querySelector('.match iframe')?.getAttribute('src') ?? {json.dumps(first)}) !== '{first}'")
    assert sorted(root.joinpath("three").rglob("*")) == before
    assert [match[2:] for match in site.app.state.matches._kept] == [((1, 2, 2), 0), ((1, 2, 2), 1)]
    shown.js("document.querySelector('.map-box canvas').focus()")
    shown.key("ArrowLeft")
    shown.key("Enter")
    assert shown.js("document.querySelectorAll('.match iframe').length") == 0, "another match is chosen"


def test_why_a_match_cannot_be_shown_is_said(client, app):
    app.state.matches.program = (sys.executable, "-S", "-c", "import sys; sys.exit('policy 9 of left is not there')")
    found = client.post("/api/match", json={"run": "three", "lineup": [9, 0, 0]}, headers=_OWN)
    assert (found.status_code, found.json()["error"]) == (
        400,
        "this match cannot be shown: policy 9 of left is not there",
    )
    app.state.matches._running = 2
    again = client.post("/api/match", json={"run": "three", "lineup": [1, 0, 0]}, headers=_OWN)
    assert "2 matches are played already" in again.json()["error"]
    app.state.matches._running = 0
    app.state.closing = True
    app.state.matches.program = (sys.executable, "-S", "-c", "import time; time.sleep(300)")
    ended = client.post("/api/match", json={"run": "three", "lineup": [1, 0, 0]}, headers=_OWN)
    assert ended.json()["error"] == "the server ends"
    app.state.closing = False


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"run": "plain"}, "is not a population"),
        ({"run": "../three"}, "run"),
        ({"run": 3}, "must name a run"),
        ({"lineup": ["--help"]}, "lineup must be"),
        ({"lineup": [-1, 0]}, "lineup must be"),
        ({"lineup": [True, 0]}, "lineup must be"),
        ({"lineup": []}, "lineup must be"),
        ({"lineup": [0] * 1000}, "lineup must be"),
        ({"seed": 2**40}, "seed must be"),
    ],
)
def test_what_is_no_match_starts_nothing(client, app, change, words, monkeypatch):
    monkeypatch.setattr(app.state.matches, "program", ())
    body = {"run": "three", "lineup": [0, 0, 0]} | change
    found = client.post("/api/match", json=body, headers=_OWN)
    assert found.status_code in (400, 404)
    assert words in found.json()["error"]
    assert client.post("/api/match", json=body).status_code == 403, "only the page itself may ask"
    for key in ("", "../../etc/passwd", "0" * 32):
        assert client.get("/match", params={"key": key}).status_code == 400


@pytest.mark.slow
def test_a_real_match_is_played(client, app):
    app.state.matches.program = module_command("shoal.ui.match_page")
    found = client.post("/api/match", json={"run": "psro", "lineup": [1, 0]}, headers=_OWN)
    assert found.status_code == 200, found.text
    page = client.get(found.json()["page"])
    assert page.headers["content-security-policy"].startswith("sandbox allow-scripts; default-src 'none'")
    assert "player_0: policy 1, player_1: policy 0" in page.text
    refused = client.post("/api/match", json={"run": "psro", "lineup": [7, 0]}, headers=_OWN)
    assert "the policy of player_0 must be between 0 and 1" in refused.json()["error"]


def test_names_of_players_are_text(page):
    shown = page("#/population")
    shown.wait("document.querySelectorAll('.set').length > 4")
    nasty = f"[...document.querySelectorAll('.set')].find((each) => each.textContent.includes({json.dumps(NASTY)}))"
    shown.js(f"{nasty}.click()")
    shown.wait("Boolean(document.querySelector('.map-entry'))")
    assert shown.js("[typeof window.hacked, document.images.length]") == ["undefined", 0]


# Sweeps and population-based training


def test_a_sweep_has_its_points_best_first(client):
    found = _get(client, "/api/tuning", "rates")
    assert [option["log"] for option in found["options"]] == [True, False]
    assert (found["amount"], found["seeds"], found["measure"]) == (12, 2, "return")
    best = found["points"][0]
    assert best["values"] == {"learning_rate": 0.001, "clip_eps": 0.2}
    assert best["number"] == 4
    assert best["mean"] == pytest.approx(sum(best["returns"]) / 2)
    means = [point["mean"] for point in found["points"]]
    assert means == sorted(means, reverse=True)


@pytest.mark.parametrize("name", ["sweep", "rates"])
def test_points_are_scored_as_the_sweep_does(client, root, name):
    lines = [json.loads(line) for line in (root / name / "metrics.jsonl").read_text().splitlines()]
    found = {point["number"]: point["returns"] for point in _get(client, "/api/tuning", name)["points"]}
    flat = [value for number in sorted(found) for value in found[number]]
    assert flat == pytest.approx([_score(lines, ["return/agent"], lane) for lane in range(len(flat))])


def test_a_sweep_says_what_failed(client, root):
    run = make_sweep(root / "ended")
    points = [{"failures": [None, "NaN" if number == 4 else None]} for number in range(12)]
    (run / "sweep.json").write_text(json.dumps({"points": points, "measure": ["return/agent"]}))
    found = _get(client, "/api/tuning", "ended")
    failed = next(point for point in found["points"] if point["number"] == 4)
    assert (failed["mean"], failed["returns"][1]) == (None, None)
    assert found["points"][0]["number"] != 4
    (run / "sweep.json").write_text('{"points": 3}')
    assert "must be a list" in _get(client, "/api/tuning", "ended")["problem"]
    assert "measure must be one of" in _get(client, "/api/tuning", "ended", 400, measure="return/nobody")["error"]
    shutil.rmtree(run)


@pytest.mark.parametrize(
    ("over", "problem"),
    [
        ({"learning_rate": {"start": 1, "stop": 0}}, "greater than its start"),
        ({"learning_rate": [[1]]}, "must be a number"),
        ({"learning_rate": {"start": 0, "stop": 1, "count": 2**40}}, "must be between 2 and"),
        ({str(i): [1, 2, 3, 4, 5, 6, 7, 8, 9] for i in range(9)}, "points must be at most"),
        ({}, "must name options"),
    ],
)
def test_damaged_plans_are_explained(client, root, over, problem):
    run = make_sweep(root / "damaged")
    config = json.loads((run / "config.json").read_text())
    config["sweep"]["over"] = over
    (run / "config.json").write_text(json.dumps(config))
    assert problem in _get(client, "/api/tuning", "damaged", 400)["error"]
    shutil.rmtree(run)


def test_pbt_has_schedules_and_lineage(client):
    found = _get(client, "/api/tuning", "pbt")
    assert [(each["member"], each["source"]) for each in found["copies"]] == [(0, 1), (0, 3), (2, 3), (2, 3)]
    schedule = found["schedules"]["learning_rate"]
    assert [row[0] for row in schedule["values"]][:3] == [0.000148354, 0.000148354, 0.00035711]
    assert schedule["env_steps"] == sorted(schedule["env_steps"])
    assert found["best"] == 0
    assert found["options"] == [{"name": "learning_rate", "low": 0.0001, "high": 0.01, "log": True}]


def test_only_what_was_added_is_read(client, root, monkeypatch):
    run = make_pbt(root / "growing", lines=16)
    assert _get(client, "/api/tuning", "growing")["all_copies"] == 2
    catalogue, read = client.app.state.catalogue, []
    before = catalogue.lines_after
    monkeypatch.setattr(catalogue, "lines_after", lambda name, offset: read.append(offset) or before(name, offset))
    end = (run / "metrics.jsonl").stat().st_size
    append_lines(run, [{"update": 17, "env_steps": 17 * 1600, "pbt/score": [0] * 6, "pbt/source": [1, 1, 2, 3, 4, 5]}])
    assert _get(client, "/api/tuning", "growing")["all_copies"] == 3
    assert min(read) == end
    (run / "metrics.jsonl").write_text("")
    assert _get(client, "/api/tuning", "growing")["all_copies"] == 0
    shutil.rmtree(run)


def test_of_very_long_runs_the_last_lines_are_kept(client, root, monkeypatch):
    monkeypatch.setattr("shoal.ui.kept_lines.MOST_VALUES", 240)
    run = make_pbt(root / "long", members=6, lines=40)
    found = _get(client, "/api/tuning", "long")
    assert found["score"]["env_steps"] == [update * 1600 for update in range(31, 41)]
    assert found["all_copies"] == 2
    shutil.rmtree(run)


def test_the_sweep_screen(page):
    shown = page("#/tuning/rates")
    shown.wait("document.querySelectorAll('.parallel .way').length === 12")
    assert "learning_rate (log)" in shown.js("document.querySelector('.parallel').textContent")
    first = "document.querySelector('.points tbody tr')"
    assert shown.js(f"[...{first}.cells].slice(0, 3).map((cell) => cell.textContent)") == ["4", "0.001", "0.2"]
    shown.click(".points tbody tr .hold")
    assert shown.js("location.hash") == "#/tuning/rates?point=4"
    assert shown.js("document.querySelectorAll('.way.bright').length") == 1
    assert shown.js("document.querySelectorAll('.way.dim').length") == 11
    shown.js(f"{first}.nextSibling.dispatchEvent(new PointerEvent('pointerenter'))")
    assert shown.js("document.querySelectorAll('.way.bright').length") == 2
    assert shown.js("document.querySelector('tr.pointed').rowIndex") == 2


def test_the_pbt_screen(page):
    shown = page("#/tuning/tuned")
    shown.wait("document.querySelectorAll('.chart .curve').length >= 14")
    assert shown.js("document.querySelectorAll('.copied').length") == 5
    assert shown.js("Boolean(document.querySelector('.ancestors').getAttribute('d'))")
    assert "member 0 became a copy of" in shown.js("document.querySelector('.plot.still').textContent")
    assert "learning_rate (log)" in shown.js("document.querySelector('.chart h3').textContent")


# Clusters


def test_a_cluster_has_its_state_and_what_the_metrics_tell_of_the_past(client, root):
    found = _get(client, "/api/cluster", "many")
    status, history = found["status"], found["history"]
    assert status["running"] is True
    assert status["queues"] == [{"name": "dataset", "length": 1, "capacity": 4, "dropped": 2}]
    assert [worker["notes"] for worker in status["workers"]] == ["", "slow"]
    assert status["workers"][0]["rate"] == pytest.approx(32 / 0.021)
    assert status["restarts"] == 3
    assert len(history["seconds"]) == 60
    assert history["rate"][0] is None
    assert history["rate"][1:] == pytest.approx([1600 / 0.21] * 59, rel=1e-3)
    assert history["staleness"][:3] == [1.0, 1.5, 2.0]
    noted = found["noted"]
    assert noted["seconds"] == [2.0 * i for i in range(30)]
    assert noted["queues"] == {"dataset": [i % 5 for i in range(30)]}
    assert noted["restarts"][9:11] == [0, 1]
    assert noted["rate"] == [120.5] * 30
    assert found["commands"] == [f"shoal cluster {verb} {root / 'many'}" for verb in ("status", "advise")]


@pytest.mark.parametrize(
    "line",
    [
        {"seconds": 1.0, "queues": {"dataset": 1}, "restarts": 0},
        {"seconds": -5.0, "queues": {"dataset": 1}, "restarts": 0, "rate": 1.0},
        {"seconds": 1e400, "queues": {"dataset": 1}, "restarts": 0, "rate": 1.0},
        {"seconds": 99.0, "queues": {"dataset": "1"}, "restarts": 0, "rate": 1.0},
        {"seconds": 99.0, "queues": {str(i): i for i in range(33)}, "restarts": 0, "rate": 1.0},
        {"seconds": 99.0, "queues": {}, "restarts": -1, "rate": 1.0},
        {"seconds": 99.0, "queues": {}, "restarts": 0, "rate": "<b>"},
        ["seconds"],
    ],
)
def test_what_a_driver_noted_is_read_up_to_what_is_damaged(client, root, line):
    run = make_cluster(root / "odd")
    with (run / "cluster_history.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    note_history(run, [{"seconds": 100.0, "queues": {}, "restarts": 0}])
    noted = _get(client, "/api/cluster", "odd")["noted"]
    assert (len(noted["seconds"]), noted["seconds"][-1]) == (30, 58.0)
    shutil.rmtree(run)


def test_a_history_that_is_a_link_is_not_followed(client, root, tmp_path):
    run = make_cluster(root / "linked")
    shutil.move(run / "cluster_history.jsonl", tmp_path / "elsewhere")
    (run / "cluster_history.jsonl").symlink_to(tmp_path / "elsewhere")
    assert "must be a regular file" in _get(client, "/api/cluster", "linked", 400)["error"]
    shutil.rmtree(run)


def test_a_population_on_a_cluster_has_its_present_state(client):
    found = _get(client, "/api/cluster", "cluster_psro")
    assert found["history"]["rate"] == []
    assert found["status"]["running"] is False  # its driver was silent for long
    assert found["status"]["queues"] == [{"name": "board", "length": 0, "leased": 0}]
    assert [worker["done"] for worker in found["status"]["workers"]] == [5, 2]


def test_long_histories_are_thinned():
    lines = [{"seconds": i * 0.5, "env_steps": i * 100, "staleness": 1.0, "staleness_max": i} for i in range(5000)]
    lines.insert(2500, {"seconds": 0.0, "env_steps": 3, "staleness": "much"})
    history = history_of(lines)
    assert len(history["seconds"]) == 400
    assert history["rate"][1:] == pytest.approx([200.0] * 399)
    assert history["staleness_max"][-1] == 4999


def test_runs_without_a_cluster_are_told_so(client, root):
    assert "has no cluster.json" in _get(client, "/api/cluster", "plain", 400)["error"]
    run = make_cluster(root / "torn")
    (run / "cluster.json").write_text('{"running": 3}')
    assert "is damaged" in _get(client, "/api/cluster", "torn", 400)["error"]
    shutil.rmtree(run)


def test_the_cluster_screen(page, root):
    shown = page("#/cluster/many")
    text = "document.querySelector('main').textContent"
    shown.wait("document.querySelectorAll('.chart .curve').length >= 5")
    titles = shown.js("[...document.querySelectorAll('.chart h3')].map((each) => each.textContent)")
    assert titles == ["Env steps per second", "Staleness, in updates", "Restarts", "Waiting in queues"]
    drawn = "document.querySelectorAll('.card:nth-child(4) .curve')[0]?.getAttribute('d').split(/[ML]/).length"
    assert shown.js(drawn) > 20, "queues are drawn from when the run began, not from when the page was opened"
    assert "60 of 120" in shown.js(text)
    assert "<b>died</b>" in shown.js(text)
    write_status(root / "many", 4, events=4)
    shown.wait(f"{text}.includes('The last 4 events')")
    shown = page("#/cluster/cluster_psro")
    shown.wait(f"{text}.includes('keeps nothing over time yet: this is the present state')")
    assert "worker-1" in shown.js(text)
    shown = page("#/cluster")
    shown.wait("document.querySelectorAll('.set').length === 3")


# All of them

SCREENS = ("population/pong_psro", "population/psro_exact", "tuning/rates", "tuning/tuned", "cluster/many", "cluster")


@pytest.mark.parametrize("name", ["population/pong_psro", "tuning/rates", "tuning/tuned", "cluster/many"])
def test_special_screens_are_accessible(page, axe, name):
    shown = page(f"#/{name}")
    shown.settle()
    assert violations(shown, axe) == []


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", SCREENS)
def test_every_special_screen_is_accessible(page, axe, name, scheme):
    shown = page(f"#/{name}", width=1280, height=1400, scheme=scheme)
    shown.settle()
    assert violations(shown, axe) == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 680, 820, 1080, 1280, 2560])
@pytest.mark.parametrize("name", SCREENS)
def test_nothing_sticks_out_of_special_screens(page, name, width):
    shown = page(f"#/{name}", width=width)
    shown.settle()
    assert shown.js("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("name", ["population.html", "replay.html", "film.html"])
def test_pages_have_all_that_they_include(name):
    assert "@include" not in fill(name, {"title": "a page"}).content
