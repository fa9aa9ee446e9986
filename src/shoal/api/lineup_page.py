"""One episode of a line-up of a population, as a page that plays it."""

from collections.abc import Sequence
from pathlib import Path

from shoal.api.replay import return_series
from shoal.api.targets import attributed_to
from shoal.populations.inspect_population import load_lineup
from shoal.populations.population import open_population
from shoal.training.evaluate import record
from shoal.viz import replay_page


def lineup_page(folder: Path, lineup: Sequence[int], seed: int = 0) -> bytes:
    """Records one episode of a line-up of a population, given by the number of each player's policy, as a page."""
    env = open_population(folder).experiment.env
    with attributed_to(env, "the episode"):
        setup, policies, explore = load_lineup(folder, lineup)
        recording = record(setup, policies, seed=seed, explore=explore)
    numbered = zip(policies, lineup, strict=True)
    subtitle = ", ".join(f"{player}: policy {number}" for player, number in numbered)
    return replay_page(recording.frames, title=env, subtitle=subtitle, series=return_series(recording.returns))
