"""Weights that do not fit: infers which option differs from the shapes found and expected."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import jax

from shoal.core.types import PyTree
from shoal.networks.torsos import Network

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of leaves by their paths, such as `agent/weights/params/actor_torso/layers_0/kernel`."""

_SHOWN = 8  # entries of a list
_LAYER = re.compile(r"(.*)/layers_(\d+)/kernel$")
_OPTIONS = {
    "/view_stats/": "normalise_views",
    "/value_stats/": "normalise_values",
    "/cell/": "network.recurrent and network.recurrent_size",
    "/norms_": "network.layer_norm",
    "/encoder/": "network.filters or network.torso",
}
"""Options that decide whether leaves with such a path exist, and their shapes."""


def differing_options(wanted: PyTree, found: PyTree) -> str:
    """The options that affect networks in which two policies differ, as text."""
    if type(wanted) is not type(found):
        return "the algorithm is of another family"
    differences = _static_differences(wanted, found)
    parts = [f"{name} is {_text(a)} here, {_text(b)} there" for name, a, b in differences]
    return "; ".join(parts) or differing_shapes(_shapes(wanted), _shapes(found), "here", "there")


def differing_shapes(wanted: Shapes, found: Shapes, here: str, there: str) -> str:
    """The options that must differ, inferred from shapes; empty if they do not tell. here, there: names of the two."""
    said = []
    widths = _widths(wanted), _widths(found)
    for torso in widths[0].keys() & widths[1].keys():
        if widths[0][torso] != widths[1][torso]:
            said.append(f"network.hidden is {_text(widths[0][torso])} {here}, {_text(widths[1][torso])} {there}")
            break
    other = [name for name in {*wanted, *found} if wanted.get(name) != found.get(name)]
    for part, option in _OPTIONS.items():
        if any(part in f"/{name}" and (name not in wanted or name not in found) for name in other):
            said.append(f"{option}: not the same {here} and {there}")
    both = [name for name in other if name in wanted and name in found]
    if any("/encoder/" in f"/{name}" for name in both):  # the MLP's input is the encoder's output
        said.append(
            f"the views, network.filters, or the torso (its options, its code): not the same {here} and {there}"
        )
        return "; ".join(said)
    firsts = [name for name in both if name.endswith("layers_0/kernel")]
    sizes = {(wanted[name][-2], found[name][-2]) for name in firsts if wanted[name][-2] != found[name][-2]}
    for one, two in sorted(sizes)[:1]:
        said.append(f"the views, by the options of the world, have {one} numbers {here}, {two} {there}")
    return "; ".join(said)


def _static_differences(wanted: Any, found: Any, where: str = "") -> list[tuple[str, Any, Any]]:
    """Names and values of all fields that are not weights and differ, at any depth."""
    differences = []
    for field in dataclasses.fields(wanted):
        a, b = getattr(wanted, field.name), getattr(found, field.name)
        if not where and field.metadata.get("pytree_node", True):
            option = _OPTIONS.get(f"/{field.name}/")
            if option and (a is None) != (b is None):
                differences.append((option, a is not None, b is not None))
        elif field.name in ("parent", "name") or a == b:
            continue
        elif type(a) is type(b) and dataclasses.is_dataclass(a):
            inner = where if field.name in ("network", "actor", "critic") else f"{field.name}."
            prefix = "network." if isinstance(a, Network) else inner or " "
            differences += _static_differences(a, b, prefix)
        elif field.name == "uses_state":
            differences.append(("critic", *("global" if sees else "own" for sees in (a, b))))
        else:
            differences.append((f"{where}{field.name}".strip(), a, b))
    return list(dict.fromkeys(differences))  # actor and critic have the same network


def _shapes(policy: PyTree) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(policy)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): tuple(leaf.shape) for path, leaf in leaves}


def _widths(shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """The widths of the layers of each torso."""
    found: dict[str, dict[int, int]] = {}
    for name, shape in shapes.items():
        if (match := _LAYER.match(name)) and shape:
            found.setdefault(match[1], {})[int(match[2])] = shape[-1]
    return {torso: tuple(layers[i] for i in sorted(layers)) for torso, layers in found.items()}


def _text(value: Any) -> str:
    """A value as it is typed on the command line; long ones are cut short."""
    if not isinstance(value, tuple) or not value:
        return str(value)
    more = f" ... ({len(value)} in all)" if len(value) > _SHOWN else ""
    return " ".join(map(str, value[:_SHOWN])) + more
