"""What is checked of a swarm world's options when it is built."""

from typing import TYPE_CHECKING

from shoal.core.errors import require
from shoal.envs._options import (
    MAX_COUNT,
    require_above_zero,
    require_finite,
    require_flag,
    require_not_negative,
    require_whole,
)
from shoal.envs.swarm._arena import room_for_obstacles

if TYPE_CHECKING:
    from shoal.envs.swarm._settings import Settings

MAX_OBSTACLES = 32  # each is written out in the program


def check_options(swarm: "Settings") -> None:
    """Refuses options that make no sense, alone or together."""
    owner = swarm.id
    require(swarm.dynamics in ("planar", "quadrotor"), owner, "dynamics", swarm.dynamics, "'planar' or 'quadrotor'")
    require_whole(owner, 1, max_steps=swarm.max_steps)
    require_whole(owner, 1, at_most=MAX_COUNT, num_neighbours=swarm.num_neighbours)
    counts = "num_obstacles", "message_size", "message_delay"
    require_whole(owner, 0, at_most=1000, **{name: getattr(swarm, name) for name in counts})
    few = f"at most {MAX_OBSTACLES}"
    require(swarm.num_obstacles <= MAX_OBSTACLES, owner, "num_obstacles", swarm.num_obstacles, few)
    require_flag(owner, message_tokens=swarm.message_tokens)
    positive = "radius", "obstacle_radius", "sensing_range", "mass"
    require_above_zero(owner, **{name: getattr(swarm, name) for name in positive})
    given = "time_step", "side", "max_speed", "max_force"
    require_above_zero(owner, **{name: getattr(swarm, name) for name in given if getattr(swarm, name) is not None})
    require(swarm.side is None or swarm.side <= 1e6, owner, "side", swarm.side, "at most 1e6 metres")
    amounts = ["wind", "gusts", "pushes", "sensor_noise", "drag", "touch_penalty"]
    amounts += ["delay"] if swarm.delay is not None else []
    require_not_negative(owner, **{name: getattr(swarm, name) for name in amounts})
    for name in ("bounce", "message_loss"):
        require_share(owner, name, getattr(swarm, name))
    require_finite(owner, randomise=swarm.randomise, field_of_view=swarm.field_of_view)
    require(0 <= swarm.randomise < 1, owner, "randomise", swarm.randomise, "at least 0 and less than 1")
    full = "greater than 0 and at most 360 degrees"
    require(0 < swarm.field_of_view <= 360, owner, "field_of_view", swarm.field_of_view, full)
    check_space(swarm)


def check_space(swarm: "Settings") -> None:
    """Refuses an arena that is too small, and speeds at which agents could pass through each other."""
    owner, side = swarm.id, swarm.length
    least = max(4 * swarm.radius, 2 * swarm.radius * (2 * swarm.size) ** 0.5)
    require(
        side >= least, owner, "side", side, f"at least {least:.4g}, so that {swarm.size} agents fit with room to move"
    )
    fits = room_for_obstacles(side, swarm.num_obstacles, swarm.obstacle_radius, swarm.radius)
    room = f"few enough, or small enough, to leave room for agents around each on a side of {side:.4g}"
    require(fits, owner, "num_obstacles", swarm.num_obstacles, room)
    thick = f"at least the radius of an agent, {swarm.radius}"
    require(swarm.obstacle_radius >= swarm.radius, owner, "obstacle_radius", swarm.obstacle_radius, thick)
    farthest = swarm.top_speed * swarm.seconds
    slow = f"short enough for no agent to go farther than its radius, {swarm.radius}"
    slow += f" (at {swarm.top_speed:.4g} m/s it is {farthest:.4g})"
    require(farthest <= swarm.radius * (1 + 1e-9), owner, "time_step", swarm.seconds, slow)


def require_share(owner: str, option: str, got: float) -> None:
    """The option must be a number from 0 to 1."""
    require_finite(owner, **{option: got})
    require(0 <= got <= 1, owner, option, got, "between 0 and 1")
