"""The meta data of checkpoints of PSRO and leagues, checked wherever one is read: see `training.records`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from shoal.core.schema import Maybe, Whole, check
from shoal.populations.bank import Member
from shoal.populations.league import ROLES
from shoal.training import checkpoint
from shoal.training.records import LONGEST, forged, require_fact

INFO = {"role?": str, "age?": Whole(), "earned?": float, "mixture?": [float], "run?": str, "member?": Whole()}
MEMBER = {"name": str, "parent": Maybe(Whole()), "born": Whole(), "frozen?": bool, "info": INFO}
LINE = {
    "iteration": Whole(),
    "population": Whole(),
    "seconds": float,
    **dict.fromkeys(
        ("nash_conv?", "exploitability?", "value?", "uniform_share?", "breadth?", "nash_conv_at_least?"), Maybe(float)
    ),
    "gain?": [float],
    "support?": [Whole()],
    "mixtures?": [[float]],
}
POPULATION = {
    "capacities": {str: Whole(1, 1 << 20)},
    "members": {str: [MEMBER]},
    "mixtures": [[float]],
    "history": [LINE],
    "symmetric": bool,
}


class Population(NamedTuple):
    """The banks of PSRO or a league, as described in a checkpoint. history: a line of figures per iteration."""

    capacities: dict[str, int]
    members: dict[str, tuple[Member, ...]]
    mixtures: tuple[np.ndarray, ...]
    history: tuple[dict[str, Any], ...]
    symmetric: bool

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(len(members) for members in self.members.values())

    @property
    def table(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes of the arrays of the payoff table: nothing is allocated yet, whatever size is declared."""
        wide = (len(self.sizes), *self.sizes)
        shapes = {"count": self.sizes, "total": wide, "squares": wide}
        return {name: jax.ShapeDtypeStruct(shape, np.float64) for name, shape in shapes.items()}


def read_population(path: Path) -> Population:
    """The meta data of a checkpoint of PSRO or a league."""
    meta = checkpoint.read_meta(path)
    try:
        check(meta, POPULATION, "meta")
        found = Population(
            meta["capacities"],
            {player: tuple(map(_member, members)) for player, members in meta["members"].items()},
            tuple(np.array(mixture, np.float64) for mixture in meta["mixtures"]),
            tuple(meta["history"]),
            meta["symmetric"],
        )
        _check_members(found)
        _check_history(found)
    except ValueError as error:
        raise forged(path, error) from error
    return found


def _member(data: Mapping[str, Any]) -> Member:
    return Member(data["name"], data["parent"], data["born"], data.get("frozen", False), data["info"])


def _check_members(found: Population) -> None:
    require_fact(len(found.members) >= 1, "meta.members must name the players")
    require_fact(
        list(found.capacities) == list(found.members), "meta.capacities and meta.members must name the same ones"
    )
    require_fact(len(found.mixtures) == len(found.members), "meta.mixtures must be one for each player")
    for (player, members), mixture in zip(found.members.items(), found.mixtures, strict=True):
        size, where = len(members), f"meta.members.{player}"
        require_fact(
            1 <= size <= found.capacities[player], f"{where} must have a first one, and no more than its capacity"
        )
        first = members[0]  # the initial policy: never frozen, in a league the first main agent
        require_fact(
            not first.frozen and first.info.get("role", ROLES[0]) == ROLES[0], f"{where}[0] must be a first policy"
        )
        for i, member in enumerate(members):
            require_fact(member.parent is None or member.parent < size, f"{where}[{i}].parent must be a member")
            require_fact(
                member.info.get("role", ROLES[0]) in ROLES, f"{where}[{i}].info.role must be one of a league's"
            )
        fits = len(mixture) == size and (mixture >= -1e-6).all() and abs(mixture.sum() - 1.0) < 1e-3
        require_fact(bool(fits), f"meta.mixtures of {player} must be {size} shares of 1")


def _check_history(found: Population) -> None:
    iterations = [line["iteration"] for line in found.history]
    require_fact(bool(iterations), "meta.history must have a line")
    require_fact(iterations == sorted(set(iterations)), "meta.history must go from one iteration to a later one")
    for i, line in enumerate(found.history):
        require_fact(0 <= line["seconds"] <= LONGEST, f"meta.history[{i}].seconds must be a time")
        for name in ("gain", "support", "mixtures"):
            fits = len(line.get(name, found.sizes)) == len(found.sizes)
            require_fact(fits, f"meta.history[{i}].{name} must be one for each player")
