"""dm_env environments as worlds: `dm_env:my.module:make_catch`, a function that makes one (see `_makers`), with the
options.

The one agent is the group `agent`. The last step of an episode terminated it if its discount is 0, and else cut it
short. Discounts between those of other steps than the last cannot be handed on: they must be 1.

dm_env has no seeds. A function with a parameter `seed` is called again with each seed that is asked for; without one,
episodes cannot be repeated. With `check`, observations are compared with their specs for the first 1,000 steps.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import dm_env
import numpy as np
from dm_env import specs

from shoal.bridges.incoming._batches import stand_in_for
from shoal.bridges.incoming._conversion import make_observation, make_outcome, map_view, to_reward
from shoal.bridges.incoming._makers import Kind, check_maker
from shoal.bridges.incoming._parts import (
    WIDEST,
    ActionDecoder,
    Choices,
    Misfit,
    Numbers,
    Path,
    Tree,
    ViewEncoder,
    place_of,
    seen_or_chosen,
)
from shoal.bridges.incoming._reports import CHECKED_STEPS, Place, call_maker, import_object
from shoal.core.env import Env
from shoal.core.errors import OptionError, require
from shoal.core.host import Observations
from shoal.core.types import Group, Outcome, Seat

_AGENT = "agent"
_PARTS = ("reset", "step", "observation_spec", "action_spec")
_KIND = Kind((dm_env.Environment,), _PARTS, ("dm_env", "dm_control"), "a dm_env.Environment")
_SUPPORTED = "Array, BoundedArray, DiscreteArray, and dicts, tuples and lists of these"


def make(name: str, *, check: bool = True, **options: Any) -> Env:
    """A proxy for the dm_env environment that the function `name`, `module:function`, makes."""
    owner = f"dm_env:{name}"
    require(isinstance(check, bool), owner, "check", check, "true or false")
    path, _, wanted = name.partition(":")
    require(bool(path and wanted), owner, "the name", name, "module:function, such as my.module:make_catch")
    function = getattr(import_object("dm_env", path), wanted, None)
    if not callable(function):
        raise OptionError(f"{owner}: the module {path!r} has no function {wanted!r}")
    check_maker(owner, function, _KIND)
    seeded = "seed" in inspect.signature(function).parameters and "seed" not in options

    def build(seed: int | None) -> dm_env.Environment:
        given = {**options, "seed": seed} if seeded and seed is not None else options
        env = call_maker(owner, function, given)
        if not hasattr(env, "observation_spec") or not hasattr(env, "action_spec"):
            raise OptionError(f"{owner}: it made {type(env).__name__}, which is not a dm_env.Environment")
        return env

    first = DmHostEnv(owner, build, seeded, check)
    first.close()
    return stand_in_for(first, lambda: DmHostEnv(owner, build, seeded, check))


class DmHostEnv:
    """A dm_env environment as a `HostEnv`."""

    def __init__(self, name: str, build: Callable[[int | None], dm_env.Environment], seeded: bool, check: bool):
        self.name, self.build, self.seeded, self.check = name, build, seeded, check
        self.env = build(None)
        self.observation_spec, self.action_spec = self.env.observation_spec(), self.env.action_spec()
        self.view = ViewEncoder.of(_tree(self.observation_spec, name, "observation", ()), name)
        self.acts = ActionDecoder.of(_tree(self.action_spec, name, "action", ()), name)
        self.groups: Mapping[str, Group] = {_AGENT: Group(1, self.acts.space, self.view.observation)}
        self.players: dict[str, tuple[Seat, ...]] = {_AGENT: ((_AGENT, 0),)}
        self.masked = self.leaving = False
        self.place = Place(name)

    def reset(self, seed: int | None) -> Observations:
        self.place.begin()
        with self.place.inside("reset"):
            if seed is not None and self.seeded:
                self.env.close()
                self.env = self.build(seed)
            return self._seen(self.env.reset().observation)

    def step(self, actions: Mapping[str, np.ndarray]) -> tuple[Observations, Outcome]:
        self.place.advance()
        with self.place.inside("step"):
            told = self.env.step(self.acts.decode(actions[_AGENT][0]))
            discount = 1.0 if told.discount is None else to_reward(told.discount, "the discount")
            if told.first():
                raise Misfit("a step of the type FIRST came out of `step`: its last one was not said to be the LAST")
            if self.check and told.mid() and discount != 1.0:
                raise Misfit(f"the discount of a step within the episode is {discount:g}: it cannot be handed on")
            reward = np.array([to_reward(told.reward)], np.float32)
            terminated = told.last() and discount == 0.0
            ends = terminated, told.last() and not terminated
            return self._seen(told.observation), make_outcome({_AGENT: reward}, *ends)

    def close(self) -> None:
        self.env.close()

    def _seen(self, value: Any) -> Observations:
        check = self.check and self.place.total <= CHECKED_STEPS
        if check and self.env.observation_spec() != self.observation_spec:
            now = self.env.observation_spec()
            raise Misfit(f"the observation spec was {self.observation_spec} and is {now} now: specs must not change")
        return {_AGENT: make_observation(map_view(lambda leaf: leaf[None], self.view.encode(value, check=check)))}


def _tree(spec: Any, owner: str, role: str, path: Path) -> Tree:
    match spec:
        case specs.DiscreteArray():
            if spec.num_values <= WIDEST:
                return Choices(path, np.array(spec.num_values), np.array(0), np.dtype(spec.dtype))
            raise _unmappable(spec, owner, role, path, f"it has more than {WIDEST} choices")
        case specs.Array() if np.dtype(spec.dtype).kind in "biuf":
            return _numbers(spec, owner, role, path)
        case Mapping():
            return {key: _tree(part, owner, role, (*path, key)) for key, part in spec.items()}
        case tuple() | list():
            return tuple(_tree(part, owner, role, (*path, i)) for i, part in enumerate(spec))
    raise _unmappable(spec, owner, role, path, "it has no numbers")


def _numbers(spec: specs.Array, owner: str, role: str, path: Path) -> Tree:
    bounds = (spec.minimum, spec.maximum) if isinstance(spec, specs.BoundedArray) else (-np.inf, np.inf)
    low, high = (np.array(np.broadcast_to(bound, spec.shape)) for bound in bounds)
    refusal = functools.partial(_unmappable, spec, owner, role, path)
    return seen_or_chosen(Numbers(path, low, high, np.dtype(spec.dtype)), role, refusal)


def _unmappable(spec: Any, owner: str, role: str, path: Path, why: str) -> OptionError:
    return OptionError(f"{owner}: {role} spec{place_of(path)} is {spec}: {why}; supported: {_SUPPORTED}")
