"""What changes while someone looks: one stream of server-sent events per tab."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from shoal.core.errors import ShoalError
from shoal.training.catalogue import Catalogue
from shoal.ui.endpoints.answers import catalogue_of, require, to_json
from shoal.ui.shelf import Shelf

SECONDS = 1.0
"""Between two looks at the files that a tab follows."""
HEARTBEAT = 15.0
"""Seconds after which something is sent in any case: only so is a browser that left noticed."""
MOST_FOLLOWED = 16


async def follow(request: Request) -> Response:
    """Events of the list (`?list=VERSION`) and of runs (`?run=NAME&after=OFFSET`, repeated in pairs).

    `entries`: changed entries and names that are gone. `lines`: new lines of a run's metrics, and the offset after
    them. `gone`: a run that can no longer be read, with the reason.
    """
    query = request.query_params
    names, after = query.getlist("run"), query.getlist("after")
    require(len(names) == len(after) <= MOST_FOLLOWED, "address", "run", len(names), "given as often as `after`")
    require(all(each.isascii() and each.isdigit() for each in after), "address", "after", after, "a whole number")
    offsets = dict(zip(names, map(int, after), strict=True))
    version = query.get("list", "")
    require(version.isdigit() or not version, "address", "list", version, "a whole number")
    events = _events(request, offsets, int(version) if version else None)
    return StreamingResponse(events, media_type="text/event-stream")


async def _events(request: Request, offsets: dict[str, int], version: int | None) -> AsyncIterator[str]:
    """Looks, tells, waits, until the browser leaves or the server closes."""
    shelf: Shelf = request.app.state.shelf
    sent = 0.0
    while not request.app.state.closing:
        told = []
        if version is not None:
            version, changed, gone = await run_in_threadpool(shelf.changes, version)
            if changed or gone:
                told.append(_event("entries", {"version": version, "changed": changed, "gone": gone}))
        for name in list(offsets):
            told += await run_in_threadpool(_look, catalogue_of(request), name, offsets)
        if told or time.monotonic() - sent > HEARTBEAT:
            sent = time.monotonic()
            yield "".join(told) or ": still here\n\n"
        await asyncio.sleep(SECONDS)


def _look(catalogue: Catalogue, name: str, offsets: dict[str, int]) -> list[str]:
    """Events of one run since its offset; forgets a run that is gone."""
    try:
        lines, offset = catalogue.lines_after(name, offsets[name])
    except (ShoalError, OSError) as error:
        del offsets[name]
        return [_event("gone", {"run": name, "problem": str(error)})]
    if not lines:
        offsets[name] = offset
        return []
    offsets[name] = offset
    return [_event("lines", {"run": name, "lines": lines, "offset": offset})]


def _event(kind: str, data: dict[str, Any]) -> str:
    return f"event: {kind}\ndata: {to_json(data)}\n\n"


ROUTES = [Route("/api/events", follow)]
