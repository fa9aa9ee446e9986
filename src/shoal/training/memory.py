"""How much memory a run needs, before anything is allocated or compiled, and how much is free.

A program is traced, which costs the same whatever its sizes, and its need is computed from the trace (see
`liveness`):

- what it keeps all the time: weights, optimisers, worlds, replays (its arguments);
- the peak of what it allocates while it runs: the steps of a rollout, gradients, the pairs of agents in a large world;
- a copy of what it keeps while a checkpoint is written, if that is more;
- `PROGRAM_BYTES` for the compiler and the program itself.

On a CPU that is what XLA itself plans within a fifth (see docs/design.md). A program that needs more than is free is
refused, with the largest size that fits.
"""

import dataclasses
import math
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from shoal.core.errors import OptionError
from shoal.training.liveness import num_bytes, peak_bytes

PROGRAM_BYTES = 512 * 2**20
"""Approximate memory for compiling."""
SMALLER = "Use a smaller world (fewer agents) or a smaller network."


@dataclasses.dataclass(frozen=True)
class Need:
    """Bytes on all devices together: `held` all the time, `replicated` of it on each device; `made` while running."""

    held: int
    made: int
    replicated: int = 0

    def times(self, count: int) -> "Need":
        """The need of several side by side."""
        return Need(self.held * count, self.made * count, self.replicated * count)

    def taken(self, devices: int) -> int:
        """Bytes in the memory of one device: on a CPU, all devices share that of the machine.

        A checkpoint copies the arrays of several devices; those of a single CPU device are written in place.
        """
        if on_host():
            return self.held + max(self.made, self.held if devices > 1 else 0) + PROGRAM_BYTES
        return self.replicated + -(-(self.held - self.replicated + self.made) // devices)


def need_of(held: Any, jaxpr: Any, replicated: Any = ()) -> Need:
    """The need of a traced program. held: its arguments, as arrays or shapes; replicated: those on every device."""
    return Need(num_bytes(held), peak_bytes(jaxpr), num_bytes(replicated))


def memory_needed(program: Any) -> int | None:
    """Bytes in the memory of one device (see `Need.taken`) that a program would take; None where it cannot be told."""
    need = getattr(program, "need", None)
    return need.taken(program.num_devices) if isinstance(need, Need) else None


def checkpoint_bytes(program: Any) -> int | None:
    """About the size of a checkpoint of a program: all that it keeps, replays included; None where it is not known."""
    need = getattr(program, "need", None)
    return need.held if isinstance(need, Need) else None


def free_bytes() -> int:
    """Memory that this process can still allocate: what the machine has available, within the process's limits."""
    found = [_available(), _cgroup(), _address_space()]
    return max(0, min(room for room in found if room is not None))


def device_bytes() -> int:
    """Memory that is free on one device; on a CPU, on the machine, which all devices share."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" not in stats:
        return free_bytes()
    return int(stats["bytes_limit"]) - int(stats.get("bytes_in_use", 0))


def find_shortage(need: Need, devices: int = 1) -> tuple[int, int, str] | None:
    """Bytes needed, bytes free, and where, if memory does not suffice; None if it does."""
    taken, room = need.taken(devices), device_bytes()
    if taken > room:
        return taken, room, "this machine" if on_host() else "a device"
    if not on_host() and need.held > free_bytes():
        return need.held, free_bytes(), "this machine, on which checkpoints are made,"
    return None


def on_host() -> bool:
    """Whether programs compute in the memory of the machine."""
    return jax.local_devices()[0].platform == "cpu"


def require_room(what: str, need: Need, advice: Callable[[], str], devices: int = 1) -> None:
    """Refuses what does not fit. what: the request, as the beginning of a sentence; advice: what would fit."""
    short = find_shortage(need, devices)
    if short is not None:
        taken, room, where = short
        shares = f" ({size(need.held)} permanently, {size(need.made)} while it runs)" if need.made else ""
        raise OptionError(
            f"{what} would take {size(taken)} of memory{shares}, but {where} has {size(room)} free. {advice()}"
        )


def largest_count(what: str, need: Callable[[int], Need], asked: int, devices: int = 1) -> int:
    """How many copies can be played at once: as many as asked for, or as fit; raises if not even one does."""
    if find_shortage(need(asked), devices) is None:
        return asked
    most = largest(need, asked, devices=devices)
    if most is None:
        require_room(f"{what} in one copy", need(1), lambda: SMALLER, devices)
    return most or 1


def largest(need: Callable[[int], Need], asked: int, unit: int = 1, devices: int = 1) -> int | None:
    """The largest multiple of `unit` below `asked` that fits, to two digits or so; None if not even one unit does.

    Needs are linear except for rounding, so few sizes are tried. The returned one has been tried.
    """
    if asked <= unit or find_shortage(need(unit), devices) is not None:
        return None
    least, room = need(unit).taken(devices), device_bytes()
    each = max(1, need(asked).taken(devices) - least) / (asked - unit)
    guess = _round(min(asked - 1, unit + int((room - least) / each)), unit)
    while guess > unit and find_shortage(need(guess), devices) is not None:
        guess = _round(guess * 4 // 5, unit)
    return guess


def _round(number: int, unit: int) -> int:
    """Rounds a number down to two digits, then to a multiple of `unit`."""
    if number > 100:
        step = 10 ** (int(math.log10(number)) - 1)
        number = number // step * step
    return max(unit, number // unit * unit)


def size(bytes: float) -> str:
    """Bytes in readable units: 120 MiB, 3.4 GiB, 1,200 TiB."""
    for unit, name in ((2**40, "TiB"), (2**30, "GiB")):
        if bytes >= unit:
            return f"{bytes / unit:.1f} {name}" if bytes < 100 * unit else f"{bytes / unit:,.0f} {name}"
    return f"{bytes / 2**20:.0f} MiB" if bytes >= 2**20 or not bytes else f"{bytes / 2**10:.0f} KiB"


def _available() -> int | None:
    """Memory that the system reports as available without swapping."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cgroup() -> int | None:
    """Memory left within the limits of this process's control groups."""
    rooms = []
    for limit, used, stat in _groups():
        try:
            most, now = limit.read_text().strip(), int(used.read_text())
            cached = [line.split()[1] for line in stat.read_text().splitlines() if line.startswith("inactive_file ")]
        except (OSError, ValueError):
            continue
        if most.isdigit():
            rooms.append(int(most) - now + int(cached[0] if cached else 0))  # cached pages can be reclaimed
    return min(rooms, default=None)


def _groups() -> list[tuple[Path, Path, Path]]:
    """Files with the limit, use and statistics of memory of this process's control groups and their parents."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, kinds, path = line.split(":", 2)
        root = Path("/sys/fs/cgroup") if not kinds else Path("/sys/fs/cgroup/memory")
        names = ("memory.max", "memory.current") if not kinds else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        if kinds and "memory" not in kinds.split(","):
            continue
        own = root / path.lstrip("/")
        for folder in [own, *own.parents]:
            if folder == root or root in folder.parents:
                found.append((folder / names[0], folder / names[1], folder / "memory.stat"))
    return found


def _address_space() -> int | None:
    """Memory left within `ulimit -v`."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        used = 0
    return limit - used
