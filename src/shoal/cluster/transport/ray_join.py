"""Joins a Ray cluster, or starts one here; refuses clusters that cannot do what a run asks for, within seconds.

One that is started here is this run's alone: it listens on loopback only, and answers nobody who does not have its
token, which no file ever holds. What is joined is somebody's own, who sees to that (Ray's RAY_AUTH_MODE and its like).

The only module that imports Ray.
"""

import contextlib
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from shoal.core.errors import OptionError, install_command
from shoal.core.version import VERSION
from shoal.training.devices import num_cores

try:
    import ray
    from ray import _raylet, exceptions
    from ray._private import ray_constants, services
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as missing:
    raise OptionError(f"running on a cluster needs Ray: {install_command('cluster')}") from missing

if not hasattr(_raylet, "AuthenticationTokenLoader"):
    raise OptionError(f"running on a cluster needs Ray 2.52 or newer, found {ray.__version__}: pip install 'ray>=2.52'")

GcsClient: Any = _raylet.GcsClient  # pyright: ignore[reportAttributeAccessIssue]
ANSWER_SECONDS = 30.0
"""How long nodes may take to say which versions they have."""
LOST = (exceptions.RayActorError, exceptions.ObjectLostError, exceptions.OwnerDiedError, exceptions.GetTimeoutError)
"""What is raised if a process died, or what it held."""
FAILED = exceptions.RayTaskError
"""What is raised if something raised in a process."""
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": ""}
"""How a Ray is told, by its environment, to ask for a token, and which."""
_folders: list[str] = []
UNUSED_PORTS = ("METRICS_AGENT_PORT_NAME", "METRICS_EXPORT_PORT_NAME", "DASHBOARD_AGENT_LISTEN_PORT_NAME")
"""Ports that a dashboard agent would say that it serves."""


def join(address: str) -> tuple[str | None, str | None]:
    """Joins a cluster, or starts one here (`local`, or `auto` if there is none).

    Returns the address of the one that was joined, None if it was started here, and that of its dashboard.
    """
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False, "configure_logging": True}
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    # Ray prints a page whenever a process dies; here the supervisor reports it in one line.
    with contextlib.suppress(AttributeError):
        ray._private.worker.print_to_stdstream = lambda *args, **options: None  # pyright: ignore
    if address not in ("auto", "local"):
        _check_answers(address)
    found = _running() if address == "auto" else None if address == "local" else address
    with warnings.catch_warnings(), _silence(), _elsewhere():
        warnings.simplefilter("ignore")
        if found is not None:
            url = getattr(ray.init(address=found, **quiet), "dashboard_url", None)
            return found, f"http://{url}" if url else None
        try:
            with _on_loopback(), _with_token(), _without_agent(), _past_hangups():
                ray.init(address="local", num_cpus=num_cores(), include_dashboard=False, **quiet)
        except BaseException:
            leave()
            raise
        return None, None


def leave() -> None:
    """Leaves the cluster; one that was started here ends, and its token with it."""
    ray.shutdown()
    _heed_environment()
    while _folders:
        with contextlib.suppress(OSError):
            os.rmdir(_folders.pop())


@contextlib.contextmanager
def _elsewhere() -> Iterator[None]:
    """In an empty folder: workers of Ray look for modules in the one that a driver joins from, which may be a run's."""
    before = os.getcwd()
    _folders.append(tempfile.mkdtemp(prefix="shoal-ray-"))
    os.chdir(_folders[-1])
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """A Ray that is started meanwhile listens on loopback alone.

    It does so, on every system, where clusters of several machines are ruled out; to name the address is not enough.
    """
    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        with _environment({ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0"}):
            yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextlib.contextmanager
def _with_token() -> Iterator[None]:
    """A Ray that is started meanwhile asks for a token. Its processes, and nobody else, have it in their environment.

    This process goes on using it until it leaves.
    """
    with _environment(TOKEN | {"RAY_AUTH_TOKEN": secrets.token_hex(32)}):
        _heed_environment()
        yield


def _heed_environment() -> None:
    """Ray's native code reads once whether there is a token, and which: it is to read again."""
    _raylet.Config.initialize("")  # pyright: ignore[reportAttributeAccessIssue]
    _raylet.AuthenticationTokenLoader.instance().reset_cache()  # pyright: ignore[reportAttributeAccessIssue]


@contextlib.contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


@contextlib.contextmanager
def _past_hangups() -> Iterator[None]:
    """A Ray that is started meanwhile outlives its terminal, whose end all processes hear of, until all is saved."""
    hangup = getattr(signal, "SIGHUP", None)
    if hangup is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(hangup, signal.SIG_IGN)  # which processes inherit
    try:
        yield
    finally:
        signal.signal(hangup, before)


@contextlib.contextmanager
def _without_agent() -> Iterator[None]:
    """A Ray that is started meanwhile has no dashboard agent, with which its raylet, and so the run, would die.

    The raylet insists on a process that it can watch: it is given one that sleeps. (See `idle`.)
    """
    start = services.start_ray_process

    def start_without_agent(command: list[str], kind: str, *args: Any, **options: Any) -> Any:
        if kind == ray_constants.PROCESS_TYPE_RAYLET:
            command = _agentless(command)
        return start(command, kind, *args, **options)

    services.start_ray_process = start_without_agent
    try:
        yield
    finally:
        services.start_ray_process = start


def _agentless(command: list[str]) -> list[str]:
    """The command that starts a raylet, without the agent; where it waits for the agent's ports, it is told of none."""
    given = dict(part.removeprefix("--").split("=", 1) for part in command if part.startswith("--") and "=" in part)
    persist: Any = getattr(_raylet, "persist_port", None)
    for name in UNUSED_PORTS if persist else ():
        persist(given["session_dir"], given["node_id"], getattr(_raylet, name), -1)
    sleeping = subprocess.list2cmdline([sys.executable, "-I", "-S", str(Path(__file__).with_name("idle.py"))])
    agent = "--dashboard_agent_command="
    return [agent + sleeping if part.startswith(agent) else part for part in command]


def _running() -> str | None:
    """The cluster that somebody has started here, with `ray start` or by RAY_ADDRESS; None if there is none.

    Ray's own search would join whatever runs here, such as the cluster of another run, and end with that one.
    """
    address = os.environ.get("RAY_ADDRESS") or _read_address(os.environ.get("RAY_TMPDIR") or "/tmp")
    if not address:
        return None
    with contextlib.suppress(OSError):
        _check_is_ray(address)
        return address
    return None


def _read_address(folder: str) -> str | None:
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
    except PermissionError as error:
        raise OptionError(
            f"the Ray at {address} asks for a token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to the file that "
            "holds its token (`ray get-auth-token`, where it was started)."
        ) from error
    except OSError as error:
        raise OptionError(
            f"nobody answers at {address} ({error.strerror or error}). Start a cluster there with `ray start --head "
            f"--port {port}`, or leave the address out: --cluster auto."
        ) from error


def _check_is_ray(address: str) -> None:
    """Whoever listens must be a Ray, and let us in; `ray.init` would try for half a minute."""
    os.environ.setdefault("RAY_py_gcs_connect_timeout_s", "4")
    try:
        with _silence():
            GcsClient(address=address)
    except exceptions.AuthenticationError as error:
        if "RAY_AUTH_MODE" in os.environ or not _has_token():
            raise PermissionError("it asks for a token") from error
        os.environ["RAY_AUTH_MODE"] = "token"
        _heed_environment()
        _check_is_ray(address)
    except Exception as error:
        raise OSError("the server there is not Ray") from error


def _has_token() -> bool:
    """Whether the user has a token where Ray looks for one, though nothing says that it is to be used."""
    named = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    return bool(named) or (Path.home() / ".ray" / "auth_token").is_file()


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
                f"node {name} of the cluster cannot run shoal ({reason}). Install the same shoal there: "
                f"{install_command('cluster', VERSION)}"
            ) from error
        if theirs != ours:
            differing = ", ".join(f"{what} {theirs.get(what)} (here {ours[what]})" for what in ours if theirs != ours)
            raise OptionError(f"node {name} of the cluster has {differing}. Install the same versions on all nodes.")
