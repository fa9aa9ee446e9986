"""`shoal watch RUN`: an episode as a page for the browser."""

import dataclasses
import http.server
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from shoal.api.pictures import replay
from shoal.api.targets import attributed_to
from shoal.cli.arguments import Checkpoint, Flag, Folder
from shoal.cli.commands.evaluate import Opponents, load_with, parse_opponents
from shoal.cli.runs import StoredRunOptions, open_stored, parse_stored
from shoal.cli.terminal import console, emit, say
from shoal.core.errors import OptionError, WorldError, require


@dataclasses.dataclass(frozen=True, kw_only=True)
class WatchOptions(StoredRunOptions):
    """Record an episode with the newest checkpoint of a run, or another, and write a page that plays it."""

    output: Folder = None  # where to write the page; by default replay.html in the run folder
    seed: int = 0  # seed of the episode
    training: int = 0  # which of several trainings side by side, counted from 0
    checkpoint: Checkpoint = None  # of which update, or the best in evaluation; by default the newest
    explore: Flag = False  # sample actions as in training, instead of taking the likeliest
    opponent: Opponents = ()
    """who plays otherwise, a policy, a player or seats such as agent[1]: as in another run, or at random: WHO=random"""
    open: Flag = False  # open the page in a browser
    serve: Flag = False  # serve the page on this machine until Ctrl-C
    port: int = 8000  # for --serve


def run(args: Sequence[str]) -> int:
    """Records an episode and shows where to watch it."""
    options = parse_stored(WatchOptions, args, "shoal watch")
    require(0 <= options.port < 65536, "shoal watch", "port", options.port, "between 0 and 65535")
    folder, opponents = open_stored(options.run, "shoal watch", options.training), parse_opponents(options.opponent)
    target = Path(options.output) if options.output else folder.path / "replay.html"
    with attributed_to(folder.experiment.env, "the episode"):
        setup, policies, meta = load_with(folder, options.training, opponents, options.checkpoint)
        look = {"seed": options.seed, "explore": options.explore, "filmed": True}
        page, why = replay(target, setup, policies, update=meta["update"], **look)
    if page is None:
        raise WorldError(why)
    out = console(options.json)
    if options.json:
        emit({"replay": str(page), "updates": meta["update"], "env_steps": meta["env_steps"]})
    else:
        say(out, str(page))
    if options.open and not webbrowser.open(page.resolve().as_uri()):
        say(out, "no browser could be opened: open the file by hand, or use --serve")
    if options.serve:
        _serve(page, options.port, out)
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
