"""The command itself: what it prints, writes and refuses."""

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shoal.cli import main
from shoal.training.catalogue import lines
from shoal.training.comparison import compare as compare_runs
from shoal.ui.app import STATIC
from shoal.ui.endpoints import compare
from shoal.ui.export import Chosen, write_export
from tests.ui.folders import REPLAY, keep_scene

_VIZ = Path(__file__).parents[2] / "src" / "shoal" / "viz"


def _error(capsys, *words: str) -> str:
    assert main(["ui", *words]) == 2
    return " ".join(capsys.readouterr().err.split())


def test_a_page_is_exported(root, tmp_path, capsys):
    page = tmp_path / "report.html"
    runs = [str(root / name) for name in ("spread_ippo_1", "spread_mappo_1")]
    assert main(["ui", "--export", str(page), *runs, "--by", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"page": str(page)}
    text = page.read_text()
    assert str(root) not in text, "a page for others does not say where the runs lie"
    assert not re.search(r"(src|href)=\"(?!data:)", text.split("<script")[0])
    assert "@import" not in text


def _report(page: Path) -> dict:
    return json.loads(page.read_text().split('id="data">')[1].split("</script>")[0])


def test_curves_replays_and_kept_episodes_are_chosen(root, tmp_path, capsys):
    runs = [root / name for name in ("spread_ippo_1", "spread_mappo_1")]
    for run in runs:
        (run / "replay.html").write_text(REPLAY)
        for update in (0, 20):
            keep_scene(run, update)
    curves = ("--curve", "entropy/agent", "--curve", "return/agent")
    asked = ("--export", str(tmp_path / "report.html"), *map(str, runs), *curves, "--replay", str(runs[1]))
    try:
        assert main(["ui", *asked]) == 0
        without = _report(tmp_path / "report.html")
        assert main(["ui", *asked, "--scenes"]) == 0
    finally:
        for run in runs:
            (run / "replay.html").unlink()
            shutil.rmtree(run / "scenes")
    found = _report(tmp_path / "report.html")
    assert found["metrics"] == ["entropy/agent", "return/agent"]
    assert [list(run["curves"]) for run in found["runs"]] == [["entropy/agent", "return/agent"]] * 2
    assert [run["replay"] is not None for run in found["runs"]] == [False, True]
    assert [[scene["update"] for scene in run["scenes"]] for run in found["runs"]] == [[], [0, 20]]
    assert [run["scenes"] for run in without["runs"]] == [[], []]


def test_groups_have_their_names_and_are_judged_where_asked(root, tmp_path):
    """As by `shoal compare --label --at`."""
    runs = [root / name for name in ("spread_ippo_1", "spread_mappo_1")]
    by = ["--by", "run", "--at", "64k", "--label", "spread_ippo_1=Alone"]
    assert main(["ui", *map(str, runs), "--export", str(tmp_path / "report.html"), *by]) == 0
    found = _report(tmp_path / "report.html")["comparison"]
    assert found["groups"] == ["Alone", "spread_mappo_1"]
    assert found["judged"] == compare_runs(runs, by="run", at=64_000).judged


def test_a_page_is_made_of_every_line_of_a_long_run(root, tmp_path, monkeypatch):
    """To the digit what `shoal.compare` finds; the live page is content with points of it, and says so."""
    runs = [root / name for name in ("spread_ippo_1", "spread_mappo_1")]
    monkeypatch.setattr(compare, "WHOLE_BYTES", 0)
    monkeypatch.setattr(compare, "SAMPLED_POINTS", 7)
    monkeypatch.setattr(lines, "CHUNK", 1 << 12)  # many chunks
    write_export(tmp_path / "report.html", runs, Chosen(at=64_000))
    found = _report(tmp_path / "report.html")
    known = compare_runs(runs, at=64_000)
    [panel] = found["comparison"]["panels"]
    assert {group: one["iqm"] for group, one in panel["final"].items()} == {
        group: one.iqm for group, one in known.final.items()
    }
    for group, curve in known.curves.items():
        assert panel["curves"][group]["env_steps"] == curve.env_steps.tolist()
        assert panel["curves"][group]["iqm"] == pytest.approx(curve.iqm, abs=1e-5)
    assert not [note for note in found["notes"] if "is long" in note]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["a", "b"], "shows one folder, got 2"),
        (["--port", "99999"], "between 0 and 65535"),
        (["--export", "x.html"], "--export needs runs"),
        (["--export", "x.html", "nowhere"], "no such folder"),
        (["--export", "x.html", "BROKEN"], "cannot be read"),
        (["--export", "x.html", "GOOD", "--by", "colour"], "colour"),
        (["--export", "x.html", "GOOD", "--metric", "retrun"], "return"),
        (["--export", "FOLDER", "GOOD"], "name a file"),
        (["--export", "x.html", "GOOD", "--curve", "entropy/agnet"], "entropy/agent"),
        (["--export", "x.html", "GOOD", "--replay", "BROKEN"], "is not in the page"),
        (["--curve", "return"], "--curve is for the page of --export"),
        (["--label", "ppo=IPPO"], "--label is for the page of --export"),
        (["--export", "x.html", "GOOD", "--label", "ppo"], "--label must be GROUP=TEXT"),
        (["--export", "x.html", "GOOD", "--label", "nobody=IPPO"], "nobody"),
        (["--export", "x.html", "GOOD", "--at", "soon"], "--at must be 'end' or a number of env steps"),
        (["--scenes"], "--scenes is for the page of --export"),
        (["FILE"], "is not a folder"),
    ],
)
def test_mistakes_are_said_in_words(root, tmp_path, capsys, monkeypatch, words, problem):
    monkeypatch.chdir(tmp_path)
    places = {"BROKEN": root / "broken", "GOOD": root / "spread_ippo_1", "FOLDER": tmp_path}
    places["FILE"] = root / "spread_ippo_1" / "config.json"
    assert problem in _error(capsys, *(str(places.get(word, word)) for word in words))
    assert not (tmp_path / "x.html").exists()


def test_what_is_missing_is_named(capsys, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else real(name))
    assert "needs uvicorn: pip install 'shoal-rl[ui]'" in _error(capsys)


@pytest.mark.slow
def test_it_serves_until_it_is_interrupted(root):
    source = str(Path(__file__).parents[2] / "src")
    command = [sys.executable, "-m", "shoal", "ui", str(root), "--json"]
    environment = {**os.environ, "PYTHONPATH": source}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as server:
        assert server.stdout is not None
        said = "".join(server.stdout.readline() for _ in range(4))
        address = json.loads(said)["address"]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", address)
        time.sleep(1)
        server.send_signal(signal.SIGINT)
        assert server.wait(20) == 0
        assert "Traceback" not in server.stderr.read()


def test_the_colours_are_those_of_all_pages():
    """The palette of the style sheet is the one of the replay page, in both themes."""
    style = (STATIC / "style" / "shoal.css").read_text()
    ours = dict(re.findall(r"--(c\d): light-dark\((#\w+, #\w+)\)", style))
    page = (_VIZ / "replay.html").read_text()
    light, dark = (dict(re.findall(r"--(c\d): (#\w+)", part)) for part in page.split("prefers-color-scheme: dark", 1))
    assert ours == {name: f"{light[name]}, {dark[name]}" for name in light}
    assert len(ours) == 8
