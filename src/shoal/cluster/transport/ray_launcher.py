"""Services as Ray actors.

Every service lives in an actor that Ray restarts whenever it dies, on any node with room; it then restores its own
state (see `learner`, `coordinator`). Methods run in threads, so that a worker's loop leaves room for others.
Large values go through Ray's object store, which nodes share memory with.
"""

import contextlib
import dataclasses
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax

from shoal.cluster.transport.launcher import ClusterGoneError, Served, answer
from shoal.cluster.transport.ray_join import FAILED, LOST, check_resources, check_versions, join, leave, ray
from shoal.cluster.transport.service import Service, ServiceUnavailable, WorkerError
from shoal.core.errors import OptionError
from shoal.core.extensions import adopt, from_script
from shoal.core.origin import trust, trusted
from shoal.core.registry import import_file, imported_files, names_library
from shoal.training.devices import use_compilation_cache

T = TypeVar("T")

THREADS = 64
"""Concurrent calls of a service: one for everyone who waits there."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a process has to set up before a service is created in it."""

    imports: tuple[str, ...] = ()  # files that register worlds, algorithms and torsos
    script: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)  # what only the driver's has
    cache: str = ""
    cores: int = 1
    gpus: float = 0.0
    trusted: tuple[str, ...] = ()  # what the user lets run folders name: workers read experiments as data

    def apply(self) -> None:
        jax.config.update("jax_num_cpu_devices", self.cores)
        if not self.gpus:
            jax.config.update("jax_platforms", "cpu")
        if self.cache:
            jax.config.update("jax_compilation_cache_dir", self.cache)
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
        for path in self.imports:
            import_file(path)
        for text in self.trusted:
            trust(text)
        adopt(self.script)


class _Hosted:
    """A service in a process of its own."""

    def __init__(self, factory: Callable[..., Any], args: tuple[Any, ...], setting: Setting):
        try:
            setting.apply()
            self.served = Served(factory, args)
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:  # Ray would restart for ever, without a word
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    def do(self, method: str, args: tuple[Any, ...], options: dict[str, Any], sender: str) -> Any:
        if method == "pid":
            return os.getpid()
        return self.served.do(method, args, options, sender)


class _Objects:
    """Ray's object store. Can be sent to other processes: it holds nothing."""

    def put(self, value: Any) -> Any:
        return ray.put(value)

    def get(self, ref: Any) -> Any:
        try:
            return ray.get(ref)
        except LOST as error:
            raise ServiceUnavailable(str(ref)) from error


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
        raise ServiceUnavailable(name) from error
    except FAILED as error:  # the process could not even be made ready
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

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        return self.call_async(method, *args, **options).result()

    def call_async(self, method: str, *args: Any, **options: Any) -> "_Answer":
        try:
            return _Answer(self.actor.do.remote(method, args, options, self.sender), self.name)
        except LOST as error:
            raise ServiceUnavailable(self.name) from error


class RayLauncher:
    """Starts services on a Ray cluster; on one of this machine alone if there is none."""

    def __init__(self, address: str = "auto", needs: Mapping[str, float] | None = None, setting: Setting | None = None):
        self.store = _Objects()
        self.setting = setting or setting_for()
        self.address, self._dashboard = join(address)
        self._actors: dict[str, Any] = {}
        self._lock = threading.Lock()
        try:
            check_resources({name: count for name, count in (needs or {}).items() if name != "CPU" or not self.private})
            if not self.private:
                check_versions()
        except BaseException:
            self.stop()
            raise

    def start(
        self, name: str, factory: Callable[..., T], *args: Any, cpus: float = 0.0, gpus: float = 0.0
    ) -> Service[T]:
        setting = dataclasses.replace(self.setting, cores=max(1, int(cpus)), gpus=gpus, trusted=trusted())
        cpus = 0.0 if self.private else cpus  # the whole machine is this run's, and more workers may come
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": -1, "max_task_retries": 0}
        hosted = ray.remote(_Hosted).options(max_concurrency=THREADS, **options)
        try:
            actor = hosted.remote(factory, args, setting)
        except TypeError as error:  # something cannot be pickled
            own = ", ".join(f"{kind} {name}" for kind, classes in setting.script.items() for name in classes) or "none"
            raise OptionError(
                f"{name}: cannot be sent to another process: {error}. What this script registers itself: {own}. Put it "
                "into a file of its own and name that with --import."
            ) from error
        with self._lock:
            self._actors[name] = actor
        return Service(RayHandle(name, actor))

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
        leave()

    def check(self) -> None:
        dead = self._dead()
        if dead:
            raise ClusterGoneError(f"Ray on this machine is gone: its {dead} died, and everything with it")

    def _dead(self) -> str:
        """Which process of a Ray that was started here has died."""
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


def setting_for(imports: Sequence[str] = ()) -> Setting:
    """What workers need to know the worlds, algorithms and torsos that this process knows."""
    files = [os.path.abspath(path) for path in imports if not (names_library(path) or os.path.isdir(path))]
    return Setting(tuple(dict.fromkeys([*files, *imported_files()])), from_script(), use_compilation_cache())
