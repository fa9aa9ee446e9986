"""Deep deterministic policy gradients. Options make it TD3; a critic of all agents' actions makes it MADDPG.

    target = r + γ Q⁻(s', μ⁻(s')),    critic loss = (Q(s, a) - target)²,    actor loss = -Q(s, μ(s))

Papers: Lillicrap et al. 2016 (DDPG), Fujimoto et al. 2018 (TD3), Lowe et al. 2017 (MADDPG), Jang et al. 2017
(Gumbel-softmax). TD3 is `twin=True` (the lower of two critics in the target), `policy_delay=2` (actors and slow
networks move in every second gradient step) and `target_noise=0.2`, cut off at `target_noise_clip`. Noise is in units
of half the range of an action; exploration adds plain Gaussian noise, `exploration_noise`.

Discrete and MultiDiscrete actions: the actor outputs logits, restricted by the action mask. Exploring means sampling
from them, and choosing any legal action with the probability `exploration_noise`. In the losses an action is a one-hot
sample, through which gradients flow as through softmax((logits + g) / τ) with Gumbel noise g, τ being
`gumbel_temperature` (straight-through). `logit_penalty` times the mean square of the legal logits is added to the actor
loss: these gradients vanish once the softmax saturates, rightly or wrongly.

With `critic="global"` the critic sees the global state and the actions of all agents of the learner, whatever their
groups. In targets these are what the slow actors choose; in the actor loss the own action is the actor's and the
others' are from the replay.

Departures: actor and critic losses are taken at the same weights; the actions enter the critic at its last hidden
layer; agents of a group share weights, the global critic gets the identity of the agent whose action it values; n
counts own decisions; truncated episodes bootstrap from their real final observation. See `off_policy` for inactive
agents, for memory, and for the shape letters.
"""

import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jax import lax

from shoal.algorithms.off_policy import LearnerState, OffPolicy, Policy, Weights, taken_actions
from shoal.algorithms.replay import ByGroup, Metrics, Observations, Steps, split_windows, take_rows
from shoal.batching.agents import as_weight, keep_where, mean_where
from shoal.core import trees
from shoal.core.algorithm import LearnerSpec
from shoal.core.checks import check_floats, check_whole
from shoal.core.errors import require
from shoal.core.spaces import ActionSpace, Box, action_width, split_parts
from shoal.core.types import Observation, PyTree
from shoal.ops.distributions import MASKED, distribution, random_action


@dataclasses.dataclass(frozen=True)
class DDPG(OffPolicy):
    """Deterministic actors that follow the gradients of critics of their actions."""

    name: ClassVar[str] = "ddpg"
    has_target_actor: ClassVar[bool] = True

    exploration_noise: float = 0.1  # deviation, in units of half the range; discrete: share of random choices
    target_noise: float = 0.0  # deviation of the noise on actions in targets; TD3: 0.2
    target_noise_clip: float = 0.5  # bound that the noise in targets is clipped to
    gumbel_temperature: float = 1.0  # temperature of the relaxation of discrete actions
    logit_penalty: float = 1e-3  # weight of the mean square of logits
    twin: bool = False  # two critics, whose minimum is used in targets (TD3)
    policy_delay: int = 1  # gradient steps of the critics per step of the actors; TD3: 2
    critic: Literal["own", "global"] = "own"  # what critics see: own view and action, or state and all actions too

    def __post_init__(self):
        super().__post_init__()
        positive = (0.0, None)
        check_floats(self, exploration_noise=positive, target_noise=positive, target_noise_clip=positive)
        check_floats(self, gumbel_temperature=(1e-3, None), logit_penalty=positive)
        check_whole(self, policy_delay=1)

    @property
    def num_critics(self) -> int:
        return 2 if self.twin else 1

    @property
    def noise(self) -> float:
        return self.exploration_noise

    def actor_width(self, space: ActionSpace) -> int:
        return action_width(space)

    def init(self, key: jax.Array, spec: LearnerSpec) -> LearnerState:
        """Fresh actors and critics; refuses noise that has no meaning for the actions."""
        for name, group in spec.groups.items():
            if isinstance(self.exploration_noise, int | float) and not isinstance(group.action, Box):
                allowed = f"at most 1 for the discrete actions of {name!r}: it is the share of random ones"
                require(self.exploration_noise <= 1, "DDPG", "exploration_noise", self.exploration_noise, allowed)
        return self.init_state(key, spec)

    def choose_action(
        self, policy: Policy, parameters: jax.Array, legal: jax.Array | None, key: jax.Array, explore: bool
    ) -> jax.Array:
        """One agent's action; if `explore`, with noise or, if discrete, sampled and occasionally uniform."""
        space = policy.space
        if isinstance(space, Box):
            unit = jnp.tanh(parameters)
            if explore:
                unit = jnp.clip(unit + policy.noise * jax.random.normal(key, unit.shape), -1.0, 1.0)
            action = jnp.clip(space.low + 0.5 * (space.high - space.low) * (unit + 1.0), space.low, space.high)
            return action.reshape(space.shape).astype(space.dtype)
        actions = distribution(space, parameters, legal)
        if not explore:
            return actions.mode()
        for_sample, whether, which = jax.random.split(key, 3)
        other = random_action(space, legal, which)
        return jnp.where(jax.random.uniform(whether) < policy.noise, other, actions.sample(for_sample))

    def apply(self, state: LearnerState, gradients: PyTree) -> LearnerState:
        """One step of Adam; the slow networks follow. They and the actors move every `policy_delay`-th step (TD3)."""
        self = self.traced(state.hyper)
        new, delay = super().apply(state, gradients), self.policy_delay
        if delay == 1:
            return new
        due = state.steps % delay == delay - 1
        moved, stays = ((one.weights["actor"], one.optimiser["actor"]) for one in (new, state))
        actor, optimiser = trees.where(due, moved, stays)
        weights = new.weights | {"actor": actor}
        target = trees.polyak_update(state.target, self.slow_parts(weights), jnp.where(due, self.target_rate, 0.0))
        return new.with_weights(weights).replace(target=target, optimiser=new.optimiser | {"actor": optimiser})

    def loss(self, weights: Weights, state: LearnerState, windows: Steps, key: jax.Array) -> tuple[jax.Array, Metrics]:
        """The losses of critics and actors, each with gradients for its own weights only; and metrics."""
        for_target, for_actor = jax.random.split(key)
        actor, features, next_actor, next_features = self.forward(weights, state, windows)
        target = lax.stop_gradient(self.target(state, windows, next_actor, next_features, for_target))
        rows = take_rows(windows, self.burn_in, self.burn_in + self.sequence)
        seen, spaces = rows.observation, state.spaces

        taken = taken_actions(spaces, rows)
        q = state.q_values(weights["critic"], features, seen, taken, taken)
        q = {g: q[g][..., 0] for g in spaces}
        errors = {g: jnp.sum((q[g] - target[g]) ** 2, axis=0) for g in spaces}
        critic_loss = mean_where(errors, {g: seen[g].present for g in spaces})

        action = self.actions(spaces, actor, seen, for_actor)
        critic, features = lax.stop_gradient((weights["critic"], features))
        now = state.q_values(critic, features, seen, action, taken)
        actor_loss = -mean_where({g: now[g][0, ..., 0] for g in spaces}, {g: seen[g].active for g in spaces})
        penalty = sum(mean_square(actor[g], seen[g]) for g in spaces if not isinstance(spaces[g], Box))

        level = jnp.mean(jnp.stack([jnp.mean(q[g]) for g in spaces]))
        metrics = {"critic_loss": critic_loss, "actor_loss": actor_loss, "q": level}
        return critic_loss + actor_loss + self.logit_penalty * penalty, metrics

    def target(self, state: LearnerState, windows: Steps, actor: ByGroup, features: ByGroup, key: jax.Array) -> ByGroup:
        """Targets r + γ min Q⁻(s', μ⁻(s') + noise), `[S, B, n]`. actor, features: outputs of the networks for s'."""
        rows, following = split_windows(windows, self.burn_in)
        seen, spaces = following.observation, state.spaces
        action = self.actions(spaces, actor, seen, key, smooth=True)
        q = state.q_values(state.target["critic"], features, seen, action, action)
        return self.returns(rows, seen, {g: jnp.min(q[g][..., 0], axis=0) for g in spaces})

    def actions(
        self,
        spaces: dict[str, ActionSpace],
        parameters: ByGroup,
        seen: Observations,
        key: jax.Array,
        smooth: bool = False,
    ) -> ByGroup:
        """Actions μ(s) as critics see them; of discrete ones a one-hot sample, through which gradients flow.

        smooth: with TD3's noise on continuous ones.
        """
        actions = {}
        for i, (name, space) in enumerate(spaces.items()):
            own, numbers, legal = jax.random.fold_in(key, i), parameters[name], seen[name].legal
            if isinstance(space, Box):
                action = jnp.tanh(numbers)
                if smooth:
                    noise, limit = self.target_noise * jax.random.normal(own, action.shape), self.target_noise_clip
                    action = jnp.clip(action + jnp.clip(noise, -limit, limit), -1.0, 1.0)
            else:
                logits = numbers if legal is None else jnp.where(legal, numbers, MASKED)
                noisy = split_parts(space, logits + jax.random.gumbel(own, logits.shape))
                action = jnp.concatenate([straight_through(part, self.gumbel_temperature) for part in noisy], axis=-1)
            actions[name] = keep_where(seen[name].active, action)
        return actions


def mean_square(logits: jax.Array, seen: Observation) -> jax.Array:
    """The mean square of the logits of legal choices of active agents."""
    weight = as_weight(seen.active, logits[..., 0])[..., None] * as_weight(seen.legal, logits)
    return jnp.sum(weight * logits**2) / jnp.maximum(jnp.sum(weight), 1.0)


def straight_through(logits: jax.Array, temperature: jax.Array | float) -> jax.Array:
    """The one-hot maximum of `[..., choices]`, with the gradient of a softmax."""
    soft = jax.nn.softmax(logits / temperature, axis=-1)
    hard = jax.nn.one_hot(jnp.argmax(logits, axis=-1), logits.shape[-1])
    return soft + lax.stop_gradient(hard - soft)
