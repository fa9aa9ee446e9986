"""A Shoal world as a `dm_env.Environment`.

    env = make_env("control/cartpole", seed=0)
    timestep = env.step(action)

With one agent, observations, actions and rewards are those of the agent. With several they are dicts by group whose
arrays have a leading axis, the group's agents: `timestep.reward["agent"][2]`. A discount is 0 where the episode
terminated or an agent is no longer present, and 1 elsewhere, also where it was cut short. Where the world says which
actions are legal, an observation is `{"observation": ..., "action_mask": ...}`, the mask in int8.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from shoal.bridges.outgoing._single import SingleEnv, SingleStep
from shoal.bridges.outgoing._worlds import check_action, check_seed, make_env_of, missing_package_error
from shoal.core.env import Env
from shoal.core.errors import OptionError
from shoal.core.spaces import ActionSpace, Box, Discrete, MultiDiscrete, num_logits
from shoal.core.types import Group, Observation, PyTree

try:
    import dm_env
    from dm_env import specs
except ImportError as error:
    raise missing_package_error("dm_env") from error


def make_env(world: str | Env, *, seed: int | None = None, **options: Any) -> "ShoalDmEnv":
    """One copy of a world; `options` are the world's own. A seed makes its episodes repeatable."""
    env, name = make_env_of("make_env", world, options)
    return ShoalDmEnv(env, name, seed)


class ShoalDmEnv(dm_env.Environment):
    """One copy; see the module."""

    def __init__(self, env: Env, name: str, seed: int | None = None):
        self._one = SingleEnv(env, name)
        check_seed(name, seed)
        self._seed = seed
        self._groups = self._one.spec.groups
        self._alone = sum(group.size for group in self._groups.values()) == 1

    def reset(self) -> dm_env.TimeStep:
        seen = self._one.reset(self._seed)
        self._seed = None  # the episodes after the first follow from it
        return dm_env.restart(self._sees(seen))

    def step(self, action: Any) -> dm_env.TimeStep:
        """One step; begins an episode, ignoring the action, where there is none."""
        if self._one.over:
            return self.reset()
        seen = self._one.step(self._actions(action))
        goes_on = 1.0 - float(seen.outcome.terminated)
        discounts = {name: _present(obs, self._groups[name]) * goes_on for name, obs in seen.observation.items()}
        return dm_env.TimeStep(
            step_type=dm_env.StepType.LAST if self._one.over else dm_env.StepType.MID,
            reward=self._own(seen.outcome.reward),
            discount=self._own({name: leaf.astype(np.float32) for name, leaf in discounts.items()}),
            observation=self._sees(seen),
        )

    def observation_spec(self) -> Any:
        seen = self._one.spec.observations
        return self._specs(lambda name, group, lead: _view_spec(group, seen[name], lead))

    def action_spec(self) -> Any:
        return self._specs(lambda _, group, lead: _action_spec(group.action, lead))

    def reward_spec(self) -> Any:
        return self._specs(lambda name, _, lead: specs.Array(lead, np.float32, f"{name} reward"))

    def discount_spec(self) -> Any:
        return self._specs(lambda name, _, lead: specs.BoundedArray(lead, np.float32, 0.0, 1.0, f"{name} discount"))

    def _specs(self, make: Callable[[str, Group, tuple[int, ...]], Any]) -> Any:
        """Of the only agent, or by group."""
        if self._alone:
            return next(make(name, group, ()) for name, group in self._groups.items())
        return {name: make(name, group, (group.size,)) for name, group in self._groups.items()}

    def _own(self, by_group: dict[str, PyTree]) -> Any:
        """Of the only agent, or by group."""
        if self._alone:
            return jax.tree.map(lambda leaf: leaf[0], next(iter(by_group.values())))
        return by_group

    def _sees(self, seen: SingleStep) -> Any:
        masked = {
            name: obs.view if obs.legal is None else {"observation": obs.view, "action_mask": obs.legal}
            for name, obs in seen.observation.items()
        }
        return self._own(masked)

    def _actions(self, action: Any) -> dict[str, np.ndarray]:
        owner = self._one.name
        if self._alone:
            name, group = next(iter(self._groups.items()))
            return {name: check_action(owner, "the agent", group.action, action)[None]}
        if not isinstance(action, Mapping) or set(action) != set(self._groups):
            raise OptionError(f"{owner}: actions must be a dict with the keys {sorted(self._groups)}, got {action!r}")
        return {
            name: check_action(owner, f"group {name}", group.action, action[name], (group.size,))
            for name, group in self._groups.items()
        }


def _present(obs: Observation, group: Group) -> np.ndarray:
    return np.ones(group.size) if obs.present is None else np.asarray(obs.present)


def _view_spec(group: Group, obs: Observation, lead: tuple[int, ...]) -> Any:
    view = jax.tree.map(lambda box: _box(box, lead), group.observation, is_leaf=lambda leaf: isinstance(leaf, Box))
    if obs.legal is None or isinstance(group.action, Box):
        return view
    mask = specs.BoundedArray((*lead, num_logits(group.action)), np.int8, 0, 1, "action_mask")
    return {"observation": view, "action_mask": mask}


def _action_spec(space: ActionSpace, lead: tuple[int, ...]) -> specs.Array:
    match space:
        case Discrete():
            if not lead:
                return specs.DiscreteArray(space.n, np.int32, "action")
            return specs.BoundedArray(lead, np.int32, 0, space.n - 1, "action")
        case MultiDiscrete():
            most = np.array(space.sizes) - 1
            return specs.BoundedArray((*lead, len(most)), np.int32, 0, most, "action")
        case Box():
            return specs.BoundedArray((*lead, *space.shape), space.dtype, space.low, space.high, "action")


def _box(box: Box, lead: tuple[int, ...]) -> specs.Array:
    shape = (*lead, *box.shape)
    if box.dtype == "bool":  # shown as numbers
        return specs.BoundedArray(shape, np.int8, 0, 1)
    if np.isinf(box.low) and np.isinf(box.high):
        return specs.Array(shape, box.dtype)
    return specs.BoundedArray(shape, box.dtype, box.low, box.high)
