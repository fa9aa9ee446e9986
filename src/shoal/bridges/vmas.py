"""VMAS scenarios as host environments: one vectorised VMAS environment is a whole batch.

    make("balance", n_agents=4)                            # continuous actions, 100 steps an episode
    make("simple_spread", continuous_actions=False, max_steps=25)

Agents with equal views and actions make up a group, named after them. Options that are not listed at `Options` go to the
scenario. Where an episode ends, that copy alone begins anew; when all end at once, which is what a time limit does, all
are reset in one go. On a GPU (`device="cuda"`) physics run there, and views come to the host once a step.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.core.errors import OptionError, require, require_positive
from shoal.core.host import Observations, StandIn, Told
from shoal.core.spaces import ActionSpace, Box, Discrete, MultiDiscrete
from shoal.core.types import Group, Observation, Outcome, Seat

try:
    import torch
    import vmas
except ImportError as error:
    raise OptionError(f"vmas: the package {error.name!r} is missing: pip install vmas torch") from error


@dataclasses.dataclass(frozen=True)
class Options:
    """What the bridge itself asks for."""

    max_steps: int = 100  # steps until an episode is cut short
    continuous_actions: bool = True  # forces, or a choice of directions
    multidiscrete_actions: bool = False  # choices of the parts of an action apart, if they are not continuous
    device: str = "cpu"  # where VMAS computes

    def __post_init__(self):
        require_positive("vmas", max_steps=self.max_steps)
        allowed = "False with continuous_actions"
        require(not (self.continuous_actions and self.multidiscrete_actions), "vmas", "multidiscrete_actions", True, allowed)


def make(name: str, **options: Any) -> StandIn:
    """A VMAS scenario as a world for the host runner."""
    own = {field.name for field in dataclasses.fields(Options)}
    ours = Options(**{option: value for option, value in options.items() if option in own})
    theirs = {option: value for option, value in options.items() if option not in own}
    seats = _seats_of(_open(name, 1, ours, theirs))
    groups = {group: Group(len(members.agents), members.space, members.view) for group, members in seats.items()}
    players: dict[str, tuple[Seat, ...]] = {
        group: tuple((group, i) for i in range(spec.size)) for group, spec in groups.items()
    }
    return StandIn(f"vmas:{name}", groups, players, lambda count: VmasBatch(_open(name, count, ours, theirs)))


class VmasBatch:
    """A `HostBatch` that is one VMAS environment."""

    def __init__(self, env: Any):
        self.env = env
        self.seats = _seats_of(env)

    @property
    def num_envs(self) -> int:
        return self.env.num_envs

    def reset(self, seed: int) -> Observations:
        return self._seen(self.env.reset(seed=seed))

    def step(self, actions: Mapping[str, np.ndarray]) -> Told:
        views, rewards, terminated, truncated, _ = self.env.step(self._dealt(actions))
        final = self._seen(views)
        reward = {
            name: _host(torch.stack([rewards[i] for i in seat.agents], 1)).astype(np.float32)
            for name, seat in self.seats.items()
        }
        outcome = Outcome(reward, _host(terminated), _host(truncated))
        return Told(self._renewed(outcome.terminated | outcome.truncated, final), final, outcome)

    def close(self) -> None:
        """There is nothing to close: VMAS opens a window only when it draws."""

    def _dealt(self, actions: Mapping[str, np.ndarray]) -> list[Any]:
        """Actions `[E, n, ...]` by group as one tensor `[E, size]` an agent, in VMAS's order."""
        dealt: list[Any] = [None] * self.env.n_agents
        for name, seat in self.seats.items():
            action = np.asarray(actions[name])
            if isinstance(seat.space, Box):
                action = np.clip(action, seat.space.low, seat.space.high) * seat.scale
            together = torch.tensor(action, device=self.env.device).reshape(self.num_envs, len(seat.agents), -1)
            for i, agent in enumerate(seat.agents):
                dealt[agent] = together[:, i].clone()
        return dealt

    def _renewed(self, ended: np.ndarray, final: Observations) -> Observations:
        """What is seen now: in the copies that ended, the beginning of a new episode."""
        if not ended.any():
            return final
        if ended.all():
            return self._seen(self.env.reset())
        for copy in np.flatnonzero(ended):
            self.env.reset_at(int(copy), return_observations=False)
        return self._seen(self.env.get_from_scenario(True, False, False, False)[0])

    def _seen(self, views: list[Any]) -> Observations:
        return {name: Observation(_stacked([views[i] for i in seat.agents])) for name, seat in self.seats.items()}


@dataclasses.dataclass(frozen=True)
class Members:
    """Agents of a group, by their place in VMAS. scale: what a box from -1 to 1 is multiplied by, entry by entry."""

    agents: tuple[int, ...]
    space: ActionSpace
    view: Any
    scale: np.ndarray | None = None


def _open(name: str, count: int, options: Options, scenario: Mapping[str, Any]) -> Any:
    known = sorted({*vmas.scenarios, *vmas.debug_scenarios, *vmas.mpe_scenarios})
    if name not in known:
        from shoal.core.errors import unknown_name

        raise unknown_name("VMAS scenario", name, known)
    chosen = dataclasses.asdict(options)
    try:
        return vmas.make_env(name, num_envs=count, terminated_truncated=True, **chosen, **scenario)
    except (TypeError, AssertionError, RuntimeError) as error:
        raise OptionError(f"vmas:{name}: {error}") from error


def _seats_of(env: Any) -> dict[str, Members]:
    """Agents with equal spaces, gathered into groups named after the first of each."""
    views = env.reset()
    alike: list[tuple[Any, list[int]]] = []
    for i, agent in enumerate(env.agents):
        own = _spaces(env, agent, views[i])
        found = next((members for described, members in alike if described == own), None)
        found.append(i) if found is not None else alike.append((own, [i]))
    groups: dict[str, Members] = {}
    for (space, view, bounds), members in alike:
        name = re.sub(r"[_ ]*\d+$", "", env.agents[members[0]].name) or "agent"
        name = name if name not in groups else env.agents[members[0]].name
        scale = None if bounds is None else np.array(bounds, np.float32)
        groups[name] = Members(tuple(members), space, view, scale)
    return groups


def _spaces(env: Any, agent: Any, view: Any) -> tuple[ActionSpace, Any, tuple[float, ...] | None]:
    """(action space, boxes of the view, bounds of a box action) of one agent; can be compared."""
    boxes = _boxes(view)
    space = env.get_agent_action_space(agent)
    if env.continuous_actions:
        bounds = tuple(float(bound) for bound in space.high)
        low = -1.0 if agent.silent or env.world.dim_c == 0 else 0.0
        del low
        return Box(tuple(space.shape), -1.0, 1.0), boxes, bounds
    if env.multidiscrete_actions:
        return MultiDiscrete(tuple(int(n) for n in space.nvec)), boxes, None
    return Discrete(int(space.n)), boxes, None


def _boxes(view: Any) -> Any:
    if isinstance(view, Mapping):
        return {name: _boxes(part) for name, part in view.items()}
    return Box(tuple(view.shape[1:]), dtype=str(view.dtype).removeprefix("torch."))


def _stacked(views: list[Any]) -> Any:
    if isinstance(views[0], Mapping):
        return {name: _stacked([view[name] for view in views]) for name in views[0]}
    return _host(torch.stack(views, 1))


def _host(tensor: Any) -> np.ndarray:
    return tensor.detach().cpu().numpy()
