"""Run folders as they were at commit 0fd729c still open, evaluate as they did, and go on to the same end.

Each was stopped before its end: `runs/expected.json` says after which update, generation or iteration, what the command
line showed of it there (`shown`), and what an uninterrupted run ended with (`end`), as `record.summarise` has it; for
those whose episodes are restarted (on the host and on a cluster) what the resumed run ended with then.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from shoal.cli import main
from tests.golden import record

RUNS = Path(__file__).with_name("runs")
EXPECTED = json.loads((RUNS / "expected.json").read_text())
PLAYED = ("training", "pbt", "evolution", "cluster")
QUICK = ("ppo", "psro_exact")
NEEDS = {"host": ["--import", "gymnasium:CartPole-v1"]}


@pytest.fixture
def shoal(capsys):
    """Calls the command in this process; gives what it printed as JSON."""

    def call(*args):
        capsys.readouterr()
        code = main([str(arg) for arg in (*args, "--json")])
        said = capsys.readouterr()
        assert code == 0, said.err
        return json.loads(said.out)

    return call


@pytest.fixture
def copied(tmp_path):
    return lambda name: shutil.copytree(RUNS / name, tmp_path / name)


def runs(*kinds):
    """The runs of these kinds (by default all), but for a few quick ones marked slow."""
    names = [name for name, entry in EXPECTED.items() if not kinds or entry["kind"] in kinds]
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]


def look(shoal, folder, kind, more=()):
    """What the command line shows of a run, without what depends on time and place."""
    if kind in PLAYED:
        return shoal("eval", folder, "--episodes", record.EPISODES, "--seed", 1, *more)["mean_return"]
    shown = shoal("population", folder, *more)
    return {key: shown[key] for key in ("iteration", "value", "mixtures", "payoffs", "nash_conv", "sizes")}


def same(name, recorded, found):
    where, _ = record.read()
    wrong = record.differences(name, recorded, found, record.tolerance(where, recorded, found))
    assert not wrong, "\n".join(wrong)


def newest(folder):
    return max((folder / "checkpoints").glob("step-*.npz"))


def values(folder):
    """The policies in a run's newest checkpoint: it can be read without Shoal."""
    with np.load(newest(folder)) as stored:
        policies = {name: stored[name] for name in stored.files if "/params/" in name or name.startswith("banks/")}
    return record.summarise({}, policies)


def test_every_folder_is_expected_and_nothing_else():
    assert sorted(EXPECTED) == sorted(path.name for path in RUNS.iterdir() if path.is_dir())
    assert sum(path.stat().st_size for path in RUNS.rglob("*") if path.is_file()) < 1_500_000
    for name, entry in EXPECTED.items():
        assert newest(RUNS / name).name == f"step-{entry['at']:010d}.npz"


@pytest.mark.parametrize("name", runs(*PLAYED, "psro", "cluster_psro"))
def test_shown_as_before(shoal, copied, name):
    entry = EXPECTED[name]
    shown = look(shoal, copied(name), entry["kind"], NEEDS.get(name, ()))
    recorded = record.Summary(**entry["end"] | {"returns": entry["shown"]})
    same(name, recorded, record.Summary(**entry["end"] | {"returns": record.rounded(shown)}))


@pytest.mark.parametrize("name", runs("training", "pbt", "evolution", "psro", "sweep"))
def test_goes_on_to_the_same_end(shoal, copied, name):
    entry, folder = EXPECTED[name], copied(name)
    devices = () if name == "psro_exact" else ("--devices", 1)  # which needs none
    shoal("resume", folder, *devices, *NEEDS.get(name, ()))
    same(name, record.Summary(**entry["end"]), values(folder))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cluster", "cluster_psro"])
def test_goes_on_with_threads_for_workers(copied, name):
    folder = copied(name)
    record.resume_with_threads(folder)
    same(name, record.Summary(**EXPECTED[name]["end"]), values(folder))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cluster", "cluster_psro"])
def test_goes_on_with_ray(shoal, copied, name):
    pytest.importorskip("ray")
    folder = copied(name)
    shoal("resume", folder)
    same(name, record.Summary(**EXPECTED[name]["end"]), values(folder))
