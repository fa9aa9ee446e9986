"""`shoal watch RUN`: an episode as a page for the browser, or episodes of one or several runs as a film."""

import dataclasses
import http.server
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.console import Console
from tyro.conf import DisallowNone, Positional, arg

from shoal.api.films import FilmedRun, film_runs
from shoal.api.pictures import replay, write_history
from shoal.api.targets import attributed_to, open_known
from shoal.cli.arguments import Checkpoint, Count, Flag, Folder
from shoal.cli.commands.evaluate import Opponents, load_with, parse_opponents
from shoal.cli.run_options import StoredRunOptions
from shoal.cli.stored_runs import open_stored, parse_stored, results_path
from shoal.cli.terminal import console, emit, fetch_or_resolve_run, say
from shoal.core.errors import OptionError, WorldError, require
from shoal.viz.reel import Look, check_format

PORT = 8000
"""Of the page that is served."""
FILMS = ("webp", "gif", "mp4", "png")
"""Formats of films."""
Number = Annotated[DisallowNone[float | None], arg(metavar="X")]


Film = Annotated[DisallowNone[str | None], arg(metavar="[FILE]")]
"""A film of that format; by default film.ENDING in the folder of the (first) run."""
MoreRuns = Annotated[Positional[tuple[str, ...]], arg(metavar="RUN")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class WatchOptions(StoredRunOptions):
    """Record an episode with the newest checkpoint of a run, or another, and write a page that plays it, or a film."""

    beside: MoreRuns = ()  # other runs, for a film of several side by side
    out: Folder = None  # where to write the page; by default replay.html in the run folder
    seed: int = 0  # seed of the (first) episode
    seed_index: int = 0  # whose policies, of a run of several seeds, counted from 0
    checkpoint: Checkpoint = None  # of which update, or the best in evaluation; by default the newest
    explore: Flag = False  # sample actions as in training, instead of taking the likeliest
    opponent: Opponents = ()
    """who plays otherwise, a policy, a player or seats such as agent[1]: as in another run, or at random: WHO=random"""
    webp: Film = None  # a film as WebP, which browsers and READMEs show; by default film.webp in the run folder
    gif: Film = None  # a film as GIF, which everything shows, about three times as large; by default film.gif
    mp4: Film = None  # a film as MP4 (H.264), for talks and papers; by default film.mp4
    png: Film = None  # the last moment as a picture, or those of --at; by default film.png
    at: Annotated[DisallowNone[str | None], arg(metavar="STEP[,STEP...]")] = None
    """of --png: the steps of the episode that it shows, side by side; by default the last one"""
    episodes: Count = None  # of a film: how many episodes, one after the other; by default 1
    size: Count = None  # of a film: pixels of the longer side of each run's panel, by default 480
    fps: Number = None  # of a film: frames a second, by default 30
    speed: Number = None  # of a film: 1, as by default, is 15 steps a second, as on the page
    theme: Annotated[DisallowNone[Literal["light", "dark"] | None], arg(metavar="light|dark")] = None
    """of a film: by default light"""
    history: Flag = False
    """write history.html instead: drag along the learning curve to see how the policies played then"""
    open: Flag = False  # open the page in a browser
    serve: Flag = False  # serve the page on this machine until Ctrl-C
    port: Count = None  # for --serve, by default 8000

    @property
    def films(self) -> dict[str, str]:
        """Names of the films that are asked for, by format; empty names are to be chosen."""
        return {kind: name for kind in FILMS if (name := getattr(self, kind)) is not None}

    @property
    def look(self) -> dict[str, Any]:
        """What was said of how a film looks."""
        names = ("size", "fps", "speed", "theme", "at")
        said = {name: value for name in names if (value := getattr(self, name)) is not None}
        return said | ({"at": _steps(self.at)} if self.at is not None else {})


def run(args: Sequence[str]) -> int:
    """Records episodes and shows where to watch them."""
    options = parse_stored(WatchOptions, name_films(args), "shoal watch")
    if options.history:
        return _history(options)
    return _film(options) if options.films else _page(options)


def _steps(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    sound = all(part.strip().isascii() and part.strip().isdecimal() for part in parts)
    require(sound, "shoal watch", "--at", text, "steps with commas between them, such as 0,10,25")
    return tuple(map(int, parts))


def name_films(args: Sequence[str]) -> list[str]:
    """The arguments, with an empty name behind `--webp` and its like where none was typed: `tyro` wants one."""
    found = []
    for i, word in enumerate(args):
        found.append(word)
        if word.removeprefix("--") in FILMS and word.startswith("--"):
            following = args[i + 1] if i + 1 < len(args) else ""
            if Path(following).suffix.lower().removeprefix(".") not in FILMS:
                found[-1] = f"{word}="
    return found


def _page(options: WatchOptions) -> int:
    """Writes the page that plays an episode."""
    told = [f"--{name}" for name in options.look] + ["--episodes"] * (options.episodes is not None)
    if told or options.beside:
        what = told[0] if told else f"a second run ({options.beside[0]})"
        raise OptionError(f"shoal watch: {what} is for films: add --webp, --gif or --mp4, or leave it out")
    _check_port(options)
    folder, opponents = open_stored(options.run, "shoal watch", options.seed_index), parse_opponents(options.opponent)
    target = Path(options.out) if options.out else results_path(folder, "replay.html")
    with attributed_to(folder.experiment.env, "the episode"):
        setup, policies, meta = load_with(folder, options.seed_index, opponents, options.checkpoint)
        look = {"seed": options.seed, "explore": options.explore, "filmed": True}
        page, why = replay(target, setup, policies, update=meta["update"], **look)
    if page is None:
        raise WorldError(why)
    return _hand_out(options, page, {"replay": str(page), "updates": meta["update"], "env_steps": meta["env_steps"]})


def _history(options: WatchOptions) -> int:
    """Writes the page that plays the episodes which a run has kept while it trained."""
    defaults = WatchOptions(run="")
    for name in (
        "beside",
        "seed",
        "seed_index",
        "checkpoint",
        "explore",
        "opponent",
        "episodes",
        *options.films,
        *options.look,
    ):
        if getattr(options, name) != getattr(defaults, name):
            raise OptionError(
                f"shoal watch: --history plays what the run has kept: leave out --{name.replace('_', '-')}"
            )
    _check_port(options)
    folder = open_known(fetch_or_resolve_run(options.run), None)
    page = Path(options.out) if options.out else results_path(folder, "history.html")
    number = write_history(page, folder)
    return _hand_out(options, page, {"history": str(page), "points": number})


def _check_port(options: WatchOptions) -> None:
    port = PORT if options.port is None else options.port
    require(0 <= port < 65536, "shoal watch", "port", port, "between 0 and 65535")
    if options.port is not None and not options.serve:
        raise OptionError("--port is for the page that --serve hands out: add --serve, or leave it out")


def _hand_out(options: WatchOptions, page: Path, result: dict[str, Any]) -> int:
    """Says where a page is, opens it and serves it, as asked."""
    out = console(options.json)
    if options.json:
        emit(result)
    else:
        say(out, str(page))
    if options.open and not webbrowser.open(page.resolve().as_uri()):
        say(out, "no browser could be opened: open the file by hand, or use --serve")
    if options.serve:
        _serve(page, PORT if options.port is None else options.port, out)
    return 0


def _film(options: WatchOptions) -> int:
    """Writes films of the episodes of one run, or of several side by side."""
    for name in ("out", "open", "serve", "port"):
        if getattr(options, name):
            raise OptionError(f"--{name} is for the page, not for a film: leave it out, or name the film: --webp FILE")
    look, episodes = Look(**options.look), 1 if options.episodes is None else options.episodes
    opponents = parse_opponents(options.opponent)
    folders = [open_stored(run, "shoal watch", options.seed_index) for run in (options.run, *options.beside)]
    paths = {kind: results_path(folders[0], f"film.{kind}") for kind in options.films}
    paths |= {kind: Path(name) for kind, name in options.films.items() if name}
    for kind, path in paths.items():
        ends = path.suffix.lower() == f".{kind}"
        require(ends, "shoal watch", f"--{kind}", str(path), f"the name of a file that ends with .{kind}")
        check_format(path, look)
    filmed, metas = [], []
    with attributed_to(folders[0].experiment.env, "the film"):
        for folder in folders:
            setup, policies, meta = load_with(folder, options.seed_index, opponents, options.checkpoint)
            filmed.append(FilmedRun(setup, policies, meta["update"], folder.path.name))
            metas.append(meta)
        film_runs(paths.values(), filmed, look, episodes=episodes, seed=options.seed, explore=options.explore)
    if options.json:
        known = {name: [meta[name] for meta in metas] for name in ("update", "env_steps")}
        if len(metas) == 1:
            known = {name: values[0] for name, values in known.items()}
        films = [str(path) for path in paths.values()]
        emit({"films": films, "updates": known["update"], "env_steps": known["env_steps"]})
    else:
        for path in paths.values():
            say(console(), f"{path}  ({path.stat().st_size / 1000:,.0f} kB)")
    return 0


def _serve(page: Path, port: int, out: Console) -> None:
    """Hands out the page, and nothing else, to browsers on this machine."""
    content = page.read_bytes()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path in ("/", f"/{page.name}")
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(content) if found else 0))
            self.end_headers()
            self.wfile.write(content if found else b"")

        def log_message(self, format: str, *args: object) -> None:
            """Requests are not worth a line each."""

    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise OptionError(f"--port {port}: {error.strerror or error}. Choose another.") from error
    say(out, f"http://127.0.0.1:{server.server_port}/  (Ctrl-C to stop)")
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say(out)
