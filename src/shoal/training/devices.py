"""Which devices a run uses. On a CPU, the cores: the copies are sharded over one emulated device per core.

XLA runs most small operations of a scan on one core, so sharding over emulated devices is what uses the others.
"""

import contextlib
import os
import resource
import warnings
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from shoal.core.errors import OptionError, require
from shoal.core.keys import is_key

AXIS = "copies"
MIN_SHARE = 64


def prepare_jax() -> None:
    """Every core becomes a device, and compiled programs are kept: has an effect before JAX is used."""
    use_all_cores()
    use_compilation_cache()


def use_all_cores() -> None:
    """Makes every CPU core a device. Has an effect only before JAX has been used for the first time."""
    if os.environ.get("JAX_NUM_CPU_DEVICES") or "xla_force_host_platform_device_count" in os.environ.get(
        "XLA_FLAGS", ""
    ):
        return  # the user has set the number
    with contextlib.suppress(RuntimeError):  # JAX is already initialised, with its number of devices
        jax.config.update("jax_num_cpu_devices", num_cores())


def warn_of_idle_cores() -> None:
    """Says that a training in Python will use one core, where nobody chose that."""
    cores, chosen = num_cores(), os.environ.get("JAX_NUM_CPU_DEVICES")
    if jax.default_backend() == "cpu" and jax.local_device_count() == 1 < cores and not chosen:
        warnings.warn(
            f"JAX was used before Shoal, by a `jnp.array` at the top of a module perhaps, and so has one device: this "
            f"training uses one of {cores} cores. Call Shoal first, or set JAX_NUM_CPU_DEVICES={cores} (1: no warning)",
            stacklevel=4,
        )


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def use_compilation_cache() -> str:
    """Keeps compiled programs on disk, so that the second start is quick. Returns the folder."""
    folder = jax.config.values["jax_compilation_cache_dir"]
    if not folder:
        root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        folder = os.path.join(root, "shoal", "xla")
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    return folder


def make_mesh(num_envs: int, parts: int, count: int | None = None) -> Mesh:
    """A mesh over `count` local devices or, by default, over as many as the copies can be spread over evenly.

    Each device's share of the copies must be a multiple of `parts`, the number of minibatches. By default a CPU core
    gets at least `MIN_SHARE` copies: with fewer, synchronisation costs more than a second core gains.
    """
    devices = jax.local_devices()
    if count is None:
        least = MIN_SHARE if devices[0].platform == "cpu" else 1
        fits = [n for n in range(2, len(devices) + 1) if num_envs % (n * parts) == 0 and num_envs // n >= least]
        count = max([1, *fits])
    require(1 <= count <= len(devices), "experiment", "devices", count, f"between 1 and {len(devices)}, all there are")
    if num_envs % (count * parts):
        raise OptionError(
            f"num_envs must be a multiple of {count * parts} ({count} devices x {parts} minibatches), got {num_envs}. "
            f"Try {-(-num_envs // (count * parts)) * count * parts}, or fewer devices."
        )
    return Mesh(np.array(devices[:count]), (AXIS,), axis_types=(AxisType.Auto,))


def make_mesh_of_hosts(num_envs: int, parts: int, count: int | None = None) -> Mesh:
    """A mesh over `count` devices of each host or, by default, over as many as the copies can be spread over evenly.

    Hosts come in the order of their indices, so that copies lie as they would on one machine with all the devices.
    """
    hosts: dict[int, list[Any]] = {}
    for device in jax.devices():
        hosts.setdefault(device.process_index, []).append(device)
    most = min(map(len, hosts.values()))
    if count is None:
        least = MIN_SHARE if jax.local_devices()[0].platform == "cpu" else 1
        shares = [n * len(hosts) for n in range(2, most + 1)]
        fits = [all_of_them for all_of_them in shares if num_envs % (all_of_them * parts) == 0]
        count = max([1, *(size // len(hosts) for size in fits if num_envs // size >= least)])
    require(1 <= count <= most, "experiment", "devices", count, f"between 1 and {most}, which every host has")
    unit = len(hosts) * count * parts
    if num_envs % unit:
        raise OptionError(
            f"num_envs must be a multiple of {unit} ({len(hosts)} hosts x {count} devices x {parts} minibatches), got "
            f"{num_envs}. Try {-(-num_envs // unit) * unit}, or fewer devices."
        )
    devices = [device for index in sorted(hosts) for device in hosts[index][:count]]
    return Mesh(np.array(devices), (AXIS,), axis_types=(AxisType.Auto,))


def place(tree: Any, shardings: Any) -> Any:
    """A tree of host arrays, the same on all hosts, laid out over devices: each host fills those of its own."""

    def put(leaf: Any, sharding: NamedSharding) -> jax.Array:
        if sharding.is_fully_addressable:
            return jax.device_put(leaf, sharding)
        if is_key(leaf):
            return jax.random.wrap_key_data(put(jax.random.key_data(leaf), sharding), impl=jax.random.key_impl(leaf))
        array = np.asarray(leaf)
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    return jax.tree.map(put, tree, shardings)


def replicate(mesh: Mesh, tree: Any) -> Any:
    """The arrays of a tree on every device of a mesh; programs whose arguments always lie there are compiled once."""
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))


def memory_in_use() -> int:
    """Bytes in use on the first device, or by this process if the device does not report it."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "bytes_in_use" in stats:
        return int(stats["bytes_in_use"])
    if os.path.exists("/proc/self/statm"):
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # the peak; in bytes on a Mac
