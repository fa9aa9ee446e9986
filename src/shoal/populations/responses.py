"""Best responses: one learner for each player, against mixtures of the others' policies.

Each player has its own training: its seats are played by the learner, the other seats by `Opponents` from the others'
banks. Two programs are compiled for each player, all side by side: one starts its trainings, one makes updates in them.
Mixtures, banks, seeds and starting weights are data. They are recompiled only when a bank has outgrown its capacity.
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
from shoal.populations.opponents import OpponentBank, Opponents
from shoal.training.devices import replicate
from shoal.training.experiment import Experiment, Learner
from shoal.training.fused import Carry, FusedProgram, make_fused_program
from shoal.training.program import MAX_UPDATES
from shoal.training.side_by_side import Call, compile_together, lay_out

LEARNER = "learner"


class TrainingInputs(NamedTuple):
    """The inputs of trainings, all of them data.

    `N` trainings in parallel per player. banks: policies `[K, ...]` by player. opponent_mixtures: for each player, the
    probabilities `[N, K]` with which each training draws the policies of each other player. seeds: `[N]`.
    initial_policies: a policy `[N, ...]` for each player, from which a learner starts where `warm_start` `[N]` is true.
    """

    banks: dict[str, PyTree]
    opponent_mixtures: dict[str, dict[str, jax.Array]]
    seeds: jax.Array
    initial_policies: dict[str, PyTree]
    warm_start: jax.Array


@dataclasses.dataclass(frozen=True)
class Responses:
    """Trains best responses of all players side by side. capacity: of the opponents' banks.

    num_parallel: trainings per player, each against its own opponents. learning: the players whose responses are
    trained, if not all of them. explore: whether opponents play as in training, or greedily.
    """

    game: Game
    capacity: int
    num_parallel: int = 1
    devices: int | None = None
    learning: tuple[str, ...] | None = None
    explore: bool = True

    @functools.cached_property
    def programs(self) -> dict[str, FusedProgram]:
        learning = self.learning or self.game.players
        programs = {player: make_fused_program(self._experiment(player), self.devices) for player in learning}
        for program in programs.values():
            program.check()
        return programs

    def _experiment(self, player: str) -> Experiment:
        learners = {}
        for name, seats in self.game.seats.items():
            algorithm = self.game.algorithms[name]
            if name == player:
                learners[LEARNER] = Learner(algorithm, {name: seats})
            else:
                learners[name] = Learner(Opponents(algorithm, self.capacity, self.explore), {name: seats}, frozen=True)
        return self.game.experiment.replace(learners=learners, num_seeds=self.num_parallel)

    def begin(self, inputs: TrainingInputs) -> dict[str, Carry]:
        """Fresh trainings, by player. With the first, all programs are compiled."""
        if "_starts" not in vars(self):
            calls: list[Call] = [(start, (inputs,)) for start in self._starts.values()]
            for program in self.programs.values():
                calls.append((program.advance, (lay_out(program.shapes(), program.shardings), program.counts[0])))
            compile_together(*calls)
        return {player: start(inputs) for player, start in self._starts.items()}

    @functools.cached_property
    def _starts(self) -> dict[str, Any]:
        """For each player, `start(inputs) -> carry`: its fresh trainings."""
        return {
            player: jax.jit(functools.partial(self._start, number, player), out_shardings=program.shardings)
            for number, (player, program) in enumerate(self.programs.items())
        }

    def _start(self, number: int, player: str, inputs: TrainingInputs) -> Carry:
        program = self.programs[player]

        def one(row: tuple) -> Carry:
            seed, opponent_mixtures, start, warm = row
            carry = program.init_one(seed, {})
            learners = dict(carry.learners)
            fresh = learners[LEARNER].params[player]
            policy = jax.tree.map(lambda new, old: jnp.where(warm, new, old), start, fresh)
            learners[LEARNER] = learners[LEARNER].replace(params={player: policy})
            for name, mixture in opponent_mixtures.items():
                learners[name] = learners[name].replace(params={name: OpponentBank(inputs.banks[name], mixture)})
            return carry.replace(learners=learners)

        rows = (
            inputs.seeds + number,
            inputs.opponent_mixtures[player],
            inputs.initial_policies[player],
            inputs.warm_start,
        )
        return lax.map(one, rows) if self.num_parallel > 1 else one(trees.row(rows))

    def train(self, inputs: TrainingInputs) -> tuple[dict[str, PyTree], dict[str, np.ndarray]]:
        """Whole trainings: policies `[N, ...]` by player, and their mean returns in the last tenth, `[N]`."""
        carries, earned = self.run_updates(self.begin(self.put_on_devices(inputs)), self.game.experiment.num_updates)
        return self.policies(carries), earned

    def run_updates(self, carries: dict[str, Carry], updates: int) -> tuple[dict[str, Carry], dict[str, np.ndarray]]:
        """Runs `updates` updates; also returns the mean returns in the last tenth of them."""
        carries, tables = dict(carries), {player: [] for player in self.programs}
        for start in range(0, updates, MAX_UPDATES):
            count = min(MAX_UPDATES, updates - start)
            for player, program in self.programs.items():
                carries[player], table = program.advance(carries[player], program.counts[count])
                tables[player].append(table[..., :count, :])
        return carries, {player: self._mean_return(player, tables[player]) for player in self.programs}

    def policies(self, carries: dict[str, Carry]) -> dict[str, PyTree]:
        """The policies so far, `[N, ...]` by player; copied, as the next call reuses their memory."""

        def one(leaf: jax.Array) -> jax.Array:
            return jnp.copy(leaf) if self.num_parallel > 1 else leaf[None]

        return {p: jax.tree.map(one, carry.learners[LEARNER].params[p]) for p, carry in carries.items()}

    def put_on_devices(self, tree: Any) -> Any:
        """Replicates arrays over all devices of the programs."""
        return replicate(next(iter(self.programs.values())).mesh, tree)

    def _mean_return(self, player: str, tables: Sequence[jax.Array]) -> np.ndarray:
        names = self.programs[player].names
        rows = np.concatenate([np.asarray(table) for table in tables], axis=-2)
        rows = rows if rows.ndim == 3 else rows[None]  # [num_parallel, updates, columns]
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

        specs = {player: program.setup.learners[LEARNER][1] for player, program in self.programs.items()}
        return jax.jit(all_players)()  # one program instead of hundreds of small ones
