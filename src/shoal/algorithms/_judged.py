"""Actors and critics of learners with a replay: fresh ones, what they make of windows, and what critics say of actions.

With a recurrent network, actor and critics each have a memory of their own. It is stored with the steps, brought up to
date over the first rows of a window, and what follows a row is read with the memory after it. An agent that may not act
does nothing: critics are shown zeros for its action.

Shape letters: `W` rows of a window, `B` windows of a batch, `n` agents of a group, `K` critics, `S` rows learnt from.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from shoal.algorithms import q_learning as q
from shoal.algorithms import replay as stored
from shoal.algorithms.replay import Steps
from shoal.core.errors import OptionError
from shoal.core.spaces import ActionSpace, Box
from shoal.core.types import Group, Observation, PyTree
from shoal.networks.actors import ActorNetwork
from shoal.networks.critics import CriticKind, Join, Member, Trunk, action_vector, action_width, trunk_config
from shoal.networks.torsos import Network, initial_carry
from shoal.ops.distributions import distribution, num_parameters


class Policy(struct.PyTreeNode):
    """One group's policy. weights: of its `actor`, and of its critics' trunks, which have memories to keep.

    warm: false while it plays at random, to fill the replay. noise: how much it explores.
    """

    weights: dict[str, PyTree]
    warm: jax.Array
    noise: jax.Array
    actor: ActorNetwork = struct.field(pytree_node=False)
    trunk: Trunk = struct.field(pytree_node=False)
    space: ActionSpace = struct.field(pytree_node=False)


class Choice(struct.PyTreeNode):
    """Actions of a group's agents, `[S, B, n, ...]`.

    vector: as critics see them. parameters: what the actor put out. log_prob: of the action, or of every choice.
    """

    vector: jax.Array
    parameters: jax.Array
    log_prob: Any = ()


class Read(NamedTuple):
    """What the networks make of a batch, by group: of the rows after the burn-in, and of what came after each.

    parameters: put out by the actors, `[S, B, n, width]`. features: of the critics, `[K, S, B, n, f]`. What came after
    is read by slow copies, those of the actors only where there are any.
    """

    parameters: dict[str, jax.Array]
    parameters_after: dict[str, jax.Array]
    features: dict[str, jax.Array]
    features_after: dict[str, jax.Array]


def new_policy(
    key: jax.Array, group: Group, state: PyTree, network: Network, width: int, critics: int, noise: jax.Array
) -> Policy:
    """A fresh policy with that many critics. width: of the actor. state: what the critics see of it, or None."""
    for_actor, *keys = jax.random.split(key, critics + 1)
    actor, trunk = ActorNetwork(network, width), Trunk(trunk_config(network))
    view, state = zeros((group.observation, state))
    shown = view if state is None else (state, view)
    # One after the other: the batched QR decompositions of a vmapped orthogonal init can deadlock on a CPU.
    trunks = [trunk.init(k, shown, trunk.initial_memory()) for k in keys]
    weights = {"actor": actor.init(for_actor, view, actor.initial_memory()), "critic": stacked(trunks)}
    return Policy(weights, jnp.asarray(False), noise, actor, trunk, group.action)


def new_join(
    key: jax.Array, kind: CriticKind, network: Network, members: tuple[Member, ...], features: dict, critics: int
) -> tuple[Join, PyTree]:
    """What brings actions into the critics, and fresh weights. features: an example of what trunks put out."""
    actions = {member.name: jnp.zeros((member.size, member.action)) for member in members}
    module = Join(kind, network, members)
    absent = dict.fromkeys(features)
    return module, stacked([module.init(k, features, actions, actions, absent) for k in jax.random.split(key, critics)])


def example_features(policy: Policy, group: Group, state: PyTree) -> jax.Array:
    """Zeros in the place of what the trunk of one of the critics puts out for a group, `[n, f]`."""
    view, state = zeros((group.observation, state))
    shown = view if state is None else (state, view)
    one = jax.tree.map(lambda leaf: leaf[0], policy.weights["critic"])
    shape = jax.eval_shape(lambda: q.apply(policy.trunk, one, shown, policy.trunk.initial_memory())[0]).shape
    return jnp.zeros((group.size, *shape))


def fresh_memory(network: Network, critics: int) -> PyTree:
    """One agent's memory at the start of an episode."""
    if network.recurrent == "none":
        return ()
    one = initial_carry(network)
    several = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (critics, *leaf.shape)), one)
    return {"actor": one, "critic": several}


def step_actor(policy: Policy, observation: Observation, memory: PyTree, with_state: bool) -> tuple[jax.Array, PyTree]:
    """What one agent's actor puts out, and its memory and the critics' after it."""
    numbers, actor = q.apply(policy.actor, policy.weights["actor"], observation.view, _part(memory, "actor"))
    if not memory:
        return numbers, memory
    view = (observation.state, observation.view) if with_state else observation.view
    keep = jax.vmap(lambda weights, carry: q.apply(policy.trunk, weights, view, carry)[1])
    return numbers, {"actor": actor, "critic": keep(policy.weights["critic"], memory["critic"])}


def any_action(space: ActionSpace, legal: jax.Array | None, key: jax.Array) -> jax.Array:
    """One agent's action, all legal ones being as likely."""
    if isinstance(space, Box):
        return space.sample(key)
    return distribution(space, jnp.zeros(num_parameters(space)), legal).sample(key)


def read(
    params: dict[str, Policy], weights: dict[str, PyTree], slow: dict[str, PyTree], batch: Steps, burn_in: int
) -> Read:
    """Runs actors and trunks over windows. The global state is shown to the critics where it was stored."""
    after, out = stored.after(batch), Read({}, {}, {}, {})
    critics = len(jax.tree.leaves(weights["critic"]["join"])[0])
    for name, policy in params.items():
        memory = jax.tree.map(lambda leaf: leaf[0], batch.memory[name])
        rows, first = stored.rows((batch.observation[name], batch.first), 0, -1)
        ahead = stored.rows(after.observation[name], burn_in, len(batch.first) - 1)
        carry = _part(memory, "actor")
        actor = weights["actor"][name]
        out.parameters[name], memories = q.unroll_after(policy.actor, actor, rows, first, carry, burn_in)
        if "actor" in slow:
            actor = slow["actor"][name]
            memories = _memories(policy.actor, actor, rows, first, carry, burn_in)
        out.parameters_after[name] = q.single(policy.actor, lax.stop_gradient(actor), ahead.view, memories)
        rows = _shown(rows, stored.rows(batch.state, 0, -1))
        ahead = _shown(ahead, stored.rows(after.state, burn_in, len(batch.first) - 1))
        trunks = weights["critic"]["trunk"][name], slow["critic"]["trunk"][name]
        features = _trunks(policy.trunk, critics, *trunks, rows, ahead, first, _part(memory, "critic"), burn_in)
        out.features[name], out.features_after[name] = features
    return out


def judge(
    module: Join, weights: PyTree, features: dict, own: dict, others: dict, seen: dict[str, Observation]
) -> dict[str, jax.Array]:
    """Values `[K, S, B, n, out]` by group, of what each agent does (`own`) while the others do something."""
    own = {
        member.name: jnp.zeros_like(own[member.name]) if member.out > 1 else own[member.name]
        for member in module.members
    }
    present = {name: observation.present for name, observation in seen.items()}
    each = jax.vmap(lambda weights, features: module.apply(weights, features, own, others, present))
    return each(weights, features)  # pyright: ignore[reportReturnType]


def done(params: dict[str, Policy], rows: Steps) -> dict[str, jax.Array]:
    """The actions that were taken, as critics see them."""
    return {
        name: if_active(action_vector(policy.space, rows.action[name]), rows.observation[name])
        for name, policy in params.items()
    }


def if_active(vector: jax.Array, seen: Observation) -> jax.Array:
    """Actions as critics see them; zeros for those who may not act."""
    return vector if seen.active is None else jnp.where(seen.active[..., None], vector, 0.0)


def weight_of(mask: jax.Array | None, like: jax.Array) -> jax.Array:
    return jnp.ones_like(like) if mask is None else mask.astype(like.dtype)


def check_action(owner: str, name: str, space: ActionSpace) -> None:
    """Refuses boxes without bounds."""
    if isinstance(space, Box) and not (
        math.isfinite(space.low) and math.isfinite(space.high) and space.low < space.high
    ):
        raise OptionError(
            f"{owner}: the action space of {name!r}, {space}, must have finite bounds with low < high, into which "
            "actions are squashed. For one without bounds use PPO, A2C or Impala."
        )


def members_of(groups: dict[str, Group], every_choice: Any) -> tuple[Member, ...]:
    """The groups as critics see them. every_choice: whether they put out a value for each choice of a space."""
    members = []
    for name, group in groups.items():
        width = action_width(group.action)
        members.append(Member(name, group.size, width, width if every_choice(group.action) else 1))
    return tuple(members)


def zeros(spec: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), spec)


def stacked(trees: list[PyTree]) -> PyTree:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _trunks(trunk: Trunk, critics: int, weights, slow_weights, rows, ahead, first, memory, burn_in) -> tuple[Any, Any]:
    """Features of the rows by the critics, and of what came after them by the slow ones."""

    def online(weights, memory):
        return q.unroll_after(trunk, weights, rows, first, memory, burn_in)[0]

    def slow(weights, memory):
        return q.single(trunk, weights, ahead.view, _memories(trunk, weights, rows, first, memory, burn_in))

    def each(function, weights):  # memories are stored as [B, n, K, ...]
        return jax.vmap(function, (0, 2), axis_size=critics)(weights, memory)

    return each(online, weights), each(slow, slow_weights)


def _memories(
    module: Any, weights: PyTree, rows: Observation, first: jax.Array, memory: PyTree, burn_in: int
) -> PyTree:
    """The memories after each row, if there are any."""
    return q.unroll_after(module, weights, rows, first, memory, burn_in)[1] if jax.tree.leaves(memory) else ()


def _shown(seen: Observation, state: PyTree) -> Observation:
    """Observations as the critics see them: with the global state, if there is one, for each agent."""
    if state is None:
        return seen
    lead = jax.tree.leaves(seen.view)[0].shape[:3]

    def tile(leaf: jax.Array) -> jax.Array:
        return jnp.broadcast_to(leaf[:, :, None], (*lead, *leaf.shape[2:]))

    return seen.replace(view=(jax.tree.map(tile, state), seen.view))


def _part(memory: PyTree, name: str) -> PyTree:
    return memory[name] if memory else ()
