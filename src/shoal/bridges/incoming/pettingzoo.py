"""PettingZoo environments as worlds: `pettingzoo:mpe2.simple_spread_v3`.

The name is a module with a function `parallel_env` or, where there is none, `env` (agents then act in turn); or
`module:function` with any function that makes one (see `_makers`); or a name in PettingZoo's registry,
`classic/connect_four-v3`. Options go to it, except these:

- check: whether observations are compared with their spaces (the first 1,000 steps of each copy), and agents that were
  done watched for acting or being paid.
- players: `group` or `agent`: whether all agents of a group are one player, or each is its own. By default they are
  one in parallel environments, where a group mostly has one interest, and apart in turn-based ones, which are mostly
  games against each other. It says whose returns are counted together and who is a side in a population.

Agents whose names differ in their number only and whose spaces are equal form a group: `adversary_0`, `adversary_1`
are the group `adversary`. All `possible_agents` have a seat; those that are not there, not yet or no longer, are not
present. `{"observation": ..., "action_mask": ...}`, or an `action_mask` in the info, says what is legal.

PettingZoo reports ends per agent, Shoal for all at once. An episode is over when every agent is done. It is
truncated if any of the agents that were done last was truncated and not terminated: these, and only these, are present
in the final observation, so that exactly their values are bootstrapped. Else it is terminated. An agent that is
truncated while others go on is treated as one that leaves.

In turn-based environments the one to act is active and the others wait. Rewards are what `last()` would give at an
agent's next turn, each paid at the step that earned it. Agents that are done are stepped with None unseen.
"""

import dataclasses
import functools
import importlib.util
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pettingzoo
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.conversions import aec_to_parallel_wrapper
from pettingzoo.utils.wrappers import AssertOutOfBoundsWrapper, OrderEnforcingWrapper

from shoal.bridges.incoming._batches import stand_in_for
from shoal.bridges.incoming._makers import Kind, check_maker
from shoal.bridges.incoming._parts import Misfit
from shoal.bridges.incoming._reports import Place, call_maker, import_object, nearest, nearest_function
from shoal.bridges.incoming._roster import Roster, SeatedEnv
from shoal.core.env import Env
from shoal.core.errors import OptionError, require, unknown_name
from shoal.core.host import Observations
from shoal.core.types import Outcome

_PARTS = ("reset", "step", "observation_space", "action_space")
_KIND = Kind((ParallelEnv, AECEnv), _PARTS, ("pettingzoo",), "a ParallelEnv or an AECEnv of PettingZoo's")


def make(name: str, *, check: bool = True, players: str | None = None, **options: Any) -> Env:
    """A proxy for the PettingZoo environment `name`."""
    owner = f"pettingzoo:{name}"
    require(isinstance(check, bool), owner, "check", check, "true or false")
    require(players in (None, "group", "agent"), owner, "players", players, "group or agent")
    function = _function(name)
    options = _with_roms(name, options)
    first = call_maker(owner, function, options)
    turns = isinstance(first, AECEnv) or hasattr(first, "agent_iter")
    if not all(hasattr(first, part) for part in _PARTS):
        raise OptionError(f"{owner}: {type(first).__name__} is neither a ParallelEnv nor an AECEnv of PettingZoo's")
    roster = Roster.of(first, owner, turns, players == "agent" or (turns and players is None))
    roster = dataclasses.replace(roster, masked=_has_masks(first, roster))
    kind = Turns if turns else Parallel
    first = _unwrap_guards(first)
    first.close()
    return stand_in_for(
        kind(first, roster, check), lambda: kind(_unwrap_guards(call_maker(owner, function, options)), roster, check)
    )


class Parallel(SeatedEnv):
    """A `ParallelEnv` as a `HostEnv`."""

    def reset(self, seed: int | None) -> Observations:
        self.place.begin()
        with self.place.inside("reset"):
            values, infos = self.env.reset(seed=seed)
            self.begun()
            self.alive = self.living(lambda agent: False)
            return self.seen(values, infos, self.alive, self.alive)

    def step(self, actions: Mapping[str, np.ndarray]) -> tuple[Observations, Outcome]:
        self.place.advance()
        acts = self.all_decoded(self.alive, actions)
        with self.place.inside("step"):
            values, rewards, terminated, truncated, infos = self.env.step(acts)
            self._check_flags(terminations=terminated, truncations=truncated)
            before = self.alive
            self.alive = self.living(lambda agent: bool(terminated.get(agent) or truncated.get(agent)))
            ended = [agent for agent in before if agent not in self.alive]
            cut = [agent for agent in ended if truncated.get(agent) and not terminated.get(agent)]
            self._explained(ended, terminated, truncated)
            over = not self.alive
            outcome = self.outcome(rewards, over, cut)
            self.gone |= dict.fromkeys(ended, self.place.step)
            there = cut if over else self.alive
            known = {agent: values[agent] for agent in [*before, *self.alive] if agent in values}
            return self.seen(known, infos, there, there), outcome

    def _check_flags(self, **found: Mapping) -> None:
        """Refuses flags that leave open whether an agent is done, which would never end an episode."""
        for name, flags in found.items() if self.check else ():
            foreign = next((agent for agent in flags if agent not in self.env.possible_agents), None)
            if foreign is not None:
                raise Misfit(f"{name} has {foreign!r}, which is no agent: set the flag of every agent instead")
            without = next((agent for agent in self.alive if agent not in flags), None)
            if without is not None:
                raise Misfit(f"{name} has no flag of agent {without!r}, who acted: every agent needs one in every step")

    def _explained(self, ended: list[Any], terminated: Mapping, truncated: Mapping) -> None:
        for agent in ended:
            if self.check and not (terminated.get(agent) or truncated.get(agent)):
                raise Misfit(f"agent {agent!r} is no longer among the agents, but neither terminated nor truncated")


class Turns(SeatedEnv):
    """An `AECEnv` as a `HostEnv`: one agent acts at a time."""

    def reset(self, seed: int | None) -> Observations:
        self.place.begin()
        with self.place.inside("reset"):
            self.env.reset(seed=seed)
            self.begun()
            self._skip_done({})
            return self._seen([])

    def step(self, actions: Mapping[str, np.ndarray]) -> tuple[Observations, Outcome]:
        self.place.advance()
        mover = self.env.agent_selection
        with self.place.inside("step"):
            gains: dict[Any, float] = {}
            self._advance(self.decoded(mover, actions), gains)
            ended = [agent for agent in self.env.agents if self._done(agent) and agent not in self.gone]
            cut = [agent for agent in ended if not self.env.terminations[agent]]
            self._skip_done(gains)
            over = self._over()
            outcome = self.outcome(gains, over, cut)
            self.gone |= dict.fromkeys(ended, self.place.step)
            return self._seen([agent for agent in cut if agent in self.env.agents] if over else []), outcome

    def _seen(self, cut: list[Any]) -> Observations:
        """All observations. After the end, truncated agents are present, and no agent is active."""
        alive = self.living(self._done)
        values = {agent: self.env.observe(agent) for agent in self.env.agents if agent in self.seats}
        values = {agent: value for agent, value in values.items() if value is not None}
        active = [self.env.agent_selection] if alive else []
        return self.seen(values, self.env.infos, active, alive or cut)

    def _done(self, agent: Any) -> bool:
        return bool(self.env.terminations[agent] or self.env.truncations[agent])

    def _over(self) -> bool:
        return all(self._done(agent) for agent in self.env.agents)

    def _advance(self, action: Any, gains: dict[Any, float]) -> None:
        """A step of theirs. What an agent has earned since its last turn is added up there, from 0 when it acts."""
        mover, before = self.env.agent_selection, dict(self.env._cumulative_rewards)
        self.env.step(action)
        for agent, total in self.env._cumulative_rewards.items():
            earned = total if agent == mover else total - before.get(agent, 0.0)
            gains[agent] = gains.get(agent, 0.0) + earned

    def _skip_done(self, gains: dict[Any, float]) -> None:
        """Steps those that are done with None, as PettingZoo wants, until one who can is to act; not at the end."""
        while not self._over() and self._done(self.env.agent_selection):
            agent, count = self.env.agent_selection, len(self.env.agents)
            self._advance(None, gains)
            if len(self.env.agents) >= count:
                raise Misfit(f"agent {agent!r} is done, but is still to act after it was stepped with None")


def _unwrap_guards(env: Any) -> Any:
    """The parallel form of a turn-based environment of theirs without the guards in between.

    They watch for calls in the wrong order and for actions outside of their space, which `_batches` does here, and take
    a third of the time of a step: every attribute is looked up through them.
    """
    if isinstance(env, aec_to_parallel_wrapper):
        inside: Any = env.aec_env
        while type(inside) in (OrderEnforcingWrapper, AssertOutOfBoundsWrapper):
            inside = inside.env
        env.aec_env = inside
    return env


def _function(name: str) -> Any:
    if "/" in name:
        return _find_registered(name)
    path, _, wanted = name.partition(":")
    module = import_object("pettingzoo", path)
    names = [wanted] if wanted else ["parallel_env", "env"]
    for function in names:
        maker = getattr(module, function, None)
        if callable(maker):
            check_maker(f"pettingzoo:{name}", maker, _KIND)
            return maker
    hint = nearest_function(module, names) if wanted or "." not in path else nearest(path)
    raise OptionError(f"pettingzoo:{name}: {path!r} has no function {' or '.join(names)}. {hint}".rstrip())


def _find_registered(name: str) -> Any:
    if not hasattr(pettingzoo, "parallel_registry"):
        raise OptionError(f"pettingzoo:{name}: names with a '/' need its registry: pip install 'pettingzoo>=1.27'")
    creator: Any = pettingzoo.make  # its overloads are for kinds that are written out
    for kind in ("parallel", "aec"):
        try:
            pettingzoo.spec(kind, name)
        except Exception:  # not in this registry, which has a kind of error for each reason
            continue
        return functools.partial(creator, kind, name)
    raise unknown_name("PettingZoo environment", name, pettingzoo.aec_registry)


def _has_masks(env: Any, roster: Roster) -> bool:
    """Whether there are action masks. Infos show it only after a reset."""
    choosing = {group: spaces for group, spaces in roster.spaces.items() if spaces.width}
    if any(spaces.carried for spaces in choosing.values()):
        return True
    with Place(roster.name).inside("reset"):
        said = env.reset(seed=0)
        infos = env.infos if roster.turns else said[1]
    seats = roster.seats
    return any(seats[agent][0] in choosing and "action_mask" in info for agent, info in infos.items() if agent in seats)


def _with_roms(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Atari games need ROMs, which `multi_agent_ale_py` comes without and `ale_py` with."""
    spec = importlib.util.find_spec("ale_py") if name.startswith(("pettingzoo.atari.", "atari/")) else None
    if spec is None or spec.origin is None or "auto_rom_install_path" in options:
        return options
    return {**options, "auto_rom_install_path": str(pathlib.Path(spec.origin).parent / "roms")}
