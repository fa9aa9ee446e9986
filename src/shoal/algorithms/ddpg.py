"""Deep deterministic policy gradients. Options make it TD3; a critic of everybody's actions makes it MADDPG.

    target = r + γ Q⁻(s', μ⁻(s')),    critic loss = (Q(s, a) - target)²,    actor loss = -Q(s, μ(s))

Papers: Lillicrap et al. 2016 (DDPG), Fujimoto et al. 2018 (TD3), Lowe et al. 2017 (MADDPG), Jang et al. 2017
(Gumbel-softmax). TD3 is `twin=True` (the lower of two critics in the target), `policy_delay=2` (actors and slow
networks move in every second gradient step) and `target_noise=0.2`, cut off at `target_noise_clip`. Noise is in units
of half the range of an action; exploration adds plain Gaussian noise, `exploration_noise`.

Discrete and MultiDiscrete actions: the actor puts out logits, masked by what is legal. Exploring means sampling from
them, and choosing any legal action with the probability `exploration_noise`. In the losses an action is a one-hot
sample, through which gradients flow as through softmax((logits + g) / τ) with Gumbel noise g, τ being
`gumbel_temperature` (straight-through). `logit_penalty` times the mean square of the legal logits is added to the
actor loss: these gradients vanish once the softmax is sure, right or wrong.

With `critic="global"` the critic sees the global state and the actions of all agents of the learner, whatever their
groups. In targets these are what the slow actors choose; in the actor loss the own action is the actor's and the
others' are from the replay.

Departures: actor and critic losses are taken at the same weights; the actions join the critic at its last hidden layer;
agents of a group share weights, the global critic being told which of them it judges; n counts own decisions; episodes
that were cut short bootstrap from their real final view. See `_off_policy` for agents who wait, and for memory.
"""

import dataclasses
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from shoal.algorithms._judged import Choice, Policy, any_action, weight_of
from shoal.algorithms.off_policy import LearnerState, OffPolicyLearner
from shoal.core.algorithm import LearnerSpec
from shoal.core.checks import check_floats, check_whole
from shoal.core.errors import require
from shoal.core.spaces import ActionSpace, Box
from shoal.core.types import Observation, PyTree
from shoal.networks.critics import CriticKind, action_width, parts
from shoal.ops.distributions import MASKED, distribution


@dataclasses.dataclass(frozen=True)
class DDPG(OffPolicyLearner):
    """Deterministic actors, led by critics of their actions."""

    name: ClassVar[str] = "ddpg"

    exploration_noise: float = 0.1  # deviation, in units of half the range; discrete: share of random choices
    target_noise: float = 0.0  # the same for the actions in targets; TD3: 0.2
    target_noise_clip: float = 0.5  # and where it is cut off
    gumbel_temperature: float = 1.0  # of the relaxation of discrete actions
    logit_penalty: float = 1e-3  # weight of the mean square of logits
    twin: bool = False  # two critics, the lower of which is believed in targets (TD3)
    policy_delay: int = 1  # gradient steps of the critics for each one of the actors; TD3: 2
    critic: Literal["own", "global"] = "own"  # what critics see: own view and action, or state and all actions too

    def __post_init__(self):
        super().__post_init__()
        positive = (0.0, None)
        check_floats(self, exploration_noise=positive, target_noise=positive, target_noise_clip=positive)
        check_floats(self, gumbel_temperature=(1e-3, None), logit_penalty=positive)
        check_whole(self, policy_delay=1)

    def init(self, key: jax.Array, spec: LearnerSpec) -> LearnerState:
        """Fresh actors and critics; refuses noise that has no meaning for the actions."""
        for name, group in spec.groups.items():
            if isinstance(self.exploration_noise, int | float) and not isinstance(group.action, Box):
                allowed = f"at most 1 for the discrete actions of {name!r}: it is the share of random ones"
                require(self.exploration_noise <= 1, "DDPG", "exploration_noise", self.exploration_noise, allowed)
        return super().init(key, spec)

    @property
    def kind(self) -> CriticKind:
        return self.critic

    @property
    def num_critics(self) -> int:
        return 2 if self.twin else 1

    @property
    def slow_actors(self) -> bool:
        return True

    def actor_width(self, space: ActionSpace) -> int:
        return action_width(space)

    def actor_due(self, state: LearnerState) -> jax.Array | bool:
        return True if self.policy_delay == 1 else state.steps % self.policy_delay == self.policy_delay - 1

    def own_action(self, policy: Policy, parameters: jax.Array, legal: Any, key: jax.Array, explore: bool) -> jax.Array:
        """One agent's action; with noise, or sampled, if it is to `explore`."""
        space = policy.space
        if not isinstance(space, Box):
            return self._pick(policy, distribution(space, parameters, legal), legal, key, explore)
        unit = jnp.tanh(parameters)
        if explore:
            unit = jnp.clip(unit + policy.noise * jax.random.normal(key, unit.shape), -1.0, 1.0)
        action = jnp.clip(space.low + 0.5 * (space.high - space.low) * (unit + 1.0), space.low, space.high)
        return action.reshape(space.shape).astype(space.dtype)

    def _pick(self, policy: Policy, chances: Any, legal: Any, key: jax.Array, explore: bool) -> jax.Array:
        """A choice: the most likely; or a sample, and now and then any, if it is to `explore`."""
        if not explore:
            return chances.mode()
        for_sample, whether, which = jax.random.split(key, 3)
        other = any_action(policy.space, legal, which)
        return jnp.where(jax.random.uniform(whether) < policy.noise, other, chances.sample(for_sample))

    def choose(
        self, state: LearnerState, name: str, parameters: jax.Array, seen: Observation, key: jax.Array, ahead: bool
    ) -> Choice:
        """What the actor does: deterministic, but for TD3's noise in targets; a one-hot sample of discrete actions."""
        space, hyper = state.params[name].space, state.hyper
        if not isinstance(space, Box):
            logits = parameters if seen.legal is None else jnp.where(seen.legal, parameters, MASKED)
            noisy = logits + jax.random.gumbel(key, logits.shape)
            one_hot = [straight_through(part, hyper["gumbel_temperature"]) for part in parts(space, noisy)]
            return Choice(jnp.concatenate(one_hot, axis=-1), parameters)
        unit = jnp.tanh(parameters)
        if ahead:
            noise = hyper["target_noise"] * jax.random.normal(key, unit.shape)
            limit = hyper["target_noise_clip"]
            unit = jnp.clip(unit + jnp.clip(noise, -limit, limit), -1.0, 1.0)
        return Choice(unit, parameters)

    def worth(
        self, state: LearnerState, name: str, values: jax.Array, choice: Choice, seen: Observation, ahead: bool
    ) -> jax.Array:
        """The lower of two critics in targets, the first of them for the actor."""
        return jnp.min(values[..., 0], axis=0) if ahead else values[0, ..., 0]

    def extra_loss(
        self, state: LearnerState, extra: PyTree, choices: dict[str, Choice], seen: dict[str, Observation]
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The penalty of large logits."""
        loss = jnp.float32(0.0)
        for name, choice in choices.items():
            if not isinstance(state.params[name].space, Box):
                weight = weight_of(seen[name].active, choice.parameters[..., 0])[..., None]
                weight = weight * weight_of(seen[name].legal, choice.parameters)
                loss += jnp.sum(weight * choice.parameters**2) / jnp.maximum(jnp.sum(weight), 1.0)
        return state.hyper["logit_penalty"] * loss, {}


def straight_through(logits: jax.Array, temperature: jax.Array) -> jax.Array:
    """The one-hot maximum of `[..., choices]`, with the gradient of a softmax."""
    soft = jax.nn.softmax(logits / temperature, axis=-1)
    hard = jax.nn.one_hot(jnp.argmax(logits, axis=-1), logits.shape[-1])
    return soft + jax.lax.stop_gradient(hard - soft)
