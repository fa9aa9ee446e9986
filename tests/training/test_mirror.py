"""A mirror of a run: whatever happens to its writer or to the storage, a reader finds a run as it was at one moment."""

import contextlib
import hashlib
import itertools
import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from shoal.core.errors import OptionError, RunError
from shoal.training import checkpoint, mirror, mirror_store, run_kinds
from shoal.training.mirror import Mirror, fetch_run, locate_run, mirroring, newest_update

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: pip install 'shoal-rl[storage]'")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(mirror, "PAUSE", 0.005)


@pytest.fixture(params=["file", "memory"])
def url(request, tmp_path):
    """Storage with nothing in it."""
    if request.param == "file":
        yield f"file://{tmp_path}/storage"
        return
    fsspec.filesystem("memory").store.clear()
    yield f"memory://{tmp_path.name}"
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def folder(tmp_path):
    """A run folder that nothing has been written to."""
    return make_run(tmp_path / "here" / "mine")


def make_run(folder, date="today"):
    run_kinds.create(folder, run_kinds.TRAINING, provenance={"date": date}, experiment={"env": "mpe/simple"})
    return folder


def train(folder, update):
    """What a run writes: metrics up to a checkpoint, and then that one; three are kept."""
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"update": update}) + "\n")
    checkpoint.save(folder / "checkpoints", update, {"weights": np.full(50, update)}, {"update": update})


def check_consistent(folder):
    """Its checkpoints are whole, and its metrics reach to the newest; gives the update of that."""
    newest = newest_update(folder)
    for update, path in checkpoint.steps(folder / "checkpoints").items():
        assert checkpoint.read_meta(path) == {"update": update}
        assert (checkpoint.load(path, {"weights": np.zeros(50, int)})["weights"] == update).all()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["update"] for line in lines][: newest + 1] == list(range(newest + 1))
    return newest


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def test_what_is_fetched_is_what_was_written(folder, url, tmp_path):
    train(folder, 0)
    with mirroring(folder, url, resumed=True):
        for update in range(1, 6):
            train(folder, update)
        (folder / "replay.html").write_text("<p>")
    assert fetch_run(f"{url}/mine", tmp_path / "there") == tmp_path / "there" / "mine"
    assert contents(tmp_path / "there" / "mine") == contents(folder)


def test_it_is_copied_while_the_run_goes_on(folder, url, tmp_path):
    with mirroring(folder, url, resumed=True):
        for update in range(3):
            train(folder, update)
            for wait in itertools.count():
                place = tmp_path / f"there-{update}-{wait}"
                try:
                    if check_consistent(fetch_run(f"{url}/mine", place)) == update:
                        break
                except RunError:
                    assert update == 0
                assert wait < 500
                threading.Event().wait(0.01)


def test_old_files_are_removed_and_a_reader_of_the_one_before_still_finds_its_own(folder, url):
    copier = Mirror(folder, url, resumed=True)
    for update in range(9):
        train(folder, update)
        before = copier.store.read_index()
        copier.copy()
        named = {file.path(name) for index in (before, copier.store.read_index()) if index
                 for name, file in index.files.items()}  # fmt: skip
        assert copier.store.sizes().keys() == named


class Killed(BaseException):
    """A process that ends without a word."""


class Faulty:
    """Storage of which the call number `at` fails or, in the middle of a write, kills."""

    def __init__(self, system, at, error):
        self.system, self.left, self.error = system, at, error

    def __getattr__(self, name):
        method = getattr(self.system, name)

        def call(*args, **options):
            self.left -= 1
            if self.left == 0:
                if name == "pipe_file" or (name == "open" and args[1] == "wb"):
                    self.system.pipe_file(args[0], b"half")
                raise self.error
            return method(*args, **options)

        return call


def count_of_calls(folder, url):
    copier = Mirror(folder, url, resumed=True)
    copier.store._system = counting = Faulty(copier.store._system, 0, None)
    copier.copy()
    return -counting.left


def test_killed_at_any_call_a_reader_finds_a_run_and_the_next_writer_goes_on(folder, url, tmp_path):
    for update in range(3):
        train(folder, update)
    calls = count_of_calls(folder, url)
    assert calls > 10
    for at in range(1, calls + 2):
        train(folder, update := update + 1)
        copier = Mirror(folder, url, resumed=True)
        copier.store._system = Faulty(copier.store._system, at, Killed())
        with contextlib.suppress(Killed):
            copier.copy()
        assert check_consistent(fetch_run(f"{url}/mine", tmp_path / f"killed-{at}")) in (update - 1, update)
        Mirror(folder, url, resumed=True).copy()
        assert check_consistent(fetch_run(f"{url}/mine", tmp_path / f"after-{at}")) == update


def test_storage_that_fails_now_and_then_is_a_warning(folder, url, tmp_path):
    copier = Mirror(folder, url, resumed=True)
    copier.store._system = flaky = Faulty(copier.store._system, 3, OSError("away"))

    def work():
        copier.start()
        for update in range(20):
            train(folder, update)
            threading.Event().wait(0.01)
            flaky.left = 5 if update % 3 else flaky.left
        flaky.left = 2
        copier.finish()

    with pytest.warns(UserWarning, match="is not up to date, and is tried again; the run goes on .OSError: away"):
        work()
    assert check_consistent(fetch_run(f"{url}/mine", tmp_path / "there")) == 19


@pytest.mark.parametrize(
    ("calls", "error"),
    [(("read_index", "sizes"), ConnectionError("no route")), (("upload",), FileNotFoundError("bucket"))],
)
def test_storage_that_stays_away_never_ends_a_run(folder, url, calls, error):
    copier = Mirror(folder, url, resumed=True)

    def fail(*args, **options):
        raise error

    for call in calls:
        setattr(copier.store, call, fail)

    def work():
        copier.start()
        train(folder, 0)
        copier.finish()

    with pytest.warns(UserWarning, match="mirror: ") as told:
        work()
    assert "lacks the end of the run" in str(told[-1].message)
    assert len(told) <= 2


def test_a_place_with_another_run_is_refused(folder, url, tmp_path):
    train(folder, 0)
    Mirror(folder, url, resumed=True).copy()
    other = tmp_path / "new" / "mine"
    with pytest.raises(OptionError, match="another run already"), mirroring(other, url):
        pytest.fail("a run began")
    make_run(other, "yesterday")
    with pytest.raises(OptionError, match="another run already"), mirroring(other, url, resumed=True):
        pytest.fail("a run began")
    with pytest.raises(RunError, match="not the run of"):
        fetch_run(f"{url}/mine", tmp_path / "new")


def test_whoever_is_behind_does_not_write_over_who_is_further(folder, url, tmp_path):
    for update in range(2):
        train(folder, update)
    Mirror(folder, url, resumed=True).copy()
    there = fetch_run(f"{url}/mine", tmp_path / "there")
    train(there, 2)
    with pytest.raises(RunError, match=r"is further than .*: update 2, there 1"):
        fetch_run(f"{url}/mine", tmp_path / "there")
    Mirror(there, url, resumed=True).copy()
    with pytest.raises(OptionError, match="is further than"), mirroring(folder, url, resumed=True):
        pytest.fail("a run began")
    (folder / "mine.txt").write_text("kept")
    assert check_consistent(fetch_run(f"{url}/mine", folder.parent)) == 2
    assert (folder / "mine.txt").read_text() == "kept"


HASH = hashlib.sha256(b"{}").hexdigest()


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"../../x.json": [2, HASH]}, "names files that no run has"),
        ({"/x.json": [2, HASH]}, "names files that no run has"),
        ({"checkpoints/../x.json": [2, HASH]}, "names files that no run has"),
        ({"x.py": [2, HASH]}, "names files that no run has"),
        ({"x.json": [2, "../x"]}, "names files that no run has"),
        ({"x.json": [-1, HASH]}, "must be between"),
        ({"x.json": [1 << 60, HASH]}, "must be between"),
        ({"x.json": [1 << 39, HASH]}, "has room for"),
        ({"x.json": [3, HASH]}, "shorter than it should be"),
        ({"x.json": [1, HASH]}, "is damaged"),
        ({f"x{i}.json": [2, HASH] for i in range(3000)}, "names files that no run has"),
    ],
)
def test_an_index_that_lies_is_refused_and_leaves_nothing(folder, url, tmp_path, files, why):
    train(folder, 0)
    copier = Mirror(folder, url, resumed=True)
    copier.copy()
    system, root = copier.store._system, copier.store._root
    data = json.loads(system.cat_file(f"{root}/run.json"))
    for name, (size, digest) in files.items():
        data["files"][name] = {"bytes": size, "sha256": digest}
        if len(files) == 1:
            system.pipe_file(f"{root}/files/{digest[:32]}-{name.rpartition('/')[2]}", b"{}")
    system.pipe_file(f"{root}/run.json", json.dumps(data).encode())
    with pytest.raises(RunError, match=why):
        fetch_run(f"{url}/mine", tmp_path / "there")
    assert list((tmp_path / "there").iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"[]", b'{"format": 2, "origin": "", "files": {}}', b"[" * 100])
def test_what_is_no_index_is_refused(url, tmp_path, content):
    store = mirror_store.Store(f"{url}/mine")
    store.sizes()
    store._system.pipe_file(f"{store._root}/run.json", content)
    with pytest.raises(RunError, match="is not a mirror of a run"):
        fetch_run(f"{url}/mine", tmp_path / "there")
    with pytest.raises(RunError, match="is not a mirror of a run"), mirroring(tmp_path / "mine", url):
        pytest.fail("a run began")


def test_links_in_a_run_folder_are_not_followed(folder, url, tmp_path):
    train(folder, 0)
    (tmp_path / "secret").write_text("{}")
    os.symlink(tmp_path / "secret", folder / "notes.json")
    with pytest.raises(RunError, match="must be a regular file"):
        Mirror(folder, url, resumed=True).copy()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("/plain/folder", "must be a URL"),
        ("nonsense://bucket", "cannot be opened as storage: Protocol not known"),
    ],
)
def test_what_cannot_be_used_is_refused_at_once(folder, url, why):
    with pytest.raises(OptionError, match=why):
        Mirror(folder, url)


def test_a_missing_package_is_named_with_its_command(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    with pytest.raises(OptionError, match=r"pip install 'shoal-rl\[storage\]'"):
        mirror.check_url("s3://bucket/runs")


def test_runs_are_located_by_url_or_by_path(folder, url, tmp_path):
    train(folder, 0)
    Mirror(folder, url, resumed=True).copy()
    assert locate_run(f"{url}/mine/", tmp_path / "x") == tmp_path / "x" / "runs" / "mine"
    assert locate_run("runs/mine", tmp_path) == tmp_path / "runs" / "mine"
    with pytest.raises(RunError, match="no run is mirrored there"):
        locate_run(f"{url}/other", tmp_path)


def test_nothing_is_fetched_because_a_run_folder_says_so(monkeypatch):
    """Learners may start from the weights of other runs; the path of those may come from anyone's `config.json`."""
    from shoal.cli.terminal import resolve_run

    monkeypatch.setattr(mirror, "fetch_run", lambda *args: pytest.fail("something was fetched"))
    assert not resolve_run("https://example.org/run").exists()


@pytest.mark.slow
def test_a_run_goes_on_elsewhere_to_the_same_bits(tmp_path, monkeypatch):
    """The second half is trained from the mirror alone, by the command line."""
    import shoal
    from shoal.cli import main
    from shoal.training.run import load_policies, weights_sha256

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shoal.cli.run_results.report_pictures", lambda *args: {})
    monkeypatch.setattr("shoal.api.work.keep_pictures", lambda *args: None)
    url, small = f"file://{tmp_path}/storage", {"num_envs": 16, "num_steps": 8, "hidden": (16,), "progress": False}

    class Stop(shoal.Callback):
        def on_checkpoint(self, event):
            if event.update:
                event.stop()

    whole = shoal.train("mpe/simple_spread", total_env_steps=2048, **small)
    half = shoal.train(
        "mpe/simple_spread", "first/run", total_env_steps=2048, mirror=url, callbacks=[Stop()],
        checkpoint_every=1024, **small,
    )  # fmt: skip
    assert half.interrupted
    assert main(["resume", f"{url}/run", "--mirror", url]) == 0
    assert main(["eval", f"{url}/run", "--episodes", "16"]) == 0
    _, policies, meta = load_policies(tmp_path / "runs" / "run")
    assert meta["update"] == whole.update
    assert weights_sha256(policies) == weights_sha256(whole.policies)
    again = shoal.load(f"{url}/run")
    assert not again.interrupted


@pytest.mark.slow
def test_a_population_grows_on_elsewhere(url, tmp_path, monkeypatch):
    import shoal

    game = {"oracle": "exact", "progress": False}
    for name in ("here", "there", "third"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    shoal.psro("cards/kuhn", "runs/kuhn", iterations=2, mirror=url, **game)
    monkeypatch.chdir(tmp_path / "there")
    shoal.resume(f"{url}/kuhn", iterations=4, mirror=url, progress=False)
    monkeypatch.chdir(tmp_path / "third")
    found, whole = shoal.load(f"{url}/kuhn"), shoal.psro("cards/kuhn", iterations=4, **game)
    np.testing.assert_equal(found.mixtures, whole.mixtures)
