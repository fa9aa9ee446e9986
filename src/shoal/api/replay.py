"""One episode as a page that plays it."""

from typing import Any

from shoal.batching.regroup import unwrap_regrouped
from shoal.core.errors import WorldError
from shoal.core.host import HostEnvProxy
from shoal.core.types import PyTree, Scene
from shoal.training.evaluate import record
from shoal.training.experiment import Setup
from shoal.training.film import film
from shoal.viz import film_page, replay_page


class NothingToSeeError(WorldError):
    """The world is not drawn, or not here."""


def record_page(
    setup: Setup,
    policies: dict[str, PyTree] | None,
    update: int,
    seed: int = 0,
    explore: bool = False,
    filmed: bool = False,
) -> bytes:
    """Records one episode as a page; raises `NothingToSeeError` where there is nothing to see.

    filmed: whether an environment of another library is made to draw itself, which takes it long, or opens windows.
    """
    steps = update * setup.experiment.num_envs * setup.experiment.num_steps
    look: dict[str, Any] = {
        "title": setup.experiment.env,
        "subtitle": f"after {update:,} updates, {steps:,} environment steps",
    }
    if isinstance(unwrap_regrouped(setup.env), HostEnvProxy):
        if not filmed:
            raise NothingToSeeError(f"{setup.experiment.env} is drawn by its own library: `shoal watch` films it")
        shown = film(setup, policies, seed=seed, explore=explore)
        return film_page(shown.frames, series=return_series(shown.returns), **look)
    recording = record(setup, policies, seed=seed, explore=explore)
    check_drawn(setup, recording.frames)
    return replay_page(recording.frames, series=return_series(recording.returns), **look)


def check_drawn(setup: Setup, frames: Scene) -> None:
    """Refuses scenes with nothing to draw: worlds without `scene` give such ones."""
    if all(kind is None for kind in (frames.circles, frames.polygons, frames.lines, frames.labels)):
        raise NothingToSeeError(
            f"the world {setup.experiment.env!r} does not define `scene`, so there is nothing to draw"
        )


def return_series(returns: dict[str, Any]) -> dict[str, Any]:
    """The lines below a replay, by their names."""
    return {f"return of {name}": values for name, values in returns.items()}
