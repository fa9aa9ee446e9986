"""`shoal ui`: the page over a folder of runs."""

import dataclasses
import importlib.util
import webbrowser
from collections.abc import Sequence
from typing import Annotated

from tyro.conf import DisallowNone, Positional, UseAppendAction, arg

from shoal.cli.arguments import Flag, parse
from shoal.cli.terminal import console, display_path, emit, resolve_path, say
from shoal.core.errors import OptionError, ShoalError, install_command, require

ROOT = "runs"


@dataclasses.dataclass(frozen=True, kw_only=True)
class UIOptions:
    """Look at runs in the browser: lists, live curves, comparisons and replays, on this machine alone.

    With --export, write one page of chosen runs instead, which needs neither a server nor a network.
    """

    where: Positional[Annotated[tuple[str, ...], arg(metavar="[ROOT] | RUN...")]] = ()
    """the folder whose runs are shown, by default runs; with --export, the folders of the runs"""
    port: int = 0  # where the page is served; 0: any port that is free
    host: str = "127.0.0.1"  # the address to listen at; by default this machine alone can reach it
    open: Flag = False  # open the page in a browser
    export: Annotated[DisallowNone[str | None], arg(metavar="FILE")] = None
    """write a page of these runs and leave; by default serve"""
    metric: str = "return"  # with --export: what is compared
    by: str = "algorithm"  # with --export: what runs are grouped by, a setting such as algorithm, run or learning_rate
    at: Annotated[str, arg(metavar="end|STEPS")] = "end"
    """with --export: env steps at which all are judged; end: each where it ends"""
    label: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="GROUP=TEXT")] = ()
    """with --export: what a group is called, as in ppo=IPPO"""
    curve: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="METRIC")] = ()
    """with --export: a metric of which every run is shown; by default the first dozen"""
    replay: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="RUN")] = ()
    """with --export: a run whose replay is shown; by default all of them"""
    scenes: Flag = False  # with --export: show the episodes that runs kept along their curves, too
    json: Flag = False  # print one JSON object with the address, or the file


def run(args: Sequence[str]) -> int:
    """Serves the page, or writes one."""
    options = parse(UIOptions, args, "shoal ui")
    require(0 <= options.port < 65536, "shoal ui", "port", options.port, "between 0 and 65535")
    for name in ("curve", "replay", "scenes", "label"):
        if getattr(options, name) and options.export is None:
            raise OptionError(f"--{name} is for the page of --export: add --export FILE, or leave it out")
    check_installed()
    return _export(options) if options.export is not None else _serve(options)


def _export(options: UIOptions) -> int:
    """Writes the page of chosen runs."""
    from shoal.cli.commands.compare import parse_end, parse_labels
    from shoal.ui.export import Chosen, write_export

    assert options.export is not None
    path = resolve_path(options.export)
    judged = {"at": parse_end(options.at), "labels": parse_labels(options.label)}
    chosen = Chosen(options.metric, options.by, curves=options.curve, scenes=options.scenes, **judged)
    replays = [resolve_path(run) for run in options.replay] if options.replay else None
    write_export(path, [resolve_path(run) for run in options.where], chosen, replays)
    if options.json:
        emit({"page": str(path)})
    else:
        say(console(), display_path(path))
    if options.open:
        webbrowser.open(path.as_uri())
    return 0


def _serve(options: UIOptions) -> int:
    """Serves the page until Ctrl-C."""
    if len(options.where) > 1:
        raise OptionError(f"shoal ui shows one folder, got {len(options.where)}: give the folder that they lie in")
    from shoal.ui.server import Site

    root = resolve_path(options.where[0] if options.where else ROOT)
    if options.where and not root.exists():
        raise OptionError(f"{display_path(root)} is not there: give the folder in which runs lie")
    if root.exists() and not root.is_dir():
        raise OptionError(f"{display_path(root)} is not a folder: give the folder in which runs lie")
    site, out = Site(root, options.host, options.port), console(options.json)
    if options.json:
        emit({"address": site.address, "root": str(root)})
    else:
        say(out, f"runs in {display_path(root)}: {site.address}  (Ctrl-C to stop)")
    if options.open and not webbrowser.open(site.address):
        say(out, "no browser could be opened: open the address by hand")
    try:
        site.run()
    except KeyboardInterrupt:
        say(out)
    return 0


def check_installed() -> None:
    """Says which extra is missing."""
    missing = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise ShoalError(f"looking at runs in the browser needs {' and '.join(missing)}: {install_command('ui')}")
