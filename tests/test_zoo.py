"""The zoo: entries are small, hold no pickles, load and earn what `zoo.json` says; `zoo/NAME` is found or explained."""

import importlib.util
import json
import math
from pathlib import Path

import jax
import numpy as np
import pytest

import shoal
from shoal.cli import main
from shoal.cli.commands.play import _read as read_play
from shoal.core.errors import RunError
from shoal.core.zoo import find_run
from shoal.training import checkpoint
from shoal.training.run_kinds import is_slim

ROOT = Path(__file__).parents[1]
ZOO = ROOT / "zoo"
ENTRIES = json.loads((ZOO / "zoo.json").read_text())["entries"]
QUICK = ("cards/kuhn", "control/cartpole", "matrix/game")
MOST, MOST_PAGE = 20_000_000, 300_000
EACH = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ENTRIES]


@pytest.fixture(scope="module")
def builder():
    spec = importlib.util.spec_from_file_location("zoo_build", ZOO / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def files(entry: Path) -> list[Path]:
    return [path for path in entry.rglob("*") if path.is_file()]


def test_the_list_is_that_of_the_folders_and_all_of_them_are_small(builder):
    folders = {config.parent.relative_to(ZOO).as_posix() for config in ZOO.rglob("config.json")}
    assert folders == set(ENTRIES)
    assert set(QUICK) <= folders <= set(builder.entry_names())
    for name, entry in ENTRIES.items():
        assert entry["bytes"] == sum(path.stat().st_size for path in files(ZOO / name))
        assert entry["page_bytes"] == (ZOO / name / "replay.html").stat().st_size <= MOST_PAGE
    assert sum(path.stat().st_size for path in files(ZOO)) <= MOST


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_has_what_playing_takes_and_no_pickles(name):
    kept = {path.relative_to(ZOO / name).as_posix() for path in files(ZOO / name)}
    (stored,) = (path for path in kept if path.startswith("checkpoints/"))
    assert kept == {"config.json", "metrics.jsonl", "replay.html", stored}
    with np.load(ZOO / name / stored, allow_pickle=False) as arrays:
        leaves = [part for part in arrays.files if part != "manifest.json"]
        assert leaves
        assert all(arrays[part].dtype.kind in "biuf" for part in leaves)
    assert all("/params/" in part or part.startswith(("banks/", "table/")) for part in leaves)
    facts = ENTRIES[name]
    assert facts["command"].startswith("shoal ")
    assert f"--seed {facts['seed']}" in facts["command"]
    assert len(facts["commit"]) in (40, 64)
    assert facts["return"].keys() == facts["standard_error"].keys()


@pytest.mark.parametrize("name", EACH)
def test_an_entry_earns_what_is_said_of_it(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    facts, found = ENTRIES[name], shoal.load(f"zoo/{name}")
    if "iterations" in facts:
        played = shoal.match(dict.fromkeys(found.mixtures, found), episodes=256, seed=1).by_side
    else:
        played = found.evaluate(episodes=256, seed=1)
    for who, mean in facts["return"].items():
        spread = math.hypot(facts["standard_error"][who], played.standard_error[who])
        assert abs(played.mean_return[who] - mean) <= 5 * spread + 1e-3 * max(1.0, abs(mean)), who


def test_an_entry_is_found_by_name(monkeypatch, tmp_path):
    monkeypatch.delenv("SHOAL_ZOO", raising=False)
    monkeypatch.chdir(tmp_path)
    assert find_run("zoo/matrix/game") == ZOO / "matrix" / "game"
    assert find_run("runs/a") == tmp_path / "runs" / "a"
    here = tmp_path / "zoo" / "matrix" / "game"
    here.mkdir(parents=True)
    (here / "config.json").write_text("{}")
    assert find_run("zoo/matrix/game") == here
    monkeypatch.setenv("SHOAL_ZOO", str(ZOO))
    assert find_run("zoo/matrix/game") == ZOO / "matrix" / "game"
    with pytest.raises(RunError, match=r"unknown entry of the zoo 'matrix/gam'. Did you mean 'matrix/game'"):
        shoal.load("zoo/matrix/gam")
    monkeypatch.setenv("SHOAL_ZOO", str(tmp_path / "none"))
    with pytest.raises(
        RunError, match=r"there is no zoo: SHOAL_ZOO names .*none.*repository.* SHOAL_ZOO name that folder"
    ):
        shoal.evaluate("zoo/matrix/gam")


def test_commands_take_an_entry_and_leave_it_as_it_was(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("SHOAL_ZOO", str(ZOO))
    monkeypatch.chdir(tmp_path)
    before = {path: path.read_bytes() for path in files(ZOO / "matrix" / "game")}
    few = ("--episodes", "16")
    assert main(["eval", "zoo/matrix/game", *few, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mean_return"].keys() >= ENTRIES["matrix/game"]["return"].keys()
    assert main(["eval", "zoo/matrix/game", *few, "--opponent", "player_1=zoo/matrix/game"]) == 0
    assert main(["match", "player_0=zoo/matrix/game", "player_1=random", *few]) == 0
    assert main(["watch", "zoo/matrix/game"]) == 0
    assert (tmp_path / "game-replay.html").is_file()
    assert main(["export", "zoo/matrix/game"]) == 0
    assert (tmp_path / "game-policies").is_dir()
    capsys.readouterr()
    assert main(["resume", "zoo/matrix/game", "--total-env-steps", "1M"]) == 2
    assert "is a slim run" in capsys.readouterr().err
    with pytest.raises(RunError, match="is a slim run"):
        shoal.resume("zoo/matrix/game")
    assert {path: path.read_bytes() for path in files(ZOO / "matrix" / "game")} == before


def test_people_play_against_an_entry(monkeypatch, tmp_path):
    monkeypatch.setenv("SHOAL_ZOO", str(ZOO))
    monkeypatch.chdir(tmp_path)
    for words in (["cards/kuhn", "--against", "zoo/cards/kuhn"], ["zoo/cards/kuhn"]):
        _, lineup = read_play(words[0], words[1:])
        assert lineup.told["run"] == str(ZOO / "cards" / "kuhn")
        assert lineup.setup.experiment.env == "cards/kuhn"


def test_a_slim_run_plays_as_the_whole_one(builder, tmp_path):
    run = shoal.train("matrix/game", tmp_path / "run", total_env_steps=4096, progress=False)
    slim = tmp_path / "slim"
    slim.mkdir()
    builder.slim_training(tmp_path / "run", slim)
    builder.write_config(tmp_path / "run", slim, {"name": "x"})
    assert is_slim(slim)
    assert not is_slim(tmp_path / "run")
    loaded = shoal.load(slim)
    jax.tree.map(np.testing.assert_array_equal, loaded.policies, jax.device_get(run.policies))
    assert len(loaded.lines) <= builder.MOST_LINES
    assert loaded.lines[-1]["update"] == run.lines[-1]["update"]
    whole = checkpoint.read_arrays(checkpoint.latest(tmp_path / "run" / "checkpoints"))
    kept = checkpoint.read_arrays(checkpoint.latest(slim / "checkpoints"))
    assert set(kept) < set(whole)
    assert "command" not in json.loads((slim / "config.json").read_text())["provenance"]


def test_the_list_is_made_from_the_entries(builder, tmp_path):
    for name in ("matrix/game", ".matrix/half"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"slim": {"name": name}}))
        (folder / "replay.html").write_text("page")
    assert builder.write_index(tmp_path) == 1
    found = json.loads((tmp_path / "zoo.json").read_text())["entries"]
    size = len(json.dumps({"slim": {"name": "matrix/game"}})) + 4
    assert found == {"matrix/game": {"name": "matrix/game", "bytes": size, "page_bytes": 4}}
