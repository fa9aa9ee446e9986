"""`shoal runs`: lists runs, tags them, keeps notes of them, and removes them. Needs no JAX."""

import dataclasses
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

from tyro.conf import DisallowNone, Positional, arg

from shoal.api.figures import format_age, sparkline, unsigned
from shoal.cli.arguments import Flag, Folder, RunArgument, parse
from shoal.cli.terminal import console, display_path, emit, format_count, format_size, pluralise, resolve_path, say
from shoal.core.errors import OptionError, RunError, unknown_name
from shoal.training.catalogue import STATUSES, Catalogue, Entry
from shoal.training.run_kinds import CONFIG, EVOLUTION

ROOTS = ("runs", "sweeps")
"""Folders that commands make runs in, by default."""
CURVE = 12
"""Letters of a curve."""
MOST_SIDES_LETTERS = 32
"""The longest list of sides and their returns that stands in a table."""
NO_SUM = "-"
Text = DisallowNone[str | None]
Words = Annotated[Positional[tuple[str, ...]], arg(metavar="TAG")]
Runs = Annotated[Positional[tuple[str, ...]], arg(metavar="RUN")]


@dataclasses.dataclass(frozen=True)
class RunsOptions:
    """List the runs in runs/ and sweeps/, those first that were written to last.

    `shoal runs tag RUN TAG...`, `untag RUN TAG...`, `note RUN TEXT` and `remove RUN...` change one.
    """

    pattern: Annotated[Positional[str], arg(metavar="[PATTERN]")] = ""
    """only those whose name has this in it, or fits it: spread, 'tag_*'"""
    root: Folder = None  # look for runs below this folder; by default runs/ and sweeps/
    env: Text = None  # only those in this environment, or pattern of it: tag/grid, 'mpe/*'; by default all
    algo: Text = None  # only those by this algorithm: mappo; by default all
    status: Annotated[Text, arg(metavar="|".join(STATUSES))] = None  # only those; by default all
    tag: Text = None  # only those with this tag; by default all
    json: Flag = False  # one JSON object on stdout


@dataclasses.dataclass(frozen=True, kw_only=True)
class TagOptions:
    """Give a run tags, or take them away; several in one go."""

    run: RunArgument  # folder of the run, or its name below runs/
    tags: Words  # words, such as paper or baseline
    json: Flag = False  # one JSON object on stdout


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoteOptions:
    """Keep a note of a run, in place of the one it has; an empty text takes it away."""

    run: RunArgument  # folder of the run, or its name below runs/
    text: Annotated[Positional[str], arg(metavar="TEXT")]  # the note
    json: Flag = False  # one JSON object on stdout


@dataclasses.dataclass(frozen=True, kw_only=True)
class RemoveOptions:
    """Remove run folders with all that is in them; asks first."""

    runs: Runs  # folders of runs, or their names below runs/
    yes: Flag = False  # do not ask
    json: Flag = False  # one JSON object on stdout


def run(args: Sequence[str]) -> int:
    """Lists runs."""
    options = parse(RunsOptions, args, "shoal runs")
    found = _listed(options)
    if options.json:
        emit({"runs": [entry.plain() for entry in found]})
        return 0
    out = console()
    if not found:
        narrowed = any((options.pattern, options.env, options.algo, options.status, options.tag))
        where = options.root or " or ".join(f"{root}/" for root in ROOTS)
        advice = "leave out some of what was asked for" if narrowed else "`shoal train demo` makes one"
        say(out, f"no {'such ' if narrowed else ''}run in {where}: {advice}")
        return 0
    rows = _rows(found, out.width)
    for number, row in enumerate(rows):
        say(out, row.rstrip(), style="bold" if number == 0 else "")
    counts = [f"{count} {status}" for status in STATUSES if (count := sum(one.status == status for one in found))]
    say(out, f"{pluralise(len(found), 'run')}: {', '.join(counts)}")
    if any(_return(entry) == NO_SUM for entry in found):
        say(out, f"{NO_SUM}: sides win what others lose, so their returns add up to 0; `shoal show RUN` tells each")
    for entry in found:
        if entry.problem:
            say(out, f"{display_path(entry.path)}: {entry.problem}", style="yellow")
    return 0


def tag(args: Sequence[str]) -> int:
    """Gives a run tags."""
    options = parse(TagOptions, args, "shoal runs tag")
    names = _locate(options.run)[0].names()
    other = next((word for word in options.tags if word in names), None)
    if other is not None:
        raise OptionError(
            f"shoal runs tag: {other} is a run, and tags are given to one run at a time: `tag RUN TAG...`"
        )
    return _retag(options, lambda tags: (*tags, *options.tags))


def untag(args: Sequence[str]) -> int:
    """Takes tags from a run; refuses those that it does not have."""
    options = parse(TagOptions, args, "shoal runs untag")

    def without(tags: Sequence[str]) -> tuple[str, ...]:
        for word in options.tags:
            if word not in tags:
                raise unknown_name("tag of that run", word, tags)
        return tuple(word for word in tags if word not in options.tags)

    return _retag(options, without)


def note(args: Sequence[str]) -> int:
    """Keeps a note of a run."""
    options = parse(NoteOptions, args, "shoal runs note")
    runs, name = _locate(options.run)
    runs.annotate(name, note=options.text)
    return _told(runs.entry(name), options.json)


def remove(args: Sequence[str]) -> int:
    """Removes runs, all of them or, if one cannot be, none."""
    options = parse(RemoveOptions, args, "shoal runs remove")
    if not options.runs:
        raise OptionError("shoal runs remove: which runs? Name their folders.")
    found = [_locate(text) for text in dict.fromkeys(options.runs)]
    entries = [runs.entry(name) for runs, name in found]
    for entry in entries:
        if entry.status == "running":
            raise RunError(f"{entry.path} is running: stop it first")
        if entry.status == "unreadable":
            raise RunError(f"{entry.path} is not removed, as it cannot be read as a run: {entry.problem}")
    out = console(options.json)
    for entry in entries:
        say(out, f"{display_path(entry.path)}  {entry.env} {entry.algorithm} {entry.status}, {format_size(entry.size)}")
    if not options.yes and not _agreed(f"Remove {pluralise(len(entries), 'run')}? [y/N] "):
        say(out, "nothing was removed")
        return 1
    for runs, name in found:
        runs.remove(name)
    if options.json:
        emit({"removed": [str(entry.path) for entry in entries]})
    else:
        say(out, f"removed {pluralise(len(entries), 'run')}")
    return 0


def _agreed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise OptionError("shoal runs remove: nobody can be asked here: add --yes")
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _retag(options: TagOptions, change: Callable[[Sequence[str]], Sequence[str]]) -> int:
    if not options.tags:
        raise OptionError("shoal runs: which tags? Name at least one.")
    runs, name = _locate(options.run)
    runs.annotate(name, tags=change(runs.entry(name).tags))
    return _told(runs.entry(name), options.json)


def _told(entry: Entry, json: bool) -> int:
    """Says which tags and which note a run has now."""
    if json:
        emit({"run": str(entry.path), "tags": entry.tags, "note": entry.note})
    else:
        say(console(), f"{display_path(entry.path)}: {_remarks(entry) or 'no tags, no note'}")
    return 0


def _catalogues(root: str | None = None) -> list[Catalogue]:
    if root is not None:
        path = resolve_path(root)
        if not path.is_dir():
            raise OptionError(f"shoal runs: --root must be a folder, and {root} is none")
        return [Catalogue(path)]
    return [Catalogue(resolve_path(root)) for root in ROOTS if resolve_path(root).is_dir()]


def _listed(options: RunsOptions) -> list[Entry]:
    """The runs that are asked for. The pattern is about names as they are shown."""
    found: list[Entry] = []
    for runs in _catalogues(options.root):
        found += runs.entries(options.pattern, options.env, options.algo, options.status)
    found = [entry for entry in found if options.tag is None or options.tag in entry.tags]
    return sorted(found, key=lambda entry: (-entry.updated, entry.name))


def _locate(text: str) -> tuple[Catalogue, str]:
    """The run that is meant: by its folder, or by its name below the usual ones."""
    path = Path(os.path.normpath(resolve_path(text)))
    if os.path.lexists(path / CONFIG):
        if path.is_symlink():
            raise RunError(f"{text} is a link: name the folder that it leads to")
        return Catalogue(path.parent, cache=False), path.name
    catalogues, known = _catalogues(), []
    for runs in catalogues:
        names = [entry.name for entry in runs.entries()]
        if text in names:
            return runs, text
        known += [display_path(runs.root / name) for name in names]
    raise unknown_name("run", text, known)


def _rows(entries: Sequence[Entry], width: int) -> list[str]:
    """The lines of a table. Names are never cut: if it is too wide, other columns are left out, the last ones first."""
    now = time.time()
    columns = {
        "run": [display_path(entry.path) for entry in entries],
        "status": [entry.status for entry in entries],
        "return": [_return(entry) for entry in entries],
        "curve": [sparkline(entry.curve, CURVE) for entry in entries],
        "steps": [_steps(entry) for entry in entries],
        "algorithm": [entry.algorithm for entry in entries],
        "environment": [entry.env for entry in entries],
        "tags": [_remarks(entry) for entry in entries],
        "best": [_best(entry) for entry in entries],
        "steps/s": ["" if entry.speed is None else format_count(entry.speed) for entry in entries],
        "seeds": [str(entry.num_seeds) for entry in entries],
        "ago": [format_age(now - entry.updated) for entry in entries],
        "size": [format_size(entry.size) for entry in entries],
    }
    order = ["run", "environment", "algorithm", "seeds", "status", "steps", "return", "best", "curve", "steps/s"]
    order += ["ago", "size", "tags"]
    wide = {name: max(len(cell) for cell in (name, *cells)) for name, cells in columns.items()}
    kept, used = [], 0
    for name in columns:
        if not kept or used + 2 + wide[name] <= width:
            kept.append(name)
            used += wide[name] + 2 * bool(used)
    shown = [name for name in order if name in kept]
    right = ("seeds", "return", "best", "steps/s", "size", "steps", "ago")
    rows = [shown, *zip(*(columns[name] for name in shown), strict=True)]

    def cell(name: str, text: str) -> str:
        return text.rjust(wide[name]) if name in right else text.ljust(wide[name])

    return ["  ".join(cell(name, text) for name, text in zip(shown, row, strict=True)) for row in rows]


def _steps(entry: Entry) -> str:
    """How far a run is: env steps, or what a population counts."""
    if entry.total_env_steps:
        return f"{format_count(entry.env_steps)}/{format_count(entry.total_env_steps)}"
    counted = "generations" if entry.kind == EVOLUTION else "iterations"
    return f"{entry.update}/{entry.num_updates} {counted}" if entry.num_updates else ""


def _return(entry: Entry) -> str:
    """What a run has come to: its return, those of two sides of which one wins what the other loses, or NashConv."""
    if entry.nash_conv is not None:
        return f"NashConv {unsigned(entry.nash_conv)}"
    if entry.sides:
        both = ", ".join(f"{name} {value:.2f}" for name, value in entry.sides.items())
        return both if len(both) <= MOST_SIDES_LETTERS else NO_SUM
    return "" if entry.last_return is None else f"{entry.last_return:.2f}"


def _best(entry: Entry) -> str:
    """The best return, or the best so far of a long run that is not searched yet."""
    return "" if entry.best_return is None else f"{'' if entry.best_is_known else '≥ '}{entry.best_return:.2f}"


def _remarks(entry: Entry) -> str:
    """Tags and the note, in one line."""
    return "  ".join([*(f"#{word}" for word in entry.tags), *([" ".join(entry.note.split())] if entry.note else [])])
