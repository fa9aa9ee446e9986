"""The page of chosen runs that stands alone, to be saved."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shoal.ui.endpoints.answers import catalogue_of, runs_of
from shoal.ui.endpoints.compare import options_of
from shoal.ui.export import Chosen, export_page

MOST_EXPORTED = 60
"""Runs in one page."""


def save_page(request: Request) -> Response:
    """What `shoal ui --export` writes of a comparison (its address as in `/api/compare`, and `scenes` as well)."""
    chosen = Chosen(**options_of(request), scenes="scenes" in request.query_params)
    page = export_page(catalogue_of(request), runs_of(request, MOST_EXPORTED), chosen)
    headers = {"content-disposition": 'attachment; filename="report.html"'}
    return Response(page, media_type="text/html; charset=utf-8", headers=headers)


ROUTES = [Route("/api/export", save_page)]
