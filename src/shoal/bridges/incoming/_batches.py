"""Batches of other libraries' environments that check actions before they reach any environment.

An action that does not fit is the caller's fault and not the environment's: the error says so, with the group.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shoal.bridges.outgoing._worlds import check_action
from shoal.core.errors import OptionError, WorldError, require
from shoal.core.host import HostEnv, HostEnvProxy, HostTimestep, Observations, SerialHostBatch
from shoal.core.spaces import Box, action_shape
from shoal.core.types import Group


class Gate:
    """Checks calls of a batch. name: of the environment. Tracks whether it was reset, and whether it is closed."""

    def __init__(self, name: str, groups: Mapping[str, Group], num_envs: int):
        self.name, self.groups, self.num_envs = name, groups, num_envs
        self.begun = self.closed = False
        self._active: dict[str, np.ndarray | None] = {}

    def told(self, seen: Observations) -> Observations:
        """After a reset or a step: remembers who is to act, as what others do has no effect and may be anything."""
        self._active = {name: None if obs.active is None else np.asarray(obs.active) for name, obs in seen.items()}
        return seen

    def begin(self, seed: Any) -> None:
        """Before a reset."""
        self._open("reset")
        whole = isinstance(seed, int | np.integer) and not isinstance(seed, bool) and seed >= 0
        require(bool(whole), self.name, "seed", seed, "a whole number, 0 or greater")
        self.begun = True

    def taken(self, actions: Any) -> dict[str, np.ndarray]:
        """Before a step: the actions `[E, n, ...]` by group, as numpy arrays."""
        self._open("step")
        if not self.begun:
            raise WorldError(f"{self.name}: no episode has begun: call reset before step")
        if not isinstance(actions, Mapping) or set(actions) != set(self.groups):
            got = sorted(map(str, actions)) if isinstance(actions, Mapping) else type(actions).__name__
            raise OptionError(f"{self.name}: a step needs actions by group, of {sorted(self.groups)}, got {got}")
        return {name: self._fits(name, group, actions[name]) for name, group in self.groups.items()}

    def _fits(self, name: str, group: Group, action: Any) -> np.ndarray:
        try:
            array = np.asarray(action)
        except ValueError:
            raise OptionError(f"{self.name}: the actions of group {name!r} are not an array: {action!r}") from None
        lead, active = (self.num_envs, group.size), self._active.get(name)
        meant = array
        if active is not None and array.shape == (*lead, *action_shape(group.action)):
            rows = active.reshape(*lead, *[1] * (array.ndim - 2))
            space = group.action
            harmless = min(max(0.0, space.low), space.high) if isinstance(space, Box) else 0
            meant = np.where(rows, array, np.asarray(harmless).astype(array.dtype))
        check_action(self.name, f"group {name!r}", group.action, meant, lead)
        return array

    def _open(self, what: str) -> None:
        if self.closed:
            raise WorldError(f"{self.name}: it is closed: no {what} is possible any more; open it again")


class GatedCopies(SerialHostBatch):
    """Environments that are stepped one after the other, behind a gate."""

    def __init__(self, envs: Sequence[HostEnv]):
        super().__init__(envs)
        self.gate = Gate(envs[0].name, envs[0].groups, len(envs))

    def reset(self, seed: int) -> Observations:
        self.gate.begin(seed)
        return self.gate.told(super().reset(seed))

    def step(self, actions: Mapping[str, np.ndarray]) -> HostTimestep:
        told = super().step(self.gate.taken(actions))
        self.gate.told(told.observation)
        return told

    def close(self) -> None:
        """Closes all; a second time nothing happens."""
        if not self.gate.closed:
            self.gate.closed = True
            super().close()


def stand_in_for(env: HostEnv, make: Callable[[], HostEnv]) -> HostEnvProxy:
    """A proxy for new environments like `env`, each with such checks; refuses to open fewer than one."""

    def opened(count: int) -> GatedCopies:
        check_count(env.name, count)
        return GatedCopies([make() for _ in range(count)])

    return HostEnvProxy(env.name, dict(env.groups), dict(env.players), opened, env.masked, env.leaving)


def check_count(name: str, count: Any) -> None:
    """Refuses to open anything but one environment or more."""
    whole = isinstance(count, int | np.integer) and not isinstance(count, bool)
    require(
        bool(whole and count >= 1), name, "the number of environments to open", count, "a whole number of at least 1"
    )
