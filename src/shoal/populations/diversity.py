"""How differently the policies of a population behave.

In games with exact tables policies are compared in all information sets, elsewhere in situations of one batch of
matches between the players' mixtures. Every policy gets the same views in the same order, so that one with a memory has
a consistent one in each situation. Actions that are not discrete are not compared.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import lax

from shoal.batching.agents import over_agents
from shoal.batching.policies import Policies
from shoal.batching.rollout import rollout
from shoal.core import trees
from shoal.core.spaces import Discrete
from shoal.core.types import Observation, PyTree
from shoal.populations.behaviour import action_probabilities, differences
from shoal.populations.opponents import OpponentBank
from shoal.populations.oracles import ExactOracle, LearnedOracle
from shoal.populations.population import load, open_population, oracle_of
from shoal.populations.psro import PSROState

STEPS = 128
"""Steps of the matches whose situations are compared."""
VIEWS = 2048
"""The most situations of a player that is a single agent; a large team has more."""
SEED = 3


@dataclasses.dataclass(frozen=True)
class Behaviours:
    """By player: how far apart its policies are, `[m, m]`; see `behaviour.differences`."""

    sampled: bool  # whether situations were sampled by playing
    situations: dict[str, int]
    distances: dict[str, np.ndarray]

    def plain(self, mixtures: tuple[np.ndarray, ...]) -> dict[str, Any]:
        """As data. diversity: mean over pairs of policies. expected: of two that are drawn from the mixture."""
        return {
            "sampled": self.sampled,
            "situations": self.situations,
            "diversity": {player: mean_difference(table) for player, table in self.distances.items()},
            "expected": {
                player: float(mixture @ table @ mixture)
                for (player, table), mixture in zip(self.distances.items(), mixtures, strict=True)
            },
            "distances": {player: table.tolist() for player, table in self.distances.items()},
        }


def mean_difference(distances: np.ndarray) -> float:
    """The mean distance of two different policies; 0 for a population of one."""
    return float(distances.sum() / max(1, len(distances) * (len(distances) - 1)))


def behaviours(folder: Path) -> Behaviours | None:
    """How differently the policies of a run's population behave; None where actions are not discrete."""
    settings = open_population(folder)
    oracle = oracle_of(settings)
    return compare(oracle, load(folder, settings, oracle))


def compare(oracle: LearnedOracle | ExactOracle, state: PSROState) -> Behaviours | None:
    """How differently the policies of a population behave; None where actions are not discrete."""
    tables = oracle.tables if isinstance(oracle, ExactOracle) else oracle.game.tables
    if tables is None:
        assert isinstance(oracle, LearnedOracle)
        return _by_playing(oracle, state)
    situations, distances = {}, {}
    for number, (player, plans) in enumerate(zip(state.players, oracle.plans(tables, state), strict=True)):
        reach = plans[:, tables.sets[number].parent]
        situations[player] = reach.shape[1]
        distances[player] = differences(tables.policy(number, plans), reach)
    return Behaviours(False, situations, distances)


def _by_playing(oracle: LearnedOracle, state: PSROState) -> Behaviours | None:
    groups = oracle.matches.setup.spec.groups
    if not all(isinstance(group.action, Discrete) for group in groups.values()):
        return None
    seen, first = _gather(oracle, state)
    situations, distances = {}, {}
    for player, bank in state.banks.items():
        probabilities = _replay(oracle, player, bank.policies, seen[player], first)[: len(bank)]
        active = seen[player].active
        met = np.ones(probabilities.shape[1:-1], bool) if active is None else np.asarray(active)
        rows = np.asarray(probabilities, np.float64)[:, met]  # [m, situations, A]
        situations[player] = rows.shape[1]
        distances[player] = differences(rows, np.ones(rows.shape[:2]))
    return Behaviours(True, situations, distances)


def _gather(oracle: LearnedOracle, state: PSROState) -> tuple[dict[str, Observation], jax.Array]:
    """Each player's observations `[T, E, n, ...]` when all play their mixtures, and where episodes begin `[T, E]`."""
    setup = oracle.matches.setup
    largest = max(group.size for group in setup.spec.groups.values())
    copies = setup.vectorised(max(1, VIEWS // STEPS // largest))
    actor = Policies(setup.algorithms, setup.spec.groups, oracle.matches.explore)
    banks = {
        player: OpponentBank(bank.policies, bank.mixture(mixture))
        for (player, bank), mixture in zip(state.banks.items(), state.mixtures, strict=True)
    }

    @jax.jit
    def play(banks: dict[str, OpponentBank]) -> Any:
        worlds = copies.reset(jax.random.key(oracle.game.experiment.seed + SEED))
        memory = actor.initial_memory(banks, copies.num_envs)
        return rollout(copies, actor, banks, worlds, memory, STEPS, lambda step: (step.observation, step.first))[2]

    return play(banks)


def _replay(oracle: LearnedOracle, player: str, policies: PyTree, seen: Observation, first: jax.Array) -> jax.Array:
    """Action probabilities of each policy `[K, ...]` in each situation, `[K, T, E, n, A]`."""
    algorithm = oracle.game.algorithms[player]
    group = oracle.matches.setup.spec.groups[player]
    assert isinstance(group.action, Discrete)
    actions, explore = group.action.n, oracle.matches.explore

    def one(policy: PyTree) -> jax.Array:
        fresh = Policies({player: algorithm}, {player: group}).initial_memory({player: policy}, first.shape[1])[player]

        def step(memory: PyTree, now: tuple[Observation, jax.Array]) -> tuple[PyTree, jax.Array]:
            observation, begins = now
            memory = trees.where(begins, fresh, memory)
            act = over_agents(lambda p, o, m: action_probabilities(algorithm, p, o, m, explore, actions))
            probabilities, after = act(policy, observation, memory)
            return after if observation.active is None else trees.where(
                observation.active, after, memory
            ), probabilities

        return lax.scan(step, fresh, (seen, first))[1]

    return jax.jit(lambda policies: lax.map(one, policies))(policies)
