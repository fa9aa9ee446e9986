"""Best responses: one learner for each player, against mixtures of the others' policies, all in one program.

For each player there is a training of its own: the player's seats are the learner's, the other seats are played by
`Opponents` from the others' banks. Two programs are compiled, one that begins the trainings of all players and one that
makes updates in all of them; mixtures, banks, seeds and starting weights are data. They are compiled anew only when a
bank has outgrown its capacity.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shoal.core import trees
from shoal.core.types import PyTree
from shoal.populations.game import Game
from shoal.populations.opponents import Bank, Opponents
from shoal.training.devices import everywhere
from shoal.training.experiment import Experiment, Learner
from shoal.training.fused import Carry, Program, build
from shoal.training.program import MAX_UPDATES

LEARNER = "learner"


class Given(NamedTuple):
    """What trainings begin with; all of it is data.

    banks: policies `[K, ...]` by player. meets: for each player, with which chances each lane draws the policies of
    each other player, `[lanes, K]`. seeds: `[lanes]`. starts: a policy `[lanes, ...]` for each player, which a learner
    begins with where `warm` `[lanes]` holds.
    """

    banks: dict[str, PyTree]
    meets: dict[str, dict[str, jax.Array]]
    seeds: jax.Array
    starts: dict[str, PyTree]
    warm: jax.Array


@dataclasses.dataclass(frozen=True)
class Responses:
    """Trains best responses of all players side by side. capacity: of the banks that they meet.

    lanes: how many trainings there are for each player, each against opponents of its own. learning: whose responses
    are trained, if not those of all players.
    """

    game: Game
    capacity: int
    lanes: int = 1
    devices: int | None = None
    learning: tuple[str, ...] | None = None

    @functools.cached_property
    def programs(self) -> dict[str, Program]:
        return {player: build(self._experiment(player), self.devices) for player in self.learning or self.game.players}

    def _experiment(self, player: str) -> Experiment:
        learners = {}
        for name, seats in self.game.seats.items():
            algorithm = self.game.algorithms[name]
            if name == player:
                learners[LEARNER] = Learner(algorithm, {name: seats})
            else:
                learners[name] = Learner(Opponents(algorithm, self.capacity), {name: seats}, frozen=True)
        return self.game.experiment.replace(learners=learners, num_seeds=self.lanes)

    @functools.cached_property
    def begin(self):
        """`begin(given) -> carries`: fresh trainings, by player."""
        return jax.jit(self._begin, out_shardings=self._shardings)

    def _begin(self, given: Given) -> dict[str, Carry]:
        carries = {}
        for number, (player, program) in enumerate(self.programs.items()):
            rows = (given.seeds + number, given.meets[player], given.starts[player], given.warm)

            def one(row: tuple, program: Program = program, player: str = player) -> Carry:
                seed, meets, start, warm = row
                carry = program._init(seed, {})  # pyright: ignore[reportPrivateUsage]
                learners = dict(carry.learners)
                fresh = learners[LEARNER].params[player]
                policy = jax.tree.map(lambda new, old: jnp.where(warm, new, old), start, fresh)
                learners[LEARNER] = learners[LEARNER].replace(params={player: policy})
                for name, mixture in meets.items():
                    learners[name] = learners[name].replace(params={name: Bank(given.banks[name], mixture)})
                return carry.replace(learners=learners)

            first = trees.row(rows)
            carries[player] = lax.map(one, rows) if self.lanes > 1 else one(first)
        return carries

    @property
    def _shardings(self) -> dict[str, Carry]:
        return {player: program.shardings for player, program in self.programs.items()}

    @functools.cached_property
    def advance(self):
        """`advance(carries, count) -> carries, tables`: `count` updates of every training."""

        def all_players(carries: dict[str, Carry], count: jax.Array):
            results = {player: program.advance(carries[player], count) for player, program in self.programs.items()}
            return {p: carry for p, (carry, _) in results.items()}, {p: table for p, (_, table) in results.items()}

        return jax.jit(all_players, donate_argnums=0, out_shardings=(self._shardings, None))

    def train(self, given: Given) -> tuple[dict[str, PyTree], dict[str, np.ndarray]]:
        """Whole trainings: policies `[lanes, ...]` by player, and what they earned in their last tenth, `[lanes]`."""
        carries, earned = self.some(self.begin(self.placed(given)), self.game.experiment.num_updates)
        return self.policies(carries), earned

    def some(self, carries: dict[str, Carry], updates: int) -> tuple[dict[str, Carry], dict[str, np.ndarray]]:
        """So many updates more, and what was earned in the last tenth of them."""
        tables: list[dict[str, jax.Array]] = []
        for start in range(0, updates, MAX_UPDATES):
            count = min(MAX_UPDATES, updates - start)
            carries, table = self.advance(carries, self.placed(jnp.int32(count)))
            tables.append(jax.tree.map(lambda rows, n=count: rows[..., :n, :], table))
        earned = {player: self._earned(player, [table[player] for table in tables]) for player in self.programs}
        return carries, earned

    def policies(self, carries: dict[str, Carry]) -> dict[str, PyTree]:
        """What has been learnt so far, `[lanes, ...]` by player; copied, as the next call reuses that memory."""

        def one(leaf: jax.Array) -> jax.Array:
            return jnp.copy(leaf) if self.lanes > 1 else leaf[None]

        return {p: jax.tree.map(one, carry.learners[LEARNER].params[p]) for p, carry in carries.items()}

    def placed(self, tree: Any) -> Any:
        """Arrays on all devices of the programs."""
        return everywhere(next(iter(self.programs.values())).mesh, tree)

    def _earned(self, player: str, tables: Sequence[jax.Array]) -> np.ndarray:
        names = self.programs[player].names
        rows = np.concatenate([np.asarray(table) for table in tables], axis=-2)
        rows = rows if rows.ndim == 3 else rows[None]  # [lanes, updates, columns]
        rows = rows[:, -max(1, rows.shape[1] // 10) :]
        total = rows[..., names.index(f"return/{player}")].sum(axis=-1)
        return total / np.maximum(rows[..., names.index("episodes")].sum(axis=-1), 1.0)

    def fresh(self, seed: int) -> dict[str, PyTree]:
        """A fresh policy of each player."""

        def all_players() -> dict[str, PyTree]:
            return {
                player: self.game.algorithms[player].init(jax.random.key(seed + i), spec).params[player]
                for i, (player, spec) in enumerate(specs.items())
            }

        specs = {player: program.cast.learners[LEARNER][1] for player, program in self.programs.items()}
        return jax.jit(all_players)()  # one program instead of hundreds of small ones
