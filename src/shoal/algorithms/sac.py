"""Soft actor-critic, for continuous and for discrete actions. A critic of all agents' actions makes it MASAC or MAAC.

    V(s) = E[min Q(s, a) - α log π(a | s)] over a from π,    target = r + γ V⁻(s'),
    critic loss = (Q(s, a) - target)²,    actor loss = -V(s),
    temperature loss = log α · (H(π(· | s)) - target entropy)

Papers: Haarnoja et al. 2018 (SAC), Christodoulou 2019 (discrete SAC), Iqbal and Sha 2019 (MAAC).

Continuous actions are a squashed Gaussian, whose deviation depends on the observation; critics take the action as
input, and gradients flow through the sample. For discrete actions critics output a value per choice; expectations are
exact, part by part: the value of a MultiDiscrete action is the mean of those of its parts, its entropy their sum.

The target entropy is a share of the maximum: `target_entropy_share` times the entropy of the uniform choice among
legal actions; for continuous ones, minus their dimension times the share, in units of half their range.

`critic`: `own` (independent learners), `global` (MASAC: the critic sees the global state and all agents' actions), or
`attention` (MAAC). As in MAAC, the actor loss assumes that the others follow their current policies.

Departures: actor and critic losses are taken at the same weights; actions enter the critic at its last hidden layer;
agents of a group share weights and a temperature; MAAC's counterfactual baseline is implied by the exact expectation,
whose gradient does not change with a constant added to all values; n counts own decisions, and n-step targets omit the
entropy of those in between; truncated episodes bootstrap from their real final observation. See `off_policy` for
inactive agents, for memory, and for the shape letters.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from shoal.algorithms.off_policy import LearnerState, OffPolicy, Policy, Weights, taken_actions
from shoal.algorithms.replay import ByGroup, Metrics, Observations, Steps, split_windows, take_rows
from shoal.batching.agents import as_weight, keep_where, mean_where, over_axes
from shoal.core.algorithm import LearnerSpec
from shoal.core.checks import check_floats
from shoal.core.spaces import ActionSpace, Box, action_vector, split_parts
from shoal.core.types import Observation
from shoal.networks.q_network import expected_value
from shoal.ops.distributions import MASKED, distribution, num_parameters

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0


@dataclasses.dataclass(frozen=True)
class SAC(OffPolicy):
    """Maximum-entropy actors trained against the minimum of two critics."""

    name: ClassVar[str] = "sac"
    only_with: ClassVar[Mapping[str, str]] = {"target_entropy_share": "learn_temperature"}
    values_every_choice: ClassVar[bool] = True

    temperature: float = 0.2  # weight of the entropy; its initial value if it is learnt
    target_entropy_share: float = 0.5  # target entropy as a share of the maximum; continuous: times minus the dimension
    learn_temperature: bool = True  # adapt the temperature to the target entropy; otherwise it is fixed

    def __post_init__(self):
        super().__post_init__()
        check_floats(self, temperature=(1e-6, None), target_entropy_share=(0.0, None))

    def actor_width(self, space: ActionSpace) -> int:
        return num_parameters(space)

    def init(self, key: jax.Array, spec: LearnerSpec) -> LearnerState:
        """Fresh actors, critics and, if they are learnt, temperatures: log α by group."""
        log_alpha = {name: jnp.log(self.hyper(spec)["temperature"]) for name in spec.groups}
        return self.init_state(key, spec, log_alpha if self.learn_temperature else {})

    def choose_action(
        self, policy: Policy, parameters: jax.Array, legal: jax.Array | None, key: jax.Array, explore: bool
    ) -> jax.Array:
        """One agent's action: a sample if `explore`, else the most likely (the mean, before squashing)."""
        actions = distribution(policy.space, clip_log_std(policy.space, parameters), legal)
        action = actions.sample(key) if explore else actions.mode()
        return action.astype(policy.space.dtype) if isinstance(policy.space, Box) else action

    def loss(self, weights: Weights, state: LearnerState, windows: Steps, key: jax.Array) -> tuple[jax.Array, Metrics]:
        """The losses of critics, actors and temperatures, each with gradients for its own weights only; and metrics."""
        for_target, for_actor = jax.random.split(key)
        actor, features, next_actor, next_features = self.forward(weights, state, windows)
        target = lax.stop_gradient(self.target(state, windows, next_actor, next_features, for_target))
        rows = take_rows(windows, self.burn_in, self.burn_in + self.sequence)
        seen, spaces, alpha = rows.observation, state.spaces, self.alpha(state)
        action, log_prob = self.sample_actions(spaces, actor, seen, for_actor)

        taken = taken_actions(spaces, rows)
        q = state.q_values(weights["critic"], features, seen, taken, taken)
        q = {g: value_of_taken(spaces[g], q[g], taken[g], log_prob[g], seen[g]) for g in spaces}
        errors = {g: jnp.sum((q[g] - target[g]) ** 2, axis=0) for g in spaces}
        critic_loss = mean_where(errors, {g: seen[g].present for g in spaces})

        critic, features, others = lax.stop_gradient((weights["critic"], features, action))
        now = state.q_values(critic, features, seen, action, others)
        value = {g: soft_value(spaces[g], now[g], log_prob[g], alpha[g], seen[g]) for g in spaces}
        actor_loss = -mean_where(value, {g: seen[g].active for g in spaces})

        temperature_loss, metrics = self.temperature_loss(weights["extra"], spaces, log_prob, seen)
        level = {"q": [jnp.mean(q[g]) for g in spaces], "temperature": [alpha[g] for g in spaces]}
        metrics |= {name: jnp.mean(jnp.stack(values)) for name, values in level.items()}
        metrics |= {"critic_loss": critic_loss, "actor_loss": actor_loss}
        return critic_loss + actor_loss + temperature_loss, metrics

    def target(self, state: LearnerState, windows: Steps, actor: ByGroup, features: ByGroup, key: jax.Array) -> ByGroup:
        """Targets r + γ V⁻(s') of the critics, `[S, B, n]`. actor, features: outputs of the networks for s'."""
        rows, following = split_windows(windows, self.burn_in)
        seen, spaces, alpha = following.observation, state.spaces, self.alpha(state)
        action, log_prob = self.sample_actions(spaces, actor, seen, key)
        q = state.q_values(state.target["critic"], features, seen, action, action)
        value = {g: soft_value(spaces[g], q[g], log_prob[g], alpha[g], seen[g]) for g in spaces}
        return self.returns(rows, seen, value)

    def sample_actions(
        self, spaces: dict[str, ActionSpace], parameters: ByGroup, seen: Observations, key: jax.Array
    ) -> tuple[ByGroup, ByGroup]:
        """Actions from π (of a box reparameterised) as critics see them; and log π of these, or of every choice."""
        actions, log_probs = {}, {}
        for i, (name, space) in enumerate(spaces.items()):
            legal, numbers = seen[name].legal, parameters[name]

            def one(key, numbers, legal, space=space):
                return distribution(space, clip_log_std(space, numbers), legal).sample_and_log_prob(key)

            keys = jax.random.split(jax.random.fold_in(key, i), numbers.shape[:3])
            action, log_probs[name] = over_axes(one, 3)(keys, numbers, legal)
            actions[name] = keep_where(seen[name].active, action_vector(space, action))
            if not isinstance(space, Box):
                logits = numbers if legal is None else jnp.where(legal, numbers, MASKED)
                parts = [jax.nn.log_softmax(part) for part in split_parts(space, logits)]
                log_probs[name] = jnp.concatenate(parts, axis=-1)
        return actions, log_probs

    def temperature_loss(
        self, log_alpha: ByGroup, spaces: dict[str, ActionSpace], log_prob: ByGroup, seen: Observations
    ) -> tuple[jax.Array, Metrics]:
        """Log α (H(π) - target entropy), summed over groups: α falls where the entropy exceeds its target."""
        loss, entropies = jnp.float32(0.0), []
        for name, space in spaces.items():
            now = lax.stop_gradient(entropy(space, log_prob[name]))
            weight = as_weight(seen[name].active, now)
            count = jnp.maximum(jnp.sum(weight), 1.0)
            gap = now - target_entropy(space, seen[name].legal, self.target_entropy_share)
            if self.learn_temperature:
                loss += log_alpha[name] * jnp.sum(weight * gap) / count
            entropies.append(jnp.sum(weight * now) / count)
        return loss, {"entropy": jnp.mean(jnp.stack(entropies))}

    def alpha(self, state: LearnerState) -> ByGroup:
        """The temperatures."""
        fixed = jnp.asarray(self.temperature)
        return jax.tree.map(jnp.exp, state.extra) if self.learn_temperature else dict.fromkeys(state.params, fixed)


def soft_value(space: ActionSpace, q: jax.Array, log_prob: jax.Array, alpha: jax.Array, seen: Observation) -> jax.Array:
    """V(s) = E[min Q(s, a) - α log π(a | s)], `[S, B, n]`, by all critics; inactive agents have no entropy."""
    lower = jnp.min(q, axis=0)
    expected = lower[..., 0] if isinstance(space, Box) else expected_value(space, lower, jnp.exp(log_prob))
    bonus = alpha * entropy(space, log_prob)
    return expected + bonus * as_weight(seen.active, bonus)


def value_of_taken(
    space: ActionSpace, q: jax.Array, taken: jax.Array, log_prob: jax.Array, seen: Observation
) -> jax.Array:
    """Q(s, a) of the actions taken, `[K, S, B, n]`; the policy's expectation for inactive agents."""
    if isinstance(space, Box):
        return q[..., 0]
    if seen.active is not None:
        taken = jnp.where(seen.active[..., None], taken, jnp.exp(lax.stop_gradient(log_prob)))
    return expected_value(space, q, taken)


def entropy(space: ActionSpace, log_prob: jax.Array) -> jax.Array:
    """H(π): estimated by a sample for a box, exact for discrete actions."""
    return -log_prob if isinstance(space, Box) else -jnp.sum(jnp.exp(log_prob) * log_prob, axis=-1)


def target_entropy(space: ActionSpace, legal: jax.Array | None, share: jax.Array | float) -> jax.Array:
    """The target entropy of a policy; with action masks, per observation."""
    if isinstance(space, Box):
        return jnp.asarray(math.prod(space.shape) * (math.log(0.5 * (space.high - space.low)) - share))
    allowed = jnp.ones(num_parameters(space)) if legal is None else legal.astype(jnp.float32)
    counts = [jnp.sum(part, axis=-1) for part in split_parts(space, allowed)]
    return share * jnp.asarray(sum(jnp.log(jnp.maximum(count, 1.0)) for count in counts))


def clip_log_std(space: ActionSpace, parameters: jax.Array) -> jax.Array:
    """Parameters of a policy; of a box, log standard deviations are kept within limits."""
    if not isinstance(space, Box):
        return parameters
    mean, log_std = jnp.split(parameters, 2, axis=-1)
    return jnp.concatenate([mean, jnp.clip(log_std, LOG_STD_MIN, LOG_STD_MAX)], axis=-1)
