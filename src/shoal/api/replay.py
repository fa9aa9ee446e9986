"""One episode as a page that plays it."""

from typing import Any

from shoal.batching.regroup import original
from shoal.core.errors import WorldError
from shoal.core.host import StandIn
from shoal.core.types import PyTree
from shoal.training.evaluate import record
from shoal.training.experiment import Cast
from shoal.training.film import film
from shoal.viz import film_page, replay_page


class NothingToSeeError(WorldError):
    """The world is not drawn, or not here."""


def record_page(
    roles: Cast,
    policies: dict[str, PyTree] | None,
    update: int,
    seed: int = 0,
    explore: bool = False,
    filmed: bool = False,
) -> bytes:
    """Records one episode as a page; raises `NothingToSeeError` where there is nothing to see.

    filmed: whether an environment of another library is made to draw itself, which takes it long, or opens windows.
    """
    steps = update * roles.experiment.num_envs * roles.experiment.num_steps
    look: dict[str, Any] = {
        "title": roles.experiment.env,
        "subtitle": f"after {update:,} updates, {steps:,} environment steps",
    }
    if isinstance(original(roles.env), StandIn):
        if not filmed:
            raise NothingToSeeError(f"{roles.experiment.env} is drawn by its own library: `shoal watch` films it")
        shown = film(roles, policies, seed=seed, explore=explore)
        return film_page(shown.frames, series=_series(shown.returns), **look)
    recording = record(roles, policies, seed=seed, explore=explore)
    frames = recording.frames
    if all(kind is None for kind in (frames.circles, frames.polygons, frames.lines, frames.labels)):
        raise NothingToSeeError(
            f"the world {roles.experiment.env!r} does not define `scene`, so there is nothing to draw"
        )
    return replay_page(frames, series=_series(recording.returns), **look)


def _series(returns: dict[str, Any]) -> dict[str, Any]:
    return {f"return of {name}": values for name, values in returns.items()}
