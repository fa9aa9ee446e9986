"""What presets are known to reach: figures of the benchmarks, which ship with the package."""

import functools
import importlib.resources
import json
from typing import Any


def known_returns(preset: str) -> dict[str, Any] | None:
    """The greedy return by group (mean or IQM, with its interval) that a preset has reached, and that of random play.

    None if it has not been measured. Written by `benchmarks/known_returns.py`, from the results of the benchmarks.
    """
    return _table().get(preset)


@functools.cache
def _table() -> dict[str, dict[str, Any]]:
    return json.loads(importlib.resources.files("shoal.presets").joinpath("known_returns.json").read_text())
