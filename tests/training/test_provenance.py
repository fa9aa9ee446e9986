"""Where a run comes from is kept beside its settings, and is no part of them."""

import hashlib
import json
import platform
import subprocess

import jax
import pytest

from shoal.core.registry import import_named
from shoal.training import provenance as origins
from shoal.training.catalogue import Catalogue
from shoal.training.experiment import Experiment
from shoal.training.provenance import git_commit, provenance
from shoal.training.run import create, open_run
from shoal.training.run_kinds import read_entry


def test_what_is_kept(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["/usr/bin/shoal", "train", "demo", "--run-dir", "my run"])
    file = tmp_path / "own.py"
    file.write_text("import shoal\n")
    import_named(str(file))
    found = provenance()
    assert found["command"] == "shoal train demo --run-dir 'my run'"
    assert found["versions"]["python"] == platform.python_version()
    assert found["versions"]["jax"] == jax.__version__
    assert set(found["versions"]) == {"shoal", "python", "jax", "jaxlib", "flax", "optax", "numpy"}
    assert found["device"] == {"platform": "cpu", "kind": jax.devices()[0].device_kind, "count": 2}
    assert found["imports"] == {str(file): hashlib.sha256(b"import shoal\n").hexdigest()}
    assert "device" not in provenance(on_device=False)
    json.dumps(found)


def test_a_run_with_it_is_the_same_experiment(tmp_path):
    experiment = Experiment("mpe/simple_spread")
    plain = create(tmp_path / "old", experiment)
    told = create(tmp_path / "new", experiment, provenance=provenance())
    assert open_run(plain.path).config == open_run(told.path).config == experiment
    assert read_entry(plain.path, "provenance") is None
    runs = Catalogue(tmp_path)
    assert runs.entry("new").started == pytest.approx(runs.entry("old").started, abs=30)
    for strange in (7, [], {"date": "yesterday"}, {"date": "9" * 99}, {"date": None}):
        config = json.loads((told.path / "config.json").read_text())
        (told.path / "config.json").write_text(json.dumps(config | {"provenance": strange}))
        assert open_run(told.path).config == experiment
        assert runs.entry("new").status == "stopped"


def test_the_commit_is_that_of_git(tmp_path):
    def git(*words, where=tmp_path / "main"):
        quiet = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "init.defaultBranch=trunk"]
        done = subprocess.run(["git", *quiet, *words], cwd=where, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    (tmp_path / "main" / "deep").mkdir(parents=True)
    assert git_commit(tmp_path / "main") in (None, git_commit(tmp_path))
    git("init")
    assert git_commit(tmp_path / "main") is None  # nothing is committed yet
    git("commit", "--allow-empty", "-m", "first")
    first = git("rev-parse", "HEAD")
    assert git_commit(tmp_path / "main" / "deep") == first
    git("worktree", "add", "../tree", "-b", "side")
    assert git_commit(tmp_path / "tree") == first
    git("pack-refs", "--all")
    assert git_commit(tmp_path / "tree") == git_commit(tmp_path / "main") == first
    git("checkout", "--detach")
    assert git_commit(tmp_path / "main") == first
    (tmp_path / "main" / ".git" / "HEAD").write_bytes(b"\xff\xfe")
    assert git_commit(tmp_path / "main") is None


def test_a_folder_that_was_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(origins.os, "getcwd", lambda: (_ for _ in ()).throw(FileNotFoundError()))
    assert "git_commit" not in provenance()
