"""Matches: returns of line-ups of policies, all in one batch, one episode per copy.

A line-up names a policy of the bank for every player. Copies are assigned to the line-ups in order, so that those of
one line-up are adjacent; the program loops over batches of copies and sums returns, and their squares, per line-up.
Every episode has its own id, so that results do not depend on how episodes are split into batches.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from shoal.batching.policies import Policies
from shoal.core.env import Env
from shoal.core.errors import WorldError
from shoal.core.types import PyTree
from shoal.ops.devices import sum_over_devices
from shoal.populations.game import Game
from shoal.populations.opponents import OpponentBank, Opponents
from shoal.training.devices import AXIS, make_mesh, replicate
from shoal.training.evaluate import MAX_STEPS, play
from shoal.training.experiment import Learner, Setup
from shoal.training.memory import SMALLER, need_of, on_host, require_room

ROOM = 256
"""The most line-ups per call of the program: a constant, so that it is compiled once per size of banks."""


def batch_size() -> int:
    """Episodes played at once, on all devices together: an accelerator needs more to be fully used."""
    return 4096 if jax.default_backend() == "cpu" else 32_768


class Sums(NamedTuple):
    """Over the episodes of each line-up: returns and their squares, `[lineups, players]`; whether all ended."""

    returns: jax.Array
    squares: jax.Array
    ended: jax.Array


@dataclasses.dataclass(frozen=True)
class Matches:
    """Plays line-ups of a game. explore: whether policies play as in training, or greedily."""

    game: Game
    explore: bool = True
    batch: int = dataclasses.field(default_factory=batch_size)
    devices: int | None = None

    @functools.cached_property
    def setup(self) -> Setup:
        learners = {
            name: Learner(Opponents(self.game.algorithms[name], explore=self.explore), {name: seats}, frozen=True)
            for name, seats in self.game.seats.items()
        }
        return self.game.experiment.replace(learners=learners, num_envs=self.batch, num_seeds=1).setup

    @functools.cached_property
    def mesh(self) -> Mesh:
        return make_mesh(self.batch, 1, self.devices)

    @functools.cached_property
    def program(self):
        """`program(banks, lineups [M, players], counted, episodes, key, first) -> Sums`.

        counted: the number of real line-ups. episodes: of each. first: id of the first episode.
        """
        mesh = self.mesh
        actor = Policies(self.setup.algorithms, self.setup.spec.groups, self.explore)
        games = play(self.setup, actor, _by_player)

        def some(banks: dict[str, PyTree], lineups, counted, episodes, key, first) -> Sums:
            share = self.batch // mesh.size
            total = counted * episodes
            start = lax.axis_index(AXIS) * share if mesh.size > 1 else 0

            def body(number, sums: Sums) -> Sums:
                ids = number * self.batch + start + jnp.arange(share)
                which = jnp.minimum(ids // episodes, counted - 1)
                seated = {
                    name: OpponentBank(bank, seated=lineups[which, i]) for i, (name, bank) in enumerate(banks.items())
                }
                returns, _, ended = games(seated, key, first + ids.astype(jnp.uint32))
                earned = jnp.stack([returns[name] for name in banks], axis=-1)
                earned = jnp.where((ids < total)[:, None], earned, 0.0)
                return Sums(
                    sums.returns.at[which].add(earned),
                    sums.squares.at[which].add(earned**2),
                    sums.ended & jnp.all(ended),
                )

            zeros = jnp.zeros((lineups.shape[0], len(banks)))
            sums = lax.fori_loop(0, -(-total // self.batch), body, Sums(zeros, zeros, jnp.bool_(True)))
            if mesh.size == 1:
                return sums
            running = (~sums.ended).astype(jnp.float32)
            returns, squares, running = sum_over_devices((sums.returns, sums.squares, running), AXIS)
            return Sums(returns, squares, running == 0)

        spread = jax.shard_map(some, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
        return jax.jit(spread)

    @functools.cached_property
    def _checked(self) -> set[Any]:
        return set()

    def _check_memory(self, banks: Mapping[str, PyTree], players: int) -> None:
        """Refuses matches that do not fit into memory, once for each size of banks."""
        shapes = jax.eval_shape(lambda banks: banks, dict(banks))
        known = tuple(leaf.shape for leaf in jax.tree.leaves(shapes))
        if known in self._checked:
            return
        whole = jax.ShapeDtypeStruct((), jnp.int32)
        rest = (jax.eval_shape(lambda: jax.random.key(0)), jax.ShapeDtypeStruct((), jnp.uint32))
        lineups = jax.ShapeDtypeStruct((ROOM, players), jnp.int32)
        traced = jax.make_jaxpr(self.program)(shapes, lineups, whole, whole, *rest)
        need = need_of(shapes, traced).times(self.mesh.size if on_host() else 1)  # the trace is of one device's part
        require_room(f"{self.batch:,} matches of {self.game.env} at once", need, lambda: SMALLER)
        self._checked.add(known)

    def play(
        self, banks: Mapping[str, PyTree], lineups: np.ndarray, episodes: int, seed: int, first: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Sums of returns and of squares, `[M, players]`, over `episodes` episodes of each line-up `[M, players]`.

        first: the id of the first episode, so that no episode is ever played twice with the same draws.
        """
        self._check_memory(banks, lineups.shape[1])
        played, banks = [], replicate(self.mesh, dict(banks))
        for start in range(0, len(lineups), ROOM):
            some = lineups[start : start + ROOM]
            filled = np.zeros((ROOM, lineups.shape[1]), np.int32)
            filled[: len(some)] = some
            counts = jnp.int32(len(some)), jnp.int32(episodes), jax.random.key(seed), jnp.uint32(first % 2**32)
            sums = self.program(banks, *replicate(self.mesh, (filled, *counts)))
            first += len(some) * episodes
            if not bool(sums.ended):
                raise WorldError(f"world {self.game.env!r}: an episode did not end within {MAX_STEPS} steps")
            played.append([np.asarray(part, np.float64)[: len(some)] for part in (sums.returns, sums.squares)])
        returns, squares = (np.concatenate(parts) for parts in zip(*played, strict=True))
        return returns, squares


def _by_player(env: Env, reward: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Each player's reward in a step; players are the policies of the setup."""
    return {name: jnp.sum(gained, axis=-1) for name, gained in reward.items()}
