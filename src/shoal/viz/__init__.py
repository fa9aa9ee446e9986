"""Pictures of runs: learning curves and pages that play an episode. The only layer that draws."""


from shoal.viz.replay import write_replay

__all__ = ["write_replay"]
