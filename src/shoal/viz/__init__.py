"""Pictures of runs: learning curves, sweeps, populations, and pages that play an episode. The only layer that draws."""

from shoal.viz.curves import MissingMatplotlibError, draw_curves
from shoal.viz.film import film_page, write_film
from shoal.viz.picture import draw_scene
from shoal.viz.plot import plot_curves
from shoal.viz.population import draw_population, write_population
from shoal.viz.replay import replay_page, write_replay
from shoal.viz.sweep import draw_sweep

__all__ = [
    "MissingMatplotlibError",
    "draw_curves",
    "draw_population",
    "draw_scene",
    "draw_sweep",
    "film_page",
    "plot_curves",
    "replay_page",
    "write_film",
    "write_population",
    "write_replay",
]
