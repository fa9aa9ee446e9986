"""What the command line writes: text for people on stdout, or one JSON object there and the text on stderr."""

import contextlib
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shoal.api.figures import format_count as format_count
from shoal.api.figures import format_duration as format_duration
from shoal.api.figures import format_size as format_size
from shoal.api.figures import pluralise as pluralise
from shoal.core.files import nan_to_none
from shoal.core.zoo import find_run
from shoal.training.mirror import locate_run

GUTTER = 2
"""Columns between those of a list."""
PIPE_WIDTH = 160
"""Columns of a table that is not written to a terminal."""


_CONTROLS = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)], "\N{REPLACEMENT CHARACTER}")
_began_in = ""
"""The folder in which the command began; the code of an environment may go to another one."""


def begin() -> None:
    """Remembers where the command began: that is where its relative paths lead from."""
    global _began_in
    _began_in = ""
    with contextlib.suppress(OSError):  # it may have been removed, and only some commands need it
        _began_in = os.getcwd()


def divert_native_output() -> None:
    """From now on, what libraries print past Python goes to stderr: stdout is for what the command says.

    Gloo, which connects CPUs of several hosts, prints a line when it has done so.
    """
    if sys.stdout is not sys.__stdout__ or sys.stdout.fileno() != 1:
        return  # somebody else has seen to it
    sys.stdout.flush()
    own = os.dup(1)
    os.dup2(2, 1)
    lines = 1 if sys.stdout.line_buffering else -1  # pyright: ignore[reportAttributeAccessIssue]
    sys.stdout = os.fdopen(own, "w", lines, sys.stdout.encoding, "replace")


def resolve_path(path: str) -> Path:
    """The absolute path that was meant by what was typed."""
    return Path(_began_in, path).absolute()


def resolve_run(path: str) -> Path:
    """The folder of a run that was meant by what was typed, which may be `zoo/NAME`."""
    return find_run(path, _began_in)


def fetch_or_resolve_run(path: str) -> Path:
    """The same, or that of a run that is fetched from the URL of its mirror; never of a path that a folder names."""
    return locate_run(path, _began_in)


def display_path(path: Path) -> str:
    """A path as it would be typed where the command began."""
    inside = _began_in and path.is_relative_to(_began_in)
    return str(path.relative_to(_began_in) if inside else path)


class _Console(Console):
    """Text is never taken for markup, and a reader that went away is reported to the caller."""

    def __init__(self, stream: TextIO, width: int | None = None):
        super().__init__(file=stream, width=width, markup=False, highlight=False, emoji=False)

    def print(self, *objects: Any, **options: Any) -> None:
        """Control characters are not passed on: names from a run folder must not steer the terminal."""
        super().print(*map(_harmless, objects), **options)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def _harmless(shown: Any) -> Any:
    """A text, or a table of texts, in which control characters are replaced."""
    if isinstance(shown, str):
        return shown.translate(_CONTROLS)
    if isinstance(shown, Table):
        for column in shown.columns:
            column.header = _harmless(column.header)
            column._cells = [_harmless(cell) for cell in column._cells]
    return shown


def console(json_on_stdout: bool = False) -> Console:
    """Where text for people goes: stdout, or stderr if stdout is kept for JSON."""
    stream = sys.stderr if json_on_stdout else sys.stdout
    return _Console(stream, None if stream.isatty() else PIPE_WIDTH)


class Column(NamedTuple):
    """A column of a list. rank: columns of a higher rank go first where there is no room; those of rank 0 stay whole.

    least: columns that it takes at least where its cells are wrapped; 0: they are not.
    """

    title: str
    rank: int = 0
    least: int = 0
    right: bool = False


def list_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> Table:
    """A table that fits a width: names stay whole, long texts are wrapped, and what has no room is left out.

    A row of one cell is a heading, which is never cut either.
    """
    cells = [row for row in rows if len(row) == len(columns)]
    full = [max(len(column.title), *(len(row[i]) for row in cells), 1) for i, column in enumerate(columns)]
    kept = list(range(len(columns)))

    def taken() -> int:
        return sum(min(full[i], columns[i].least or full[i]) + GUTTER for i in kept) - GUTTER

    while taken() > width and any(columns[i].rank for i in kept):
        kept.remove(max(kept, key=lambda i: columns[i].rank))
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GUTTER, 0, 0))
    for i in kept:
        wraps, justify = bool(columns[i].least), "right" if columns[i].right else "left"
        least = min(full[i], columns[i].least or full[i])
        table.add_column(columns[i].title, no_wrap=not wraps, overflow="fold", min_width=least, justify=justify)
    for row in rows:
        table.add_row(*(row[i] for i in kept) if len(row) == len(columns) else row)
    return table


def say(out: Console, text: str = "", style: str = "") -> None:
    """One line of text, however long: a path that is cut in two cannot be copied."""
    out.print(text, style=style, soft_wrap=True)


def complain(message: str) -> None:
    """An error, for people, on stderr; words that nobody could read are cut."""
    message = re.sub(r"\S{400,}", lambda word: f"{word[0][:100]}...{word[0][-50:]}", message)
    _Console(sys.stderr).print(Text.assemble(("error: ", "bold red"), _harmless(message)), soft_wrap=True)


def warn(message: str) -> None:
    """A line for people, on stderr, about something that works for now."""
    _Console(sys.stderr).print(Text.assemble(("note: ", "bold yellow"), _harmless(message)), soft_wrap=True)


def show_warning(message: Warning | str, *_where: Any) -> None:
    """A warning of Python's, without the line of code that gave it: in place of `warnings.showwarning`."""
    warn(str(message))


def emit(result: dict[str, Any]) -> None:
    """The result, for programs: the only thing on stdout."""
    sys.stdout.write(json.dumps(nan_to_none(result), indent=2, allow_nan=False) + "\n")
    sys.stdout.flush()
