"""One self-contained page of chosen runs: curves, tables and replays, for a paper's supplement or a colleague.

The page has the same look and the same charts as the user interface. Its modules are joined into one script, which its
policy names by hash; it needs no server and no network.
"""

import base64
import html
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.core.errors import OptionError, RunError, ShoalError
from shoal.core.files import write_atomically
from shoal.core.version import VERSION
from shoal.training.catalogue import Catalogue, Entry
from shoal.ui.app import STATIC
from shoal.ui.endpoints.answers import to_json
from shoal.ui.endpoints.compare import comparable, compare_entries, describe
from shoal.ui.folder import inner_path, pages_of
from shoal.ui.replays import digest, shown_page

MODULES = ("dom", "format", "icons", "parts", "chart", "comparison", "seeds")
"""Modules of `static/lib` that the page needs, each after those it imports."""
STYLES = ("shoal", "charts", "runs", "run", "compare")
POINTS = 300
MOST_METRICS = 12
"""Curves of each run in the page, besides those of the comparison."""
_IMPORT = re.compile(r"^import [^;]*;\n", re.M)
_EXPORT = re.compile(r"^export ", re.M)


def write_export(path: Path, folders: Sequence[Path], metric: str = "return", by: str = "algorithm") -> None:
    """Writes the page of these runs; metric and by: what is compared, and how runs are grouped, see `shoal compare`."""
    if path.exists() and not path.is_file():
        raise OptionError(f"--export {path}: there is a folder of that name; name a file, such as report.html")
    try:
        write_atomically(path, export_page(folders, metric, by))
    except OSError as error:
        raise OptionError(f"cannot write {path}: {error.strerror or error}") from error


def export_page(folders: Sequence[Path], metric: str = "return", by: str = "algorithm") -> str:
    """The page of these runs."""
    report, policies = _report(folders, metric, by)
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


def _report(folders: Sequence[Path], metric: str, by: str) -> tuple[dict[str, Any], list[str]]:
    """What the page shows, and the hashes of the scripts of its replays."""
    catalogue, names = _open(folders)
    entries = [catalogue.entry(name) for name in names]
    unreadable = [entry for entry in entries if entry.status == "unreadable"]
    if unreadable:
        raise RunError(f"{unreadable[0].path} cannot be read: {unreadable[0].problem}")
    compared, notes = comparable(catalogue, names)
    comparison = None
    if compared:
        try:
            found = compare_entries(catalogue, compared, metric, by=by)
            comparison = describe(catalogue, compared, found, notes)
        except ShoalError as error:
            raise OptionError(f"these runs cannot be compared: {error}") from error
    runs, policies = [], []
    metrics = [metric, *(m for m in (comparison or {}).get("metrics", ()) if m != metric)][:MOST_METRICS]
    for entry in entries:
        run, hashes = _run(catalogue, entry, metrics)
        runs.append(run)
        policies += hashes
    title = entries[0].name if len(entries) == 1 else f"{len(entries)} runs"
    report = {"title": title, "written": time.time(), "version": VERSION, "notes": notes, "metrics": metrics}
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


def _run(catalogue: Catalogue, entry: Entry, metrics: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    known = set(catalogue.metric_names(entry.name))
    curves = {metric: catalogue.series(entry.name, metric, POINTS) for metric in metrics if metric in known}
    replay, hashes = None, []
    if any(page["name"] == "replay.html" for page in pages_of(entry.path)):
        shown = shown_page(inner_path(entry.path, "replay.html"))
        replay, hashes = shown.content, re.findall(r"'sha256-[^']+'", shown.policy)
    return {"entry": entry.plain() | {"path": entry.path.name}, "curves": curves, "replay": replay}, hashes
