"""The application: pages, files and groups of endpoints behind the guard."""

from collections.abc import Iterable
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from shoal.core.errors import ShoalError, UnknownNameError
from shoal.training.catalogue import Catalogue
from shoal.ui.cluster import COLUMNS as CLUSTER_COLUMNS
from shoal.ui.endpoints import (
    cluster,
    compare,
    environments,
    export,
    files,
    live,
    population,
    presets,
    runs,
    scenes,
    start,
    tuning,
)
from shoal.ui.inventory import STATIC
from shoal.ui.kept_lines import KeptLines
from shoal.ui.launcher import Launcher
from shoal.ui.matches import Matches
from shoal.ui.population import COLUMNS as POPULATION_COLUMNS
from shoal.ui.security import LOOPBACK, Guard
from shoal.ui.shelf import Shelf
from shoal.ui.tuning import is_wanted

GROUPS = (runs, live, files, compare, presets, population, tuning, cluster, scenes, environments, start, export)
"""Modules of `endpoints`, each with its `ROUTES`."""


def make_app(root: str | Path, token: str, hosts: Iterable[str] = LOOPBACK) -> Starlette:
    """The application over the runs below `root`. hosts: see `Guard`."""
    routes = [
        Route("/", _page),
        *(route for group in GROUPS for route in group.ROUTES),
        Mount("/static", _Static(directory=STATIC)),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Guard, token=token, hosts=hosts)],
        exception_handlers={ShoalError: _explain, OSError: _explain, HTTPException: _explain_http},
    )
    app.state.catalogue = Catalogue(root)
    app.state.shelf = Shelf(app.state.catalogue)
    app.state.tuned_lines = KeptLines(app.state.catalogue, is_wanted, wide=True)
    app.state.grown_lines = KeptLines(app.state.catalogue, POPULATION_COLUMNS.__contains__)
    app.state.cluster_lines = KeptLines(app.state.catalogue, CLUSTER_COLUMNS.__contains__)
    app.state.root = Path(root).absolute()
    app.state.launcher = Launcher(app.state.root)
    app.state.closing = False
    app.state.matches = Matches(lambda: app.state.closing)
    return app


class _Static(StaticFiles):
    """Files of the page; a browser asks again each time, so that a new version shows at once."""

    def file_response(self, *args, **kwargs) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["cache-control"] = "no-cache"
        return response


def _page(request: Request) -> Response:
    return FileResponse(STATIC / "index.html", headers={"cache-control": "no-cache"})


async def _explain(request: Request, error: Exception) -> Response:
    """An error that has a cause in a folder or in the address, in words."""
    if isinstance(error, OSError):  # a run that was removed while it was read, a disk that failed
        return JSONResponse({"error": error.strerror or str(error)}, 404)
    return JSONResponse({"error": str(error)}, 404 if isinstance(error, UnknownNameError) else 400)


async def _explain_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code)
