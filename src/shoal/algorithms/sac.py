"""Soft actor-critic, for continuous and for discrete actions. A critic of everybody's actions makes it MASAC or MAAC.

    V(s) = E[min Q(s, a) - α log π(a | s)] over a from π,    target = r + γ V⁻(s'),
    critic loss = (Q(s, a) - target)²,    actor loss = -V(s),
    temperature loss = log α · (H(π(· | s)) - target entropy)

Papers: Haarnoja et al. 2018 (SAC, with the learnt temperature), Christodoulou 2019 (discrete SAC), Iqbal and Sha 2019
(MAAC).

Continuous actions are a Gaussian, whose deviation depends on the view, squashed into the bounds; critics are shown
the action, and gradients flow through the sample. For discrete actions critics put out a value for each choice, and the
expectations are exact. The value of a MultiDiscrete action is the mean of the values of its parts, as in `DQN`, so its
expectation is found part by part, and is exact as well; its entropy is the sum over its parts.

The target entropy is a share of what is possible: of a discrete action, `target_entropy_share` times the entropy of
the uniform choice among those legal in the view; of a continuous one, minus its dimension times the share, with actions
in units of half their range.

`critic`: `own` (independent learners), `global` (MASAC: the critic sees the global state and all agents' actions), or
`attention` (MAAC). The actor loss supposes that the others act as their policies do now, as MAAC does.

Departures: actor and critic losses are taken at the same weights; the actions join the critic at its last hidden layer;
agents of a group share weights and a temperature; MAAC's counterfactual baseline is implied by the exact expectation,
whose gradient does not change with a constant added to all values; n counts own decisions, and the entropy of those in
between is left out of n-step targets; episodes that were cut short bootstrap from their real final view. See
`_off_policy` for agents who wait, and for memory.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from shoal.algorithms import q_learning as q
from shoal.algorithms._judged import Choice, Policy, weight_of
from shoal.algorithms.off_policy import LearnerState, OffPolicyLearner
from shoal.core.algorithm import LearnerSpec
from shoal.core.checks import check_floats
from shoal.core.spaces import ActionSpace, Box, Discrete, MultiDiscrete
from shoal.core.types import Observation, PyTree
from shoal.networks.critics import CriticKind, action_vector, parts
from shoal.ops.distributions import MASKED, distribution, num_parameters

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0


@dataclasses.dataclass(frozen=True)
class SAC(OffPolicyLearner):
    """Actors that stay as undecided as they can afford, led by twin critics."""

    name: ClassVar[str] = "sac"
    # Options without an effect unless the switch that they name is on.
    only_with: ClassVar[Mapping[str, str]] = {"target_entropy_share": "learn_temperature"}

    temperature: float = 0.2  # what entropy is worth; where it is learnt, at the beginning
    target_entropy_share: float = 0.5  # of the highest entropy; continuous: so many times minus the dimension
    learn_temperature: bool = True  # towards the target entropy; else it is fixed
    critic: CriticKind = "own"  # own view and action, global state and all actions too, or attention to the others

    def __post_init__(self):
        super().__post_init__()
        check_floats(self, temperature=(1e-6, None), target_entropy_share=(0.0, None))

    @property
    def kind(self) -> CriticKind:
        return self.critic

    @property
    def num_critics(self) -> int:
        return 2

    @property
    def slow_actors(self) -> bool:
        return False

    def actor_width(self, space: ActionSpace) -> int:
        return num_parameters(space)

    def values_every_choice(self, space: ActionSpace) -> bool:
        return not isinstance(space, Box)

    def others_now(self) -> bool:
        return True

    def initial_extra(self, hyper: dict[str, jax.Array], spec: LearnerSpec) -> PyTree:
        """Logarithms of the temperatures, one a group."""
        return {name: jnp.log(hyper["temperature"]) for name in spec.groups} if self.learn_temperature else {}

    def own_action(self, policy: Policy, parameters: jax.Array, legal: Any, key: jax.Array, explore: bool) -> jax.Array:
        """One agent's action: a sample if it is to `explore`, else the most likely (the mean, before squashing)."""
        chances = distribution(policy.space, bounded(policy.space, parameters), legal)
        action = chances.sample(key) if explore else chances.mode()
        return action.astype(policy.space.dtype) if isinstance(policy.space, Box) else action

    def choose(
        self, state: LearnerState, name: str, parameters: jax.Array, seen: Observation, key: jax.Array, ahead: bool
    ) -> Choice:
        """A sample; `log_prob` is that of the sample for a box, else those of every choice."""
        space = state.params[name].space
        keys = jax.random.split(key, parameters.shape[:3])
        legal = () if seen.legal is None else (seen.legal,)

        def one(key: jax.Array, parameters: jax.Array, *legal: jax.Array) -> tuple[jax.Array, jax.Array]:
            return distribution(space, bounded(space, parameters), *legal).sample_and_log_prob(key)

        action, log_prob = q.over(one, 3)(keys, parameters, *legal)
        if not isinstance(space, Box):
            logits = parameters if seen.legal is None else jnp.where(seen.legal, parameters, MASKED)
            log_prob = jnp.concatenate([jax.nn.log_softmax(part) for part in parts(space, logits)], axis=-1)
        return Choice(action_vector(space, action), parameters, log_prob)

    def worth(
        self, state: LearnerState, name: str, values: jax.Array, choice: Choice, seen: Observation, ahead: bool
    ) -> jax.Array:
        """The soft value: what the lower critic expects, and the entropy's worth to those who may act."""
        space = state.params[name].space
        lower = jnp.min(values, axis=0)
        expected = lower[..., 0] if isinstance(space, Box) else expectation(space, lower, choice.log_prob)
        bonus = self._temperature(state, name) * entropy(space, choice)
        return expected + bonus * weight_of(seen.active, bonus)

    def taken_value(
        self, name: str, values: jax.Array, action: jax.Array, choice: Choice, seen: Observation, space: ActionSpace
    ) -> jax.Array:
        """Values of what was done; of what is expected of the policy for those who may not act."""
        if isinstance(space, Box):
            return values[..., 0]
        chosen = [
            jnp.sum(a * b, axis=-1)
            for a, b in zip(parts(space, values), parts(space, action_vector(space, action)), strict=True)
        ]
        taken = sum(chosen[1:], chosen[0]) / len(chosen)
        if seen.active is None:
            return taken
        return jnp.where(seen.active, taken, expectation(space, values, lax.stop_gradient(choice.log_prob)))

    def extra_loss(
        self, state: LearnerState, extra: PyTree, choices: dict[str, Choice], seen: dict[str, Observation]
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Moves the temperatures: down where the policy is less decided than it is meant to be."""
        loss, entropies, temperatures = jnp.float32(0.0), [], []
        for name, choice in choices.items():
            space = state.params[name].space
            now = lax.stop_gradient(entropy(space, choice))
            weight = weight_of(seen[name].active, now)
            count = jnp.maximum(jnp.sum(weight), 1.0)
            gap = now - target_entropy(space, seen[name].legal, state.hyper["target_entropy_share"])
            if self.learn_temperature:
                loss += extra[name] * jnp.sum(weight * gap) / count
            entropies.append(jnp.sum(weight * now) / count)
            temperatures.append(self._temperature(state, name))
        means = {"entropy": entropies, "temperature": temperatures}
        return loss, {name: jnp.mean(jnp.stack(values)) for name, values in means.items()}

    def _temperature(self, state: LearnerState, name: str) -> jax.Array:
        return jnp.exp(state.extra[name]) if self.learn_temperature else state.hyper["temperature"]


def bounded(space: ActionSpace, parameters: jax.Array) -> jax.Array:
    """Parameters of the policy: of a box, log standard deviations are kept within limits."""
    if not isinstance(space, Box):
        return parameters
    mean, log_std = jnp.split(parameters, 2, axis=-1)
    return jnp.concatenate([mean, jnp.clip(log_std, LOG_STD_MIN, LOG_STD_MAX)], axis=-1)


def expectation(space: Discrete | MultiDiscrete, values: jax.Array, log_prob: jax.Array) -> jax.Array:
    """What is expected of a policy, `[...]`, from values of every choice `[..., num_logits]`: the mean over parts."""
    chances = parts(space, jnp.exp(log_prob))
    means = [jnp.sum(p * v, axis=-1) for p, v in zip(chances, parts(space, values), strict=True)]
    return sum(means[1:], means[0]) / len(means)


def entropy(space: ActionSpace, choice: Choice) -> jax.Array:
    """Entropies `[...]`: of a box a sample of them, for discrete actions exact."""
    if isinstance(space, Box):
        return -choice.log_prob
    return -jnp.sum(jnp.exp(choice.log_prob) * choice.log_prob, axis=-1)


def target_entropy(space: ActionSpace, legal: jax.Array | None, share: jax.Array) -> jax.Array:
    """The entropy that a policy is meant to have; with masks, by view."""
    if isinstance(space, Box):
        return math.prod(space.shape) * (math.log(0.5 * (space.high - space.low)) - share)
    allowed = jnp.ones(num_parameters(space)) if legal is None else legal.astype(jnp.float32)
    counts = [jnp.sum(part, axis=-1) for part in parts(space, allowed)]
    return share * sum(jnp.log(jnp.maximum(count, 1.0)) for count in counts)
