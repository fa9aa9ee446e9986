"""Runs the application on this machine until it is stopped."""

import errno
import ipaddress
import socket
from pathlib import Path
from types import FrameType
from urllib.parse import quote

import uvicorn

from shoal.core.errors import OptionError
from shoal.ui.app import make_app
from shoal.ui.security import LOOPBACK, new_token


class Site:
    """A server that has its port, and waits to be run."""

    def __init__(self, root: str | Path, host: str = "127.0.0.1", port: int = 0, token: str | None = None):
        self.socket = _bind(host, port)
        self.port: int = self.socket.getsockname()[1]
        self.token = token or new_token()
        self.app = make_app(root, self.token, names_of(host))
        shown = f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{self.port}/?token={quote(self.token)}"

    def config(self) -> uvicorn.Config:
        """How the server is run: quietly, and without waiting for browsers when it ends."""
        options = {"log_level": "critical", "access_log": False, "lifespan": "off", "ws": "none", "http": "h11"}
        return uvicorn.Config(self.app, timeout_graceful_shutdown=3, server_header=False, **options)

    def run(self) -> None:
        """Answers until Ctrl-C."""
        _Server(self.config()).run(sockets=[self.socket])


def names_of(host: str) -> set[str]:
    """The hosts that a server bound to `host` answers to; `*`, every IP address, if it is bound to all of them."""
    try:
        everywhere = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        everywhere = False
    return {*LOOPBACK, *({"*", socket.gethostname().lower()} if everywhere else {host.lower()})}


class _Server(uvicorn.Server):
    """Tells streams to end when it is told to: nobody waits for a browser to leave."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.config.app.state.closing = True  # pyright: ignore[reportAttributeAccessIssue, reportFunctionMemberAccess]
        super().handle_exit(sig, frame)


def _bind(host: str, port: int) -> socket.socket:
    """A socket that listens there, or an error that says why not."""
    try:
        family, kind, proto, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise OptionError(f"--host {host}: no such host ({error.strerror or error})") from error
    made = socket.socket(family, kind, proto)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(where)
        made.listen(128)
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            raise OptionError(
                f"--port {port}: another program answers there, perhaps another `shoal ui`. "
                "Choose another port, or leave --port out for any that is free."
            ) from error
        raise OptionError(f"--host {host} --port {port}: {error.strerror or error}") from error
    return made
