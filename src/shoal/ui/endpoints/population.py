"""A population: payoffs, mixtures, distance from equilibrium, ratings and lineage; and its matches, to be watched."""

from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from shoal.core.errors import OptionError, RunError, require
from shoal.ui.endpoints.answers import answer, body_of, catalogue_of, run_of
from shoal.ui.folder import METRICS, end_of_lines, list_checkpoints
from shoal.ui.kinds import GROWN, entry_of_kind, plain_entry
from shoal.ui.matches import Match, Matches
from shoal.ui.population import commands_for, history_of, read_members

MOST_NUMBER = 1 << 31
"""Of a policy, and of a seed."""
MOST_PLAYERS = 64


def show_population(request: Request) -> Response:
    """A population as its folder has it now. problem: why payoffs and members are missing, if they are."""
    catalogue, name = catalogue_of(request), run_of(request)
    entry = entry_of_kind(catalogue, name, GROWN, "a population")
    settings = catalogue.config(name)["psro"]
    plan, exact = settings.get("psro", {}), settings.get("oracle") == "exact"
    found, problem = None, "There is no checkpoint yet: the first one follows the first iteration."
    try:
        found = read_members(entry.path)
    except RunError as error:
        problem = str(error)
    return answer(
        {
            "entry": plain_entry(entry),
            "version": request.app.state.shelf.version,
            "offset": end_of_lines(entry.path / METRICS),
            "meta_solver": plan.get("meta_solver"),
            "exact": exact,
            "history": history_of(request.app.state.grown_lines.lines(name), str(entry.path / METRICS)),
            "found": found,
            "problem": None if found else problem,
            "commands": commands_for(entry.path, found["players"], exact) if found else None,
        }
    )


async def play_match(request: Request) -> Response:
    """Plays a match, `{"run": NAME, "lineup": [NUMBER, ...], "seed": NUMBER}`, and names the page that shows it."""
    body = await body_of(request)
    return answer({"page": f"/match?key={await run_in_threadpool(_play, request, body)}"})


def page(request: Request) -> Response:
    """A match that was played, to be shown in a frame."""
    shown = _matches(request).page(request.query_params.get("key", ""))
    headers = {"content-security-policy": f"{shown.policy}; frame-ancestors 'self'"}
    return HTMLResponse(shown.content, headers=headers)


def _play(request: Request, body: dict[str, Any]) -> str:
    name, lineup, seed = body.get("run"), body.get("lineup"), body.get("seed", 0)
    if not isinstance(name, str):
        raise OptionError("the body must name a run")
    if not (isinstance(lineup, list) and 0 < len(lineup) <= MOST_PLAYERS and all(map(_is_number, lineup))):
        raise OptionError("body: lineup must be the number of a policy for each player")
    require(_is_number(seed), "body", "seed", seed, f"a whole number below {MOST_NUMBER}")
    folder = entry_of_kind(catalogue_of(request), name, GROWN, "a population").path
    newest = max((one["update"] for one in list_checkpoints(folder) if not one["best"]), default=-1)
    match: Match = (folder, newest, tuple(lineup), seed)
    return _matches(request).play(match)


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value < MOST_NUMBER


def _matches(request: Request) -> Matches:
    return request.app.state.matches


ROUTES = [
    Route("/api/population", show_population),
    Route("/api/match", play_match, methods=["POST"]),
    Route("/match", page),
]
