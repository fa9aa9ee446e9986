"""The catalogue of runs: what it lists, reads and keeps, and that no folder can harm it."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from shoal.algorithms.names import NAMES, name_of, named
from shoal.core.errors import OptionError, RunError, UnknownNameError
from shoal.training.catalogue import Catalogue, catalogue, lines
from shoal.training.catalogue.facts import ALIASES, TELLING, algorithm_name
from shoal.training.catalogue.store import Store
from shoal.training.experiment import Experiment, Learner
from shoal.training.folder_lock import is_locked, lock_folder
from shoal.training.outcome import work_in
from shoal.training.run import create
from shoal.training.serialise import to_plain

GOLDEN = Path(__file__).parents[1] / "golden" / "runs"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def root(tmp_path):
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


@pytest.fixture(scope="module")
def blank(tmp_path_factory):
    """A run folder in which nothing has happened yet: two updates of 64 env steps each."""
    folder = tmp_path_factory.mktemp("blank") / "run"
    create(folder, Experiment("mpe/simple_spread", num_envs=8, num_steps=8, total_env_steps=128))
    return folder


def make_run(blank, path, rows=(), **changes):
    """A run with these lines of metrics; changes: of the experiment."""
    shutil.copytree(blank, path)
    config = json.loads((path / "config.json").read_text())
    config["experiment"] |= changes
    (path / "config.json").write_text(json.dumps(config))
    if rows:
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(update, value, **more):
    return {"update": update, "env_steps": 64 * update, "return": value, "seconds": 0.5 * update} | more


def test_entries_say_what_a_run_is(root, blank):
    path = make_run(blank, root / "first", [row(1, -3.0), row(2, -5.0)])
    (entry,) = Catalogue(root).entries()
    assert (entry.name, entry.path, entry.kind, entry.status) == ("first", path, "training", "finished")
    assert (entry.env, entry.algorithm, entry.num_seeds) == ("mpe/simple_spread", "ppo", 1)
    assert (entry.env_steps, entry.total_env_steps, entry.update, entry.num_updates) == (128, 128, 2, 2)
    assert (entry.last_return, entry.best_return, entry.speed) == (-5.0, -3.0, 128.0)
    assert entry.curve == (-3.0, -5.0)
    assert entry.progress == 1.0
    assert (entry.tags, entry.note, entry.problem) == ((), "", None)
    assert entry.size == sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    assert entry.updated >= entry.started > 1.6e9


def test_newest_first_and_filters(root, blank):
    learners = {"learner": to_plain(Learner(named("qmix")))}
    for age, (name, options) in enumerate({"b/new": {"learners": learners}, "a_old": {"env": "tag/grid"}}.items()):
        path = make_run(blank, root / name, [row(1, 0.0)], **options)
        for file in path.iterdir():
            os.utime(file, (1e9 - age, 1e9 - age))
    runs = Catalogue(root)

    def names(*args, **options):
        return [entry.name for entry in runs.entries(*args, **options)]

    assert names() == ["b/new", "a_old"]
    assert names("OLD") == names("a_*") == names(env="tag") == names(algo="ppo") == ["a_old"]
    assert names(env="mpe/*") == names(algo="qmix") == ["b/new"]
    assert names(status="stopped") == ["b/new", "a_old"]
    assert names(status="finished") == []
    with pytest.raises(OptionError, match="status must be running or finished"):
        runs.entries(status="done")


def test_a_run_is_running_while_its_folder_is_locked(root, blank):
    path = make_run(blank, root / "run", [row(2, 1.0)])
    runs = Catalogue(root)
    assert runs.entry("run").status == "finished"
    with lock_folder(path):
        assert is_locked(path)
        assert runs.entry("run").status == "running"
        with pytest.raises(RunError, match="another process is training"):
            runs.remove("run")
    assert runs.entry("run").status == "finished"
    assert path.is_dir()


def test_looking_does_not_keep_a_run_from_starting(root, blank):
    """Those who look hold the lock for a moment; whoever trains waits that long."""
    path = make_run(blank, root / "run")
    over = threading.Event()

    def look():
        while not over.is_set():
            is_locked(path)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for _ in range(200):
            with lock_folder(path):
                pass
    finally:
        over.set()
        watcher.join()


def test_an_error_that_ends_a_run_is_told_until_it_goes_on(root, blank):
    path = make_run(blank, root / "run", [row(1, 1.0)])
    runs = Catalogue(root)
    assert runs.entry("run").status == "stopped"
    with pytest.raises(RunError), work_in(path):
        raise RunError("the disk\nis full")
    entry = runs.entry("run")
    assert (entry.status, entry.problem) == ("failed", "the disk is full")
    with pytest.raises(KeyboardInterrupt), work_in(path):
        raise KeyboardInterrupt
    entry = runs.entry("run")
    assert (entry.status, entry.problem) == ("stopped", None)


def test_returns_are_means_over_seeds(root, blank):
    rows = [row(1, [None, None]), row(2, [1.0, 3.0]), row(3, [None, 5.0]), row(4, [None, None])]
    make_run(blank, root / "run", rows, num_seeds=2, total_env_steps=640)
    entry = Catalogue(root).entry("run")
    assert (entry.num_seeds, entry.last_return, entry.best_return, entry.curve) == (2, 5.0, 5.0, (2.0, 5.0))
    assert entry.speed == 2 * 64 * 4 / 2.0


def test_every_kind_of_run_is_listed():
    found = {entry.name: entry for entry in Catalogue(GOLDEN).entries()}
    expected = json.loads((GOLDEN / "expected.json").read_text())
    assert set(found) == set(expected)
    for name, entry in found.items():
        assert entry.status == "stopped", name
        assert entry.problem is None
        assert entry.update == expected[name]["at"]
    kinds = {name: found[name].kind for name in ("ppo", "sweep", "pbt", "evolution", "psro")}
    assert kinds == {"ppo": "training", "sweep": "sweep", "pbt": "pbt", "evolution": "evolution", "psro": "psro"}
    assert found["evolution"].algorithm == "open_es"
    assert (found["psro"].algorithm, found["psro_exact"].algorithm) == ("psro (ppo)", "psro (exact)")
    assert found["evolution"].total_env_steps == 1600
    assert found["pbt"].speed == 4 * found["pbt"].env_steps / Catalogue(GOLDEN).lines_after("pbt", 0)[0][-1]["seconds"]


@pytest.mark.parametrize(
    ("plan", "lines", "finished"),
    [
        ({"iterations": 4}, [{}] * 4, False),
        ({"iterations": 4}, [{}] * 5, True),
        ({"iterations": 40, "target_nash_conv": 0.1}, [{"nash_conv": 0.09}], True),
        ({"iterations": 40, "target_nash_conv": 0.1}, [{"nash_conv": 0.11}], False),
        ({"iterations": 40, "patience": 2}, [{}, {"gain": [1, 0]}, {"gain": [0, -1]}, {"gain": [0, 0]}], True),
        ({"iterations": 40, "patience": 2}, [{}, {"gain": [0, 0], "uniform_share": 0.4}, {"gain": [0, 0]}], False),
        ({"iterations": 40, "patience": 2}, [{}, {"gain": [0.3, 0]}, {"gain": [0, 0]}], False),
        ({"iterations": 40, "patience": 2, "improvement": 0.5}, [{}, {"gain": [0.3, 0]}, {"gain": [0, 0]}], True),
    ],
)
def test_populations_that_have_ended(root, plan, lines, finished):
    from shoal.populations import psro

    shutil.copytree(GOLDEN / "psro", root / "run")
    config = json.loads((root / "run" / "config.json").read_text())
    config["psro"]["psro"] |= plan
    (root / "run" / "config.json").write_text(json.dumps(config))
    history = [{"iteration": i, "seconds": 1.0} | line for i, line in enumerate(lines)]
    (root / "run" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in history))
    assert Catalogue(root).entry("run").status == ("finished" if finished else "stopped")
    assert psro.finished(history, psro.PSRO(**plan)) == finished


def test_names_of_algorithms_are_those_of_the_field():
    """The table that needs no JAX says what `shoal.algorithms.names` says."""
    own = {}
    for name, known in NAMES.items():
        default = to_plain(known.cls())
        telling = {key: want for key, want in known.options.items() if _at(default, key) != want}
        if telling:
            own[name] = (known.cls.name, telling)
        assert algorithm_name(to_plain(named(name))) == name_of(named(name))
    assert own == TELLING
    both = named("r2d2", mixer="monotonic")
    assert algorithm_name(to_plain(both)) == name_of(both)
    assert algorithm_name({"name": "mine", "critic": "global"}) == "mine"


def _at(data, key):
    first, _, rest = key.partition(".")
    return _at(data[first], rest) if rest else data[first]


def test_nearest_names(root, blank):
    make_run(blank, root / "spread_mappo")
    runs = Catalogue(root)
    with pytest.raises(UnknownNameError, match="Did you mean 'spread_mappo'"):
        runs.entry("spread_mapo")
    for name in ("..", "../runs/spread_mappo", "/etc", "", "a\0b", "spread_mappo/checkpoints", str(root)):
        with pytest.raises(UnknownNameError):
            runs.entry(name)


def test_config_is_plain_and_checked(root, blank):
    path = make_run(blank, root / "run")
    runs = Catalogue(root)
    assert runs.config("run")["experiment"]["num_envs"] == 8
    make_run(blank, root / "bad", num_envs="many")
    with pytest.raises(RunError, match="num_envs must be a whole number"):
        runs.config("bad")
    entry = runs.entry("bad")
    assert entry.status == "unreadable"
    assert "num_envs must be a whole number" in entry.problem
    (path / "config.json").write_text('{"format": 1, "sho')
    assert runs.entry("run").status == "unreadable"
    assert {entry.name for entry in runs.entries(status="unreadable")} == {"run", "bad"}


def test_series_of_few_lines_are_the_lines(root, blank):
    rows = [row(i, [float(i), -float(i)], **({"eval/return": 9.0} if i == 3 else {})) for i in range(1, 8)]
    make_run(blank, root / "run", rows)
    runs = Catalogue(root)
    assert runs.metric_names("run") == ("return", "eval/return")
    series = runs.series("run", "return")
    np.testing.assert_array_equal(series.env_steps, 64.0 * np.arange(1, 8))
    np.testing.assert_array_equal(series.seconds, 0.5 * np.arange(1, 8))
    np.testing.assert_array_equal(series.values, np.arange(1.0, 8)[:, None] * [1, -1])
    assert all(array.dtype == np.float64 for array in dataclasses.astuple(series))
    rare = runs.series("run", "eval/return")
    assert (rare.env_steps.tolist(), rare.values.tolist()) == ([192.0], [[9.0]])
    with pytest.raises(UnknownNameError, match="Did you mean 'return'"):
        runs.series("run", "retrun")
    with pytest.raises(OptionError, match="at least 2"):
        runs.series("run", "return", points=1)


@pytest.mark.parametrize("count", [40, 5000, 9001])
def test_series_of_many_lines_are_means_between_the_first_and_the_last(root, blank, count):
    """A straight line: the mean of neighbours lies on it, at the mean of their places."""
    make_run(blank, root / "run", [row(i, 2.0 * i + 1) for i in range(count)])
    series = Catalogue(root).series("run", "return", points=22)
    assert len(series.env_steps) <= 22
    assert len(series.env_steps) >= 20
    assert (series.env_steps[0], series.env_steps[-1]) == (0, 64 * (count - 1))
    assert (series.values[0, 0], series.values[-1, 0]) == (1.0, 2.0 * count - 1)
    assert (np.diff(series.env_steps) > 0).all()
    np.testing.assert_allclose(series.values[:, 0], 2 * series.env_steps / 64 + 1)
    np.testing.assert_allclose(series.seconds, series.env_steps / 128)


def test_a_glance_at_a_long_run_is_some_of_its_lines(root, blank, monkeypatch):
    rows = [{"update": i, "env_steps": 10 * i, "return": [float(i), 2.0 * i]} for i in range(1, 2001)]
    make_run(blank, root / "long", rows)
    runs = Catalogue(root)
    assert runs.glance("long") is None, "it is short enough to be read"
    monkeypatch.setattr("shoal.training.catalogue.catalogue.LONG", 1 << 10)
    glanced = runs.glance("long", 20)
    assert glanced is not None
    found = glanced["return"]
    assert 15 <= len(found.env_steps) <= 21
    assert (found.env_steps[0], found.env_steps[-1]) == (10, 20_000)
    assert (np.diff(found.env_steps) > 500).all()
    np.testing.assert_array_equal(found.values, found.env_steps[:, None] * [0.1, 0.2])
    runs.series("long", "return")
    assert runs.glance("long", 20) is None, "all of its lines are known"


def test_series_follow_a_file_that_grows_and_one_that_is_written_anew(root, blank):
    path = make_run(blank, root / "run", [row(i, float(i)) for i in range(6000)]) / "metrics.jsonl"
    runs, fresh = Catalogue(root), Catalogue(root)
    runs.series("run", "return")
    with path.open("a") as file:
        for i in range(6000, 12000):
            file.write(json.dumps(row(i, float(i), late=[1.0, None])) + "\n")
        file.write('{"update": 12000, "env_st')
    grown, whole = (one.series("run", "return", points=100) for one in (runs, fresh))
    for one, other in zip(dataclasses.astuple(grown), dataclasses.astuple(whole), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    assert grown.values[-1, 0] == 11999
    assert runs.series("run", "late", points=10).values.shape[1] == 2
    path.with_name("new").write_text(json.dumps(row(1, 7.0)) + "\n")
    path.with_name("new").replace(path)
    assert runs.series("run", "return").values.tolist() == [[7.0]]
    assert runs.metric_names("run") == ("return",)


def test_columns_of_few_runs_are_kept(root, blank, monkeypatch):
    from shoal.training.catalogue import catalogue

    for name in "abcd":
        make_run(blank, root / name, [row(i, float(i), loss=1.0) for i in range(100)])
    runs = Catalogue(root)
    monkeypatch.setattr(catalogue, "MOST_CELLS", 900)  # of two runs: two metrics, sums and counts of 100 lines
    for name in "abcad":
        assert runs.series(name, "return").values[-1, 0] == 99
    assert list(runs._tables) == ["a", "d"]
    monkeypatch.setattr(catalogue, "MOST_TABLES", 1)
    runs.series("b", "return")
    assert list(runs._tables) == ["b"]


def test_new_lines_by_their_place(root, blank):
    path = make_run(blank, root / "run", [row(1, 1.0), row(2, float("nan"))]) / "metrics.jsonl"
    runs = Catalogue(root)
    found, offset = runs.lines_after("run", 0)
    assert [line["return"] for line in found] == [1.0, None]
    assert offset == path.stat().st_size
    text = json.dumps(row(3, 3.0)) + "\n"
    with path.open("a") as file:
        file.write(text[:20])
    assert runs.lines_after("run", offset) == ([], offset)
    with path.open("a") as file:
        file.write(text[20:])
    found, end = runs.lines_after("run", offset)
    assert ([line["return"] for line in found], end) == ([3.0], path.stat().st_size)
    path.write_text(text)
    assert [line["return"] for line in runs.lines_after("run", end)[0]] == [3.0]
    path.write_text(text + "nonsense\n" + text)
    assert runs.lines_after("run", 0)[1] == len(text)
    path.unlink()
    assert runs.lines_after("run", 5) == ([], 0)


def test_large_files_are_sampled(root, blank, monkeypatch):
    """The ends are exact, and what is between them is told from some lines; files of the usual size are read whole."""
    monkeypatch.setattr(lines, "SMALL", 4096)
    make_run(blank, root / "run", [row(i, -1000.0 + i) for i in range(1000)], total_env_steps=64 * 999)
    entry = Catalogue(root).entry("run")
    assert (entry.update, entry.last_return, entry.best_return) == (999, -1.0, -1.0)
    assert entry.status == "finished"
    np.testing.assert_allclose(entry.curve, np.linspace(-980, -15, lines.CURVE), atol=30)


def test_lines_of_any_length(root, blank):
    wide = {f"metric/{i}": [float(i)] * 40 for i in range(400)}
    make_run(blank, root / "run", [row(i, float(i), **wide) for i in range(4)])
    entry = Catalogue(root).entry("run")
    assert (entry.update, entry.last_return) == (3, 3.0)
    assert Catalogue(root).series("run", "metric/7").values.shape == (4, 40)


def test_notes(root, blank):
    path = make_run(blank, root / "run")
    before = (path / "config.json").read_bytes()
    runs = Catalogue(root)
    runs.annotate("run", tags=["paper", "paper", "seed-3"])
    runs.annotate("run", note="the best\x1b[2J so far <b>")
    entry = runs.entry("run")
    assert (entry.tags, entry.note) == (("paper", "seed-3"), "the best\x1b[2J so far <b>")
    assert json.loads((path / "notes.json").read_text()) == {"tags": ["paper", "seed-3"], "note": entry.note}
    assert (path / "config.json").read_bytes() == before
    assert sorted(file.name for file in path.iterdir()) == ["checkpoints", "config.json", "notes.json"]
    for tags in (["two words"], ["a,b"], [""], ["x" * 65], ["\x07"], "abc"):
        with pytest.raises(OptionError, match="tag"):
            runs.annotate("run", tags=tags)
    with pytest.raises(OptionError, match="at most 20,000 letters"):
        runs.annotate("run", note="x" * 20_001)
    (path / "notes.json").write_text('{"tags": 7}')
    assert "notes.json is damaged" in runs.entry("run").problem
    with pytest.raises(RunError, match="remove it"):
        runs.annotate("run", note="x")


def test_notes_are_not_written_through_a_link(root, blank, tmp_path):
    path = make_run(blank, root / "run")
    (tmp_path / "precious").write_text("{}")
    (path / "notes.json").symlink_to(tmp_path / "precious")
    with pytest.raises(RunError):
        Catalogue(root).annotate("run", note="x")
    assert (tmp_path / "precious").read_text() == "{}"
    assert "is a link" in Catalogue(root).entry("run").problem


def test_remove(root, blank, tmp_path):
    path = make_run(blank, root / "group" / "run")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("x")
    (path / "more").symlink_to(tmp_path / "outside")
    runs = Catalogue(root)
    runs.remove("group/run")
    assert list((root / "group").iterdir()) == []
    assert (tmp_path / "outside" / "precious").read_text() == "x"
    assert runs.entries() == []
    foreign = root / "foreign"
    foreign.mkdir()
    (foreign / "config.json").write_text('{"model": "x"}')
    for name in ("group", "group/run", "foreign"):
        with pytest.raises((RunError, UnknownNameError)):
            runs.remove(name)
    assert foreign.is_dir()
    with pytest.raises(RunError, match="where runs are looked for"):
        Catalogue(make_run(blank, root / "alone")).remove(".")


def test_links_are_not_followed(root, blank, tmp_path):
    outside = make_run(blank, tmp_path / "outside")
    (root / "link").symlink_to(outside)
    inner = make_run(blank, root / "run", [row(1, 1.0)])
    (inner / "metrics.jsonl").unlink()
    (tmp_path / "secret").write_text(json.dumps(row(1, 42.0)) + "\n")
    (inner / "metrics.jsonl").symlink_to(tmp_path / "secret")
    runs = Catalogue(root)
    (entry,) = runs.entries()
    assert (entry.name, entry.last_return) == ("run", None)
    assert "is a link" in entry.problem
    for call in (runs.entry, runs.remove, runs.config, lambda name: runs.annotate(name, note="x")):
        with pytest.raises(UnknownNameError):
            call("link")
    for call in (runs.metric_names, lambda name: runs.lines_after(name, 0)):
        with pytest.raises(RunError, match="is a link"):
            call("run")
    assert outside.is_dir()
    assert [entry.name for entry in Catalogue(root / "link").entries()] == ["."]  # what the user names is the user's


def test_folders_of_others_are_passed_over(root, blank):
    """Also a project whose own config.json lies above the runs."""
    (root / "config.json").write_text('{"name": "my project"}')
    (root / "empty").mkdir()
    (root / "model").mkdir()
    (root / "model" / "config.json").write_text('{"hidden": 3}')
    make_run(blank, root / "deep" / "er" / "run")
    make_run(blank, root / ".hidden")
    make_run(blank, root / "deep" / "er" / "run" / "inner")
    assert [entry.name for entry in Catalogue(root).entries()] == ["deep/er/run"]
    assert Catalogue(root / "nowhere").entries() == []
    assert Catalogue(root / "config.json").entries() == []


def test_a_run_that_vanishes_while_it_is_listed(root, blank, monkeypatch):
    from shoal.training.catalogue import catalogue

    make_run(blank, root / "stays")
    gone, real = make_run(blank, root / "goes"), catalogue._read_record

    def read(path, *args):
        shutil.rmtree(gone, ignore_errors=True)
        return real(path, *args)

    monkeypatch.setattr(catalogue, "_read_record", read)
    runs = Catalogue(root)
    assert [entry.name for entry in runs.entries()] == ["stays"]
    with pytest.raises(UnknownNameError):
        runs.series("goes", "return")


def test_the_cache_on_disk(root, blank, monkeypatch):
    from shoal.training.catalogue import catalogue

    make_run(blank, root / "run", [row(1, 1.0)])
    path = Store(root).path
    first = Catalogue(root).entries()
    assert path.is_file()
    with monkeypatch.context() as patch:
        patch.setattr(catalogue, "_read_record", None)  # what is kept is not read again
        assert Catalogue(root).entries() == first
    (root / "run" / "metrics.jsonl").write_text(json.dumps(row(2, 2.0)) + "\n")
    assert Catalogue(root).entries()[0].last_return == 2.0
    good = path.read_text()
    record = json.loads(good)["records"]["run"]
    for bad in ("", "[]", "{", good[:-40], json.dumps({"format": 9}), "[" * 10_000):
        path.write_text(bad)
        assert Catalogue(root).entries()[0].last_return == 2.0
        assert json.loads(path.read_text())["records"]["run"] == record
    for entry in ("signatures", "facts", "digest"):
        path.write_text(json.dumps(json.loads(good) | {"records": {"run": record | {entry: [1]}}}))
        assert Catalogue(root).entries()[0].last_return == 2.0


def test_without_a_cache_folder(root, blank, tmp_path, monkeypatch):
    make_run(blank, root / "run", [row(1, 1.0)])
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert [entry.name for entry in Catalogue(root).entries()] == ["run"]
    assert [entry.name for entry in Catalogue(root, cache=False).entries()] == ["run"]


def test_needs_no_jax():
    script = (
        "import sys, shoal; from shoal.training.catalogue import Catalogue; "
        f"runs = Catalogue({str(GOLDEN)!r}, cache=False); runs.entries(); runs.series('ppo', 'return'); "
        "print('jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr


def test_the_best_return_is_that_of_all_lines_and_only_new_ones_are_searched(root, blank, monkeypatch):
    monkeypatch.setattr(lines, "SMALL", 4096)
    rows = [row(i, 7.5 if i == 333 else -1.0) for i in range(1000)]
    path = make_run(blank, root / "run", rows, total_env_steps=64 * 2000) / "metrics.jsonl"
    runs = Catalogue(root)
    assert runs.entry("run").best_return == 7.5
    searched = []
    search = lines._best_return
    monkeypatch.setattr(lines, "_best_return", lambda text: searched.append(text) or search(text))
    new = json.dumps(row(1000, [9.0, 10.0])) + "\n" + json.dumps(row(1001, None)) + "\n"
    with path.open("a") as file:
        file.write(new)
    assert runs.entry("run").best_return == 9.5
    assert searched == [new.encode()]
    path.unlink()
    path.write_text("".join(json.dumps(row(i, -2.0)) + "\n" for i in range(300)))
    assert runs.entry("run").best_return == -2.0


def test_a_listing_searches_some_of_many_long_runs_and_says_so(root, blank, monkeypatch):
    monkeypatch.setattr(lines, "SMALL", 4096)
    monkeypatch.setattr(lines, "CHUNK", 4096)
    monkeypatch.setattr(catalogue, "SEARCH_BYTES", 30_000)
    for name in "ab":
        make_run(blank, root / name, [row(i, 7.5 if i == 950 else -1.0) for i in range(1000)])
    size = (root / "a" / "metrics.jsonl").stat().st_size
    known = []
    for _ in range(2 * size // 30_000 + 1):
        known.append(sorted(entry.best_is_known for entry in Catalogue(root).entries()))  # by what is kept on disk
    assert known[0] == [False, False]
    assert known[-1] == [True, True]
    assert known == sorted(known)
    assert [entry.best_return for entry in Catalogue(root).entries()] == [7.5, 7.5]
    assert Catalogue(root, cache=False).entry("b").best_return == 7.5


def test_sides_that_win_what_others_lose_are_told_apart(root, blank):
    """Their sum is always 0, which says nothing; a team that scores nothing has a return of 0."""
    opposed = [row(i, 0.0, **{"return/left": 0.5 * i, "return/right": -0.5 * i}) for i in (1, 2)]
    make_run(blank, root / "opposed", opposed)
    make_run(blank, root / "team", [row(1, 0.0, **{"return/a": 0.0, "return/b": 0.0})])
    make_run(blank, root / "mixed", [*opposed, row(3, 1.0, **{"return/left": 2.0, "return/right": -1.0})])
    for _ in range(2):  # the second one from the cache
        found = {entry.name: entry for entry in Catalogue(root).entries()}
        assert found["opposed"].sides == {"left": 1.0, "right": -1.0}
        assert found["opposed"].curve == (0.5, 1.0)
        assert (found["opposed"].last_return, found["opposed"].best_return) == (None, None)
        assert (found["team"].sides, found["team"].last_return) == ({}, 0.0)
        assert (found["mixed"].sides, found["mixed"].last_return) == ({}, 1.0)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("shoal train x --algo ippo", "ippo"),
        ("shoal train x --algo=IPPO --seed 1", "ippo"),
        ("shoal train x --algo ppo", "ppo"),
        ("shoal train x --algo iql", "ppo"),
        ("shoal train 'x --algo ippo", "ppo"),
        ("shoal train x --algo", "ppo"),
        ("python train.py", "ppo"),
    ],
)
def test_an_algorithm_has_the_name_that_it_was_asked_for_by(root, blank, command, name):
    path = make_run(blank, root / "run")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"provenance": {"command": command}}))
    assert Catalogue(root, cache=False).entry("run").algorithm == name


def test_aliases_are_those_of_the_command_line():
    from shoal.algorithms.names import NAMES, name_of

    silent = {name for name, known in NAMES.items() if known.options and name_of(named(name)) != name}
    assert silent == set(ALIASES)
    for name, (built_from, options) in ALIASES.items():
        assert (NAMES[name].cls.name, NAMES[name].options) == (built_from, options)
        assert algorithm_name(to_plain(named(name)), name) == name
