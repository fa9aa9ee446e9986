"""A population: payoffs, mixtures, distance from equilibrium, ratings and lineage."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shoal.core.errors import RunError
from shoal.ui.endpoints.answers import answer, catalogue_of, run_of
from shoal.ui.folder import METRICS, end_of_lines
from shoal.ui.kinds import GROWN, entry_of_kind, plain_entry
from shoal.ui.population import commands_for, history_of, read_members


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


ROUTES = [Route("/api/population", show_population)]
