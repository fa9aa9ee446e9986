"""The commands and the code of the page about runs do what it says, in its order."""

import contextlib
import io
import json
import re

import pytest

from shoal.cli import main
from shoal.cli.app import find_command
from tests.docs.guides import Guide

GUIDE = Guide("runs.md")
QUICK = ["--algo", "a2c", "--algo.network.hidden", "4"]
"""Of trainings, to compile quickly."""


@pytest.fixture
def shoal(monkeypatch, tmp_path):
    """Calls a command as the page has it: in one folder, and with `> FILE`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # others test the pictures, and they take long
    monkeypatch.setattr("shoal.cli.run_results.report_pictures", lambda *args: {})

    def call(words):
        target = None
        if ">" in words:
            words, target = words[: words.index(">")], words[-1]
        quick = QUICK if words[:2] == ["train", "matrix/stag_hunt"] else []
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            assert main([*words, *quick]) == 0, words
        if target:
            (tmp_path / target).write_text(out.getvalue())
        return out.getvalue()

    return call


def test_its_commands_are_known():
    assert len(GUIDE.commands) == 18
    for words in GUIDE.commands:
        command, rest = find_command(words)
        assert callable(command), words
        assert rest == words[-len(rest) :] or not rest


@pytest.mark.slow  # it trains five times
def test_the_page_runs(shoal, tmp_path):
    said = {" ".join(words): shoal(words) for words in GUIDE.commands}
    listed = said["runs"].splitlines()
    assert listed[0].split() == GUIDE.text_block("runs/second")[0].split()
    assert [line.split()[0] for line in listed[1:3]] == ["runs/second", "runs/first"]
    assert listed[3] == "2 runs: 2 finished"
    assert "runs/second" not in said["runs first"]
    assert said["runs runs-of-*"].startswith("no such run in runs/ or sweeps/")
    (one, other) = json.loads(said["runs --env matrix/* --status finished --json"])["runs"]
    assert {one["name"], other["name"]} == {"first", "second"}
    assert "#paper  as in figure 2" in said["runs --tag paper"]
    assert not (tmp_path / "runs" / "second").exists()
    shown = GUIDE.text_block("known to reach")
    assert said["show mappo/simple_spread"].splitlines()[: len(shown)] == shown
    assert said["diff runs/first runs/third"].splitlines() == GUIDE.text_block("setting differs")
    assert json.loads(said["diff ippo/simple_spread mappo/simple_spread --json"])["differ"]
    config = json.loads((tmp_path / "runs" / "third" / "config.json").read_text())
    assert config["experiment"]["seed"] == 3
    assert set(config["provenance"]) >= {"command", "date", "versions", "device"}
    names = {}
    (block,) = GUIDE.blocks
    printed = GUIDE.run(names, block)
    assert len(printed.splitlines()) == 4
    assert printed.splitlines()[-1] == "('return', 'return/player_0') 1 20"
    assert names["run"].experiment.num_envs == 32


def test_every_status_is_explained():
    from shoal.training.catalogue import STATUSES

    rows = re.findall(r"^\| `(\w+)` \|", GUIDE.text, re.MULTILINE)
    assert tuple(rows) == STATUSES
