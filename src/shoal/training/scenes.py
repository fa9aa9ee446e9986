"""Watches a run learn: short episodes played at points along the learning curve, and kept in its folder.

At each point the loop hands over a copy of the policies, nothing else: no key is drawn and no state is touched, so the
run has the same bits with and without. Of several trainings side by side, a point shows one, which its program chooses
and names (`Program.watched`). Episodes of compiled worlds are played greedily by a thread of its own, at low
priority, on the CPU; environments on the host play where they are, between two updates, and only if scenes are asked
for. While the run trains, all of it together, compiling included, takes at most `SHARE` of the time that the run is
going to take: points that this does not allow wait, and are played at the end. Only runs that were asked for scenes
compile at once; others begin after `LATE` seconds, if as long as training took to compile is within the share, and at
the end spend no more than `AFTER` of the run's time: a shorter run keeps none.

All points show the same episode, by its seed. Files are read by `training.scene_files`.
"""

import contextlib
import os
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shoal.batching.regroup import unwrap_regrouped
from shoal.core.errors import OptionError, require
from shoal.core.host import HostEnvProxy
from shoal.core.types import PyTree, Scene
from shoal.training.evaluate import recorder_of
from shoal.training.experiment import Setup
from shoal.training.film import Filmer
from shoal.training.scene_files import (
    FORMAT,
    MOST_BYTES,
    MOST_LETTERS,
    MOST_POINTS,
    drop_later,
    encode,
    write_plan,
    write_scene,
)
from shoal.viz.film import encoded_frames
from shoal.viz.replay import replay_data

POINTS = 20
"""Points that a run keeps by default."""
LATE = 20.0
"""Seconds of training after which a run that was not asked for scenes plays its first."""
SHARE = 0.02
"""Of the time that a run takes, the part that playing scenes may take (of one core) while it trains."""
AFTER = 0.1
"""Of the time of a run that was not asked for scenes, the part that they may take in all, once it has trained."""
STEPS = 200
"""Steps of an episode at most."""
LARGEST = 1 << 19
"""Bytes of a point at most; longer episodes are cut."""
WAITING = 1 << 28
"""Bytes of policies that wait to be played at most; beyond, the oldest go."""
FPS = 15.0
_SIDE = 240  # pixels of pictures of environments that draw themselves
_POWER = 1.5  # above 1: points are denser early, where most is learnt


def sample_points(total: int, number: int) -> list[int]:
    """The updates, from 0 to the last, after which a run of `total` updates is watched."""
    if number <= 0:
        return []
    shares = np.linspace(0, 1, number) if number > 1 else np.ones(1)
    return sorted({round(total * float(share) ** _POWER) for share in shares})


class SceneSampler:
    """Plays the policies of a run at its points. asked: whether the user said how many there should be."""

    def __init__(self, setup: Setup, folder: Path, total: int, number: int, asked: bool, begun: int = -1):
        require(0 <= number <= MOST_POINTS, "run", "scenes", number, f"from 0 (none) to {MOST_POINTS}")
        self.setup, self.folder, self.number, self.asked = setup, folder, number, asked
        self.hosted = isinstance(unwrap_regrouped(setup.env), HostEnvProxy)
        shown = number if asked or not (self.hosted or _is_blank(setup)) else 0
        if shown and _is_blank(setup) and not self.hosted:
            raise OptionError(f"scenes: the world {setup.experiment.env!r} does not define `scene`: leave them out")
        self.points = [point for point in sample_points(total, shown) if point > begun]
        self.seconds: list[float] = []  # that each point took; the first one compiles
        self._from, self._total = max(begun, 0), total
        self._waiting: deque[tuple[int, int, dict[str, PyTree], str]] = deque()
        self._thread: threading.Thread | None = None
        self._wake, self._closing = threading.Event(), False
        self._failed: BaseException | None = None
        self._player: Any = None
        self.begin(0.0)
        if shown:
            drop_later(folder, begun)
            if asked:
                write_plan(folder, number)

    def begin(self, compile_seconds: float) -> None:
        """Training begins, after its own program took so long to compile."""
        self._guess, self._began, self._expected = compile_seconds, time.perf_counter(), 0.0

    def until_next(self, update: int) -> int | None:
        """Updates until the next point; None if there is none."""
        return next((point - update for point in self.points if point > update), None)

    def is_due(self, update: int) -> bool:
        return update in self.points

    def take(self, update: int, env_steps: int, policies: dict[str, PyTree], label: str = "") -> None:
        """Hands over the policies of a point, on the host. label: whose they are, of several."""
        if self._failed is not None:
            return
        size = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(policies))
        while len(self._waiting) * size > WAITING:
            self._waiting.popleft()
        self._waiting.append((update, env_steps, policies, label[:MOST_LETTERS]))
        elapsed, made = time.perf_counter() - self._began, update - self._from
        self._expected = elapsed * (self._total - self._from) / made if made > 0 else elapsed
        if self.hosted:
            self._play_waiting(self._affordable)
        elif self._affordable():
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="scenes", daemon=True)
                self._thread.start()
            self._wake.set()

    def close(self) -> None:
        """Plays what waits, the newest first, unless the run was too short to be watched."""
        if self._thread is not None:
            self._closing = True
            self._wake.set()
            self._thread.join()
        elapsed = time.perf_counter() - self._began
        if self._waiting and (self.asked or elapsed >= LATE):
            self._waiting.rotate()
            with _on_cpu():
                self._play_waiting(lambda: self.asked or sum(self.seconds) <= AFTER * elapsed)
        if self._failed is not None:
            why = f"{type(self._failed).__name__}: {self._failed!s:.200}"
            warnings.warn(f"this run kept no more scenes: {why}. Training is not affected.", stacklevel=2)

    def _work(self) -> None:
        _lower_priority()
        with _on_cpu():
            while not self._closing:
                self._wake.wait()
                self._wake.clear()
                self._play_waiting(lambda: not self._closing and self._affordable())

    def _affordable(self) -> bool:
        """Whether a point may be played while the run trains."""
        if self.asked and not self.seconds:
            return True
        spent = sum(self.seconds) if self.seconds else self._guess
        late = self.asked or time.perf_counter() - self._began >= LATE
        return late and spent <= SHARE * self._expected

    def _play_waiting(self, may: Callable[[], bool]) -> None:
        while self._waiting and self._failed is None and may():
            self._play(*self._waiting.popleft())

    def _play(self, update: int, env_steps: int, policies: dict[str, PyTree], label: str) -> None:
        began = time.perf_counter()
        try:
            write_scene(self.folder, self._record(update, env_steps, policies, label), self.number)
        except Exception as error:  # a world's own code may raise anything, and training goes on
            self._failed = error
        self.seconds.append(time.perf_counter() - began)

    def _record(self, update: int, env_steps: int, policies: dict[str, PyTree], label: str) -> dict[str, Any]:
        told = [f"after {update:,} updates, {env_steps:,} env steps", *([label] if label else [])]
        look = {"title": self.setup.experiment.env, "subtitle": " · ".join(told)}
        head = {"format": FORMAT, "update": update, "env_steps": env_steps, "label": label}
        if self._player is None:
            self._player = Filmer(self.setup) if self.hosted else recorder_of(self.setup)
        played = self._player(policies, self.setup.experiment.seed, STEPS)
        length = len(played.frames) if self.hosted else len(next(iter(played.returns.values())))
        length = min(length, STEPS + 1)
        while True:
            series = {name: np.asarray(values[:length], float) for name, values in played.returns.items()}
            returns = {name: float(values[-1]) for name, values in series.items()}
            if self.hosted:
                point = {**head, "page": "film.html", "data": _film_data(played.frames[:length], series, look)}
            else:
                point = {**head, "page": "replay.html", "data": _replay_data(played.frames, length, series, look)}
            point["returns"] = {name: value for name, value in returns.items() if np.isfinite(value)}
            if len(encode(point)) <= LARGEST or length <= 2:
                break
            length = max(2, length // 2)
        if len(encode(point)) > MOST_BYTES:
            raise OptionError(f"a scene of {self.setup.experiment.env} has more than {MOST_BYTES:,} bytes")
        return point


def _replay_data(frames: Scene, length: int, series: dict[str, np.ndarray], look: dict[str, str]) -> dict[str, Any]:
    cut = jax.tree.map(lambda leaf: leaf[:length], frames)
    named = {f"return of {name}": values for name, values in series.items()}
    return replay_data(cut, series=named, fps=FPS, **look)


def _film_data(frames: list[np.ndarray], series: dict[str, np.ndarray], look: dict[str, str]) -> dict[str, Any]:
    kind, pictures = encoded_frames(frames, _SIDE)
    named = {f"return of {name}": np.nan_to_num(values).round(3).tolist() for name, values in series.items()}
    return {**look, "fps": FPS, "kind": kind, "frames": pictures, "series": named}


def _is_blank(setup: Setup) -> bool:
    """Whether the world is drawn by nobody."""
    world = setup.env
    if isinstance(unwrap_regrouped(world), HostEnvProxy):
        return False

    def drawn(key: jax.Array) -> Scene:
        params = world.default_params()
        return world.scene(world.reset(key, params), params)

    try:
        scene = jax.eval_shape(drawn, jax.random.key(0))
    except Exception:  # the world's own code; training says what is wrong with it, if it is more than its picture
        return True
    return all(kind is None for kind in (scene.circles, scene.polygons, scene.lines, scene.labels))


def _lower_priority() -> None:
    """Lets the training go first, where threads have priorities."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


@contextlib.contextmanager
def _on_cpu() -> Iterator[None]:
    """Leaves the accelerator, if there is one, to the training."""
    if jax.default_backend() == "cpu":
        yield
        return
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        yield
