"""PettingZoo's agents assigned to our groups, and the common part of all its environments here."""

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from shoal.bridges.incoming._conversion import make_observation, make_outcome, to_reward
from shoal.bridges.incoming._parts import Misfit
from shoal.bridges.incoming._reports import CHECKED_STEPS, Place
from shoal.bridges.incoming._spaces import Spaces, same_space
from shoal.core.errors import OptionError
from shoal.core.host import Observations
from shoal.core.spaces import Discrete
from shoal.core.types import Group, Outcome, Seat


@dataclasses.dataclass(frozen=True, eq=False)
class Roster:
    """Who sits where. members: the agents of each group. turns: one agent acts at a time."""

    name: str
    members: dict[str, tuple[Any, ...]]
    spaces: dict[str, Spaces]
    turns: bool
    by_agent: bool
    masked: bool = False

    @staticmethod
    def of(env: Any, name: str, turns: bool, by_agent: bool) -> "Roster":
        """Groups the agents: those whose names differ only in the number (`agent_0`, `agent_1`) and whose spaces are
        equal.

        Where the spaces of such agents differ, each set of equal ones is named after its first agent.
        """
        agents = list(getattr(env, "possible_agents", ()))
        if not agents:
            raise OptionError(f"{name}: its possible_agents are empty or missing: list all agents that may ever appear")
        kinds: dict[str, list[list[Any]]] = {}
        for agent in agents:
            sets = kinds.setdefault(_stem(agent), [])
            alike = next((own for own in sets if _spaces(env, own[0]) == _spaces(env, agent)), None)
            sets.append([agent]) if alike is None else alike.append(agent)
        members = {stem if len(sets) == 1 else str(own[0]): tuple(own) for stem, sets in kinds.items() for own in sets}
        spaces = {
            group: Spaces.of(*_spaces(env, own[0]), f"{name}, agent {own[0]!r}") for group, own in members.items()
        }
        return Roster(name, members, spaces, turns, by_agent)

    @property
    def seats(self) -> dict[Any, Seat]:
        return {agent: (group, i) for group, own in self.members.items() for i, agent in enumerate(own)}

    @property
    def groups(self) -> Mapping[str, Group]:
        movers = 1 if self.turns else None
        return {
            group: Group(len(own), self.spaces[group].acts.space, self.spaces[group].view.observation, movers)
            for group, own in self.members.items()
        }

    @property
    def players(self) -> dict[str, tuple[Seat, ...]]:
        if self.by_agent:
            return {str(agent): (seat,) for agent, seat in self.seats.items()}
        return {group: tuple((group, i) for i in range(len(own))) for group, own in self.members.items()}


class SeatedEnv:
    """An environment of PettingZoo's: what both of their interfaces share. gone: when each agent was done."""

    def __init__(self, env: Any, roster: Roster, check: bool):
        self.env, self.roster, self.check = env, roster, check
        self.name, self.groups, self.players, self.seats = roster.name, roster.groups, roster.players, roster.seats
        self.masked, self.leaving = roster.masked, True
        self.place = Place(roster.name)
        self.gone: dict[Any, int] = {}
        self.compared: dict[Any, tuple[Any, Any]] = {}

    def close(self) -> None:
        self.env.close()

    def decoded(self, agent: Any, actions: Mapping[str, np.ndarray]) -> Any:
        """An agent's action in the library's terms."""
        group, i = self.seats[agent]
        return self.roster.spaces[group].acts.decode(actions[group][i])

    def all_decoded(self, agents: Collection[Any], actions: Mapping[str, np.ndarray]) -> dict[Any, Any]:
        """Actions of several agents. Discrete ones are converted for a whole group at once."""
        spaces = self.roster.spaces
        plain = {
            group: spaces[group].acts.decode(rows)
            for group, rows in actions.items()
            if isinstance(spaces[group].acts.space, Discrete)
        }
        acts = {}
        for agent in agents:
            group, i = self.seats[agent]
            acts[agent] = plain[group][i] if group in plain else self.decoded(agent, actions)
        return acts

    def begun(self) -> None:
        """Starts a new episode, with all agents present. Refuses one without agents."""
        self.gone = {}
        if not self.env.agents:
            raise Misfit("an episode began without agents: `agents` is empty after reset")

    def living(self, done: Callable[[Any], bool]) -> list[Any]:
        """The agents that may still act. Refuses unknown agents, and those that were already done."""
        agents = [agent for agent in self.env.agents if not done(agent)]
        for agent in agents:
            if agent not in self.seats:
                raise Misfit(f"agent {agent!r} appears, but possible_agents has only {list(self.seats)}")
            if agent in self.gone and self.check:
                raise Misfit(f"agent {agent!r} was done at step {self.gone[agent]}, but acts again")
        return [agent for agent in agents if agent not in self.gone]

    def seen(
        self, values: Mapping[Any, Any], infos: Mapping[Any, Any], active: Collection[Any], present: Collection[Any]
    ) -> Observations:
        """Observations by group: views of those in `values`, zeros for others."""
        check = self.check and self.place.total <= CHECKED_STEPS
        observations = {}
        for group, own in self.roster.members.items():
            spaces = self.roster.spaces[group]
            legal = np.ones((len(own), spaces.width), bool) if self.masked and spaces.width else None
            there = np.array([agent in present for agent in own])
            acting = np.array([agent in active for agent in own])
            view = None if check or legal is not None else spaces.view.rows([values.get(agent) for agent in own])
            if view is not None:  # nothing is amiss, and there is nothing else to look at
                observations[group] = make_observation(view, None, acting, there)
                continue
            view = spaces.view.blank(len(own))
            for i, agent in enumerate(own):
                if agent in values:
                    self._put(view, legal, i, agent, values[agent], infos, check)
                elif agent in present:
                    raise Misfit(f"agent {agent!r} is alive, but has no observation")
            observations[group] = make_observation(view, legal, acting, there)
        return observations

    def outcome(self, gains: Mapping[Any, Any], over: bool, cut: Collection[Any]) -> Outcome:
        """The outcome of a step. A finished episode counts as truncated if any agent was, else as terminated."""
        reward = {group: np.zeros(len(own), np.float32) for group, own in self.roster.members.items()}
        for agent, gain in gains.items():
            amount = to_reward(gain, f"the reward of agent {agent!r}")
            if agent in self.gone:
                if amount and self.check:
                    raise Misfit(f"agent {agent!r} was done at step {self.gone[agent]}, but is still paid ({amount:g})")
            elif agent in self.seats:
                group, i = self.seats[agent]
                reward[group][i] = amount
        truncated = over and bool(cut)
        return make_outcome(reward, over and not truncated, truncated)

    def _put(self, view: Any, legal: Any, i: int, agent: Any, value: Any, infos: Mapping, check: bool) -> None:
        spaces = self.roster.spaces[self.seats[agent][0]]
        try:
            if check:
                self._compare(agent, spaces)
            own = spaces.see(value, check=check)
            if legal is not None:
                legal[i] = spaces.legal(value, infos.get(agent))
        except Misfit as error:
            raise type(error)(f"agent {agent!r}: {error}") from error
        if isinstance(view, dict):
            for name, leaf in own.items():
                view[name][i] = leaf
        else:
            view[i] = own

    def _compare(self, agent: Any, spaces: Spaces) -> None:
        """Refuses spaces that have changed. To compare two takes long: those that were found equal are remembered."""
        now = (self.env.observation_space(agent), self.env.action_space(agent))
        known = self.compared.get(agent)
        if known is not None and known[0] is now[0] and known[1] is now[1]:
            return
        same_space("observation", spaces.observation, now[0])
        same_space("action", spaces.action, now[1])
        self.compared[agent] = now


def _stem(agent: Any) -> str:
    text = str(agent)
    if text.isdigit():
        return "agent"
    match = re.fullmatch(r"(.+?)[_\- ]?\d+", text)
    return match[1] if match else text


def _spaces(env: Any, agent: Any) -> tuple[Any, Any]:
    return env.observation_space(agent), env.action_space(agent)
