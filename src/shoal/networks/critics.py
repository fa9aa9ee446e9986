"""Critics of actions: Q(s, a) of an agent, given its observation and, optionally, the others' actions.

A critic has two parts. The torso maps an agent's view to features; it may be recurrent and, as its input has no
actions, its memory can be kept while acting. The head then takes the actions. Its kinds:

- `own`: the agent's features and its own action.
- `global`: the same and the actions of all agents of the learner (Lowe et al. 2017, MADDPG); the torso then gets the
  global state too. A group shares one set of weights, so the input also has the agent's index within its group.
- `attention`: each agent attends to the features and actions of the others, with several heads (Iqbal and Sha 2019,
  MAAC). Queries, keys and values are shared by all groups.

The last hidden layer of the `Network` belongs to the head, the others to the torso. All arrays may have any axes in
front; an ensemble of critics is the same weights with one more leading axis. Actions are vectors
(`core.spaces.action_vector`).
"""

import dataclasses
import math
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from shoal.core.types import PyTree
from shoal.networks.attention import attend_to_others, dense
from shoal.networks.torsos import ACTIVATIONS, Network, Torso
from shoal.ops.kernels.choices import report

CriticKind = Literal["own", "global", "attention"]


class CriticTorso(nn.Module):
    """From one agent's view to features, before any action is known: all hidden layers of `config` except the last."""

    config: Network

    def setup(self):
        self.torso = Torso(dataclasses.replace(self.config, hidden=self.config.hidden[:-1]))

    def __call__(self, view: PyTree, memory: PyTree) -> tuple[jax.Array, PyTree]:
        """One step: (features, memory after it)."""
        return self.torso(view, memory)

    def unroll(
        self, view: PyTree, memory: PyTree, first: jax.Array, active: jax.Array | None = None
    ) -> tuple[jax.Array, PyTree]:
        """`T` steps in a row: (features `[T, ...]`, memory after each step, `[T, ...]`)."""
        return self.torso.unroll(view, memory, first, active, every=True)


@dataclasses.dataclass(frozen=True)
class GroupSpec:
    """A group as a critic sees it. num_values: 1, or one per choice; then the own action is not an input."""

    name: str
    size: int
    action_width: int
    num_values: int


class CriticHead(nn.Module):
    """From the features and actions of all agents to the value of each agent's action."""

    kind: CriticKind
    config: Network
    groups: tuple[GroupSpec, ...]

    @nn.compact
    def __call__(
        self, features: dict[str, jax.Array], own: dict[str, jax.Array], others: dict[str, jax.Array], present: PyTree
    ) -> dict[str, jax.Array]:
        """Values `[..., n, num_values]` by group.

        features: `[..., n, f]`. own: `[..., n, action_width]`, the actions to be valued. others: the same shape, each
        agent's action as input for the others. present: bool `[..., n]` or None, by group; read by `attention` only.
        """
        if not self.is_initializing():
            report("networks", "critics of actions")
        own = {g.name: own[g.name] if g.num_values == 1 else jnp.zeros_like(own[g.name]) for g in self.groups}
        parts = {name: [feature, own[name]] for name, feature in features.items()}
        if self.kind == "global":
            for group in self.groups:
                parts[group.name] = [features[group.name], *self._joint(group, own, others)]
        if self.kind == "attention":
            for name, context in attend_to_others(self.config, features, others, present).items():
                parts[name].append(context)
        return {group.name: self._value(group, jnp.concatenate(parts[group.name], -1)) for group in self.groups}

    def _value(self, group: GroupSpec, x: jax.Array) -> jax.Array:
        for width in self.config.hidden[-1:]:
            x = dense(width, math.sqrt(2), f"{group.name}_hidden")(x)
            x = nn.LayerNorm(name=f"{group.name}_norm")(x) if self.config.layer_norm else x
            x = ACTIVATIONS[self.config.activation](x)
        return dense(group.num_values, 0.1, f"{group.name}_out")(x)

    def _joint(self, group: GroupSpec, own: dict[str, jax.Array], others: dict[str, jax.Array]) -> list[jax.Array]:
        """All actions as inputs for each agent of a group, with its own in its place; and its index."""
        lead, n = own[group.name].shape[:-2], group.size
        me = jnp.eye(n, dtype=bool)
        mine = jnp.where(me[..., None], own[group.name][..., :, None, :], others[group.name][..., None, :, :])
        joint = [mine.reshape(*lead, n, n * group.action_width)]
        for other in self.groups:
            if other.name != group.name:
                flat = others[other.name].reshape(*lead, 1, other.size * other.action_width)
                joint.append(jnp.broadcast_to(flat, (*lead, n, flat.shape[-1])))
        return [*joint, jnp.broadcast_to(me.astype(jnp.float32), (*lead, n, n))] if n > 1 else joint
