"""Joins a Ray cluster, or starts one here; refuses clusters that cannot do what a run asks for, within seconds.

The only module that imports Ray.
"""

import contextlib
import logging
import os
import socket
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from shoal.core.errors import OptionError
from shoal.core.version import VERSION
from shoal.execution.devices import num_cores

try:
    import ray
    from ray import exceptions
    from ray._raylet import GcsClient  # pyright: ignore[reportAttributeAccessIssue]
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as missing:
    raise OptionError("running on a cluster needs Ray: pip install 'shoal[cluster]'") from missing

ANSWER_SECONDS = 30.0
"""How long nodes may take to say which versions they have."""
LOST = (exceptions.RayActorError, exceptions.ObjectLostError, exceptions.OwnerDiedError, exceptions.GetTimeoutError)
"""What is raised if a process died, or what it held."""
FAILED = exceptions.RayTaskError
"""What is raised if something raised in a process."""


def join(address: str) -> tuple[str | None, str | None]:
    """Joins a cluster, or starts one here (`local`, or `auto` if there is none).

    Returns the address of the one that was joined, None if it was started here, and that of its dashboard.
    """
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False, "configure_logging": True}
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    # Ray prints a page whenever a process dies; here that is looked after, and told in a line (see `runner`).
    with contextlib.suppress(AttributeError):
        ray._private.worker.print_to_stdstream = lambda *args, **options: None  # pyright: ignore
    if address not in ("auto", "local"):
        _check_answers(address)
    found = _running() if address == "auto" else None if address == "local" else address
    with warnings.catch_warnings(), _silence():
        warnings.simplefilter("ignore")
        if found is not None:
            url = getattr(ray.init(address=found, **quiet), "dashboard_url", None)
            return found, f"http://{url}" if url else None
        ray.init(address="local", num_cpus=num_cores(), include_dashboard=False, **quiet)
        return None, None


def _running() -> str | None:
    """The cluster that somebody has started here, with `ray start` or by RAY_ADDRESS; None if there is none.

    Ray's own search would join whatever runs here, such as the cluster of another run, and end with that one.
    """
    address = os.environ.get("RAY_ADDRESS") or _noted(os.environ.get("RAY_TMPDIR") or "/tmp")
    if not address:
        return None
    with contextlib.suppress(OSError):
        _check_is_ray(address)
        return address
    return None


def _noted(folder: str) -> str | None:
    """What `ray start` has left word of."""
    with contextlib.suppress(OSError), open(os.path.join(folder, "ray", "ray_current_cluster")) as file:
        return file.read().strip() or None
    return None


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """What Ray's native code says on starting goes nowhere; what is wrong comes as an exception all the same."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _check_answers(address: str) -> None:
    """Somebody must listen at an address, or waiting for Ray would take minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise OptionError(f"--cluster must be auto or an address such as 10.0.0.1:6379, got {address!r}")
    try:
        socket.create_connection((host, int(port)), timeout=5.0).close()
        if not address.startswith("ray://"):
            _check_is_ray(address)
    except OSError as error:
        raise OptionError(
            f"nobody answers at {address} ({error.strerror or error}). Start a cluster there with `ray start --head "
            f"--port {port}`, or leave the address out: --cluster auto."
        ) from error


def _check_is_ray(address: str) -> None:
    """Whoever listens must be a Ray; `ray.init` would try for half a minute."""
    os.environ.setdefault("RAY_py_gcs_connect_timeout_s", "4")
    try:
        with _silence():
            GcsClient(address=address)
    except Exception as error:
        raise OSError("who listens there is no Ray") from error


def check_resources(needs: Mapping[str, float]) -> None:
    """Refuses a run that asks for more than the cluster has, or than others have left of it."""
    there, free = ray.cluster_resources(), ray.available_resources()
    for name, count in needs.items():
        if count > there.get(name, 0.0):
            what = {"CPU": "CPU cores", "GPU": "GPUs"}.get(name, name)
            raise OptionError(
                f"the run asks for {count:g} {what}, but the cluster has {there.get(name, 0.0):g}. Use fewer --actors "
                f"or --learners, lower --actor-{name.lower()}s or --learner-{name.lower()}s, or add nodes: ray start "
                "--address ..."
            )
        if count > free.get(name, 0.0):
            raise OptionError(
                f"the run asks for {count:g} {name}s, but others have left {free.get(name, 0.0):g} of the cluster's "
                f"{there.get(name, 0.0):g}. Wait for them (`ray status` shows who is there), or use fewer workers."
            )


def versions() -> dict[str, str]:
    """What must be the same on all nodes."""
    return {"shoal": VERSION, "jax": jax.__version__, "python": ".".join(map(str, sys.version_info[:2]))}


def check_versions() -> None:
    """Refuses nodes with other versions than this process has."""
    ours, remote = versions(), ray.remote(versions)
    nodes = [node for node in ray.nodes() if node["Alive"]]
    asked = {
        node["NodeManagerAddress"] + "/" + node["NodeID"][:6]: remote.options(
            num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ).remote()
        for node in nodes
    }
    for name, ref in asked.items():
        try:
            theirs = ray.get(ref, timeout=ANSWER_SECONDS)
        except Exception as error:
            reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
            raise OptionError(
                f"node {name} of the cluster cannot run shoal ({reason}). Install the same shoal there: pip install "
                f"'shoal[cluster]=={VERSION}'"
            ) from error
        if theirs != ours:
            differing = ", ".join(f"{what} {theirs.get(what)} (here {ours[what]})" for what in ours if theirs != ours)
            raise OptionError(f"node {name} of the cluster has {differing}. Install the same versions on all nodes.")
