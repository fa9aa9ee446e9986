"""What the loop does besides updates: evaluation, the best checkpoint, older ones, and more training of a run."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from tests.worlds.bandit import Bandit

from shoal import register
from shoal.algorithms import DQN, PPO
from shoal.core.errors import OptionError, RunError
from shoal.networks.torsos import Network
from shoal.training import checkpoint
from shoal.training.experiment import Experiment, Learner
from shoal.training.folder_lock import lock_folder
from shoal.training.metrics import read_metrics
from shoal.training.run import load_policies, open_run, weights_sha256
from shoal.training.runner import Local, resume, run


@pytest.fixture(autouse=True)
def world():
    register("loop/bandit")(Bandit)


def experiment(updates=8, **more):
    learner = Learner(PPO(learning_rate=0.02, minibatches=1, epochs=1, anneal=True, network=Network(hidden=(4,))))
    sizes = {"num_envs": 8, "num_steps": 4, "total_env_steps": 32 * updates}
    return Experiment("loop/bandit", learners={"learner": learner}, **sizes | more)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    register("loop/bandit")(Bandit)
    folder = tmp_path_factory.mktemp("runs") / "evaluated"
    result = run(experiment(eval_every=64, eval_episodes=16, keep_checkpoints=2), folder, on=Local(devices=1))
    return folder, result


def test_lines_of_metrics_say_how_it_does_greedily(evaluated):
    folder, result = evaluated
    lines = read_metrics(folder / "metrics.jsonl")
    assert [line["update"] for line in lines if "eval/return" in line] == [2, 4, 6, 8]
    last = lines[-1]
    assert last["eval/return"] == last["eval/return/agent"]
    assert last["eval/length"] == pytest.approx(1.0)
    assert result.lines[-1]["eval/return"] == last["eval/return"]
    assert np.isfinite(last["eval/return"])


def test_the_best_checkpoint_is_the_first_that_did_best(evaluated):
    folder, _ = evaluated
    lines = [line for line in read_metrics(folder / "metrics.jsonl") if "eval/return" in line]
    best = max(lines, key=lambda line: (line["eval/return"], -line["update"]))
    _, _, meta = load_policies(folder, which="best")
    assert meta["update"] == best["update"]
    assert meta["best"] == pytest.approx(best["eval/return"], abs=1e-6)


def test_older_checkpoints_are_kept_as_asked_and_can_be_named(tmp_path):
    run(experiment(keep_checkpoints=4), tmp_path / "run", on=Local(devices=1), checkpoint_seconds=0.0)
    kept = checkpoint.steps(tmp_path / "run" / "checkpoints")
    assert len(kept) == 4
    assert max(kept) == 8
    _, _, meta = load_policies(tmp_path / "run", which=str(min(kept)))
    assert meta["update"] == min(kept)
    with pytest.raises(RunError, match=r"has no checkpoint '99': it keeps those of the updates .*, 8"):
        load_policies(tmp_path / "run", which="99")
    with pytest.raises(RunError, match=r"has no best checkpoint: .*--eval-every"):
        load_policies(tmp_path / "run", which="best")


@pytest.fixture(scope="module")
def replayed(tmp_path_factory):
    """A finished run with a replay: three checkpoints, and the best one."""
    register("loop/bandit")(Bandit)
    learner = Learner(DQN(buffer_size=64, warm_up=16, batch_size=8, network=Network(hidden=(4,))))
    folder = tmp_path_factory.mktemp("runs") / "replayed"
    tried = dataclasses.replace(experiment(eval_every=64, eval_episodes=2), learners={"learner": learner})
    run(tried, folder, on=Local(devices=1), checkpoint_every=64)
    return folder


def test_only_the_newest_checkpoint_has_the_replay(replayed):
    kept = checkpoint.steps(replayed / "checkpoints")
    best = checkpoint.latest(replayed / "best")
    having = [any("/replay/" in name for name in checkpoint.stored_names(path)) for path in (*kept.values(), best)]
    assert having == [False, False, True, False]
    _, oldest, meta = load_policies(replayed, which=min(kept))
    assert meta["update"] == min(kept)
    assert load_policies(replayed, which="best")[1].keys() == oldest.keys()
    arrays = [checkpoint.read_arrays(path) for path in kept.values()]
    rest = {name for name in arrays[-1] if "/replay/" not in name}
    assert set(arrays[0]) == set(arrays[1]) == rest


def test_resuming_without_the_replay_is_said(replayed, tmp_path):
    """The newest checkpoint is lost: the run goes on from the one before, and fills a replay again."""
    folder = tmp_path / "run"
    shutil.copytree(replayed, folder)
    checkpoint.latest(folder / "checkpoints").unlink()
    before = checkpoint.latest(folder / "checkpoints")
    with pytest.warns(UserWarning, match=r"has no replay: only the newest checkpoint .* an empty replay"):
        result = resume(folder, on=Local(devices=1))
    assert result.update == 8
    updates = 8 - checkpoint.read_meta(before)["update"]
    arrays = checkpoint.read_arrays(checkpoint.latest(folder / "checkpoints"))
    assert arrays["learners/learner/replay/written"] == 4 * updates


def test_checkpoints_by_env_steps(tmp_path):
    """Every 80 env steps are every 3 updates of 32; with evaluations at other updates, and whatever the time."""
    tried = experiment(keep_checkpoints=9, eval_every=64, eval_episodes=2)
    whole = run(tried, tmp_path / "run", on=Local(devices=1), checkpoint_every=80)
    assert list(checkpoint.steps(tmp_path / "run" / "checkpoints")) == [0, 3, 6, 8]
    resume(tmp_path / "run", on=Local(devices=1), total_env_steps=32 * 12, checkpoint_every=64)
    assert list(checkpoint.steps(tmp_path / "run" / "checkpoints")) == [0, 3, 6, 8, 10, 12]
    plain = run(experiment(), tmp_path / "plain", on=Local(devices=1))
    assert weights_sha256(whole.policies) == weights_sha256(plain.policies)
    with pytest.raises(OptionError, match=r"checkpoint_every must be 0 .by time alone. or more, got -1"):
        run(tried, tmp_path / "none", checkpoint_every=-1)


def test_evaluation_changes_nothing_that_is_learnt(evaluated, tmp_path):
    _, result = evaluated
    plain = run(experiment(), tmp_path / "plain", on=Local(devices=1))
    assert weights_sha256(result.policies) == weights_sha256(plain.policies)


def test_a_finished_run_is_trained_further(tmp_path):
    """From half of the updates to all of them: as many updates, lines and env steps as a run of that length has."""
    run(experiment(updates=4), tmp_path / "run", on=Local(devices=1))
    further = resume(tmp_path / "run", on=Local(devices=1), total_env_steps=32 * 8)
    assert (further.update, further.interrupted) == (8, False)
    assert open_run(tmp_path / "run").experiment.total_env_steps == 32 * 8
    assert [line["update"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl")] == list(range(1, 9))
    _, _, meta = load_policies(tmp_path / "run")
    assert meta["env_steps"] == 32 * 8
    again = resume(tmp_path / "run", on=Local(devices=1))  # it is over: nothing is left to do
    assert weights_sha256(again.policies) == weights_sha256(further.policies)


def test_what_is_refused_leaves_the_total_as_it_was(tmp_path):
    run(experiment(updates=4), tmp_path / "run", on=Local(devices=1))
    before = (tmp_path / "run" / "config.json").read_text()
    with lock_folder(tmp_path / "run"), pytest.raises(RunError, match="another process is training in"):
        resume(tmp_path / "run", on=Local(devices=1), total_env_steps=32 * 8)
    missing = f"csv:path={tmp_path}/missing/x.csv"
    with pytest.raises(RunError, match="missing"):
        resume(tmp_path / "run", on=Local(devices=1), total_env_steps=32 * 8, loggers=[missing])
    assert (tmp_path / "run" / "config.json").read_text() == before


def test_schedules_stretch_to_the_new_end(tmp_path):
    run(experiment(updates=4), tmp_path / "run", on=Local(devices=1))
    before = weights_sha256(load_policies(tmp_path / "run")[1])
    resume(tmp_path / "run", on=Local(devices=1), total_env_steps=32 * 8)
    newest = checkpoint.latest(tmp_path / "run" / "checkpoints")
    assert checkpoint.read_arrays(newest)["learners/learner/hyper/total_updates"] == 8
    assert weights_sha256(load_policies(tmp_path / "run")[1]) != before, "a rate that has fallen to 0 teaches nothing"


def test_fewer_steps_than_before_are_refused(tmp_path):
    run(experiment(updates=4), tmp_path / "run", on=Local(devices=1))
    before = json.loads((tmp_path / "run" / "config.json").read_text())
    with pytest.raises(OptionError, match=r"has a total of 128 env steps, and 64 are fewer. .*--total-env-steps"):
        resume(tmp_path / "run", on=Local(devices=1), total_env_steps=64)
    assert json.loads((tmp_path / "run" / "config.json").read_text()) == before
