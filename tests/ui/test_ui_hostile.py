"""Run folders made to do harm, through every endpoint: no traceback, no hang, nothing outside is read."""

import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from shoal.ui.app import GROUPS, make_app
from tests.hostile import corpus
from tests.ui.conftest import TOKEN
from tests.ui.folders import REPLAY, keep_scene

_GOLDEN = Path(__file__).parents[1] / "golden" / "runs"
_KINDS = ("ppo_two_seeds", "psro", "pbt", "evolution", "sweep", "cluster", "cluster_psro")
_SECRET = "a secret that lies outside"
_SECONDS = 20
_QUIET = {"/api/annotate", "/api/events", "/api/presets", "/api/command", "/api/start", "/api/stop"}
"""Addresses that write, that never end, or that start a process."""
_NO_RUN = {"/api/environments", "/api/targets", "/api/form", "/api/started"}
"""Addresses that read no run."""


def _addresses(name: str) -> list[tuple[str, dict[str, object]]]:
    """Every address that reads a run, with what it needs."""
    more: dict[str, list[dict[str, object]]] = {
        "/api/series": [{"metric": "return"}, {"metric": "no such metric"}],
        "/api/file": [{"name": "config.json"}, {"name": "metrics.jsonl"}, {"name": "checkpoints"}],
        "/api/compare": [{}, {"by": "run", "metric": "return/agent"}],
        "/api/compare/file": [{"name": "final.csv"}, {"name": "final.tex"}],
        "/api/tuning": [{}, {"measure": "return/agent"}],
        "/scene": [{"update": 3}],
        "/api/scene": [{"update": 3}],
        "/page": [{}, {"name": "population.html"}],
    }
    paths = [route.path for group in GROUPS for route in group.ROUTES if route.path not in _QUIET | _NO_RUN]
    return [(path, {"run": name, **query}) for path in paths for query in more.get(path, [{}])]


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
        client = TestClient(make_app(root, TOKEN), "http://127.0.0.1", headers={"authorization": f"Bearer {TOKEN}"})
        for path, query in _addresses("run"):
            signal.alarm(_SECONDS)
            answer = client.get(path, params=query)  # an error that nobody foresaw is raised here
            signal.alarm(0)
            assert answer.status_code in (200, 400, 404), (number, path, answer.text)
            assert _SECRET not in answer.text, (number, path)
        shutil.rmtree(root)


@pytest.fixture
def _alarm():
    before = signal.signal(signal.SIGALRM, _hang)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("_alarm")
def test_twelve_corrupted_folders(tmp_path):
    _try(tmp_path, range(12))


@pytest.mark.slow
@pytest.mark.usefixtures("_alarm")
@pytest.mark.parametrize("first", range(0, 500, 50))
def test_five_hundred_corrupted_folders(tmp_path, first):
    _try(tmp_path, range(first, first + 50))
