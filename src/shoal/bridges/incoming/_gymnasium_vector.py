"""Gymnasium's vector environments as batches of environments.

They begin a new episode in one of three ways (`AutoresetMode`). In the step that ends one (`SAME_STEP`): that is our
way, and what `sync` and `async` are asked for. When told to (`DISABLED`): we do, at once. Or in the step after the one
that ended it (`NEXT_STEP`), in which actions have no effect: then the end is reported one step late. In the step
between, no agent is active, and the agent is present only if the episode was cut short, not if it terminated. So
returns are those of the other ways, but that what is bootstrapped after a time limit is discounted once more.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from shoal.bridges.incoming._batches import Gate
from shoal.bridges.incoming._conversion import legal_row, make_observation, make_outcome, map_view
from shoal.bridges.incoming._parts import Misfit
from shoal.bridges.incoming._reports import CHECKED_STEPS, Place
from shoal.bridges.incoming._spaces import Spaces
from shoal.core.errors import OptionError
from shoal.core.host import HostTimestep, Observations
from shoal.core.types import Group, Observation, Outcome

AGENT = "agent"


class Vector:
    """A Gymnasium `VectorEnv` as a `HostBatch`.

    seeded: whether it takes a seed for each copy. masked: found out, by beginning episodes, if it is None. workers:
    whether the copies are in processes of their own.
    """

    def __init__(
        self,
        name: str,
        env: VectorEnv,
        check: bool,
        seeded: bool,
        masked: bool | None = None,
        workers: bool = False,
    ):
        self.name, self.env, self.check, self.seeded = name, env, check, seeded
        self.spaces = Spaces.of(env.single_observation_space, env.single_action_space, name)
        self.mode = _autoreset_mode(name, env)
        copies = f"{env.num_envs} {'copy' if env.num_envs == 1 else 'copies'}"
        self.place = Place(f"{name}, {copies}", episodes=False, workers=workers)
        self.gate = Gate(name, {AGENT: Group(1, self.spaces.acts.space)}, env.num_envs)
        self.masked = has_masks(env, self.spaces, self.place) if masked is None else masked
        self._ended = np.zeros((2, env.num_envs), bool)  # terminated and truncated, of ends that are yet to be reported
        self._before: Observations = {}

    @property
    def num_envs(self) -> int:
        return self.env.num_envs

    @property
    def leaving(self) -> bool:
        return self.mode == AutoresetMode.NEXT_STEP

    def reset(self, seed: int) -> Observations:
        self.gate.begin(seed)
        seeds = [int(own) for own in np.random.SeedSequence(seed).generate_state(self.num_envs)]
        self.place.begin()
        self._ended = np.zeros_like(self._ended)
        with self.place.inside("reset"):
            # Those that `SerialHostBatch` gives. An environment with its own entry point may take a single one only.
            value, info = self.env.reset(seed=seeds if self.seeded else seeds[0])  # pyright: ignore[reportArgumentType]
            self._before = self._seen(value, info)
        return self._before

    def step(self, actions: Mapping[str, np.ndarray]) -> HostTimestep:
        taken = self.gate.taken(actions)[AGENT][:, 0]
        self.place.advance()
        with self.place.inside("step"):
            value, reward, *ends, info = self._stepped(self.spaces.acts.decode(taken))
            now = np.array(ends, bool)
            ended = now[0] | now[1]
            if self.mode == AutoresetMode.NEXT_STEP:
                return self._next_step(value, info, reward, now)
            if self.mode == AutoresetMode.SAME_STEP:
                seen = self._seen(value, info)
                return HostTimestep(seen, self._final(seen, info, ended), self._outcome(reward, now))
            final = self._seen(value, info)
            seen = self._seen(*self.env.reset(options={"reset_mask": ended})) if ended.any() else final
            return HostTimestep(seen, final, self._outcome(reward, now))

    def close(self) -> None:
        """Closes all copies; a second time nothing happens. If a process died, the others are ended."""
        if self.gate.closed:
            return
        self.gate.closed = True
        if self.place.broken:
            self._terminate()
        else:
            self.env.close()

    def _stepped(self, actions: Any) -> Any:
        """Their step. One that cannot put the observations together says which of them has another shape."""
        try:
            return self.env.step(actions)
        except ValueError:
            for i, value in enumerate(getattr(self.env.unwrapped, "_env_obs", ())):  # SyncVectorEnv's
                try:
                    self.spaces.see(value)
                except Misfit as error:
                    raise Misfit(f"copy {i}: {error}") from error
            raise

    def _terminate(self) -> None:
        for process in getattr(self.env.unwrapped, "processes", ()):
            process.terminate()
            process.join()
        self.env.unwrapped.closed = True  # their own way to close would wait for those that died

    def _next_step(self, value: Any, info: Any, reward: Any, now: np.ndarray) -> HostTimestep:
        """Where an episode had ended before, this step began the next: only now is there something to see in it."""
        told, before = self._ended, self._before
        over = told[0] | told[1]
        self._ended = now & ~over
        self._before = seen = self._seen(value, info)
        final = jax.tree.map(lambda was, is_: _where(over, was, is_), before, seen) if over.any() else seen
        return HostTimestep(seen, final, self._outcome(reward, told))

    def _final(self, seen: Observations, info: Any, ended: np.ndarray) -> Observations:
        """The last observation of the episodes that ended; elsewhere as `seen`."""
        if not ended.any():
            return seen
        if "final_obs" not in info:
            raise Misfit("episodes ended, but the info has no 'final_obs', which the autoreset mode SAME_STEP demands")
        rows = np.flatnonzero(ended)
        last = [self.spaces.see(info["final_obs"][i], check=self._checked) for i in rows]
        final: Observation = jax.tree.map(np.copy, seen[AGENT])
        for i, view in zip(rows, last, strict=True):
            for into, leaf in zip(jax.tree.leaves(final.view), jax.tree.leaves(view), strict=True):
                into[i, 0] = leaf
        return {AGENT: final}

    def _seen(self, value: Any, info: Any) -> Observations:
        view = map_view(lambda leaf: leaf[:, None], self.spaces.see(value, lead=1, check=self._checked))
        seen = make_observation(view, self._legal(value, info) if self.masked else None)
        if self.leaving:
            active, present = ~(self._ended[0] | self._ended[1]), ~self._ended[0]
            seen = seen.replace(active=active[:, None], present=present[:, None])
        return {AGENT: seen}

    def _legal(self, value: Any, info: Any) -> np.ndarray:
        mask = self.spaces.mask(value, info)
        rows = np.ones((self.num_envs, self.spaces.width), bool) if mask is None else mask
        return np.stack([legal_row(row, self.spaces.width) for row in rows])[:, None]

    def _outcome(self, reward: Any, ends: np.ndarray) -> Outcome:
        paid = np.array(reward, np.float32)
        if paid.shape != (self.num_envs,) or not np.isfinite(paid).all():
            raise Misfit(f"the rewards are {reward!r}, not a finite number for each of {self.num_envs} copies")
        return make_outcome({AGENT: paid[:, None]}, ends[0], ends[1])

    @property
    def _checked(self) -> bool:
        return self.check and self.place.total <= CHECKED_STEPS


def has_masks(env: Any, spaces: Spaces, place: Place) -> bool:
    """Whether an environment, or a batch of them, has action masks: found out when an episode begins."""
    with place.inside("reset"):
        value, info = env.reset(seed=0)
    return spaces.width > 0 and spaces.mask(value, info) is not None


def _autoreset_mode(name: str, env: VectorEnv) -> AutoresetMode:
    mode = env.metadata.get("autoreset_mode")
    if not isinstance(mode, AutoresetMode):
        raise OptionError(
            f"{name}: the vector environment does not say when it begins new episodes: metadata['autoreset_mode'] "
            f"must be an AutoresetMode, got {mode!r}. Use vectorisation_mode='sync'."
        )
    return mode


def _where(mask: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(mask.reshape(-1, *[1] * (a.ndim - 1)), a, b)
