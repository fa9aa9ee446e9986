"""Torsos: from an agent's observation to features, through an encoder, an MLP and, optionally, a recurrent cell.

Written for one agent, without batch axes; the caller vmaps, and every layer becomes one plain matrix product over the
batch. `unroll` takes a whole sequence `[T, ...]`: everything that does not depend on the memory runs on all `T` at
once.

A torso of your own (`register_torso`) takes the place of the encoder: its features go through the MLP (`hidden=()`:
none) and the recurrent cell.
"""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import FrozenDict
from jax import lax

from shoal.core.checks import check_types
from shoal.core.errors import OptionError, require, unknown_name
from shoal.core.types import PyTree
from shoal.networks.convolution import Conv
from shoal.networks.own_torsos import MLP, TORSOS, MemoryTorso, check_options, encode, encode_sequence
from shoal.ops.mlp import Layer, Tower

Activation = Literal["tanh", "relu", "gelu", "silu"]
Recurrent = Literal["none", "gru", "lstm", "min_gru"]
ComputeDtype = Literal["float32", "bfloat16"]

C = TypeVar("C")

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "tanh": jnp.tanh,
    "relu": nn.relu,
    "gelu": nn.gelu,
    "silu": nn.silu,
}
_SMALL_SIDE = 8
"""Images of up to this many pixels per side, such as views of grid worlds, keep their resolution."""
_MOST_LAYERS = 64


def _explain_unknown_options(cls: type[C]) -> type[C]:
    """`Network(torso="own", heads=4)` says that `heads` is one of `torso_options`, not only that it is unknown."""
    make, known = cls.__init__, list(inspect.signature(cls).parameters)

    @functools.wraps(make)
    def made(self: Any, *args: Any, **options: Any) -> None:
        unknown = {name: value for name, value in options.items() if name not in known}
        if unknown:
            wrong = unknown_name("option", next(iter(unknown)), known)
            raise OptionError(f"Network: {wrong} Options of a torso of your own go into torso_options={unknown!r}")
        make(self, *args, **options)

    cls.__init__ = made
    return cls


@_explain_unknown_options
@dataclasses.dataclass(frozen=True)
class Network:
    """The architecture of a policy's networks."""

    hidden: tuple[int, ...] = (64, 64)  # widths of the MLP's layers
    activation: Activation = "tanh"  # activation of every layer
    recurrent: Recurrent = "none"  # recurrent cell after the MLP
    recurrent_size: int = 64  # width of the recurrent cell
    filters: tuple[int, ...] = (16, 32)  # 3x3 convolutions over the leaves of the view that are images [H, W, C]
    share_torso: bool = False  # actor and critic share everything except their heads
    layer_norm: bool = False  # normalise each layer of the MLP before its activation
    dtype: ComputeDtype = "float32"  # precision of the computation; weights, memory and outputs are always float32
    torso: str = MLP  # the name of a registered torso, in place of the convolutions: see shoal.register_torso
    torso_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # options of that torso, such as heads=4

    def __post_init__(self):
        check_types(self)
        options = self.torso_options
        if self.torso == MLP:
            require(not options, "Network", "torso_options", dict(options), f"empty for the torso {MLP!r}")
        checked = FrozenDict() if self.torso == MLP else check_options(self.torso, options)
        object.__setattr__(self, "torso_options", checked)
        for option in ("hidden", "filters"):
            widths = getattr(self, option)
            require(len(widths) <= _MOST_LAYERS, "Network", option, widths, f"at most {_MOST_LAYERS} whole numbers")
            require(min(widths, default=1) >= 1, "Network", option, widths, "whole numbers of at least 1")
        require(self.recurrent_size >= 1, "Network", "recurrent_size", self.recurrent_size, "at least 1")
        if self.torso_memory:
            allowed = f"'none' with the torso {self.torso!r}, which has its own memory"
            require(self.recurrent == "none", "Network", "recurrent", self.recurrent, allowed)

    @property
    def torso_memory(self) -> bool:
        """Whether its torso is a registered one with a memory."""
        return self.torso != MLP and issubclass(TORSOS[self.torso], MemoryTorso)

    @property
    def has_memory(self) -> bool:
        """Whether it has any memory."""
        return self.recurrent != "none" or self.torso_memory

    def make_torso(self, **more: Any) -> Any:
        """The registered torso that it names, with its options."""
        return TORSOS[self.torso](**self.torso_options, **more)


class Torso(nn.Module):
    """Encoder, MLP and optional recurrent cell of one agent."""

    config: Network

    def setup(self):
        dtype = jnp.dtype(self.config.dtype)
        init = {"kernel_init": nn.initializers.orthogonal(math.sqrt(2)), "dtype": dtype}
        self.encoder = Encoder(self.config) if self.config.torso == MLP else self.config.make_torso()
        self.layers = [nn.Dense(width, **init) for width in self.config.hidden]
        self.norms = [nn.LayerNorm(dtype=dtype) for _ in self.config.hidden] if self.config.layer_norm else []
        if self.config.recurrent != "none":
            self.cell = _CELLS[self.config.recurrent](self.config.recurrent_size, dtype)

    def __call__(self, seen: PyTree, carry: PyTree) -> tuple[jax.Array, PyTree]:
        """Features of one view, and the new carry (`()` for feed-forward networks)."""
        if self.config.torso_memory:
            x, carry = encode(self.config.torso, self.encoder, seen, carry)
            return self._mlp(x), carry
        x = self._features(seen, 0)
        if self.config.recurrent == "none":
            return x, carry
        return self.cell.step(self.cell.project(x), self.cell.weights(), carry)

    def tower(self, seen: PyTree, heads: list[nn.Dense]) -> Tower | str | None:
        """The encoded view, and the layers from there to the outputs of the heads, for `ops.mlp`.

        The reason why not if there is more in this network than layers; None while its weights are being made.
        """
        if self.is_initializing():
            return None
        if problem := find_parts_besides_layers(self.config, seen):
            return problem
        kernels, biases = zip(*map(layer_of, heads), strict=True)
        head = jnp.concatenate(kernels, axis=1), jnp.concatenate(biases)
        x = self.encoder(seen, 0, "float32")  # the kernel rounds it
        return x, [*map(layer_of, self.layers), head]

    def unroll(
        self, seen: PyTree, carry: PyTree, first: jax.Array, active: jax.Array | None, every: bool = False
    ) -> tuple[jax.Array, PyTree]:
        """Features of `T` consecutive views, and the carry after them; with `every`, the carries `[T, ...]` after each.

        The carry is reset before a step that is `first`, and kept over one that is not `active`.
        """
        if self.config.torso_memory:
            x, carry = self._recall(seen, carry, first, active, every)
            return self._mlp(x), carry
        x = self._features(seen, 1)
        if self.config.recurrent == "none":
            return x, carry
        if isinstance(self.cell, MinGRU):
            y, carries = self.cell.unroll(self.cell.project(x), carry, first, active)
            return y, carries if every else carries[-1]
        weights, initial = self.cell.weights(), initial_carry(self.config)

        def forward(carry: PyTree, step: tuple[jax.Array, jax.Array, jax.Array | None]) -> tuple[PyTree, PyTree]:
            x, first, active = step
            carry = _select(first, initial, carry)
            y, after = self.cell.step(x, weights, carry)
            after = after if active is None else _select(active, after, carry)
            return after, (y, after if every else ())

        carry, (y, carries) = lax.scan(forward, carry, (self.cell.project(x), first, active))
        return y, carries if every else carry

    def _recall(
        self, seen: PyTree, carry: PyTree, first: jax.Array, active: jax.Array | None, every: bool
    ) -> tuple[jax.Array, PyTree]:
        """A torso with a memory of its own, step by step."""
        initial = initial_carry(self.config)

        def forward(encoder: nn.Module, carry: PyTree, step: tuple[PyTree, jax.Array, jax.Array | None]):
            seen, first, active = step
            before = _select(first, initial, carry)
            x, after = encode(self.config.torso, encoder, seen, before)
            after = after if active is None else _select(active, after, before)
            return after, (x, after if every else ())

        scan = nn.scan(forward, variable_broadcast="params", split_rngs={"params": False})
        carry, (x, carries) = scan(self.encoder, carry, (seen, first, active))
        return x, carries if every else carry

    def _features(self, seen: PyTree, leading: int) -> jax.Array:
        if self.config.torso == MLP:
            return self._mlp(self.encoder(seen, leading))
        return self._mlp((encode_sequence if leading else encode)(self.config.torso, self.encoder, seen))

    def _mlp(self, x: jax.Array) -> jax.Array:
        for i, layer in enumerate(self.layers):
            x = layer(x)
            x = ACTIVATIONS[self.config.activation](self.norms[i](x) if self.norms else x)
        return x


def find_parts_besides_layers(config: Network, seen: PyTree) -> str | None:
    """What a network has besides plain layers, which no kernel of `ops.mlp` computes; None if nothing."""
    if config.torso != MLP:
        return f"torso {config.torso}"
    if config.recurrent != "none":
        return f"recurrent: {config.recurrent}"
    if any(jnp.ndim(leaf) == 3 for leaf in jax.tree.leaves(seen)):
        return "convolutions"
    return "layer normalisation" if config.layer_norm else None


def layer_of(dense: nn.Dense) -> Layer:
    """The kernel and the bias of a layer whose weights exist."""
    weights = dense.variables["params"]
    return weights["kernel"], weights["bias"]


class Encoder(nn.Module):
    """Encodes an observation as one vector: convolutions for images, everything else flattened."""

    config: Network

    @nn.compact
    def __call__(self, seen: PyTree, leading: int, dtype: ComputeDtype | None = None) -> jax.Array:
        """leading: the number of (time) axes before those of a single view. dtype: of the result, if not the usual."""
        parts = [self._encode(leaf, leading, dtype or self.config.dtype) for leaf in jax.tree.leaves(seen)]
        return jnp.concatenate(parts, axis=-1)

    def _encode(self, leaf: jax.Array, leading: int, dtype: ComputeDtype) -> jax.Array:
        x = leaf.astype(dtype)
        if leaf.ndim - leading == 3:
            x = self._convolve(x / 255 if leaf.dtype == jnp.uint8 else x)
        return x.reshape(*x.shape[:leading], -1)

    def _convolve(self, x: jax.Array) -> jax.Array:
        for width in self.config.filters:
            stride = 1 if min(x.shape[-3:-1]) <= _SMALL_SIDE else 2
            init = nn.initializers.orthogonal(math.sqrt(2))
            x = Conv(width, stride, init, jnp.dtype(self.config.dtype))(x)
            x = ACTIVATIONS[self.config.activation](x)
        return x


class GRU(nn.Module):
    """Gated recurrent unit (Cho et al. 2014), the reset gate applied after the product. Carry: h, `[size]`.

    The half of the gates that depends on the input is separate (`project`), so that it can be moved out of the scan.
    """

    size: int
    dtype: Any

    def setup(self):
        self.inputs = nn.Dense(3 * self.size, kernel_init=_per_gate(3), dtype=self.dtype)
        self.kernel = self.param("kernel", _per_gate(3), (self.size, 3 * self.size))
        self.bias = self.param("bias", nn.initializers.zeros, (self.size,))

    def project(self, x: jax.Array) -> list[jax.Array]:
        return jnp.split(self.inputs(x), 3, axis=-1)

    def weights(self) -> PyTree:
        """What `step` needs, as plain arrays: it runs inside a scan, where a module may not.

        One product per gate: on a CPU, slicing the product of a joint matrix takes as long as computing it.
        """
        return jnp.split(self.kernel.astype(self.dtype), 3, axis=-1), self.bias.astype(self.dtype)

    @staticmethod
    def step(x: list[jax.Array], weights: PyTree, carry: PyTree) -> tuple[jax.Array, PyTree]:
        """Output and next carry."""
        kernels, bias = weights
        before = carry.astype(x[0].dtype)
        reset, update = (nn.sigmoid(x[i] + before @ kernels[i]) for i in range(2))
        new = jnp.tanh(x[2] + reset * (before @ kernels[2] + bias)).astype(carry.dtype)
        h = new + update.astype(carry.dtype) * (carry - new)
        return h, h


class LSTM(nn.Module):
    """Long short-term memory (Hochreiter and Schmidhuber 1997, with forget gate). Carry: (c, h), `[size]` each."""

    size: int
    dtype: Any

    def setup(self):
        self.inputs = nn.Dense(4 * self.size, kernel_init=_per_gate(4), dtype=self.dtype)
        self.kernel = self.param("kernel", _per_gate(4), (self.size, 4 * self.size))

    def project(self, x: jax.Array) -> list[jax.Array]:
        return jnp.split(self.inputs(x), 4, axis=-1)

    def weights(self) -> PyTree:
        return jnp.split(self.kernel.astype(self.dtype), 4, axis=-1)

    @staticmethod
    def step(x: list[jax.Array], weights: PyTree, carry: PyTree) -> tuple[jax.Array, PyTree]:
        c, h = carry
        before = h.astype(x[0].dtype)
        enter, forget, new, out = ((x[i] + before @ weights[i]).astype(c.dtype) for i in range(4))
        c = nn.sigmoid(forget) * c + nn.sigmoid(enter) * jnp.tanh(new)
        h = nn.sigmoid(out) * jnp.tanh(c)
        return h, (c, h)


class MinGRU(nn.Module):
    """Minimal GRU (Feng et al. 2024): h' = (1 - z) h + z g, both z and g of the input alone. Carry: h, `[size]`.

    What a step does to h is a factor and a summand, which are known for a whole sequence at once: `unroll` joins them
    in pairs, in log T rounds.
    """

    size: int
    dtype: Any

    def setup(self):
        self.inputs = nn.Dense(2 * self.size, kernel_init=_per_gate(2), dtype=self.dtype)

    def project(self, x: jax.Array) -> list[jax.Array]:
        return jnp.split(self.inputs(x), 2, axis=-1)

    def weights(self) -> PyTree:
        return ()

    @staticmethod
    def step(x: list[jax.Array], weights: PyTree, carry: PyTree) -> tuple[jax.Array, PyTree]:
        del weights
        keep, add = MinGRU.affine(x)
        h = keep * carry + add
        return h, h

    @staticmethod
    def affine(x: list[jax.Array]) -> tuple[jax.Array, jax.Array]:
        """Of what inputs do to a carry h, keep * h + add: (keep, add)."""
        update, new = (part.astype(jnp.float32) for part in x)
        return nn.sigmoid(-update), nn.sigmoid(update) * new

    @staticmethod
    def unroll(
        x: list[jax.Array], carry: jax.Array, first: jax.Array, active: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        """Outputs `[T, size]`, and the carries after each step: see `Torso.unroll`."""
        keep, add = MinGRU.affine(x)
        moved, given = (keep, add) if active is None else _select(active[:, None], (keep, add), (1.0, 0.0))
        moved = jnp.where(first[:, None], 0.0, moved)  # an episode begins with a carry of zeros

        def join(before: PyTree, after: PyTree) -> PyTree:
            return before[0] * after[0], before[1] * after[0] + after[1]

        moved, given = lax.associative_scan(join, (moved, given))
        carries = moved * carry + given
        if active is None:
            return carries, carries
        before = jnp.concatenate([carry[None], carries[:-1]])
        return keep * jnp.where(first[:, None], 0.0, before) + add, carries


_CELLS = {"gru": GRU, "lstm": LSTM, "min_gru": MinGRU}


def initial_carry(config: Network) -> PyTree:
    """The carry of one torso at the start of an episode."""
    if config.torso_memory:
        return config.make_torso(parent=None).initial_memory()
    match config.recurrent:
        case "none":
            return ()
        case "gru" | "min_gru":
            return jnp.zeros(config.recurrent_size, jnp.float32)
        case "lstm":
            return tuple(jnp.zeros(config.recurrent_size, jnp.float32) for _ in range(2))


def _per_gate(gates: int) -> nn.initializers.Initializer:
    """Each gate's part of a joint matrix is orthogonal by itself."""
    orthogonal = nn.initializers.orthogonal()

    def init(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        part = (shape[0], shape[1] // gates)
        return jnp.concatenate([orthogonal(k, part, dtype) for k in jax.random.split(key, gates)], axis=1)

    return init


def _select(condition: jax.Array, a: PyTree, b: PyTree) -> PyTree:
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), a, b)
