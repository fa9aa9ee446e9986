"""Anytime PSRO (McAleer et al. 2022) with learnt responses: mixtures are found while responses to them are trained.

Each iteration trains in rounds. After a round, the learner of each player plays every policy of the other player's
bank; that player's mixture is recomputed to minimise the best return of this learner, of its versions in earlier rounds
and of all policies in the table (`anytime.minimax_mixture`); training continues against the new mixture. In the last
quarter mixtures are fixed, so that a response to each is trained. The mixture, without the policy that has just been
trained, becomes that of the iteration if its worst case over the table, including that response, is no worse than that
of the previous mixture. Otherwise the previous one is kept.

Guarantee: with best responses and exact payoffs, exploitability never rises. Here responses are trained for a limited
time and payoffs are sampled. So the measured worst case is a lower bound up to sampling noise, and a mixture may be
preferred because its weakness was not found. Exploitability can rise by about that much.

Departures: the paper's mixtures have no regret against the current learner alone, and are averaged over rounds. Here
all rounds and the bank count, so that few rounds suffice; and the previous mixture may be kept, as above.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.core import trees
from shoal.core.errors import require, require_positive
from shoal.core.types import PyTree
from shoal.populations import psro
from shoal.populations.anytime import minimax_mixture, worst_case
from shoal.populations.bank import Member
from shoal.populations.oracles import LearnedOracle
from shoal.populations.responses import Responses
from shoal.training.fused import Carry

OPTIONS = ("rounds", "episodes")
STILL = 4
"""The last 1/STILL of a training is against fixed mixtures."""


@dataclasses.dataclass
class AnytimeOracle(LearnedOracle):
    """Best responses and, at the same time, the least exploitable mixtures, of a game for two.

    options: `rounds` per training, after each of which mixtures are recomputed; `episodes` per line-up after a round.
    """

    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        super().__post_init__()
        unknown = sorted(set(self.options) - set(OPTIONS))
        require(not unknown, "anytime", "solver_options", unknown, " and ".join(OPTIONS))
        require(len(self.game.players) == 2, "anytime", "the number of players", len(self.game.players), "2")
        self.rounds: int = self.options.get("rounds", 8)
        self.probed: int = self.options.get("episodes", max(1, self.episodes // STILL))
        require_positive("anytime", rounds=self.rounds, episodes=self.probed)

    def respond(self, state: psro.PSROState) -> Mapping[str, list[psro.Response]]:
        trainer = self._trainer(max(bank.capacity for bank in state.banks.values()))
        known = known_payoffs(state)
        mixtures = [minimax_mixture(table) for table in known]
        inputs = self._training_inputs(dataclasses.replace(state, mixtures=tuple(mixtures)))
        carries = trainer.begin(trainer.put_on_devices(inputs))
        *rounds, still = split_updates(self.game.experiment.num_updates, self.rounds)
        for number, updates in enumerate(rounds):
            carries, _ = trainer.run_updates(carries, updates)
            probed = self._probe(state, trainer.policies(carries), number)
            known = [np.column_stack([table, column]) for table, column in zip(known, probed, strict=True)]
            mixtures = [minimax_mixture(table) for table in known]
            carries = _set_opponents(trainer, carries, state, mixtures)
        carries, earned = trainer.run_updates(carries, still)
        parents, policies = self._parents(state), trainer.policies(carries)
        news = {}
        for player, mixture in zip(state.players, mixtures, strict=True):
            info = {"earned": float(earned[player][0]), "mixture": mixture.tolist()}
            policy = trees.row(policies[player])
            news[player] = [psro.Response(policy, info, parents[player])]
        return news

    def mix(self, state: psro.PSROState) -> list[np.ndarray]:
        """Each player's mixture of this iteration, or the previous one if its known worst case is better."""
        tables, chosen = known_payoffs(state), []
        if not state.mixtures:  # there are no responses yet
            return [minimax_mixture(table) for table in tables]
        for bank, table, before in zip(state.banks.values(), tables, state.mixtures, strict=True):
            found = np.array(bank.members[-1].info["mixture"])
            best = min(found, before, key=lambda mixture, table=table: worst_case(table, mixture))
            chosen.append(np.pad(best, (0, len(bank) - len(best))))
        return chosen

    def measure(self, state: psro.PSROState) -> dict[str, float]:
        """NashConv where it is known, and a lower bound from the policies in the table, up to sampling noise."""
        worst = sum(map(worst_case, known_payoffs(state), state.mixtures))
        return super().measure(state) | {"nash_conv_at_least": float(worst - state.values.sum())}

    def _probe(self, state: psro.PSROState, learners: Mapping[str, PyTree], number: int) -> list[np.ndarray]:
        """The return of the other player's learner against each policy `[m]` of a player, for both players."""
        # as if they were already in the banks: that program will be needed anyway
        banks = {
            player: bank.add(trees.row(learners[player]), Member("learner")).policies
            for player, bank in state.banks.items()
        }
        rows, columns = (len(bank) for bank in state.banks.values())
        lineups = np.array([*((i, columns) for i in range(rows)), *((rows, j) for j in range(columns))])
        first = (state.iteration * self.rounds + number) * len(lineups) * self.probed
        seed = self.game.experiment.seed + 2
        mean = self.play(banks, lineups, self.probed, seed, first)[0] / self.probed
        return [mean[:rows, 1], mean[rows:, 0]]


def known_payoffs(state: psro.PSROState) -> list[np.ndarray]:
    """For each player, the returns of the other's policies against its own, `[own, other's]`."""
    mean = state.table.mean
    return [mean[1], mean[0].T]


def split_updates(updates: int, rounds: int) -> list[int]:
    """Updates per round of a training, as even as possible; in the last round mixtures are fixed."""
    still = max(1, updates // STILL)
    rounds = min(rounds, updates - still)
    return [*((updates - still) * (k + 1) // rounds - (updates - still) * k // rounds for k in range(rounds)), still]


def _set_opponents(
    trainer: Responses, carries: dict[str, Carry], state: psro.PSROState, mixtures: list[np.ndarray]
) -> dict[str, Carry]:
    """The trainings with new opponent mixtures, from which policies are drawn when episodes begin."""
    drawn = {
        player: trainer.put_on_devices(bank.mixture(mixture))
        for (player, bank), mixture in zip(state.banks.items(), mixtures, strict=True)
    }
    facing = {}
    for player, carry in carries.items():
        learners = dict(carry.learners)
        for other in state.players:
            if other != player:
                bank = learners[other].params[other]
                learners[other] = learners[other].replace(params={other: bank.replace(mixture=drawn[other])})
        facing[player] = carry.replace(learners=learners)
    return facing
