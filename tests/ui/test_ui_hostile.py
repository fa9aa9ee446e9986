"""Run folders made to do harm, through every endpoint: no traceback, no hang, nothing outside is read."""

import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from shoal.training.catalogue import catalogue
from shoal.ui.app import GROUPS, make_app
from shoal.ui.endpoints import live, presets
from tests.hostile import corpus
from tests.ui.conftest import TOKEN
from tests.ui.folders import REPLAY, keep_scene

_GOLDEN = Path(__file__).parents[1] / "golden" / "runs"
_KINDS = ("ppo_two_seeds", "psro", "pbt", "evolution", "sweep", "cluster", "cluster_psro")
_SECRET = "a secret that lies outside"
_SECONDS = 20
_NO_RUN = {
    *("/api/command", "/api/start", "/api/stop"),
    *("/api/environments", "/api/targets", "/api/form", "/api/started", "/match"),
}
"""Addresses that read no run."""
_WRITES = {"/api/annotate", "/api/match"}


def _addresses(name: str) -> list[tuple[str, dict[str, object]]]:
    """Every address that reads a run, with what it needs."""
    more: dict[str, list[dict[str, object]]] = {
        "/api/series": [{"metric": "return", "rough": 1}, {"metric": "return"}, {"metric": "no such metric"}],
        "/api/file": [{"name": "config.json"}, {"name": "metrics.jsonl"}, {"name": "checkpoints"}],
        "/api/compare": [{}, {"by": "run", "metric": "return/agent"}],
        "/api/compare/file": [{"name": "final.csv"}, {"name": "final.tex"}],
        "/api/tuning": [{}, {"measure": "return/agent"}],
        "/scene": [{"update": 3}],
        "/api/scene": [{"update": 3}],
        "/page": [{}, {"name": "population.html"}],
        "/api/events": [{"after": 0}, {"after": 10**30, "list": 0}],
    }
    paths = [route.path for group in GROUPS for route in group.ROUTES if route.path not in _NO_RUN | _WRITES]
    return [(path, {"run": name, **query}) for path in paths for query in more.get(path, [{}])]


class _AfterOneLook:
    """Says that the server closes when a stream has looked once, so that it ends."""

    def __init__(self):
        self.looked = False

    def __bool__(self):
        before, self.looked = self.looked, True
        return before


def _hang(number, frame):
    raise TimeoutError("an endpoint does not come back")


def _try(tmp_path: Path, numbers) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious.txt").write_text(_SECRET)
    root = tmp_path / "runs"
    for number in numbers:
        random = np.random.default_rng(number)
        folder = root / "run"
        shutil.copytree(_GOLDEN / _KINDS[number % len(_KINDS)], folder)
        corpus.at_random(folder, outside, random)
        replay = bytearray(REPLAY.encode())
        replay[random.integers(len(replay))] ^= 1 << random.integers(8)
        (folder / "replay.html").write_bytes(replay)
        if not (folder / "scenes").exists():
            scene = keep_scene(folder, 3)
            content = bytearray(scene.read_bytes())
            content[random.integers(len(content))] ^= 1 << random.integers(8)
            scene.write_bytes(content)
        app = make_app(root, TOKEN)
        client = TestClient(app, "http://127.0.0.1", headers={"authorization": f"Bearer {TOKEN}"})
        for path, query in _addresses("run"):
            app.state.closing = _AfterOneLook()
            signal.alarm(_SECONDS)
            answer = client.get(path, params=query)  # an error that nobody foresaw is raised here
            _check(answer, path, number)
        app.state.matches.program = ("false",)
        writes = {"/api/annotate": {"tags": ["<b>"], "note": "a note"}, "/api/match": {"lineup": [0, 0]}}
        for path, body in writes.items():
            signal.alarm(_SECONDS)
            answer = client.post(path, json={"run": "run", **body}, headers={"origin": "http://127.0.0.1"})
            _check(answer, path, number)
        assert [one.read_text() for one in outside.iterdir()] == [_SECRET], (number, "something outside was written")
        shutil.rmtree(root)


def _check(answer, path: str, number: int) -> None:
    signal.alarm(0)
    assert answer.status_code in (200, 400, 404), (number, path, answer.text)
    assert _SECRET not in answer.text, (number, path)


@pytest.fixture
def _alarm():
    before = signal.signal(signal.SIGALRM, _hang)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def _impatient(monkeypatch):
    monkeypatch.setattr(live, "SECONDS", 0.0)
    monkeypatch.setattr(catalogue, "LONG", 0)  # runs as small as these are glanced at, too


@pytest.mark.usefixtures("_alarm", "_impatient")
def test_twelve_corrupted_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(presets, "read_presets", list)  # without the seconds that another process takes
    _try(tmp_path, range(12))


@pytest.mark.slow
@pytest.mark.usefixtures("_alarm", "_impatient")
@pytest.mark.parametrize("first", range(0, 500, 50))
def test_five_hundred_corrupted_folders(tmp_path, first):
    _try(tmp_path, range(first, first + 50))


@pytest.mark.slow
def test_presets_are_read_without_importing_what_lies_in_the_current_folder(tmp_path, monkeypatch):
    """As in `cd DOWNLOADED; shoal ui .`."""
    shutil.copytree(_GOLDEN / "ppo_two_seeds", tmp_path / "run")
    for name in ("jax.py", "numpy.py", "shoal.py"):
        (tmp_path / name).write_text("open('ran', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    presets.read_presets.cache_clear()
    client = TestClient(make_app(".", TOKEN), "http://127.0.0.1", headers={"authorization": f"Bearer {TOKEN}"})
    found = client.get("/api/presets", params={"run": "run"})
    assert not (tmp_path / "ran").exists()
    assert found.status_code == 200, found.text
    env = json.loads((tmp_path / "run" / "config.json").read_text())["experiment"]["env"]
    assert {one["experiment"]["env"] for one in found.json()["presets"]} == {env}
