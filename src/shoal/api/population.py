"""A population that was grown by PSRO or a league: how far it got, who is in it, and what they play."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.api.figures import describe_iteration
from shoal.api.seats import Side
from shoal.core.checks import is_number
from shoal.core.errors import unknown_name
from shoal.core.types import PyTree
from shoal.populations.bank import Member, PolicyBank
from shoal.populations.crossplay import Contender
from shoal.populations.game import Game
from shoal.populations.inspect_population import require_networks
from shoal.populations.opponents import OpponentBank, Opponents
from shoal.populations.population import PopulationConfig
from shoal.populations.psro import PSROState
from shoal.training.experiment import Learner, Setup
from shoal.viz.plot import Band, plot_curves


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Population:
    """Policies of each player, the payoffs between them, and the mixtures they are played with."""

    config: PopulationConfig
    state: PSROState
    path: Path | None = None
    interrupted: bool = False

    @property
    def history(self) -> tuple[dict[str, Any], ...]:
        """One line of figures per iteration: `pandas.DataFrame(population.history)`."""
        return self.state.history

    @property
    def nash_conv(self) -> float | None:
        """What all players could gain by best responses to the mixtures; None if the game has no exact tables."""
        return self.history[-1].get("nash_conv")

    @property
    def exploitability(self) -> float | None:
        """The same per player."""
        return self.history[-1].get("exploitability")

    @property
    def mixtures(self) -> dict[str, np.ndarray]:
        """How likely each player plays each of its policies."""
        return dict(zip(self.state.players, self.state.mixtures, strict=True))

    @property
    def payoffs(self) -> np.ndarray:
        """Mean returns `[players, policies of the first, of the second, ...]`; NaN where nothing was played."""
        return self.state.table.mean

    def policies(self, player: str) -> list[PyTree]:
        """The weights of a player's policies, oldest first."""
        bank = self._bank(player)
        return [bank[i] for i in range(len(bank.members))]

    def members(self, player: str) -> list[Member]:
        """Where a player's policies come from, oldest first: `parent`, `born` and, in a league, `info["role"]`."""
        return list(self._bank(player).members)

    def _bank(self, player: str) -> PolicyBank:
        if player not in self.state.banks:
            raise unknown_name("player", player, self.state.banks)
        return self.state.banks[player]

    def side(self, number: int | None = None) -> Side:
        """What plays for it in a match: every player's mixture or, by its number, one policy of each."""
        require_networks(self.config, "play")
        game, banks, mixtures = Game(self.config.experiment), {}, self.mixtures
        learners = {}
        for player, bank in self.state.banks.items():
            if number is not None:
                one = bank[number]
                banks[player] = OpponentBank(jax.tree.map(lambda leaf: leaf[None], one), jnp.ones(1))
            else:
                banks[player] = OpponentBank(bank.policies, bank.mixture(mixtures[player]))
            capacity = bank.capacity if number is None else 1
            algorithm = Opponents(game.algorithms[player], capacity, explore=not self.config.greedy)
            learners[player] = Learner(algorithm, {player: game.seats[player]}, frozen=True)
        return Side(game.experiment.replace(learners=learners, num_seeds=1).setup, banks)

    @functools.cached_property
    def setup(self) -> Setup:
        """The world with one policy per player."""
        return Game(self.config.experiment).setup

    def contender(self, name: str, number: int | None = None) -> Contender:
        """What plays for it in a tournament; as `side`."""
        require_networks(self.config, "play")
        rows, mixtures = {}, {}
        for player, bank in self.state.banks.items():
            some = [number % len(bank)] if number is not None else range(len(bank))
            rows[player] = jax.tree.map(lambda leaf, s=np.array(some): np.asarray(leaf)[s], bank.policies)
            mixtures[player] = np.ones(1) if number is not None else np.asarray(self.mixtures[player], np.float64)
        return Contender(name, self.setup, rows, mixtures, samples=not self.config.greedy)

    def plot(self, metric: str = "nash_conv", axes: Any = None, label: str | None = None) -> Any:
        """Draws a figure of the history over iterations; as `Run.plot`.

        axes: those of another population, to draw both; label: what a legend then calls this one.
        """
        known = dict.fromkeys(name for line in self.history for name, value in line.items() if is_number(value))
        if metric not in known:
            raise unknown_name("metric", metric, known)
        lines = [line for line in self.history if metric in line]
        iterations, values = (np.array([line[name] for line in lines], float) for name in ("iteration", metric))
        env = self.config.experiment.env
        curves = {label or metric: Band(iterations, values)}
        return plot_curves(curves, title=env, label=metric, axes=axes, over="iterations")

    def __repr__(self) -> str:
        line = self.history[-1]
        kept = str(self.path) if self.path else "in memory"
        return f"Population({self.config.experiment.env}; {describe_iteration(line)}; {kept})"
