"""Named experiments: a preset is a function without arguments that returns an `Experiment`."""

import dataclasses
import re
from collections.abc import Callable

from shoal.core import registry
from shoal.core.errors import OptionError, unknown_name
from shoal.training.experiment import Experiment

_NAME = re.compile(r"[a-z0-9_]+(/[a-z0-9_]+)*")
_presets: dict[str, "Preset"] = {}


@dataclasses.dataclass(frozen=True)
class Preset:
    """A named experiment and one line that says what it is for."""

    name: str
    description: str
    make: Callable[[], Experiment]


def preset(name: str, description: str) -> Callable[[Callable[[], Experiment]], Callable[[], Experiment]]:
    """Decorator that makes an experiment known by name. One named like a world is that world's default."""
    if not _NAME.fullmatch(name):
        raise OptionError(f"preset name {name!r} must be lower-case words separated by '/', such as 'reference/tag'")

    def add(make: Callable[[], Experiment]) -> Callable[[], Experiment]:
        known = _presets.get(name)
        if known and (known.make.__module__, known.make.__qualname__) != (make.__module__, make.__qualname__):
            raise OptionError(f"the preset name {name!r} is already taken by {known.make.__module__}")
        _presets[name] = Preset(name, description, make)
        return make

    return add


def names() -> list[str]:
    """Every preset's name, sorted."""
    return sorted(_presets)


def describe(name: str) -> str:
    """One line about a preset."""
    return _find(name).description


def get(name: str) -> Experiment:
    """The experiment of that name."""
    return _find(name).make()


def targets() -> list[str]:
    """All that can be trained by name: presets and worlds."""
    return sorted({*_presets, *registry.ids()})


def _find(name: str) -> Preset:
    if name not in _presets:
        raise unknown_name("preset", name, _presets)
    return _presets[name]
