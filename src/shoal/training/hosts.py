"""One training on several hosts: one program over the devices of all of them, driven by host 0.

    result = runner.run(experiment, "runs/mine", on=Local(hosts=Hosts(2, index, "10.0.0.1:4321")))

on every host, with its own index. The copies are spread over the hosts as they are over devices, with the same keys, so
that the weights are those of one machine with as many devices. Host 0 runs the ordinary `Loop`, keeps the run folder
and says to the others, before each call, what is called; they call the same, and keep nothing.
"""

import _thread
import dataclasses
import functools
import hashlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import lax
from jax._src import xla_bridge
from jax.extend import core as jex_core
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shoal.batching.regroup import unwrap_regrouped
from shoal.core.errors import HostError, OptionError, ShoalError, shell_command
from shoal.core.host import HostEnvProxy
from shoal.core.stopping import stop_requested
from shoal.core.types import PyTree
from shoal.training import records
from shoal.training.bench import versions
from shoal.training.devices import AXIS, place
from shoal.training.experiment import Experiment
from shoal.training.fused import Carry, FusedProgram, make_fused_program
from shoal.training.liveness import num_bytes
from shoal.training.loop import TrainingResult
from shoal.training.program import Tally
from shoal.training.roll import Hosts, Roll, call_roll, join_devices

COLLECTIVES = ("psum", "pmax", "pmin", "all_gather", "all_to_all", "ppermute", "reduce_scatter", "pbroadcast")
"""Beginnings of the names of operations that exchange arrays between devices."""

_joined: list[Hosts] = []
"""The hosts that this process has joined: it can do so once."""


@dataclasses.dataclass(frozen=True)
class HostedProgram(FusedProgram):
    """A program over the devices of all hosts. On host 0, whatever the others must take part in is said to them."""

    roll: Roll | None = None

    @property
    def num_hosts(self) -> int:
        return len({device.process_index for device in self.mesh.devices.flat})

    def compiled(self, carry: Carry) -> Callable[[Carry, Any], tuple[Carry, Any]]:
        call, roll = super().compiled(carry), self.roll
        assert roll is not None
        if not roll.hosts.leads:
            return call

        def advance(carry: Carry, count: Any) -> tuple[Carry, Any]:
            if roll.stop_asked.is_set():  # somebody pressed Ctrl-C on another host
                roll.stop_asked.clear()
                _thread.interrupt_main()
            roll.tell("advance", int(count))
            return call(carry, count)

        return advance

    def fault(self, carry: Carry, tally: Tally) -> str | None:
        return super().fault(carry.replace(latch=self.gather("latch", carry.latch)), tally)

    def stored(self, carry: Carry) -> tuple[PyTree, dict[str, Any]]:
        tree, more = super().stored(carry)
        return self.gather("stored", tree), more

    def gather(self, what: str, tree: PyTree) -> PyTree:
        """A tree that is split over the hosts, whole, in the memory of this one. All hosts take part."""
        assert self.roll is not None
        if self.roll.hosts.leads:
            self.roll.tell(what)
        return jax.tree.map(_whole, tree)


def _whole(leaf: jax.Array) -> Any:
    """One leaf at a time: no device has to hold the whole tree."""
    if leaf.is_fully_replicated:
        return leaf
    assert isinstance(leaf.sharding, NamedSharding)
    return jax.device_get(_copy(leaf, NamedSharding(leaf.sharding.mesh, P())))


def _copy(leaf: jax.Array, sharding: NamedSharding) -> jax.Array:
    return _copier(sharding)(leaf)


@functools.cache
def _copier(sharding: NamedSharding) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(lambda leaf: leaf, out_shardings=sharding)


def make_hosted_program(
    experiment: Experiment, hosts: Hosts, devices: int | None = None, resumed: Path | None = None
) -> HostedProgram:
    """Meets the other hosts, and makes the program over all devices. devices: of each host; resumed: a run's folder."""
    if isinstance(unwrap_regrouped(experiment.setup.env), HostEnvProxy):
        raise OptionError(
            f"{experiment.env} runs on the host, in Python: several hosts train worlds that are compiled. "
            "`--cluster auto` steps it on many machines."
        )
    if _joined:
        raise HostError("this process has trained with other hosts already: a process can join once")
    if xla_bridge.backends_are_initialized():
        raise HostError("JAX was used before the hosts met: train with hosts before anything else in a process")
    card = {"versions": versions(), "experiment": experiment.to_dict(), "devices": devices}
    roll = call_roll(hosts, card | {"checkpoint": _checkpoint_card(resumed)})
    try:
        _joined.append(hosts)
        join_devices(roll)
        kind = functools.partial(HostedProgram, roll=roll)
        program = make_fused_program(experiment, devices, None, kind, all_hosts=True)
        connect_devices(program.mesh)
        program.check()
        return program
    except ShoalError as error:
        roll.end(str(error))
        raise


def connect_devices(mesh: jax.sharding.Mesh) -> None:
    """Exchanges a first number: devices that cannot reach each other are noticed before a program is compiled."""
    ones = place(np.ones(mesh.size, np.int32), NamedSharding(mesh, P(AXIS)))  # a constant would be summed by XLA
    total = jax.shard_map(
        lambda ones: lax.psum(ones[0], AXIS), mesh=mesh, in_specs=P(AXIS), out_specs=P(), check_vma=False
    )
    try:
        count = int(jax.jit(total)(ones))
    except (RuntimeError, ValueError) as error:
        raise HostError(f"the devices of the hosts do not reach each other: {error}") from error
    if count != mesh.size:
        raise HostError(f"the devices of the hosts counted {count} of themselves, but there are {mesh.size}")


def _checkpoint_card(folder: Path | None) -> dict[str, Any] | None:
    """The checkpoint that this host would go on from."""
    newest = records.newest_checkpoint(folder) if folder else None
    if newest is None:
        return None
    return {"name": newest.name, "sha256": hashlib.sha256(newest.read_bytes()).hexdigest()}


def lead(program: HostedProgram, drive: Callable[[], TrainingResult], folder: Path | None) -> TrainingResult:
    """Host 0's run. drive: the ordinary loop."""
    roll = program.roll
    assert roll is not None
    roll.how_to_resume = _advice(roll.hosts, folder)
    try:
        result = drive()
    except BaseException as error:
        told = roll.explain(error) if isinstance(error, Exception) else error
        roll.end(str(told) or type(told).__name__)
        if told is error:
            raise
        raise told from error
    roll.end()
    jax.distributed.shutdown()
    return result


def _advice(hosts: Hosts, folder: Path | None) -> str:
    if folder is None:
        return "The run had no folder, so nothing of it is kept."
    which = ["--hosts", hosts.count, "--host-index", "I", "--coordinator", hosts.coordinator]
    return f"Go on from the newest checkpoint, on as many hosts as there are: {shell_command('resume', folder, *which)}"


def follow(program: HostedProgram, folder: Path | None, meta: Mapping[str, Any] | None) -> TrainingResult:
    """The run of every other host: what host 0 says is called, until it says that it is over.

    folder, meta: the checkpoint to go on from, and its meta data.
    """
    roll = program.roll
    assert roll is not None
    try:
        with stop_requested() as stopped:
            return _follow(program, roll, folder, meta, stopped)
    except Exception as error:
        told = roll.explain(error)
        if told is error:
            raise
        raise told from error


def _follow(
    program: HostedProgram, roll: Roll, newest: Path | None, meta: Mapping[str, Any] | None, stopped: Any
) -> TrainingResult:
    carry = program.restore(newest, dict(meta)) if newest and meta else program.begin()
    began = time.perf_counter()
    advance = program.compiled(carry)
    compiled, began = time.perf_counter() - began, time.perf_counter()
    update, table = int(meta["update"]) if meta else 0, None
    while True:
        what, *values = roll.next_order(stopped)
        if what == "end":
            break
        if what == "advance":
            jax.block_until_ready(table)  # never more than one call ahead
            carry, table = advance(carry, program.counts[values[0]])
            update += values[0]
        else:
            program.gather(what, carry.latch if what == "latch" else carry.replace(latch=None))
    if values[0]:
        raise HostError(f"host 0 ended the run: {values[0]}")
    policies = program.policies(carry)
    jax.distributed.shutdown()
    seconds, total = time.perf_counter() - began, program.num_updates
    return TrainingResult(policies, update, [], seconds, compiled, interrupted=update < total)


def bytes_per_update(program: FusedProgram) -> int:
    """Bytes of the arrays that each device puts into collectives in one update.

    Counted in the traced program: the operands of every sum (or other exchange) over the devices, as often as the scan
    around it runs. What then travels depends on the algorithm: a ring over `n` hosts sends `2 (n - 1) / n` as much.
    """
    carry = program.shapes()
    traced = jax.make_jaxpr(program.advance)(carry, jax.ShapeDtypeStruct((), np.int32))
    return _collective_bytes(traced.jaxpr)


def _collective_bytes(jaxpr: Any) -> int:
    total = 0
    for equation in jaxpr.eqns:
        name, values = equation.primitive.name, equation.params
        if name.startswith(COLLECTIVES):
            total += num_bytes([operand.aval for operand in equation.invars if isinstance(operand, jex_core.Var)])
            continue
        inner = [_collective_bytes(found) for found in _jaxprs(values)]
        each = max(inner, default=0) if name == "cond" else sum(inner)
        total += each * (values["length"] if name == "scan" else 1)  # the loop over updates is no scan: it counts once
    return total


def _jaxprs(values: Mapping[str, Any]) -> list[Any]:
    """The programs within an equation."""
    found = []
    for value in values.values():
        for part in value if isinstance(value, list | tuple) else [value]:
            part = getattr(part, "jaxpr", part)
            if hasattr(part, "eqns"):
                found.append(part)
    return found
