"""Critics of actions: what an agent's action is worth, given its view and, if asked for, what the others do.

A critic has two parts. The trunk turns what an agent sees into features; it may be recurrent, and as it hears of no
action, its memory can be kept while acting. The join then brings in actions. Its kinds:

- `own`: the agent's features and its own action.
- `global`: the same beside the actions of all agents of the learner (Lowe et al. 2017, MADDPG); the trunk is then
  shown the global state too. One set of weights serves a group, so an agent is also told which of its group it is.
- `attention`: each agent attends to the features and actions of the others, with several heads (Iqbal and Sha 2019,
  MAAC). Queries, keys and values are shared by all groups.

The last hidden layer of the `Network` is the one after the join; the others belong to the trunk. All arrays may have
any axes in front; an ensemble of critics is the same weights with one more leading axis.
"""

import dataclasses
import math
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.spaces import ActionSpace, Box, Discrete, MultiDiscrete, num_logits
from shoal.core.types import PyTree
from shoal.networks.torsos import ACTIVATIONS, Network, Torso, initial_carry
from shoal.ops.distributions import MASKED

CriticKind = Literal["own", "global", "attention"]
HEADS = 4
"""Heads of the attention critic."""


class Trunk(nn.Module):
    """From one agent's view to features, before any action is known."""

    config: Network

    def setup(self):
        self.torso = Torso(self.config)

    def __call__(self, view: PyTree, memory: PyTree) -> tuple[jax.Array, PyTree]:
        """One step: (features, memory after it)."""
        return self.torso(view, memory)

    def unroll(
        self, view: PyTree, memory: PyTree, first: jax.Array, active: jax.Array | None = None
    ) -> tuple[jax.Array, PyTree]:
        """`T` steps in a row: (features `[T, ...]`, memory after each step, `[T, ...]`)."""
        return self.torso.unroll(view, memory, first, active, every=True)

    @nn.nowrap
    def initial_memory(self) -> PyTree:
        return initial_carry(self.config)


@dataclasses.dataclass(frozen=True)
class Member:
    """A group as a critic sees it: numbers in an action, and numbers that its critic puts out."""

    name: str
    size: int
    action: int
    out: int


class Join(nn.Module):
    """From the features and actions of all agents to what each agent's action is worth."""

    kind: CriticKind
    config: Network
    members: tuple[Member, ...]

    @nn.compact
    def __call__(
        self, features: dict[str, jax.Array], own: dict[str, jax.Array], others: dict[str, jax.Array], present: PyTree
    ) -> dict[str, jax.Array]:
        """Values `[..., n, out]` by group.

        features: `[..., n, f]`. own: `[..., n, action]`, what each agent is judged for. others: the same, what it does
        in the eyes of the others. present: bool `[..., n]` or None, by group; read by `attention` only.
        """
        parts = {name: [feature, own[name]] for name, feature in features.items()}
        if self.kind == "global":
            for member in self.members:
                parts[member.name] = [features[member.name], *self._joint(member, own, others)]
        if self.kind == "attention":
            for name, context in self._attend(features, others, present).items():
                parts[name].append(context)
        return {member.name: self._head(member, jnp.concatenate(parts[member.name], -1)) for member in self.members}

    def _head(self, member: Member, x: jax.Array) -> jax.Array:
        for width in self.config.hidden[-1:]:
            x = _dense(width, math.sqrt(2), f"{member.name}_hidden")(x)
            x = nn.LayerNorm(name=f"{member.name}_norm")(x) if self.config.layer_norm else x
            x = ACTIVATIONS[self.config.activation](x)
        return _dense(member.out, 0.1, f"{member.name}_out")(x)

    def _joint(self, member: Member, own: dict[str, jax.Array], others: dict[str, jax.Array]) -> list[jax.Array]:
        """All actions as each agent of a group is to hear of them: its own in its own place; and which one it is."""
        lead, n = own[member.name].shape[:-2], member.size
        me = jnp.eye(n, dtype=bool)
        mine = jnp.where(me[..., None], own[member.name][..., :, None, :], others[member.name][..., None, :, :])
        joint = [mine.reshape(*lead, n, n * member.action)]
        for other in self.members:
            if other.name != member.name:
                flat = others[other.name].reshape(*lead, 1, other.size * other.action)
                joint.append(jnp.broadcast_to(flat, (*lead, n, flat.shape[-1])))
        return [*joint, jnp.broadcast_to(me.astype(jnp.float32), (*lead, n, n))] if n > 1 else joint

    def _attend(self, features: dict[str, jax.Array], others: dict[str, jax.Array], present: PyTree) -> dict:
        """What each agent makes of the others, `[..., n, width]`."""
        width = self.config.hidden[-1] if self.config.hidden else 64
        size = max(1, width // HEADS)
        activation = ACTIVATIONS[self.config.activation]
        asked, told, here = [], [], []
        for member in self.members:
            name, seen = member.name, features[member.name]
            done = jnp.concatenate([seen, others[name]], -1)
            asked.append(activation(_dense(width, math.sqrt(2), f"{name}_view")(seen)))
            told.append(activation(_dense(width, math.sqrt(2), f"{name}_told")(done)))
            here.append(jnp.ones(seen.shape[:-1], bool) if present[name] is None else present[name])
        asked, told, here = jnp.concatenate(asked, -2), jnp.concatenate(told, -2), jnp.concatenate(here, -1)
        query = _by_head(_dense(HEADS * size, 1.0, "query", bias=False)(asked), size)
        keys = _by_head(_dense(HEADS * size, 1.0, "key", bias=False)(told), size)
        values = _by_head(activation(_dense(HEADS * size, 1.0, "value")(told)), size)
        scores = jnp.einsum("...ihd,...jhd->...hij", query, keys) / math.sqrt(size)
        heard = here[..., None, None, :] & ~jnp.eye(here.shape[-1], dtype=bool)
        # Who is alone attends to nobody: the weights are masked once more, so that they may sum to 0.
        weights = jax.nn.softmax(jnp.where(heard, scores, MASKED), axis=-1) * heard
        context = jnp.einsum("...hij,...jhd->...ihd", weights, values)
        context = jnp.concatenate([asked, context.reshape(*asked.shape[:-1], HEADS * size)], -1)
        ends = np.cumsum([member.size for member in self.members])[:-1]
        split = jnp.split(context, ends, axis=-2)
        return {member.name: part for member, part in zip(self.members, split, strict=True)}


def trunk_config(config: Network) -> Network:
    """The network of a trunk: all hidden layers but the last, which comes after the actions have joined."""
    return dataclasses.replace(config, hidden=config.hidden[:-1])


def action_width(space: ActionSpace) -> int:
    """Numbers in an action, as critics see it."""
    return math.prod(space.shape) if isinstance(space, Box) else num_logits(space)


def action_vector(space: ActionSpace, action: jax.Array) -> jax.Array:
    """Actions `[..., shape]` as critics see them, `[..., action_width]`: a box from -1 to 1, choices one-hot."""
    match space:
        case Box():
            unit = (action.astype(jnp.float32) - space.low) / (0.5 * (space.high - space.low)) - 1.0
            return unit.reshape(*action.shape[: action.ndim - len(space.shape)], -1)
        case Discrete():
            return jax.nn.one_hot(action, space.n)
        case MultiDiscrete():
            chosen = [jax.nn.one_hot(action[..., i], size) for i, size in enumerate(space.sizes)]
            return jnp.concatenate(chosen, axis=-1)


def parts(space: Discrete | MultiDiscrete, x: jax.Array) -> list[jax.Array]:
    """Numbers for every choice `[..., num_logits]`, part by part."""
    sizes = (space.n,) if isinstance(space, Discrete) else space.sizes
    return jnp.split(x, np.cumsum(sizes)[:-1], axis=-1)


def _by_head(x: jax.Array, size: int) -> jax.Array:
    return x.reshape(*x.shape[:-1], HEADS, size)


def _dense(width: int, scale: float, name: str, bias: bool = True) -> nn.Dense:
    return nn.Dense(width, use_bias=bias, kernel_init=nn.initializers.orthogonal(scale), name=name)
