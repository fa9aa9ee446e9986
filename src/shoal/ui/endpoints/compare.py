"""Runs side by side: the statistics of `shoal compare`, and its tables to be saved."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shoal.core.errors import RunError, ShoalError, require, shell_command
from shoal.training.catalogue import Catalogue, Entry
from shoal.training.catalogue.lines import Line
from shoal.training.compared_runs import SPECIAL, ComparedRun, flatten, read_folder
from shoal.training.comparison import END, Comparison, Panel, compare
from shoal.training.run_kinds import EVOLUTION, PBT, TRAINING
from shoal.ui.endpoints.answers import answer, catalogue_of, runs_of, whole_of
from shoal.ui.folder import METRICS, pages_of

WHOLE_BYTES = 1 << 20
"""Metrics up to this size are compared line by line; of larger ones, means of neighbouring lines are."""
SAMPLED_POINTS = 400
DEFAULTS: Mapping[str, Any] = {"metric": "return", "by": "algorithm", "at": END, "normalise": False}
"""What `shoal compare` does unless it is told otherwise."""
COMPARED = frozenset({TRAINING, EVOLUTION, PBT})
TABLES = {
    "final.csv": lambda found: found.to_csv("final"),
    "scores.csv": lambda found: found.to_csv("scores"),
    "curves.csv": lambda found: found.to_csv("curves"),
    "profile.csv": lambda found: found.to_csv("profile"),
    "improvement.csv": lambda found: found.to_csv("improvement"),
    "final.tex": lambda found: found.to_latex(),
    "final.md": lambda found: found.to_markdown(),
    "marl_eval.json": lambda found: json.dumps(found.to_marl_eval(), indent=2),
}
"""Files that a comparison can be saved as."""


def show_comparison(request: Request) -> Response:
    """Curves, final performance, profiles and probabilities of improvement, by environment and group."""
    catalogue = catalogue_of(request)
    entries, notes = comparable(catalogue, runs_of(request))
    options = options_of(request)
    found = compare_entries(catalogue, entries, **options)
    command = command_of([entry.path for entry in entries], options)
    return answer(describe(catalogue, entries, found, notes) | {"command": command})


def save_comparison(request: Request) -> Response:
    """One of `TABLES`, to be saved."""
    name = request.query_params.get("name", "")
    require(name in TABLES, "address", "name", name, f"one of {', '.join(TABLES)}")
    catalogue = catalogue_of(request)
    entries, _ = comparable(catalogue, runs_of(request))
    content = TABLES[name](compare_entries(catalogue, entries, **options_of(request)))
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type="text/plain; charset=utf-8", headers=headers)


def describe(
    catalogue: Catalogue, entries: Sequence[Entry], found: Comparison, notes: Sequence[str] = ()
) -> dict[str, Any]:
    """A comparison as plain data, with what else could be asked of these runs."""
    settings = {entry.name: _settings(catalogue, entry) for entry in entries}
    differing = _differing(settings)
    shared = [set(catalogue.metric_names(entry.name)) for entry in entries]
    return {
        "metric": found.metric,
        "by": found.by,
        "judged": found.judged,
        "notes": [*notes, *found.notes],
        "groups": list(dict.fromkeys(group for panel in found.panels.values() for group in panel.groups)),
        "panels": [_plain_panel(panel) for panel in found.panels.values()],
        "members": _members(found),
        "metrics": [m for m in catalogue.metric_names(entries[0].name) if all(m in names for names in shared)],
        "choices": list(dict.fromkeys([*SPECIAL, *differing])),
        "runs": [{"name": entry.name, "env": entry.env, "replay": has_replay(entry)} for entry in entries],
        "settings": {key: [each.get(key) for each in settings.values()] for key in differing},
    }


def comparable(catalogue: Catalogue, names: Sequence[str], exact: bool = False) -> tuple[list[Entry], list[str]]:
    """The runs that can be compared, and a note for each that cannot or, unless exact, not by all of its lines."""
    found, notes = [], []
    for name in names:
        try:
            entry = catalogue.entry(name)
        except ShoalError as error:
            notes.append(f"{name} was left out: {error}")
            continue
        if entry.kind not in COMPARED or not entry.update:
            why = entry.problem or (
                "it has no learning curve" if entry.kind not in COMPARED else "it has no metrics yet"
            )
            notes.append(f"{name} was left out: {why}")
            continue
        found.append(entry)
        if not exact and _size(entry) > WHOLE_BYTES:
            whole = "the command and the exported page use every line"
            notes.append(f"{name} is long: it is compared at {SAMPLED_POINTS} points; {whole}")
    if not found:
        raise RunError(f"none of these runs can be compared. {' '.join(notes)}")
    return found, notes


def options_of(request: Request) -> dict[str, Any]:
    """What the address asks `compare` for; what it leaves open is as `DEFAULTS` has it."""
    query = request.query_params
    at = whole_of(request, "at", 0, 1, 10**18) if query.get("at", END) != END else END
    named = {name: query.get(name) or DEFAULTS[name] for name in ("metric", "by")}
    return named | {"at": at, "normalise": "normalise" in query}


def command_of(folders: Sequence[Path], options: Mapping[str, Any]) -> str | None:
    """The `shoal compare` that prints the same; None if its words have letters that a terminal would act on."""
    words = [f"--{name}={value}" for name, value in options.items() if value is not True and value != DEFAULTS[name]]
    words += ["--normalise"] * options["normalise"]
    command = shell_command("compare", *folders, *words)
    return command if command.isprintable() else None


def compare_entries(
    catalogue: Catalogue, entries: Sequence[Entry], metric: str, exact: bool = False, **options: Any
) -> Comparison:
    """Compares runs of a catalogue. exact: by all lines of long runs, too, in seconds. options: of `compare`."""
    return compare([_source(catalogue, entry, metric, exact) for entry in entries], metric, **options)


def _source(catalogue: Catalogue, entry: Entry, metric: str, exact: bool) -> Path | ComparedRun:
    """What `compare` reads: the folder of a run or, if it is long, means of one metric, which the catalogue keeps."""
    if _size(entry) <= WHOLE_BYTES:
        return entry.path
    if exact:
        return read_folder(entry.path, _all_lines(catalogue, entry.name, metric))
    series = catalogue.series(entry.name, metric, SAMPLED_POINTS)
    steps = [round(step) for step in series.env_steps]
    rows = zip(steps, series.values.tolist(), strict=True)
    lines = [{"update": i, "env_steps": step, metric: list(values)} for i, (step, values) in enumerate(rows)]
    return read_folder(entry.path, lines)


def _all_lines(catalogue: Catalogue, name: str, metric: str) -> list[Line]:
    """All lines of a run, with no more of each than one metric and its parts: little memory, unlike whole lines."""
    found: list[Line] = []
    offset = 0
    while True:
        lines, after = catalogue.lines_after(name, offset)
        found = [] if after < offset else found  # written anew by a run that goes on
        found += [{key: line[key] for key in line if _is_about(key, metric)} for line in lines]
        offset = after
        if not lines:
            return found


def _is_about(key: str, metric: str) -> bool:
    return key in ("update", "env_steps", metric) or key.startswith(f"{metric}/")


def _size(entry: Entry) -> int:
    """Bytes of a run's metrics."""
    try:
        return (entry.path / METRICS).lstat().st_size
    except OSError as error:
        raise RunError(f"{entry.name} is gone: {error.strerror}") from error


def _settings(catalogue: Catalogue, entry: Entry) -> dict[str, Any]:
    config = catalogue.config(entry.name)
    own = {} if entry.kind == TRAINING else {entry.kind: config.get(entry.kind, {})}
    return flatten(config["experiment"]) | flatten(own)


def _differing(settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Settings that are not the same in all runs."""
    names = dict.fromkeys(name for each in settings.values() for name in each)
    return [name for name in names if len({repr(each.get(name)) for each in settings.values()}) > 1]


def _plain_panel(panel: Panel) -> dict[str, Any]:
    try:
        curves, why = dict(panel.curves), ""
    except ShoalError as error:  # the runs of a group have no steps in common
        curves, why = {}, str(error)
    return {
        "name": panel.name,
        "final": dict(panel.final),
        "curves": curves,
        "no_curves": why,
        "profiles": dict(panel.profiles),
        "improvement": panel.improvement,
    }


def _members(found: Comparison) -> dict[str, list[str]]:
    """The runs of each group."""
    members: dict[str, dict[str, None]] = {}
    for sample in found.samples:
        members.setdefault(sample.group, {})[sample.run] = None
    return {group: list(runs) for group, runs in members.items()}


def has_replay(entry: Entry) -> bool:
    return any(page["name"] == "replay.html" for page in pages_of(entry.path))


ROUTES = [Route("/api/compare", show_comparison), Route("/api/compare/file", save_comparison)]
