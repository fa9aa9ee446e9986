"""The fastest number of copies: sizes are tried in doubling steps, each in a process of its own.

A size that does not fit is refused before anything is compiled (see `memory`); one whose process dies all the same, of
the device's memory or of the system's, is reported, and no larger one is tried. The process that asks never computes.
"""

import dataclasses
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from shoal.core.errors import require
from shoal.core.processes import module_command

GROWTH = 1.05
"""A size is worth its memory if it is this many times as fast as the best smaller one."""
PATIENCE = 2
"""So many sizes in a row that are not end the search."""
LEAST, MOST = 64, 1 << 22
"""The smallest and the largest number of copies that is tried, unless others are asked for."""
TIMEOUT = 600.0
"""Seconds that one size may take, compiling included."""
REFUSED = 2
"""The exit code of a command that refuses to begin."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """How one size went: its rates, or why there are none."""

    num_envs: int
    env_steps_per_s: float | None = None
    env_steps_per_cpu_s: float | None = None
    compile_s: float | None = None
    problem: str | None = None


Measure = Callable[[int], Trial]


def sizes(unit: int, least: int = LEAST, most: int = MOST) -> list[int]:
    """Numbers of copies to try: `unit`, which they must be multiples of, times powers of two."""
    require(0 < least <= most, "autoscale", "least", least, f"between 1 and most, {most:,}")
    found, size = [], unit
    while size <= most:
        if size >= least:
            found.append(size)
        size *= 2
    require(bool(found), "autoscale", "most", most, f"{unit} or more: {unit} minibatches need as many copies")
    return found


def search(candidates: Iterable[int], measure: Measure, tell: Callable[[Trial], None] | None = None) -> list[Trial]:
    """Tries sizes from small to large until they no longer gain, do not fit or fail; all that were tried."""
    trials: list[Trial] = []
    best, idle = 0.0, 0
    for size in candidates:
        trial = measure(size)
        trials.append(trial)
        if tell:
            tell(trial)
        if trial.env_steps_per_s is None:
            break
        idle = 0 if trial.env_steps_per_s > GROWTH * best else idle + 1
        best = max(best, trial.env_steps_per_s)
        if idle == PATIENCE:
            break
    return trials


def fastest(trials: Sequence[Trial]) -> Trial | None:
    """The trial with the highest rate; None if there is no rate."""
    measured = [trial for trial in trials if trial.env_steps_per_s is not None]
    return max(measured, key=lambda trial: trial.env_steps_per_s or 0.0, default=None)


def measure_apart(command: Sequence[str], num_envs: int, timeout: float = TIMEOUT) -> Trial:
    """Runs a command that prints the JSON of `bench_train`, in a process of its own, and reads what it says."""
    child = subprocess.Popen(list(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return Trial(num_envs, problem=f"it was ended after {timeout:.0f} s")
    except BaseException:  # Ctrl-C: nothing stays behind
        child.kill()
        child.communicate()
        raise
    if child.returncode == 0:
        found: dict[str, Any] = json.loads(out)
        return Trial(num_envs, found["env_steps_per_s"], found["env_steps_per_cpu_s"], found["compile_s"])
    return Trial(num_envs, problem=_reason(child.returncode, err))


def _reason(code: int, err: str) -> str:
    """Why a process ended without a result, in one line."""
    lines = [line for line in err.splitlines() if line.strip()]
    if code == REFUSED:
        said = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return (said or lines or ["refused"])[-1]
    if code < 0:
        name = signal.Signals(-code).name if -code in {int(number) for number in signal.Signals} else str(-code)
        out_of_memory = ": the system ran out of memory, or somebody ended it" if -code == signal.SIGKILL else ""
        return f"its process was ended by {name}{out_of_memory}"
    return f"its process failed with exit code {code}: {(lines or ['without a word'])[-1][:300]}"


def bench_command(arguments: Sequence[str], num_envs: int, seconds: float) -> list[str]:
    """`shoal bench train` in another process, with the target and options of `arguments`."""
    sized = ["--num-envs", str(num_envs), "--seconds", str(seconds), "--json"]
    return module_command("shoal", "bench", "train", *arguments, *sized)


def keep_off_devices() -> None:
    """Keeps this process from taking the memory of a GPU, which the others need. To be called before JAX is used."""
    import jax

    if "JAX_PLATFORMS" not in os.environ:
        jax.config.update("jax_platforms", "cpu")
