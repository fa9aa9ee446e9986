"""`shoal runs`, `shoal show` and `shoal diff`: what they print, and what they refuse."""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from shoal.training.catalogue import Catalogue
from shoal.training.folder_lock import lock_folder
from tests.cli.conftest import assert_refused

GOLDEN = Path(__file__).parents[1] / "golden" / "runs"
LONG = "a_run_with_a_name_that_is_longer_than_any_terminal_" + "x" * 80


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with some runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("ppo", "psro", "pbt"):
        shutil.copytree(GOLDEN / name, tmp_path / "runs" / name)
    shutil.copytree(GOLDEN / "sweep", tmp_path / "sweeps" / "sweep")
    return tmp_path


def test_listing(shoal, here):
    told = shoal("runs")
    head, *rows = told.out.splitlines()
    assert head.split()[:3] == ["run", "environment", "algorithm"]
    assert {row.split()[0] for row in rows[:4]} == {"runs/ppo", "runs/psro", "runs/pbt", "sweeps/sweep"}
    assert rows[4] == "4 runs: 4 stopped"
    (row,) = [row for row in rows if row.startswith("runs/ppo")]
    assert "-16.54" in row
    assert "▁" in row
    assert "1.15k/1.28k" in row
    found = shoal("runs", "ppo", "--json").json["runs"]
    assert [entry["name"] for entry in found] == ["ppo"]
    assert found[0]["algorithm"] == "ppo"
    assert [entry["kind"] for entry in shoal("runs", "--root", here / "sweeps", "--json").json["runs"]] == ["sweep"]
    assert_refused(shoal("runs", "--status", "done"), "status must be")
    assert_refused(shoal("runs", "--root", "nowhere"), "--root must be a folder")
    assert shoal("runs", "nothing").out == "no such run in runs/ or sweeps/: leave out some of what was asked for\n"
    shutil.rmtree(here / "runs")
    shutil.rmtree(here / "sweeps")
    assert "`shoal train demo` makes one" in shoal("runs").out


def test_names_are_never_cut(shoal, here, monkeypatch):
    shutil.copytree(GOLDEN / "ppo", here / "runs" / LONG)
    monkeypatch.setattr("shoal.cli.terminal.PIPE_WIDTH", 80)
    rows = shoal("runs").out.splitlines()
    assert any(row.split() == [f"runs/{LONG}"] for row in rows)
    shutil.rmtree(here / "runs" / LONG)
    rows = shoal("runs").out.splitlines()
    assert all(len(row) <= 80 for row in rows)
    assert set(rows[0].split()) >= {"run", "algorithm", "status", "steps", "return", "curve"}


def test_tags_notes_and_control_characters(shoal, here):
    assert shoal("runs", "tag", "ppo", "paper", "x").out == "runs/ppo: #paper  #x\n"
    assert shoal("runs", "tag", here / "runs" / "ppo", "y", "--json").json["tags"] == ["paper", "x", "y"]
    assert shoal("runs", "untag", "runs/ppo", "x", "y").out == "runs/ppo: #paper\n"
    assert_refused(shoal("runs", "untag", "ppo", "papre"), "Did you mean 'paper'")
    assert_refused(shoal("runs", "tag", "ppo", "two words"), "one word")
    assert_refused(shoal("runs", "tag", "ppo"), "which tags")
    assert_refused(shoal("runs", "tag", "ppo", "good", "ppo"), "ppo is a run, and tags are given to one run at a time")
    assert_refused(shoal("runs", "note", "pppo", "x"), "Did you mean 'runs/ppo'")
    shoal("runs", "note", "ppo", "\x1b[31m[bold]red[/bold]\x07\nsecond <script>")
    told = shoal("runs", "--tag", "paper").out
    assert "\x1b" not in told
    assert "\x07" not in told
    assert "[bold]red[/bold]" in told
    assert "second <script>" in told
    assert told.splitlines()[-1] == "1 run: 1 stopped"
    assert shoal("runs", "note", "ppo", "").out == "runs/ppo: #paper\n"


def test_remove(shoal, here):
    assert_refused(shoal("runs", "remove", "ppo"), "nobody can be asked here: add --yes")
    with lock_folder(here / "runs" / "ppo"):
        assert_refused(shoal("runs", "remove", "psro", "ppo", "--yes"), "is running: stop it first")
    assert_refused(shoal("runs", "remove", "psro", "checkpoints", "--yes"), "unknown run 'checkpoints'")
    assert_refused(shoal("runs", "remove", "runs", "--yes"), "unknown run 'runs'")
    assert_refused(shoal("runs", "remove"), "which runs")
    (here / "runs" / "link").symlink_to(here / "runs" / "psro")
    assert_refused(shoal("runs", "remove", "runs/link", "--yes"), "is a link")
    (here / "runs" / "broken").mkdir()
    (here / "runs" / "broken" / "config.json").write_text("{")
    assert_refused(shoal("runs", "remove", "broken", "--yes"), "cannot be read as a run")
    (here / "other").mkdir()
    (here / "other" / "config.json").write_text("{}")
    assert_refused(shoal("runs", "remove", "other", "--yes"), "unknown run")
    assert len(list((here / "runs").iterdir())) == 5
    told = shoal("runs", "remove", "ppo", "sweeps/sweep", "--yes", "--json")
    assert told.json["removed"] == [str(here / "runs" / "ppo"), str(here / "sweeps" / "sweep")]
    assert not (here / "runs" / "ppo").exists()
    assert not list((here / "sweeps").iterdir())


def test_remove_asks(shoal, here, monkeypatch):
    class Person:
        def __init__(self, answer):
            self.readline = lambda: answer

        def isatty(self):
            return True

    monkeypatch.setattr("sys.stdin", Person("\n"))
    told = shoal("runs", "remove", "ppo")
    assert (told.code, "nothing was removed" in told.out) == (1, True)
    assert "Remove 1 run? [y/N]" in told.err
    monkeypatch.setattr("sys.stdin", Person("y\n"))
    assert shoal("runs", "remove", "ppo").code == 0
    assert not (here / "runs" / "ppo").exists()


def test_show(shoal, here):
    told = shoal("show", "runs/ppo").out
    assert told.startswith(
        f"# run of training: {here}/runs/ppo, stopped\n# has reached, after 1.15k env steps: return "
    )
    stored = Catalogue("runs").config("ppo")["experiment"]
    assert {name: tomllib.loads(told)[name] for name in stored if name != "learners"} | {"learners": 0} == (
        stored | {"learners": 0}
    )
    found = shoal("show", "runs/ppo", "--json").json
    assert (found["kind"], found["reaches"]["status"]) == ("training", "stopped")
    assert tomllib.loads(shoal("show", "sweeps/sweep").out)["kind"] == "sweep"
    known = shoal("show", "qmix/simple_spread", "--json").json["reaches"]
    assert set(known) == {"returns", "random", "seeds", "env_steps", "source"}
    assert shoal("show", "control/cartpole").out.startswith("# control/cartpole: ")
    assert_refused(shoal("show", "ippo/simple_spred"), "Did you mean 'ippo/simple_spread'")
    assert_refused(shoal("show", "exp.toml"), "exp.toml: no such file")
    assert_refused(shoal("show", "runs"), "is a folder, but not of a run")


def test_what_a_folder_says_of_its_origin_cannot_steer_the_terminal(shoal, here):
    path = here / "runs" / "ppo" / "config.json"
    command = "shoal train\x1b[2J\nenv = 'evil'\x9b"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"provenance": {"command": command, "date": 7}}))
    told = shoal("show", "runs/ppo").out
    assert "# command: shoal train [2J env = 'evil'" in told
    assert all(letter.isprintable() or letter == "\n" for letter in told)
    assert tomllib.loads(told)["env"] == "mpe/simple_spread"


def test_diff(shoal, here):
    found = shoal("diff", "ippo/simple_spread", "mappo/simple_spread", "--json").json["differ"]
    assert found["learners.team.algorithm.critic"] == ["own", "global"]
    assert shoal("diff", "demo", "demo").out == "all settings are the same\n"
    table = shoal("diff", "runs/ppo", "runs/pbt").out
    assert "kind" in table
    assert_refused(shoal("diff", "demo"), "B")
    assert_refused(shoal("diff", "demo", "nothing"), "unknown world or preset 'nothing'")


def test_train_takes_a_file_with_options_on_top(shoal, here, world):
    (here / "exp.toml").write_text(
        'env = "test/tiny"\nnum_envs = 4\nnum_steps = 8\ntotal_env_steps = 32\n'
        '[learners.all.algorithm]\nname = "a2c"\n[learners.all.algorithm.network]\nhidden = [4]\n'
    )
    assert_refused(shoal("train", "exp.toml"), "unknown world 'test/tiny'", "--import FILE")
    told = shoal("train", "exp.toml", "--import", world, "--seed", 3, "--run-dir", "runs/new", "--json")
    assert told.code == 0, told.err
    config = Catalogue("runs").config("new")
    assert (config["experiment"]["seed"], config["experiment"]["num_envs"]) == (3, 4)
    assert str(world) in config["provenance"]["imports"]  # beside what other tests imported in this process
    assert Catalogue("runs").entry("new").status == "finished"


def test_an_error_that_ends_a_training_is_listed(shoal, here, world):
    told = shoal(
        *("train", "test/tiny", "--import", world, "--env.mode", "nan", "--run-dir", "runs/new"),
        *("--num-envs", "4", "--num-steps", "8", "--total-env-steps", "96", "--algo", "a2c"),
    )
    assert told.code == 2
    entry = Catalogue("runs").entry("new")
    assert entry.status == "failed"
    assert "reward" in entry.problem or "NaN" in entry.problem
    assert f"runs/new: {entry.problem}" in shoal("runs", "new").out


def test_listing_needs_no_jax(here):
    code = "import sys; from shoal.cli import main; main(['runs']); print('jax' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.splitlines()[-1] == "False"


def test_zero_sum_runs_tell_their_sides_and_populations_nash_conv():
    from shoal.cli.commands.catalogue import NO_SUM, _best, _return, _steps
    from shoal.training.catalogue import Entry

    def run(kind="training", **more):
        return Entry("run", Path("run"), kind, "finished", **more)

    assert _return(run(sides={"left": 0.5, "right": -0.5})) == "left 0.50, right -0.50"
    assert _return(run(sides={f"player_{i}": 0.0 for i in range(9)})) == NO_SUM
    assert _return(run("psro", nash_conv=0.25)) == "NashConv 0.2500"
    assert (_return(run(last_return=0.0)), _return(run())) == ("0.00", "")
    assert _best(run(best_return=1.0)) == "1.00"
    assert _best(run(best_return=1.0, best_is_known=False)) == "≥ 1.00"
    assert _steps(run("psro", update=3, num_updates=4)) == "3/4 iterations"
    assert _steps(run("evolution", update=3, num_updates=4)) == "3/4 generations"
