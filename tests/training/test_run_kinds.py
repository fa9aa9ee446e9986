"""Run folders of all kinds: made, told apart, opened; and what is said of folders that are something else."""

import dataclasses
import errno
import functools
import json
import os
import shutil
from pathlib import Path

import jax
import pytest

from shoal.core import files
from shoal.core.errors import OptionError, RunError
from shoal.envs.matrix.classics import MatchingPennies
from shoal.populations.evolution.program import Evolution
from shoal.populations.pbt.plan import PBT
from shoal.populations.population import HistoryLog, PopulationConfig, open_population
from shoal.populations.psro import PSRO
from shoal.presets import resolve
from shoal.training import checkpoint
from shoal.training.experiment import Experiment
from shoal.training.folder_lock import lock_folder
from shoal.training.run import create, default_path, open_run
from shoal.training.run_kinds import KINDS, check_new, check_there, kind_of, open_entry
from shoal.training.runner import resume, run
from shoal.training.serialise import from_plain, to_plain
from shoal.training.sweep import Range, Sweep

EXPERIMENT = Experiment("matrix/matching_pennies", total_env_steps=1_000_000)
EVOLUTION = Evolution(EXPERIMENT, population=8)
SWEPT = Sweep(EXPERIMENT, {"gamma": Range(0.9, 0.99, 3), "learning_rate": (1e-3, 1e-2)}, random=4, measure="return")
TUNED = PBT(EXPERIMENT, {"gamma": Range(0.9, 0.99)}, members=4, interval=2)
CONFIGS = {
    "training": EXPERIMENT,
    "evolution": EVOLUTION,
    "pbt": TUNED,
    "psro": PopulationConfig(EXPERIMENT),
    "sweep": SWEPT,
}
OPEN = {kind: functools.partial(open_run, kind=kind) for kind in KINDS}


def made(path, kind):
    """A folder of each kind, as it is before anything is trained."""
    create(path, CONFIGS[kind])
    return path


def rewrite(path, change):
    config = path / "config.json"
    config.write_text(json.dumps(change(json.loads(config.read_text()))))


def without(*names):
    return lambda data: {name: entry for name, entry in data.items() if name not in names}


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_made_is_opened(tmp_path, kind):
    path = made(tmp_path / "run", kind)
    assert OPEN[kind](path).config == open_run(path, None).config == CONFIGS[kind].at_home()
    assert kind_of(path) == kind
    assert json.loads((path / "config.json").read_text())["kind"] == kind
    assert (path / "checkpoints").is_dir()


@pytest.mark.parametrize("kind", KINDS)
def test_its_world_is_built_once(monkeypatch, kind):
    """However many programs, oracles and matches it has: they all play in the one that the experiment holds."""
    built, build = [], MatchingPennies.__init__
    monkeypatch.setattr(
        MatchingPennies, "__init__", lambda *args, **kwargs: (built.append(1), build(*args, **kwargs))[1]
    )
    one_side = {"evolution": {"evolve": ("player_0",)}, "pbt": {"measure": "return/player_0"}}.get(kind, {})
    config = from_plain(type(CONFIGS[kind]), to_plain(dataclasses.replace(CONFIGS[kind], **one_side)), kind)
    program = config.program(1)
    carry = program.begin() if kind == "psro" else jax.eval_shape(program.begin)
    assert carry
    assert config.played.setup.env.groups
    assert len(built) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_folders_that_do_not_say_their_kind(tmp_path, kind):
    path = made(tmp_path / "run", kind)
    rewrite(path, without("kind"))
    assert kind_of(path) == kind
    OPEN[kind](path)


@pytest.mark.parametrize("kind", ["evolution", "pbt"])
def test_policies_are_played_like_those_of_a_training(tmp_path, kind):
    assert open_run(made(tmp_path / "run", kind)).experiment.env == EXPERIMENT.env


@pytest.mark.parametrize(
    ("kind", "wanted", "words"),
    [
        ("training", "psro", ("is a run of `shoal train`, not a population", "`shoal eval {0}` shows it")),
        ("training", "evolution", ("is a run of `shoal train`, not of an evolution",)),
        ("evolution", "pbt", ("is a run of `shoal evolve`, not of population-based training",)),
        ("pbt", "evolution", ("is a run of `shoal pbt`, not of an evolution", "`shoal eval {0}` shows it")),
        ("psro", "training", ("is a run of `shoal psro`, not of training", "`shoal population {0}` shows it")),
        ("psro", "pbt", ("is a run of `shoal psro`, not of",)),
        ("sweep", "training", ("is a run of `shoal sweep`, not of training: `shoal resume {0}` continues",)),
        ("training", "sweep", ("is a run of `shoal train`, not a sweep",)),
    ],
)
def test_a_run_of_another_kind_says_what_opens_it(tmp_path, kind, wanted, words):
    path = made(tmp_path / "run", kind)
    with pytest.raises(RunError) as caught:
        OPEN[wanted](path)
    for part in (*words, "`shoal resume {0}` continues it"):
        assert part.format(path) in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_run_folder(tmp_path, kind):
    with pytest.raises(RunError, match="nothing is not a run folder: no such folder"):
        OPEN[kind](tmp_path / "nothing")
    with pytest.raises(RunError, match=r"is not a run folder: it has no config\.json"):
        OPEN[kind](tmp_path)
    assert kind_of(tmp_path / "nothing") is None
    assert kind_of(tmp_path) is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["", '{"format": 1, "ki', "[1, 2]", '"psro"', "{}", b"\xff\xfe"])
def test_a_config_that_is_cut_short(tmp_path, kind, text):
    path = made(tmp_path / "run", kind)
    (path / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(RunError, match=r"config\.json is damaged or cut short"):
        OPEN[kind](path)
    assert kind_of(path) is None


@pytest.mark.parametrize("kind", KINDS)
def test_an_entry_that_is_missing_or_no_mapping(tmp_path, kind):
    path, entry = made(tmp_path / "run", kind), KINDS[kind].entries[-1]
    rewrite(path, without(entry))
    with pytest.raises(RunError, match=f"cut short: it has no entry '{entry}'"):
        OPEN[kind](path)
    for value in (None, 3, "text", [1]):
        rewrite(path, lambda data, value=value: data | {entry: value})
        with pytest.raises(RunError, match=f"its entry '{entry}' must be a mapping, got "):
            OPEN[kind](path)
    rewrite(path, lambda data: data | {entry: {"populaton": 3}})
    with pytest.raises(RunError, match=r"config\.json.*'populaton'"):
        OPEN[kind](path)


@pytest.mark.parametrize("kind", KINDS)
def test_versions_and_kinds_to_come(tmp_path, kind):
    path = made(tmp_path / "run", kind)
    rewrite(path, lambda data: data | {"kind": "evolutoin"})
    with pytest.raises(RunError, match=r"unknown kind of run 'evolutoin'\. Did you mean 'evolution'"):
        OPEN[kind](path)
    rewrite(path, lambda data: data | {"format": 999, "shoal": "99.0"})
    with pytest.raises(RunError, match=r"made by a newer version of shoal \(99\.0, format 999"):
        OPEN[kind](path)


def test_an_entry_that_misleads_its_reader(tmp_path):
    """Whatever goes wrong while settings are read is put down to the file that holds them."""

    def needy(data):
        return data["nothing"]

    def refuses(data):
        raise OptionError("a: b must be c")

    path = made(tmp_path / "run", "psro")
    with pytest.raises(RunError, match=r"damaged: its entry 'psro' cannot be read \(KeyError\('nothing'\)\)"):
        open_entry(path, "psro", needy)
    with pytest.raises(RunError, match=r"config\.json: a: b must be c"):
        open_entry(path, "psro", refuses)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_overwritten(tmp_path, kind):
    path = made(tmp_path / "run", kind)
    before = (path / "config.json").read_text()
    with pytest.raises(RunError, match=f"already exists. Continue it with `shoal resume {path}`"):
        made(path, "training")
    assert (path / "config.json").read_text() == before
    (tmp_path / "file").write_text("precious")
    with pytest.raises(RunError, match=r"cannot create the run folder .* Choose another --run-dir"):
        made(tmp_path / "file" / "run", kind)


def test_names_of_new_folders(tmp_path):
    assert default_path(EXPERIMENT, str(tmp_path)).name.startswith("matrix-matching_pennies_ppo_")
    assert default_path(EXPERIMENT, str(tmp_path), by="ga").name.startswith("matrix-matching_pennies_ga_")


class Killed(BaseException):
    """In place of SIGKILL: from then on nothing reaches the disk any more."""


def killed_at(patch, number):
    """Lets so many changes of the disk happen, and none after them; returns how many have been asked for."""
    asked = []

    def counted(change):
        def called(*args, **kwargs):
            asked.append(change)
            if len(asked) > number:
                raise Killed
            return change(*args, **kwargs)

        return called

    for name in ("mkdir", "replace", "rename", "fsync", "unlink", "rmdir"):
        patch.setattr(os, name, counted(getattr(os, name)))
    return asked


@pytest.mark.parametrize("there", ["nothing", "empty"])
@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_any_moment_of_the_start(tmp_path, monkeypatch, kind, there):
    """A folder is a run as a whole or not at all, and what is left behind does not stand in the way."""
    finished, number = False, 0
    while not finished:
        path = tmp_path / str(number) / "run"
        if there == "empty":
            path.mkdir(parents=True)
        with monkeypatch.context() as patch:
            asked = killed_at(patch, number)
            try:
                made(path, kind)
                finished = True
            except Killed:
                assert len(asked) > number
        if kind_of(path) is None:
            assert there == "empty" or not path.exists()
            check_new(path)
            made(path, kind)
        assert kind_of(path) == kind
        OPEN[kind](path)
        assert sorted(entry.name for entry in path.iterdir()) == ["checkpoints", "config.json"]
        number += 1
    assert number > 4


def test_what_killed_starts_have_left_is_removed_later(tmp_path):
    old, new = (tmp_path / f".folder-{name}{files.LEFTOVER}" for name in ("old", "new"))
    for folder in (old, new):
        folder.mkdir()
        (folder / "config.json").touch()
    os.utime(old, (0, 0))
    made(tmp_path / "run", "training")
    assert not old.exists()
    assert new.exists()  # somebody may be making it right now


def test_a_start_that_was_killed_by_an_earlier_version(tmp_path):
    path = tmp_path / "run"
    (path / "checkpoints").mkdir(parents=True)
    (path / ".config.json.123.partial").write_text('{"form')
    made(path, "training")
    assert sorted(entry.name for entry in path.iterdir()) == ["checkpoints", "config.json"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_that_is_full_at_the_start(tmp_path, monkeypatch, kind):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RunError, match=r"cannot create the run folder .*: No space left on device"):
            made(tmp_path / "run", kind)
    assert not list(tmp_path.iterdir())
    made(tmp_path / "run", kind)


def test_a_folder_of_something_else_is_not_to_be_resumed(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(RunError, match=r"already exists, and is no run\. Choose another folder with --run-dir"):
        check_new(tmp_path)


def test_a_run_folder_that_is_gone(tmp_path):
    path = made(tmp_path / "run", "training")
    check_there(path)
    shutil.move(path, tmp_path / "other")
    with pytest.raises(RunError, match="run is gone: it was removed or renamed"):
        check_there(path)


def test_paths_in_a_run_are_absolute(tmp_path, monkeypatch):
    """So that it goes on wherever the code of an environment, or the user, has gone to."""
    monkeypatch.chdir(tmp_path)
    learner = next(iter(EXPERIMENT.learners.values()))
    learners = {"l": dataclasses.replace(learner, weights="w")}
    begun = create(Path("run"), dataclasses.replace(EXPERIMENT, learners=learners))
    create(Path("bank"), PopulationConfig(EXPERIMENT, imports=("other",)))
    monkeypatch.chdir(tmp_path / "run")
    assert begun.path == open_run(Path("..") / "run").path.resolve() == tmp_path / "run"
    assert open_run(begun.path).experiment.learners["l"].weights == str(tmp_path / "w")
    assert open_population(tmp_path / "bank").imports == (str(tmp_path / "other"),)
    assert default_path(EXPERIMENT).is_absolute()


def test_a_sweep_of_an_earlier_version_says_what_it_is(tmp_path):
    """It holds its results, as before, and is no run."""
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(RunError, match=r"is a sweep of an earlier version of shoal.*To sweep again, run the command"):
        open_run(tmp_path, "sweep")
    with pytest.raises(RunError, match="already exists, and is no run"):
        check_new(tmp_path)


def exact(iterations=3):
    """A population that needs no training."""
    return PopulationConfig(resolve("psro/kuhn"), PSRO("nash", iterations=iterations), oracle="exact")


def test_a_population_whose_folder_is_removed(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(RunError, match="run is gone: it was removed or renamed"):
        run(exact(), path, listener=lambda progress: shutil.rmtree(path))
    assert not path.exists()


def test_a_population_grows_in_one_process_at_a_time(tmp_path):
    run(exact(), tmp_path / "run")
    with lock_folder(tmp_path / "run"), pytest.raises(RunError, match="another process is training in"):
        resume(tmp_path / "run")


@pytest.mark.parametrize("iteration", [0, 3])
@pytest.mark.parametrize("moment", ["line", "checkpoint", "saved"])
def test_lines_of_a_population_that_was_killed(tmp_path, monkeypatch, moment, iteration):
    """Before a line is made, its checkpoint saved, or the line written after that: each is there once in the end.

    Killed in its first iteration, the population has no checkpoint yet, and starts again.
    """
    where = checkpoint if moment == "checkpoint" else HistoryLog
    name = {"line": "write", "checkpoint": "save", "saved": "saved"}[moment]
    before = getattr(where, name)

    def killed(first, *rest):
        reached = {"line": lambda: rest[0]["iteration"], "checkpoint": lambda: rest[0], "saved": lambda: _last(first)}
        if reached[moment]() == iteration:
            raise Killed
        return before(first, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(where, name, killed)
        with pytest.raises(Killed):
            run(exact(), tmp_path / "run")
    grown = resume(tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines == grown.lines == list(grown.standing["state"].history)
    assert [line["iteration"] for line in lines] == [0, 1, 2, 3]


def _last(log):
    return log.lines[-1]["iteration"] if log.lines else None


def test_a_line_that_is_missing_from_a_finished_population_is_written_again(tmp_path):
    """A kill between the last checkpoint and its line leaves such a folder."""
    lines = run(exact(), tmp_path / "run").lines
    metrics = tmp_path / "run" / "metrics.jsonl"
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines[:-1]))
    resume(tmp_path / "run")
    assert [json.loads(line) for line in metrics.read_text().splitlines()] == lines
