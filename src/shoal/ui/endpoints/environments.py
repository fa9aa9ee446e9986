"""The worlds that ship with Shoal."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shoal.ui.endpoints.answers import answer
from shoal.ui.inventory import describe_worlds


def list_worlds(request: Request) -> Response:
    """Every world: its kind, groups, options, film, presets and what these are known to reach."""
    return answer({"worlds": describe_worlds()})


ROUTES = [Route("/api/environments", list_worlds)]
