"""The fused program: one compilation, no transfers, the same on any number of devices, resumable to the bit."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal.algorithms import A2C, DQN, PPO
from shoal.core.errors import NonFiniteError, OptionError, RunError
from shoal.core.registry import register
from shoal.networks.torsos import Network
from shoal.training import checkpoint
from shoal.training.experiment import Experiment, Learner
from shoal.training.folder_lock import lock_folder
from shoal.training.fused import make_fused_program, policies_of
from shoal.training.run import create, load_policies, open_run, warn_of_devices, weights_sha256
from shoal.training.runner import Local, resume, run

SMALL = Network(hidden=(16,))


def small(world="mpe/simple_spread", **changes):
    learners = {"l": Learner(PPO(minibatches=2, epochs=2, network=SMALL))}
    defaults = {"num_envs": 16, "num_steps": 10, "total_env_steps": 160 * 12, "learners": learners}
    return Experiment(world, **defaults | changes)


def weights_after(experiment, updates, devices):
    program = make_fused_program(experiment, devices)
    carry, _ = program.advance(program.init(), program.counts[updates])
    return jax.device_get(policies_of(carry.learners))


LEARNERS = {
    "ppo": Learner(PPO(minibatches=2, epochs=2, network=SMALL)),
    "mappo": Learner(PPO(minibatches=2, epochs=2, network=SMALL, critic="global", normalise_values=True)),
    "recurrent": Learner(
        PPO(minibatches=2, epochs=1, network=Network(hidden=(16,), recurrent="gru", recurrent_size=8))
    ),
    "a2c": Learner(A2C(network=SMALL, normalise_views=True)),
}


@pytest.mark.parametrize(
    "name", ["ppo", *(pytest.param(name, marks=pytest.mark.slow) for name in ("recurrent", "mappo", "a2c"))]
)
def test_two_devices_agree_with_one(name):
    """The same global batch on one device and on two: within 1e-6 over the first five updates."""
    experiment = small(learners={"l": LEARNERS[name]})
    one, two = weights_after(experiment, 5, 1), weights_after(experiment, 5, 2)
    start = jax.device_get(policies_of(make_fused_program(experiment, 1).init().learners))
    moved = max(jax.tree.leaves(jax.tree.map(lambda a, b: float(np.abs(a - b).max()), start, one)))
    assert moved > 1e-4
    for name, policy in one.items():
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6), policy.weights, two[name].weights
        )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6), one, two)  # statistics are larger


@pytest.mark.parametrize("devices", [1, 2])
def test_nothing_crosses_to_the_host(devices):
    program = make_fused_program(small(), devices)
    carry = program.init()
    carry, table = program.advance(carry, program.counts[1])
    with jax.transfer_guard("disallow"):
        for _ in range(3):
            carry, table = program.advance(carry, program.counts[2])
        jax.block_until_ready(table)


def test_the_program_is_traced_and_compiled_once():
    traces = []

    @dataclasses.dataclass(frozen=True)
    class Counting(shoal.Env):
        @property
        def groups(self):
            return {"a": shoal.Group(1, shoal.Discrete(2))}

        def reset(self, key, params):
            return jax.random.uniform(key)

        def step(self, key, state, actions, params):
            traces.append(1)
            return state * 0.9, shoal.Outcome({"a": actions["a"] * 1.0}, state < 0.1, jnp.bool_(False))

        def observe(self, state, params):
            return {"a": shoal.Observation(state.reshape(1, 1))}

    register("test/counting", Counting)
    program = make_fused_program(small("test/counting"), 1)
    carry = program.init()
    assert program.names
    for count in (1, 2, 3, 1):
        carry, _ = program.advance(carry, program.counts[count])
    assert len(traces) == 1, "checks, names, memory and the compiled program share one trace"
    assert program.advance._cache_size() == 1


def test_the_carry_is_donated():
    program = make_fused_program(small(), 1)
    carry = program.init()
    held = carry.worlds.observation["agent"].view
    program.advance(carry, program.counts[1])
    assert held.is_deleted()


def test_many_updates_in_one_call_are_the_same_bits():
    program = make_fused_program(small(), 2)
    one, _ = program.advance(program.init(), program.counts[4])
    many = program.init()
    for _ in range(4):
        many, _ = program.advance(many, program.counts[1])
    jax.tree.map(np.testing.assert_array_equal, *(jax.device_get((c.learners, c.worlds.state)) for c in (one, many)))


def test_seeds_side_by_side_are_the_seeds_alone():
    together = weights_after(small(num_seeds=3, seed=4), 3, 1)
    for i in range(3):
        alone = weights_after(small(seed=4 + i), 3, 1)
        jax.tree.map(lambda a, b, i=i: np.testing.assert_allclose(a[i], b, rtol=0, atol=1e-6), together, alone)


def test_frozen_groups_do_not_move():
    learners = {
        "tagger": Learner(A2C(network=SMALL), {"tagger": ("tagger",)}),
        "runner": Learner(PPO(minibatches=2, network=SMALL), {"runner": ("runner",)}, frozen=True),
    }
    experiment = small("tag/grid", learners=learners)
    start = jax.device_get(policies_of(make_fused_program(experiment, 1).init().learners))
    end = weights_after(experiment, 3, 1)
    jax.tree.map(np.testing.assert_array_equal, start["runner"], end["runner"])
    assert weights_sha256({"a": start["tagger"]}) != weights_sha256({"a": end["tagger"]})


def test_shared_and_split_policies():
    shared = small("tag/grid", learners={"all": Learner(A2C(network=SMALL), {"all": ("tagger", "runner")})})
    assert set(weights_after(shared, 1, 1)) == {"all"}
    split = {
        "fast": Learner(A2C(learning_rate=1e-2, network=SMALL), {"first": ("agent[0]",)}),
        "slow": Learner(A2C(learning_rate=1e-4, network=Network(hidden=(8,))), {"rest": ("agent[1:3]",)}),
    }
    weights = weights_after(small(learners=split), 1, 1)
    assert set(weights) == {"first", "rest"}


def test_weights_from_another_run(tmp_path):
    run(small(), tmp_path / "a", on=Local(devices=1))
    _, policies, _ = load_policies(tmp_path / "a")
    frozen = {"l": dataclasses.replace(small().learners["l"], frozen=True, weights=str(tmp_path / "a"))}
    result = run(small(learners=frozen, seed=9), on=Local(devices=1))
    assert weights_sha256(result.policies) == weights_sha256(policies)


def test_copies_must_divide_into_minibatches():
    with pytest.raises(OptionError, match=r"multiple of the number of minibatches, 2, got 15\. Try 16"):
        make_fused_program(small(num_envs=15))


@dataclasses.dataclass(frozen=True)
class Poisoned(shoal.Env):
    """Returns NaN in the view or the reward of one agent of one copy at one step."""

    where: str = "view"
    copy_start: float = 0.0

    @property
    def groups(self):
        return {"left": shoal.Group(2, shoal.Discrete(2)), "right": shoal.Group(3, shoal.Discrete(2))}

    def reset(self, key, params):
        return {"t": jnp.int32(0), "number": jax.random.uniform(key)}

    def step(self, key, state, actions, params):
        state = {"t": state["t"] + 1, "number": state["number"]}
        bad = self._bad(state) & (self.where == "reward")
        reward = {"left": jnp.zeros(2), "right": jnp.where(bad & (jnp.arange(3) == 1), jnp.inf, 0.0)}
        cut = (state["t"] == 28) & (self.where == "final")
        spread = jnp.where((state["t"] == 28) & (self.where == "metrics"), jnp.nan, 0.0)
        return state, shoal.Outcome(reward, jnp.bool_(False), cut, {"spread": spread})

    def observe(self, state, params):
        bad = self._bad(state) & (self.where == "view")
        right = jnp.where(bad & (jnp.arange(3) == 2), jnp.nan, state["number"])[:, None]
        right = jnp.where((state["t"] == 28) & (self.where == "final"), jnp.nan, right)
        return {"left": shoal.Observation(jnp.zeros((2, 1))), "right": shoal.Observation(right)}

    def _bad(self, state):
        return (state["t"] == 25) & (jnp.abs(state["number"] - self.copy_start) < 1e-7)


register("test/poisoned", Poisoned)


@pytest.mark.parametrize(("where", "devices"), [("view", 2), pytest.param("reward", 1, marks=pytest.mark.slow)])
def test_nan_is_traced_to_its_source(tmp_path, where, devices):
    clean = make_fused_program(small("test/poisoned", env_options={"copy_start": -1.0}), 1)
    number = float(np.asarray(clean.init().worlds.state["number"])[11])
    experiment = small("test/poisoned", env_options={"where": where, "copy_start": number}, num_envs=16)
    agent = {"view": 2, "reward": 1}[where]
    kind = {"view": "observation", "reward": "reward"}[where]
    # A view of time 25 is seen at step 25; the reward of time 25 is paid by step 24.
    step = {"view": 25, "reward": 24}[where]
    words = (
        rf"the {kind} of agent right\[{agent}\] in copy 11 at step {step} of the run is NaN or infinite, in update 3"
    )
    with pytest.raises(NonFiniteError, match=words):
        run(experiment, tmp_path / "run", on=Local(devices=devices), checkpoint_seconds=0.0)
    saved = checkpoint.latest(open_run(tmp_path / "run").checkpoints)
    assert checkpoint.read_meta(saved)["update"] <= 2
    assert all(np.isfinite(a).all() for a in checkpoint.read_arrays(saved).values() if a.dtype.kind == "f")


@pytest.mark.slow
def test_nan_in_a_final_view_is_blamed_on_the_world():
    experiment = small("test/poisoned", env_options={"where": "final"}, total_env_steps=160 * 4)
    words = r"the observation of agent right\[0\] in copy 0 at step 28 of the run is NaN or infinite, in update 3"
    with pytest.raises(NonFiniteError, match=words):
        run(experiment, on=Local(devices=1))


@pytest.mark.slow
def test_nan_in_the_metrics_of_a_world(tmp_path):
    experiment = small("test/poisoned", env_options={"where": "metrics"}, total_env_steps=160 * 4)
    with pytest.raises(NonFiniteError, match=r"metrics that `step` returns became NaN or infinite in update 3"):
        run(experiment, tmp_path / "run", on=Local(devices=1), checkpoint_seconds=0.0)


@pytest.mark.slow
def test_nan_in_the_loss_is_reported():
    learners = {"l": Learner(PPO(learning_rate=1e30, max_grad_norm=1e30, minibatches=2, network=SMALL))}
    with pytest.raises(NonFiniteError, match=r"(loss|weights) became NaN or infinite in update \d+ of world") as caught:
        run(small(learners=learners), on=Local(devices=1))
    assert "minibatch" not in str(caught.value)  # not every algorithm has them


def test_resume_gives_the_same_bits(tmp_path):
    experiment = small(learners={"l": LEARNERS["recurrent"]})
    run(experiment, tmp_path / "whole", on=Local(devices=2))
    stopper = Stopper(after=5)
    stopped = run(experiment, tmp_path / "parts", on=Local(devices=2), listener=stopper, checkpoint_seconds=0.0)
    assert stopped.interrupted
    assert stopped.update < experiment.num_updates
    finished = resume(tmp_path / "parts", on=Local(devices=2))
    assert not finished.interrupted
    whole, parts = (load_policies(tmp_path / name) for name in ("whole", "parts"))
    assert weights_sha256(whole[1]) == weights_sha256(parts[1])
    everything = [
        checkpoint.read_arrays(checkpoint.latest(tmp_path / name / "checkpoints")) for name in ("whole", "parts")
    ]
    jax.tree.map(np.testing.assert_array_equal, *everything)
    assert lines(tmp_path / "whole") == lines(tmp_path / "parts")


def test_two_processes_do_not_train_in_one_folder(tmp_path):
    begun = create(tmp_path / "run", small())
    with (
        lock_folder(begun.path),
        pytest.raises(RunError, match="another process is training in"),
        lock_folder(begun.path),
    ):
        pass
    with lock_folder(begun.path):
        pass


def test_resuming_on_other_devices_is_said(tmp_path):
    stopped = run(small(), tmp_path / "run", on=Local(devices=2), listener=Stopper(after=3), checkpoint_seconds=0.0)
    assert stopped.interrupted
    with pytest.warns(UserWarning, match=r"used 2 device\(s\) and continues on 1"):
        resume(tmp_path / "run", on=Local(devices=1))


@pytest.mark.parametrize(
    ("algorithm", "words"), [(PPO(), "agree with"), (DQN(), "draws from its own part of a replay")]
)
def test_what_other_devices_change_is_said(tmp_path, algorithm, words):
    begun = create(tmp_path / "run", Experiment("tag/grid", learners={"learner": Learner(algorithm)}))
    with pytest.warns(UserWarning, match=words):
        warn_of_devices(begun, 2, 1)


def test_devices_that_are_not_there():
    with pytest.raises(OptionError, match="devices must be between 1 and 2"):
        make_fused_program(small(), devices=3)
    with pytest.raises(OptionError, match=r"multiple of 4 \(2 devices x 2 minibatches\), got 18. Try 20"):
        make_fused_program(small(num_envs=18), devices=2)
    assert make_fused_program(small()).mesh.size == 1, "so few copies are not worth a second core"
    assert make_fused_program(small(num_envs=128)).mesh.size == 2


class Stopper:
    """Asks the loop to stop, as Ctrl-C does."""

    def __init__(self, after):
        self.after = after

    def __call__(self, progress):
        if progress.update >= self.after and threading.current_thread() is threading.main_thread():
            self.after = 10**9
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)


def lines(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


TRAINING = """
import sys, time, pathlib, jax
jax.config.update("jax_num_cpu_devices", 1)
sys.path.insert(0, {root!r})
from tests.training.test_fused import small
from shoal.training.runner import resume, run
path = pathlib.Path(sys.argv[1])
options = dict(checkpoint_seconds=0.0, listener=lambda progress: time.sleep(0.02))
print("ready", flush=True)
if (path / "config.json").exists():
    resume(path, **options)
else:
    run(small(total_env_steps=160 * 150), path, **options)
"""


@pytest.mark.slow
def test_sigkill_at_any_moment_then_resume(tmp_path):
    """Killed six times at random moments, a run still ends with the bits of an uninterrupted one."""
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", TRAINING.format(root=root)]
    subprocess.run([*command, str(tmp_path / "whole")], check=True, stdout=subprocess.DEVNULL)
    generator = np.random.default_rng(0)
    for delay in generator.uniform(0.0, 8.0, 6):
        with subprocess.Popen([*command, str(tmp_path / "parts")], stdout=subprocess.PIPE) as process:
            assert process.stdout
            process.stdout.readline()
            time.sleep(delay)
            process.kill()
    subprocess.run([*command, str(tmp_path / "parts")], check=True, stdout=subprocess.DEVNULL)
    whole, parts = (weights_sha256(load_policies(tmp_path / name)[1]) for name in ("whole", "parts"))
    assert whole == parts
    assert lines(tmp_path / "whole") == lines(tmp_path / "parts")
