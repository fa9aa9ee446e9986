"""New runs: the form, the command that it stands for, and the trainings that were started from it."""

from collections.abc import Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shoal.core.errors import ShoalError, shell_command
from shoal.ui.endpoints.answers import answer, body_of
from shoal.ui.form import choices
from shoal.ui.inventory import read_index
from shoal.ui.launcher import Launcher


def list_targets(request: Request) -> Response:
    """What can be trained: presets by environment."""
    presets = read_index()["presets"].values()
    return answer({"targets": [{key: one[key] for key in ("name", "env", "description")} for one in presets]})


def show_form(request: Request) -> Response:
    """The options of a target (`?target=NAME&algo=NAME`)."""
    query = request.query_params
    return answer({"options": choices(query.get("target", ""), query.get("algo", ""))})


async def show_command(request: Request) -> Response:
    """The command that a form stands for, `{"target": NAME, "options": {FLAG: VALUE}, "name": NAME}`, or its problem.

    Who is still typing has made no mistake, so that a problem is an answer like any other.
    """
    try:
        words = await _asked(request, _launcher(request).words)
    except ShoalError as error:
        return answer({"command": None, "problem": str(error)})
    return answer({"command": shell_command(*words), "problem": None})


async def start(request: Request) -> Response:
    """Starts that command."""
    return answer(await _asked(request, _launcher(request).start))


async def stop(request: Request) -> Response:
    """Stops a training that was started here: `{"name": NAME}`."""
    return answer(await _asked(request, lambda body: _launcher(request).stop(body.get("name"))))


def list_started(request: Request) -> Response:
    """The trainings that were started here, newest first."""
    return answer({"started": _launcher(request).plain()})


def _launcher(request: Request) -> Launcher:
    return request.app.state.launcher


async def _asked(request: Request, do: Callable[[dict[str, Any]], Any]) -> Any:
    return await run_in_threadpool(do, await body_of(request))


ROUTES = [
    Route("/api/targets", list_targets),
    Route("/api/form", show_form),
    Route("/api/command", show_command, methods=["POST"]),
    Route("/api/start", start, methods=["POST"]),
    Route("/api/stop", stop, methods=["POST"]),
    Route("/api/started", list_started),
]
