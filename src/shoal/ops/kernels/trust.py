"""Whether the hand-written kernels are used here: each is tried once per device and version, and the verdict is kept.

A device may be too old for them, a driver may refuse their code, or they may disagree with their plain twin. Then the
plain form is used; that is said once, and `shoal doctor` shows it. `ops.mlp` and `ops.neighbours` name what is tried:
the kernels that a program is about to use, and no others.
"""

import contextlib
import dataclasses
import functools
import json
import re
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax

from shoal.core.errors import ShoalError
from shoal.core.files import read_json, write_atomically
from shoal.ops.kernels import fingerprint

NO_DEVICE = "no CUDA device"
FILE = "shoal_kernels.json"
"""Where verdicts are kept, in the folder of compiled programs; None stands for a kernel that is right."""
TRANSIENT = re.compile(
    "RESOURCE_EXHAUSTED|UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|CANCELLED|out of memory|OUT_OF_MEMORY", re.IGNORECASE
)
"""Errors that say nothing about a kernel: the next process tries again."""
DRIVER = Path("/proc/driver/nvidia/version")


@dataclasses.dataclass(frozen=True)
class Trial:
    """Kernels that are compared with their plain twin.

    source: the `.cu` file that they are made from. name: which of them. capability: the least of a device that has
    them. instead: the plain form, as the beginning of a sentence. measure: computes both; how far apart they are, of
    which `tolerance` is accepted.
    """

    source: str
    name: str
    capability: float
    instead: str
    measure: Callable[[], float] = dataclasses.field(compare=False)
    tolerance: float


def find_problem(trial: Trial) -> str | None:
    """The reason why these kernels are not used on this machine; None if they are. It is said once."""
    limit = find_limit(trial.capability)
    if limit == NO_DEVICE:
        return limit
    problem = limit or _find_verdict(trial, device_key())
    if problem:
        _say_once(f"{trial.instead}, without the kernel: {problem}")
    return problem


def find_limit(capability: float) -> str | None:
    """The reason why this machine's device has no kernels at all that need this capability; None if it may."""
    device = jax.local_devices()[0]
    if device.platform != "gpu" or "rocm" in device.client.platform_version.lower():
        return NO_DEVICE
    found = float(getattr(device, "compute_capability", 0))
    return f"compute capability {found}, it needs {capability}" if found < capability else None


def device_key() -> str:
    """What verdicts depend on, besides the kernels: the device, the driver, and what compiles them."""
    device = jax.local_devices()[0]
    compiler = " ".join(device.client.platform_version.split())
    return f"{device.device_kind}, driver {find_driver()}, {compiler}, jax {jax.__version__}"


def find_driver() -> str:
    """The version of NVIDIA's driver, as Linux gives it."""
    try:
        found = re.search(r"\b\d+\.\d+(\.\d+)?\b", DRIVER.read_text())
    except OSError:
        found = None
    return found[0] if found else "unknown"


@functools.cache  # within a process the answer stays, whatever it was: a program should not change half-way
def _find_verdict(trial: Trial, device: str) -> str | None:
    key = f"{device}, {trial.source} {fingerprint(trial.source)}, {trial.name}"
    return keep_verdict(trial, key, jax.config.values["jax_compilation_cache_dir"])


def keep_verdict(trial: Trial, key: str, folder: str | None) -> str | None:
    """The verdict of an earlier trial, else that of a new one, which is kept in the folder unless it may pass."""
    file = Path(folder) / FILE if folder else None
    verdicts = _read(file) if file else {}
    if key in verdicts:
        return verdicts[key]
    with ThreadPoolExecutor(1) as thread:  # this one may be tracing a program, where nothing can be computed
        problem, lasts = thread.submit(_try, trial).result()
    if file and lasts:
        _write(file, _read(file) | {key: problem})  # read again: others may have tried something in the meantime
    return problem


@contextlib.contextmanager
def on_host() -> Iterator[None]:
    """What is computed while this is open is computed on the CPU, where small programs compile fastest.

    If JAX is told to have no CPU (`JAX_PLATFORMS=cuda`), it is the usual device.
    """
    try:
        host = jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        yield
        return
    with jax.default_device(host):
        yield


def find_kept_problems() -> dict[str, str]:
    """What earlier trials on this device found wrong, by kernel."""
    folder, device = jax.config.values["jax_compilation_cache_dir"], f"{device_key()}, "
    kept = _read(Path(folder) / FILE) if folder else {}
    return {key.removeprefix(device): problem for key, problem in kept.items() if problem and key.startswith(device)}


@functools.cache
def _say_once(text: str) -> None:
    warnings.warn(text, stacklevel=4)


def _try(trial: Trial) -> tuple[str | None, bool]:
    """The verdict, and whether it will be the same next time."""
    try:
        error = trial.measure()
    except jax.errors.JaxRuntimeError as refusal:
        return f"the device refused it: {str(refusal).splitlines()[0]}", not TRANSIENT.search(str(refusal))
    if error <= trial.tolerance:  # not so for NaN either
        return None, True
    return f"it disagrees with the plain form by {error:.1e}, at most {trial.tolerance:g} is right", True


def _read(file: Path) -> dict[str, Any]:
    try:
        found = read_json(file)
    except (OSError, ValueError, ShoalError):
        return {}
    sound = isinstance(found, dict) and all(value is None or isinstance(value, str) for value in found.values())
    return found if sound else {}


def _write(file: Path, verdicts: dict[str, Any]) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(verdicts))
    except (OSError, ShoalError):
        pass  # it is tried again next time
