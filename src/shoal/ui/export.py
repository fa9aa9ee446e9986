"""One self-contained page of chosen runs: curves, tables and replays, for a paper's supplement or a colleague.

What is compared is read from every line of a run, however long; curves of single runs are means of neighbouring lines.

The page has the same look and the same charts as the user interface. Its modules are joined into one script, which its
policy names by hash; it needs no server and no network.
"""

import base64
import dataclasses
import html
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.core.errors import OptionError, RunError, ShoalError, unknown_name
from shoal.core.files import write_atomically
from shoal.core.version import VERSION
from shoal.training.catalogue import Catalogue, Entry
from shoal.training.comparison import END
from shoal.training.scene_files import read_scene, read_scenes
from shoal.ui.endpoints.answers import to_json
from shoal.ui.endpoints.compare import comparable, compare_entries, describe
from shoal.ui.folder import inner_path, pages_of
from shoal.ui.inventory import STATIC
from shoal.ui.replays import digest, fill, shown_page

MODULES = ("dom", "format", "icons", "parts", "chart", "comparison", "seeds")
"""Modules of `static/lib` that the page needs, each after those it imports."""
STYLES = ("shoal", "charts", "runs", "run", "compare")
POINTS = 300
MOST_METRICS = 12
"""Curves of each run in the page, besides those of the comparison."""
_IMPORT = re.compile(r"^import [^;]*;\n", re.M)
_EXPORT = re.compile(r"^export ", re.M)


@dataclasses.dataclass(frozen=True)
class Chosen:
    """What a page shows. metric, by, at, normalise, labels: of the comparison, see `compare`.

    curves: metrics of which every run is shown; by default the first ones that all of them have. replays: the names of
    the runs whose replays are shown; by default all. scenes: whether the episodes kept along their curves are, too.
    """

    metric: str = "return"
    by: str = "algorithm"
    at: int | str = END
    normalise: bool = False
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    curves: tuple[str, ...] = ()
    replays: tuple[str, ...] | None = None
    scenes: bool = False


def write_export(
    path: Path, folders: Sequence[Path], chosen: Chosen = Chosen(), replays: Sequence[Path] | None = None
) -> None:
    """Writes the page of these runs. replays: the folders of those whose replays are shown, by default of all."""
    if path.exists() and not path.is_file():
        raise OptionError(f"--export {path}: there is a folder of that name; name a file, such as report.html")
    catalogue, names = _open(folders)
    if replays is not None:
        chosen = dataclasses.replace(chosen, replays=tuple(_name_of(run, catalogue, names) for run in replays))
    try:
        write_atomically(path, export_page(catalogue, names, chosen))
    except OSError as error:
        raise OptionError(f"cannot write {path}: {error.strerror or error}") from error


def export_page(catalogue: Catalogue, names: Sequence[str], chosen: Chosen) -> str:
    """The page of these runs."""
    report, policies = _report(catalogue, names, chosen)
    script = bundle("report.js")
    scripts = " ".join(dict.fromkeys([f"'sha256-{digest(script)}'", *policies]))
    policy = f"default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src {scripts}"
    style = "".join((STATIC / "style" / f"{name}.css").read_text("utf-8") for name in STYLES)
    icon = base64.b64encode((STATIC / "icon.svg").read_bytes()).decode()
    arrow = base64.b64encode((STATIC / "style" / "down.svg").read_bytes()).decode()
    data = to_json(report).replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        f'<link rel="icon" href="data:image/svg+xml;base64,{icon}">',
        f"<title>{html.escape(report['title'])}</title>",
        f"<style>{style.replace('/static/style/down.svg', f'data:image/svg+xml;base64,{arrow}')}",
        "body { display: block; }\n.ink { color: var(--ink) !important; }</style>\n</head>\n<body>",
        '<main id="main"></main>\n<div id="toasts" role="status" aria-live="polite"></div>',
        f'<script type="application/json" id="data">{data}</script>',
        f"<script>{script}</script>\n</body>\n</html>\n",
    ]
    return "\n".join(parts)


def bundle(name: str) -> str:
    """A script of the page with the modules that it imports, joined into one that needs no other file."""
    paths = [*(STATIC / "lib" / f"{module}.js" for module in MODULES), STATIC / name]
    joined = "\n".join(_EXPORT.sub("", _IMPORT.sub("", path.read_text("utf-8"))) for path in paths)
    return f"\n(() => {{\n{joined}}})();\n"


def _report(catalogue: Catalogue, names: Sequence[str], chosen: Chosen) -> tuple[dict[str, Any], list[str]]:
    """What the page shows, and the hashes of the scripts of its replays."""
    entries = [catalogue.entry(name) for name in names]
    unreadable = [entry for entry in entries if entry.status == "unreadable"]
    if unreadable:
        raise RunError(f"{unreadable[0].path} cannot be read: {unreadable[0].problem}")
    compared, notes = comparable(catalogue, names, exact=True)
    asked = {name: getattr(chosen, name) for name in ("metric", "by", "at", "normalise", "labels")}
    try:
        comparison = describe(catalogue, compared, compare_entries(catalogue, compared, exact=True, **asked), notes)
    except ShoalError as error:
        raise OptionError(f"these runs cannot be compared: {error}") from error
    runs, policies = [], []
    metrics = _metrics(catalogue, names, chosen, comparison["metrics"])
    for entry in entries:
        run, hashes = _run(catalogue, entry, metrics, chosen)
        runs.append(run)
        policies += hashes
    title = entries[0].name if len(entries) == 1 else f"{len(entries)} runs"
    report = {"title": title, "written": time.time(), "version": VERSION, "metrics": metrics}
    report["notes"] = comparison["notes"]
    report["points"] = POINTS
    return report | {"runs": runs, "comparison": comparison}, policies


def _open(folders: Sequence[Path]) -> tuple[Catalogue, list[str]]:
    """A catalogue that has all of these runs, and their names in it."""
    paths = [folder.absolute() for folder in dict.fromkeys(folders)]
    if not paths:
        raise OptionError("--export needs runs: shoal ui --export report.html runs/a runs/b")
    for path in paths:
        if not path.is_dir():
            raise RunError(f"{path} is not a run folder: no such folder")
    root = Path(os.path.commonpath([path.parent for path in paths]))
    return Catalogue(root, cache=False), [path.relative_to(root).as_posix() for path in paths]


def _name_of(folder: Path, catalogue: Catalogue, names: Sequence[str]) -> str:
    """The name of a run of the page by its folder."""
    found = [name for name in names if catalogue.folder(name) == folder.absolute()]
    if not found:
        raise OptionError(f"--replay {folder}: this run is not in the page: name it among the runs, too")
    return found[0]


def _metrics(catalogue: Catalogue, names: Sequence[str], chosen: Chosen, shared: Sequence[str]) -> list[str]:
    """The metrics of which every run is shown."""
    if not chosen.curves:
        return [chosen.metric, *(metric for metric in shared if metric != chosen.metric)][:MOST_METRICS]
    known = dict.fromkeys(metric for name in names for metric in catalogue.metric_names(name))
    for metric in chosen.curves:
        if metric not in known:
            raise unknown_name("metric", metric, known, "None of these runs has it.")
    return list(dict.fromkeys(chosen.curves))


def _run(
    catalogue: Catalogue, entry: Entry, metrics: Sequence[str], chosen: Chosen
) -> tuple[dict[str, Any], list[str]]:
    """A run as the page shows it, and the hashes of the scripts of its replays."""
    known = set(catalogue.metric_names(entry.name))
    curves = {metric: catalogue.series(entry.name, metric, POINTS) for metric in metrics if metric in known}
    replay, scenes, pages = None, [], []
    if chosen.replays is None or entry.name in chosen.replays:
        if any(page["name"] == "replay.html" for page in pages_of(entry.path)):
            pages.append(shown_page(inner_path(entry.path, "replay.html")))
            replay = pages[0].content
        for point in read_scenes(entry.path) if chosen.scenes else ():
            scene = read_scene(point.path)
            pages.append(fill(scene["page"], scene["data"]))
            scenes.append({"update": point.update, "env_steps": point.env_steps, "page": pages[-1].content})
    hashes = [found for page in pages for found in re.findall(r"'sha256-[^']+'", page.policy)]
    plain = entry.plain() | {"path": entry.path.name}
    return {"entry": plain, "curves": curves, "replay": replay, "scenes": scenes}, hashes
