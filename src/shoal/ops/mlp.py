"""Small multilayer perceptrons, as one kernel each way on CUDA.

XLA computes an MLP layer by layer, and the activations of every layer travel to device memory and back: for layers of
64 units that takes several times as long as the arithmetic. Here whole networks run in one kernel (`kernels/mlp.cu`):
forward, and backward with the hidden layers computed again. Two networks ("towers", such as actor and critic) share a
launch, and an axis of policies (seeds, members of a population, opponents) is one more axis of its grid. Networks that
compute in bfloat16 have kernels of their own (`kernels/mlp_bf16.cu`); what these read and write is float32 as well.

`mlp` is a primitive of JAX, written for one sample: under `vmap` samples become rows, or groups where the weights are
mapped too, and under `grad` weights get the sum over all rows at once. `plain_mlp` is the same in plain JAX; it defines
the answer, and other devices use it. `find_misfit` says which networks the kernels do not take.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from shoal.ops import kernels
from shoal.ops.kernels import choices, trust

Layer = tuple[jax.Array, jax.Array]
"""Kernel `[i, o]` and bias `[o]`."""
Tower = tuple[jax.Array, Sequence[Layer]]
"""The input of a network, and its layers."""
Widths = tuple[int, ...]
"""Inputs, hidden units, outputs of one tower."""
Precision = Literal["float32", "bfloat16"]
"""What layers compute in, all but the last, which is float32; products of float32 are in TF32 on a GPU."""

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
}
MOST_TOWERS = 2
MOST_GROUPS = 65_535
"""The most along the axis of a grid that groups are: CUDA's limit for the second and the third."""
CAPABILITY = 8.0
"""The least of a device for the kernels: from there on it has products in TF32."""
SOURCES: dict[Precision, str] = {"float32": "mlp", "bfloat16": "mlp_bf16"}
"""What the kernels of each precision are made from."""
TOLERANCE = 1e-2
"""Relative error of outputs and gradients that is accepted; TF32 gives about 1e-3, bfloat16 about 5e-3."""
_HIDDEN, _LAYERS = 64, 3  # the most that the kernels take
_TILE = 64  # rows of a block at once
_PROCESSORS = 132  # of an H200


def find_misfit(towers: Sequence[Widths]) -> str | None:
    """The reason why the kernels do not take networks of these widths together; None if they do."""
    if not 0 < len(towers) <= MOST_TOWERS:
        return f"{len(towers)} networks together: the kernel holds 1 or {MOST_TOWERS}"
    for inputs, *hidden, outputs in towers:
        if not 0 < len(hidden) < _LAYERS:
            return f"{len(hidden)} hidden layers: the kernel holds 1 or {_LAYERS - 1}"
        sizes = ("inputs", inputs, kernels.MLP_INPUTS[-1]), ("units", max(hidden), _HIDDEN)
        for what, size, most in (*sizes, ("outputs", outputs, kernels.MLP_OUTPUTS[-1])):
            if size > most:
                return f"{size} {what}: the kernel holds up to {most}"
    return None


def fuse(towers: Sequence[Tower | str | None], activation: str, dtype: Precision = "float32") -> list[jax.Array] | None:
    """The outputs of towers by one kernel; None where it is not to be used, which is reported to `kernels.choices`.

    A tower may also be the reason why it has none, if it has other parts than layers, or None while its weights are
    being made. Whether there is a kernel is known when a program is traced, not when it runs: where there is none,
    nothing about the program changes.
    """
    if any(tower is None for tower in towers):
        return None
    known = [tower for tower in towers if isinstance(tower, tuple)]
    widths = [widths_of(layers) for _, layers in known]
    problem = next((tower for tower in towers if isinstance(tower, str)), None) or find_misfit(widths)
    problem = problem or trust.find_problem(make_trial(widths, activation, dtype))
    choices.report("networks", problem)
    return None if problem else mlp([x for x, _ in known], [layers for _, layers in known], activation, dtype)


def takes_kernel(equation: Any) -> bool:
    """Whether an operation of a traced program is compiled to a kernel on CUDA."""
    return equation.primitive in (_forward, _backward) and fits_grid(*equation.invars[0].aval.shape[:2])


def fits_grid(groups: int, rows: int) -> bool:
    """Whether a kernel can be launched for so many groups and rows of each; else the plain form is compiled."""
    return 0 < groups <= MOST_GROUPS and rows > 0


def mlp(
    inputs: Sequence[jax.Array], towers: Sequence[Sequence[Layer]], activation: str, dtype: Precision = "float32"
) -> list[jax.Array]:
    """The outputs `[out]` of each tower for its input `[in]`, one sample; the last layer of a tower is linear."""
    widths = tuple(widths_of(layers) for layers in towers)
    rows = [x.astype(jnp.float32)[None, None] for x in inputs]
    weights = [leaf[None] for layers in towers for layer in layers for leaf in layer]
    out = _forward.bind(*rows, *weights, towers=widths, activation=activation, dtype=dtype)[0, 0]
    return jnp.split(out, np.cumsum([sizes[-1] for sizes in widths])[:-1])


def plain_mlp(x: jax.Array, layers: Sequence[Layer], activation: str, dtype: Precision = "float32") -> jax.Array:
    """The outputs of one tower in plain JAX, for inputs `[..., in]`."""
    for kernel, bias in layers[:-1]:
        x = ACTIVATIONS[activation](x.astype(dtype) @ kernel.astype(dtype) + bias.astype(dtype))
    kernel, bias = layers[-1]
    return x.astype(kernel.dtype) @ kernel + bias


def widths_of(layers: Sequence[Layer]) -> Widths:
    """Inputs, hidden units and outputs of a tower."""
    return (layers[0][0].shape[0], *(kernel.shape[1] for kernel, _ in layers))


# The primitives. Operands are the towers' inputs, `[groups, rows, in]`, then kernels and biases of their layers,
# `[groups, ...]`; outputs are `[groups, rows, outputs of all towers]`. `wrt` says which operands have tangents.

_forward = Primitive("mlp")
_tangent = Primitive("mlp_jvp")
_backward = Primitive("mlp_vjp")
_backward.multiple_results = True


def _split(leaves: Sequence[Any], towers: tuple[Widths, ...]) -> list[list[Any]]:
    """The weights of each tower."""
    ends = list(itertools.accumulate(2 * (len(widths) - 1) for widths in towers))
    return [list(leaves[start:end]) for start, end in itertools.pairwise([0, *ends])]


def _plain_forward(*operands: jax.Array, towers: tuple[Widths, ...], activation: str, dtype: Precision) -> jax.Array:
    def group(*operands: jax.Array) -> jax.Array:
        inputs, weights = operands[: len(towers)], _split(operands[len(towers) :], towers)
        layers = [list(zip(leaves[::2], leaves[1::2], strict=True)) for leaves in weights]
        outputs = [plain_mlp(x, own, activation, dtype) for x, own in zip(inputs, layers, strict=True)]
        return jnp.concatenate(outputs, axis=-1)

    return jax.vmap(group)(*operands)


def _plain_tangent(*operands: jax.Array, wrt: tuple[bool, ...], **params: Any) -> jax.Array:
    primals, given = operands[: len(wrt)], iter(operands[len(wrt) :])
    tangents = [next(given) if has else jnp.zeros_like(p) for has, p in zip(wrt, primals, strict=True)]
    return jax.jvp(functools.partial(_plain_forward, **params), primals, tuple(tangents))[1]


def _plain_backward(*operands: jax.Array, wrt: tuple[bool, ...], **params: Any) -> list[jax.Array]:
    *primals, cotangent = operands
    gradients = jax.vjp(functools.partial(_plain_forward, **params), *primals)[1](cotangent)
    return [gradient for gradient, wanted in zip(gradients, wrt, strict=True) if wanted]


def _kernel_forward(*operands: jax.Array, towers: tuple[Widths, ...], activation: str, dtype: Precision) -> jax.Array:
    groups, rows, _ = operands[0].shape
    padded = _padded(towers)
    parts = groups * len(towers)
    many = parts * rows >= 2 * _TILE * _blocks(dtype, "forward2", padded[0])
    tiles = 2 if many else 1  # of 16 rows that a warp works on at once
    most = _blocks(dtype, f"forward{tiles}", padded[0])
    blocks = min(math.ceil(rows / (tiles * _TILE)), math.ceil(most / parts))
    return kernels.call(
        _name(dtype, f"forward{tiles}", padded),
        jax.ShapeDtypeStruct((groups, rows, sum(widths[-1] for widths in towers)), jnp.float32),
        *_kernel_operands(operands, towers),
        _sizes(rows, towers, activation),
        grid=(blocks, len(towers), groups),
        threads=2 * _TILE,
        shared=_forward_memory(dtype, *padded, tiles),
    )


def _kernel_backward(
    *operands: jax.Array, wrt: tuple[bool, ...], towers: tuple[Widths, ...], activation: str, dtype: Precision
) -> list[jax.Array]:
    *primals, cotangent = operands
    inputs, weights = primals[: len(towers)], primals[len(towers) :]
    groups, rows, _ = inputs[0].shape
    padded, of_inputs = _padded(towers), any(wrt[: len(towers)])
    blocks = min(math.ceil(rows / _TILE), math.ceil(_blocks(dtype, "backward", padded[0]) / (groups * len(towers))))
    results = [jax.ShapeDtypeStruct((groups, blocks, sum(map(_num_weights, towers))), jnp.float32)]
    if of_inputs:  # always two: of one tower, the second is empty
        results += [jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in inputs]
        results += [jax.ShapeDtypeStruct((1,), jnp.float32)] * (MOST_TOWERS - len(towers))
    partial, *of_x = kernels.call(
        _name(dtype, "backward_inputs" if of_inputs else "backward", padded),
        results,
        *_kernel_operands(primals, towers),
        _sizes(rows, towers, activation),
        cotangent,
        grid=(blocks, len(towers), groups),
        threads=2 * _TILE,
        shared=_backward_memory(dtype, *padded, of_inputs),
    )
    ends = np.cumsum([math.prod(leaf.shape[1:]) for leaf in weights])
    parts = jnp.split(jnp.sum(partial, axis=1), ends[:-1], axis=1)
    of_weights = [part.reshape(leaf.shape) for part, leaf in zip(parts, weights, strict=True)]
    gradients = [*(of_x[: len(towers)] or inputs), *of_weights]
    return [gradient for gradient, wanted in zip(gradients, wrt, strict=True) if wanted]


def _name(dtype: Precision, form: str, padded: tuple[int, int]) -> str:
    return f"shoal_{SOURCES[dtype]}_{form}_{padded[0]}_{padded[1]}"


def _blocks(dtype: Precision, form: str, inputs: int) -> int:
    """As many as an H200 holds at once: were there more, some would wait; were there fewer, some of it would idle."""
    return kernels.MLP_BLOCKS[SOURCES[dtype], inputs][form] * _PROCESSORS


def _forward_memory(dtype: Precision, inputs: int, outputs: int, tiles: int) -> int:
    """Bytes of shared memory: weights, biases, and inputs of a tile of rows."""
    biases, rows = 2 * _HIDDEN + outputs, tiles * _TILE * _stride(inputs)
    if dtype == "float32":
        return 4 * (_HIDDEN * (inputs + _HIDDEN + outputs) + biases + rows)
    weights = (inputs + _HIDDEN) * _stride(_HIDDEN) + 2 * _HIDDEN * _stride(outputs)
    return 2 * (weights + rows) + 4 * biases


def _backward_memory(dtype: Precision, inputs: int, outputs: int, of_inputs: bool) -> int:
    """Bytes of shared memory: weights, biases, and a tile of rows of inputs, outputs and hidden layers."""
    rows, biases = _TILE * (_stride(inputs) + _stride(outputs)), 2 * _HIDDEN
    if dtype == "float32":  # transposed kernels besides, but hidden layers and their gradients in one place
        weights = _HIDDEN * (inputs * (1 + of_inputs) + 2 * _HIDDEN + outputs)
        return 4 * (weights + biases + rows + 2 * _TILE * _stride(_HIDDEN))
    weights = (inputs + _HIDDEN) * _stride(_HIDDEN) + _HIDDEN * _stride(outputs)
    return 2 * (weights + rows + 4 * _TILE * _stride(_HIDDEN)) + 4 * biases


def _stride(columns: int) -> int:
    return columns + 8


def _where_it_fits(kernel: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    """What is compiled on CUDA."""

    def lower(*operands: jax.Array, **params: Any) -> Any:
        return (kernel if fits_grid(*operands[0].shape[:2]) else plain)(*operands, **params)

    return lower


def _padded(towers: tuple[Widths, ...]) -> tuple[int, int]:
    most_in, most_out = max(widths[0] for widths in towers), max(widths[-1] for widths in towers)
    return next(n for n in kernels.MLP_INPUTS if n >= most_in), next(n for n in kernels.MLP_OUTPUTS if n >= most_out)


def _num_weights(widths: Widths) -> int:
    return sum((i + 1) * o for i, o in itertools.pairwise(widths))


def _kernel_operands(operands: Sequence[jax.Array], towers: tuple[Widths, ...]) -> list[jax.Array]:
    """Inputs and weights as the kernels take them: of two towers with three layers each, missing ones repeated."""
    found = []
    for x, leaves in zip(operands, _split(operands[len(towers) :], towers), strict=False):
        found.append([x, *leaves[:2], *(leaves[2:4] if len(leaves) == 2 * _LAYERS else leaves[:2]), *leaves[-2:]])
    return found[0] + found[-1]


def _sizes(rows: int, towers: tuple[Widths, ...], activation: str) -> jax.Array:
    """The real sizes, as the kernels read them."""
    outputs, weights = sum(widths[-1] for widths in towers), sum(map(_num_weights, towers))
    sizes = [rows, outputs, weights, list(ACTIVATIONS).index(activation)]
    weights = outputs = 0
    for widths in towers:
        hidden = (*widths[1:-1], 0)[: _LAYERS - 1]
        sizes += [widths[0], *hidden, widths[-1], weights, outputs, 0, 0]
        weights, outputs = weights + _num_weights(widths), outputs + widths[-1]
    return jnp.array(sizes, jnp.int32)


def _shape_of_outputs(*operands: Any, towers: tuple[Widths, ...], **params: Any) -> Any:
    del params
    groups, rows, _ = operands[0].shape
    return ShapedArray((groups, rows, sum(widths[-1] for widths in towers)), jnp.float32)


def _shapes_of_gradients(*operands: Any, wrt: tuple[bool, ...], **params: Any) -> list[Any]:
    del params
    return [ShapedArray(leaf.shape, leaf.dtype) for leaf, wanted in zip(operands, wrt, strict=False) if wanted]


def _jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    wrt = tuple(type(tangent) is not ad.Zero for tangent in tangents)
    given = [tangent for tangent, has in zip(tangents, wrt, strict=True) if has]
    return _forward.bind(*primals, **params), _tangent.bind(*primals, *given, wrt=wrt, **params)


def _plain_jvp(plain: Callable[..., Any], primals: Any, tangents: Any, **params: Any) -> Any:
    return jax.jvp(functools.partial(plain, **params), tuple(primals), tuple(map(ad.instantiate_zeros, tangents)))


def _transpose(cotangent: Any, *operands: Any, wrt: tuple[bool, ...], **params: Any) -> list[Any]:
    primals = operands[: len(wrt)]
    if type(cotangent) is ad.Zero:
        return [None] * len(primals) + [ad.Zero(tangent.aval) for tangent in operands[len(wrt) :]]
    return [None] * len(primals) + _backward.bind(*primals, cotangent, wrt=wrt, **params)


def _batch_forward(args: Any, dims: Any, **params: Any) -> Any:
    towers = len(params["towers"])
    return _batch(_forward, [i < towers for i in range(len(args))], args, dims, params)


def _batch_tangent(args: Any, dims: Any, wrt: tuple[bool, ...], **params: Any) -> Any:
    rows = [i < len(params["towers"]) for i in range(len(wrt))]
    rows += [row for row, has in zip(rows, wrt, strict=True) if has]
    return _batch(_tangent, rows, args, dims, params | {"wrt": wrt})


def _batch_backward(args: Any, dims: Any, **params: Any) -> Any:
    """Every mapped sample has gradients of its own: groups."""
    size = _mapped_size(args, dims)
    groups = [_as_groups(arg, dim, size) for arg, dim in zip(args, dims, strict=True)]
    results = _backward.bind(*groups, **params)
    own = _shape(args[0], dims[0])[0]
    return [leaf.reshape(size, own, *leaf.shape[1:]) for leaf in results], [0] * len(results)


def _batch(primitive: Primitive, rows: list[bool], args: Any, dims: Any, params: dict[str, Any]) -> Any:
    """Mapped samples become rows where no weights are mapped, and groups where some are. rows: operands with rows."""
    size = _mapped_size(args, dims)
    operands = list(zip(args, dims, rows, strict=True))
    own_groups, own_rows, _ = _shape(args[0], dims[0])  # -1 would not do: any of them may be 0
    if any(dim is not None for _, dim, has_rows in operands if not has_rows):
        result = primitive.bind(*(_as_groups(arg, dim, size) for arg, dim, _ in operands), **params)
        return result.reshape(size, own_groups, *result.shape[1:]), 0
    merged = (_as_rows(arg, dim, size) if has_rows else arg for arg, dim, has_rows in operands)
    result = primitive.bind(*merged, **params)
    return result.reshape(own_groups, size, own_rows, result.shape[-1]), 1


def _mapped_size(args: Any, dims: Any) -> int:
    return next(arg.shape[dim] for arg, dim in zip(args, dims, strict=True) if dim is not None)


def _shape(arg: jax.Array, dim: int | None) -> tuple[int, ...]:
    """The shape of one mapped sample."""
    return arg.shape if dim is None else (*arg.shape[:dim], *arg.shape[dim + 1 :])


def _lead(arg: jax.Array, dim: int | None, size: int) -> jax.Array:
    return jnp.broadcast_to(arg, (size, *arg.shape)) if dim is None else jnp.moveaxis(arg, dim, 0)


def _as_groups(arg: jax.Array, dim: int | None, size: int) -> jax.Array:
    mapped = _lead(arg, dim, size)
    return mapped.reshape(size * mapped.shape[1], *mapped.shape[2:])


def _as_rows(arg: jax.Array, dim: int | None, size: int) -> jax.Array:
    """`[size, groups, rows, n]` to `[groups, size * rows, n]`."""
    mapped = jnp.moveaxis(_lead(arg, dim, size), 0, 1)
    return mapped.reshape(mapped.shape[0], size * mapped.shape[2], mapped.shape[-1])


# The kernels are tried before they are trusted.


def make_trial(towers: Sequence[Widths], activation: str, dtype: Precision = "float32") -> trust.Trial:
    """The trial of the kernels that networks of these widths need: forward and backward, in one padded size."""
    inputs, outputs = _padded(tuple(towers))
    measure = functools.partial(_measure_error, inputs, outputs, activation, dtype)
    name, which = f"{inputs} inputs, {outputs} outputs, {activation}", "" if dtype == "float32" else f" in {dtype}"
    instead = f"small networks{which} are computed layer by layer"
    return trust.Trial(SOURCES[dtype], name, CAPABILITY, instead, measure, TOLERANCE)


def _measure_error(inputs: int, outputs: int, activation: str, dtype: Precision) -> float:
    """The largest relative error of outputs and gradients beside the plain form, which a CPU computes if there is one.

    That computes in float32 in any case. Compiling is what a trial takes its time for: nothing but the two programs is
    compiled.
    """

    def plain(inputs: Any, towers: Any, activation: str) -> list[jax.Array]:
        return [plain_mlp(x, layers, activation) for x, layers in zip(inputs, towers, strict=True)]

    def fused(inputs: Any, towers: Any, activation: str) -> list[jax.Array]:
        return mlp(inputs, towers, activation, dtype)

    drawn = _draw_trial(inputs, outputs)
    with jax.default_matmul_precision("highest"):
        found = jax.jit(functools.partial(_try_all, fused, activation))(*drawn)
        with trust.on_host():
            expected = jax.jit(functools.partial(_try_all, plain, activation))(*drawn)
    pairs = zip(*map(jax.tree.leaves, jax.device_get((found, expected))), strict=True)
    return float(np.max([np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in pairs]))


def _draw_trial(inputs: int, outputs: int) -> tuple[Any, Any, np.ndarray]:
    """Two towers of a size, rows for them, and weights of their outputs in a loss.

    All are quarters, which TF32 and bfloat16 hold exactly: else rounding would carry some numbers over the kink of a
    relu.
    """
    widths = (inputs - 3, 64, 48, outputs - 1), (inputs - 9, 40, outputs)
    random = np.random.default_rng(0)

    def draw(*shape: int, scale: float = 1.0) -> np.ndarray:
        return (np.round(4 * scale * random.standard_normal(shape)) / 4).astype(np.float32)

    towers = [[(draw(i, o, scale=i**-0.5), draw(o)) for i, o in itertools.pairwise(sizes)] for sizes in widths]
    count = 2 * _TILE * max(_blocks(dtype, "forward2", inputs) for dtype in SOURCES) // MOST_TOWERS + 100
    return towers, [draw(count, sizes[0]) for sizes in widths], draw(count, sum(sizes[-1] for sizes in widths))


def _try_all(compute: Callable[..., list[jax.Array]], activation: str, towers: Any, rows: Any, of_loss: Any) -> Any:
    """Few rows without, and many with gradients of the inputs: these are all four kernels of a size."""

    def loss(towers: Any, rows: Any) -> tuple[jax.Array, jax.Array]:
        y = jax.vmap(lambda *x: jnp.concatenate(compute(x, towers, activation)))(*rows)
        return jnp.sum(y * of_loss[: len(y)]), y

    few = jax.grad(loss, has_aux=True)(towers, [x[:200] for x in rows])
    return few, jax.grad(loss, (0, 1), has_aux=True)(towers, rows)


_forward.def_impl(_plain_forward)
_tangent.def_impl(_plain_tangent)
_backward.def_impl(_plain_backward)
_forward.def_abstract_eval(_shape_of_outputs)
_tangent.def_abstract_eval(_shape_of_outputs)
_backward.def_abstract_eval(_shapes_of_gradients)
ad.primitive_jvps[_forward] = _jvp
ad.primitive_transposes[_tangent] = _transpose
ad.primitive_jvps[_tangent] = functools.partial(_plain_jvp, _plain_tangent)  # derivatives of derivatives
ad.primitive_jvps[_backward] = functools.partial(_plain_jvp, _plain_backward)
batching.primitive_batchers[_forward] = _batch_forward
batching.primitive_batchers[_tangent] = _batch_tangent
batching.primitive_batchers[_backward] = _batch_backward
mlir.register_lowering(_forward, mlir.lower_fun(_plain_forward, multiple_results=False))
mlir.register_lowering(_tangent, mlir.lower_fun(_plain_tangent, multiple_results=False))
mlir.register_lowering(_backward, mlir.lower_fun(_plain_backward, multiple_results=True))
_cuda_forward, _cuda_backward = (
    _where_it_fits(*both) for both in ((_kernel_forward, _plain_forward), (_kernel_backward, _plain_backward))
)
mlir.register_lowering(_forward, mlir.lower_fun(_cuda_forward, multiple_results=False), platform="cuda")
mlir.register_lowering(_backward, mlir.lower_fun(_cuda_backward, multiple_results=True), platform="cuda")
