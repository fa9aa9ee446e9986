"""Pipeline PSRO (McAleer et al. 2020): several levels of best responses are trained at the same time.

The newest `levels` policies of every player are live. In each round all of them are trained further, side by side: each
against the meta-solver's mixture of all policies older than itself, including the live ones of lower levels. After the
round the oldest live one is finished, and a fresh one joins on top. So a policy is trained for as many rounds as there
are levels, but one is finished in every round.

Departures: mixtures are computed once per round, not continuously, and a level always lasts for the same number of
rounds; the optimiser is reset in every round. A round depends on the population alone, so that it can be resumed.
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core import trees
from shoal.core.types import PyTree
from shoal.populations import psro
from shoal.populations.bank import PolicyBank
from shoal.populations.oracles import LearnedOracle
from shoal.populations.responses import TrainingInputs


@dataclasses.dataclass
class PipelineOracle(LearnedOracle):
    """Best responses on several levels. The experiment's updates are those of one round."""

    levels: int = 4
    plan: psro.PSRO = dataclasses.field(default_factory=psro.PSRO)

    def respond(self, state: psro.PSROState) -> Mapping[str, list[psro.Response]]:
        live = {player: self._live(bank) for player, bank in state.banks.items()}
        training = len(live[state.players[0]])  # the same for every player
        missing = self.levels - training  # in the first round, all of them
        below = [[*live[player], *(len(bank) for _ in range(missing))] for player, bank in state.banks.items()]
        mixtures = [self._mixture(state, counts) for counts in zip(*below, strict=True)]
        fresh = self._trainer(1).fresh(self.game.experiment.seed + 7919 * (state.iteration + 1))
        inputs = TrainingInputs(
            banks={player: bank.policies for player, bank in state.banks.items()},
            opponent_mixtures=self._opponent_mixtures(state, mixtures),
            seeds=jnp.arange(self.levels, dtype=jnp.uint32) * 100 + self.game.experiment.seed + 1000 * state.iteration,
            initial_policies={
                player: self._initial_policies(state, player, live[player], fresh[player]) for player in state.learning
            },
            warm_start=jnp.arange(self.levels) < training,
        )
        policies, earned = self.train(max(bank.capacity for bank in state.banks.values()), inputs)
        changed = [set(own) for own in live.values()]
        self._plans = {place: plan for place, plan in self._plans.items() if place[1] not in changed[place[0]]}
        return {
            player: self._responses_of(policies[player], earned[player], live[player], fresh[player], bool(missing))
            for player in state.learning
        }

    def _live(self, bank: PolicyBank) -> list[int]:
        """The live policies of a bank: the newest, but neither the first nor frozen ones."""
        return [i for i, member in enumerate(bank.members) if i and not member.frozen][-self.levels :]

    def _responses_of(self, policies: PyTree, earned: np.ndarray, live: list[int], fresh: PyTree, first: bool) -> list:
        news = []
        for row in range(self.levels):
            policy = jax.tree.map(lambda leaf, row=row: leaf[row], policies)
            replaces = live[row] if row < len(live) else None
            news.append(psro.Response(policy, {"earned": float(earned[row])}, replaces=replaces))
        return news if first else [*news, psro.Response(fresh, {"level": "new"})]

    def _mixture(self, state: psro.PSROState, counts: tuple[int, ...]) -> list[np.ndarray]:
        """The meta-solver's mixtures of the oldest policies alone, with the uniform share added."""
        part = state.table.mean[(slice(None), *(slice(count) for count in counts))]
        return list(
            psro.mix_with_uniform(
                psro.solve_mixtures(self.plan, part, state.table.symmetric),
                self.plan.uniform_share_after(state.history),
            )
        )

    def _opponent_mixtures(
        self, state: psro.PSROState, mixtures: list[list[np.ndarray]]
    ) -> dict[str, dict[str, jax.Array]]:
        rows = {}
        for number, (player, bank) in enumerate(state.banks.items()):
            table = np.zeros((self.levels, bank.capacity), np.float32)
            for row, mixture in enumerate(mixtures):
                table[row, : len(mixture[number])] = mixture[number]
            rows[player] = jnp.asarray(table)
        return {player: {other: rows[other] for other in rows if other != player} for player in state.learning}

    def _initial_policies(self, state: psro.PSROState, player: str, live: list[int], fresh: PyTree) -> PyTree:
        bank = state.banks[player]
        policies = [bank[i] for i in live] + [fresh] * (self.levels - len(live))
        return trees.stack(policies)
