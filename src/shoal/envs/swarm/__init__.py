"""Swarms of drones: five worlds on one model of flight, contact, sensing, radio and weather.

| world | task |
|---|---|
| `swarm/coverage` | keep an area under watch |
| `swarm/delivery` | fetch parcels and bring them to their stations |
| `swarm/formation` | hold a travelling formation past obstacles |
| `swarm/pursuit` | a team hunts a faster, shorter-sighted one |
| `swarm/rendezvous` | meet, without knowing where |

All take the same options, with the same meaning, for any number of agents from one to thousands. A world of your own
derives from `Swarm` and calls `begin`, `advance` and `view`; `rendezvous.py` is the shortest example.

**Flight** (`_dynamics`). `dynamics="planar"` is a double integrator: two numbers from -1 to 1 are the force to pull
with. `dynamics="quadrotor"` is a rigid body in space: collective thrust and three body rates, from -1 to 1; all zeros
hover. Both have linear drag, a first-order lag of the motors (`delay`), and limits of force and speed. `mass`, `drag`,
`delay`, `max_speed`, `max_force`, `time_step` are options.

**Contact** (`_arena`, `_contact`). Walls, round obstacles and other agents. Nothing passes through them, no collision
adds energy, and `bounce` says how much speed it gives back. Walls and obstacles hold exactly. Agents are a little soft:
8 that push into a corner with full force overlap by 3 % of a diameter on average and 11 % at worst, larger crowds more
(30 in a corner: by a quarter on average, three quarters at worst).
Agents so fast that they could step through each other, and an arena
that is too small, are refused when the world is built. Quadrotors fly under a ceiling of 4 m; they pay for leaving the
middle height, 0.1 a step at the floor and at the ceiling.

**Sensing** (`_sensing`, `_views`). An agent sees its `num_neighbours` nearest, within `sensing_range` and
`field_of_view` (degrees around its heading). `sensor_noise` falsifies every agent's fix of its own position and
velocity. Views are given in the arena's directions for point masses, and turned to where the nose points for
quadrotors. To what a world's own page lists, options add:

| where | values | what |
|---|---|---|
| after the velocity | 2 | heading, for point masses with a `field_of_view` below 360 |
| after the velocity | 10 | quadrotors: height, the vertical in the body's frame, heading, body rates, thrust |
| after the position | 3 | with obstacles: the way to the nearest surface / sensing_range, and 1; 0 if out of range |
| with each neighbour | `message_size` | what it said, 0 if that was lost |

A quadrotor's velocities and offsets have three components, in views of neighbours too.

**Radio** (`_comms`). With `message_size`, the last numbers of an action are said, and heard `message_delay` steps later
by those who have the speaker among their nearest within `sensing_range`; each listener loses it with probability
`message_loss`. With `message_tokens`, one of so many words is said.

**Weather** (`_weather`). `wind` of random direction, slowly changing `gusts`, sudden `pushes`.

**Domain randomisation.** `sample_params` strays from the options by up to the share `randomise`: mass, drag, delay,
noise, wind, gusts, pushes and message loss, each on its own, anew for each episode (train with `randomise=True`). What
is 0 stays 0: it is left out of the program, and costs nothing.
"""

from shoal.envs.swarm._swarm import Swarm, SwarmParams, SwarmState

__all__ = ["Swarm", "SwarmParams", "SwarmState"]
