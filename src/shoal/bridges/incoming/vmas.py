"""VMAS scenarios as host environments: one vectorised VMAS environment is a whole batch.

    make("balance", n_agents=4)                            # continuous actions, 100 steps per episode
    make("simple_spread", continuous_actions=False, max_steps=25)

Agents with equal views and actions make up a group, named after them. Forces are numbers from -1 to 1, scaled to what
an agent can do. Options that are not listed at `Options` go to the scenario. Where an episode ends, that copy alone
restarts, one call of VMAS per copy; when all end at once, as at a time limit, all are reset in one go. With
`device="cuda"` views and rewards stay on the GPU and go to JAX through DLPack; actions and flags pass through the host.
"""

import dataclasses
import re
import warnings
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from shoal.bridges.incoming._batches import Gate, check_count
from shoal.core.errors import OptionError, require, require_positive, unknown_name
from shoal.core.host import HostEnvProxy, HostTimestep, Observations
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
        clash = self.continuous_actions and self.multidiscrete_actions
        require(not clash, "vmas", "multidiscrete_actions", True, "False unless continuous_actions is")


def make(name: str, **options: Any) -> HostEnvProxy:
    """A VMAS scenario as a world for the host runner."""
    own = {field.name for field in dataclasses.fields(Options)}
    ours = Options(**{option: value for option, value in options.items() if option in own})
    theirs = {option: value for option, value in options.items() if option not in own}
    seats = _seats_of(_open(name, 1, ours, theirs))
    groups = {group: Group(len(members.agents), members.space, members.view) for group, members in seats.items()}
    players: dict[str, tuple[Seat, ...]] = {
        group: tuple((group, i) for i in range(spec.size)) for group, spec in groups.items()
    }
    title = f"vmas:{name}"

    def opened(count: int) -> VmasBatch:
        check_count(title, count)
        return VmasBatch(_open(name, count, ours, theirs), Gate(title, groups, count))

    return HostEnvProxy(title, groups, players, opened)


class VmasBatch:
    """A `HostBatch` that is one VMAS environment."""

    def __init__(self, env: Any, gate: Gate):
        self.env, self.gate = env, gate
        self.seats = _seats_of(env)

    @property
    def num_envs(self) -> int:
        return self.env.num_envs

    def reset(self, seed: int) -> Observations:
        self.gate.begin(seed)
        return self._seen(self.env.reset(seed=seed))

    def step(self, actions: Mapping[str, np.ndarray]) -> HostTimestep:
        views, rewards, terminated, truncated, _ = self.env.step(self._dealt(self.gate.taken(actions)))
        final = self._seen(views)
        reward = {
            name: _hand_over(torch.stack([rewards[i] for i in seat.agents], 1).float())
            for name, seat in self.seats.items()
        }
        outcome = Outcome(reward, terminated.cpu().numpy(), truncated.cpu().numpy())
        ended = terminated | truncated
        return HostTimestep(self._seen(self._reset_ended(ended, views)) if bool(ended.any()) else final, final, outcome)

    def close(self) -> None:
        """Nothing more is possible; else there is nothing to close: VMAS opens a window only when it draws."""
        self.gate.closed = True

    def _dealt(self, actions: Mapping[str, np.ndarray]) -> list[Any]:
        """Actions `[E, n, ...]` by group as one tensor `[E, size]` an agent, in VMAS's order."""
        dealt: list[Any] = [None] * self.env.n_agents
        for name, seat in self.seats.items():
            together = torch.tensor(np.asarray(actions[name]), device=self.env.device)
            together = together.reshape(self.num_envs, len(seat.agents), -1)
            if seat.range is not None:
                middle, half = torch.tensor(seat.range, device=self.env.device)
                together = middle + half * together.clamp(-1.0, 1.0)
            for i, agent in enumerate(seat.agents):
                dealt[agent] = together[:, i].clone()
        return dealt

    def _reset_ended(self, ended: torch.Tensor, views: list[Any]) -> list[Any]:
        """What is seen now: in the copies that ended, the beginning of a new episode; in the others, the same."""
        if bool(ended.all()):
            return self.env.reset()
        for copy in ended.nonzero()[:, 0].tolist():
            self.env.reset_at(copy, return_observations=False)
        after = self.env.get_from_scenario(True, False, False, False)[0]
        return [_where(ended, new, old) for new, old in zip(after, views, strict=True)]

    def _seen(self, views: list[Any]) -> Observations:
        return {name: Observation(_stack([views[i] for i in seat.agents])) for name, seat in self.seats.items()}


@dataclasses.dataclass(frozen=True)
class Members:
    """Agents of a group, by their place in VMAS. range: middle and half width of each entry of a box, `[2, size]`."""

    agents: tuple[int, ...]
    space: ActionSpace
    view: Any
    range: np.ndarray | None = None


def _open(name: str, count: int, options: Options, scenario: Mapping[str, Any]) -> Any:
    known = sorted({*vmas.scenarios, *vmas.debug_scenarios, *vmas.mpe_scenarios})
    if name not in known:
        raise unknown_name("VMAS scenario", name, known)
    chosen = dataclasses.asdict(options)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Scenario kwargs")  # options that the scenario does not know
            return vmas.make_env(name, num_envs=count, terminated_truncated=True, **chosen, **scenario)
    except UserWarning as error:
        text = str(error).removesuffix("This will turn into an error in future versions.").strip()
        own = ", ".join(field.name for field in dataclasses.fields(Options))
        raise OptionError(f"vmas:{name}: {text} Options for every scenario: {own}; others are its own.") from error
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
    for (space, view, bounds), members in alike:  # bounds: None unless actions are continuous
        name = re.sub(r"[_ ]*\d+$", "", env.agents[members[0]].name) or "agent"
        name = name if name not in groups else env.agents[members[0]].name
        low, high = np.array(bounds or ((), ()), np.float32)
        reach = None if bounds is None else np.stack([(high + low) / 2, (high - low) / 2])
        groups[name] = Members(tuple(members), space, view, reach)
    return groups


def _spaces(env: Any, agent: Any, view: Any) -> tuple[ActionSpace, Any, tuple[tuple[float, ...], ...] | None]:
    """(action space, boxes of the view, lows and highs of a box action) of one agent; can be compared."""
    boxes = _boxes(view)
    space = env.get_agent_action_space(agent)
    if env.continuous_actions:
        bounds = tuple(space.low.tolist()), tuple(space.high.tolist())
        return Box(tuple(space.shape), -1.0, 1.0), boxes, bounds
    if env.multidiscrete_actions:
        return MultiDiscrete(tuple(int(n) for n in space.nvec)), boxes, None
    return Discrete(int(space.n)), boxes, None


def _boxes(view: Any) -> Any:
    if isinstance(view, Mapping):
        return {name: _boxes(part) for name, part in view.items()}
    return Box(tuple(view.shape[1:]), dtype=str(view.dtype).removeprefix("torch."))


def _stack(views: list[Any]) -> Any:
    if isinstance(views[0], Mapping):
        return {name: _stack([view[name] for view in views]) for name in views[0]}
    return _hand_over(torch.stack(views, 1))


def _where(mask: torch.Tensor, new: Any, old: Any) -> Any:
    if isinstance(new, Mapping):
        return {name: _where(mask, part, old[name]) for name, part in new.items()}
    return torch.where(mask.reshape(-1, *[1] * (new.ndim - 1)), new, old)


def _hand_over(tensor: torch.Tensor) -> Any:
    """The tensor's own memory: as numpy, or on a GPU that JAX uses too, as a JAX array."""
    if tensor.is_cuda and jax.default_backend() == "gpu":
        return jax.dlpack.from_dlpack(tensor)
    return tensor.cpu().numpy()
