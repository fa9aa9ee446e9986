"""Extensions by name: worlds, algorithms and torsos from outside the package.

A name is looked up among the package's own, those that the user has registered (in Python, or in a file named with
`--import`) and those that installed packages declare by entry points; the latter are imported on first use. Nothing
is imported because a run folder contains a name: see `origin`.
"""

import importlib
import importlib.metadata
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from shoal.core.errors import OptionError, ShoalError, UnknownNameError, unknown_name

PACKAGE = "package "
"""Prefix of a source that is a package and not a file."""
FILE_MODULE = "shoal_user_"
"""Prefix of the names of modules made from files named with `--import`."""
MOST_LETTERS = 300
"""The longest source, as a run folder states it, that is shown."""
_registries: list["Registry"] = []


class Registry(Mapping[str, Any]):
    """Classes of one kind, by name.

    kind: what they are, for errors. group: the entry points by which packages declare more. pattern: of names, and an
    example. check: called with name and class; refuses a class that cannot be of that kind.
    """

    def __init__(self, kind: str, group: str, pattern: tuple[str, str], check: Callable[[str, Any], None]):
        self.kind, self.group, self.pattern, self._check = kind, group, pattern, check
        self.reserved: set[str] = set()  # names that stand for something else
        self.table: dict[str, Any] = {}  # classes, or "module:Class" of those that are imported on first use
        self._sources: dict[str, str] = {}  # of classes from outside the package
        _registries.append(self)

    def register(self, name: str, target: Any = None) -> Any:
        """Registers a class under a name; without a class, returns a decorator. Registering it again replaces it."""
        if target is None:
            return lambda cls: self.register(name, cls) or cls
        pattern, example = self.pattern
        if not isinstance(name, str) or not re.fullmatch(pattern, name):
            raise OptionError(
                f"the name {name!r} of {_article(self.kind)} must be lower-case words, such as {example!r}"
            )
        holder = self._holder(name, own=_is_own(target))
        if holder is not None and holder != identity(target):
            raise OptionError(
                f"the {self.kind} name {name!r} is already taken by {_shown(holder)}: choose another one for "
                f"{_shown(identity(target))}"
            )
        self.table[name] = target
        self._sources[name] = source(target)
        return None

    def names(self) -> list[str]:
        """Every known name, sorted."""
        return sorted({*self.table, *self.declared()})

    def declared(self) -> dict[str, importlib.metadata.EntryPoint]:
        """Entry points of installed packages, by name."""
        return {point.name: point for point in importlib.metadata.entry_points(group=self.group)}

    def problems(self) -> list[str]:
        """Problems of entry points of installed packages, as sentences; the others can be used."""
        said = []
        points = importlib.metadata.entry_points(group=self.group)
        for name in sorted(name for name in points.names if ":" not in name):  # others are ids of other libraries
            try:
                self[name]
                others = [point for point in points.select(name=name) if point.value != self._holder(name)]
                said += [
                    f"{_describe_entry_point(self.kind, point)} is not used: the name is taken" for point in others
                ]
            except ShoalError as error:
                said.append(str(error))
        return said

    def __getitem__(self, name: str) -> Any:
        if name not in self.table:
            self._load(name)
        target = self.table[name]
        if isinstance(target, str):
            module, _, attribute = target.partition(":")
            target = self.table[name] = getattr(importlib.import_module(module), attribute)
        self._check(name, target)
        return target

    def __contains__(self, name: object) -> bool:
        return name in self.table or (isinstance(name, str) and name in self.declared())

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def sources(self) -> dict[str, str]:
        """The sources of classes from outside the package, by name: a file, or `package NAME`."""
        return {name: self._sources[name] for name in self.table if self._sources.get(name)}

    def _load(self, name: str) -> None:
        """Imports the entry point of an installed package."""
        points = importlib.metadata.entry_points(group=self.group, name=name)
        if not points:
            raise unknown_name(self.kind, name, self.names())
        if len({point.value for point in points}) > 1:
            packages = " and ".join(sorted(_package(point) for point in points))
            raise OptionError(f"the {self.kind} {name!r} is declared by {packages}: uninstall one of them")
        (point, *_) = points
        try:
            target = point.load()
        except (Exception, SystemExit) as error:  # the package's own code may raise anything
            raise OptionError(
                f"{_describe_entry_point(self.kind, point)} cannot be imported: {type(error).__name__}: {error}"
            ) from error
        if self.table.get(name) is not target:  # it may have registered itself
            self.register(name, target)
        self._sources[name] = PACKAGE + _package(point)

    def _holder(self, name: str, own: bool = False) -> str | None:
        """The current holder of a name, as `module:Class`. own: it is asked for a class of the package's own."""
        if name in self.table:
            return identity(self.table[name])
        if name in self.reserved:
            return "Shoal itself"
        if own:  # no package's: entry points take long to find
            return None
        point = self.declared().get(name)
        return None if point is None else point.value


def identity(target: Any) -> str:
    """A class as `module:Class`."""
    if isinstance(target, str):
        return target
    return f"{getattr(target, '__module__', '?')}:{getattr(target, '__qualname__', repr(target))}"


def source(target: Any) -> str:
    """The file that defines a class; empty for the package's own, and for those defined interactively."""
    return "" if _is_own(target) else getattr(sys.modules.get(_module(target)), "__file__", None) or ""


def _is_own(target: Any) -> bool:
    """Whether a class is one of the package's own."""
    return _module(target).partition(".")[0] == "shoal"


def _module(target: Any) -> str:
    return target.partition(":")[0] if isinstance(target, str) else getattr(target, "__module__", "")


def is_own(thing: object) -> bool:
    """Whether an algorithm or a world ships with the package."""
    return type(thing).__module__.partition(".")[0] == "shoal"


def sources() -> dict[str, str]:
    """The sources of everything registered from outside the package: `{"algorithm klppo": "/home/me/kl.py"}`.

    Run folders store it, so that an error can name the missing file or package.
    """
    return {f"{one.kind} {name}": where for one in _registries for name, where in one.sources().items()}


def problems() -> list[str]:
    """Problems of entry points of installed packages: see `Registry.problems`."""
    return [text for one in _registries for text in one.problems()]


def from_script() -> dict[str, dict[str, Any]]:
    """Classes defined in the running script or notebook, by kind and name: they must be sent to other processes."""
    found = {}
    for one in _registries:
        found[one.kind] = {n: cls for n, cls in one.table.items() if getattr(cls, "__module__", "") == "__main__"}
    return {kind: classes for kind, classes in found.items() if classes}


def adopt(classes: Mapping[str, Mapping[str, Any]]) -> None:
    """Registers classes sent by another process: see `from_script`."""
    for one in _registries:
        for name, cls in classes.get(one.kind, {}).items():
            if name not in one.table:
                one.register(name, cls)


def advise(error: UnknownNameError, noted: Any) -> str:
    """Advice about a missing world, algorithm or torso. noted: the `sources` of a run folder."""
    kinds = [one.kind for one in _registries]
    if error.kind not in kinds:
        return ""
    where = noted.get(f"{error.kind} {error.name}") if isinstance(noted, Mapping) else None
    if not isinstance(where, str) or not where.isprintable() or len(where) > MOST_LETTERS:
        return (
            f" If it is {_article(error.kind)} of your own, name the file that registers it: --import FILE (in Python, "
            "import it first), or install the package that declares it."
        )
    if where.startswith(PACKAGE):
        return f" The run was started with it from the {where}, which is not installed here."
    return (
        f" The run was started with it from {where}. If you know and trust that file, name it: --import "
        f"{shlex.quote(where)} (in Python, import it first)."
    )


def _shown(identity: str) -> str:
    """A class for display: one of a file named with `--import` is shown by that file, not by its module."""
    module, _, name = identity.partition(":")
    return f"{source(identity)}:{name}" if module.startswith(FILE_MODULE) else identity


def _describe_entry_point(kind: str, point: importlib.metadata.EntryPoint) -> str:
    return f"the {kind} {point.name!r} of the {PACKAGE}{_package(point)} ({point.value})"


def _package(point: importlib.metadata.EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "of an unknown name"


def _article(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
