"""New runs: the form, the command that it stands for, and the trainings that were started from it."""

from collections.abc import Callable, Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shoal.core.errors import ShoalError, shell_command
from shoal.ui.endpoints.answers import answer, body_of
from shoal.ui.form import TRAIN, choices
from shoal.ui.inventory import read_index
from shoal.ui.launcher import Launcher


def list_targets(request: Request) -> Response:
    """What can be started: kinds of runs, and presets by environment."""
    index = read_index()
    kinds = [{"name": name, "text": text} for name, text in index["texts"]["kinds"].items()]
    targets = [{key: one[key] for key in ("name", "env", "description")} for one in index["presets"].values()]
    return answer({"kinds": kinds, "targets": targets})


def show_form(request: Request) -> Response:
    """The options of a kind of run with a target, and those that are chosen (`?kind=NAME&target=NAME&FLAG=VALUE`)."""
    query = request.query_params
    return answer({"options": choices(query.get("kind", TRAIN), query.get("target", ""), query)})


async def show_command(request: Request) -> Response:
    """The command that a form stands for, or its problem.

    The form is `{"kind": NAME, "target": NAME, "options": {FLAG: VALUE}, "name": NAME}`. Who is still typing has made
    no mistake, so that a problem is an answer like any other.
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
    """The trainings that were started here, newest first, each with the screen that shows it."""
    rows = request.app.state.shelf.rows()
    started = _launcher(request).plain()
    return answer({"started": [one | {"screen": _screen_of(rows.get(one["name"]))} for one in started]})


def _screen_of(row: Mapping[str, Any] | None) -> str:
    """The screen of its own that a run has, or that of every run. row: as the list of runs has it, if it has."""
    return next(iter(row["screens"]), "run") if row else "run"


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
