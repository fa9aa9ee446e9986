"""Gymnasium environments as worlds: `gymnasium:CartPole-v1`.

The one agent is the group `agent`. Names are those that `gymnasium.make` takes, `my.module:Thing-v0` (which imports
`my.module` first) among them. An `action_mask` in the observation or the info says what is legal. Options go to
`gymnasium.make`, except these:

- check: whether observations are compared with their spaces, for the first 1,000 steps of each copy.
- vectorisation_mode: `sync`, `async` or `vector_entry_point` steps the copies as one Gymnasium `VectorEnv` in place of
  one after the other (see `_gymnasium_vector`); `vector_kwargs` goes to it.
"""

import functools
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from shoal.bridges.incoming._batches import check_count, stand_in_for
from shoal.bridges.incoming._conversion import make_observation, make_outcome, map_view, to_reward
from shoal.bridges.incoming._gymnasium_vector import AGENT, Vector, has_masks
from shoal.bridges.incoming._reports import CHECKED_STEPS, Place, call_maker, import_object
from shoal.bridges.incoming._spaces import Spaces, same_space
from shoal.core.env import Env
from shoal.core.errors import OptionError, UnknownNameError, require
from shoal.core.host import HostEnvProxy, Observations
from shoal.core.processes import away_from_current_folder
from shoal.core.types import Group, Outcome, Seat

_MODES = ("sync", "async", "vector_entry_point")
_OURS = {
    "id": "name the environment after `gymnasium:`",
    "num_envs": "give --num-envs",
    "vectorization_mode": f"give vectorisation_mode, one of {', '.join(_MODES)}",
    "wrappers": "wrap it where it is registered",
    "disable_env_checker": "give check, true or false",
}
"""Options of Gymnasium's that are not the user's to give, and what to do in their place."""


def make(name: str, *, check: bool = True, vectorisation_mode: str | None = None, **options: Any) -> Env:
    """A proxy for the Gymnasium environment `name`."""
    owner = f"gymnasium:{name}"
    require(isinstance(check, bool), owner, "check", check, "true or false")
    known = vectorisation_mode in (None, *_MODES)
    require(known, owner, "vectorisation_mode", vectorisation_mode, f"one of {', '.join(_MODES)}")
    for option in _OURS.keys() & options.keys():
        raise OptionError(f"{owner}: {option} is not an option here: {_OURS[option]}")
    kwargs = options.get("vector_kwargs", {})
    require(isinstance(kwargs, dict), owner, "vector_kwargs", kwargs, "an object of options by name")
    if ":" in name:
        import_object("gymnasium", name.partition(":")[0])
    if vectorisation_mode is not None:
        return _vector(name, check, vectorisation_mode, options)
    if "vector_kwargs" in options:
        raise OptionError(
            f"{owner}: vector_kwargs go to a vector environment: give vectorisation_mode too, {' or '.join(_MODES[:2])}"
        )
    # Their checker does what `check` does, but on every step.
    creator = functools.partial(gymnasium.make, name, disable_env_checker=True)

    def build(masked: bool | None) -> "Single":
        return Single(owner, _make(owner, creator, options), check, masked)

    first = build(None)
    first.close()
    return stand_in_for(first, lambda masked=first.masked: build(masked))


class Single:
    """A Gymnasium environment as a `HostEnv`. `masked` is found out, by beginning an episode, if it is None."""

    def __init__(self, name: str, env: Any, check: bool, masked: bool | None = None):
        self.name, self.env, self.check = name, env, check
        self.spaces = Spaces.of(env.observation_space, env.action_space, name)
        self.groups: Mapping[str, Group] = {AGENT: Group(1, self.spaces.acts.space, self.spaces.view.observation)}
        self.players: dict[str, tuple[Seat, ...]] = {AGENT: ((AGENT, 0),)}
        self.place = Place(name)
        self.masked, self.leaving = has_masks(env, self.spaces, self.place) if masked is None else masked, False

    def reset(self, seed: int | None) -> Observations:
        self.place.begin()
        with self.place.inside("reset"):
            return self._seen(*self.env.reset(seed=seed))

    def step(self, actions: Mapping[str, np.ndarray]) -> tuple[Observations, Outcome]:
        self.place.advance()
        with self.place.inside("step"):
            value, reward, terminated, truncated, info = self.env.step(self.spaces.acts.decode(actions[AGENT][0]))
            paid = np.array([to_reward(reward)], np.float32)
            return self._seen(value, info), make_outcome({AGENT: paid}, terminated, truncated)

    def close(self) -> None:
        self.env.close()

    def _seen(self, value: Any, info: Any) -> Observations:
        check = self.check and self.place.total <= CHECKED_STEPS
        if check:
            same_space("observation", self.spaces.observation, self.env.observation_space)
            same_space("action", self.spaces.action, self.env.action_space)
        view = map_view(lambda leaf: leaf[None], self.spaces.see(value, check=check))
        return {AGENT: make_observation(view, self.spaces.legal(value, info)[None] if self.masked else None)}


def _vector(name: str, check: bool, mode: str, options: dict[str, Any]) -> Env:
    owner = f"gymnasium:{name}"
    own = mode == "vector_entry_point"
    creator = functools.partial(gymnasium.make_vec, name, **({} if own else {"disable_env_checker": True}))
    # Forked processes may hang when JAX has threads, as it has here.
    defaults = {"autoreset_mode": AutoresetMode.SAME_STEP} | ({"context": "spawn"} if mode == "async" else {})
    kwargs = {} if own else defaults | options.pop("vector_kwargs", {})

    def build(count: int, mode: str, kwargs: dict[str, Any], masked: bool | None = None) -> Vector:
        wanted = functools.partial(creator, num_envs=count, vectorization_mode=mode, vector_kwargs=kwargs)
        with away_from_current_folder():  # there may be processes
            made = _make(owner, wanted, options)
        return Vector(owner, made, check, not own, masked, workers=mode == "async")

    def opened(count: int) -> Vector:
        check_count(owner, count)
        return build(count, mode, kwargs, masked)

    # A look at the spaces needs no processes, and so none of their settings.
    first = build(1, mode, {}) if own else build(1, "sync", {"autoreset_mode": kwargs["autoreset_mode"]})
    group = Group(1, first.spaces.acts.space, first.spaces.view.observation)
    masked, leaving = first.masked, first.leaving
    first.close()
    seats = {AGENT: ((AGENT, 0),)}
    return HostEnvProxy(owner, {AGENT: group}, seats, opened, masked, leaving)


def _make(owner: str, function: Any, options: dict[str, Any]) -> Any:
    try:
        return call_maker(owner, function, options)
    except Exception as error:
        if isinstance(error.__cause__, gymnasium.error.UnregisteredEnv):
            raise UnknownNameError(f"{owner}: {error.__cause__}") from error.__cause__
        raise
