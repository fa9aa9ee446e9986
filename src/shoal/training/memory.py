"""What a run needs of memory, before anything is allocated or compiled, and what there is.

A program is traced, which costs the same whatever its sizes, and its need is read off the trace (see `liveness`):

- what it holds all the time: weights, optimisers, worlds, replays (its arguments);
- what it makes on the way, as far as that is alive at the same time: the steps of a rollout, gradients, the pairs of
  agents in a world of many;
- a copy of what it holds, while a checkpoint is written, if that is more;
- `PROGRAM_BYTES` for the compiler and the program itself.

On a CPU that is 0.7 to 1.1 times what XLA itself plans (see docs/design.md).
Whatever needs more than is free is refused, with the largest size that fits.
"""

import dataclasses
import math
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from shoal.core.errors import OptionError, require
from shoal.training.liveness import num_bytes, peak_bytes

PROGRAM_BYTES = 512 * 2**20
"""What compiling takes, about."""
SMALLER = "Use a smaller world (fewer agents) or a smaller network."
LARGEST = 2**31
"""Copies, steps and members are counted in 32 bits."""


@dataclasses.dataclass(frozen=True)
class Need:
    """Bytes on all devices together: `held` all the time, of it `replicated` on each device; `made` on the way."""

    held: int
    made: int
    replicated: int = 0

    def times(self, count: int) -> "Need":
        """Of several side by side."""
        return Need(self.held * count, self.made * count, self.replicated * count)

    def taken(self, devices: int) -> int:
        """Of the memory in which one device computes: on a CPU all of them do in that of the machine.

        A checkpoint copies what several devices hold; what one CPU device holds is written as it lies there.
        """
        if on_host():
            return self.held + max(self.made, self.held if devices > 1 else 0) + PROGRAM_BYTES
        return self.replicated + -(-(self.held - self.replicated + self.made) // devices)


def need_of(held: Any, jaxpr: Any, replicated: Any = ()) -> Need:
    """The need of a traced program that is given `held` (arrays or shapes), of which some is on every device."""
    return Need(num_bytes(held), peak_bytes(jaxpr), num_bytes(replicated))


def free_bytes() -> int:
    """Memory of this machine that this process could still take: what is available, within the limits set for it."""
    found = [_available(), _cgroup(), _address_space()]
    return max(0, min(room for room in found if room is not None))


def device_bytes() -> int:
    """Memory that is free on one device; on a CPU, on the machine, which all devices share."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" not in stats:
        return free_bytes()
    return int(stats["bytes_limit"]) - int(stats.get("bytes_in_use", 0))


def find_shortage(need: Need, devices: int = 1) -> tuple[int, int, str] | None:
    """What would be taken, what there is, and of what, if that is too little; None if it is enough."""
    taken, room = need.taken(devices), device_bytes()
    if taken > room:
        return taken, room, "this machine" if on_host() else "a device"
    if not on_host() and need.held > free_bytes():
        return need.held, free_bytes(), "this machine, on which checkpoints are made,"
    return None


def on_host() -> bool:
    """Whether what is computed lies in the memory of the machine."""
    return jax.local_devices()[0].platform == "cpu"


def require_counts(owner: str, **counts: int) -> None:
    """Refuses numbers of copies and the like that 32 bits cannot count."""
    for name, count in counts.items():
        require(count < LARGEST, owner, name, count, f"less than 2^31, {LARGEST:,}")


def require_room(what: str, need: Need, advice: Callable[[], str], devices: int = 1) -> None:
    """Refuses what does not fit. what: what was asked for, as a sentence begins; advice: what would fit."""
    short = find_shortage(need, devices)
    if short is not None:
        taken, room, where = short
        raise OptionError(
            f"{what} would take {size(taken)} of memory ({size(need.held)} that is held, {size(need.made)} while "
            f"it runs), but {where} has {size(room)} free. {advice()}"
        )


def largest_count(what: str, need: Callable[[int], Need], asked: int, devices: int = 1) -> int:
    """How many copies can be played at once: as many as asked for, or as fit. Refuses if not even one does."""
    if find_shortage(need(asked), devices) is None:
        return asked
    most = largest(need, asked, devices=devices)
    if most is None:
        require_room(f"{what} in one copy", need(1), lambda: SMALLER, devices)
    return most or 1


def largest(need: Callable[[int], Need], asked: int, unit: int = 1, devices: int = 1) -> int | None:
    """The largest multiple of `unit` below `asked` that fits, to two digits or so; None if not even one unit does.

    Needs grow in a straight line but for rounding, so few sizes are tried. What is returned has been tried.
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
    """Two digits of a number, then down to a multiple of `unit`."""
    if number > 100:
        step = 10 ** (int(math.log10(number)) - 1)
        number = number // step * step
    return max(unit, number // unit * unit)


def size(bytes: float) -> str:
    """Bytes as people say them: 120 MiB, 3.4 GiB, 1,200 TiB."""
    for unit, name in ((2**40, "TiB"), (2**30, "GiB")):
        if bytes >= unit:
            return f"{bytes / unit:.1f} {name}" if bytes < 100 * unit else f"{bytes / unit:,.0f} {name}"
    return f"{bytes / 2**20:.0f} MiB" if bytes >= 2**20 or not bytes else f"{bytes / 2**10:.0f} KiB"


def _available() -> int | None:
    """What the system says could be taken without swapping."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cgroup() -> int | None:
    """What is left of the limits of the control groups that this process is in."""
    rooms = []
    for limit, used, stat in _groups():
        try:
            most, now = limit.read_text().strip(), int(used.read_text())
            cached = [line.split()[1] for line in stat.read_text().splitlines() if line.startswith("inactive_file ")]
        except (OSError, ValueError):
            continue
        if most.isdigit():
            rooms.append(int(most) - now + int(cached[0] if cached else 0))  # what is only cached is given back
    return min(rooms, default=None)


def _groups() -> list[tuple[Path, Path, Path]]:
    """Files with limit, use and statistics of memory, of this process's groups and all above them."""
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
    """What is left of `ulimit -v`."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        used = 0
    return limit - used
