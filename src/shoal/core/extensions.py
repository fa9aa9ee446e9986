"""What others add to Shoal, by name: worlds, algorithms and torsos that the package does not have.

A name is looked up among what ships with the package, what the user has registered (in Python, or in a file named with
`--import`) and what installed packages declare by entry points; the latter are imported when they are first asked for.
Nothing is imported because a run folder holds a name: see `origin`.
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
"""Before the name of a package, where a source is one and not a file."""
FILE_MODULE = "shoal_user_"
"""Begins the names of the modules that files named with `--import` become."""
MOST_LETTERS = 300
"""Of what a run folder says about where something came from: longer ones are not shown."""
_registries: list["Registry"] = []


class Registry(Mapping[str, Any]):
    """Classes of one kind, by name.

    kind: what they are, for errors. group: the entry points by which packages declare more. pattern: what names look
    like, and an example of one. check: refuses a class that cannot be of that kind; it is handed name and class.
    """

    def __init__(self, kind: str, group: str, pattern: tuple[str, str], check: Callable[[str, Any], None]):
        self.kind, self.group, self.pattern, self._check = kind, group, pattern, check
        self.reserved: set[str] = set()  # names that stand for something else
        self.table: dict[str, Any] = {}  # classes, or "module:Class" of those that are imported when they are needed
        self._sources: dict[str, str] = {}  # of those that are not of the package
        _registries.append(self)

    def register(self, name: str, target: Any = None) -> Any:
        """Makes a class known under a name; without one, a decorator that does. Registering it again replaces it."""
        if target is None:
            return lambda cls: self.register(name, cls) or cls
        pattern, example = self.pattern
        if not isinstance(name, str) or not re.fullmatch(pattern, name):
            raise OptionError(
                f"the name {name!r} of {_article(self.kind)} must be lower-case words, such as {example!r}"
            )
        holder = self._holder(name)
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
        """What installed packages declare, by name."""
        return {point.name: point for point in importlib.metadata.entry_points(group=self.group)}

    def problems(self) -> list[str]:
        """What is wrong with what installed packages declare, as sentences; the rest can be used."""
        said = []
        points = importlib.metadata.entry_points(group=self.group)
        for name in sorted(name for name in points.names if ":" not in name):  # those are ids of other libraries
            try:
                self[name]
                others = [point for point in points.select(name=name) if point.value != self._holder(name)]
                said += [f"{_declared(self.kind, point)} is not used: the name is taken" for point in others]
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
        """Where classes that are not of the package came from, by name: a file, or `package NAME`."""
        return {name: self._sources[name] for name in self.table if self._sources.get(name)}

    def _load(self, name: str) -> None:
        """Imports what an installed package declares under a name."""
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
                f"{_declared(self.kind, point)} cannot be imported: {type(error).__name__}: {error}"
            ) from error
        if self.table.get(name) is not target:  # it may have registered itself
            self.register(name, target)
        self._sources[name] = PACKAGE + _package(point)

    def _holder(self, name: str) -> str | None:
        """What a name stands for already, as `module:Class`."""
        if name in self.table:
            return identity(self.table[name])
        if name in self.reserved:
            return "Shoal itself"
        point = self.declared().get(name)
        return None if point is None else point.value


def identity(target: Any) -> str:
    """A class as `module:Class`."""
    if isinstance(target, str):
        return target
    return f"{getattr(target, '__module__', '?')}:{getattr(target, '__qualname__', repr(target))}"


def source(target: Any) -> str:
    """The file that a class was made in; empty for what ships with the package, or was made by hand."""
    module = target.partition(":")[0] if isinstance(target, str) else getattr(target, "__module__", "")
    if module.partition(".")[0] == "shoal":
        return ""
    return getattr(sys.modules.get(module), "__file__", None) or ""


def sources() -> dict[str, str]:
    """Where everything came from that is registered and not of the package: `{"algorithm klppo": "/home/me/kl.py"}`.

    Run folders keep it, so that whoever opens one without the file or the package is told which is missing.
    """
    return {f"{one.kind} {name}": where for one in _registries for name, where in one.sources().items()}


def problems() -> list[str]:
    """What is wrong with what installed packages declare: see `Registry.problems`."""
    return [text for one in _registries for text in one.problems()]


def from_script() -> dict[str, dict[str, Any]]:
    """Classes that only the running script or notebook has, by kind and name: other processes must be sent them."""
    found = {}
    for one in _registries:
        found[one.kind] = {n: cls for n, cls in one.table.items() if getattr(cls, "__module__", "") == "__main__"}
    return {kind: classes for kind, classes in found.items() if classes}


def adopt(classes: Mapping[str, Mapping[str, Any]]) -> None:
    """Registers what another process sent: see `from_script`."""
    for one in _registries:
        for name, cls in classes.get(one.kind, {}).items():
            if name not in one.table:
                one.register(name, cls)


def advise(error: UnknownNameError, noted: Any) -> str:
    """What to do about a world, an algorithm or a torso that is missing. noted: the `sources` of a run folder."""
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
        return f" The run was begun with it from the {where}, which is not installed here."
    return (
        f" The run was begun with it from {where}. If you know and trust that file, name it: --import "
        f"{shlex.quote(where)} (in Python, import it first)."
    )


def _shown(identity: str) -> str:
    """A class as a user knows it: those of a file named with `--import` by that file, not by the module made of it."""
    module, _, name = identity.partition(":")
    return f"{source(identity)}:{name}" if module.startswith(FILE_MODULE) else identity


def _declared(kind: str, point: importlib.metadata.EntryPoint) -> str:
    return f"the {kind} {point.name!r} of the {PACKAGE}{_package(point)} ({point.value})"


def _package(point: importlib.metadata.EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "of an unknown name"


def _article(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
