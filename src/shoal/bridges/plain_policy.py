"""A policy in plain numpy: this file and a `.npz` file are all that it takes to run one, without JAX and without Shoal.

`load(path)` gives a `NumpyPolicy`, a function from a view to an action; `shoal.bridges.numpy_policy.export` makes them.
Copy this file to wherever the policy is to run. Nothing in a `.npz` file is run: it is read without pickle.
"""

import dataclasses
import functools
import json
import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

VERSION = 1
ILLEGAL = -1e9
_SMALL_SIDE = 8
NORM_EPS = 1e-6
GATES = {"gru": 3, "lstm": 4, "min_gru": 2}  # of recurrent cells: numbers that the input adds for each unit


class PolicyOutput(NamedTuple):
    """A policy's output, with the leading axes of the view.

    action: as the world takes it. numbers: logits or values of the choices (those of illegal ones are -1e9); of a box,
    means and, where the policy has them, log standard deviations, before squashing. memory: for the next step.
    """

    action: np.ndarray
    numbers: np.ndarray
    memory: tuple[np.ndarray, ...]


@dataclasses.dataclass(frozen=True)
class Actions:
    """What actions are. kind: discrete, multi_discrete or box. sizes: choices of each part. The rest is for boxes."""

    kind: str
    sizes: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    low: float = -math.inf
    high: float = math.inf
    dtype: str = "float32"


@dataclasses.dataclass(frozen=True, eq=False)
class NumpyPolicy:
    """An actor as arrays.

    arrays: weights by name. actions: what it chooses among. leaves: names and shapes of the parts of a view, in order;
    one part without a name is a view that is an array. activation, recurrent, layer_norm: of the network. sampled:
    whether its numbers describe chances to draw from (of values of choices, or of a DDPG actor, the best is taken).
    dtypes: of the parts of a view, in order, for formats whose inputs have types; empty if they are not known.
    """

    arrays: Mapping[str, np.ndarray]
    actions: Actions
    leaves: tuple[tuple[str, tuple[int, ...]], ...]
    activation: str = "tanh"
    recurrent: str = "none"
    layer_norm: bool = False
    sampled: bool = True
    dtypes: tuple[str, ...] = ()

    def initial_memory(self, *leading: int) -> tuple[np.ndarray, ...]:
        """Memory at the start of an episode, for views with these leading axes; empty without a recurrent cell."""
        if self.recurrent == "none":
            return ()
        size = self.arrays["cell/inputs/bias"].size // GATES[self.recurrent]
        return tuple(np.zeros((*leading, size), np.float32) for _ in range(2 if self.recurrent == "lstm" else 1))

    def __call__(
        self,
        view: Any,
        legal: np.ndarray | None = None,
        memory: tuple[np.ndarray, ...] = (),
        generator: np.random.Generator | None = None,
    ) -> PolicyOutput:
        """The best action for a view `[..., *shape]`; with a generator, a draw from the policy.

        view: array, or dict of arrays with one key a part. legal: bool `[..., num_logits]`. memory: what the last call
        gave back; left out, that of an episode's start. Copies of a world, or agents, are leading axes of all of these.
        """
        x = self._encoded(self._parts(view))
        lead = x.shape[:-1]
        legal = None if legal is None or self.actions.kind == "box" else self._legal(legal, lead)
        self._check_memory(memory, lead)
        count = 0
        while f"layer{count}/kernel" in self.arrays:
            x = self._activate(self._layer_norm(count, self._dense(f"layer{count}", x)))
            count += 1
        if self.recurrent != "none":
            memory = memory or self.initial_memory(*x.shape[:-1])
            cell = {"gru": self._gru, "lstm": self._lstm, "min_gru": self._min_gru}[self.recurrent]
            x, memory = cell(x, memory)
        numbers = self._head(x)
        if self.actions.kind == "box":
            return PolicyOutput(self._point(numbers, generator), numbers, memory)
        numbers = numbers if legal is None else np.where(legal, numbers, np.float32(ILLEGAL))
        chosen = [self._choice(part, generator) for part in _split(self.actions, numbers)]
        action = chosen[0] if self.actions.kind == "discrete" else np.stack(chosen, -1)
        return PolicyOutput(action, numbers, memory)

    def save(self, path: str | Path) -> Path:
        """Writes everything into one `.npz` file."""
        path = with_ending(path, ".npz")
        fields = {"leaves": self.leaves, "activation": self.activation, "recurrent": self.recurrent}
        fields |= {"actions": dataclasses.asdict(self.actions), "layer_norm": self.layer_norm, "sampled": self.sampled}
        about = {"version": VERSION, "dtypes": self.dtypes, **fields}
        named: dict[str, Any] = {f"array:{name}": array for name, array in self.arrays.items()}
        partial = path.with_name(f".{path.name}.partial")  # so that half a file is never read
        try:
            with open(partial, "wb") as file:
                np.savez(file, about=np.array(json.dumps(about)), **named)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
        return path

    # The network, layer by layer.

    def _parts(self, view: Any) -> list[np.ndarray]:
        named = {"": view} if not isinstance(view, Mapping) else flat(view)
        if set(named) != {name for name, _ in self.leaves}:
            wanted = [name or "one array" for name, _ in self.leaves]
            raise ValueError(f"NumpyPolicy: a view must have the parts {wanted}, got {sorted(named)}")
        parts = [np.asarray(named[name]) for name, _ in self.leaves]
        for part, (name, shape) in zip(parts, self.leaves, strict=True):
            if part.shape[part.ndim - len(shape) :] != shape or part.ndim < len(shape):
                raise ValueError(f"NumpyPolicy: the view {name!r} must end in {shape}, got {part.shape}")
            if part.dtype.kind not in "biuf":
                raise ValueError(f"NumpyPolicy: the view {name!r} must be numbers, got {part.dtype}")
            if not np.isfinite(part).all():
                raise ValueError(f"NumpyPolicy: the view {name!r} has entries that are NaN or infinite")
        return parts

    def _legal(self, legal: Any, lead: tuple[int, ...]) -> np.ndarray:
        legal, width = np.asarray(legal, bool), sum(self.actions.sizes)
        if legal.shape not in ((*lead, width), (width,)):
            raise ValueError(f"NumpyPolicy: legal must have the shape {(*lead, width)}, got {legal.shape}")
        if not all(part.any(-1).all() for part in _split(self.actions, legal)):
            raise ValueError("NumpyPolicy: legal has a row in which no action is legal")
        return legal

    def _check_memory(self, memory: Any, lead: tuple[int, ...]) -> None:
        wanted = [part.shape for part in self.initial_memory(*lead)]
        got = [np.shape(part) for part in memory]
        if got and got != wanted:
            raise ValueError(
                f"NumpyPolicy: memory must be arrays of the shapes {wanted}, as the last call gave, got {got}"
            )

    def _encoded(self, parts: list[np.ndarray]) -> np.ndarray:
        out = []
        for i, (leaf, (_, shape)) in enumerate(zip(parts, self.leaves, strict=True)):
            # Normalised views are floats before the network sees them: whole numbers are scaled down otherwise only.
            x, scaled = leaf.astype(np.float32), leaf.dtype == np.uint8
            if f"mean{i}" in self.arrays:
                x, scaled = (x - self.arrays[f"mean{i}"]) / self.arrays[f"std{i}"], False
            x = self._convolved(i, x / np.float32(255) if scaled else x) if len(shape) == 3 else x
            leading = leaf.shape[: leaf.ndim - len(shape)]
            out.append(x.reshape(*leading, math.prod(x.shape[len(leading) :])))
        return np.concatenate(out, -1)

    def _convolved(self, leaf: int, x: np.ndarray) -> np.ndarray:
        count = 0
        while f"conv{leaf}.{count}/kernel" in self.arrays:
            kernel, bias = self.arrays[f"conv{leaf}.{count}/kernel"], self.arrays[f"conv{leaf}.{count}/bias"]
            x = self._activate(_convolve(x, kernel, conv_stride(x.shape[-3:-1])) + bias)
            count += 1
        return x

    def _dense(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self.arrays[f"{name}/kernel"] + self.arrays[f"{name}/bias"]

    def _layer_norm(self, layer: int, x: np.ndarray) -> np.ndarray:
        if not self.layer_norm:
            return x
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + np.float32(NORM_EPS))
        return scaled * self.arrays[f"norm{layer}/scale"] + self.arrays[f"norm{layer}/bias"]

    def _activate(self, x: np.ndarray) -> np.ndarray:
        match self.activation:
            case "relu":
                return np.maximum(x, np.float32(0))
            case "gelu":  # by tanh
                inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x**3)
                return np.float32(0.5) * x * (np.float32(1) + np.tanh(inner))
            case "silu":
                return x * _sigmoid(x)
            case _:
                return np.tanh(x)

    def _gru(self, x: np.ndarray, memory: tuple[np.ndarray, ...]) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        (h,) = memory
        reset, update, new = np.split(self._dense("cell/inputs", x), 3, -1)
        by_reset, by_update, by_new = np.split(h @ self.arrays["cell/kernel"], 3, -1)
        new = np.tanh(new + _sigmoid(reset + by_reset) * (by_new + self.arrays["cell/bias"]))
        h = new + _sigmoid(update + by_update) * (h - new)
        return h, (h,)

    def _lstm(self, x: np.ndarray, memory: tuple[np.ndarray, ...]) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        c, h = memory
        gates = self._dense("cell/inputs", x) + h @ self.arrays["cell/kernel"]
        enter, forget, new, out = np.split(gates, 4, -1)
        c = _sigmoid(forget) * c + _sigmoid(enter) * np.tanh(new)
        h = _sigmoid(out) * np.tanh(c)
        return h, (c, h)

    def _min_gru(self, x: np.ndarray, memory: tuple[np.ndarray, ...]) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        (h,) = memory
        update, new = np.split(self._dense("cell/inputs", x), 2, -1)
        h = h + _sigmoid(update) * (new - h)
        return h, (h,)

    def _head(self, x: np.ndarray) -> np.ndarray:
        out = self._dense("head", x)
        if "log_std" in self.arrays:
            out = np.concatenate([out, np.broadcast_to(self.arrays["log_std"], out.shape)], -1)
        if "base/kernel" not in self.arrays or self.actions.kind == "box":
            return out
        centred = [part - part.mean(-1, keepdims=True) for part in _split(self.actions, out)]
        return self._dense("base", x) + np.concatenate(centred, -1)

    # From numbers to an action.

    def _choice(self, logits: np.ndarray, generator: np.random.Generator | None) -> np.ndarray:
        if generator is not None and self.sampled:
            logits = logits + generator.gumbel(size=logits.shape)
        return logits.argmax(-1).astype(np.int32)

    def _point(self, numbers: np.ndarray, generator: np.random.Generator | None) -> np.ndarray:
        box = self.actions
        width = math.prod(box.shape)
        point = numbers[..., :width]
        if generator is not None and self.sampled:
            point = point + np.exp(numbers[..., width:]) * generator.standard_normal(point.shape, np.float32)
        if math.isfinite(box.low) and math.isfinite(box.high):
            half = np.float32(0.5 * (box.high - box.low))
            point = np.clip(np.float32(box.low) + half * (np.tanh(point) + np.float32(1)), box.low, box.high)
        return point.reshape(*point.shape[:-1], *box.shape).astype(box.dtype)


def load(path: str | Path) -> NumpyPolicy:
    """A policy that `NumpyPolicy.save` wrote. Nothing in the file is run."""
    try:
        if not zipfile.is_zipfile(path):  # else numpy would advise to unpickle it
            Path(path).open("rb").close()  # says it if there is none, or it must not be read
            raise ValueError("it is not a .npz file")
        with np.load(path, allow_pickle=False) as file:
            if "about" not in file.files:
                raise ValueError("it is a .npz file of something else")
            about = json.loads(str(file["about"]))
            arrays = {name.removeprefix("array:"): file[name] for name in file.files if name.startswith("array:")}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        pickled = "allow_pickle" in str(error)  # numpy's advice to allow it is not for files of others
        why = "it holds pickled objects, which are never read" if pickled else error
        raise ValueError(f"{path} is no exported policy: {why}") from error
    if about.get("version") != VERSION:
        raise ValueError(f"{path} was written by another version of the format: {about.get('version')}, not {VERSION}")
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in about["actions"].items()
    }
    leaves = tuple((name, tuple(shape)) for name, shape in about["leaves"])
    rest = {name: about[name] for name in ("activation", "recurrent", "layer_norm", "sampled")}
    return NumpyPolicy(arrays, Actions(**fields), leaves, **rest, dtypes=tuple(about.get("dtypes", ())))


def input_dtype(policy: NumpyPolicy, leaf: int) -> str:
    """The dtype of a part of the view; images are refused if it is not known, as uint8 is scaled and float32 is not."""
    name, shape = policy.leaves[leaf]
    if not policy.dtypes and len(shape) == 3:
        raise ValueError(f"NumpyPolicy: the dtype of the view {name!r}, an image, is not known: set dtypes")
    return policy.dtypes[leaf] if policy.dtypes else "float32"


def with_ending(path: str | Path, ending: str) -> Path:
    """The path with this ending, which is added if it is not there."""
    path = Path(path)
    return path if path.suffix == ending else path.with_name(path.name + ending)


def flat(tree: Any, separator: str = ".") -> dict[str, Any]:
    """Leaves of nested dicts by the path to them, in JAX's order; a tree that is one leaf has the name ''."""
    if not isinstance(tree, Mapping):
        return {"": tree}
    found = {}
    for key in sorted(tree):
        found |= {
            separator.join(filter(None, (str(key), name))): leaf for name, leaf in flat(tree[key], separator).items()
        }
    return found


def _split(actions: Actions, numbers: np.ndarray) -> list[np.ndarray]:
    return np.split(numbers, np.cumsum(actions.sizes)[:-1], -1)


def conv_stride(sides: tuple[int, ...]) -> int:
    """The stride of a convolution over an image with these sides."""
    return 1 if min(sides) <= _SMALL_SIDE else 2


def conv_sides(sides: tuple[int, ...], stride: int) -> list[tuple[int, int, int]]:
    """Of each side of an image: how many places a 3×3 convolution has, and the zeros before and after."""
    found = []
    for size in sides:
        places = -(-size // stride)
        padding = max((places - 1) * stride + 3 - size, 0)
        found.append((places, padding // 2, padding - padding // 2))
    return found


def _convolve(x: np.ndarray, kernel: np.ndarray, stride: int) -> np.ndarray:
    """3×3, edges padded with zeros; every tap of the kernel is one product."""
    (rows, *above), (columns, *left) = conv_sides(x.shape[-3:-1], stride)
    padded = np.pad(x, [(0, 0)] * (x.ndim - 3) + [tuple(above), tuple(left), (0, 0)])
    down, across = (rows - 1) * stride + 1, (columns - 1) * stride + 1
    taps = (
        padded[..., i : i + down : stride, j : j + across : stride, :] @ kernel[i, j]
        for i in range(3)
        for j in range(3)
    )
    return functools.reduce(np.add, taps)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.float32(0.5) * (np.tanh(np.float32(0.5) * x) + np.float32(1))
