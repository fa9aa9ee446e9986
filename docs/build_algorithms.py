"""Keeps the tables of docs/algorithms as the code is: `python docs/build_algorithms.py`; `--check` says what is not.

The pages are written by hand but for what stands between `<!-- options DQN PQN -->` and `<!-- end -->`: the options of
these dataclasses with their defaults and the comments behind them in the code, one column a class. Between
`<!-- presets -->` and `<!-- end -->` are the presets of `shoal.presets.algorithms`, between `<!-- names -->` and
`<!-- end -->` the names that `--algo` takes.
"""

import argparse
import ast
import dataclasses
import inspect
import io
import re
import sys
import textwrap
import tokenize
from pathlib import Path
from typing import Any

from shoal import presets
from shoal.algorithms import ALGORITHMS, NAMES
from shoal.networks.torsos import Network
from shoal.presets import _registry

FOLDER = Path(__file__).parent / "algorithms"
BLOCK = re.compile(r"(<!-- (options|presets|names)((?: \w+)*) -->\n).*?(<!-- end -->)", re.DOTALL)
CLASSES: dict[str, type] = {cls.__name__: cls for cls in (*ALGORITHMS.values(), Network)}
NONE = "–"
"""Stands in a column whose class has no such option."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    pages = {file: (file.read_text(), filled(file.read_text())) for file in sorted(FOLDER.glob("*.md"))}
    stale = [file for file, (before, after) in pages.items() if before != after]
    if args.check:
        names = ", ".join(file.name for file in stale)
        print(f"out of date: {names}; run python docs/build_algorithms.py" if stale else "up to date")
        return bool(stale)
    for file in stale:
        file.write_text(pages[file][1])
    print(f"{len(pages)} pages, {len(stale)} changed")
    return 0


def filled(text: str) -> str:
    """A page with its tables made anew."""

    def table(found: re.Match) -> str:
        opening, kind, names, end = found.groups()
        tables = {"presets": presets_table, "names": names_table}
        rows = tables[kind]() if kind in tables else options_table([CLASSES[name] for name in names.split()])
        return f"{opening}\n{rows}\n\n{end}"

    return BLOCK.sub(table, text)


def documented(text: str) -> list[str]:
    """The classes whose options a page lists."""
    return [name for _, kind, names, _ in BLOCK.findall(text) if kind == "options" for name in names.split()]


def options_table(classes: list[type[Any]]) -> str:
    """Every option of these dataclasses: its default in each, and what the code says about it."""
    fields = {cls: {field.name: default_text(field) for field in dataclasses.fields(cls)} for cls in classes}
    notes = {cls: comments(cls) for cls in classes}
    names = sorted({name: None for cls in classes for name in fields[cls]}, key=lambda name: name == "network")
    heads = ["default"] if len(classes) == 1 else [f"`{cls.__name__}`" for cls in classes]
    lines = [f"| option | {' | '.join(heads)} | |", "|---" * (len(heads) + 2) + "|"]
    for name in names:
        cells = [fields[cls].get(name, NONE) for cls in classes]
        lines.append(f"| `{name}` | {' | '.join(cells)} | {_note(name, notes)} |")
    return "\n".join(lines)


def default_text(field: dataclasses.Field) -> str:
    """A default as one would type it; of a nested dataclass what differs from its own defaults."""
    value = default_of(field)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return f"`{value!r}`"
    differs = [
        f"{part.name}={getattr(value, part.name)!r}"
        for part in dataclasses.fields(value)
        if getattr(value, part.name) != default_of(part)
    ]
    return f"`{type(value).__name__}({', '.join(differs)})`"


def default_of(field: dataclasses.Field) -> Any:
    factory: Any = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


def comments(cls: type) -> dict[str, str]:
    """What the code says about each field of a dataclass: a comment behind its default, or alone below it."""
    notes: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(owner):
            continue
        source = textwrap.dedent(inspect.getsource(owner))
        said = _comment_lines(source)
        (tree,) = ast.parse(source).body
        assert isinstance(tree, ast.ClassDef)
        for node in tree.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                notes |= _said_of(node, said, source.splitlines())
    return notes


def presets_table() -> str:
    """The presets that compare algorithms, those of one name in one line."""
    worlds: dict[tuple[str, str], list[str]] = {}
    for name in presets.names():
        if not _registry._presets[name].make.__module__.startswith("shoal.presets.algorithms"):
            continue
        stem, _, short = name.rpartition("/")
        (learner,) = presets.get(name).learners.values()
        worlds.setdefault((stem, type(learner.algorithm).__name__), []).append(short)
    lines = ["| presets | algorithm | worlds |", "|---|---|---|"]
    for (stem, algorithm), shorts in sorted(worlds.items()):
        lines.append(f"| `{stem}/...` | `{algorithm}` | {', '.join(f'`{short}`' for short in shorts)} |")
    return "\n".join(lines)


def names_table() -> str:
    """Every name that `--algo` takes: what it is made of, and what for."""
    lines = ["| `--algo` | name | made of | actions | experience | sees | use it |", "|---" * 7 + "|"]
    for name, entry in NAMES.items():
        options = [f"`{key}={value}`" for key, value in entry.options.items()]
        made = ", ".join([f"`{entry.cls.__name__}`", *options])
        texts = [entry.title, made, entry.actions, entry.experience, entry.sees, entry.use]
        lines.append(f"| `{name}` | {' | '.join(texts)} |")
    return "\n".join(lines)


def _note(name: str, notes: dict[type, dict[str, str]]) -> str:
    """What is said of an option; where classes say different things, whose words they are."""
    said: dict[str, list[str]] = {}
    for cls, texts in notes.items():
        if name in texts:
            said.setdefault(texts[name], []).append(cls.__name__)
    if len(said) < 2:
        return next(iter(said), "")
    return "; ".join(f"{text} ({', '.join(owners)})" for text, owners in said.items())


def _comment_lines(source: str) -> dict[int, str]:
    """The comments of a source text, by line."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.start[0]: token.string.removeprefix("# ") for token in tokens if token.type == tokenize.COMMENT}


def _said_of(node: ast.AnnAssign, said: dict[int, str], lines: list[str]) -> dict[str, str]:
    """The comment of one field by its name; nothing if it has none."""
    assert isinstance(node.target, ast.Name)
    last = node.end_lineno or node.lineno
    below = last + 1
    places = list(range(node.lineno, last + 1))
    if below in said and lines[below - 1].lstrip().startswith("#"):
        places.append(below)
    found = [said[place] for place in places if place in said]
    return {node.target.id: " ".join(found)} if found else {}


if __name__ == "__main__":
    sys.exit(main())
