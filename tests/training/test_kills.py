"""Runs of all kinds that are ended by SIGKILL and gone on with end as if nobody had disturbed them."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.core.stopping import stop_requested
from shoal.training.run_kinds import KINDS

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kills.py"
FAST = ["psro, exact"]
"""Nothing of it is compiled."""
SLOW = ["train", "train, 3 seeds", "sweep", "pbt", "evolve", "psro", "league"]
CLUSTER = ["psro, by tasks", "pbt, by tasks", "evolve, by tasks", "cluster"]


def killed(tmp_path, kinds, kills, seed=0):
    """The table of so many kills of each kind."""
    arguments = [str(tmp_path / "table.json"), "--only", ";".join(kinds), "--kills", str(kills), "--seed", str(seed)]
    done = subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((tmp_path / "table.json").read_text())


def test_a_few_kills(tmp_path):
    table = killed(tmp_path, FAST, kills=6)
    assert table["kills"] == 6
    assert table["same"] == table["runs"] >= 2
    assert table["kinds"]["psro, exact"]["while_writing"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*SLOW, *CLUSTER])
def test_kills_of_every_kind(tmp_path, kind):
    table = killed(tmp_path, [kind], kills=4)
    assert table["same"] == table["runs"] >= 1
    assert table["lost"] == 0


def test_all_kinds_are_tried():
    """A kind of run that is new is to be killed, too."""
    commands = {name.split(",")[0] for name in (*FAST, *SLOW)}
    assert {kind.command for kind in KINDS.values()} <= commands


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="needs SIGHUP")
def test_a_closed_terminal_asks_to_stop_unless_nohup_was_asked_for():
    before = signal.getsignal(signal.SIGHUP)
    try:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with stop_requested() as stopped:
            signal.raise_signal(signal.SIGHUP)
            assert stopped.is_set()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with stop_requested() as stopped:
            signal.raise_signal(signal.SIGHUP)
            assert not stopped.is_set()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_is_kept_in_the_repository():
    """At least a hundred kills over all kinds, half of them about while files are written."""
    table = json.loads((SCRIPT.parent / "results" / "kills.json").read_text())
    assert set(table["kinds"]) == {*FAST, *SLOW, *CLUSTER}
    assert table["kills"] >= 100
    assert sum(found["while_writing"] for found in table["kinds"].values()) >= 30
    assert sum(found["before_the_first_checkpoint"] for found in table["kinds"].values()) >= 5
    assert (table["same"], table["lost"]) == (table["runs"], 0)
