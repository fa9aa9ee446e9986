"""Oracles for `populations.psro`: learnt best responses with sampled payoffs, or both exact."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core import trees
from shoal.core.errors import OptionError
from shoal.core.types import PyTree
from shoal.envs.tabular import TabularGame
from shoal.populations import psro
from shoal.populations.anytime import least_exploitable
from shoal.populations.behaviour import behaviour
from shoal.populations.game import Game
from shoal.populations.matches import Matches
from shoal.populations.responses import Responses, TrainingInputs
from shoal.populations.symmetry import check_symmetric, exchanges


class OracleBackend(Protocol):
    """Trains and plays for an oracle in place of this process."""

    def train(
        self, game: Game, capacity: int, inputs: TrainingInputs
    ) -> tuple[dict[str, PyTree], dict[str, np.ndarray]]:
        """As `Responses.train`, with as many trainings per player as `inputs` has."""
        ...

    def play(
        self, banks: Mapping[str, PyTree], lineups: np.ndarray, episodes: int, seed: int, first: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """As `Matches.play`."""
        ...


@dataclasses.dataclass
class LearnedOracle:
    """Best responses by an algorithm, payoffs by playing. greedy: whether policies of the bank play greedily.

    Its only state is a cache of compiled programs and of policies' realisation plans.
    """

    game: Game
    episodes: int = 2000
    warm_start: bool = False  # whether a response starts from the player's newest policy
    greedy: bool = False
    devices: int | None = None
    symmetric: bool = dataclasses.field(default=False, kw_only=True)  # one bank for all; the first player learns
    backend: OracleBackend | None = dataclasses.field(
        default=None, kw_only=True
    )  # trains and plays; None: this process

    def __post_init__(self):
        if self.symmetric:
            check_symmetric(self.game)
        self._responses: dict[tuple[int, int], Responses] = {}
        self._plans: dict[tuple[int, int], np.ndarray] = {}

    @functools.cached_property
    def matches(self) -> Matches:
        return Matches(self.game, not self.greedy, devices=self.devices)

    def first(self) -> dict[str, PyTree]:
        """Fresh initial policies."""
        fresh = self._trainer(1).fresh(self.game.experiment.seed)
        return {player: fresh[player if player in fresh else self.game.players[0]] for player in self.game.players}

    def respond(self, state: psro.PSROState) -> Mapping[str, list[psro.Response]]:
        capacity = max(bank.capacity for bank in state.banks.values())
        policies, earned = self.train(capacity, self._training_inputs(state))
        parents = self._parents(state)
        return {
            player: [psro.Response(trees.row(policy), {"earned": float(earned[player][0])}, parents[player])]
            for player, policy in policies.items()
        }

    def _training_inputs(self, state: psro.PSROState) -> TrainingInputs:
        """The inputs of one best response per player to the mixtures."""
        mixed = dict(zip(state.players, state.mixtures, strict=True))
        opponent_mixtures = {
            player: {other: bank.mixture(mixed[other])[None] for other, bank in state.banks.items() if other != player}
            for player in state.learning
        }
        initial_policies = {player: state.banks[player][state.banks[player].newest] for player in state.learning}
        return TrainingInputs(
            banks={player: bank.policies for player, bank in state.banks.items()},
            opponent_mixtures=opponent_mixtures,
            seeds=jnp.array([self.game.experiment.seed + 1000 * (state.iteration + 1)], jnp.uint32),
            initial_policies=jax.tree.map(lambda leaf: leaf[None], initial_policies),
            warm_start=jnp.array([self.warm_start]),
        )

    def _parents(self, state: psro.PSROState) -> dict[str, int | None]:
        """The policy that a response of each player starts from, if any."""
        return {player: bank.newest if self.warm_start else None for player, bank in state.banks.items()}

    def evaluate(self, state: psro.PSROState, lineups: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        banks = {player: bank.policies for player, bank in state.banks.items()}
        played = int(state.table.count.sum())
        return *self.play(banks, lineups, self.episodes, self.game.experiment.seed + 1, played), self.episodes

    def train(self, capacity: int, inputs: TrainingInputs) -> tuple[dict[str, PyTree], dict[str, np.ndarray]]:
        """Whole trainings, by the backend if there is one (see `Responses.train`)."""
        if self.backend is not None:
            return self.backend.train(self.game, capacity, inputs)
        return self._trainer(capacity, len(inputs.seeds)).train(inputs)

    def play(
        self, banks: Mapping[str, PyTree], lineups: np.ndarray, episodes: int, seed: int, first: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns of line-ups, by the backend if there is one (see `Matches.play`)."""
        return (self.backend or self.matches).play(banks, lineups, episodes, seed, first)

    def mix(self, state: psro.PSROState) -> list[np.ndarray]:
        raise OptionError(
            "anytime: mixtures of learnt responses are computed during their training, see populations.anytime_oracle; "
            "this oracle only trains responses to mixtures computed from payoffs"
        )

    def measure(self, state: psro.PSROState) -> dict[str, float]:
        """NashConv and exploitability of the mixtures, where the game can be tabulated."""
        tables = self.game.tables
        if tables is None:
            return {}
        return distance(tables, self.plans(tables, state), state.mixtures)

    def plans(self, tables: TabularGame, state: psro.PSROState) -> list[np.ndarray]:
        """The plans `[m, S]` of the policies of every player's bank."""
        plans = []
        for player, bank in enumerate(state.banks.values()):
            for number in range(len(bank)):
                if (player, number) not in self._plans:
                    policy = jax.device_put(jax.device_get(bank[number]), _host())
                    probabilities = np.asarray(self._behaviours[player](policy), np.float64)
                    self._plans[player, number] = tables.plan(player, probabilities)
            plans.append(np.stack([self._plans[player, number] for number in range(len(bank))]))
        return plans

    @functools.cached_property
    def _behaviours(self) -> list[Any]:
        """For each player, from a policy to its probabilities."""
        assert self.game.tables is not None
        return [
            jax.jit(lambda policy, a=algorithm, sets=sets: behaviour(a, policy, sets, not self.greedy))
            for algorithm, sets in zip(self.game.algorithms.values(), self.game.tables.sets, strict=True)
        ]

    @property
    def kernels(self) -> str:
        """Which parts of a best response's training run as kernels here, see `training.kernel_use`."""
        if self.backend is not None:
            return ""  # others train
        return next(iter(self._trainer(1).programs.values())).kernels

    def _trainer(self, capacity: int, num_parallel: int = 1) -> Responses:
        if (capacity, num_parallel) not in self._responses:
            self._responses[capacity, num_parallel] = Responses(
                self.game, capacity, num_parallel, self.devices, self._learning
            )
        return self._responses[capacity, num_parallel]

    @property
    def _learning(self) -> tuple[str, ...]:
        return self.game.players[:1] if self.symmetric else self.game.players


def _host() -> Any:
    """The CPU: tables are small, and an accelerator would only compile for longer."""
    return jax.local_devices(backend="cpu")[0]


@dataclasses.dataclass(frozen=True)
class ExactOracle:
    """Best responses and payoffs computed from the exact tables of a game. Policies are realisation plans.

    orders: in a symmetric game, how plans of the bank, which are the first player's, are read as each player's.
    """

    tables: TabularGame
    orders: Sequence[np.ndarray] | None = None

    @staticmethod
    def of(game: Game, symmetric: bool = False) -> "ExactOracle":
        tables = game.tables
        if tables is None:
            raise OptionError(
                f"world {game.env!r} cannot be tabulated, so it has no exact best responses: use a learnt oracle, such "
                "as ppo, or one of cards/kuhn, cards/leduc and the matrix games"
            )
        if symmetric:
            check_symmetric(game)
        return ExactOracle(tables, exchanges(tables) if symmetric else None)

    def first(self) -> dict[str, PyTree]:
        """Uniform play; in a symmetric game, the first player's."""
        plans = [self.tables.plan(p, self.tables.uniform(p)) for p in range(len(self.tables.players))]
        return {name: plans[p if self.orders is None else 0] for p, name in enumerate(self.tables.players)}

    def respond(self, state: psro.PSROState) -> Mapping[str, list[psro.Response]]:
        mixed = [mixture @ plans for mixture, plans in zip(state.mixtures, self._banks(state), strict=True)]
        responses = {}
        for player, name in enumerate(state.learning):
            value, plan = self.tables.best_response(player, mixed)
            responses[name] = [psro.Response(plan, {"earned": value})]
        return responses

    def evaluate(self, state: psro.PSROState, lineups: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        """Exact payoffs, counted as enough episodes that none is ever played again."""
        reach = np.ones((len(lineups), len(self.tables.payoffs)))
        for player, bank in enumerate(self._banks(state)):
            reach *= bank[:, self.tables.sequences[:, player]][lineups[:, player]]
        value, many = reach @ self.tables.payoffs, 10**9
        return value * many, value**2 * many, many

    def mix(self, state: psro.PSROState) -> list[np.ndarray]:
        """The least exploitable mixture of each player."""
        return [least_exploitable(self.tables, player, plans) for player, plans in enumerate(self._banks(state))]

    def measure(self, state: psro.PSROState) -> dict[str, float]:
        return distance(self.tables, self._banks(state), state.mixtures)

    def plans(self, tables: TabularGame, state: psro.PSROState) -> list[np.ndarray]:
        """The plans `[m, S]` of the policies of every player's bank."""
        del tables  # its own
        return self._banks(state)

    def _banks(self, state: psro.PSROState) -> list[np.ndarray]:
        plans = [np.asarray(bank.policies, np.float64)[: len(bank)] for bank in state.banks.values()]
        return plans if self.orders is None else [own[:, order] for own, order in zip(plans, self.orders, strict=True)]


def distance(tables: TabularGame, plans: list[np.ndarray], mixtures: psro.Mixtures) -> dict[str, float]:
    """The distance of mixtures of plans `[m, S]` from equilibrium. Mixing plans weights policies by reach."""
    mixed = [mixture @ bank for mixture, bank in zip(mixtures, plans, strict=True)]
    conv = tables.nash_conv(mixed)
    return {"nash_conv": conv, "exploitability": conv / len(tables.players)}
