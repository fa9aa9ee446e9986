"""Files of a run folder: pages to be shown, pictures, and anything else to be saved."""

import os
from collections.abc import Iterator
from typing import IO

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from shoal.core.errors import require
from shoal.core.files import open_file
from shoal.ui.endpoints.answers import catalogue_of, run_of
from shoal.ui.folder import PAGES, inner_path
from shoal.ui.replays import shown_page

PICTURES = {".png": "image/png", ".gif": "image/gif", ".webp": "image/webp"}
_CHUNK = 1 << 18


def page(request: Request) -> Response:
    """A replay or population page of a run, to be shown in a frame."""
    name = request.query_params.get("name", "replay.html")
    require(name in PAGES, "address", "name", name, f"one of {', '.join(PAGES)}")
    shown = shown_page(inner_path(catalogue_of(request).entry(run_of(request)).path, name))
    headers = {"content-security-policy": f"{shown.policy}; frame-ancestors 'self'"}
    return HTMLResponse(shown.content, headers=headers)


def file(request: Request) -> Response:
    """A file of a run: a picture to be shown, anything else to be saved."""
    name = request.query_params.get("name", "")
    found = open_file(inner_path(catalogue_of(request).entry(run_of(request)).path, name), "rb")
    picture = PICTURES.get(os.path.splitext(name)[1].lower())
    headers = {} if picture else {"content-disposition": "attachment"}
    return StreamingResponse(_chunks(found), media_type=picture or "application/octet-stream", headers=headers)


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while chunk := file.read(_CHUNK):
            yield chunk


ROUTES = [Route("/page", page), Route("/api/file", file)]
