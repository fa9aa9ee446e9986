"""One episode as a page that plays it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.api.targets import attributed_to
from shoal.batching.regroup import unwrap_regrouped
from shoal.core.errors import WorldError
from shoal.core.host import HostEnvProxy
from shoal.core.types import PyTree, Scene
from shoal.populations.inspect_population import load_lineup
from shoal.populations.population import open_population
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
        return film_page(shown.frames, series=_series(shown.returns), **look)
    recording = record(setup, policies, seed=seed, explore=explore)
    frames = recording.frames
    if is_empty(frames):
        raise NothingToSeeError(
            f"the world {setup.experiment.env!r} does not define `scene`, so there is nothing to draw"
        )
    return replay_page(frames, series=_series(recording.returns), **look)


def lineup_page(folder: Path, lineup: Sequence[int], seed: int = 0) -> bytes:
    """Records one episode of a line-up of a population, given by the number of each player's policy, as a page."""
    env = open_population(folder).experiment.env
    with attributed_to(env, "the episode"):
        setup, policies, explore = load_lineup(folder, lineup)
        recording = record(setup, policies, seed=seed, explore=explore)
    numbered = zip(policies, lineup, strict=True)
    subtitle = ", ".join(f"{player}: policy {number}" for player, number in numbered)
    return replay_page(recording.frames, title=env, subtitle=subtitle, series=_series(recording.returns))


def is_empty(frames: Scene) -> bool:
    """Whether a scene has nothing to draw: worlds without `scene` give such ones."""
    return all(kind is None for kind in (frames.circles, frames.polygons, frames.lines, frames.labels))


def _series(returns: dict[str, Any]) -> dict[str, Any]:
    return {f"return of {name}": values for name, values in returns.items()}
