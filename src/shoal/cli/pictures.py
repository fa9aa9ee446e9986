"""The pictures of a run: learning curves, and a page that plays an episode."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from shoal.batching.regroup import unwrap_regrouped
from shoal.core.env import Env
from shoal.core.errors import OptionError, RunError
from shoal.core.host import HostEnvProxy
from shoal.core.types import PyTree
from shoal.training.evaluate import record
from shoal.training.experiment import Setup, make_world
from shoal.training.film import film
from shoal.training.metrics import read_metrics
from shoal.training.run import RunFolder
from shoal.viz import MissingMatplotlibError, draw_curves, write_film, write_replay
from shoal.viz.palette import scene_colours


def draw(run: RunFolder, each: str, log: Collection[str] = ()) -> tuple[Path | None, str]:
    """Writes `curves.png`; returns its path, or None and why it could not be drawn.

    each, log: as in `draw_curves`.
    """
    path = run.path / "curves.png"
    rows = read_metrics(run.metrics) if run.metrics.is_file() else []
    if not rows:
        return None, "there are no metrics yet"
    world = make_world(run.experiment)
    look = {"opposed": world.kind == "competitive", "log": log, "colours": colours(world)}
    try:  # the run itself is saved: a picture less is no failure
        draw_curves(path, rows, title=run.experiment.env, each=each, **look)
    except (MissingMatplotlibError, RunError, OptionError) as error:
        return None, str(error)
    return path, ""


def colours(world: Env) -> dict[str, int]:
    """The colours of a world's groups in its own pictures; none for what another library draws."""
    if isinstance(unwrap_regrouped(world), HostEnvProxy):
        return {}
    return scene_colours(world)


def player_colours(world: Env) -> dict[str, int]:
    """The colours of a world's players: those of their groups, unless several players are of one group."""
    by_group = colours(world)
    groups = {player: {group for group, _ in seats} for player, seats in world.players.items()}
    known = {player: by_group[group] for player, (group, *more) in groups.items() if not more and group in by_group}
    return known if len(set(known.values())) == len(known) else {}


def replay(
    path: Path,
    setup: Setup,
    policies: dict[str, PyTree] | None,
    *,
    update: int,
    seed: int = 0,
    explore: bool = False,
    filmed: bool = False,
) -> tuple[Path | None, str]:
    """Records one episode and writes it as a page; returns its path, or None and why there is nothing to see.

    filmed: whether an environment of another library is made to draw itself, which takes it long, or opens windows.
    """
    steps = update * setup.experiment.num_envs * setup.experiment.num_steps
    subtitle = f"after {update:,} updates, {steps:,} environment steps"
    if isinstance(unwrap_regrouped(setup.env), HostEnvProxy):
        if not filmed:
            return None, f"{setup.experiment.env} is drawn by its own library: `shoal watch` films it"
        shown = film(setup, policies, seed=seed, explore=explore)
        series = {f"return of {name}": values for name, values in shown.returns.items()}
        write_film(path, shown.frames, title=setup.experiment.env, subtitle=subtitle, series=series)
        return path, ""
    recording = record(setup, policies, seed=seed, explore=explore)
    if not _has_shapes(recording.frames):
        return None, f"the world {setup.experiment.env!r} does not define `scene`, so there is nothing to draw"
    write_replay(
        path,
        recording.frames,
        title=setup.experiment.env,
        subtitle=subtitle,
        series={f"return of {name}": values for name, values in recording.returns.items()},
    )
    return path, ""


def _has_shapes(frames: Any) -> bool:
    return any(kind is not None for kind in (frames.circles, frames.polygons, frames.lines, frames.labels))
