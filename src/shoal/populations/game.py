"""A game: a world with several players, and the algorithm that trains each player's policies."""

import dataclasses
import functools

import jax

from shoal.batching.regroup import parse_seats
from shoal.core.algorithm import Algorithm
from shoal.core.env import Env, describe
from shoal.core.errors import OptionError
from shoal.core.types import Seat
from shoal.envs.tabular import TabularGame, tabulate
from shoal.training.experiment import Experiment, Learner, Setup, make_world


@dataclasses.dataclass(frozen=True)
class Game:
    """A world with several players, and how their policies are trained.

    experiment: of one best response. The learner of a seat there determines the algorithm of its player here.
    """

    experiment: Experiment

    @property
    def env(self) -> str:
        return self.experiment.env

    @functools.cached_property
    def world(self) -> Env:
        return make_world(self.experiment)

    @functools.cached_property
    def algorithms(self) -> dict[str, Algorithm]:
        """The algorithm of each player."""
        dealt, learners = seat_policies(self.experiment), self.experiment.learners
        return {player: learners[dealt[seats[0]][0]].algorithm for player, seats in self.world.players.items()}

    @functools.cached_property
    def seats(self) -> dict[str, tuple[str, ...]]:
        players = self.world.players
        if len(players) < 2:
            raise OptionError(
                f"world {self.env!r} has one player; a population of opponents needs at least two. For one player or "
                "one team there are `shoal pbt` and `shoal evolve`."
            )
        for player, seats in players.items():
            if len({group for group, _ in seats}) > 1:
                raise OptionError(
                    f"world {self.env!r}: the player {player!r} has seats of several groups, but a policy of a bank "
                    "plays agents of one kind. Give each group a player of its own."
                )
        return {player: tuple(f"{group}[{i}]" for group, i in seats) for player, seats in players.items()}

    @functools.cached_property
    def setup(self) -> Setup:
        """The experiment with one learner and one policy per player."""
        learners = {name: Learner(self.algorithms[name], {name: seats}) for name, seats in self.seats.items()}
        return self.experiment.replace(learners=learners, num_seeds=1).setup

    @property
    def players(self) -> tuple[str, ...]:
        return tuple(self.seats)

    @functools.cached_property
    def tables(self) -> TabularGame | None:
        """The exact tables of the game; None if it has none."""
        return _tables(self.world) if self.has_tables else None

    @property
    def has_tables(self) -> bool:
        return hasattr(self.world, "num_deals")


@functools.lru_cache(maxsize=4)
def _tables(world: Env) -> TabularGame:
    """Computed once per world: it takes seconds, and checks, oracles and pages all need them."""
    with jax.default_device(jax.local_devices(backend="cpu")[0]):  # many small programs
        return tabulate(world)


def seat_policies(experiment: Experiment) -> dict[Seat, tuple[str, str]]:
    """The learner and the policy of each seat of an experiment's world."""
    groups = describe(make_world(experiment)).groups
    dealt = {}
    for name, learner in experiment.learners.items():
        for policy, chairs in (learner.policies or {group: (group,) for group in groups}).items():
            for part in (parse_seats(text, groups) for text in chairs):
                dealt |= {(part.group, i): (name, policy) for i in range(part.start, part.stop)}
    return dealt
