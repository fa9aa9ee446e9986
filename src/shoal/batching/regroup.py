"""Reassigns seats: groups are merged, split or renamed, so that an algorithm only ever sees one policy per group.

`regroup(env, {"all": ["tagger", "runner"]})` lets both groups share one policy;
`regroup(env, {"left": ["agent[0]"], "right": ["agent[1:3]"]})` gives agents of one group different ones.
"""

import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from shoal.core.env import Env, EnvAround, describe
from shoal.core.errors import OptionError, unknown_name
from shoal.core.spaces import ActionNames, Box, num_logits
from shoal.core.types import Actions, Group, Observation, Outcome, PyTree, Scene, Seat

_SEATS = re.compile(r"(?P<group>[^\[\]]+)(\[(?P<start>\d+)(?P<range>:(?P<stop>\d*))?\])?")


@dataclasses.dataclass(frozen=True)
class Part:
    """Agents `start` to `stop` of a group of the original world."""

    group: str
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclasses.dataclass(frozen=True)
class Regrouped(EnvAround):
    """A world whose seats are assigned to other groups; made by `regroup`."""

    env: Env
    plan: tuple[tuple[str, tuple[Part, ...]], ...]

    @property
    def groups(self) -> Mapping[str, Group]:
        old = self.env.groups
        return {name: self._merge(parts, old) for name, parts in self.plan}

    @property
    def players(self) -> dict[str, tuple[Seat, ...]]:
        seat_of = {}
        for name, parts in self.plan:
            seats = [(part.group, i) for part in parts for i in range(part.start, part.stop)]
            seat_of |= {seat: (name, i) for i, seat in enumerate(seats)}
        return {player: tuple(seat_of[seat] for seat in seats) for player, seats in self.env.players.items()}

    def step(self, key: jax.Array, state: PyTree, actions: Actions, params: PyTree) -> tuple[PyTree, Outcome]:
        state, outcome = self.env.step(key, state, _deal_back(self, actions, 0), params)
        return state, outcome.replace(reward={name: _deal(outcome.reward, parts) for name, parts in self.plan})

    def observe(self, state: PyTree, params: PyTree) -> dict[str, Observation]:
        seen = self.env.observe(state, params)
        masked = any(obs.legal is not None for obs in seen.values())
        old = {name: _fill(obs, self.env.groups[name], masked) for name, obs in seen.items()}
        return {name: _deal(old, parts) for name, parts in self.plan}

    def scene_for(self, state: PyTree, params: PyTree, seat: Seat) -> Scene:
        return self.env.scene_for(state, params, self.seats(seat[0])[seat[1]])

    def action_names(self, group: str) -> ActionNames:
        return self.env.action_names(self.seats(group)[0][0])

    def seats(self, policy: str) -> list[Seat]:
        """The seats of the original world that a group here, a policy, plays."""
        return [(part.group, i) for part in dict(self.plan)[policy] for i in range(part.start, part.stop)]

    def _merge(self, parts: tuple[Part, ...], old: Mapping[str, Group]) -> Group:
        size = sum(part.size for part in parts)
        movers = [old[part.group].movers for part in parts]
        known = [mover for mover in movers if mover is not None]
        total = min(size, sum(known)) if len(known) == len(movers) else None
        return dataclasses.replace(old[parts[0].group], size=size, movers=total)


def regroup(env: Env, seats: Mapping[str, Sequence[str]]) -> Env:
    """Assigns the seats of `env` to the groups named in `seats`; every seat must be assigned exactly once."""
    spec = describe(env)
    plan = tuple((name, tuple(parse_seats(text, spec.groups) for text in texts)) for name, texts in seats.items())
    taken = [(part.group, i) for _, parts in plan for part in parts for i in range(part.start, part.stop)]
    everyone = [(name, i) for name, group in spec.groups.items() for i in range(group.size)]
    times = Counter(taken)
    for seat in everyone:
        if times[seat] != 1:
            owned = "more than one policy" if times[seat] else "no policy"
            raise OptionError(f"seat {seat[0]}[{seat[1]}] has {owned}: every seat needs exactly one")
    for name, parts in plan:
        _check_alike(name, [spec.groups[part.group] for part in parts], parts)
    if [(name, [Part(name, 0, group.size)]) for name, group in spec.groups.items()] == [(n, list(p)) for n, p in plan]:
        return env
    return Regrouped(env, plan)


def unwrap_regrouped(env: Env) -> Env:
    """The world itself, without the reassignment of its seats."""
    return env.env if isinstance(env, Regrouped) else env


def dealt_seats(env: Env) -> dict[str, list[Seat]]:
    """The seats of the world that each group plays, after their reassignment."""
    plan = env.plan if isinstance(env, Regrouped) else [(n, (Part(n, 0, g.size),)) for n, g in env.groups.items()]
    return {name: [(part.group, i) for part in parts for i in range(part.start, part.stop)] for name, parts in plan}


def return_groups(env: Env) -> dict[str, tuple[Seat, ...]]:
    """The groups by which returns are reported: the world's own or, where a group's seats belong to several players,
    those players.

    So the two seats of a card game are reported separately; their returns would cancel out in a sum.
    """
    world = unwrap_regrouped(env)
    player_of = {seat: player for player, seats in world.players.items() for seat in seats}
    counted: dict[str, list[Seat]] = {}
    for group, spec in world.groups.items():
        seats = [(group, i) for i in range(spec.size)]
        shared = len({player_of.get(seat) for seat in seats}) > 1
        for seat in seats:
            counted.setdefault(player_of.get(seat, group) if shared else group, []).append(seat)
    return {name: tuple(seats) for name, seats in counted.items()}


def sum_rewards(env: Env, reward: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Rewards `[..., n]` by policy, summed over the seats of each return group."""
    by_group = _deal_back(env, reward, -1) if isinstance(env, Regrouped) else reward
    totals = {}
    for name, seats in return_groups(env).items():
        whole = len({group for group, _ in seats}) == 1 and len(seats) == by_group[seats[0][0]].shape[-1]
        parts = [jnp.sum(by_group[seats[0][0]], -1)] if whole else [by_group[group][..., i] for group, i in seats]
        totals[name] = functools.reduce(jnp.add, parts)
    return totals


def seat_rewards(env: Env, reward: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Rewards `[..., n]` by policy, as those of every seat of the world, `agent[0]`."""
    by_group = _deal_back(env, reward, -1) if isinstance(env, Regrouped) else reward
    return {f"{group}[{i}]": own[..., i] for group, own in by_group.items() for i in range(own.shape[-1])}


def to_env_actions(env: Env, actions: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Actions `[E, n, ...]` by policy as actions by the world's own groups."""
    return _deal_back(env, actions, 1) if isinstance(env, Regrouped) else dict(actions)


def _deal_back(env: Regrouped, given: Mapping[str, jax.Array], axis: int) -> dict[str, jax.Array]:
    """Arrays by policy, rearranged by the world's own groups; `axis` is that of the agents."""
    pieces: dict[str, list[tuple[int, jax.Array]]] = {group: [] for group in env.env.groups}
    for name, parts in env.plan:
        cuts = [sum(part.size for part in parts[:i]) for i in range(1, len(parts))]
        for part, piece in zip(parts, jnp.split(given[name], cuts, axis=axis), strict=True):
            pieces[part.group].append((part.start, piece))
    ordered = {group: [piece for _, piece in sorted(own, key=lambda pair: pair[0])] for group, own in pieces.items()}
    return {group: own[0] if len(own) == 1 else jnp.concatenate(own, axis=axis) for group, own in ordered.items()}


def parse_seats(text: str, groups: Mapping[str, Group]) -> Part:
    """`"agent"`, `"agent[2]"` or `"agent[1:3]"` as a part of a group."""
    match = _SEATS.fullmatch(text)
    if not match:
        raise OptionError(f"seats {text!r}: expected 'group', 'group[2]' or 'group[1:3]'")
    group = match["group"]
    if group not in groups:
        raise unknown_name("group", group, groups)
    size = groups[group].size
    start = int(match["start"] or 0)
    stop = size if match["start"] is None or match["range"] == ":" else int(match["stop"] or start + 1)
    if not 0 <= start < stop <= size:
        raise OptionError(f"seats {text!r}: the group {group!r} has seats 0 to {size - 1}")
    return Part(group, start, stop)


def _check_alike(name: str, groups: list[Group], parts: tuple[Part, ...]) -> None:
    for group, part in zip(groups, parts, strict=True):
        if (group.action, group.observation) != (groups[0].action, groups[0].observation):
            raise OptionError(
                f"policy {name!r} cannot be shared by {parts[0].group!r} and {part.group!r}: their views or actions "
                f"differ ({groups[0].observation}, {groups[0].action} against {group.observation}, {group.action}). "
                "Give each its own policy, or put the wrapper `pad` around the world (--wrap pad)."
            )


def _fill(obs: Observation, group: Group, masked: bool) -> Observation:
    """Observations of groups that may be merged must have the same parts."""
    everyone = jnp.ones(group.size, bool)
    if masked and obs.legal is None and not isinstance(group.action, Box):
        obs = obs.replace(legal=jnp.ones((group.size, num_logits(group.action)), bool))
    return obs.replace(
        active=everyone if obs.active is None else obs.active,
        present=everyone if obs.present is None else obs.present,
    )


def _deal(old: Mapping[str, PyTree], parts: tuple[Part, ...]) -> PyTree:
    pieces = [jax.tree.map(lambda leaf, p=part: leaf[p.start : p.stop], old[part.group]) for part in parts]
    return jax.tree.map(lambda *leaves: leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves), *pieces)
