"""The compiled part of `TorchWorlds`: one program a step, which knows nothing of PyTorch.

Views are handed out, so they are no part of what steps carry over (and donate). Shoal policies that play some of the
groups act at the end of a step, on the views that it made: their actions are carried, not the views.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from shoal.batching.agents import over_agents
from shoal.batching.masked import masked_map, select_rows
from shoal.batching.vectorise import Vectorised, Worlds
from shoal.core import trees
from shoal.core.algorithm import Algorithm
from shoal.core.keys import Use, agent_keys, use_key
from shoal.core.types import Group, Observation, PyTree


class TorchCarry(struct.PyTreeNode):
    """What steps take over from each other, and nobody else sees. actions: of the Shoal policies, for the next step."""

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
    def algorithms(self) -> dict[str, Algorithm]:
        return dict(self.players)

    @property
    def groups(self) -> Mapping[str, Group]:
        return self.vectorised.env.groups

    def begin(self, key: jax.Array, params: dict[str, PyTree]) -> tuple[TorchCarry, dict[str, Observation]]:
        worlds = self.vectorised.reset(key)
        return self._carried(worlds, self._fresh(params), params), self._shown(worlds.observation)

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

    def _fresh(self, params: dict[str, PyTree]) -> dict[str, PyTree]:
        fresh = {}
        for name, algorithm in self.algorithms.items():
            shape = (self.vectorised.num_envs, self.groups[name].size)
            one = algorithm.initial_memory(params[name])
            fresh[name] = jax.tree.map(lambda leaf, s=shape: jnp.broadcast_to(leaf, s + jnp.shape(leaf)), one)
        return fresh

    def _carried(self, worlds: Worlds, memory: dict[str, PyTree], params: dict[str, PyTree]) -> TorchCarry:
        """What the next step needs, the actions of the Shoal policies included."""
        keys = jax.vmap(lambda key: use_key(key, worlds.clock, Use.ACT))(worlds.key)
        memory = select_rows(worlds.first, self._fresh(params), memory)
        actions, start = {}, 0
        for name, group in self.groups.items():
            own = jax.vmap(lambda key, s=start, n=group.size: agent_keys(key, s, n))(keys)
            start += group.size
            if name in self.algorithms:
                act = over_agents(functools.partial(_act, self.algorithms[name], self.explore))
                seen, held = worlds.observation[name], memory[name]
                out = act(params[name], seen, held, own)
                actions[name], memory[name] = out.action, _standing(seen.active, out.memory, held)
        return TorchCarry(worlds.replace(observation={}), memory, actions)


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


def _act(algorithm: Algorithm, explore: bool, params: PyTree, observation: Observation, memory: PyTree, key: jax.Array):
    return algorithm.act(params, observation, memory, key, explore)


def _standing(active: jax.Array | None, new: PyTree, old: PyTree) -> PyTree:
    """Memory `[E, n, ...]` of those who may not act stands still."""
    if active is None:
        return new
    return trees.where(active, new, old)
