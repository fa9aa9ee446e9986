"""The options that every swarm world has, with the same meaning in each, and the parameters they give."""

import dataclasses
import math
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from shoal.core.env import Env
from shoal.core.spaces import ActionNames, Box
from shoal.core.types import Group, PyTree
from shoal.envs.swarm._checks import check_options
from shoal.envs.swarm._dynamics import GRAVITY, Dynamics, Float, Physics

AREA_AN_AGENT = 12.5
"""Square metres an agent has when `side` is left out."""

MAX_RATE = 4.0  # rad/s
_RANDOMISED = ("message_loss", "wind", "gusts", "pushes", "sensor_noise")
_RANDOMISED_PHYSICS = ("mass", "drag", "delay")


class SwarmParams(NamedTuple):
    """See the options of `Settings`."""

    physics: Physics
    bounce: Float
    sensing_range: Float
    message_loss: Float
    wind: Float
    gusts: Float
    pushes: Float
    sensor_noise: Float
    touch_penalty: Float


@dataclasses.dataclass(frozen=True)
class Settings(Env):
    """Options that every swarm world has, with the same meaning in each."""

    dynamics: Dynamics = "planar"  # or quadrotor
    max_steps: int = 200  # length of an episode
    time_step: float | None = None  # seconds; None: 0.1, quadrotors 0.05
    side: float | None = None  # side of the square arena in metres; None: 12.5 m² per agent, at least 6
    radius: float = 0.25  # radius of an agent
    num_obstacles: int = 0  # round, at most 32
    obstacle_radius: float = 0.6  # metres, at least an agent's
    num_neighbours: int = 3  # how many of the nearest others an agent may see (of each team, where there are two)
    sensing_range: float = 4.0  # metres
    field_of_view: float = 360.0  # degrees, around the heading
    message_size: int = 0  # numbers that an agent says in each step
    message_tokens: bool = False  # say one of message_size words instead of as many numbers
    message_delay: int = 1  # steps until it is heard
    message_loss: float = 0.0  # probability that a listener misses a message
    wind: float = 0.0  # mean speed, m/s
    gusts: float = 0.0  # standard deviation, m/s
    pushes: float = 0.0  # size of a sudden push, m/s
    sensor_noise: float = 0.0  # standard deviation of position (m) and velocity (m/s) fixes
    mass: float = 1.0  # kg
    drag: float = 0.3  # N s/m
    delay: float | None = None  # time constant of the motors in seconds; None: 0.1, quadrotors 0.05
    max_speed: float | None = None  # m/s; None: 2, quadrotors 4
    max_force: float | None = None  # N; None: 4, quadrotors twice the weight of 1 kg
    bounce: float = 0.3  # share of the speed that a collision gives back
    touch_penalty: float = 0.1  # paid for each other and obstacle that an agent touches, each step
    randomise: float = 0.2  # how far sample_params strays from the values above, as a share of each

    id: ClassVar[str] = "swarm"

    def __post_init__(self):
        check_options(self)

    @property
    def teams(self) -> dict[str, int]:
        """Sizes of the teams by name, in the order in which agents are numbered."""
        return {"agent": getattr(self, "num_agents", 1)}

    @property
    def groups(self) -> dict[str, Group]:
        width = (2 if self.is_planar else 4) + self.message_size
        return {name: Group(size, Box((width,), low=-1.0, high=1.0)) for name, size in self.teams.items()}

    def action_names(self, group: str) -> ActionNames:
        numbers = ("x", "y") if self.is_planar else ("thrust", "roll", "pitch", "yaw")
        return dict.fromkeys((*numbers, *(f"message {i}" for i in range(self.message_size))), ())

    @property
    def play_fps(self) -> float:
        return 1.0 / self.seconds

    @property
    def size(self) -> int:
        """How many agents there are in all."""
        return sum(self.teams.values())

    @property
    def is_planar(self) -> bool:
        return self.dynamics == "planar"

    @property
    def seconds(self) -> float:
        """Length of a step."""
        return (0.1 if self.is_planar else 0.05) if self.time_step is None else self.time_step

    @property
    def length(self) -> float:
        """Side of the arena."""
        return max(6.0, math.sqrt(AREA_AN_AGENT * self.size)) if self.side is None else self.side

    @property
    def lag(self) -> float:
        """Time constant of the motors."""
        return (0.1 if self.is_planar else 0.05) if self.delay is None else self.delay

    @property
    def speed(self) -> float:
        """The greatest, of an ordinary agent."""
        return (2.0 if self.is_planar else 4.0) if self.max_speed is None else self.max_speed

    @property
    def top_speed(self) -> float:
        """The greatest, of the fastest agent."""
        return self.speed

    def swarm_params(self) -> SwarmParams:
        """The shared parameters as the options give them."""
        strongest = 4.0 if self.is_planar else 2.0 * GRAVITY
        physics = Physics(
            mass=float(self.mass),
            drag=float(self.drag),
            delay=float(self.lag),
            max_speed=float(self.speed),
            max_force=float(strongest if self.max_force is None else self.max_force),
            max_rate=MAX_RATE,
        )
        names = SwarmParams._fields[1:]
        return SwarmParams(physics, **{name: float(getattr(self, name)) for name in names})

    def sample_params(self, key: jax.Array) -> PyTree:
        params = self.default_params()
        return params._replace(swarm=self.vary(key, params.swarm))

    def vary(self, key: jax.Array, params: SwarmParams) -> SwarmParams:
        """Parameters strayed by up to the share `randomise`: mass, drag, delay, noise, weather and loss."""
        count = len(_RANDOMISED) + len(_RANDOMISED_PHYSICS)
        factor = 1.0 + self.randomise * jax.random.uniform(key, (count,), minval=-1.0, maxval=1.0)
        drawn = dict(zip((*_RANDOMISED_PHYSICS, *_RANDOMISED), factor, strict=True))
        physics = {name: getattr(params.physics, name) * drawn[name] for name in _RANDOMISED_PHYSICS}
        others = {name: getattr(params, name) * drawn[name] for name in _RANDOMISED}
        others["message_loss"] = jnp.minimum(others["message_loss"], 1.0)
        return params._replace(physics=params.physics._replace(**physics), **others)

    def physics_of(self, params: SwarmParams) -> Physics:
        """What moves the agents; a world with different teams gives each its own."""
        return params.physics

    def reach_of(self, params: SwarmParams) -> Float:
        """How far agents see, one number or `[n]`."""
        return params.sensing_range
