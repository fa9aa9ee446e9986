"""Services as Ray actors: the only module that imports Ray.

Every service lives in an actor that Ray starts again whenever it dies, on whatever node has room; it then finds its way
back by itself (see `learner`, `coordinator`). Methods run in threads, so that a worker's loop leaves room for others.
Large values go through Ray's object store, which nodes share memory with.
"""

import contextlib
import dataclasses
import logging
import os
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from shoal.core.errors import OptionError
from shoal.core.registry import import_file, register, world_class
from shoal.core.version import VERSION
from shoal.execution.cluster.fabric import ClusterGoneError, Gone, Handle, Served, WorkerError, answer
from shoal.execution.devices import num_cores, use_compilation_cache

try:
    import ray
    from ray import exceptions
    from ray._raylet import GcsClient  # pyright: ignore[reportAttributeAccessIssue]
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as missing:
    raise OptionError("running on a cluster needs Ray: pip install 'shoal[cluster]'") from missing

THREADS = 64
"""Calls that a service can be in at a time: everybody who waits for something at it."""
ANSWER_SECONDS = 30.0
"""How long nodes may take to say which versions they have."""
LOST = (exceptions.RayActorError, exceptions.ObjectLostError, exceptions.OwnerDiedError, exceptions.GetTimeoutError)


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a process needs before a service of ours is made in it."""

    imports: tuple[str, ...] = ()  # files that register worlds
    worlds: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # that only the driver's own script knows
    cache: str = ""
    cores: int = 1
    gpus: float = 0.0

    def apply(self) -> None:
        jax.config.update("jax_num_cpu_devices", self.cores)
        if not self.gpus:
            jax.config.update("jax_platforms", "cpu")
        if self.cache:
            jax.config.update("jax_compilation_cache_dir", self.cache)
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
        for path in self.imports:
            import_file(path)
        for name, world in self.worlds.items():
            with contextlib.suppress(OptionError):  # known already
                register(name, world)


class _Hosted:
    """A service in a process of its own."""

    def __init__(self, factory: Callable[..., Any], args: tuple[Any, ...], setting: Setting):
        setting.apply()
        self.served = Served(factory, args)

    def do(self, method: str, args: tuple[Any, ...], sender: str) -> Any:
        if method == "pid":
            return os.getpid()
        return self.served.do(method, args, sender)


class _Objects:
    """Ray's object store. Can be sent to other processes: it holds nothing."""

    def put(self, value: Any) -> Any:
        return ray.put(value)

    def get(self, ref: Any) -> Any:
        try:
            return ray.get(ref)
        except LOST as error:
            raise Gone(str(ref)) from error


class _Answer:
    """An answer that is on its way."""

    def __init__(self, ref: Any, name: str):
        self.ref, self.name = ref, name

    def done(self) -> bool:
        return bool(ray.wait([self.ref], timeout=0)[0])

    def result(self, timeout: float | None = None) -> Any:
        return _got(self.ref, self.name, timeout)


def _got(ref: Any, name: str, timeout: float | None = None) -> Any:
    try:
        return answer(ray.get(ref, timeout=timeout), name)
    except LOST as error:
        if getattr(error, "actor_init_failed", False):  # it would fail for ever
            raise WorkerError(f"could not be made ready: {_last_words(error)}", name) from None
        raise Gone(name) from error
    except exceptions.RayTaskError as error:  # the process could not even be made ready
        raise WorkerError(str(error.cause if error.cause is not None else error), name) from None


def _last_words(error: BaseException) -> str:
    """The line of one of Ray's long messages that says what was wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


@dataclasses.dataclass(frozen=True)
class RayHandle:
    """A service in another process."""

    name: str
    actor: Any
    sender: str = "driver"

    def by(self, sender: str) -> "RayHandle":
        return dataclasses.replace(self, sender=sender)

    def call(self, method: str, *args: Any) -> Any:
        return _got(self.ask(method, *args).ref, self.name)

    def ask(self, method: str, *args: Any) -> Any:
        try:
            return _Answer(self.actor.do.remote(method, args, self.sender), self.name)
        except LOST as error:
            raise Gone(self.name) from error


class RayFabric:
    """Starts services on a Ray cluster; on one of this machine alone if there is none."""

    def __init__(self, address: str = "auto", needs: Mapping[str, float] | None = None, setting: Setting | None = None):
        self.store = _Objects()
        self.setting = setting or Setting(cache=use_compilation_cache())
        self.address, self._dashboard = _connect(address)
        self._actors: dict[str, Any] = {}
        self._lock = threading.Lock()
        try:
            check_resources({name: count for name, count in (needs or {}).items() if name != "CPU" or not self.private})
            if not self.private:
                check_versions()
        except BaseException:
            self.stop()
            raise

    def start(self, name: str, factory: Callable[..., Any], *args: Any, cpus: float = 0.0, gpus: float = 0.0) -> Handle:
        setting = dataclasses.replace(self.setting, cores=max(1, int(cpus)), gpus=gpus)
        cpus = 0.0 if self.private else cpus  # the whole machine is this run's, and more workers may come
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": -1, "max_task_retries": 0}
        hosted = ray.remote(_Hosted).options(max_concurrency=THREADS, **options)
        try:
            actor = hosted.remote(factory, args, setting)
        except TypeError as error:  # something cannot be pickled
            worlds = ", ".join(setting.worlds) or "none"
            raise OptionError(
                f"{name}: cannot be sent to another process: {error}. Worlds of this script: {worlds}. Put the world "
                "into a file of its own and name it with --import."
            ) from error
        with self._lock:
            self._actors[name] = actor
        return RayHandle(name, actor)

    def kill(self, name: str) -> None:
        ray.kill(self._actors[name], no_restart=False)

    def remove(self, name: str) -> None:
        with self._lock:
            actor = self._actors.pop(name, None)
        if actor is not None:
            ray.kill(actor)

    def stop(self) -> None:
        for name in list(self._actors):
            if self._dead():
                break
            with contextlib.suppress(Exception):
                self.remove(name)
        ray.shutdown()

    def check(self) -> None:
        dead = self._dead()
        if dead:
            raise ClusterGoneError(f"Ray on this machine is gone: its {dead} died, and everything with it")

    def _dead(self) -> str:
        """What of a Ray that was started here has died."""
        node = getattr(ray._private.worker, "_global_node", None) if self.private else None  # pyright: ignore
        if node is None:
            return ""
        vital = {"raylet", "gcs_server"}
        return ", ".join(sorted(vital & {str(kind) for kind, _ in node.dead_processes()}))

    @property
    def private(self) -> bool:
        """Whether it was started here, for this run alone."""
        return self.address is None

    @property
    def where(self) -> str:
        """The cluster in a few words."""
        return "a Ray of its own" if self.address is None else f"the Ray at {self.address}"

    def dashboard(self) -> str | None:
        return self._dashboard


def _connect(address: str) -> tuple[str | None, str | None]:
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


def shipped(world: str) -> dict[str, Any]:
    """A world that only the running script knows, to be sent to the workers; {} if they can find it themselves."""
    with contextlib.suppress(Exception):
        found = world_class(world)
        if found.__module__ == "__main__":
            return {world: found}
    return {}


def setting_for(world: str, imports: Sequence[str]) -> Setting:
    """What workers need to know a world."""
    return Setting(tuple(os.path.abspath(path) for path in imports), shipped(world), use_compilation_cache())
