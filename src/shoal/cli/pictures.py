"""The pictures of a run: learning curves, and a page that plays an episode."""

from collections.abc import Collection
from pathlib import Path

from shoal.api.replay import NothingToSeeError, record_page
from shoal.batching.regroup import original
from shoal.core.env import Env
from shoal.core.errors import OptionError, RunError
from shoal.core.host import StandIn
from shoal.core.types import PyTree
from shoal.training.experiment import Cast, make_world
from shoal.training.metrics import read_metrics
from shoal.training.run import Run
from shoal.viz import MissingMatplotlibError, draw_curves
from shoal.viz.palette import scene_colours
from shoal.viz.replay import write_file


def draw(run: Run, each: str, log: Collection[str] = ()) -> tuple[Path | None, str]:
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
    if isinstance(original(world), StandIn):
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
    roles: Cast,
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
    try:
        write_file(path, record_page(roles, policies, update, seed, explore, filmed))
    except NothingToSeeError as error:
        return None, str(error)
    return path, ""
