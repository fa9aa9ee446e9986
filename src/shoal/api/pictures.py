"""What a run folder shows when a run is over: learning curves, a page that plays an episode, the table of a sweep."""

import json
import math
from pathlib import Path
from typing import Any

from shoal.api.replay import NothingToSeeError, record_page
from shoal.api.targets import attributed_to
from shoal.batching.regroup import unwrap_regrouped
from shoal.core import trees
from shoal.core.env import Env
from shoal.core.errors import OptionError, RunError, shell_command
from shoal.core.files import write_atomically, write_file
from shoal.core.host import HostEnvProxy
from shoal.core.types import PyTree
from shoal.training.experiment import Setup, make_world
from shoal.training.metrics import read_metrics
from shoal.training.run import RunFolder
from shoal.training.run_kinds import PBT
from shoal.training.scene_files import read_scene, read_scenes
from shoal.training.scenes import LATE, POINTS
from shoal.viz import MissingMatplotlibError, draw_curves, draw_sweep, history_page
from shoal.viz.palette import scene_colours


def keep_pictures(run: RunFolder, policies: dict[str, PyTree], update: int) -> dict[str, tuple[Path | None, str]]:
    """Writes `curves.png` and `replay.html` into a run folder: of each its path, or None and why it is not there.

    policies: those after so many updates; of several seeds the first are played.
    """
    experiment = run.experiment
    with attributed_to(experiment.env, "scene"):
        curves = draw(run)
        first = trees.row(policies) if experiment.num_seeds > 1 else policies
        page = replay(run.path / "replay.html", experiment.setup, first, update=update)
    return {"curves": curves, "replay": page}


def keep_sweep(folder: Path, table: dict[str, Any]) -> tuple[Path | None, str]:
    """Writes `sweep.json`, the table of a sweep, and draws it; the path of the picture, or None and why not."""
    try:
        write_atomically(folder / "sweep.json", json.dumps(table, indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise RunError(f"cannot write {folder / 'sweep.json'}: {error.strerror or error}") from error
    path = folder / "sweep.png"
    try:  # a picture less is no failure
        draw_sweep(path, table, title=table["experiment"]["env"])
    except (MissingMatplotlibError, RunError) as error:
        return None, str(error)
    return path, ""


def draw(run: RunFolder) -> tuple[Path | None, str]:
    """Writes `curves.png`; returns its path, or None and why it could not be drawn."""
    path = run.path / "curves.png"
    rows = read_metrics(run.metrics) if run.metrics.is_file() else []
    if not rows:
        return None, "there are no metrics yet"
    world = make_world(run.experiment)
    look: dict[str, Any] = {"opposed": world.kind == "competitive", "colours": colours(world)}
    config: Any = run.config
    if config.kind == PBT:
        look |= {"each": "members", "log": [f"pbt/{name}" for name, values in config.over.items() if values.log]}
    try:  # the run itself is saved: a picture less is no failure
        draw_curves(path, rows, title=run.experiment.env, **look)
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


def write_history(path: Path, run: RunFolder) -> int:
    """Writes a page that plays the episodes which a run kept along its learning curve; returns how many there are."""
    points = [read_scene(point.path) for point in read_scenes(run.path)]
    if not points:
        told = shell_command("train", "...", "--scenes", str(POINTS))
        raise RunError(
            f"{run.path} has kept no scenes: trainings, sweeps, population-based trainings and evolutions keep some if "
            f"they take longer than {LATE:.0f} s, or are told to: {told}"
        )
    rows = read_metrics(run.metrics) if run.metrics.is_file() else []
    steps = [row.get("env_steps", 0) for row in rows]
    means = [_mean(row.get("return")) for row in rows]
    write_file(path, history_page(points, steps, means, title=run.experiment.env, label="return over env steps"))
    return len(points)


def _mean(value: Any) -> float:
    """The mean over seeds; NaN where no episode has ended."""
    known = [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, int | float)]
    return sum(known) / len(known) if known else math.nan


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
    try:
        write_file(path, record_page(setup, policies, update, seed, explore, filmed))
    except NothingToSeeError as error:
        return None, str(error)
    return path, ""
