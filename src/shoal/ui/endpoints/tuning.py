"""Sweeps and population-based training: what was tried, and what came of it."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shoal.ui.endpoints.answers import answer, catalogue_of, run_of
from shoal.ui.folder import METRICS, end_of_lines
from shoal.ui.kinds import TUNED, entry_of_kind, plain_entry
from shoal.ui.tuning import read_pbt, read_sweep


def show_tuning(request: Request) -> Response:
    """A sweep (`?measure=` says what its points are compared by) or a population-based training."""
    catalogue, name = catalogue_of(request), run_of(request)
    entry = entry_of_kind(catalogue, name, TUNED, "a sweep or a population-based training")
    settings, offset = catalogue.config(name)[entry.kind], end_of_lines(entry.path / METRICS)
    lines = request.app.state.tuned_lines.lines(name)
    if entry.kind == "sweep":
        found = read_sweep(entry.path, settings, lines, request.query_params.get("measure"))
    else:
        found = read_pbt(entry.path, settings, lines)
    return answer({"entry": plain_entry(entry), "version": request.app.state.shelf.version, "offset": offset, **found})


ROUTES = [Route("/api/tuning", show_tuning)]
