"""What learners of action values share: policies that are greedy in them, exploration, and values of views.

An agent that may not act now has no choice to value: its view is worth the mean over the legal choices, which is
trained like a chosen one. So values flow back through the views of those who wait, in games of turns too.
Shape letters: `T` time, `E` environments, `n` agents of a group.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from shoal.algorithms._learner import linear
from shoal.batching.masked import for_rows
from shoal.core.algorithm import ActOutput, LearnerSpec
from shoal.core.errors import OptionError
from shoal.core.spaces import Box, Discrete, MultiDiscrete
from shoal.core.types import Observation, PyTree
from shoal.networks.mixers import MixerKind, mix
from shoal.networks.q_network import QNetwork, best_action, init_q_network, mean_value, value_of
from shoal.networks.torsos import Network, initial_carry
from shoal.ops.distributions import distribution, num_parameters


class QPolicy(struct.PyTreeNode):
    """One group's policy: the weights of its action values, how often it tries something else, and its network."""

    weights: PyTree
    epsilon: jax.Array
    network: QNetwork = struct.field(pytree_node=False)


def new_policies(
    owner: str, key: jax.Array, spec: LearnerSpec, network: Network, dueling: bool, epsilon: jax.Array
) -> dict[str, QPolicy]:
    """Fresh policies for the groups of `spec`; refuses actions that cannot be listed."""
    policies = {}
    for k, (name, group) in zip(jax.random.split(key, len(spec.groups)), spec.groups.items(), strict=True):
        if isinstance(group.action, Box):
            raise OptionError(
                f"{owner}: cannot value every action of {group.action}, the action space of {name!r}. It handles "
                "Discrete and MultiDiscrete actions; for a Box use PPO, A2C, Impala, DDPG or SAC."
            )
        module = QNetwork(network, group.action, dueling)
        policies[name] = QPolicy(init_q_network(module, k, group.observation), epsilon, module)
    return policies


def weights_of(params: dict[str, QPolicy], mixer: PyTree) -> dict[str, PyTree]:
    """All that is trained: the weights of the agents' values, by group, and those of the mixer."""
    return {"agents": {name: policy.weights for name, policy in params.items()}, "mixer": mixer}


def explored(state: Any) -> Any:
    """A learner's state whose policies explore as much as is due now."""
    hyper = state.hyper
    done = state.updates / hyper["total_updates"] / jnp.maximum(hyper["epsilon_fraction"], 1e-6)
    epsilon = linear(hyper["epsilon_start"], hyper["epsilon_end"], done)
    return state.replace(params={name: policy.replace(epsilon=epsilon) for name, policy in state.params.items()})


def act(
    policy: QPolicy,
    observation: Observation,
    memory: PyTree,
    key: jax.Array,
    explore: bool,
    with_value: bool = False,
) -> ActOutput:
    """One agent's best action, or with probability `epsilon` any legal one if it is to `explore`.

    With `with_value`, what its view is worth is recorded.
    """
    values, memory = apply(policy.network, policy.weights, observation.view, memory)
    space = policy.network.action
    action = best_action(space, values, observation.legal)
    if explore:
        whether, which = jax.random.split(key)
        other = distribution(space, jnp.zeros(num_parameters(space)), observation.legal).sample(which)
        action = jnp.where(jax.random.uniform(whether) < policy.epsilon, other, action)
    extras = {"value": best_value(space, values, values, observation)} if with_value else {}
    return ActOutput(action, memory, extras)


def best_value(space: Discrete | MultiDiscrete, choose: jax.Array, values: jax.Array, seen: Observation) -> jax.Array:
    """What one agent's view is worth: `values` of the action that is best by `choose`; the mean if it may not act."""
    best = value_of(space, values, best_action(space, choose, seen.legal))
    if seen.active is None:
        return best
    return jnp.where(seen.active, best, mean_value(space, values, seen.legal))


def chosen_value(space: Discrete | MultiDiscrete, values: jax.Array, action: jax.Array, seen: Observation) -> jax.Array:
    """What one agent's action is worth; the mean over legal ones if it may not act."""
    chosen = value_of(space, values, action)
    if seen.active is None:
        return chosen
    return jnp.where(seen.active, chosen, mean_value(space, values, seen.legal))


def memory_spec(network: Network) -> PyTree:
    """One agent's memory, as shapes."""
    return jax.eval_shape(lambda: initial_carry(network))


def over(function: Any, axes: int) -> Any:
    """`function` of one agent, mapped over that many leading axes of all arguments."""
    for _ in range(axes):
        function = jax.vmap(function)
    return function


def apply(network: Any, weights: PyTree, view: PyTree, memory: PyTree) -> Any:
    return network.apply(weights, view, memory)


def unroll(
    network: Any, weights: PyTree, seen: Observation, memory: PyTree, first: jax.Array
) -> tuple[jax.Array, PyTree]:
    """Action values `[T, E, n, choices]` along sequences, and the memories `[T, E, n, ...]` after each step."""
    if not jax.tree.leaves(memory):
        return single(network, weights, seen.view, ()), ()

    def one(view, memory, first, active):
        return network.apply(weights, view, memory, first, active, method="unroll")

    agents = jax.vmap(one, (1, 0, None, 1), 1)
    return jax.vmap(agents, (1, 0, 1, 1), 1)(seen.view, memory, first, seen.active)  # pyright: ignore[reportReturnType]


def unroll_after(
    network: Any, weights: PyTree, seen: Observation, first: jax.Array, memory: PyTree, burn_in: int
) -> tuple[jax.Array, PyTree]:
    """`unroll` over all rows but the first `burn_in`, which only bring the memory up to date."""
    if burn_in and jax.tree.leaves(memory):
        before = jax.tree.map(lambda leaf: leaf[:burn_in], seen)
        memories = unroll(network, lax.stop_gradient(weights), before, memory, first[:burn_in])[1]
        memory = jax.tree.map(lambda leaf: lax.stop_gradient(leaf[-1]), memories)
    rest = jax.tree.map(lambda leaf: leaf[burn_in:], seen)
    return unroll(network, weights, rest, memory, first[burn_in:])


def single(network: Any, weights: PyTree, view: PyTree, memory: PyTree) -> jax.Array:
    """Action values `[T, E, n, choices]` of views by themselves, given the memories `[T, E, n, ...]` before each."""
    lead = jax.tree.leaves(view)[0].shape[:3]
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[3:]), (view, memory))  # one axis: plain products
    values, _ = jax.vmap(lambda view, memory: apply(network, weights, view, memory))(*flat)
    return values.reshape(*lead, -1)


class Sequence(struct.PyTreeNode):
    """Windows of one group, leaves `[W, B, n, ...]`; `after`, what followed each learnt row, and `cut` are shorter.

    memory: before the first row, `[B, n, ...]`. cut: where an episode was cut short, `[W - 1 - burn_in, B]`.
    """

    seen: Observation
    after: Observation
    memory: PyTree
    first: jax.Array
    cut: jax.Array


def along(
    network: QNetwork, weights: PyTree, sequence: Sequence, burn_in: int, ahead: bool
) -> tuple[jax.Array, jax.Array | None]:
    """Action values of the rows of windows after their burn-in, but for the last; and of what followed each of them.

    The latter, if `ahead` is asked for, without gradients. A recurrent network has valued the next row by itself; only
    the final views of episodes that were cut short are valued apart.
    """
    if not jax.tree.leaves(sequence.memory):
        rows = jax.tree.map(lambda leaf: leaf[burn_in:-1], sequence.seen.view)
        following = single(network, lax.stop_gradient(weights), sequence.after.view, ()) if ahead else None
        return single(network, weights, rows, ()), following
    values, memories = unroll_after(network, weights, sequence.seen, sequence.first, sequence.memory, burn_in)
    if not ahead:
        return values[:-1], None

    def valued(weights: PyTree, rows: tuple[PyTree, PyTree]) -> jax.Array:
        return single(network, weights, *jax.tree.map(lambda leaf: leaf[None], rows))[0]

    carried = jax.tree.map(lambda leaf: leaf[:-1], memories)
    flat = [_flat(tree) for tree in (sequence.after.view, carried, values[1:])]
    view, carried, default = lax.stop_gradient(flat)
    shared = lax.stop_gradient(weights)
    following = for_rows(valued, sequence.cut.reshape(-1), shared, (view, carried), default)
    return values[:-1], following.reshape(values[1:].shape)


def _flat(tree: PyTree) -> PyTree:
    """Windows and their rows as one axis."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), tree)


def joined(values: dict[str, jax.Array], seen: dict[str, Observation]) -> jax.Array:
    """All agents of a team side by side, `[..., agents]`; 0 for those who are not present."""
    masked = [present_only(value, seen[name]) for name, value in values.items()]
    return jnp.concatenate(masked, axis=-1)


def present_only(value: jax.Array, seen: Observation) -> jax.Array:
    return value if seen.present is None else jnp.where(seen.present, value, 0.0)


def mixed(kind: MixerKind, weights: PyTree, values: jax.Array, state: PyTree) -> jax.Array:
    """What teams are worth, `[T, E]`, from what their agents are, `[T, E, agents]`."""
    return over(lambda values, state: mix(kind, weights, values, state), 2)(values, state)
