"""Who may ask: the guard in front of every request.

A page that a browser shows from elsewhere must not be able to read runs or to change them. So a request must name this
server as its host (a name that was pointed at this machine by someone else's DNS is refused), must carry the token,
which only the printed address holds and which then becomes a cookie that other sites cannot send, and must come from
this very page if it changes anything.
"""

import hashlib
import ipaddress
import secrets
from collections.abc import Iterable
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
"""Names of this machine that no DNS can point elsewhere."""
READING = frozenset({"GET", "HEAD"})
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "frame-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""What the page may load and run: files of this server, and nothing written into the page itself."""
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every answer, unless the answer has its own."""


def new_token() -> str:
    """A token that nobody can guess."""
    return secrets.token_urlsafe(24)


def host_name(authority: str) -> str:
    """The host of a `Host` header, in lower case and without the port; empty if there is none."""
    try:
        return (urlsplit(f"//{authority}").hostname or "").lower()
    except ValueError:
        return ""


class Guard:
    """Refuses what does not come from the page itself. hosts: names to answer to; `*` stands for every IP address."""

    def __init__(self, app: ASGIApp, token: str, hosts: Iterable[str] = LOOPBACK):
        self.app = app
        self.token = token
        self.hosts = frozenset(hosts)
        # Cookies are shared by all ports of a machine: with a name of its own, a second server keeps its visitors.
        self.cookie = f"shoal-{hashlib.sha256(token.encode()).hexdigest()[:12]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                found = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    found.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope, headers)
        await (refusal or self.app)(scope, receive, with_headers)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """What to answer instead, or None if the request may pass."""
        host = headers.get("host", "")
        if not self._is_known(host_name(host)):
            return PlainTextResponse(f"This server does not answer to the host {host_name(host)!r}.", 421)
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        if scope["path"] == "/" and scope["method"] in READING and "token" in query:
            return self._welcome(query)
        if not self._has_token(headers):
            return PlainTextResponse(
                "This page needs the token in the address that `shoal ui` printed: open that address, "
                "http://.../?token=...",
                403,
            )
        if scope["method"] not in READING:
            return _foreign_write(host, headers)
        return None

    def _is_known(self, name: str) -> bool:
        if name in self.hosts:
            return True
        if "*" not in self.hosts:
            return False
        try:  # an address in numbers is not looked up, so nobody can have pointed it here
            return bool(ipaddress.ip_address(name))
        except ValueError:
            return False

    def _welcome(self, query: dict[str, str]) -> Response:
        """The token moves from the address into a cookie, so that it is in no bookmark and no picture of the screen."""
        if not _same(query.pop("token"), self.token):
            return PlainTextResponse("The token in this address is not the one that `shoal ui` printed.", 403)
        response = RedirectResponse(f"/?{urlencode(query)}" if query else "/", 303)
        response.set_cookie(self.cookie, self.token, httponly=True, samesite="strict")
        return response

    def _has_token(self, headers: Headers) -> bool:
        given = headers.get("authorization", "")
        if given.startswith("Bearer "):
            return _same(given.removeprefix("Bearer "), self.token)
        return _same(cookie_parser(headers.get("cookie", "")).get(self.cookie, ""), self.token)


def _foreign_write(host: str, headers: Headers) -> Response | None:
    """The refusal of a write that another page might have caused."""
    if headers.get("origin") not in (f"http://{host}", f"https://{host}"):
        return PlainTextResponse("Changes are made from this server's own page alone.", 403)
    if headers.get("content-type", "").split(";")[0].strip() != "application/json":
        return PlainTextResponse("A change is described in JSON.", 415)
    return None


def _same(given: str, token: str) -> bool:
    return secrets.compare_digest(given.encode(), token.encode())
