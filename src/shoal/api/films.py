"""Episodes of runs as films: what `shoal watch RUN --webp` and `run.film("x.webp")` share."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

from shoal.api.replay import check_drawn
from shoal.batching.regroup import unwrap_regrouped
from shoal.core.errors import require
from shoal.core.host import HostEnvProxy
from shoal.core.types import PyTree
from shoal.training.evaluate import recorder_of
from shoal.training.experiment import Setup
from shoal.training.film import film
from shoal.viz.reel import Look, Panel, Take, check_format, make_film

MOST_EPISODES = 100


@dataclasses.dataclass(frozen=True)
class FilmedRun:
    """Who plays in a panel of a film: a setup, its policies by name, and after how many updates. name: of the run."""

    setup: Setup
    policies: dict[str, PyTree] | None
    update: int
    name: str = ""

    @property
    def subtitle(self) -> str:
        experiment = self.setup.experiment
        steps = self.update * experiment.num_envs * experiment.num_steps
        return f"{f'{self.name}, ' if self.name else ''}after {self.update:,} updates, {steps:,} env steps"


def film_runs(
    paths: Iterable[str | Path],
    runs: Sequence[FilmedRun],
    look: Look | None = None,
    *,
    episodes: int = 1,
    seed: int = 0,
    explore: bool = False,
) -> None:
    """Records episodes of each run and writes them side by side as a film, once for each file: its name says how.

    The episodes have the seeds `seed`, `seed + 1`, ..., the same for all.
    """
    whole = type(episodes) is int and 1 <= episodes <= MOST_EPISODES
    require(whole, "shoal.film", "episodes", episodes, f"a whole number from 1 to {MOST_EPISODES}")
    paths = [Path(path) for path in paths]
    for path in paths:
        check_format(path, look)  # what is missing is said before anything is played
    seeds = range(seed, seed + episodes)
    panels = [Panel(run.setup.experiment.env, run.subtitle, record_takes(run, seeds, explore)) for run in runs]
    for path in paths:
        make_film(path, panels, look)


def record_takes(run: FilmedRun, seeds: Sequence[int], explore: bool = False) -> list[Take]:
    """An episode for each seed; an environment of another library draws itself."""
    setup = run.setup
    if isinstance(unwrap_regrouped(setup.env), HostEnvProxy):
        films = [film(setup, run.policies, seed=seed, explore=explore) for seed in seeds]
        return [Take(shown.frames, shown.returns) for shown in films]
    recorder = recorder_of(setup, explore)
    takes = []
    for seed in seeds:
        played = recorder(run.policies, seed)
        check_drawn(setup, played.frames)
        takes.append(Take(played.frames, played.returns))
    return takes
