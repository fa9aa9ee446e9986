"""Run folders from anybody: whatever is in one, commands neither fail with a traceback nor hang, nor do harm.

`make test` judges 60 of these folders, `make test-all` 500 corrupted at random and all crafted ones.
"""

import itertools
import os
import shutil

import numpy as np
import pytest

from tests.hostile import corpus, judge
from tests.hostile.templates import KINDS

RANDOM = 500
CRAFTED = list(corpus.crafted())
FEW_RANDOM, FEW_CRAFTED = 20, 40
BATCH = 25


@pytest.fixture(autouse=True)
def _stubbed(monkeypatch, tmp_path):
    judge.stub(monkeypatch)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


class Bench:
    """Fresh copies of folders, one after the other."""

    def __init__(self, templates, root):
        self.templates, self.root, self.count = templates, root, itertools.count()

    def laid_out(self, kind):
        place = self.root / f"case-{next(self.count)}"
        (place / "outside").mkdir(parents=True)
        (place / "out").mkdir()
        (place / "outside" / "precious.txt").write_text("precious\n")
        return place, shutil.copytree(self.templates(kind), place / "run", symlinks=True)

    def tried(self, kind, name, corrupt, number, one=False):
        """What went wrong with `resume` and with one other command, each in a fresh copy; or with `one` of the two."""
        wrong = []
        calls = len(judge.commands(kind, self.root, self.root))
        both = (0, 1 + number % (calls - 1))
        for which in (both[number % 2],) if one else both:
            place, folder = self.laid_out(kind)
            what = corrupt(folder, place / "outside") or name
            args = judge.commands(kind, folder, place / "out")[which]
            found, _ = judge.judge(args, folder, place / "outside", place / "out")
            if found:
                wrong.append(f"{kind}, {what}: {' '.join(map(str, args[:2]))}: {found}")
            shutil.rmtree(place)
        return wrong


@pytest.fixture
def bench(templates, tmp_path):
    return Bench(templates, tmp_path)


def at_random(number):
    kind = list(KINDS)[number % len(KINDS)]

    def corrupt(folder, outside):
        return f"random {number} {corpus.at_random(folder, outside, np.random.default_rng(number))}"

    return kind, str(number), corrupt


def assert_read(bench, kind, which):
    place, folder = bench.laid_out(kind)
    args = judge.commands(kind, folder, place / "out")[which]
    wrong, said = judge.judge(args, folder, place / "outside", place / "out")
    assert not wrong, (args, wrong, said)
    if args[0] == "resume":
        assert judge.ACCEPTED in said, said


@pytest.mark.parametrize("kind", KINDS)
def test_a_sound_folder_is_read(bench, kind):
    """The control: what is stopped is stopped after the folder was read, not before."""
    assert_read(bench, kind, 0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_sound_folder_is_read_by_every_command(bench, kind):
    for which in range(len(judge.commands(kind, bench.root, bench.root))):
        assert_read(bench, kind, which)


def test_sixty_hostile_folders(bench):
    """Crafted ones evenly over all groups, and some at random; the same ones every time."""
    some = [CRAFTED[i] for i in np.linspace(0, len(CRAFTED) - 1, FEW_CRAFTED).astype(int)]
    cases = [*some, *map(at_random, range(FEW_RANDOM))]
    assert len(cases) == 60
    wrong = [text for number, case in enumerate(cases) for text in bench.tried(*case, number, one=True)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, RANDOM, BATCH))
def test_folders_corrupted_at_random(bench, first):
    wrong = [text for number in range(first, first + BATCH) for text in bench.tried(*at_random(number), number)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, len(CRAFTED), BATCH))
def test_crafted_folders(bench, first):
    cases = list(enumerate(CRAFTED))[first : first + BATCH]
    wrong = [text for number, case in cases for text in bench.tried(*case, number)]
    assert not wrong, "\n".join(wrong)


def test_there_are_enough():
    assert len(CRAFTED) >= 150
    assert len({(kind, name) for kind, name, _ in CRAFTED}) == len(CRAFTED)
    assert os.name == "posix"
