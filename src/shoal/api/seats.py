"""Who plays which seats of a world: some of a run's policies, or of their seats, given to those of other runs."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from shoal.batching.regroup import dealt_seats, parse_seats, unwrap_regrouped
from shoal.core.errors import OptionError, UnknownNameError, unknown_name
from shoal.core.types import PyTree, Seat
from shoal.core.zoo import find_run
from shoal.training.experiment import Learner, Setup
from shoal.training.run import fit_weights, weights_from

RANDOM = "random"
"""In place of a run folder: random play."""


def seat_policies(
    setup: Setup, trained: dict[str, PyTree], others: Mapping[str, str | Mapping[str, PyTree]], option: str
) -> tuple[Setup, dict[str, PyTree]]:
    """Trained policies, some of them, or some of their seats, given to other runs, or to random play.

    others: by who plays otherwise, a folder or weights by policy. option: what a user calls it, for errors.
    """
    given: dict[Seat, str] = {}
    weights = {f"{option} {who}": other for who, other in others.items() if not isinstance(other, str)}
    for who, other in others.items():
        source = other if isinstance(other, str) else f"{option} {who}"
        given |= dict.fromkeys(find_seats(who, setup, option), source)
    setup, parts = _divided(setup, given)
    policies = {}
    for name, (policy, other) in parts.items():
        if other is None:
            policies[name] = trained[policy]
        elif other != RANDOM:  # whoever has no policy plays at random
            wanted = {policy: trained[policy]}
            known = other in weights
            found = fit_weights(weights[other], wanted, other) if known else weights_from(str(find_run(other)), wanted)
            policies[name] = found[policy]
    return setup, policies


def find_seats(who: str, setup: Setup, option: str) -> list[Seat]:
    """The seats of a policy, of a player of the world, or by their group: `agent`, `agent[1]`, `agent[1:3]`."""
    world, dealt = unwrap_regrouped(setup.env), dealt_seats(setup.env)
    if who in dealt:
        return dealt[who]
    if who in world.players:
        return list(world.players[who])
    try:
        part = parse_seats(who, world.groups)
    except UnknownNameError as error:
        known = {*dealt, *world.players, *world.groups}
        raise OptionError(f"{option}: {unknown_name('policy, player or seat', who, known)}") from error
    return [(part.group, i) for i in range(part.start, part.stop)]


def _divided(setup: Setup, given: dict[Seat, str]) -> tuple[Setup, dict[str, tuple[str, str | None]]]:
    """Policies of which only some seats are given away are divided: the roles, and what each name then stands for."""
    parts: dict[str, tuple[str, str | None]] = {}
    seats: dict[str, dict[str, tuple[str, ...]]] = {name: {} for name in setup.experiment.learners}
    learner_of = {policy: name for name, (_, spec) in setup.learners.items() for policy in spec.groups}
    for policy, own in dealt_seats(setup.env).items():
        sources = list(dict.fromkeys(given.get(seat) for seat in own))
        for other in sources:
            name = policy if len(sources) == 1 or other is None else f"{policy}={other}"
            parts[name] = (policy, other)
            seats[learner_of[policy]][name] = _texts(seat for seat in own if given.get(seat) == other)
    if set(parts) == set(setup.algorithms):
        return setup, parts
    experiment = setup.experiment
    learners = {name: dataclasses.replace(one, policies=seats[name]) for name, one in experiment.learners.items()}
    return experiment.replace(learners=learners).setup, parts


@dataclasses.dataclass(frozen=True)
class Side:
    """Those who play some seats: the roles of the run they come from, and its policies; None: random play."""

    setup: Setup | None
    policies: dict[str, PyTree]


def seat_sides(sides: Mapping[str, Side]) -> tuple[Setup, dict[str, PyTree]]:
    """Sides by what they play (see `find_seats`), at one table: each policy with the algorithm of its own run.

    All must have been trained in the same world: see `entrants.check_same_world`.
    """
    first = next((side.setup for side in sides.values() if side.setup is not None), None)
    if first is None:
        raise OptionError("match: everybody plays at random. Name a run for at least one side.")
    learners: dict[str, Learner] = {}
    policies: dict[str, PyTree] = {}
    taken: dict[Seat, str] = {}
    for who, side in sides.items():
        seats = find_seats(who, first, "match")
        for seat in seats:
            if seat in taken:
                raise OptionError(f"match: {taken[seat]!r} and {who!r} both play {_text(seat)}; leave one out")
            taken[seat] = who
        setup = side.setup or first
        for policy, own in dealt_seats(setup.env).items():
            if mine := [seat for seat in own if seat in seats]:
                name = who if set(mine) == set(seats) else f"{who}: {policy}"
                learners[name] = Learner(setup.algorithms[policy], {name: _texts(mine)})
                policies |= {name: side.policies[policy]} if side.setup else {}
    everybody = {(group, i) for group, own in unwrap_regrouped(first.env).groups.items() for i in range(own.size)}
    if free := sorted(everybody - set(taken)):
        raise OptionError(f"match: nobody plays {', '.join(map(_text, free))}. Name a run, or {RANDOM!r}.")
    return dataclasses.replace(first.experiment, learners=learners, num_seeds=1).setup, policies


def _texts(seats: Any) -> tuple[str, ...]:
    return tuple(map(_text, seats))


def _text(seat: Seat) -> str:
    return f"{seat[0]}[{seat[1]}]"
