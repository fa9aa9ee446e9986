"""Environments on the host: stateful, in numpy, stepped by Python. Their contract, and their proxies for runners.

A `HostEnv` is one environment, a `HostBatch` several that are stepped together and reset themselves; `SerialHostBatch`
makes a batch of single ones. To everything else (seats, shapes, learners) a host environment is a `HostEnvProxy`: an
environment like any other, whose state is what the host last reported. A runner for host environments (`training.host`)
fills it in; the fused runner cannot, and refuses.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from shoal.core.env import Env
from shoal.core.errors import WorldError
from shoal.core.spaces import Box, num_logits
from shoal.core.types import Group, Observation, Outcome, PyTree, Seat

Observations = dict[str, Observation]


class HostEnv(Protocol):
    """One stateful environment. Arrays are numpy; shapes and dtypes never change.

    groups: agents with identical spaces, their `observation` given as a `Box` or a dict of them. Every observation has
    `legal` if it is `masked`, `active` and `present` if agents are `leaving`, and never otherwise.
    """

    name: str  # its name in errors, such as `gymnasium:CartPole-v1`
    groups: Mapping[str, Group]
    players: dict[str, tuple[Seat, ...]]
    masked: bool  # whether observations have action masks
    leaving: bool  # whether observations have active and present; if not, all agents always are

    def reset(self, seed: int | None) -> Observations:
        """Starts an episode; a seed makes this one and the following ones reproducible."""
        ...

    def step(self, actions: Mapping[str, np.ndarray]) -> tuple[Observations, Outcome]:
        """One step. After a terminated or truncated one, `reset` comes next; its observation is the final one."""
        ...

    def close(self) -> None: ...


class HostTimestep(NamedTuple):
    """The result of a step of a `HostBatch`; leaves are numpy, `[E, ...]`.

    observation: the current one, of the new episode where one ended. final: the last observation of episodes that
    ended; elsewhere as `observation`. outcome: of the step.
    """

    observation: Observations
    final: Observations
    outcome: Outcome


class HostBatch(Protocol):
    """Environments that are stepped together; where an episode ends, the next one starts at once."""

    @property
    def num_envs(self) -> int: ...

    def reset(self, seed: int) -> Observations: ...

    def step(self, actions: Mapping[str, np.ndarray]) -> HostTimestep: ...

    def close(self) -> None: ...


class SerialHostBatch:
    """A `HostBatch` of environments that are stepped one after the other."""

    def __init__(self, envs: Sequence[HostEnv]):
        self.envs = list(envs)

    @property
    def num_envs(self) -> int:
        return len(self.envs)

    def reset(self, seed: int) -> Observations:
        seeds = np.random.SeedSequence(seed).generate_state(len(self.envs))
        return _stack([env.reset(int(own)) for env, own in zip(self.envs, seeds, strict=True)])

    def step(self, actions: Mapping[str, np.ndarray]) -> HostTimestep:
        now, final, outcomes = [], [], []
        for i, env in enumerate(self.envs):
            observation, outcome = env.step({name: action[i] for name, action in actions.items()})
            final.append(observation)
            now.append(env.reset(None) if outcome.terminated or outcome.truncated else observation)
            outcomes.append(outcome)
        observation = _stack(now)
        ended = any(a is not b for a, b in zip(now, final, strict=True))
        return HostTimestep(observation, _stack(final) if ended else observation, _stack(outcomes))

    def close(self) -> None:
        for env in self.envs:
            env.close()


class HostState(struct.PyTreeNode):
    """State of a `HostEnvProxy`: the observation and, after a step, its outcome and the episode's final observation."""

    observation: Observations
    final: Observations
    outcome: Outcome


@dataclasses.dataclass(frozen=True, eq=False)
class HostEnvProxy(Env):
    """A host environment as a world. It cannot be stepped by itself: `step` returns the last result of the host.

    id: such as `gymnasium:CartPole-v1`. seats, owners: its groups and players. open: makes a batch of a given size.
    """

    id: str
    seats: Mapping[str, Group]
    owners: Mapping[str, tuple[Seat, ...]]
    open: Callable[[int], HostBatch]
    masked: bool = False
    leaving: bool = False
    metrics: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        """Whether it stands for the same environment, by its spaces: the functions that open it cannot be compared."""
        return isinstance(other, HostEnvProxy) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def _key(self) -> tuple[Any, ...]:
        return (self.id, self.seats, self.owners, self.masked, self.leaving, self.metrics)

    @property
    def groups(self) -> Mapping[str, Group]:
        return self.seats

    @property
    def players(self) -> dict[str, tuple[Seat, ...]]:
        return dict(self.owners)

    def reset(self, key: jax.Array, params: PyTree) -> HostState:
        """Zeros of the right shapes; the runner fills in the host's values."""
        return jax.tree.map(jnp.asarray, self.blank())

    def step(
        self, key: jax.Array, state: HostState, actions: dict[str, jax.Array], params: PyTree
    ) -> tuple[HostState, Outcome]:
        return state.replace(observation=state.final), state.outcome

    def observe(self, state: HostState, params: PyTree) -> Observations:
        return state.observation

    def blank(self) -> HostState:
        """A state of zeros, in which all actions are legal and all agents present."""
        seen = {name: self._blank(group) for name, group in self.seats.items()}
        reward: Any = {name: np.zeros(group.size, np.float32) for name, group in self.seats.items()}
        metrics: Any = {name: np.float32(0) for name in self.metrics}
        no: Any = np.bool_(False)
        return HostState(seen, seen, Outcome(reward, no, no, metrics))

    def _blank(self, group: Group) -> Observation:
        view = jax.tree.map(
            lambda box: np.zeros((group.size, *box.shape), box.dtype),
            group.observation,
            is_leaf=lambda leaf: isinstance(leaf, Box),
        )
        there: Any = np.ones(group.size, bool) if self.leaving else None
        legal: Any = None
        if self.masked and not isinstance(group.action, Box):
            legal = np.ones((group.size, num_logits(group.action)), bool)
        return Observation(view, legal, there, there)


def check_observations(proxy: HostEnvProxy, observation: Observations) -> None:
    """Refuses observations `[E, ...]` whose groups, parts, shapes or dtypes differ from the declared ones."""
    wanted = proxy.blank().observation
    have, got = jax.tree.structure(wanted), jax.tree.structure(observation)
    if have != got:
        raise WorldError(f"{proxy.id}: an observation has the parts {got}, but {have} were declared")
    leaves = zip(jax.tree_util.tree_leaves_with_path(wanted), jax.tree.leaves(observation), strict=True)
    for (path, one), leaf in leaves:
        if leaf.shape[1:] != one.shape or leaf.dtype != one.dtype:
            raise WorldError(
                f"{proxy.id}: {jax.tree_util.keystr(path)} is {leaf.shape[1:]} {leaf.dtype}, but "
                f"{one.shape} {one.dtype} was declared. The spaces of an environment must not change."
            )


def _stack(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)
