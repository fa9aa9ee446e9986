"""Actor and critic for one agent: torsos, and heads for every action space.

The modules have no batch axes; the caller vmaps. Build one with `make_actor_critic`, draw its weights with
`init_weights`, then call `module.apply(weights, ..., method="actor")` and the like.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct

from shoal.batching.agents import over_samples
from shoal.core import trees
from shoal.core.errors import OptionError
from shoal.core.spaces import ActionSpace, Box
from shoal.core.types import Observation, PyTree
from shoal.networks.torsos import Network, Torso, initial_carry, layer_of
from shoal.ops.distributions import Distribution, distribution, num_parameters
from shoal.ops.kernels.choices import record_choices
from shoal.ops.mlp import fuse

ACTING_PARTS = ("actor_torso", "shared_torso", "policy_head")
"""Parts of an `ActorCritic` that its greedy play depends on; the deviation of continuous actions is for exploration."""
_ALIGNED = 4
"""Numbers of 32 bits that a GPU reads at once: a matrix whose rows begin at such places multiplies faster."""


class ActorCritic(nn.Module):
    """Policy and value of one agent.

    config: of the torsos. action: the space that the policy head describes a distribution over. uses_state: whether the
    critic gets the global state in addition to the agent's own view.

    `parameters` are those of `ops.distributions.distribution`. Memory is `()` for feed-forward networks, else a dict
    of carries: one for the actor and one for the critic, or a single one for a shared torso.
    """

    config: Network
    action: ActionSpace
    uses_state: bool = False

    def setup(self):
        if self.config.share_torso:
            self.shared_torso = Torso(self.config)
        else:
            self.actor_torso = Torso(self.config)
            self.critic_torso = Torso(self.config)
        is_box = isinstance(self.action, Box)
        width = num_parameters(self.action) // (2 if is_box else 1)  # for a box the head outputs the means only
        # Heads compute in float32 whatever the torso does: they are small, and their outputs are compared closely.
        self.policy_head = nn.Dense(width, kernel_init=nn.initializers.orthogonal(0.01), dtype=jnp.float32)
        self.value_head = nn.Dense(1, kernel_init=nn.initializers.orthogonal(1.0), dtype=jnp.float32)
        if is_box:
            self.log_std = self.param("log_std", nn.initializers.zeros, (width,))

    def __call__(self, view: PyTree, state: PyTree, memory: PyTree) -> tuple[jax.Array, jax.Array, PyTree]:
        """One step: (parameters of the policy, value, memory after it)."""
        if fused := self._fuse(view, state):
            return *fused, memory
        if self.config.share_torso:
            features, memory = self._step(self.shared_torso, "shared", view, memory)
            return *self._policy_and_value(features), memory
        parameters, memory = self.actor(view, memory)
        value, memory = self.critic(view, state, memory)
        return parameters, value, memory

    def actor(self, view: PyTree, memory: PyTree) -> tuple[jax.Array, PyTree]:
        """The policy alone: (parameters, memory with the actor's carry updated)."""
        torso, name = (self.shared_torso, "shared") if self.config.share_torso else (self.actor_torso, "actor")
        if fused := fuse([torso.tower(view, [self.policy_head])], self.config.activation, self.config.dtype):
            return self._complete(fused[0]), memory
        features, memory = self._step(torso, name, view, memory)
        return self._policy(features), memory

    def critic(self, view: PyTree, state: PyTree, memory: PyTree) -> tuple[jax.Array, PyTree]:
        """The value alone: (value, memory with the critic's carry updated).

        With a shared torso, actor and critic both start from the memory before the step: do not chain them.
        """
        torso, name = (self.shared_torso, "shared") if self.config.share_torso else (self.critic_torso, "critic")
        seen = self._seen_by_critic(view, state)
        if fused := fuse([torso.tower(seen, [self.value_head])], self.config.activation, self.config.dtype):
            return fused[0][0], memory
        features, memory = self._step(torso, name, seen, memory)
        return self._value(features), memory

    def unroll(
        self, view: PyTree, state: PyTree, memory: PyTree, first: jax.Array, active: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array, PyTree]:
        """`T` steps in a row: (parameters `[T, ...]`, values `[T]`, memory after them).

        view, state: `[T, ...]`. memory: before the first step. The memory is reset before steps that are `first` and
        kept over those that are not `active` (None: all are); only the recurrent cell runs step by step.
        """
        carries = memory or {"shared": (), "actor": (), "critic": ()}
        if self.config.share_torso:
            features, carry = self.shared_torso.unroll(view, carries["shared"], first, active)
            return *self._policy_and_value(features), memory and {"shared": carry}
        seen = self._seen_by_critic(view, state)
        policy_features, actor = self.actor_torso.unroll(view, carries["actor"], first, active)
        value_features, critic = self.critic_torso.unroll(seen, carries["critic"], first, active)
        after = memory and {"actor": actor, "critic": critic}
        return self._policy(policy_features), self._value(value_features), after

    @nn.nowrap
    def initial_memory(self) -> PyTree:
        """One agent's memory at the start of an episode. Needs no weights: call it on the module itself."""
        if not self.config.has_memory:
            return ()
        names = ("shared",) if self.config.share_torso else ("actor", "critic")
        return {name: initial_carry(self.config) for name in names}

    def _step(self, torso: Torso, name: str, seen: PyTree, memory: PyTree) -> tuple[jax.Array, PyTree]:
        if not memory:
            return torso(seen, ())[0], memory
        features, carry = torso(seen, memory[name])
        return features, {**memory, name: carry}

    def _seen_by_critic(self, view: PyTree, state: PyTree) -> PyTree:
        return (state, view) if self.uses_state else view

    def _fuse(self, view: PyTree, state: PyTree) -> tuple[jax.Array, jax.Array] | None:
        """Policy and value by one kernel, where there is one."""
        if self.config.share_torso:
            towers = [self.shared_torso.tower(view, [self.policy_head, self.value_head])]
        else:
            seen = self._seen_by_critic(view, state)
            towers = [
                self.actor_torso.tower(view, [self.policy_head]),
                self.critic_torso.tower(seen, [self.value_head]),
            ]
        fused = fuse(towers, self.config.activation, self.config.dtype)
        if fused is None:
            return None
        both = jnp.concatenate(fused)
        return self._complete(both[:-1]), both[-1]

    def _policy_and_value(self, features: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Both heads on the same features: on an accelerator by one product, of a width that suits it."""
        if self.is_initializing() or jax.default_backend() == "cpu":
            return self._policy(features), self._value(features)
        kernels, biases = zip(*map(layer_of, (self.policy_head, self.value_head)), strict=True)
        kernel, bias = jnp.concatenate(kernels, axis=1), jnp.concatenate(biases)
        width = bias.shape[0]
        extra = -width % _ALIGNED
        out = features.astype(jnp.float32) @ jnp.pad(kernel, ((0, 0), (0, extra))) + jnp.pad(bias, (0, extra))
        return self._complete(out[..., : width - 1]), out[..., width - 1]

    def _policy(self, features: jax.Array) -> jax.Array:
        return self._complete(self.policy_head(features))

    def _complete(self, out: jax.Array) -> jax.Array:
        """The parameters of the policy, given the outputs of its head."""
        if not isinstance(self.action, Box):
            return out
        return jnp.concatenate([out, jnp.broadcast_to(self.log_std, out.shape)], axis=-1)

    def _value(self, features: jax.Array) -> jax.Array:
        return jnp.squeeze(self.value_head(features), axis=-1)


def make_actor_critic(config: Network, action: ActionSpace, uses_state: bool = False) -> ActorCritic:
    """The networks of one policy. Hashable and comparable: equal arguments make equal modules."""
    if config.share_torso and uses_state:
        raise OptionError(
            "Network: share_torso must be False when the critic sees the global state: "
            "actor and critic cannot share a torso when they see different things"
        )
    return ActorCritic(config, action, uses_state)


def init_weights(module: ActorCritic, key: jax.Array, view_spec: PyTree, state_spec: PyTree = None) -> PyTree:
    """Fresh weights. view_spec, state_spec: pytrees of anything with a shape and a dtype, for one agent."""
    view, state = trees.zeros((view_spec, state_spec))
    return module.init(key, view, state, module.initial_memory())


def apply_network(module: ActorCritic, weights: PyTree, *args: PyTree, method: str | None = None) -> Any:
    """The result of a method of the module; `__call__` by default."""
    return module.apply(weights, *args, method=method)


class Evaluation(struct.PyTreeNode):
    """Outputs for recorded actions, `[T, E, n]` each: leaves of the distributions are `[T, E, n, ...]`."""

    log_prob: jax.Array
    entropy: jax.Array
    value: jax.Array
    distribution: Distribution


def evaluate_actions(
    module: ActorCritic, weights: PyTree, observation: Observation, action: jax.Array, memory: PyTree, first: jax.Array
) -> Evaluation:
    """Log-probabilities of actions `[T, E, n]`, entropies, values and distributions under `weights`.

    memory: `[E, n, ...]`, before the first step. first: `[T, E]`, where an episode begins and the memory is reset.
    """
    seen = observation if module.uses_state else observation.replace(state=None)

    def unroll(view, state, memory, first, active):
        return apply_network(module, weights, view, state, memory, first, active, method="unroll")[:2]

    def single(seen):
        return apply_network(module, weights, seen.view, seen.state, ())[:2]

    def describe(parameters, legal, action):
        actions = distribution(module.action, parameters, legal)
        return actions.log_prob(action), actions.entropy(), actions

    if jax.tree.leaves(memory):
        agents = jax.vmap(unroll, (1, None, 0, None, 1), 1)
        args = (seen.view, seen.state, memory, first, seen.active)
        parameters, value = jax.vmap(agents, (1, 1, 0, 1, 1), 1)(*args)
    else:
        in_blocks = jax.default_backend() != "cpu" and not _has_kernel(single, seen)
        parameters, value = over_samples(single, seen, in_blocks)
    log_prob, entropy, actions = jax.vmap(jax.vmap(jax.vmap(describe)))(parameters, seen.legal, action)
    return Evaluation(log_prob, entropy, value, actions)


def _has_kernel(network: Callable[[Observation], Any], observation: Observation) -> bool:
    """Whether a network goes by a kernel. observation: `[T, E, n, ...]`, the state `[T, E, ...]`."""

    def one(observation: Observation) -> Any:
        view = jax.tree.map(lambda leaf: leaf[0, 0, 0], observation.replace(state=None))
        return network(view.replace(state=jax.tree.map(lambda leaf: leaf[0, 0], observation.state)))

    with record_choices() as chosen:
        jax.eval_shape(one, observation)
    return None in chosen.get("networks", ())


def rescale_value_head(weights: PyTree, scale: jax.Array, shift: jax.Array) -> PyTree:
    """Weights of a network whose values are `scale` times those of the given weights, plus `shift`."""
    head = weights["params"]["value_head"]
    head = {"kernel": head["kernel"] * scale, "bias": head["bias"] * scale + shift}
    return {**weights, "params": {**weights["params"], "value_head": head}}
