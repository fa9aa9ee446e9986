"""JaxMARL environments as worlds: `jaxmarl:MPE_simple_spread_v3`. They are JAX, so they run in the fused runner.

**Groups.** Agents whose names differ only in their number, and whose spaces are the same, are a group with that name
(`adversary`, `agent`); each group is a player. Views have the shapes that are really handed out, where they differ from
the declared ones; they are float32.

**Ends.** Auto-reset is ours: theirs (`step`) is left out, `step_env` is called. JaxMARL does not tell a time limit from
the end of a game: an episode is truncated if it ends when its clock (`step` or `time` of its state) has reached the
environment's `max_steps`, else terminated. An agent that is done before the others is no longer active; it is still
present, for many environments pay the whole team.

**Legal actions** are those of `get_avail_actions` (`get_legal_moves` in Hanabi), in environments that have it.
"""

import dataclasses
import re
import warnings
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from shoal.bridges.incoming._jax_worlds import silence

with silence():  # it prints which packages it lacks
    import jaxmarl
    from jaxmarl.registration import registered_envs

from shoal.bridges.incoming._jax_worlds import (
    Actions,
    WrappedState,
    gym_like_actions,
    some_legal,
    strengthen_dtypes,
    tidy,
)
from shoal.core.env import Env
from shoal.core.errors import OptionError, unknown_name
from shoal.core.spaces import Box, num_logits
from shoal.core.types import Group, Observation, Outcome, PyTree

_MASKS = ("get_avail_actions", "get_legal_moves")
_CLOCKS = ("step", "time", "state.step", "state.time", "env_state.step", "env_state.time")


@dataclasses.dataclass(frozen=True)
class JaxMarl(Env):
    """An environment of JaxMARL. members: the agents of each group. actions: of one agent of each group."""

    id: str
    options: tuple[tuple[str, Any], ...]
    env: Any = dataclasses.field(compare=False)  # the id and the options say all that the rest does
    members: Mapping[str, tuple[Any, ...]] = dataclasses.field(compare=False)
    actions: Mapping[str, Actions] = dataclasses.field(compare=False)
    masks: str  # the method that tells legal actions, or nothing

    @property
    def groups(self) -> dict[str, Group]:
        return {name: Group(len(agents), self.actions[name].space) for name, agents in self.members.items()}

    def reset(self, key: jax.Array, params: PyTree) -> WrappedState:
        observation, state = self.env.reset(key)
        everyone = {name: jnp.ones(len(agents), bool) for name, agents in self.members.items()}
        return WrappedState(strengthen_dtypes(state), self._views(observation), self._legal(state), everyone)

    def step(
        self, key: jax.Array, state: WrappedState, actions: dict[str, jax.Array], params: PyTree
    ) -> tuple[WrappedState, Outcome]:
        chosen = {
            agent: self.actions[name].theirs(actions[name][i])
            for name, agents in self.members.items()
            for i, agent in enumerate(agents)
        }
        observation, inner, rewards, dones, _ = self.env.step_env(key, state.inner, chosen)
        reward = {
            name: jnp.stack([jnp.asarray(rewards[agent], jnp.float32).reshape(()) for agent in agents])
            for name, agents in self.members.items()
        }
        active = {
            name: jnp.stack([~jnp.asarray(dones.get(agent, False), bool) for agent in agents])
            for name, agents in self.members.items()
        }
        over, late = jnp.asarray(dones["__all__"], bool), self._out_of_time(inner)
        following = WrappedState(
            strengthen_dtypes(inner, state.inner), self._views(observation), self._legal(inner), active
        )
        return following, Outcome(reward, over & ~late, over & late)

    def observe(self, state: WrappedState, params: PyTree) -> dict[str, Observation]:
        legal, active = state.legal or {}, state.active or {}
        return {name: Observation(view, legal.get(name), active[name]) for name, view in state.view.items()}

    def _views(self, observation: Mapping[Any, PyTree]) -> dict[str, PyTree]:
        return {
            name: jax.tree.map(lambda *rows: jnp.stack(rows), *[tidy(observation[agent]) for agent in agents])
            for name, agents in self.members.items()
        }

    def _legal(self, state: PyTree) -> dict[str, jax.Array] | None:
        if not self.masks:
            return None
        available = getattr(self.env, self.masks)(state)
        return {
            name: some_legal(jnp.stack([available[agent] for agent in agents])) for name, agents in self.members.items()
        }

    def _out_of_time(self, state: PyTree) -> jax.Array:
        limit, clock = getattr(self.env, "max_steps", None), _clock(state)
        if limit is None or clock is None:
            return jnp.bool_(False)
        return jnp.asarray(clock >= limit, bool).reshape(())


def make(name: str, **options: Any) -> Env:
    """An environment of JaxMARL by its id; options are arguments of its constructor."""
    title = f"jaxmarl:{name}"
    if name not in registered_envs:
        raise OptionError(f"{title}: {unknown_name('JaxMARL environment', name, registered_envs)}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # it recommends other environments
            env = jaxmarl.make(name, **options)
    except Exception as error:  # a constructor may need other packages, and checks what it likes
        raise OptionError(f"{title}: JaxMARL cannot make it: {type(error).__name__}: {error}") from error
    observation, state = jax.eval_shape(env.reset, jax.eval_shape(lambda: jax.random.key(0)))
    members, actions = _group(title, env, observation)
    return JaxMarl(title, tuple(sorted(options.items())), env, members, actions, _masks(env, state, members, actions))


def _group(title: str, env: Any, observation: Any) -> tuple[dict[str, tuple], dict[str, Actions]]:
    """Agents by group, in order; those that share a name but not their spaces are kept apart."""
    if not isinstance(observation, Mapping) or not set(env.agents) <= set(observation):
        raise OptionError(
            f"{title}: its reset gives no observation for each of its agents {list(env.agents)}; it does not keep "
            "JaxMARL's own contract"
        )
    members: dict[str, list] = {}
    alike: dict[str, Any] = {}
    actions: dict[str, Actions] = {}
    for agent in env.agents:
        action = gym_like_actions(title, f"action_space({agent!r})", env.action_space(agent))
        shapes = jax.eval_shape(tidy, observation[agent])
        kind = (action.space, str(jax.tree.map(lambda leaf: leaf.shape, shapes)))
        stem = re.sub(r"_?\d+$", "", str(agent)) or "agent"
        name = stem
        while alike.setdefault(name, kind) != kind:
            number = int(name[len(stem) + 1 :] or 1)
            name = f"{stem}_{number + 1}"
        members.setdefault(name, []).append(agent)
        actions[name] = action
    return {name: tuple(agents) for name, agents in members.items()}, actions


def _masks(env: Any, state: Any, members: Mapping[str, tuple], actions: Mapping[str, Actions]) -> str:
    """Which method tells the legal actions of all agents; empty if none does."""
    if any(isinstance(actions[name].space, Box) for name in members):
        return ""
    for method in _MASKS:
        try:
            masks = jax.eval_shape(getattr(env, method), state)
        except (NotImplementedError, AttributeError):
            continue
        fits = [
            masks[agent].shape == (num_logits(actions[name].space),)  # pyright: ignore[reportArgumentType]
            for name, agents in members.items()
            for agent in agents
        ]
        return method if all(fits) else ""
    return ""


def _clock(state: Any) -> Any:
    """The steps of the episode so far, or None if the state does not say."""
    for path in _CLOCKS:
        found = state
        for part in path.split("."):
            found = getattr(found, part, None)
        if found is not None:
            return found
    return None
