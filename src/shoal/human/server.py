"""The page of a game: a small server on this machine alone, whose address holds a token that nobody can guess.

Everything lies below `/TOKEN/`: the page and its files, `events` (server-sent, one snapshot after the other), `act` and
`command` (JSON). A request must name this machine as its host, so that no other name can be pointed at it, and must
come from this very page if it changes anything.
"""

import asyncio
import errno
import importlib.resources
import json
import secrets
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.core.errors import OptionError, ShoalError
from shoal.core.files import parse_json
from shoal.human.session import SeatTakenError, Session

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")
"""What this machine may be called."""
MOST_BYTES = 16_384
"""The largest message of the page."""
SILENCE = 10.0
"""Seconds after which a stream says something, to find out whether anybody listens."""
FILES = {
    "play.html": "text/html",
    "play.css": "text/css",
    "play.js": "text/javascript",
    "controls.js": "text/javascript",
    "scene.js": "text/javascript",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Of every answer."""


class Guard:
    """Refuses requests to other hosts, without the token, from other pages, and those that are too large."""

    def __init__(self, app: ASGIApp, token: str, port: int):
        self.app, self.token = app, token
        self.hosts = {f"{name}:{port}" for name in NAMES}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *own]
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self.app)(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "")
        if host not in self.hosts:
            return PlainTextResponse(f"This server does not answer to the host {host[:80]!r}.", 421)
        given = scope["path"].split("/")[1]
        if not secrets.compare_digest(given.encode(), self.token.encode()):
            return PlainTextResponse("Open the address that `shoal play` printed: it holds a token.", 403)
        if scope["method"] in ("GET", "HEAD"):
            return None
        if headers.get("origin") != f"http://{host}":
            return PlainTextResponse("A game is played from its own page alone.", 403)
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return PlainTextResponse("A message must be JSON.", 415)
        size = headers.get("content-length", "")
        if not size.isdigit() or int(size) > MOST_BYTES:
            return PlainTextResponse(f"A message has at most {MOST_BYTES:,} bytes.", 413)
        return None


def make_app(session: Session, token: str, port: int) -> ASGIApp:
    """The application around a session."""

    async def page(request: Request) -> Response:
        name = request.path_params.get("file") or "play.html"
        if name not in FILES:
            return PlainTextResponse("There is no such file.", 404)
        return Response(read_static(name), media_type=FILES[name])

    async def events(request: Request) -> Response:
        person = request.query_params.get("person", "")
        if not 8 <= len(person) <= 64:
            return PlainTextResponse("Who asks? `person` is missing.", 400)
        return StreamingResponse(_stream(session, person), media_type="text/event-stream")

    async def act(request: Request) -> Response:
        return await _do(request, lambda m: session.act(m["person"], m.get("action"), m.get("step")))

    async def command(request: Request) -> Response:
        return await _do(request, lambda m: session.command(m["person"], m.get("name")))

    inside = Starlette(
        routes=[
            Route("/{token}/events", events),
            Route("/{token}/act", act, methods=["POST"]),
            Route("/{token}/command", command, methods=["POST"]),
            Route("/{token}/", page),
            Route("/{token}/{file}", page),
        ]
    )
    return Guard(inside, token, port)


async def _do(request: Request, what: Any) -> Response:
    """Does what a message asks for; refusals are answered in words."""
    try:
        message = parse_json(await request.body(), finite=True)
        if not isinstance(message, dict) or not isinstance(message.get("person"), str):
            raise OptionError("a message must be an object that names its person")
        await asyncio.to_thread(what, message)
    except SeatTakenError as error:
        return JSONResponse({"refused": str(error)}, 409)
    except (ShoalError, ValueError) as error:
        return JSONResponse({"refused": str(error)}, 422)
    return JSONResponse({})


async def _stream(session: Session, person: str) -> AsyncIterator[bytes]:
    """What the page is told: first what does not change, then a snapshot after every change, the newest alone."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    try:
        session.join(person)
    except SeatTakenError as error:
        yield _event("refused", str(error))
        return
    stop = session.listen(lambda: loop.call_soon_threadsafe(changed.set))
    try:
        yield _event("table", session.describe())
        shown = -1
        while not session.closed:
            changed.clear()
            if session.version != shown:
                snapshot = session.snapshot()
                shown = snapshot["version"]
                yield _event("state", snapshot)
            try:
                await asyncio.wait_for(changed.wait(), SILENCE)
            except TimeoutError:
                yield b": nothing new\n\n"
        yield _event("refused", "The game is closed: the server was stopped.")
    finally:
        stop()
        session.leave(person)


def _event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


def read_static(name: str) -> bytes:
    """A file of the page; the drawing is shared with replays."""
    folder = importlib.resources.files("shoal.viz" if name == "scene.js" else "shoal.human")
    return (folder / name if name == "scene.js" else folder / "static" / name).read_bytes()


class Table:
    """A game that is being served: open `address` in a browser. `wait()` until Ctrl-C, `close()` ends it."""

    def __init__(self, session: Session, port: int = 0):
        self.session = session
        self._socket = _bind(port)
        self.port: int = self._socket.getsockname()[1]
        token = secrets.token_urlsafe(18)
        self.address = f"http://{HOST}:{self.port}/{token}/"
        config = uvicorn.Config(
            make_app(session, token, self.port),
            log_config=None,  # the logging of the program that calls is not touched
            log_level="critical",
            access_log=False,
            lifespan="off",
            ws="none",
            http="h11",
            server_header=False,
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)
        self._threads = [
            threading.Thread(target=session.run, daemon=True, name="shoal-play-game"),
            threading.Thread(target=self._serve, daemon=True, name="shoal-play-server"),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def results(self) -> str | None:
        """The file that episodes are appended to."""
        return None if self.session.results is None else str(self.session.results)

    def wait(self) -> None:
        """Waits until Ctrl-C, or until somebody else closes it."""
        try:
            while self._threads[1].is_alive():
                self._threads[1].join(0.2)
        except KeyboardInterrupt:
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Ends the game and the server; an unfinished episode is kept as abandoned."""
        self.session.close()
        self._server.should_exit = True
        for thread in self._threads:
            thread.join(5.0)

    def __enter__(self) -> "Table":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Table({self.address!r})"

    def _serve(self) -> None:
        self._server.run(sockets=[self._socket])


def _bind(port: int) -> socket.socket:
    """A socket on this machine's own interface, or an error that says why not."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((HOST, port))
        made.listen(64)
    except OSError as error:
        made.close()
        why = "another program answers there" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        raise OptionError(f"--port {port}: {why}. Choose another, or leave it out for any that is free.") from error
    return made
