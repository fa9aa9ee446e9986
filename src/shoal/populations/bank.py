"""The policy bank: one player's policies as one growing, stacked pytree, with the origin of each.

Capacity grows in steps, so that programs that take a bank are rarely recompiled; unused places contain copies of the
first policy and are never drawn.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.errors import OptionError
from shoal.core.types import PyTree

ROOM = 16
"""Capacity of a new bank."""


@dataclasses.dataclass(frozen=True)
class Member:
    """The origin of a policy. parent: the member it started from. born: the iteration. info: anything in JSON.

    frozen: whether it is only an opponent and never trained further, as policies of other runs are.
    """

    name: str
    parent: int | None = None
    born: int = 0
    frozen: bool = False
    info: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class PolicyBank:
    """Policies `[capacity, ...]`, of which the first `len(members)` are real. Immutable: `add` returns another one."""

    policies: PyTree
    members: tuple[Member, ...] = ()

    @staticmethod
    def of(policy: PyTree, member: Member, room: int = ROOM) -> "PolicyBank":
        """A bank of one policy."""
        return PolicyBank(jax.tree.map(lambda leaf: _repeat(leaf, room), policy), (member,))

    def __len__(self) -> int:
        return len(self.members)

    @property
    def capacity(self) -> int:
        return jax.tree.leaves(self.policies)[0].shape[0]

    @property
    def newest(self) -> int:
        """The newest policy that is not frozen, from which training continues. The first one is never frozen."""
        return max(i for i, member in enumerate(self.members) if not member.frozen)

    def __getitem__(self, index: int) -> PyTree:
        if not -len(self) <= index < len(self):
            raise OptionError(f"the bank has {len(self)} policies, there is no number {index}")
        place = index % len(self)
        return jax.tree.map(lambda leaf: leaf[place], self.policies)

    def add(self, policy: PyTree, member: Member) -> "PolicyBank":
        """Adds a policy; a full bank is doubled first."""
        check_fits(self.policies, policy, member.name)
        policies, place = self.policies, len(self)
        if place == self.capacity:
            policies = jax.tree.map(_double, policies)
        policies = jax.tree.map(lambda leaf, new: _with_row(leaf, place, new), policies, policy)
        return PolicyBank(policies, (*self.members, member))

    def replace_policy(self, index: int, policy: PyTree, **info: Any) -> "PolicyBank":
        """Replaces a policy; info: added to its record."""
        if self.members[index].frozen:
            raise OptionError(f"policy {self.members[index].name!r} of the bank is frozen and cannot be replaced")
        check_fits(self.policies, policy, self.members[index].name)
        members = list(self.members)
        members[index] = dataclasses.replace(members[index], info=members[index].info | info)
        policies = jax.tree.map(lambda leaf, new: _with_row(leaf, index, new), self.policies, policy)
        return PolicyBank(policies, tuple(members))

    def mixture(self, weights: np.ndarray) -> jax.Array:
        """Weights `[len]` of the policies as a mixture over all places."""
        return jnp.zeros(self.capacity).at[: len(self)].set(jnp.asarray(weights, jnp.float32))


def _repeat(leaf: Any, times: int) -> Any:
    space = np if isinstance(leaf, np.ndarray) else jnp  # exact plans stay in float64 on the host
    return space.broadcast_to(leaf, (times, *np.shape(leaf)))


def _double(leaf: Any) -> Any:
    space = np if isinstance(leaf, np.ndarray) else jnp
    return space.concatenate([leaf, space.broadcast_to(leaf[:1], leaf.shape)])


def _with_row(leaf: Any, place: int, row: Any) -> Any:
    if not isinstance(leaf, np.ndarray):
        return leaf.at[place].set(row)
    leaf = leaf.copy()
    leaf[place] = row
    return leaf


def check_fits(policies: PyTree, policy: PyTree, name: str) -> None:
    """Refuses a policy whose network is not that of the bank."""
    have, got = jax.tree.structure(policies), jax.tree.structure(policy)
    if have != got:
        raise OptionError(
            f"policy {name!r} does not fit the bank: it has another network or algorithm, or plays other actions"
        )
    for (path, place), leaf in zip(jax.tree_util.tree_leaves_with_path(policies), jax.tree.leaves(policy), strict=True):
        if place.shape[1:] != jnp.shape(leaf):
            raise OptionError(
                f"policy {name!r} does not fit the seat: {jax.tree_util.keystr(path)} is {jnp.shape(leaf)}, "
                f"the bank's policies have {place.shape[1:]}. It was trained for another world, seat or network size."
            )
