"""Trained policies as a web page: one `.html` file with the weights and a small forward pass in plain JavaScript.

`save_js(policy, path)` writes the page of a `NumpyPolicy`. It asks for inputs, shows the action and the chances of the
choices, and needs no network. Scripts call `window.policy.act(observation, legal, memory)`.
"""

import base64
import dataclasses
import math
import urllib.parse
from pathlib import Path
from typing import Any

import numpy as np

from shoal.bridges.plain_policy import NumpyPolicy, input_dtype, with_ending
from shoal.core.files import write_file
from shoal.viz.replay import filled_page


def save_js(policy: NumpyPolicy, path: str | Path) -> Path:
    """Writes a policy as a page, which has the title of its file."""
    path = with_ending(path, ".html")
    title = urllib.parse.unquote(path.stem)
    write_file(path, filled_page("policy.html", title, {"title": title, **_describe(policy)}))
    return path


def _describe(policy: NumpyPolicy) -> dict[str, Any]:
    """Everything about a policy as plain data. An infinite end of a box is None."""
    actions = dataclasses.asdict(policy.actions)
    ends = {name: actions[name] if math.isfinite(actions[name]) else None for name in ("low", "high")}
    return {
        "actions": actions | ends,
        "inputs": [
            {"name": name, "shape": shape, "dtype": input_dtype(policy, i)}
            for i, (name, shape) in enumerate(policy.leaves)
        ],
        "activation": policy.activation,
        "recurrent": policy.recurrent,
        "layer_norm": policy.layer_norm,
        "sampled": policy.sampled,
        "arrays": {name: _encode(array) for name, array in policy.arrays.items()},
    }


def _encode(array: np.ndarray) -> dict[str, Any]:
    """An array as base64 text: float32, little-endian."""
    return {"shape": array.shape, "data": base64.b64encode(array.astype("<f4").tobytes()).decode()}
