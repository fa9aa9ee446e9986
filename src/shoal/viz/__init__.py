"""Pictures of runs: learning curves, sweeps, populations, films, pages that play an episode. Only this layer draws."""

from shoal.viz.curves import MissingMatplotlibError, draw_curves
from shoal.viz.film import film_page, write_film
from shoal.viz.history import history_page
from shoal.viz.picture import draw_scene
from shoal.viz.plot import plot_curves
from shoal.viz.population import draw_population, write_population
from shoal.viz.raster import SceneRenderer
from shoal.viz.reel import Look, Panel, Take, make_film
from shoal.viz.replay import replay_page, write_replay
from shoal.viz.sweep import draw_sweep
from shoal.viz.tournament import draw_tournament, write_tournament

__all__ = [
    "Look",
    "MissingMatplotlibError",
    "Panel",
    "SceneRenderer",
    "Take",
    "draw_curves",
    "draw_population",
    "draw_scene",
    "draw_sweep",
    "draw_tournament",
    "film_page",
    "history_page",
    "make_film",
    "plot_curves",
    "replay_page",
    "write_film",
    "write_population",
    "write_replay",
    "write_tournament",
]
