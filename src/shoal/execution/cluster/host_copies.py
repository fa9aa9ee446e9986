"""Environments of the host in an actor: stepped in Python, decided on in batches by one compiled program.

Where decisions are made on an accelerator, the share's environments are cut into two parts: while those of one are
stepped in Python, the other's decisions are made; a call of a compiled program returns at once, and is only waited for
when its part's turn has come. On a CPU both are done by the same core, and one call for all is cheaper than two.

Where environments are stepped one by one, each has the seed that the host runner gives it, whichever actor holds it, so
synchronous training gives the host runner's weights. Batches that step themselves (vector environments) stay whole,
and have a seed for each share. An actor that begins anew begins other episodes.

An episode in which an environment tells NaN or infinity is cut short before that step, and the next one begun; only an
environment that keeps doing so is left out (see `health`): it is not stepped again, and what it was to tell are zeros.
One that raises ends the rollout with an error that says which one it was.
"""

import dataclasses
import functools
import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.errors import NonFiniteWorldError, ShoalError, WorldError
from shoal.core.host import Copies as OneByOne
from shoal.core.host import HostBatch, HostEnv, Last, Observations, StandIn, check_told
from shoal.core.regroup import original
from shoal.core.types import Observation, Outcome, PyTree
from shoal.core.vectorise import Worlds
from shoal.execution.cluster.health import Health
from shoal.execution.cluster.rollouts import Rollout, Share, joined
from shoal.execution.fused import Program
from shoal.execution.host import Played
from shoal.execution.rollout import Policies

BUFFERS = {"cpu": 1}
"""Parts that a share is cut into, by where decisions are made; two where nothing is said.

On a CPU most of a decision is the call itself, which nothing can overlap: two parts of 32 took 8 % more CPU time for a
step of `mpe2`'s simple_spread than one of 64.
"""
FORGIVEN = 0.05
"""An environment may give NaN in so much of its steps; above it, it is left out sooner or later."""


class HostCopies:
    """A share of the copies of a host environment."""

    def __init__(self, program: Program, share: Share, buffers: int | None = None):
        self.share, self.experiment = share, program.experiment
        buffers = buffers or BUFFERS.get(jax.default_backend(), 2)
        env = original(program.cast.env)
        assert isinstance(env, StandIn)
        self._stages = _stages(env, share, self.experiment.seed, buffers)
        try:
            self._parts = self._begun(program)
        except BaseException:
            self.close()
            raise

    def _begun(self, program: Program) -> list["_Part"]:
        roles = program.cast
        actor = Policies(roles.algorithms, roles.spec.groups)
        key = jax.random.split(jax.random.key(self.experiment.seed), 3)[0]  # as every runner has it
        if self.share.anew:
            key = jax.random.fold_in(key, self.share.anew)
        played: dict[int, Played] = {}  # parts of one size share what is compiled
        parts, first = [], self.share.first
        for stage in self._stages:
            plays = played.setdefault(stage.num_envs, Played(roles, actor, stage.num_envs))
            ids = jnp.arange(first, first + stage.num_envs, dtype=jnp.uint32)
            parts.append(_Part(plays, stage, jax.jit(plays.worlds.reset)(key, ids)))
            first += stage.num_envs
        return parts

    def roll(self, policies: PyTree) -> tuple[Rollout, np.ndarray]:
        """`num_steps` steps of all copies with these policies, and which `[E]` of them are to be learnt from."""
        policies = jax.device_put(policies)  # once, not with every step
        while True:
            for part in self._parts:
                part.begin(policies, self.experiment.num_steps)
            for t in range(self.experiment.num_steps):
                for part in self._parts:
                    part.step(policies, t)
            sound = np.concatenate([part.sound for part in self._parts])
            if sound.any() or self.out.all():
                return joined([part.made() for part in self._parts]), sound

    @property
    def out(self) -> np.ndarray:
        """Which copies `[E]` are left out for good."""
        return np.concatenate([stage.health.out for stage in self._stages])

    @property
    def resets(self) -> int:
        """How often a copy was begun anew because of NaN."""
        return sum(stage.health.resets for stage in self._stages)

    def close(self) -> None:
        """Closes the environments. One that cannot be closed must not cost what was learnt."""
        for stage in self._stages:
            try:
                stage.close()
            except Exception as error:  # the environment's own code may raise anything
                said = f"{self.experiment.env}: its close raised {type(error).__name__}: {error}"
                warnings.warn(said, RuntimeWarning, stacklevel=2)


class _Part:
    """Some of the copies, and what was decided for them last."""

    def __init__(self, played: Played, stage: "_Stage", worlds: Worlds):
        self.played, self.stage = played, stage
        told = stage.reset()
        check_told(played.stand_in, told.observation)
        self.worlds: Worlds = played._begun(worlds, told)  # pyright: ignore[reportPrivateUsage]
        self.memory: PyTree = None

    @functools.cached_property
    def _rows(self):
        return jax.jit(self.played.buffer, static_argnums=3)

    def begin(self, policies: PyTree, num_steps: int) -> None:
        """The first decisions of a rollout; they are on their way when this returns."""
        if self.memory is None:
            self.memory = self.played.actor.initial_memory(policies, self.played.num_envs)
        self.sound = np.ones(self.played.num_envs, bool)
        self.start = (self.memory, self.worlds.clock)
        self.acts, self.actions = self.played.decide(policies, self.memory, self.worlds)
        # A new one for each rollout: whoever takes the rollout may look at this very memory.
        self.buffer = self._rows(policies, self.worlds, self.memory, num_steps)

    def step(self, policies: PyTree, t: int) -> None:
        """Carries decisions out; the next ones are on their way when this returns."""
        told = self.stage.step(jax.device_get(self.actions))
        self.sound &= self.stage.sound
        self.memory = self.acts.memory
        self.worlds, self.buffer, self.acts, self.actions = self.played.tick(
            policies, self.worlds, self.acts, told, self.buffer, np.int32(t)
        )

    def made(self) -> Rollout:
        """The rollout, in numpy."""
        memory, clock = self.start
        return jax.device_get(Rollout(self.buffer, memory, self.worlds.observation, self.memory, clock))


class _Stage(Protocol):
    """Environments as an actor steps them. sound `[E]`: whose last step is to be learnt from."""

    health: Health

    @property
    def sound(self) -> np.ndarray: ...

    @property
    def num_envs(self) -> int: ...

    def reset(self) -> Last: ...

    def step(self, actions: Mapping[str, np.ndarray]) -> Last: ...

    def close(self) -> None: ...


Told = tuple[Observations, Observations, Outcome]
"""What one environment tells of a step: what is seen now, what was seen at its end, and what it led to."""


@dataclasses.dataclass
class _Apart:
    """Environments that are stepped one after the other. first: the global id of the first of them."""

    stand_in: StandIn
    envs: Sequence[HostEnv]
    seeds: Sequence[int]
    first: int

    def __post_init__(self):
        self.health = Health(self.num_envs, FORGIVEN)
        self.seen: list[Observations] = []  # by each environment last
        self.steps = 0

    @property
    def num_envs(self) -> int:
        return len(self.envs)

    @property
    def sound(self) -> np.ndarray:
        """All but those that are left out: where an episode was cut short, what came before it is as good as any."""
        return ~self.health.out

    @functools.cached_property
    def _blank(self) -> Last:
        return self.stand_in.blank()

    def reset(self) -> Last:
        self.seen = [self._begun(i, int(seed)) for i, seed in enumerate(self.seeds)]
        return _told(self.seen, self.seen, [self._blank.outcome] * self.num_envs)

    def step(self, actions: Mapping[str, np.ndarray]) -> Last:
        self.steps += 1
        rows = [self._row(i, {name: action[i] for name, action in actions.items()}) for i in range(self.num_envs)]
        told = _told(*(list(part) for part in zip(*(row or self._nothing for row in rows), strict=True)))
        well = _well(told, self.num_envs) & np.array([row is not None for row in rows])
        self.health.turn(well | self.health.out)
        for i in np.flatnonzero(~well):
            rows[i] = self._cut(int(i))
        kept = [row or self._nothing for row in rows]
        self.seen = [now for now, _, _ in kept]
        return told if well.all() else _told(*(list(part) for part in zip(*kept, strict=True)))

    @property
    def _nothing(self) -> Told:
        return self._blank.observation, self._blank.observation, self._blank.outcome

    def _row(self, i: int, actions: Mapping[str, np.ndarray]) -> Told | None:
        """A step of one environment; None if it says itself that it is NaN."""
        if self.health.out[i]:
            return self._nothing
        return self._tried(i, "step", lambda: _stepped(self.envs[i], actions))

    def _cut(self, i: int) -> Told:
        """Instead of a step that led to NaN: the episode ends with what was seen before it, and another one begins."""
        if self.health.out[i]:
            return self._nothing
        outcome: Any = self._blank.outcome.replace(truncated=np.bool_(True))
        return self._begun(i, None), self.seen[i], outcome

    def _begun(self, i: int, seed: int | None) -> Observations:
        """The first observation of an episode; zeros if there never is one without NaN."""
        while not self.health.out[i]:
            seen = self._tried(i, "reset", lambda seed=seed: self.envs[i].reset(seed))
            if seen is not None and _finite(seen):
                return seen
            self.health.fell(np.arange(self.num_envs) == i)
            seed = None
        return self._blank.observation

    def _tried(self, i: int, what: str, play: Callable[[], Any]) -> Any:
        """What an environment tells; None if it says itself that it is NaN."""
        try:
            return play()
        except NonFiniteWorldError:
            return None
        except ShoalError as error:  # it says where and what, but not which of the copies
            raise type(error)(f"copy {self.first + i}: {error}") from error
        except BaseException as error:  # the environment's own code may raise anything
            where = f"{self.stand_in.id}, copy {self.first + i}, step {self.steps}"
            raise WorldError(f"{where}: {what} raised {type(error).__name__}: {error}") from error

    def close(self) -> None:
        for env in self.envs:
            env.close()


@dataclasses.dataclass
class _Together:
    """Environments that step themselves as one batch, and begin anew by themselves.

    One that told NaN is stepped with the others, but not listened to until its episode has ended.
    """

    stand_in: StandIn
    batch: HostBatch
    seed: int

    def __post_init__(self):
        self.health = Health(self.num_envs, FORGIVEN)
        self.silent = np.zeros(self.num_envs, bool)  # until their episode has ended
        self.sound = np.ones(self.num_envs, bool)
        self.steps = 0

    @property
    def num_envs(self) -> int:
        return self.batch.num_envs

    def reset(self) -> Last:
        seen, blank = self._tried("reset", lambda: self.batch.reset(self.seed)), self.stand_in.blank()
        outcome = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (self.num_envs, *np.shape(leaf))), blank.outcome)
        told = Last(seen, seen, outcome)
        self.silent = ~_well(told, self.num_envs)
        self.health.turn(~self.silent)
        return _without(told, blank, self.silent) if self.silent.any() else told

    def step(self, actions: Mapping[str, np.ndarray]) -> Last:
        self.steps += 1
        told = Last(*self._tried("step", lambda: self.batch.step(actions)))
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

    def _quiet(self, told: Last, away: np.ndarray, back: np.ndarray) -> Last:
        """What was told, with zeros for those that are not listened to; who is back begins an episode."""
        quiet = _without(told, self.stand_in.blank(), away)
        seen = jax.tree.map(lambda own, nil: np.where(_rows(back, own), own, nil), told.observation, quiet.observation)
        outcome = quiet.outcome.replace(truncated=np.asarray(quiet.outcome.truncated | back))
        return quiet.replace(observation=seen, outcome=outcome)

    def _tried(self, what: str, play: Callable[[], Any]) -> Any:
        try:
            return play()
        except ShoalError:
            raise
        except BaseException as error:  # the environment's own code may raise anything
            where = f"{self.stand_in.id}, step {self.steps}"
            raise WorldError(f"{where}: {what} raised {type(error).__name__}: {error}") from error

    def close(self) -> None:
        self.batch.close()


def _stages(env: StandIn, share: Share, seed: int, buffers: int) -> list[_Stage]:
    """The share's environments, open, in parts that are stepped in turn."""
    batch = env.open(share.size)
    sequence = np.random.SeedSequence((seed, share.anew) if share.anew else seed)
    if not isinstance(batch, OneByOne):
        whole = not share.first and not share.anew
        return [_Together(env, batch, seed if whole else int(sequence.generate_state(share.first + 1)[-1]))]
    seeds = sequence.generate_state(share.first + share.size)[share.first :].tolist()  # as `core.host.Copies` has them
    ends = np.linspace(0, share.size, min(buffers, share.size) + 1).astype(int).tolist()
    return [
        _Apart(env, batch.envs[start:end], seeds[start:end], share.first + start)
        for start, end in itertools.pairwise(ends)
    ]


def _stepped(env: HostEnv, actions: Mapping[str, np.ndarray]) -> Told:
    """What is seen now, what was seen at the end of the step, and what it led to."""
    final, outcome = env.step(actions)
    return env.reset(None) if outcome.terminated or outcome.truncated else final, final, outcome


def _told(now: list[Observations], final: list[Observations], outcomes: list[Outcome]) -> Last:
    observation = _seen(now)
    ended = any(a is not b for a, b in zip(now, final, strict=True))
    parts: dict[str, Any] = {
        part: _stacked([getattr(outcome, part) for outcome in outcomes])
        for part in ("reward", "terminated", "truncated", "metrics")
    }
    return Last(observation, _seen(final) if ended else observation, Outcome(**parts))


def _seen(rows: list[Observations]) -> Observations:
    parts = ("view", "legal", "active", "present")
    return {
        name: Observation(*(_stacked([getattr(row[name], part) for row in rows]) for part in parts)) for name in rows[0]
    }


def _stacked(rows: list[Any]) -> Any:
    """As `jax.tree.map(np.stack, ...)`, which would take most of its time for taking trees as small as these apart."""
    one = rows[0]
    if isinstance(one, dict):
        return {name: _stacked([row[name] for row in rows]) for name in one}
    return None if one is None else np.array(rows)


def _well(told: Last, count: int) -> np.ndarray:
    """Which copies `[E]` have told finite numbers only."""
    trees = (told.observation, told.outcome) + ((told.final,) if told.final is not told.observation else ())
    return _finite_rows(trees, count)


def _finite_rows(tree: PyTree, count: int) -> np.ndarray:
    """Which rows `[E]` of a tree have finite numbers only."""
    well = np.ones(count, bool)
    for leaf in jax.tree.leaves(tree):
        if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
            well &= np.isfinite(leaf).reshape(count, -1).all(1)
    return well


def _finite(tree: PyTree) -> bool:
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree) if np.asarray(leaf).dtype.kind == "f")


def _without(told: Last, blank: Last, which: np.ndarray) -> Last:
    """What was told, with zeros for what these copies `[E]` told."""

    def put(leaf: np.ndarray, nothing: np.ndarray) -> np.ndarray:
        return np.where(_rows(which, leaf), nothing, leaf).astype(leaf.dtype)

    return jax.tree.map(put, told, blank)


def _rows(which: np.ndarray, like: np.ndarray) -> np.ndarray:
    """A mask `[E]` in as many dimensions as an array has."""
    return which.reshape(-1, *[1] * (np.ndim(like) - 1))
