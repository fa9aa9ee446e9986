"""Benchmarks of the same rollout and update that training uses; compilation is timed separately."""

import functools
import importlib.metadata
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shoal.batching.policies import random_policies
from shoal.batching.rollout import Step, rollout
from shoal.batching.vectorise import Vectorised, Worlds
from shoal.core.checks import require_counts
from shoal.core.env import describe
from shoal.core.errors import require_positive
from shoal.core.types import PyTree
from shoal.core.version import VERSION
from shoal.envs.wrappers import Wrapper
from shoal.ops.kernels.choices import record_choices
from shoal.training.devices import AXIS, make_mesh
from shoal.training.experiment import Experiment, make_world
from shoal.training.fused import make_fused_program
from shoal.training.kernel_use import describe_kernels
from shoal.training.memory import SMALLER, Need, largest, need_of, require_room
from shoal.training.program import MAX_UPDATES


class Checksum(struct.PyTreeNode):
    """Sums over everything a rollout produced, per copy: they prove that it was computed, and computed correctly."""

    views: jax.Array
    rewards: jax.Array
    ends: jax.Array


def checksum(step: Step) -> Checksum:
    """Consumes one step: views, rewards and ends of each copy, `[E]`.

    Sums over all copies would take more kernels on a GPU than a small world's own step.
    """

    def total(tree: PyTree) -> jax.Array:
        parts = [leaf.astype(jnp.float32).reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(tree)]
        return jnp.sum(jnp.concatenate(parts, axis=1), axis=1)

    views = {name: obs.view for name, obs in step.observation.items()}
    return Checksum(total(views), total(step.reward), total(step.terminated | step.truncated))


def random_rollout(vectorised: Vectorised, worlds: Worlds, num_steps: int) -> tuple[Worlds, Checksum]:
    """Steps all copies with random actions; checksums of each copy, `[E]`."""
    groups = describe(vectorised.env).groups
    empty = dict.fromkeys(groups, ())
    actor = random_policies(groups)
    worlds, _, sums = rollout(vectorised, actor, empty, worlds, empty, num_steps, keep=checksum, add=True)
    return worlds, sums


def bench_env(
    id: str,
    options: dict[str, Any] | None = None,
    wrappers: tuple[Wrapper, ...] = (),
    *,
    num_envs: int = 1024,
    num_steps: int = 1000,
    devices: int | None = None,
    seconds: float = 5.0,
    seed: int = 0,
    repeats: int = 1,
) -> dict[str, Any]:
    """Speed of a world under random actions, with its views and rewards consumed.

    repeats: how often it is timed, each time for `seconds`; rates are those of the median time.
    """
    require_positive("bench", num_envs=num_envs, num_steps=num_steps, seconds=seconds, repeats=repeats)
    experiment = Experiment(env=id, env_options=options or {}, wrappers=wrappers)
    env = make_world(experiment)
    mesh = make_mesh(num_envs, 1, devices)
    kernels = _check_memory(experiment, num_envs, num_steps, mesh.size)
    program, specs = _spread_rollout(Vectorised(env, num_envs // mesh.size), num_steps, mesh)
    placed = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
    worlds = jax.jit(Vectorised(env, num_envs).reset, out_shardings=placed)(jax.random.key(seed))
    began = time.perf_counter()
    compiled = program.lower(worlds).compile()
    compile_s = time.perf_counter() - began
    state = [worlds]

    def call() -> Checksum:
        state[0], sums = compiled(state[0])
        return sums

    timings = [_time(call, seconds) for _ in range(repeats)]
    agents = sum(group.size for group in env.groups.values())
    result = _result(timings, num_envs * num_steps, agents, compile_s, mesh)
    sums = {name: float(value) for name, value in vars(timings[-1]["last"]).items()}
    return (
        {"env": id, "options": options or {}, "wrappers": experiment.to_dict()["wrappers"]}
        | {"num_envs": num_envs, "num_steps": num_steps, "kernels": kernels}
        | result
        | {"checksum": sums}
    )


def _spread_rollout(share: Vectorised, num_steps: int, mesh: jax.sharding.Mesh) -> tuple[Any, Worlds]:
    """`(worlds) -> worlds, sums`, jitted: each device steps its share of the copies; and how these are split."""
    shapes = jax.eval_shape(share.reset, jax.random.key(0))
    specs = jax.tree.map(lambda _: P(AXIS), shapes).replace(clock=P())

    def local(worlds: Worlds) -> tuple[Worlds, Checksum]:
        worlds, sums = random_rollout(share, worlds, num_steps)
        sums = jax.tree.map(lambda column: jnp.sum(column), sums)
        return worlds, jax.lax.psum(sums, AXIS)

    spread = jax.shard_map(local, mesh=mesh, in_specs=(specs,), out_specs=(specs, P()), check_vma=False)
    return jax.jit(spread, donate_argnums=0), specs


def _check_memory(experiment: Experiment, num_envs: int, num_steps: int, devices: int) -> str:
    """Raises if the copies do not fit into memory; the error gives the largest number that does.

    What comes back are the parts of the program that run as kernels, see `kernel_use`.
    """
    require_counts("bench", num_envs=num_envs, num_steps=num_steps)
    env = make_world(experiment)

    @functools.cache
    def trace(copies: int) -> tuple[Need, str]:
        all_of_them = Vectorised(env, copies)
        shapes = jax.eval_shape(all_of_them.reset, jax.random.key(0))
        with record_choices() as choices:
            jaxpr = jax.make_jaxpr(lambda worlds: random_rollout(all_of_them, worlds, num_steps))(shapes)
        return need_of(shapes, jaxpr), describe_kernels(jaxpr, choices)

    def need(copies: int) -> Need:
        return trace(copies)[0]

    def advice() -> str:
        most = largest(need, num_envs, devices, devices)
        return SMALLER if most is None else f"The largest num_envs that fits is {most:,}."

    require_room(f"{experiment.env} with {num_envs:,} copies", need(num_envs), advice, devices)
    return trace(num_envs)[1]


def bench_train(
    experiment: Experiment, *, devices: int | None = None, seconds: float = 10.0, repeats: int = 1
) -> dict[str, Any]:
    """Speed of training: rollouts and updates, as `shoal train` runs them. repeats: as of `bench_env`."""
    require_positive("bench", seconds=seconds, repeats=repeats)
    program = make_fused_program(experiment, devices)
    program.check()
    carry = program.init()
    began = time.perf_counter()
    compiled = program.advance.lower(carry, program.counts[1]).compile()
    compile_s = time.perf_counter() - began
    state = [compiled(carry, program.counts[1])[0]]
    began = time.perf_counter()
    state[0], table = compiled(state[0], program.counts[1])
    jax.block_until_ready(table)
    once = time.perf_counter() - began
    count = int(np.clip(seconds / 8 / once, 1, MAX_UPDATES))

    def call() -> jax.Array:
        state[0], table = compiled(state[0], program.counts[count])
        return table

    timings = [_time(call, seconds) for _ in range(repeats)]
    agents = sum(group.size for group in program.setup.spec.groups.values())
    steps = count * experiment.num_envs * experiment.num_steps * experiment.num_seeds
    result = _result(timings, steps, agents, compile_s, program.mesh)
    updates = count * sum(timing["calls"] for timing in timings)
    return {"experiment": experiment.to_dict(), "kernels": program.kernels} | result | {"updates": updates}


def versions() -> dict[str, str]:
    """Everything that a result depends on."""
    import flax
    import optax

    return {
        "shoal": VERSION,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "flax": flax.__version__,
        "optax": optax.__version__,
        "numpy": np.__version__,
    }


def _time(call: Callable[[], Any], seconds: float) -> dict[str, Any]:
    """Calls until `seconds` have passed, always with one call queued behind the running one."""
    last = jax.block_until_ready(call())  # warm up
    calls, cpu, began = 0, time.process_time(), time.perf_counter()
    queued = call()
    while True:
        following = call()
        last = jax.block_until_ready(queued)
        queued, calls = following, calls + 1
        if time.perf_counter() - began >= seconds:
            break
    last = jax.block_until_ready(queued)
    return {
        "calls": calls + 1,
        "wall": time.perf_counter() - began,
        "cpu": time.process_time() - cpu,
        "last": last,
    }


def _result(
    timings: list[dict[str, Any]], steps_a_call: int, agents: int, compile_s: float, mesh: Any
) -> dict[str, Any]:
    """What is kept of one or several timings of a call; `repeats` are the rates of each, in their order."""
    rates = [steps_a_call * timing["calls"] / timing["wall"] for timing in timings]
    rate, steps = statistics.median(rates), steps_a_call * sum(timing["calls"] for timing in timings)
    device = mesh.devices.flat[0]
    return {
        "env_steps_per_s": rate,
        "agent_steps_per_s": rate * agents,
        "env_steps_per_cpu_s": statistics.median(steps_a_call * t["calls"] / t["cpu"] for t in timings),
        "repeats": rates,
        "compile_s": compile_s,
        "steps": steps,
        "wall_s": sum(timing["wall"] for timing in timings),
        "cpu_s": sum(timing["cpu"] for timing in timings),
        "agents": agents,
        "device": f"{device.platform}: {device.device_kind}",
        "devices": int(mesh.size),
        "versions": versions(),
    }
