"""Each kind of bad input has its own message, exit code 2, no traceback, and harms nothing that is saved."""

import errno
import hashlib
import json

import pytest

from shoal.training import checkpoint, sealed_archive

from .conftest import SMALL, assert_refused


def digest(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["tran", "demo"], "Did you mean 'train'"),
        (["bench", "trian"], "Did you mean 'bench train'"),
        (["train", "mpe/simple_spred"], "Did you mean 'mpe/simple_spread'"),
        (["train", "demo", "--algo", "pp"], "Did you mean 'ppo' or"),
        (["train", "demo", "--num-env", "3"], "Did you mean --num-envs"),
        (["train", "mpe/simple_spread", "--env.num-agent", "4"], "Did you mean --env.num-agents"),
        (["diff", "demo"], "missing B, what to compare it with"),
        (["bench", "env", "tag/gird"], "Did you mean 'tag/grid'"),
        (["bench", "env", "tag/grid", "--env.num-tagers", "3"], "Did you mean --env.num-taggers"),
        (["eval", "somewhere", "--episods", "3"], "Did you mean --episodes?"),
        (["eval"], "RUN"),
        (["envs", "--jsn"], "Did you mean --json?"),
    ],
)
def test_unknown_names_suggest_the_nearest(shoal, args, words):
    assert_refused(shoal(*args), words)


@pytest.mark.parametrize("command", [["train"], ["bench", "env"], ["bench", "train"], ["sweep"]])
def test_options_of_our_worlds_are_not_those_of_others(shoal, command):
    outcome = shoal(*command, "tag/grid", "--env-option", "num_taggers=3")
    assert_refused(outcome, "--env-option is for environments of other libraries", "--env.num-taggers 3.")
    assert f"`shoal {' '.join(command)} tag/grid --help`" in outcome.err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["train", "demo", "--num-envs", "0"], "--num-envs must be greater than 0, got 0"),
        (["train", "demo", "--num-steps", "-1"], "--num-steps must be greater than 0, got -1"),
        (["train", "demo", "--total-env-steps", "0"], "--total-env-steps must be greater than 0"),
        (["train", "demo", "--num-seeds", "0"], "--num-seeds must be greater than 0"),
        (["train", "demo", "--seed", "-1"], "seed must be between 0"),
        (["train", "demo", "--devices", "0"], "devices must be greater than 0"),
        (["train", "demo", "--checkpoint-minutes", "0"], "--checkpoint-minutes must be greater than 0"),
        (["train", "demo", "--algo.minibatches", "0"], "minibatches must be greater than 0"),
        (["train", "demo", "--algo.network.hidden", "0"], "hidden must be"),
        (["train", "mpe/simple_spread", "--env.num-agents", "0"], "--env.num-agents must be"),
        (["train", "tag/grid", "--env.num-taggers", "20", "--env.grid-length", "3"], "at most the number of cells, 16"),
        (["bench", "env", "tag/grid", "--num-envs", "0"], "--num-envs must be greater than 0"),
        (["bench", "env", "tag/grid", "--num-steps", "-4"], "--num-steps must be greater than 0"),
        (["train", "demo", "--host-index", "0"], "--host-index is for several hosts: add --hosts N"),
        (["train", "demo", "--hosts", "2"], "which of them is this? Add --host-index"),
        (["train", "demo", "--hosts", "1", "--host-index", "0"], "hosts must be a whole number, 2 or greater"),
        (["train", "demo", "--hosts", "2", "--host-index", "2"], "--host-index must be between 0 and 1"),
        (["train", "demo", "--hosts", "2", "--host-index", "1", "--coordinator", "here"], "must be ADDRESS:PORT"),
        (["bench", "train", "demo", "--seconds", "0"], "seconds must be greater than 0"),
    ],
)
def test_impossible_sizes(shoal, args, words):
    assert_refused(shoal(*args), words)


def test_copies_that_do_not_fit_the_minibatches(shoal, tmp_path):
    outcome = shoal("train", "demo", "--num-envs", "7", "--algo.minibatches", "4", "--run-dir", tmp_path / "run")
    assert_refused(outcome, "--num-envs must be a multiple", "4", "Try 8")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("shape", ["step", "'prey'", "(5,)"]),
        ("state", ["step", "state"]),
        ("raises", ["step", "tiny_world.py", "KeyError", "a bug of the user's"]),
    ],
)
def test_a_world_that_breaks_the_contract(shoal, world, tmp_path, mode, words):
    run = tmp_path / "run"
    outcome = shoal("train", "test/tiny", "--import", world, "--env.mode", mode, "--run-dir", run, *SMALL)
    assert_refused(outcome, "world 'test/tiny'", *words)
    assert not run.exists()


def test_a_world_that_returns_nan(shoal, world, tmp_path):
    run = tmp_path / "run"
    outcome = shoal("train", "test/tiny", "--import", world, "--env.mode", "nan", "--run-dir", run, *SMALL, "--json")
    assert_refused_at_the_end(
        outcome, "the reward of agent prey[0] in copy 0 at step 2 of the run", "in update 1 of world 'test/tiny'"
    )
    assert checkpoint.read_meta(checkpoint.latest(run / "checkpoints"))["update"] == 0


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ("{}", "NoGroups.groups is empty: a world needs at least one group of agents"),
        ("[shoal.Group(1, shoal.Discrete(2))]", "NoGroups.groups is [Group(size=1"),
        ("{'agent': 3}", "NoGroups.groups has the entry 'agent': 3"),
        ("{0: shoal.Group(1, shoal.Discrete(2))}", "NoGroups.groups has the entry 0: Group(size=1"),
    ],
)
def test_worlds_without_groups(shoal, tmp_path, groups, words):
    file = tmp_path / "no_groups.py"
    file.write_text(
        "import dataclasses, shoal\n@shoal.register('test/no_groups')\n@dataclasses.dataclass(frozen=True)\n"
        f"class NoGroups(shoal.Env):\n    @property\n    def groups(self):\n        return {groups}\n"
    )
    assert_refused(shoal("train", "test/no_groups", "--import", file), words, "shoal.Group(3, shoal.Discrete(5))")


def assert_refused_at_the_end(outcome, *words):
    """Refused after training had begun: stderr has progress too, and stdout nothing."""
    assert (outcome.code, outcome.out) == (2, "")
    assert "Traceback" not in outcome.err
    message = outcome.err.strip().splitlines()[-1]
    assert message.startswith("error: ")
    assert all(word in message for word in words)


@pytest.mark.parametrize(
    ("text", "words"),
    [("def broken(:\n", "SyntaxError"), ("raise RuntimeError('no')\n", "RuntimeError: no")],
)
def test_a_file_that_cannot_be_imported(shoal, tmp_path, text, words):
    file = tmp_path / "broken.py"
    file.write_text(text)
    assert_refused(shoal("train", "test/tiny", "--import", file), "--import", words)
    assert_refused(shoal("train", "test/tiny", "--import", tmp_path / "nothing.py"), "no such file")


def test_an_imported_file_must_register_the_world(shoal, tmp_path):
    file = tmp_path / "empty.py"
    file.write_text("")
    assert_refused(shoal("train", "test/tiny", "--import", file), "unknown world or preset 'test/tiny'")


def test_a_run_folder_that_exists(shoal, run):
    before = digest(run)
    assert_refused(shoal("train", "demo", "--run-dir", run), "already exists", f"shoal resume {run}")
    assert digest(run) == before


def test_a_run_folder_that_cannot_be_made(shoal, world, tmp_path):
    file = tmp_path / "file"
    file.write_text("precious")
    outcome = shoal("train", "test/tiny", "--import", world, *SMALL, "--run-dir", file / "run", "--json")
    assert_refused_at_the_end(outcome, "cannot create the run folder", "Not a directory", "--run-dir")
    assert file.read_text() == "precious"
    assert_refused(shoal("train", "demo", "--run-dir", file), "already exists")


@pytest.mark.parametrize("command", ["eval", "watch", "resume"])
def test_a_folder_that_is_no_run(shoal, tmp_path, command):
    assert_refused(shoal(command, tmp_path / "nothing"), "is not a run folder")
    assert_refused(shoal(command, tmp_path), "it has no config.json")


@pytest.mark.parametrize("command", ["eval", "watch", "resume"])
def test_a_run_of_a_world_that_is_not_imported(shoal, world, run, command):
    assert_refused(shoal(command, run), "unknown world 'test/tiny'", f"trust that file, name it: --import {world}")


@pytest.mark.parametrize("command", ["eval", "watch", "resume"])
def test_a_run_from_a_newer_version(shoal, world, run, command):
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"format": 999, "shoal": "99.0"}))
    before = digest(run)
    assert_refused(shoal(command, run, "--import", world), "newer version of shoal (99.0", "pip install -U shoal-rl")
    assert digest(run) == before


@pytest.mark.parametrize("command", ["eval", "watch", "resume"])
def test_a_config_that_is_cut_short(shoal, world, run, command):
    whole = (run / "config.json").read_bytes()
    (run / "config.json").write_bytes(whole[: len(whole) // 2])
    before = digest(run)
    assert_refused(shoal(command, run, "--import", world), "config.json is damaged or cut short")
    assert digest(run) == before


def test_a_config_with_an_unknown_entry(shoal, world, run):
    config = json.loads((run / "config.json").read_text())
    config["experiment"]["num_env"] = 3
    (run / "config.json").write_text(json.dumps(config))
    assert_refused(shoal("eval", run, "--import", world), "config.json", "Did you mean 'num_envs'")


@pytest.mark.parametrize("command", ["eval", "watch", "resume"])
def test_a_checkpoint_that_is_cut_short(shoal, world, run, command):
    newest = checkpoint.latest(run / "checkpoints")
    newest.write_bytes(newest.read_bytes()[:-100])
    before = digest(run)
    outcome = shoal(command, run, "--import", world, "--json")
    assert_refused_at_the_end(outcome, "damaged or cut short", "remove the damaged file and resume")
    assert digest(run) == before


@pytest.mark.parametrize("command", ["eval", "resume"])
def test_a_checkpoint_of_another_network_shape(shoal, world, run, command):
    config = json.loads((run / "config.json").read_text())
    for learner in config["experiment"]["learners"].values():
        learner["algorithm"]["network"]["hidden"] = [5]
    (run / "config.json").write_text(json.dumps(config))
    before = digest(run)
    outcome = shoal(command, run, "--import", world, "--json")
    assert_refused_at_the_end(outcome, "network.hidden is 5 in config.json, 4 in the checkpoint")
    assert digest(run) == before


def test_weights_of_another_network_shape(shoal, world, run, tmp_path):
    new = tmp_path / "new"
    outcome = shoal(
        *("train", "test/tiny", "--import", world, *SMALL, "--algo.network.hidden", "5"),
        *("--weights", f"prey={run}", "--run-dir", new, "--json"),
    )
    assert_refused_at_the_end(outcome, "the policy 'prey' there does not fit: network.hidden is 5 here, 4 there")
    assert not new.exists()


def test_a_disk_that_fills_up_while_saving(shoal, world, tmp_path, monkeypatch):
    run, write, calls = tmp_path / "run", sealed_archive.write, []

    def full(*args):
        calls.append(args)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(*args)

    monkeypatch.setattr(sealed_archive, "write", full)
    outcome = shoal("train", "test/tiny", "--import", world, *SMALL, "--run-dir", run, "--json")
    assert_refused_at_the_end(outcome, "No space left on device", "earlier checkpoints are intact")
    assert shoal("eval", run, "--import", world, "--episodes", "4", "--json").json["updates"] == 0


def test_a_disk_that_fills_up_while_drawing(shoal, world, run, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    before = (run / "replay.html").read_bytes()
    monkeypatch.setattr("shoal.viz.replay.os.fsync", full)
    assert_refused(shoal("watch", run, "--import", world), "replay.html", "No space left on device")
    assert (run / "replay.html").read_bytes() == before


def test_unexpected_errors_keep_their_traceback(shoal, monkeypatch):
    def bug(*args):
        raise ZeroDivisionError

    monkeypatch.setattr("shoal.cli.commands.listings.envs", bug)
    with pytest.raises(ZeroDivisionError):
        shoal("envs")


def test_debug_keeps_every_traceback(shoal, monkeypatch):
    monkeypatch.setenv("SHOAL_DEBUG", "1")
    with pytest.raises(LookupError, match="nowhere"):
        shoal("train", "nowhere")


def test_running_out_of_device_memory(shoal, monkeypatch):
    class JaxRuntimeError(RuntimeError):
        pass

    def full(*args):
        raise JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 99 bytes.")

    monkeypatch.setattr("shoal.cli.commands.listings.envs", full)
    assert_refused(shoal("envs"), "out of memory", "--num-envs")
