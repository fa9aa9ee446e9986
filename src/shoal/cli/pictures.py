"""The pictures of a run: learning curves, and a page that plays an episode."""

from pathlib import Path
from typing import Any

from shoal.core.errors import OptionError, RunError
from shoal.core.host import StandIn
from shoal.core.regroup import original
from shoal.core.types import PyTree
from shoal.execution.evaluate import record
from shoal.execution.experiment import Cast
from shoal.execution.logging import read_metrics
from shoal.execution.run import Run
from shoal.viz import MissingMatplotlibError, draw_curves, write_replay


def draw(run: Run, each: str) -> tuple[Path | None, str]:
    """Writes `curves.png`; returns its path, or None and why it could not be drawn. `each`: as in `draw_curves`."""
    path = run.path / "curves.png"
    rows = read_metrics(run.metrics) if run.metrics.is_file() else []
    if not rows:
        return None, "there are no metrics yet"
    try:  # the run itself is saved: a picture less is no failure
        draw_curves(path, rows, title=run.experiment.env, each=each)
    except (MissingMatplotlibError, RunError, OptionError) as error:
        return None, str(error)
    return path, ""


def replay(
    path: Path,
    roles: Cast,
    policies: dict[str, PyTree] | None,
    *,
    update: int,
    seed: int = 0,
    explore: bool = False,
) -> tuple[Path | None, str]:
    """Records one episode and writes it as a page; returns its path, or None and why there is nothing to see."""
    if isinstance(original(roles.env), StandIn):
        return None, f"{roles.experiment.env} runs on the host, and its own library draws it"
    recording = record(roles, policies, seed=seed, explore=explore)
    if not _has_shapes(recording.frames):
        return None, f"the world {roles.experiment.env!r} does not define `scene`, so there is nothing to draw"
    steps = update * roles.experiment.num_envs * roles.experiment.num_steps
    write_replay(
        path,
        recording.frames,
        title=roles.experiment.env,
        subtitle=f"after {update:,} updates, {steps:,} environment steps",
        series={f"return of {name}": values for name, values in recording.returns.items()},
    )
    return path, ""


def _has_shapes(frames: Any) -> bool:
    return any(kind is not None for kind in (frames.circles, frames.polygons, frames.lines, frames.labels))
