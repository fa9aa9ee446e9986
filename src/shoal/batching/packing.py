"""Records of a step as few arrays: on an accelerator every array that a loop stores is a kernel of its own.

`Packer.pack` joins the leaves `[E, ...]` of a record to one array of words, and one of flags where there are many;
large leaves stay by themselves. `Packer.unpack` takes them apart again, after the loop. Numbers are moved bit by bit,
never converted.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shoal.core.keys import is_key
from shoal.core.types import PyTree

_WORDS = (jnp.float32, jnp.int32, jnp.uint32)
_BITS = 32
"""Flags of a copy that are stored as the bits of one word; more are an array of their own."""
_LARGE = 1 << 21
"""Bytes of a leaf that is stored by itself: joining it to others takes longer than launching one more kernel."""


class Packer:
    """Packs records of one structure, which it learns from the first."""

    def pack(self, record: PyTree) -> dict[str, Any]:
        """Leaves `[E, ...]` as `words` `[E, W]` (uint32), `flags` `[E, F]` (bool) if many, and others as they are."""
        leaves, self._structure = jax.tree.flatten(record)
        self._shapes = [leaf.shape[1:] for leaf in leaves]
        self._types = [leaf.dtype for leaf in leaves]
        self._large = [_num_bytes(leaf) >= _LARGE for leaf in leaves]
        flat = [leaf.reshape(leaf.shape[0], -1) if self._kind(i) != "rest" else leaf for i, leaf in enumerate(leaves)]
        words = [lax.bitcast_convert_type(flat[i], jnp.uint32) for i in self._of("words")]
        flags = [flat[i] for i in self._of("flags")]
        joined: dict[str, Any] = {"rest": [flat[i] for i in self._of("rest")]}
        if flags and self._num_flags <= _BITS:
            bits = [flag.astype(jnp.uint32) for part in flags for flag in jnp.split(part, part.shape[1], axis=1)]
            words.append(sum((bit << place for place, bit in enumerate(bits)), jnp.zeros_like(bits[0])))
        elif flags:
            joined["flags"] = jnp.concatenate(flags, axis=1)
        return joined | ({"words": jnp.concatenate(words, axis=1)} if words else {})

    def unpack(self, packed: dict[str, Any]) -> PyTree:
        """Records `[T, E, ...]`, of what a loop stacked."""
        leaves: list[Any] = [None] * len(self._types)
        for i, leaf in zip(self._of("rest"), packed["rest"], strict=True):
            leaves[i] = leaf
        if self._of("flags") and "flags" not in packed:
            places = jnp.arange(self._num_flags, dtype=jnp.uint32)
            packed = packed | {"flags": (packed["words"][..., -1:] >> places) & 1 == 1}
        for name in ("words", "flags"):
            start = 0
            for i in self._of(name):
                size = math.prod(self._shapes[i])
                part = packed[name][..., start : start + size].reshape(*packed[name].shape[:-1], *self._shapes[i])
                leaves[i] = lax.bitcast_convert_type(part, self._types[i]) if name == "words" else part
                start += size
        return jax.tree.unflatten(self._structure, leaves)

    @property
    def _num_flags(self) -> int:
        return sum(math.prod(self._shapes[i]) for i in self._of("flags"))

    def _of(self, kind: str) -> list[int]:
        return [i for i in range(len(self._types)) if self._kind(i) == kind]

    def _kind(self, index: int) -> str:
        if self._large[index]:
            return "rest"
        if self._types[index] == jnp.bool_:
            return "flags"
        return "words" if self._types[index] in _WORDS else "rest"


def _num_bytes(leaf: jax.Array) -> int:
    return 0 if is_key(leaf) else leaf.size * leaf.dtype.itemsize
