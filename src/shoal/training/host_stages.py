"""Host environments as every runner steps them, with the handling of failures.

An episode in which an environment returns NaN or infinity is truncated before that step, with zero reward, and the
next one begins; only an environment that keeps doing so is excluded (see `Health`): it is not stepped again, and its
timesteps are zeros.

An environment that raises ends the run with an error that names the copy and the step. Where it can be recreated
(`SeparateEnvs.renew`) it is replaced, its episode truncated and the restart counted; only repeated errors are raised.
"""

import contextlib
import dataclasses
import functools
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from shoal.core.errors import NonFiniteWorldError, ShoalError, WorldError
from shoal.core.host import HostBatch, HostEnv, HostEnvProxy, HostState, Observations
from shoal.core.interrupts import is_users
from shoal.core.types import Observation, Outcome, PyTree
from shoal.training.health import Health

MAX_FAILURE_RATE = 0.05
"""Share of its steps in which an environment may fail; above it, the environment is eventually excluded."""
TIMEOUT = 60.0
"""Seconds that one environment may take for a step or a reset before it counts as hung."""

EnvReport = tuple[Observations, Observations, Outcome]
"""A step of one environment: its observation, the episode's final observation, and the outcome."""


class Stage(Protocol):
    """Environments as a runner steps them.

    sound `[E]`: whether to learn from the last step. cut_short `[E]`: whether a failure ended the episode in it.
    out `[E]`: which environments are excluded. restarts: number of restarts after failures.
    """

    @property
    def sound(self) -> np.ndarray: ...

    @property
    def cut_short(self) -> np.ndarray: ...

    @property
    def out(self) -> np.ndarray: ...

    @property
    def restarts(self) -> int: ...

    @property
    def num_envs(self) -> int: ...

    def reset(self) -> HostState: ...

    def step(self, actions: Mapping[str, np.ndarray]) -> HostState: ...

    def close(self) -> None: ...


@dataclasses.dataclass
class SeparateEnvs:
    """Environments that are stepped one after the other.

    first: the global id of the first of them. renew: makes a replacement for one that raised, which `say` reports.
    at: an array of one number, the environment that is being stepped or reset, or -1; read by the watchdog.
    """

    proxy: HostEnvProxy
    envs: Sequence[HostEnv]
    seeds: Sequence[int]
    first: int = 0
    renew: Callable[[], HostEnv] | None = None
    at: np.ndarray = dataclasses.field(default_factory=lambda: np.full(1, -1))
    say: Callable[[str], None] = dataclasses.field(default_factory=lambda: tell)

    def __post_init__(self):
        self.envs = list(self.envs)
        self.health = Health(self.num_envs, MAX_FAILURE_RATE)
        self.seen: list[Observations] = []  # the last observations, by environment
        self.cut_short = np.zeros(self.num_envs, bool)
        self.steps = 0
        self._fresh: dict[int, int] = {}  # seeds of environments that have not been reset yet

    @property
    def num_envs(self) -> int:
        return len(self.envs)

    @property
    def sound(self) -> np.ndarray:
        """All except excluded ones: the steps before an episode was cut short are valid."""
        return ~self.health.out

    @property
    def out(self) -> np.ndarray:
        return self.health.out

    @property
    def restarts(self) -> int:
        return self.health.resets

    @functools.cached_property
    def _blank(self) -> HostState:
        return self.proxy.blank()

    def reset(self) -> HostState:
        self.seen = [self._begun(i, int(seed)) for i, seed in enumerate(self.seeds)]
        return _report(self.seen, self.seen, [self._blank.outcome] * self.num_envs)

    def step(self, actions: Mapping[str, np.ndarray]) -> HostState:
        self.steps += 1
        rows = [self._row(i, {name: action[i] for name, action in actions.items()}) for i in range(self.num_envs)]
        told = _report(*(list(part) for part in zip(*(row or self._nothing for row in rows), strict=True)))
        well = _well(told, self.num_envs) & np.array([row is not None for row in rows])
        self.health.turn(well | self.health.out)
        self.cut_short = ~well
        for i in np.flatnonzero(~well):
            rows[i] = self._cut(int(i))
        kept = [row or self._nothing for row in rows]
        self.seen = [now for now, _, _ in kept]
        return told if well.all() else _report(*(list(part) for part in zip(*kept, strict=True)))

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # closes all of them, even if one raises
            for env in self.envs:
                stack.callback(env.close)

    @property
    def _nothing(self) -> EnvReport:
        return self._blank.observation, self._blank.observation, self._blank.outcome

    def _row(self, i: int, actions: Mapping[str, np.ndarray]) -> EnvReport | None:
        """A step of one environment; None if it failed."""
        if self.health.out[i]:
            return self._nothing
        return self._call(i, "step", lambda env: _step(env, actions))

    def _cut(self, i: int) -> EnvReport:
        """Replaces a failed step: the episode ends with the previous observation, and another one begins."""
        if self.health.out[i]:
            return self._nothing
        outcome: Any = self._blank.outcome.replace(truncated=np.bool_(True))
        return self._begun(i, None), self.seen[i], outcome

    def _begun(self, i: int, seed: int | None) -> Observations:
        """The first observation of an episode; zeros if none is free of NaN."""
        while not self.health.out[i]:
            seed = self._fresh.pop(i, seed)
            seen = self._call(i, "reset", lambda env, seed=seed: env.reset(seed))
            if seen is not None and _finite(seen):
                return seen
            self.health.fell(np.arange(self.num_envs) == i)
            seed = None
        return self._blank.observation

    def _call(self, i: int, what: str, play: Callable[[HostEnv], Any]) -> Any:
        """Calls an environment; None if it reports NaN itself, or has been replaced."""
        self.at[0] = i
        try:
            return play(self.envs[i])
        except NonFiniteWorldError:
            return None
        except BaseException as error:  # the environment's own code may raise anything
            if is_users(error):
                raise
            self._replace(i, self._said(i, what, error))
            return None
        finally:
            self.at[0] = -1

    def _said(self, i: int, what: str, error: BaseException) -> ShoalError:
        """An error that names the copy and the step."""
        if isinstance(error, ShoalError):  # it does not name the copy
            said = type(error)(f"copy {self.first + i}: {error}")
        else:
            where = f"{self.proxy.id}, copy {self.first + i}, step {self.steps}"
            said = WorldError(f"{where}: {what} raised {type(error).__name__}: {error}")
        said.__cause__ = error
        return said

    def _replace(self, i: int, error: ShoalError) -> None:
        """Replaces an environment that raised; raises if it keeps failing."""
        if self.renew is None:
            raise error
        if self.health.level(i) >= self.health.limit - 1:
            raise type(error)(f"{error}; it keeps failing") from error
        self.say(f"{error}. It is restarted.")
        close_quietly(self.envs[i], self.proxy.id)
        self.envs = [*self.envs[:i], self.renew(), *self.envs[i + 1 :]]
        sequence = np.random.SeedSequence((int(self.seeds[i]), self.steps, self.health.resets))
        self._fresh[i] = int(sequence.generate_state(1)[0])


@dataclasses.dataclass
class BatchedEnvs:
    """Environments that step themselves as one batch, and reset themselves.

    One that returned NaN is stepped with the others, but ignored until its episode has ended.
    """

    proxy: HostEnvProxy
    batch: HostBatch
    seed: int
    at: np.ndarray = dataclasses.field(default_factory=lambda: np.full(1, -1))

    def __post_init__(self):
        self.health = Health(self.num_envs, MAX_FAILURE_RATE)
        self.silent = np.zeros(self.num_envs, bool)  # ignored until their episode has ended
        self.sound = np.ones(self.num_envs, bool)
        self.steps = 0

    @property
    def num_envs(self) -> int:
        return self.batch.num_envs

    @property
    def cut_short(self) -> np.ndarray:
        return ~self.sound

    @property
    def out(self) -> np.ndarray:
        return self.health.out

    @property
    def restarts(self) -> int:
        return self.health.resets

    def reset(self) -> HostState:
        seen, blank = self._call("reset", lambda: self.batch.reset(self.seed)), self.proxy.blank()
        outcome = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (self.num_envs, *np.shape(leaf))), blank.outcome)
        told = HostState(seen, seen, outcome)
        self.silent = ~_well(told, self.num_envs)
        self.health.turn(~self.silent)
        return _without(told, blank, self.silent) if self.silent.any() else told

    def step(self, actions: Mapping[str, np.ndarray]) -> HostState:
        self.steps += 1
        told = HostState(*self._call("step", lambda: self.batch.step(actions)))
        well = _well(told, self.num_envs)
        self.health.turn(well | self.silent | self.health.out)
        away = self.silent | self.health.out | ~well
        self.sound = ~away
        if not away.any():
            return told
        ended = told.outcome.terminated | told.outcome.truncated
        back = away & ended & ~self.health.out & _finite_rows(told.observation, self.num_envs)
        self.silent = away & ~back
        return self._quiet(told, away, back)

    def close(self) -> None:
        self.batch.close()

    def _quiet(self, told: HostState, away: np.ndarray, back: np.ndarray) -> HostState:
        """The timestep with zeros for ignored copies; those that are back start an episode."""
        quiet = _without(told, self.proxy.blank(), away)
        seen = jax.tree.map(
            lambda own, zero: np.where(_rows(back, own), own, zero), told.observation, quiet.observation
        )
        outcome = quiet.outcome.replace(truncated=np.asarray(quiet.outcome.truncated | back))
        return quiet.replace(observation=seen, outcome=outcome)

    def _call(self, what: str, play: Callable[[], Any]) -> Any:
        self.at[0] = 0
        try:
            return play()
        except ShoalError:
            raise
        except BaseException as error:  # the environment's own code may raise anything
            if is_users(error):
                raise
            where = f"{self.proxy.id}, step {self.steps}"
            raise WorldError(f"{where}: {what} raised {type(error).__name__}: {error}") from error
        finally:
            self.at[0] = -1


class Watchdog:
    """Reports an environment that takes longer than `timeout` seconds for one step, while it blocks the main thread."""

    def __init__(self, stage: SeparateEnvs | BatchedEnvs, timeout: float):
        self.stage, self.timeout = stage, timeout
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._watch, name="environments' watchdog", daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.over.set()

    def _watch(self) -> None:
        every = min(1.0, self.timeout / 4)
        seen, since, due = None, 0.0, self.timeout
        while not self.over.wait(every):
            now = (self.stage.steps, int(self.stage.at[0]))
            since = since + every if now == seen and now[1] >= 0 else 0.0
            due = self.timeout if now != seen else due
            seen = now
            if since >= due:
                tell(self._words(now, since))
                due = 2 * since

    def _words(self, now: tuple[int, int], since: float) -> str:
        steps, i = now
        one = isinstance(self.stage, SeparateEnvs)
        which = f"copy {i}" if one else f"one of its {self.stage.num_envs} copies"
        doing = f"step {steps}" if steps else "its reset"
        cure = "--env-workers N steps environments in processes that are replaced when they hang"
        stuck = f"{self.stage.proxy.id}: {which} has been in {doing} for {since:.0f} s"
        return f"{stuck}. Ctrl-C twice ends the run; {cure}."


def tell(text: str) -> None:
    """Prints one line on stderr, whatever else is being shown."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def close_quietly(env: Any, name: str) -> None:
    """Closes environments; an error while closing is reported, and must not lose the training."""
    try:
        env.close()
    except Exception as error:  # the environment's own code may raise anything
        tell(f"{name}: its close raised {type(error).__name__}: {error}")


def _step(env: HostEnv, actions: Mapping[str, np.ndarray]) -> EnvReport:
    final, outcome = env.step(actions)
    return env.reset(None) if outcome.terminated or outcome.truncated else final, final, outcome


def _report(now: list[Observations], final: list[Observations], outcomes: list[Outcome]) -> HostState:
    observation = _seen(now)
    ended = any(a is not b for a, b in zip(now, final, strict=True))
    parts: dict[str, Any] = {
        part: _stack([getattr(outcome, part) for outcome in outcomes])
        for part in ("reward", "terminated", "truncated", "metrics")
    }
    return HostState(observation, _seen(final) if ended else observation, Outcome(**parts))


def _seen(rows: list[Observations]) -> Observations:
    parts = ("view", "legal", "active", "present")
    return {
        name: Observation(*(_stack([getattr(row[name], part) for row in rows]) for part in parts)) for name in rows[0]
    }


def _stack(rows: list[Any]) -> Any:
    """As `jax.tree.map(np.stack, ...)`, which would spend most of its time on flattening trees as small as these."""
    one = rows[0]
    if isinstance(one, dict):
        return {name: _stack([row[name] for row in rows]) for name in one}
    return None if one is None else np.array(rows)


def _well(told: HostState, count: int) -> np.ndarray:
    """Which copies `[E]` returned only finite numbers."""
    trees = (told.observation, told.outcome) + ((told.final,) if told.final is not told.observation else ())
    return _finite_rows(trees, count)


def _finite_rows(tree: PyTree, count: int) -> np.ndarray:
    """Which rows `[E]` of a tree contain only finite numbers."""
    well = np.ones(count, bool)
    for leaf in jax.tree.leaves(tree):
        if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
            well &= np.isfinite(leaf).reshape(count, -1).all(1)
    return well


def _finite(tree: PyTree) -> bool:
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree) if np.asarray(leaf).dtype.kind == "f")


def _without(told: HostState, blank: HostState, which: np.ndarray) -> HostState:
    """The timestep with zeros for these copies `[E]`."""

    def put(leaf: np.ndarray, nothing: np.ndarray) -> np.ndarray:
        return np.where(_rows(which, leaf), nothing, leaf).astype(leaf.dtype)

    return jax.tree.map(put, told, blank)


def _rows(which: np.ndarray, like: np.ndarray) -> np.ndarray:
    """A mask `[E]` broadcast to the number of dimensions of an array."""
    return which.reshape(-1, *[1] * (np.ndim(like) - 1))
