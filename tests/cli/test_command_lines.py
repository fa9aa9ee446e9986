"""Whatever is typed, the command answers: exit code 0 or 2, words of a sensible length, never a traceback.

Everything up to the point where something would be compiled is real; what compiles, waits or draws is stopped.
"""

import functools
import random
import shlex
import types

import pytest

from shoal.api import replay
from shoal.cli import inventory, main
from shoal.cli.commands import bench, doctor, evaluate, watch
from shoal.cluster.run import Cluster
from shoal.human import calls
from shoal.training.runner import Job
from shoal.ui.server import Site

from .command_lines import command_line

LONGEST = 1_500
"""Letters of a message, at most; help and tables may be longer."""


@pytest.fixture
def stopped(monkeypatch, tmp_path):
    """Commands go as far as they can without compiling anything, in an empty folder."""

    def stop(*args, **kwargs):
        raise SystemExit(0)

    for module, name in (
        (bench, "bench_env"),
        (bench, "bench_train"),
        (bench, "measure"),
        (bench.autoscaling, "measure_apart"),
        (evaluate, "evaluate"),
        (replay, "record"),
        (watch, "_serve"),
        (calls, "Game"),
        (watch.webbrowser, "open"),
    ):
        monkeypatch.setattr(module, name, stop)

    monkeypatch.setattr(Job, "drive", stop)
    monkeypatch.setattr(Cluster, "_join", lambda self, needs: types.SimpleNamespace(where="a cluster", private=False))
    monkeypatch.setattr(Cluster, "execute", stop)

    def close(site):
        site.socket.close()
        raise SystemExit(0)

    monkeypatch.setattr(Site, "run", close)
    monkeypatch.setattr(inventory, "describe_preset", functools.cache(inventory.describe_preset))
    monkeypatch.setattr(doctor, "_cache", lambda folder: {"folder": "", "programs": 0, "bytes": 0, "writable": True})
    monkeypatch.chdir(tmp_path)


def problem(words, capsys):
    """What is wrong with the answer to a command line; nothing if it is as it should be."""
    capsys.readouterr()
    try:
        code = main(words)
    except BaseException as error:  # which the command would end with, as a traceback
        return f"{type(error).__name__}: {str(error)[:300]}"
    lines = capsys.readouterr().err.splitlines(keepends=True)
    said = "".join(line for line in lines if not line.startswith("note: "))  # about an option's old name
    if code not in (0, 2) or "Traceback" in said:
        return f"exit code {code}: {said[:300]}"
    if code == 2 and not said.startswith("error: "):
        return f"not an error message: {said[:300]!r}"
    if code == 2 and (len(said) > LONGEST or len(said.strip().splitlines()) > 3):
        return f"{len(said)} letters: {said[:300]}"
    return None


def problems(count, seed, capsys, run, world):
    source = random.Random(seed)
    lines = [command_line(source) for _ in range(count)]
    known = {"RUN": str(run), "FILE": str(world)}
    found = {}
    for words in lines:
        words = [known.get(word, word) for word in words]
        if what := problem(words, capsys):
            found[shlex.join(["shoal", *words])] = what
    return found


def test_a_hundred_random_command_lines(stopped, capsys, run, world):
    assert problems(100, 0, capsys, run, world) == {}


@pytest.mark.slow
def test_two_thousand_random_command_lines(stopped, capsys, run, world):
    assert problems(2_000, 17, capsys, run, world) == {}
