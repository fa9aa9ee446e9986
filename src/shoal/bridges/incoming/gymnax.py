"""gymnax environments as worlds: `gymnax:CartPole-v1`. They are JAX, so they run in the fused runner.

One group, `agent`, of one. Observations are float32; one that is a number out of n is one-hot. Their parameters that
are floats are the world's params, so they can be randomised; `make("CartPole-v1", gravity=5.0)` sets any parameter,
other options go to the environment's constructor. Auto-reset is ours: theirs (`step`) is left out, `step_env` and
`reset_env` are called. `is_truncated` (a time limit) gives `truncated`.
"""

import dataclasses
from typing import Any, ClassVar

import gymnax
import jax
import jax.numpy as jnp

from shoal.bridges.incoming._jax_worlds import Actions, WrappedState, gym_like_actions, strengthen_dtypes, tidy
from shoal.core.env import Env
from shoal.core.errors import OptionError, unknown_name
from shoal.core.types import Group, Observation, Outcome, PyTree

GROUP = "agent"


@dataclasses.dataclass(frozen=True)
class Gymnax(Env):
    """An environment of gymnax.

    settings: its EnvParams. actions: its action space. num_values: of an observation that is one discrete number.
    """

    id: str
    options: tuple[tuple[str, Any], ...]
    env: Any = dataclasses.field(compare=False)  # the id and the options say all that the rest does
    settings: Any = dataclasses.field(compare=False)
    actions: Actions = dataclasses.field(compare=False)
    num_values: int | None = None

    kind: ClassVar[str] = "cooperative"

    @property
    def groups(self) -> dict[str, Group]:
        return {GROUP: Group(1, self.actions.space)}

    def default_params(self) -> dict[str, jax.Array]:
        values = {field.name: getattr(self.settings, field.name) for field in dataclasses.fields(self.settings)}
        return {name: jnp.float32(value) for name, value in values.items() if isinstance(value, float)}

    def reset(self, key: jax.Array, params: dict[str, jax.Array]) -> WrappedState:
        observation, state = self.env.reset_env(key, self.settings.replace(**params))
        return WrappedState(strengthen_dtypes(state), self._view(observation))

    def step(
        self, key: jax.Array, state: WrappedState, actions: dict[str, jax.Array], params: dict[str, jax.Array]
    ) -> tuple[WrappedState, Outcome]:
        settings = self.settings.replace(**params)
        action = self.actions.theirs(actions[GROUP][0])
        observation, inner, reward, terminated, _ = self.env.step_env(key, state.inner, action, settings)
        truncated = jnp.asarray(self.env.is_truncated(inner, settings), bool)
        reward = jnp.asarray(reward, jnp.float32).reshape(1)
        outcome = Outcome({GROUP: reward}, jnp.asarray(terminated, bool), truncated)
        return WrappedState(strengthen_dtypes(inner, state.inner), self._view(observation)), outcome

    def observe(self, state: WrappedState, params: PyTree) -> dict[str, Observation]:
        return {GROUP: Observation(state.view[GROUP])}

    def _view(self, observation: PyTree) -> dict[str, PyTree]:
        if self.num_values is not None:
            observation = jax.nn.one_hot(observation, self.num_values)
        return {GROUP: jax.tree.map(lambda leaf: leaf[None], tidy(observation))}


def make(name: str, **options: Any) -> Env:
    """An environment of gymnax by its name; options are its parameters, or arguments of its constructor."""
    title = f"gymnax:{name}"
    known = gymnax.registered_envs
    if name not in known:
        raise OptionError(f"{title}: {unknown_name('gymnax environment', name, known)}")
    try:
        _, defaults = gymnax.make(name)
        fields = {field.name for field in dataclasses.fields(defaults)}
        env, settings = gymnax.make(name, **{key: value for key, value in options.items() if key not in fields})
        settings = settings.replace(**{key: value for key, value in options.items() if key in fields})
    except Exception as error:  # a constructor may download, read and check whatever it likes
        raise OptionError(f"{title}: gymnax cannot make it: {type(error).__name__}: {error}") from error
    actions = gym_like_actions(title, "its action space", env.action_space(settings))
    seen = env.observation_space(settings)
    num_values = int(seen.n) if type(seen).__name__ == "Discrete" else None
    return Gymnax(title, tuple(sorted(options.items())), env, settings, actions, num_values)
