"""A run on a cluster: rates and staleness over time, queues, workers, restarts."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shoal.cluster.history import read_cluster_history
from shoal.cluster.status import load_status
from shoal.core.errors import shell_command
from shoal.ui.cluster import describe_history, describe_status, history_of
from shoal.ui.endpoints.answers import answer, catalogue_of, run_of
from shoal.ui.folder import METRICS, end_of_lines
from shoal.ui.kinds import plain_entry


def show_cluster(request: Request) -> Response:
    """What the driver of a run wrote last and noted before, and the history that its lines of metrics tell."""
    catalogue, name = catalogue_of(request), run_of(request)
    entry = catalogue.entry(name)
    offset = end_of_lines(entry.path / METRICS)
    status = describe_status(load_status(entry.path))
    verbs = ("status",) if status["grown"] else ("status", "advise")
    return answer(
        {
            "entry": plain_entry(entry),
            "version": request.app.state.shelf.version,
            "offset": offset,
            "status": status,
            "noted": describe_history(read_cluster_history(entry.path)),
            "history": history_of(request.app.state.cluster_lines.lines(name)),
            "commands": [shell_command("cluster", verb, entry.path) for verb in verbs],
        }
    )


ROUTES = [Route("/api/cluster", show_cluster)]
