"""Whether the kernels of `ops.mlp` are used here: they are tried once per device and version, and the verdict is kept.

A device may be too old for them, a driver may refuse their code, or they may disagree with their plain twin. Then the
plain form is used; that is said once, and `shoal doctor` shows it.
"""

import functools
import itertools
import json
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp

from shoal.core.errors import ShoalError
from shoal.core.files import read_json, write_atomically
from shoal.ops.kernels import fingerprint

LEAST_CAPABILITY = 8.0
TOLERANCE = 1e-2
"""Relative error of outputs and gradients that is accepted; TF32 gives about 1e-3."""


@functools.cache
def find_problem() -> str | None:
    """The reason why the kernels are not used on this machine; None if they are."""
    device = jax.local_devices()[0]
    if device.platform != "gpu":
        return "no CUDA device"
    capability = float(getattr(device, "compute_capability", 0))
    if capability < LEAST_CAPABILITY:
        return f"compute capability {capability}, they need {LEAST_CAPABILITY}"
    versions = f"{device.client.platform_version}, jax {jax.__version__}, {fingerprint('mlp')}"
    problem = keep_verdict(f"{device.device_kind}, {versions}", jax.config.values["jax_compilation_cache_dir"])
    if problem:
        warnings.warn(f"small networks are computed layer by layer, without the kernels: {problem}", stacklevel=2)
    return problem


def keep_verdict(key: str, folder: str | None) -> str | None:
    """The verdict of an earlier trial, else that of a new one, which is kept in the folder of compiled programs."""
    file = Path(folder) / "shoal_kernels.json" if folder else None
    verdicts = _read(file) if file else {}
    if key not in verdicts:
        with ThreadPoolExecutor(1) as thread:  # this one may be tracing a program, where nothing can be computed
            verdicts[key] = thread.submit(_try).result()
        if file:
            _write(file, verdicts)
    return verdicts[key]


def _read(file: Path) -> dict[str, str | None]:
    try:
        found = read_json(file)
    except (OSError, ValueError, ShoalError):
        return {}
    sound = isinstance(found, dict) and all(value is None or isinstance(value, str) for value in found.values())
    return found if sound else {}


def _write(file: Path, verdicts: dict[str, str | None]) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(verdicts))
    except (OSError, ShoalError):
        pass  # it is tried again next time


def _try() -> str | None:
    """Compares the kernels with their plain twin on a small network."""
    from shoal.ops.mlp import mlp, plain_mlp

    widths = (20, 64, 48, 7)
    keys = jax.random.split(jax.random.key(0), 8)
    with jax.default_matmul_precision("highest"):
        layers = [
            (jax.random.normal(keys[i], shape) / shape[0] ** 0.5, jax.random.normal(keys[i + 3], shape[1:]))
            for i, shape in enumerate(itertools.pairwise(widths))
        ]
        x = jax.random.normal(keys[6], (300, widths[0]))

        def loss(layers, x, compute):
            y = jax.vmap(compute, (None, 0))(layers, x)
            return jnp.sum(jnp.sin(y)), y

        def results(compute):
            return jax.jit(jax.grad(lambda layers, x: loss(layers, x, compute), (0, 1), has_aux=True))(layers, x)

        try:
            fast = results(lambda layers, x: mlp([x], [layers], "tanh")[0])
        except jax.errors.JaxRuntimeError as error:
            return f"the device refused them: {str(error).splitlines()[0]}"
        plain = results(lambda layers, x: plain_mlp(x, layers, "tanh"))
        pairs = zip(jax.tree.leaves(fast), jax.tree.leaves(plain), strict=True)
        error = max(float(jnp.linalg.norm(a - b) / jnp.linalg.norm(b)) for a, b in pairs)
    if error <= TOLERANCE:
        return None
    return f"they disagree with the plain form by {error:.1e}, at most {TOLERANCE} is right"
