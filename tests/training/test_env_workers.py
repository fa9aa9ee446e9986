"""Environments in processes of their own: the same weights, and hangs, deaths and errors that cost no run.

One server of processes serves all of these tests; a process starts in tens of milliseconds.
"""

import contextlib
import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

pytest.importorskip("gymnasium", reason="Gymnasium is not installed: pip install gymnasium")

import shoal
from shoal.algorithms import PPO
from shoal.core import registry
from shoal.core.errors import OptionError, WorldError
from shoal.core.interrupts import listening
from shoal.networks.torsos import Network
from shoal.training import host
from shoal.training.env_workers import EnvSource, WorkerEnvs
from shoal.training.experiment import Experiment, Learner
from shoal.training.host_stages import SeparateEnvs, Watchdog
from shoal.training.run import load_policies, weights_sha256
from shoal.training.runner import Local, resume, run

FILE = str(Path(__file__).parents[1] / "worlds" / "drift.py")
ID = "gymnasium:Drift-v0"


@pytest.fixture(autouse=True)
def _known():
    """The environment's file is one that the user named, so workers import it too."""
    registry.import_file(FILE)
    yield
    registry._files.clear()
    registry._foreigners.clear()


def experiment(num_envs=4, num_steps=8, updates=4, **options):
    learner = Learner(PPO(minibatches=1, epochs=1, network=Network(hidden=(8,))))
    steps = num_envs * num_steps * updates
    return Experiment(ID, options, (), {"learner": learner}, num_envs, num_steps, steps)


def staged(num_envs=4, workers=2, timeout=30.0, **options):
    """Stages of the same environments: in this process, and in others."""
    env, seeds = shoal.make(ID, **options), list(range(num_envs))
    return SeparateEnvs(env, env.open(num_envs).envs, seeds), WorkerEnvs(
        env, EnvSource.of(ID, options), seeds, workers, timeout
    )


def actions(t, num_envs=4):
    return {"agent": (np.arange(num_envs, dtype=np.int32)[:, None] + t) % 3}


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize("workers", [1, 3])
def test_they_tell_the_same_to_the_bit(workers):
    here, there = staged(workers=workers)
    try:
        assert_same(here.reset(), there.reset())
        for t in range(16):  # over the ends of two episodes
            assert_same(here.step(actions(t)), there.step(actions(t)))
        assert there.restarts == 0
        assert there.sound.all()
        assert not there.cut_short.any()
    finally:
        there.close()
    assert there.workers == []


def test_the_weights_are_the_same_to_the_bit():
    plan = experiment()
    alone, apart = run(plan), run(plan, on=Local(env_workers=2))
    assert weights_sha256(alone.policies) == weights_sha256(apart.policies)
    assert "env_restarts" not in apart.lines[-1]
    setup = plan.setup
    found = [shoal.evaluate(setup, alone.policies, episodes=6, env_workers=workers) for workers in (0, 2)]
    np.testing.assert_array_equal(found[0].returns["agent"], found[1].returns["agent"])


@pytest.mark.parametrize("fault", ["exit", "abort", "hang"])
def test_a_process_that_dies_or_hangs_is_replaced(fault, tmp_path, capfd):
    """Its copies are cut short where they were last seen and restart; nobody else notices."""
    timeout = 1.0 if fault == "hang" else 30.0
    here, there = staged(timeout=timeout, at=3)
    there.source = EnvSource.of(ID, {"fault": fault, "at": 3, "marker": str(tmp_path / "once")})
    try:
        assert_same(here.reset(), there.reset())
        before = [(here.step(actions(t)), there.step(actions(t))) for t in range(2)][-1][1]
        sound, told = here.step(actions(2)), there.step(actions(2))
        lost = there.cut_short.copy()
        assert lost.tolist() in ([True, True, False, False], [False, False, True, True])
        assert told.outcome.truncated.tolist() == lost.tolist()
        assert not told.outcome.reward["agent"][lost].any()
        np.testing.assert_array_equal(told.final["agent"].view[lost], before.observation["agent"].view[lost])
        assert (told.observation["agent"].view[lost] != before.observation["agent"].view[lost]).any()
        np.testing.assert_array_equal(told.observation["agent"].view[~lost], sound.observation["agent"].view[~lost])
        assert there.restarts == 1
        assert not there.step(actions(3)).outcome.truncated.any()
        assert not there.cut_short.any()
    finally:
        there.close()
    said = {"exit": "exit code 3", "abort": "SIGABRT", "hang": "did not come back from its step in 1 s"}[fault]
    assert said in capfd.readouterr().err


def test_an_environment_that_raises_is_replaced_alone(tmp_path, capfd):
    _, there = staged(at=2, fault="raise", marker=str(tmp_path / "once"))
    try:
        there.reset()
        there.step(actions(0))
        told = there.step(actions(1))
        assert there.cut_short.sum() == told.outcome.truncated.sum() == there.restarts == 1
        there.step(actions(2))
        assert there.restarts == 1
    finally:
        there.close()
    assert "step 2: step raised ValueError: a wheel came off. It is restarted." in capfd.readouterr().err


@pytest.mark.slow
def test_who_keeps_dying_ends_the_run_in_words_with_what_was_learnt(tmp_path):
    """Every environment ends its process in its tenth step; the metrics count, and the fourth time is too often."""
    plan = experiment(updates=6, fault="exit", at=10)
    with pytest.raises(WorldError) as error:
        run(plan, tmp_path / "run", on=Local(env_workers=1))
    said = str(error.value)
    assert "step 40: the process of copies 0 to 3 died (exit code 3); it keeps happening. The run is saved" in said
    assert " after 4 updates; " in said
    assert said.endswith(f"shoal resume {tmp_path / 'run'} --import {FILE} --env-workers 1")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line.get("env_restarts") for line in lines] == [1, 2, 3, 4]  # when each is written, one update late
    assert load_policies(tmp_path / "run")[2]["update"] == 4
    assert resume(tmp_path / "run", on=Local(env_workers=1)).update == 6  # where they die once


def test_what_cannot_be_is_refused():
    with pytest.raises(OptionError, match="env_workers must be a whole number, 0"):
        run(experiment(), on=Local(env_workers=-1))
    with pytest.raises(OptionError, match="env_timeout must be greater than 0"):
        run(experiment(), on=Local(env_timeout=0.0))
    with pytest.raises(OptionError, match="pong is compiled: --env-workers is for environments of other libraries"):
        run(dataclasses.replace(experiment(), env="pong"), on=Local(env_workers=2))
    with pytest.raises(OptionError, match="steps its copies by itself, as one batch: leave out --env-workers"):
        run(experiment(vectorisation_mode="sync"), on=Local(env_workers=2))


def test_what_is_forked_has_not_begun_to_compute():
    """The server of processes imports JAX, which may be forked as long as it has no backend."""
    check = "import shoal.training.env_workers, jax; assert not jax._src.xla_bridge._backends"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=120)


def test_a_hang_in_this_process_is_named(capfd):
    stage, _ = staged()
    stage.at[0], stage.steps = 2, 5
    watchdog = Watchdog(stage, 0.2)
    time.sleep(0.5)
    watchdog.close()
    watchdog.thread.join(5)
    said = capfd.readouterr().err
    assert f"{ID}: copy 2 has been in step 5 for 0 s. Ctrl-C twice ends the run; --env-workers N" in said
    stage.at[0] = -1
    watchdog = Watchdog(stage, 0.1)
    time.sleep(0.3)
    watchdog.close()
    assert capfd.readouterr().err == ""


def test_the_host_runner_has_a_watchdog(monkeypatch):
    watched = []
    monkeypatch.setattr(host, "Watchdog", lambda *args: watched.append(args) or contextlib.nullcontext())
    program = host.make_host_program(experiment(), stepping=host.Stepping(timeout=7.0))
    stage = program.host_stepper._open(0)
    assert watched == [(stage, 7.0)]
    stage.close()


@pytest.mark.parametrize("number", [1, 4])
def test_nan_cuts_an_episode_short_and_is_counted(number, tmp_path):
    """One of 0.4 % of steps costs nothing but the episode; a copy that always tells NaN is left out, and all of them
    end the run.
    """
    env = shoal.make(ID)
    envs = env.open(4).envs
    for one in envs[:number]:
        inner = one.env.step
        one.env.step = lambda action, inner=inner: (np.full(3, np.nan, np.float32), *inner(action)[1:])
    stage = SeparateEnvs(env, envs, range(4))
    stage.reset()
    told = stage.step(actions(0))
    assert told.outcome.truncated.tolist() == [i < number for i in range(4)]
    assert np.isfinite(told.observation["agent"].view).all()
    for t in range(12):
        stage.step(actions(t))
    assert stage.out.tolist() == [i < number for i in range(4)]
    assert stage.restarts == 10 * number


@pytest.mark.slow
def test_a_run_outlives_nan(tmp_path):
    result = run(experiment(fault="nan", at=11), tmp_path / "run")
    assert result.update == 4
    assert result.lines[-1]["env_restarts"] == 4
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.policies))


def test_others_stand_in_for_a_copy_that_is_left_out(monkeypatch):
    """What is learnt is what is learnt where the copy did what the one in its place did."""
    seen = []
    program = host.make_host_program(experiment())
    carry = program.init()
    advance = program.compiled(carry)
    with contextlib.closing(program):
        program.host_stepper.stage.health.out[1] = True
        learner = host.HostProgram._learn

        def spied(self, learn, carry, worlds, memory, steps, sound):
            return learner(self, lambda *args: seen.append(args) or learn(*args), carry, worlds, memory, steps, sound)

        monkeypatch.setattr(host.HostProgram, "_learn", spied)
        after, _ = advance(carry, 1)
    steps = seen[0][3]
    np.testing.assert_array_equal(steps.reward["agent"][:, 1], steps.reward["agent"][:, 2])  # well[1 % 3]
    assert steps.reward["agent"][:, 1].any()
    assert not after.worlds.observation["agent"].view[1].any()


@pytest.mark.parametrize("fault", ["interrupt", "system", "generator"])
def test_whatever_a_bridged_environment_raises_gets_words(fault):
    stage, _ = staged(num_envs=1, fault=fault, at=1)
    stage.reset()
    said = rf"^copy 0: {ID}, episode 1, step 1: step raised \w+: a wheel came off$"
    with listening(), pytest.raises(WorldError, match=said):
        stage.step(actions(0, 1))
    if fault == "interrupt":  # who does not listen cannot tell, and leaves Ctrl-C its meaning
        again, _ = staged(num_envs=1, fault=fault, at=1)
        again.reset()
        with pytest.raises(KeyboardInterrupt):
            again.step(actions(0, 1))


@pytest.mark.parametrize("fault", ["interrupt", "system"])
def test_what_is_raised_while_it_is_made_gets_words(fault):
    with pytest.raises(OptionError, match=rf"{ID}: making it .* raised \w+: no road"):
        shoal.make(ID, fault=fault, at=-1)
