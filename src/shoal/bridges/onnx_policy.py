"""Trained policies as ONNX: one file that onnxruntime, and whatever else reads ONNX, computes actions with.

`save_onnx(policy, path)` writes the graph of a `NumpyPolicy`. Axis 0 of everything is a batch of any size.

Inputs: `observation`, or `observation.NAME` for each part of a view (uint8 where the view is, else float32); `legal`
(bool), where actions are choices; `memory0` and, of an LSTM, `memory1`, where the network is recurrent: zeros at the
start of an episode. Outputs: `action` (the best one), `numbers` as in `PolicyOutput`, and `next_memory0`, ...

    policy = export(params["agent"], shoal.describe(env).groups["agent"].observation)
    save_onnx(policy, "agent.onnx")
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from shoal.bridges.plain_policy import ILLEGAL, NORM_EPS, NumpyPolicy, conv_sides, conv_stride, input_dtype, with_ending
from shoal.core.errors import OptionError, install_command
from shoal.core.files import write_atomically

OPSET, IR_VERSION = 17, 8
"""The first set of operators with layer norm, and the file format of its time: older runtimes read them, too."""


def save_onnx(policy: NumpyPolicy, path: str | Path) -> Path:
    """Writes a policy as an ONNX file."""
    onnx = _onnx()
    graph = _Graph(onnx)
    x = _encoded(graph, policy)
    choices = policy.actions.kind != "box"
    if choices:
        graph.declare("legal", onnx.TensorProto.BOOL, (sum(policy.actions.sizes),))
    count = 0
    while f"layer{count}/kernel" in policy.arrays:
        x = _layer_norm(graph, policy, count, _dense(graph, policy, f"layer{count}", x))
        x = _activate(graph, policy.activation, x)
        count += 1
    numbers = _head(graph, policy, _cell(graph, policy, x))
    if choices:
        numbers = graph.add("Where", "legal", numbers, graph.constant(np.float32(ILLEGAL)))
    action = _choices(graph, policy, numbers) if choices else _point(graph, policy, numbers)
    graph.result("action", action, _action_type(onnx, policy), _action_shape(policy))
    graph.result("numbers", numbers, onnx.TensorProto.FLOAT, (None,))
    path = with_ending(path, ".onnx")
    model = graph.model({"actions": policy.actions.kind, "sizes": json.dumps(policy.actions.sizes)})
    write_atomically(path, model.SerializeToString())
    return path


def _onnx() -> Any:
    try:
        import onnx  # pyright: ignore[reportMissingImports]
        import onnx.helper  # pyright: ignore[reportMissingImports]
        import onnx.numpy_helper  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise OptionError(f"export: the format onnx needs the package onnx: {install_command('onnx')}") from error
    return onnx


class _Graph:
    """Nodes, constants, inputs and outputs as they are added; a value is known by its name."""

    def __init__(self, onnx: Any):
        self.onnx = onnx
        self.nodes, self.constants, self.inputs, self.outputs = [], [], [], []

    def constant(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        whole = np.ascontiguousarray(array).reshape(np.shape(array))  # a number stays one
        self.constants.append(self.onnx.numpy_helper.from_array(whole, name))
        return name

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        return self.split(kind, 1, *inputs, **attributes)[0]

    def split(self, kind: str, count: int, *inputs: str, **attributes: Any) -> list[str]:
        names = [f"v{len(self.nodes)}.{i}" for i in range(count)]
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), names, **attributes))
        return names

    def declare(self, name: str, kind: int, shape: tuple[int, ...]) -> str:
        self.inputs.append(self.onnx.helper.make_tensor_value_info(name, kind, ["batch", *shape]))
        return name

    def result(self, name: str, value: str, kind: int, shape: tuple[int | None, ...]) -> None:
        self.nodes.append(self.onnx.helper.make_node("Identity", [value], [name]))
        self.outputs.append(self.onnx.helper.make_tensor_value_info(name, kind, ["batch", *shape]))

    def model(self, about: dict[str, str]) -> Any:
        helper = self.onnx.helper
        graph = helper.make_graph(self.nodes, "policy", self.inputs, self.outputs, self.constants)
        opset = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION, producer_name="shoal")
        helper.set_model_props(model, about)
        self.onnx.checker.check_model(model)
        return model


def _encoded(graph: _Graph, policy: NumpyPolicy) -> str:
    parts = []
    for i, (name, shape) in enumerate(policy.leaves):
        scaled = input_dtype(policy, i) == "uint8"
        kind = graph.onnx.TensorProto.UINT8 if scaled else graph.onnx.TensorProto.FLOAT
        x = graph.declare(f"observation.{name}" if name else "observation", kind, shape)
        x = graph.add("Cast", x, to=graph.onnx.TensorProto.FLOAT) if scaled else x
        if f"mean{i}" in policy.arrays:
            mean, std = graph.constant(policy.arrays[f"mean{i}"]), graph.constant(policy.arrays[f"std{i}"])
            x, scaled = graph.add("Div", graph.add("Sub", x, mean), std), False
        size = math.prod(shape)
        if len(shape) == 3:
            x = graph.add("Div", x, graph.constant(np.float32(255))) if scaled else x
            x, size = _convolved(graph, policy, i, x, shape)
        parts.append(graph.add("Reshape", x, graph.constant(np.array([-1, size], np.int64))))
    return graph.add("Concat", *parts, axis=1)


def _convolved(graph: _Graph, policy: NumpyPolicy, leaf: int, x: str, shape: tuple[int, ...]) -> tuple[str, int]:
    """The image after its convolutions, channels last, and how many numbers it has."""
    x, sides, channels, count = graph.add("Transpose", x, perm=[0, 3, 1, 2]), shape[:2], shape[2], 0
    while f"conv{leaf}.{count}/kernel" in policy.arrays:
        kernel, bias = policy.arrays[f"conv{leaf}.{count}/kernel"], policy.arrays[f"conv{leaf}.{count}/bias"]
        stride = conv_stride(sides)
        (rows, above, below), (columns, left, right) = conv_sides(sides, stride)
        weights = graph.constant(kernel.transpose(3, 2, 0, 1))
        pads, steps = [above, left, below, right], [stride, stride]
        x = graph.add("Conv", x, weights, graph.constant(bias), kernel_shape=[3, 3], pads=pads, strides=steps)
        x, sides, channels = _activate(graph, policy.activation, x), (rows, columns), kernel.shape[-1]
        count += 1
    return graph.add("Transpose", x, perm=[0, 2, 3, 1]), math.prod(sides) * channels


def _dense(graph: _Graph, policy: NumpyPolicy, name: str, x: str) -> str:
    product = graph.add("MatMul", x, graph.constant(policy.arrays[f"{name}/kernel"]))
    return graph.add("Add", product, graph.constant(policy.arrays[f"{name}/bias"]))


def _layer_norm(graph: _Graph, policy: NumpyPolicy, layer: int, x: str) -> str:
    if not policy.layer_norm:
        return x
    scale, bias = (graph.constant(policy.arrays[f"norm{layer}/{part}"]) for part in ("scale", "bias"))
    return graph.add("LayerNormalization", x, scale, bias, axis=-1, epsilon=NORM_EPS)


def _activate(graph: _Graph, activation: str, x: str) -> str:
    def constant(number: float) -> str:
        return graph.constant(np.float32(number))

    match activation:
        case "relu":
            return graph.add("Relu", x)
        case "gelu":  # by tanh
            cube = graph.add("Mul", x, graph.add("Mul", x, x))
            inner = graph.add("Add", x, graph.add("Mul", constant(0.044715), cube))
            tanh = graph.add("Tanh", graph.add("Mul", constant(math.sqrt(2 / math.pi)), inner))
            return graph.add("Mul", graph.add("Mul", constant(0.5), x), graph.add("Add", constant(1), tanh))
        case "silu":
            return graph.add("Mul", x, graph.add("Sigmoid", x))
        case _:
            return graph.add("Tanh", x)


def _cell(graph: _Graph, policy: NumpyPolicy, x: str) -> str:
    """The recurrent cell, if there is one: memory is an input and an output."""
    initial = policy.initial_memory()
    kind = graph.onnx.TensorProto.FLOAT
    memory = [graph.declare(f"memory{i}", kind, part.shape) for i, part in enumerate(initial)]
    if not memory:
        return x
    x, kept = {"gru": _gru, "lstm": _lstm, "min_gru": _min_gru}[policy.recurrent](graph, policy, x, memory)
    for i, (value, part) in enumerate(zip(kept, initial, strict=True)):
        graph.result(f"next_memory{i}", value, kind, part.shape)
    return x


def _gru(graph: _Graph, policy: NumpyPolicy, x: str, memory: list[str]) -> tuple[str, list[str]]:
    (h,) = memory
    sizes = graph.constant(np.full(3, policy.arrays["cell/kernel"].shape[0], np.int64))
    reset, update, new = graph.split("Split", 3, _dense(graph, policy, "cell/inputs", x), sizes, axis=-1)
    recurrent = graph.add("MatMul", h, graph.constant(policy.arrays["cell/kernel"]))
    by_reset, by_update, by_new = graph.split("Split", 3, recurrent, sizes, axis=-1)
    by_new = graph.add("Add", by_new, graph.constant(policy.arrays["cell/bias"]))
    by_new = graph.add("Mul", graph.add("Sigmoid", graph.add("Add", reset, by_reset)), by_new)
    new = graph.add("Tanh", graph.add("Add", new, by_new))
    gate = graph.add("Sigmoid", graph.add("Add", update, by_update))
    h = graph.add("Add", new, graph.add("Mul", gate, graph.add("Sub", h, new)))
    return h, [h]


def _lstm(graph: _Graph, policy: NumpyPolicy, x: str, memory: list[str]) -> tuple[str, list[str]]:
    c, h = memory
    sizes = graph.constant(np.full(4, policy.arrays["cell/kernel"].shape[0], np.int64))
    recurrent = graph.add("MatMul", h, graph.constant(policy.arrays["cell/kernel"]))
    gates = graph.add("Add", _dense(graph, policy, "cell/inputs", x), recurrent)
    enter, forget, new, out = graph.split("Split", 4, gates, sizes, axis=-1)
    kept = graph.add("Mul", graph.add("Sigmoid", forget), c)
    c = graph.add("Add", kept, graph.add("Mul", graph.add("Sigmoid", enter), graph.add("Tanh", new)))
    h = graph.add("Mul", graph.add("Sigmoid", out), graph.add("Tanh", c))
    return h, [c, h]


def _min_gru(graph: _Graph, policy: NumpyPolicy, x: str, memory: list[str]) -> tuple[str, list[str]]:
    (h,) = memory
    sizes = graph.constant(np.full(2, policy.initial_memory()[0].size, np.int64))
    update, new = graph.split("Split", 2, _dense(graph, policy, "cell/inputs", x), sizes, axis=-1)
    h = graph.add("Add", h, graph.add("Mul", graph.add("Sigmoid", update), graph.add("Sub", new, h)))
    return h, [h]


def _head(graph: _Graph, policy: NumpyPolicy, x: str) -> str:
    out = _dense(graph, policy, "head", x)
    if "log_std" in policy.arrays:
        zeros = graph.add("Mul", out, graph.constant(np.float32(0)))  # has the shape that log_std takes
        out = graph.add("Concat", out, graph.add("Add", zeros, graph.constant(policy.arrays["log_std"])), axis=-1)
    if "base/kernel" not in policy.arrays or policy.actions.kind == "box":
        return out
    means = [graph.add("Sub", part, graph.add("ReduceMean", part, axes=[-1])) for part in _parts(graph, policy, out)]
    return graph.add("Add", _dense(graph, policy, "base", x), graph.add("Concat", *means, axis=-1))


def _parts(graph: _Graph, policy: NumpyPolicy, numbers: str) -> list[str]:
    sizes = policy.actions.sizes
    return graph.split("Split", len(sizes), numbers, graph.constant(np.array(sizes, np.int64)), axis=-1)


def _choices(graph: _Graph, policy: NumpyPolicy, numbers: str) -> str:
    several = policy.actions.kind == "multi_discrete"
    best = [graph.add("ArgMax", part, axis=-1, keepdims=int(several)) for part in _parts(graph, policy, numbers)]
    chosen = graph.add("Concat", *best, axis=-1) if several else best[0]
    return graph.add("Cast", chosen, to=graph.onnx.TensorProto.INT32)


def _point(graph: _Graph, policy: NumpyPolicy, numbers: str) -> str:
    box = policy.actions
    ends = [graph.constant(np.array([end], np.int64)) for end in (0, math.prod(box.shape), -1)]
    point = graph.add("Slice", numbers, *ends)
    if math.isfinite(box.low) and math.isfinite(box.high):
        low, high = graph.constant(np.float32(box.low)), graph.constant(np.float32(box.high))
        raised = graph.add("Add", graph.add("Tanh", point), graph.constant(np.float32(1)))
        half = graph.constant(np.float32(0.5 * (box.high - box.low)))
        point = graph.add("Clip", graph.add("Add", low, graph.add("Mul", half, raised)), low, high)
    point = graph.add("Reshape", point, graph.constant(np.array([-1, *box.shape], np.int64)))
    return graph.add("Cast", point, to=_action_type(graph.onnx, policy))


def _action_type(onnx: Any, policy: NumpyPolicy) -> int:
    box = policy.actions.kind == "box"
    return onnx.helper.np_dtype_to_tensor_dtype(np.dtype(policy.actions.dtype)) if box else onnx.TensorProto.INT32


def _action_shape(policy: NumpyPolicy) -> tuple[int, ...]:
    match policy.actions.kind:
        case "discrete":
            return ()
        case "multi_discrete":
            return (len(policy.actions.sizes),)
        case _:
            return policy.actions.shape
