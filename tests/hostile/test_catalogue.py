"""The catalogue and corrupted run folders: no traceback, no hang, nothing read or changed outside of them.

`make test` looks at 60 of them, `make test-all` at 500 corrupted at random and at all crafted ones.
"""

import contextlib
import io
import json
import os
import shutil

import numpy as np
import pytest

from shoal.cli import main
from shoal.core.errors import ShoalError
from shoal.training.catalogue import STATUSES, Catalogue
from tests.hostile import judge
from tests.hostile.templates import KINDS
from tests.hostile.test_hostile import BATCH, CRAFTED, FEW_CRAFTED, FEW_RANDOM, RANDOM, at_random


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "out"))
    return tmp_path


def use(root):
    """Everything that can be asked of a catalogue; the only errors are those made for users."""
    runs, said = Catalogue(root), []
    for entry in runs.entries():
        assert entry.status in STATUSES
        assert entry.problem is None or "\n" not in entry.problem
        json.dumps(entry.plain(), allow_nan=False)
        for ask in (
            lambda name: runs.series(name, "return", points=50),
            lambda name: [runs.series(name, metric, points=10) for metric in runs.metric_names(name)[:20]],
            lambda name: json.dumps(runs.lines_after(name, 0), allow_nan=False),
            lambda name: json.dumps(runs.config(name)),
            lambda name: runs.annotate(name, tags=["seen"], note="x"),
            runs.entry,
        ):
            try:
                ask(entry.name)
            except ShoalError as error:
                said.append(str(error))
    for args in (["runs", "--root", str(root)], ["runs", "--root", str(root), "--json"]):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert main(args) == 0
        assert all(letter.isprintable() or letter == "\n" for letter in out.getvalue())
    return said


def wrongs(templates, place, cases):
    """What went wrong with each case, all of them below one root, beside a sound run that is read as ever."""
    wrong = []
    for number, (kind, name, corrupt) in enumerate(cases):
        case = place / f"case-{number}"
        (case / "outside").mkdir(parents=True)
        (case / "outside" / "precious.txt").write_text("precious\n")
        folder = shutil.copytree(templates(kind), case / "root" / "run", symlinks=True)
        what = corrupt(folder, case / "outside") or name
        before = judge.tree(case / "outside")
        with judge.guarded(case / "root", case / "outside", place / "out") as seeing, np.errstate(all="ignore"):
            try:
                use(case / "root")
            except judge.HangError:
                wrong.append(f"{kind}, {what}: it hangs")
            except Exception as error:
                wrong.append(f"{kind}, {what}: {type(error).__name__}: {str(error)[:300]}")
            wrong += [f"{kind}, {what}: {seen}" for seen in seeing.seen]
        if judge.tree(case / "outside") != before:
            wrong.append(f"{kind}, {what}: it changed something outside")
        shutil.rmtree(case)
    return wrong


def test_sound_folders_of_every_kind(templates, place):
    for kind in KINDS:
        shutil.copytree(templates(kind), place / "root" / kind)
    assert [entry.status for entry in Catalogue(place / "root").entries()] == ["stopped"] * len(KINDS)
    assert {text for text in use(place / "root") if "unknown metric 'return'" not in text} == set()


def test_sixty_corrupted_folders(templates, place):
    some = [CRAFTED[i] for i in np.linspace(0, len(CRAFTED) - 1, FEW_CRAFTED).astype(int)]
    cases = [*some, *map(at_random, range(FEW_RANDOM))]
    assert len(cases) == 60
    wrong = wrongs(templates, place, cases)
    assert not wrong, "\n".join(wrong)


def test_files_of_metrics_that_aim_at_the_catalogue(templates, place):
    """Lines that are endless, deep, wide, of every type, or none; they are refused or shown, in little memory."""
    line = b'{"update": 1, "env_steps": 32, "return": 1.0, "seconds": 1.0}\n'
    contents = [
        b"",
        b"\n\n\n",
        b"\x00" * 100_000,
        b"[" * 200_000 + b"\n",
        line + b"{" + b'"a": [' * 5_000 + b"\n",
        b"x" * (9 << 20),
        line * 5 + line[:30],
        b'{"return": "\x1b[2J", "update": -5, "env_steps": 1e999, "seconds": "x"}\n',
        b'{"return": ' + b"9" * 5000 + b', "update": ' + b"9" * 5000 + b"}\n",
        b'{"return": [[1.0], {"a": 2}], "update": true, "env_steps": null}\n' * 3,
        b'{"return": [' + b"1," * 50_000 + b'1], "update": 1, "env_steps": 1}\n' * 3,
        b"{" + b",".join(b'"m%d": 1' % i for i in range(6000)) + b"}\n",
        b'{"' + b"n" * 5000 + b'": 1, "update": 1, "env_steps": 1}\n',
        b'{"\\u001b[2J": 1, "return": NaN, "update": 1, "env_steps": 1, "seconds": -Infinity}\n' * 2000,
        line.replace(b"1.0}", b"1.0}, {") * 3,
        b"\r".join([line] * 3),
        line * 60_000,
    ]

    def write(content):
        def corrupt(folder, outside):
            (folder / "metrics.jsonl").write_bytes(content)
            return f"{content[:30]!r}"

        return corrupt

    wrong = wrongs(templates, place, [("train", "", write(content)) for content in contents])
    assert not wrong, "\n".join(wrong)


def test_pipes_and_folders_in_place_of_files(templates, place):
    def put(make, name):
        def corrupt(folder, outside):
            (folder / name).unlink(missing_ok=True)
            make(folder / name)
            return name

        return corrupt

    names = ("config.json", "metrics.jsonl", "notes.json", "outcome.json")
    cases = [("train", "", put(make, name)) for name in names for make in (os.mkfifo, os.mkdir)]
    cases += [("train", "", put(lambda path: path.symlink_to("/dev/zero"), name)) for name in names]
    wrong = wrongs(templates, place, cases)
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, RANDOM, 5 * BATCH))
def test_five_hundred_corrupted_at_random(templates, place, first):
    wrong = wrongs(templates, place, list(map(at_random, range(first, first + 5 * BATCH))))
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_all_crafted_folders(templates, place):
    wrong = wrongs(templates, place, CRAFTED)
    assert not wrong, "\n".join(wrong)
