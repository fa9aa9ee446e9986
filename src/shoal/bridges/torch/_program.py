"""The compiled part of `TorchWorlds`: one program per step, which knows nothing of PyTorch.

Views are handed out, so they are no part of what steps carry over (and donate). Shoal policies that play some of the
groups act at the end of a step, on the views that it made: their actions are carried, not the views.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from shoal.batching.masked import masked_map
from shoal.batching.policies import Policies
from shoal.batching.vectorise import Vectorised, Worlds
from shoal.core.algorithm import Algorithm
from shoal.core.types import Observation, PyTree


class TorchCarry(struct.PyTreeNode):
    """What one step passes to the next, not visible outside. actions: of the Shoal policies, for the next step."""

    worlds: Worlds
    memory: dict[str, PyTree]
    actions: dict[str, jax.Array]


class TorchStep(NamedTuple):
    """What a step hands out. ends: terminated and truncated in one array, `[2, E]`, for every array takes its time."""

    observation: dict[str, Observation]
    reward: dict[str, Any]
    ends: Any


class TorchProgram(NamedTuple):
    """What is compiled; can be hashed, so that worlds that are alike share it."""

    vectorised: Vectorised
    players: tuple[tuple[str, Algorithm], ...]
    explore: bool
    finals: bool
    with_state: bool

    @property
    def actor(self) -> Policies:
        return Policies(dict(self.players), self.vectorised.env.groups, self.explore)

    def begin(self, key: jax.Array, params: dict[str, PyTree]) -> tuple[TorchCarry, dict[str, Observation]]:
        worlds = self.vectorised.reset(key)
        memory = self.actor.initial_memory(params, self.vectorised.num_envs)
        return self._carried(worlds, memory, params), self._shown(worlds.observation)

    def step(
        self, carry: TorchCarry, params: dict[str, PyTree], actions: dict[str, jax.Array]
    ) -> tuple[TorchCarry, TorchStep, dict[str, PyTree]]:
        """What is carried on, what is handed out, and what is handed out if it is asked for."""
        worlds, outcome, ended = self.vectorised.step(carry.worlds, {**actions, **carry.actions})
        raw: dict[str, PyTree] = {"metrics": outcome.metrics, "returns": ended.returns, "length": ended.length}
        if self.finals:
            rows = (ended.mask, ended.params, ended.state)  # the mask only tells how many rows these are
            final = masked_map(self._final, ended.mask, (), rows, worlds.observation)
            raw["final"] = self._shown(final)
        ends = jnp.stack([outcome.terminated, outcome.truncated])
        made = TorchStep(self._shown(worlds.observation), outcome.reward, ends)
        return self._carried(worlds, carry.memory, params), made, raw

    def _final(self, shared: tuple, rows: tuple[jax.Array, PyTree, PyTree]) -> dict[str, Observation]:
        mask, settings, state = rows
        return self.vectorised.observe(settings, state, mask.shape[0])

    def _shown(self, observation: dict[str, Observation]) -> dict[str, Observation]:
        if self.with_state:
            return observation
        return {name: seen.replace(state=None) for name, seen in observation.items()}

    def _carried(self, worlds: Worlds, memory: dict[str, PyTree], params: dict[str, PyTree]) -> TorchCarry:
        """What the next step needs, the actions of the Shoal policies included."""
        acts = self.actor.act(params, memory, worlds)
        return TorchCarry(worlds.replace(observation={}), acts.memory, acts.action)


class Compiled(NamedTuple):
    """The compiled functions. `step(...) -> carry, leaves, infos`; `whole(tensors)`: the `Made` that has these leaves.

    Handed over leaf by leaf, what a step made need not be taken apart first, which would take about as long.
    """

    begin: Any
    step: Any
    whole: Callable[[list[Any]], TorchStep]


@functools.lru_cache(maxsize=16)
def compile_program(program: TorchProgram) -> Compiled:
    """Compiled once for all worlds that are alike."""
    known = {}

    def step(
        carry: TorchCarry, params: dict[str, PyTree], actions: dict[str, jax.Array]
    ) -> tuple[TorchCarry, list, dict]:
        carry, made, infos = program.step(carry, params, actions)
        leaves, known["tree"] = jax.tree.flatten(made)  # the same whenever it is traced
        return carry, leaves, infos

    return Compiled(
        jax.jit(program.begin),
        jax.jit(step, donate_argnums=0),
        lambda tensors: jax.tree.unflatten(known["tree"], tensors),
    )
