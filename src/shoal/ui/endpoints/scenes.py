"""Episodes that a run kept along its learning curve, to be looked at while it trains and afterwards."""

from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from shoal.core.errors import RunError
from shoal.training.scene_files import read_scene, read_scenes
from shoal.ui.endpoints.answers import answer, catalogue_of, run_of, whole_of
from shoal.ui.folder import scenes_of
from shoal.ui.replays import fill

MOST_UPDATE = 10**12


def list_scenes(request: Request) -> Response:
    """The points that a run has kept so far, oldest first."""
    return answer({"scenes": scenes_of(_folder(request))})


def show_scene(request: Request) -> Response:
    """One point without its episode: where it is on the curve, who plays, and the return of each group."""
    point = _point(request)
    return answer({key: point[key] for key in ("update", "env_steps", "label", "returns")})


def page(request: Request) -> Response:
    """The episode of one point, to be shown in a frame."""
    point = _point(request)
    shown = fill(point["page"], point["data"])
    headers = {"content-security-policy": f"{shown.policy}; frame-ancestors 'self'"}
    return HTMLResponse(shown.content, headers=headers)


def _folder(request: Request) -> Path:
    return catalogue_of(request).entry(run_of(request)).path


def _point(request: Request) -> dict[str, Any]:
    """The point of the update that the address names, checked."""
    update = whole_of(request, "update", 0, 0, MOST_UPDATE)
    found = [point for point in read_scenes(_folder(request)) if point.update == update]
    if not found:
        raise RunError(f"no episode is kept of update {update}: a run that goes on drops some of those it kept earlier")
    return read_scene(found[0].path)


ROUTES = [Route("/api/scenes", list_scenes), Route("/api/scene", show_scene), Route("/scene", page)]
