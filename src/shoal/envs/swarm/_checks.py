"""What is checked of a swarm world's options when it is built."""

from typing import TYPE_CHECKING

from shoal.core.checks import (
    MAX_COUNT,
    require_above_zero,
    require_finite,
    require_flag,
    require_not_negative,
    require_whole,
)
from shoal.core.errors import require
from shoal.envs.swarm._arena import room_for_obstacles

if TYPE_CHECKING:
    from shoal.envs.swarm._settings import Settings

MAX_OBSTACLES = 32  # each is written out in the program
MAX_SIDE = 1e6  # metres


def check_options(swarm: "Settings") -> None:
    """Refuses options that make no sense, alone or together."""
    owner = swarm.id
    require(swarm.dynamics in ("planar", "quadrotor"), owner, "dynamics", swarm.dynamics, "'planar' or 'quadrotor'")
    require_whole(owner, 1, max_steps=swarm.max_steps)
    require_whole(owner, 1, at_most=MAX_COUNT, num_neighbours=swarm.num_neighbours)
    require_whole(owner, 0, at_most=MAX_OBSTACLES, num_obstacles=swarm.num_obstacles)
    require_whole(owner, 0, at_most=1000, message_size=swarm.message_size, message_delay=swarm.message_delay)
    require_flag(owner, message_tokens=swarm.message_tokens)
    positive = "radius", "obstacle_radius", "sensing_range", "mass"
    require_above_zero(owner, **{name: getattr(swarm, name) for name in positive})
    given = "time_step", "side", "max_speed", "max_force"
    require_above_zero(owner, **{name: getattr(swarm, name) for name in given if getattr(swarm, name) is not None})
    require(swarm.side is None or swarm.side <= MAX_SIDE, owner, "side", swarm.side, f"at most {MAX_SIDE:,.0f} metres")
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
    fit = f"so that {swarm.size} agents of radius {swarm.radius:.4g} fit with room to move"
    if swarm.side is None:
        most = f"at most {swarm.radius * side / least:.4g} on a side of {side:.4g}, {fit} (or give a larger side)"
        require(side >= least, owner, "radius", swarm.radius, most)
    require(side >= least, owner, "side", side, f"at least {least:.4g}, {fit}")
    thick = f"at least the radius of an agent, {swarm.radius}"
    require(swarm.obstacle_radius >= swarm.radius, owner, "obstacle_radius", swarm.obstacle_radius, thick)
    fits = room_for_obstacles(side, swarm.num_obstacles, swarm.obstacle_radius, swarm.radius)
    room = f"few enough, or small enough (obstacle_radius is {swarm.obstacle_radius:.4g}), to leave room for agents"
    require(fits, owner, "num_obstacles", swarm.num_obstacles, f"{room} around each on a side of {side:.4g}")
    check_speed(swarm)


def check_speed(swarm: "Settings") -> None:
    """Refuses speeds at which agents could pass through each other."""
    farthest = swarm.top_speed * swarm.seconds
    if swarm.time_step is None:
        option, got, word = "max_speed", swarm.speed, "low enough"
    else:
        option, got, word = "time_step", swarm.seconds, "short enough"
    slow = f"{word} for no agent to go farther in a step than its radius, {swarm.radius:.4g} m"
    slow += f" (the fastest goes {farthest:.4g} m: {swarm.top_speed:.4g} m/s for {swarm.seconds:.4g} s)"
    require(farthest <= swarm.radius * (1 + 1e-9), swarm.id, option, got, slow)


def require_share(owner: str, option: str, got: float) -> None:
    """The option must be a number from 0 to 1."""
    require_finite(owner, **{option: got})
    require(0 <= got <= 1, owner, option, got, "between 0 and 1")
