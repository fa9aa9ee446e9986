"""How swarm agents fly: closed forms, limits, energy; and what stands in their way."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.envs.swarm import _arena as arena
from shoal.envs.swarm import _contact as touching
from shoal.envs.swarm import _dynamics as dynamics
from shoal.envs.swarm._dynamics import GRAVITY, Physics, PointMass
from shoal.envs.swarm._sensing import find_near, meet, mutual

FREE = Physics(mass=1.0, drag=0.0, delay=0.1, max_speed=100.0, max_force=4.0, max_rate=4.0)
HOVER = Physics(mass=1.0, drag=0.0, delay=0.05, max_speed=100.0, max_force=2 * GRAVITY, max_rate=4.0)
QUICK = settings(max_examples=25, deadline=None)
RADIUS = 0.25

move = jax.jit(dynamics.move, static_argnames="seconds")
sweep, clear = jax.jit(arena.sweep), jax.jit(arena.clear)
turned = jax.jit(dynamics.turn)


def fly(body, command, physics, steps, seconds=0.1, wind=None):
    for _ in range(steps):
        body = move(body, jnp.asarray(command, jnp.float32), physics, wind, seconds)
    return body


def point(velocity=(0.0, 0.0), lag=False):
    body = dynamics.point_masses(jnp.zeros((1, 2)), lag)
    return body._replace(velocity=jnp.array([velocity], jnp.float32))


def quadrotor(thrust=GRAVITY):
    body = dynamics.quadrotors(jnp.array([[0.0, 0.0, 2.0]]), jnp.zeros(1), HOVER)
    return body._replace(thrust=jnp.array([thrust], jnp.float32))


def energy(body, mass):
    """Kinetic energy of the only body, plus for a quadrotor that of its height, in joules."""
    height = 0.0 if isinstance(body, PointMass) else float(body.position[0, 2])
    return mass * (0.5 * float(jnp.sum(jnp.square(body.velocity))) + GRAVITY * height)


def test_constant_force_gives_constant_acceleration():
    body = fly(point(), [[1.0, 0.0]], FREE, 10)
    np.testing.assert_allclose(body.velocity, [[4.0, 0.0]], atol=1e-5)
    np.testing.assert_allclose(body.position, [[4.0 * 0.01 * 55, 0.0]], atol=1e-5)  # a h² k (k + 1) / 2
    heavy = fly(point(), [[1.0, 0.0]], FREE._replace(mass=2.0), 10)
    np.testing.assert_allclose(heavy.velocity, [[2.0, 0.0]], atol=1e-5)


def test_a_long_command_is_shortened_and_so_is_a_great_speed():
    np.testing.assert_allclose(fly(point(), [[3.0, 4.0]], FREE, 1).velocity, [[0.24, 0.32]], atol=1e-6)
    fast = fly(point(), [[0.6, 0.8]], FREE._replace(max_speed=2.0), 30)
    np.testing.assert_allclose(fast.velocity, [[1.2, 1.6]], atol=1e-5)


@pytest.mark.parametrize("seconds", [0.02, 0.1, 0.5])
def test_drag_is_exact_at_any_step(seconds):
    physics = FREE._replace(drag=0.6, mass=2.0)
    steps = round(1.0 / seconds)
    body = fly(point((3.0, -1.0)), [[0.0, 0.0]], physics, steps, seconds)
    np.testing.assert_allclose(body.velocity, [[3.0 * math.exp(-0.3), -math.exp(-0.3)]], rtol=1e-5)
    body = fly(point(), [[1.0, 0.0]], physics, steps, seconds)
    np.testing.assert_allclose(body.velocity[0, 0], 4.0 / 0.6 * (1 - math.exp(-0.3)), rtol=1e-5)


def test_drag_is_towards_the_wind():
    body = fly(point(), [[0.0, 0.0]], FREE._replace(drag=1.0), 10, wind=jnp.array([1.0, -2.0]))
    np.testing.assert_allclose(body.velocity, [[1 - math.exp(-1), -2 * (1 - math.exp(-1))]], rtol=1e-5)


@pytest.mark.parametrize("seconds", [0.05, 0.1])
def test_force_follows_with_a_first_order_lag(seconds):
    body = fly(point(lag=True), [[1.0, 0.0]], FREE._replace(delay=0.2), round(0.3 / seconds), seconds)
    np.testing.assert_allclose(body.force, [[4.0 * (1 - math.exp(-1.5)), 0.0]], rtol=1e-5)


@QUICK
@given(
    velocity=st.tuples(st.floats(-50, 50), st.floats(-50, 50)),
    command=st.tuples(st.floats(-5, 5), st.floats(-5, 5)),
    drag=st.floats(0, 5),
    mass=st.floats(0.1, 10),
)
def test_limits_hold_and_no_energy_comes_from_nothing(velocity, command, drag, mass):
    physics = FREE._replace(drag=drag, mass=mass, max_speed=60.0)
    idle = fly(point(velocity), [[0.0, 0.0]], physics, 1)
    before = 0.5 * mass * float(np.sum(np.square(velocity)))
    assert energy(idle, mass) <= before * (1 + 1e-5) + 1e-6
    pulled = fly(point(velocity), [command], physics, 1)
    assert float(dynamics.norm(pulled.velocity)[0]) <= 60.0 * (1 + 1e-5)
    change = np.asarray(pulled.velocity[0]) - np.asarray(idle.velocity[0])
    assert np.hypot(*change) <= 4.0 / mass * 0.1 * (1 + 1e-4) + 1e-4


def test_a_quadrotor_hovers_at_half_thrust():
    body = fly(quadrotor(), [[0.0, 0.0, 0.0, 0.0]], HOVER, 100, 0.05)
    np.testing.assert_allclose(body.position, [[0.0, 0.0, 2.0]], atol=1e-3)
    np.testing.assert_allclose(body.velocity, jnp.zeros((1, 3)), atol=1e-4)


def test_a_quadrotor_falls_at_g_without_thrust():
    body = fly(quadrotor(thrust=0.0), [[-1.0, 0.0, 0.0, 0.0]], HOVER, 10, 0.05)
    np.testing.assert_allclose(body.velocity, [[0.0, 0.0, -GRAVITY * 0.5]], rtol=1e-5)
    np.testing.assert_allclose(body.position[0, 2], 2.0 - GRAVITY * 0.025**2 * 20 * 21 / 2, rtol=1e-5)


def test_motors_and_body_rates_respond_in_first_order():
    body = fly(quadrotor(thrust=0.0), [[1.0, 0.5, -0.5, 0.25]], HOVER, 2, 0.05)
    reached = 1 - math.exp(-0.1 / 0.05)
    np.testing.assert_allclose(body.thrust, [2 * GRAVITY * reached], rtol=1e-5)
    np.testing.assert_allclose(body.rates, [[2.0 * reached, -2.0 * reached, reached]], rtol=1e-5)


def test_a_pitched_quadrotor_is_pulled_forwards_and_yaw_is_where_the_nose_points():
    body = fly(quadrotor(), [[0.0, 0.0, 0.1, 0.0]], HOVER, 4, 0.05)
    assert float(body.velocity[0, 0]) > 0.005
    np.testing.assert_allclose(body.velocity[0, 1], 0.0, atol=1e-6)
    facing = turned(jnp.array([[1.0, 0.0, 0.0, 0.0]]), jnp.array([[0.0, 0.0, 0.7]]))
    np.testing.assert_allclose(dynamics.yaw(facing), [[math.cos(0.7), math.sin(0.7)]], rtol=1e-5)


def rotation(attitude):
    """The matrix of a unit quaternion, the textbook's way."""
    w, v = attitude[0], np.asarray(attitude[1:])
    cross = np.array([[0, -v[2], v[1]], [v[2], 0, -v[0]], [-v[1], v[0], 0]])
    return np.eye(3) + 2 * w * cross + 2 * cross @ cross


def test_attitudes_turn_like_matrices_and_stay_normalised():
    draw = np.random.default_rng(0)
    attitude, matrix = jnp.array([[1.0, 0.0, 0.0, 0.0]]), np.eye(3)
    for _ in range(50):
        angles = draw.normal(size=3)
        angle = np.linalg.norm(angles)
        axis = np.concatenate([[math.cos(angle / 2)], math.sin(angle / 2) * angles / angle])
        attitude, matrix = turned(attitude, jnp.array([angles], jnp.float32)), matrix @ rotation(axis)
    np.testing.assert_allclose(rotation(np.asarray(attitude[0])), matrix, atol=1e-4)
    np.testing.assert_allclose(dynamics.body_axis(attitude)[0], matrix[:, 2], atol=1e-4)
    np.testing.assert_allclose(dynamics.vertical(attitude)[0], matrix[2], atol=1e-4)
    np.testing.assert_allclose(dynamics.norm(attitude), [1.0], atol=1e-6)


def test_a_quadrotor_without_thrust_loses_energy_and_wild_flight_stays_normalised():
    body = quadrotor(thrust=0.0)._replace(velocity=jnp.array([[3.0, -1.0, 4.0]]))
    last = math.inf
    for _ in range(20):
        body = fly(body, [[-1.0, 1.0, -1.0, 1.0]], HOVER._replace(drag=0.3), 1, 0.05)
        now = energy(body, 1.0)
        assert now < last
        last = now
    np.testing.assert_allclose(dynamics.norm(body.attitude), [1.0], atol=1e-6)


def obstacles(key, count=4, side=8.0, radius=0.6):
    return arena.place_obstacles(key, side, count, radius, RADIUS)


def test_agents_fit_between_obstacles_and_walls():
    many = jax.jit(jax.vmap(obstacles, (0, None)), static_argnums=1)
    for count in (1, 7):
        centre = np.asarray(many(jax.random.split(jax.random.key(0), 50), count))
        apart = np.linalg.norm(centre[:, :, None] - centre[:, None], axis=-1) + 10 * np.eye(count)
        assert apart.min() > 2 * (0.6 + RADIUS)
        assert centre.min() > 0.6 + 2 * RADIUS
        assert centre.max() < 8 - 0.6 - 2 * RADIUS
        assert arena.room_for_obstacles(8.0, count, 0.6, RADIUS)
        assert not arena.room_for_obstacles(8.0, count, 4.0, RADIUS)


def test_ranks_are_a_permutation_even_of_equals():
    np.testing.assert_array_equal(arena._ranks(jnp.array([0.5, 0.1, 0.5, 0.9, 0.1]), 5), [2, 0, 3, 4, 1])
    np.testing.assert_array_equal(arena._ranks(jnp.array([0.5, 0.1, 0.5, 0.9, 0.1]), 2), [2, 0])


def test_nothing_passes_through_obstacles_however_fast():
    """Straight at the centre at any speed: everybody ends on the side it came from. And nobody ends inside."""
    angle = jnp.linspace(0.0, 2 * math.pi, 64, endpoint=False)
    out = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=-1)
    centre, reach = jnp.array([[4.0, 4.0]]), 0.85
    for distance, speed in [(0.86, 0.02), (1.0, 0.5), (2.0, 5.0), (3.0, 100.0)]:
        end, velocity = sweep(
            centre + distance * out, centre + (distance - speed) * out, -out, centre, reach, bounce=0.5
        )
        side = dynamics.dot(end - centre, out)
        assert float(jnp.min(side)) > reach - 1e-4
        hit = speed > distance - reach
        np.testing.assert_allclose(velocity, 0.5 * out if hit else -out, atol=1e-5)


def test_the_swept_way_agrees_with_tiny_steps():
    """Random ways past random obstacles: free ones are untouched, blocked ones are stopped, no energy is gained."""
    draw = np.random.default_rng(1)
    centre = obstacles(jax.random.key(3))
    start = clear(jnp.array(draw.uniform(RADIUS, 8 - RADIUS, (400, 2)), jnp.float32), centre, 0.85)
    way = jnp.array(draw.normal(size=(400, 2)), jnp.float32)
    end, velocity = sweep(start, start + way, way, centre, 0.85, bounce=0.3)
    assert float(jnp.min(dynamics.norm(end[:, None] - centre[None]))) > 0.85 - 1e-4
    assert bool(jnp.all(dynamics.norm(velocity) <= dynamics.norm(way) * (1 + 1e-5)))
    fine = np.asarray(start)[:, None] + np.linspace(0, 1, 501)[:, None] * np.asarray(way)[:, None]
    nearest = np.linalg.norm(fine[:, :, None] - np.asarray(centre)[None, None], axis=-1).min(axis=(1, 2))
    free, blocked = nearest > 0.851, nearest < 0.84
    assert free.sum() > 50
    assert blocked.sum() > 50
    np.testing.assert_allclose(np.asarray(end)[free], np.asarray(start + way)[free], atol=1e-5)
    assert np.all(np.linalg.norm(np.asarray(velocity - way)[blocked], axis=-1) > 1e-4)


def test_agents_slide_along_what_they_graze():
    centre = jnp.array([[0.0, 0.0]])
    end, velocity = sweep(
        jnp.array([[-1.0, 0.84]]), jnp.array([[1.0, 0.84]]), jnp.array([[2.0, 0.0]]), centre, 0.85, bounce=0.0
    )
    assert float(end[0, 0]) > 0.9
    assert float(velocity[0, 0]) > 1.9


def test_walls_floor_and_ceiling_hold():
    position = jnp.array([[-3.0, 9.0, 50.0], [4.0, 4.0, -1.0]])
    velocity = jnp.array([[-2.0, 1.0, 3.0], [1.0, 1.0, -4.0]])
    inside, bounced = arena.enclose(position, velocity, 8.0, RADIUS, bounce=0.5)
    np.testing.assert_allclose(inside, [[0.25, 7.75, arena.HEIGHT - 0.25], [4.0, 4.0, 0.25]])
    np.testing.assert_allclose(bounced, [[1.0, -0.5, -1.5], [1.0, 1.0, 2.0]])


@functools.partial(jax.jit, static_argnames="k")
def contact(position, velocity, mass=1.0, bounce=0.3, k=3):
    body = PointMass(jnp.asarray(position, jnp.float32), jnp.asarray(velocity, jnp.float32), None)
    n = body.position.shape[0]
    near = find_near(body.position, None, (n,), k)
    met = meet(body, near)
    held = lambda place, motion: (place, motion)  # noqa: E731
    touch = touching.pairs(met, near.who, mutual(met, near, (n,)))
    place, motion = touching.separate(body.position, body.velocity, touch, mass, bounce, RADIUS, held)
    return motion, place - body.position


def test_two_agents_collide_as_the_textbook_says():
    place, speed = jnp.array([[0.0, 0.0], [0.4, 0.0]]), jnp.array([[2.0, 1.0], [-1.0, 0.0]])
    velocity, apart = contact(place, speed, bounce=1.0)
    np.testing.assert_allclose(velocity, [[-1.0, 1.0], [2.0, 0.0]], atol=1e-5)
    np.testing.assert_allclose(apart, [[-0.05, 0.0], [0.05, 0.0]], atol=1e-6)
    velocity, _ = contact(place, speed, bounce=0.0)
    np.testing.assert_allclose(velocity, [[0.5, 1.0], [0.5, 0.0]], atol=1e-5)
    velocity, _ = contact(place, speed, mass=jnp.array([1.0, 3.0]), bounce=1.0)
    np.testing.assert_allclose(velocity[:, 0], [2.0 - 2 * 3 / 4 * 3.0, -1.0 + 2 * 1 / 4 * 3.0], atol=1e-5)
    velocity, _ = contact(place, jnp.array([[-1.0, 0.0], [1.0, 0.0]]))  # moving apart already
    np.testing.assert_allclose(velocity, [[-1.0, 0.0], [1.0, 0.0]])


@pytest.mark.parametrize(("k", "same_mass"), [(3, True), (3, False), (11, False)])
def test_crowds_keep_their_momentum_and_never_gain_energy(k, same_mass):
    draw = np.random.default_rng(k)
    changed = 0
    for trial in range(30):
        bounce, crowd = (0.0, 0.5, 1.0)[trial % 3], draw.uniform(0.4, 1.5)
        place, speed = draw.uniform(0, crowd, (12, 2)), draw.normal(size=(12, 2))
        mass = np.ones(12) if same_mass else draw.uniform(0.5, 3.0, 12)
        after = np.asarray(contact(place, speed, 1.0 if same_mass else jnp.array(mass, jnp.float32), bounce, k)[0])
        np.testing.assert_allclose(mass @ after, mass @ speed, atol=1e-4)
        assert mass @ np.sum(after**2, axis=1) <= mass @ np.sum(speed**2, axis=1) + 1e-4
        changed += np.abs(after - speed).max() > 1e-3
    assert changed > 10


def test_lists_are_mutual_between_teams_too():
    draw = np.random.default_rng(0)
    place = jnp.array(draw.uniform(0, 3, (14, 2)), jnp.float32)
    teams, k = (9, 5), 2

    @jax.jit
    def lists(place):
        near = find_near(place, None, teams, k)
        return near, mutual(meet(PointMass(place, place, None), near), near, teams)

    near, both = jax.tree.map(np.asarray, lists(place))
    who = near.who
    listed = [
        {int(j) for j, valid in zip(row, ok, strict=True) if valid} for row, ok in zip(who, near.valid, strict=True)
    ]
    expected = [[bool(ok) and i in listed[j] for j, ok in zip(who[i], near.valid[i], strict=True)] for i in range(14)]
    np.testing.assert_array_equal(both, expected)
    assert both.any()
    assert not both.all()
