"""Runs: the list, one run's details, curves, tags and notes."""

from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shoal.core.errors import OptionError, require
from shoal.training.catalogue import Series
from shoal.ui.commands import commands_of
from shoal.ui.endpoints.answers import answer, body_of, catalogue_of, run_of, whole_of
from shoal.ui.folder import METRICS, end_of_lines, list_checkpoints, list_files, pages_of, scenes_of
from shoal.ui.kinds import plain_entry
from shoal.ui.shelf import Shelf

MOST_METRICS = 200


def list_runs(request: Request) -> Response:
    """All runs below the root."""
    shelf: Shelf = request.app.state.shelf
    rows = shelf.rows()
    return answer({"root": str(request.app.state.root), "version": shelf.version, "entries": list(rows.values())})


def show_run(request: Request) -> Response:
    """One run: its entry, settings, metrics, checkpoints, files, pages, kept episodes and the commands that fit it.

    rough: the run is long and was not read yet, so that rare metrics may be missing.
    """
    catalogue, name = catalogue_of(request), run_of(request)
    entry = catalogue.entry(name)
    readable = entry.status != "unreadable"
    rough = catalogue.glance(name) if readable else None
    metrics = list(rough or catalogue.metric_names(name)) if readable else []
    config = catalogue.config(name) if readable else {}
    return answer(
        {
            "entry": plain_entry(entry),
            "version": request.app.state.shelf.version,
            "config": config,
            "offset": end_of_lines(entry.path / METRICS),
            "metrics": metrics,
            "rough": rough is not None,
            "checkpoints": list_checkpoints(entry.path),
            "files": list_files(entry.path),
            "pages": pages_of(entry.path),
            "scenes": scenes_of(entry.path),
            "commands": commands_of(entry, config, request.app.state.root),
        }
    )


def show_config(request: Request) -> Response:
    """The settings of a run alone."""
    return answer(catalogue_of(request).config(run_of(request)))


def show_series(request: Request) -> Response:
    """Curves of a run by metric, down-sampled: env steps, seconds, and values by seed.

    With `?rough=1`, those of a long run that was not read yet are made of some of its lines, and say so.
    """
    catalogue, name = catalogue_of(request), run_of(request)
    metrics = request.query_params.getlist("metric")
    require(0 < len(metrics) <= MOST_METRICS, "address", "metric", len(metrics), f"given 1 to {MOST_METRICS} times")
    points = whole_of(request, "points", 500, 2, 20_000)
    rough = catalogue.glance(name) if "rough" in request.query_params else None
    if rough is not None:
        return answer({metric: _curve(rough[metric]) | {"rough": True} for metric in metrics if metric in rough})
    return answer({metric: _curve(catalogue.series(name, metric, points)) for metric in metrics})


async def annotate(request: Request) -> Response:
    """Writes tags and a note: `{"run": NAME, "tags": [...], "note": "..."}`; what is missing stays as it is."""
    body = await body_of(request)
    name, tags, note = body.get("run"), body.get("tags"), body.get("note")
    if not isinstance(name, str):
        raise OptionError("the body must name a run")
    if tags is not None and not (isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)):
        raise OptionError("tags must be a list of texts")
    if note is not None and not isinstance(note, str):
        raise OptionError("note must be a text")
    catalogue, shelf = catalogue_of(request), request.app.state.shelf
    await run_in_threadpool(catalogue.annotate, name, tags=tags, note=note)
    rows = await run_in_threadpool(shelf.rows, True)
    return answer(rows.get(name))


def _curve(series: Series) -> dict[str, Any]:
    return {"env_steps": series.env_steps, "seconds": series.seconds, "values": series.values}


ROUTES = [
    Route("/api/runs", list_runs),
    Route("/api/run", show_run),
    Route("/api/config", show_config),
    Route("/api/series", show_series),
    Route("/api/annotate", annotate, methods=["POST"]),
]
