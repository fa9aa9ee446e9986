"""The worlds that ship with Shoal, known by id; a world's module is imported when it is first made."""

from shoal.core.registry import register

register("mpe/simple_spread", "shoal.envs.mpe.simple_spread:SimpleSpread")
register("mpe/simple_tag", "shoal.envs.mpe.simple_tag:SimpleTag")
register("tag/continuous", "shoal.envs.tag.continuous:TagContinuous")
register("tag/grid", "shoal.envs.tag.grid:TagGrid")
