"""Ready experiments, by name: `get("demo")` is an `Experiment`, `shoal train demo` runs it."""

from shoal.presets import algorithms as _algorithms  # importing them makes their presets known
from shoal.presets import populations as _populations
from shoal.presets import reference as _reference
from shoal.presets import worlds as _worlds
from shoal.presets._registry import (
    default_experiment,
    describe,
    foreign_experiment,
    get,
    names,
    preset,
    resolve,
    targets,
)
from shoal.presets.populations import response_preset
from shoal.presets.sharing import SHARED, Sharing, share

__all__ = [
    "SHARED",
    "Sharing",
    "default_experiment",
    "describe",
    "foreign_experiment",
    "get",
    "names",
    "preset",
    "resolve",
    "response_preset",
    "share",
    "targets",
]

del _algorithms, _populations, _reference, _worlds
