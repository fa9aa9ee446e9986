"""Pictures of runs: learning curves and pages that play an episode. The only layer that draws."""

from shoal.viz.curves import MissingMatplotlibError, draw_curves
from shoal.viz.picture import draw_scene
from shoal.viz.replay import write_replay

__all__ = ["MissingMatplotlibError", "draw_curves", "draw_scene", "write_replay"]
