"""Ready experiments, by name: `get("demo")` is an `Experiment`, `shoal train demo` runs it."""

from shoal.presets import mpe as _mpe  # importing them makes their presets known
from shoal.presets import reference as _reference
from shoal.presets import tag as _tag
from shoal.presets._registry import describe, get, names, preset, targets
from shoal.presets.defaults import default_experiment, resolve
from shoal.presets.sharing import SHARED, Sharing, share

__all__ = [
    "SHARED",
    "Sharing",
    "default_experiment",
    "describe",
    "get",
    "names",
    "preset",
    "resolve",
    "share",
    "targets",
]

del _mpe, _reference, _tag
