"""The rules of the swarm worlds, their options, and flights that must not break physics."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal.core.env import describe
from shoal.core.errors import OptionError
from shoal.envs.swarm._dynamics import norm, quadrotors
from shoal.envs.swarm.coverage import Coverage
from shoal.envs.swarm.delivery import Delivery
from shoal.envs.swarm.formation import Formation
from shoal.envs.swarm.pursuit import Pursuit
from shoal.envs.swarm.rendezvous import Rendezvous

WORLDS = ("coverage", "delivery", "formation", "pursuit", "rendezvous")
REFUSED = [
    ("dynamics", "helicopter", "'planar' or 'quadrotor'"),
    ("max_steps", 0, "at least 1"),
    ("time_step", 0.0, "greater than 0"),
    ("time_step", 0.2, "its radius"),
    ("max_speed", 2.6, "its radius"),
    ("side", 1.0, "fit"),
    ("side", math.inf, "finite"),
    ("radius", -1.0, "greater than 0"),
    ("num_obstacles", -1, "at least 0"),
    ("num_obstacles", 33, "at most 32"),
    ("obstacle_radius", 0.1, "radius of an agent"),
    ("num_neighbours", 0, "at least 1"),
    ("sensing_range", 0.0, "greater than 0"),
    ("field_of_view", 0.0, "at most 360"),
    ("field_of_view", 361.0, "at most 360"),
    ("message_size", -1, "at least 0"),
    ("message_tokens", 1, "True or False"),
    ("message_delay", -1, "at least 0"),
    ("message_loss", 1.5, "between 0 and 1"),
    ("wind", -1.0, "at least 0"),
    ("gusts", math.nan, "finite"),
    ("pushes", -0.1, "at least 0"),
    ("sensor_noise", -0.1, "at least 0"),
    ("mass", 0.0, "greater than 0"),
    ("drag", -0.1, "at least 0"),
    ("delay", -0.1, "at least 0"),
    ("max_force", 0.0, "greater than 0"),
    ("bounce", 1.1, "between 0 and 1"),
    ("touch_penalty", -1.0, "at least 0"),
    ("randomise", 1.0, "less than 1"),
]
REFUSED_BY = {
    "coverage": [
        ("num_agents", 0, "at least 1"),
        ("cells", 0, "at least 1"),
        ("patch", 4, "odd"),
        ("camera", 0.0, "greater than 0"),
        ("memory_seconds", -1.0, "greater than 0"),
    ],
    "delivery": [
        ("num_agents", True, "whole number"),
        ("num_pickups", 0, "at least 1"),
        ("num_pickups", 30, "to fit on a side"),
        ("num_drops", 33, "at most 32"),
        ("capacity", 0, "at least 1"),
        ("station_radius", 0.0, "greater than 0"),
        ("arrivals", -1.0, "at least 0"),
        ("parcel_mass", -1.0, "at least 0"),
        ("pickup_reward", -1.0, "at least 0"),
        ("delivery_reward", -1.0, "at least 0"),
        ("progress_reward", math.nan, "finite"),
    ],
    "formation": [
        ("num_agents", 0, "at least 1"),
        ("shape", "heart", "'ring', 'line', 'wedge' or 'block'"),
        ("spacing", 0.4, "diameter of an agent"),
        ("pace", -1.0, "at least 0"),
        ("tolerance", 0.0, "greater than 0"),
        ("hold_reward", -1.0, "at least 0"),
        ("error_penalty", -1.0, "at least 0"),
    ],
    "pursuit": [
        ("num_pursuers", 0, "at least 1"),
        ("num_evaders", 0, "at least 1"),
        ("evader_speed", 0.0, "greater than 0"),
        ("evader_speed", 1.3, "its radius"),
        ("evader_agility", 0.0, "greater than 0"),
        ("evader_range", -1.0, "greater than 0"),
        ("catch_radius", 0.0, "greater than 0"),
        ("catch_reward", -1.0, "at least 0"),
        ("chase_penalty", -1.0, "at least 0"),
        ("escape_reward", -1.0, "at least 0"),
    ],
    "rendezvous": [
        ("num_agents", 2.0, "whole number"),
        ("meeting_radius", 0.0, "greater than 0"),
        ("meeting_reward", -1.0, "at least 0"),
    ],
}


@pytest.mark.parametrize("world", WORLDS)
def test_options_are_refused_in_words(world):
    for option, value, words in REFUSED + REFUSED_BY[world]:
        with pytest.raises(OptionError) as error:
            shoal.make(f"swarm/{world}", **{option: value})
        text = str(error.value)
        assert text.startswith(f"swarm/{world}: "), text
        assert words in text, (option, value, text)
    with pytest.raises(OptionError, match="num_obstacles must be few enough"):
        shoal.make(f"swarm/{world}", num_obstacles=30, side=9.0)
    refused = {option for option, _, _ in REFUSED + REFUSED_BY[world]}
    env = shoal.make(f"swarm/{world}")
    assert refused >= set(vars(env)), set(vars(env)) - refused


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("dynamics", ["planar", "quadrotor"])
def test_any_number_of_agents(world, dynamics):
    for count in (1, 2000):
        size = {"num_pursuers": count, "num_evaders": 3} if world == "pursuit" else {"num_agents": count}
        spec = describe(shoal.make(f"swarm/{world}", dynamics=dynamics, message_size=2, **size))
        group = next(iter(spec.groups.values()))
        assert group.size == count
        assert group.action.shape == (4 if dynamics == "planar" else 6,)


def test_sizes_of_views_are_as_documented():
    sizes = {"coverage": 44, "delivery": 34, "formation": 26, "pursuit": 37, "rendezvous": 21}
    for world, size in sizes.items():
        for options, more in (
            ({}, 0),
            ({"message_size": 2}, 6 if world != "pursuit" else 12),
            ({"field_of_view": 90}, 2),
        ):
            for group in describe(shoal.make(f"swarm/{world}", **options)).groups.values():
                assert group.observation.shape == (size + more,)
        teams = 2 if world == "pursuit" else 1
        for group in describe(shoal.make(f"swarm/{world}", dynamics="quadrotor")).groups.values():
            assert group.observation.shape == (size + 1 + 10 + 2 * 3 * teams,)


@functools.cache
def compiled(env):
    """`reset(key)` and `step(key, state, actions)`, the latter with views, as two programs."""
    params = env.default_params()

    @jax.jit
    def step(key, state, actions):
        state, outcome = env.step(key, state, actions, params)
        return state, outcome, env.observe(state, params)

    return jax.jit(lambda key: env.reset(key, params)), step


def program(env, num_steps=60):
    """Plays with actions that drive everybody as hard as can be; states `[T, ...]` and rewards."""

    @jax.jit
    def play(key, params):
        def step(state, key):
            draw, key = jax.random.split(key)
            push = lambda name: jax.random.normal(draw, (env.groups[name].size, *env.groups[name].action.shape)) * 3  # noqa: E731
            state, outcome = env.step(key, state, {name: push(name) for name in env.groups}, params)
            return state, (state, outcome)

        state = env.reset(key, params)
        return jax.lax.scan(step, state, jax.random.split(key, num_steps))[1]

    return play


@pytest.mark.parametrize("dynamics", ["planar", "quadrotor"])
def test_no_flight_breaks_the_limits(dynamics):
    """At full speed, in weather and crowds: outside of obstacles, within walls, within limits, all attitudes sound."""
    env = Pursuit(
        dynamics=dynamics, num_pursuers=20, num_evaders=10, side=12.0, num_obstacles=4, wind=2.0, gusts=1.0, pushes=1.0
    )
    states, _ = program(env, 100)(jax.random.key(0), env.default_params())
    body, obstacle = jax.tree.map(np.asarray, (states.swarm.body, states.swarm.obstacle))
    speed = np.linalg.norm(body.velocity, axis=-1)
    assert speed.max() <= env.top_speed * (1 + 1e-5)
    assert speed[:, :20].max() <= env.speed * (1 + 1e-5)
    assert speed.max() > 0.9 * env.speed
    apart = np.linalg.norm(body.position[:, :, None, :2] - obstacle[:, None], axis=-1)
    assert apart.min() > env.obstacle_radius + env.radius - 1e-4
    assert apart.min() < env.obstacle_radius + env.radius + 1e-2  # they were touched
    assert body.position.min() > env.radius - 1e-5
    assert body.position[..., :2].max() < 12.0 - env.radius + 1e-5
    if dynamics == "quadrotor":
        assert body.position[..., 2].max() <= 4.0 - env.radius + 1e-5
        np.testing.assert_allclose(np.linalg.norm(body.attitude, axis=-1), 1.0, atol=1e-5)
        assert np.abs(body.rates).max() <= 1.5 * 4.0 * (1 + 1e-5)


def test_parameters_are_drawn_anew_and_change_flights():
    env = Rendezvous(randomise=0.3, sensor_noise=0.1, wind=1.0, message_size=1, message_loss=0.9, num_agents=3)
    draw = jax.vmap(env.sample_params)(jax.random.split(jax.random.key(0), 200)).swarm
    default = env.default_params().swarm
    drawn = {**draw.physics._asdict(), **draw._asdict()}
    usual = {**default.physics._asdict(), **default._asdict()}
    for name in ("mass", "drag", "delay", "sensor_noise", "wind"):
        values = np.asarray(drawn[name]) / usual[name]
        assert 0.7 <= values.min() < 0.75, name
        assert 1.25 < values.max() <= 1.3, name
    assert np.asarray(drawn["message_loss"]).max() == 1.0
    for name in ("gusts", "pushes", "max_speed"):
        np.testing.assert_array_equal(drawn[name], usual[name])
    play = program(env, 10)
    usual = play(jax.random.key(0), env.default_params())[0].swarm.body.position
    for name in ("mass", "drag", "delay"):
        physics = default.physics._replace(**{name: getattr(default.physics, name) * 1.3})
        other = play(jax.random.key(0), env.default_params()._replace(swarm=default._replace(physics=physics)))
        assert np.abs(np.asarray(other[0].swarm.body.position - usual)).max() > 1e-4, name


def test_rendezvous_ends_when_all_have_met_and_shows_no_positions():
    env = Rendezvous(num_agents=4, side=20.0, max_steps=3)
    reset, step = compiled(env)
    state, key = reset(jax.random.key(0)), jax.random.key(1)
    actions = {"agent": jnp.zeros((4, 2))}
    square = jnp.array([[0.0, 0.0], [1.5, 0.0], [0.0, 1.5], [1.5, 1.5]])

    def at(place, state):
        body = state.swarm.body
        return state._replace(swarm=state.swarm._replace(body=body._replace(position=place)))

    _, outcome, _ = step(key, at(square * 0.9 + 8, state), actions)
    np.testing.assert_allclose(outcome.reward["agent"], 5.0 - 0.9 * 0.75 * math.sqrt(2) / 20, rtol=1e-4)
    assert (bool(outcome.terminated), bool(outcome.truncated)) == (True, False)
    _, outcome, seen = step(key, at(square + 8, state), actions)
    np.testing.assert_allclose(outcome.reward["agent"], -0.75 * math.sqrt(2) / 20, rtol=1e-4)
    assert not bool(outcome.terminated)
    elsewhere = step(key, at(square + 7, state), actions)[2]
    np.testing.assert_allclose(seen["agent"].view, elsewhere["agent"].view, atol=1e-6)
    near_wall = step(key, at(square + jnp.array([1.25, 8.0]), state), actions)[2]["agent"].view
    np.testing.assert_allclose(near_wall[0, 2:6], [0.75, 0.0, 0.0, 0.0], atol=1e-5)


def test_agents_do_not_pass_through_each_other():
    """Two pairs, head-on and off-centre, at full throttle from both sides: they push, and nobody gets past."""
    env = Rendezvous(num_agents=4, side=20.0, max_steps=3)
    reset, step = compiled(env)
    state = reset(jax.random.key(0))
    place = jnp.array([[4.0, 5.0], [7.0, 5.0], [4.0, 15.0], [7.0, 15.2]])
    state = state._replace(swarm=state.swarm._replace(body=state.swarm.body._replace(position=place)))
    push = {"agent": jnp.array([[1.0, 0.0], [-1.0, 0.0]] * 2)}
    nearest = []
    for _ in range(25):
        state, _, _ = step(jax.random.key(1), state, push)
        x, y = np.asarray(state.swarm.body.position).T
        assert x[0] < x[1]
        if x[2] > x[3]:
            assert abs(y[2] - y[3]) > 0.4  # slid past each other's rim
        nearest.append(math.hypot(x[1] - x[0], y[1] - y[0]))
    assert 0.499 < min(nearest) < 0.501  # they met, and never overlapped


def crowd(env, action, steps, place=None):
    """Positions `[T, n, 2]` while everybody does `action`."""
    params = env.default_params()

    @jax.jit
    def play(key):
        state = env.reset(key, params)
        if place is not None:
            body = state.swarm.body._replace(position=jnp.array(place))
            state = state._replace(swarm=state.swarm._replace(body=body))

        def step(state, key):
            state = env.step(key, state, {"agent": jnp.broadcast_to(jnp.array(action), (env.size, 2))}, params)[0]
            return state, state.swarm.body.position

        return jax.lax.scan(step, state, jax.random.split(key, steps))[1]

    return np.asarray(play(jax.random.key(0)))


def least_apart(positions):
    """The least distance of a pair, in each step, in diameters."""
    apart = np.linalg.norm(positions[:, :, None] - positions[:, None], axis=-1) + 9 * np.eye(positions.shape[1])
    return apart.min(axis=(1, 2)) / 0.5


def test_a_crowd_in_a_corner_is_soft_but_does_not_collapse():
    positions = crowd(Rendezvous(max_steps=1000), [1.0, 0.7], 150)
    assert least_apart(positions)[-50:].min() > 0.87
    assert positions.max() <= Rendezvous().length - 0.25 + 1e-5
    assert positions[-1].min() > Rendezvous().length - 4.0  # they are there


def test_coincident_agents_part_and_wind_does_not_pile_them_up():
    env = Rendezvous(num_agents=4, side=10.0, max_steps=1000)
    assert least_apart(crowd(env, [0.0, 0.0], 20, np.full((4, 2), 5.0)))[-1] > 0.98
    windy = Rendezvous(num_agents=12, side=8.0, wind=2.0, gusts=1.0, drag=1.0, max_steps=1000)
    assert least_apart(crowd(windy, [0.0, 0.0], 150))[-50:].min() > 0.65  # pressed against a wall by a gale


@pytest.mark.parametrize("offset", [0.0, 1e-4, 0.1, 0.3])
def test_head_on_pairs_never_overlap(offset):
    env = Rendezvous(num_agents=2, side=12.0, max_steps=1000, max_speed=2.5, meeting_radius=0.01)
    towards = [[1.0, 0.0], [-1.0, 0.0]]
    positions = crowd(env, towards, 80, [[4.0, 6.0], [8.0, 6.0 + offset]])
    assert least_apart(positions).min() > 0.97
    if offset == 0.0:
        assert (positions[:, 0, 0] < positions[:, 1, 0]).all()


def test_what_is_too_large_is_refused_before_it_is_made():
    for world, option in [("coverage", "cells"), ("pursuit", "num_evaders"), ("rendezvous", "num_agents")]:
        with pytest.raises(OptionError, match=f"swarm/{world}: {option} must be at most"):
            shoal.make(f"swarm/{world}", **{option: 10**12})
    for option in ("num_neighbours", "message_size", "message_delay", "side"):
        with pytest.raises(OptionError, match=f"{option} must be at most"):
            shoal.make("swarm/rendezvous", **{option: 10**12})
    with pytest.raises(OptionError, match="spacing must be at most"):
        shoal.make("swarm/formation", spacing=1e30)
    with pytest.raises(OptionError, match="radius must be at most"):
        shoal.make("swarm/coverage", radius=3.0)
    with pytest.raises(OptionError, match="max_speed must be low enough"):
        shoal.make("swarm/coverage", max_speed=1e12)


def test_coverage_counts_cells_as_plain_loops_do():
    env = Coverage(num_agents=5, side=6.0, cells=8, patch=3)
    reset, step = compiled(env)
    stale = jax.random.uniform(jax.random.key(2), (8, 8))
    state = reset(jax.random.key(1))._replace(stale=stale)
    state, outcome, seen = step(jax.random.key(3), state, {"agent": jnp.ones((5, 2))})
    position, stale = np.asarray(state.swarm.body.position), np.minimum(np.asarray(stale) + 0.1 / 5.0, 1.0)
    centre = (np.arange(8) + 0.5) * 0.75
    sees = (np.abs(centre[None, :, None] - position[:, None, None, 1]) <= 1.0) & (
        np.abs(centre[None, None, :] - position[:, None, None, 0]) <= 1.0
    )
    gain = np.sum(sees * stale / np.maximum(sees.sum(axis=0), 1), axis=(1, 2))
    touches = np.sum(np.linalg.norm(position[:, None] - position[None], axis=-1) < 0.501, axis=1) - 1
    np.testing.assert_allclose(outcome.reward["agent"], gain - 0.1 * touches, rtol=1e-4)
    fresh = np.where(sees.any(axis=0), 0.0, stale)
    np.testing.assert_allclose(state.stale, fresh, atol=1e-6)
    np.testing.assert_allclose(outcome.metrics["freshness"], 1 - fresh.mean(), rtol=1e-5)
    view = np.asarray(seen["agent"].view)[:, 4:13].reshape(5, 3, 3)
    padded = np.pad(fresh, 1)
    for i, (x, y) in enumerate((position / 0.75).astype(int)):
        np.testing.assert_allclose(view[i], padded[y : y + 3, x : x + 3], atol=1e-6)


def test_a_higher_quadrotor_sees_more():
    env = Coverage(num_agents=1, dynamics="quadrotor", side=12.0)
    params = env.default_params()

    @jax.jit
    def watched(height):
        place = jnp.stack([jnp.float32(6.0), jnp.float32(6.0), height])[None]
        body = quadrotors(place, jnp.zeros(1), params.swarm.physics)
        return jnp.sum(env._watch(body, jnp.ones((12, 12)), params)[0])

    assert [float(watched(jnp.float32(height))) for height in (0.9, 2.0, 3.1)] == [0.0, 4.0, 16.0]


def hunt(**options):
    env = Pursuit(num_pursuers=2, num_evaders=2, num_obstacles=0, side=10.0, **options)
    return env, *compiled(env)


def test_pursuit_a_caught_evader_is_gone():
    _, reset, step = hunt()
    state = reset(jax.random.key(0))
    place = jnp.array([[2.0, 2.0], [8.0, 8.0], [2.0, 2.7], [6.0, 2.0]])
    state = state._replace(swarm=state.swarm._replace(body=state.swarm.body._replace(position=place)))
    still = {"pursuer": jnp.zeros((2, 2)), "evader": jnp.zeros((2, 2))}
    state, outcome, seen = step(jax.random.key(1), state, still)
    assert state.free.tolist() == [False, True]
    np.testing.assert_allclose(outcome.reward["evader"], [-10.0, 0.05])
    np.testing.assert_allclose(
        outcome.reward["pursuer"], [10.0 - 0.2 * 0.07, -0.2 * math.hypot(2.0, 6.0) / 10.0], rtol=1e-4
    )
    assert seen["evader"].active.tolist() == seen["evader"].present.tolist() == [False, True]
    first = np.asarray(seen["pursuer"].view)[0, 4 + 15 :].reshape(3, 5)
    np.testing.assert_allclose(first[0, :2], [0.0, 0.0])  # the caught one's slot is empty
    moved = {"pursuer": jnp.zeros((2, 2)), "evader": jnp.ones((2, 2))}
    for _ in range(2):
        state, outcome, seen = step(jax.random.key(1), state, moved)
        np.testing.assert_allclose(state.swarm.body.position[2], place[2])
        assert float(outcome.reward["evader"][0]) == 0.0
        assert float(outcome.metrics["catches"]) == 0.0
    view = np.asarray(seen["pursuer"].view)[0, 4 + 15 :].reshape(3, 5)
    assert view[:, 4].tolist() == [0.0, 0.0, 0.0]  # the other is out of range, nobody else is left
    state = state._replace(swarm=state.swarm._replace(body=state.swarm.body._replace(position=place.at[3].set(8.0))))
    _, outcome, _ = step(jax.random.key(1), state, still)
    assert bool(outcome.terminated)


def test_pursuit_teams_differ():
    env, reset, step = hunt(delay=0.0, drag=0.0)
    params = env.default_params()
    physics, reach = env.physics_of(params.swarm), env.reach_of(params.swarm)
    np.testing.assert_allclose(physics.max_speed, [2.0, 2.0, 2.4, 2.4])
    np.testing.assert_allclose(physics.max_force, [4.0, 4.0, 6.0, 6.0])
    np.testing.assert_allclose(reach, [4.0, 4.0, 3.0, 3.0])
    state = reset(jax.random.key(5))
    ahead = jnp.tile(jnp.array([[1.0, 0.0]]), (2, 1))
    state, _, _ = step(jax.random.key(1), state, {"pursuer": ahead, "evader": ahead})
    np.testing.assert_allclose(norm(state.swarm.body.velocity), [0.4, 0.4, 0.6, 0.6], rtol=1e-5)


@pytest.mark.parametrize("shape", ["ring", "line", "wedge", "block"])
def test_formations_keep_their_spacing_and_fit(shape):
    for count in (1, 2, 9, 300):
        env = Formation(num_agents=count, shape=shape, spacing=1.5)
        places = env.places
        np.testing.assert_allclose(places.min(axis=0) + places.max(axis=0), 0.0, atol=1e-9)
        apart = np.linalg.norm(places[:, None] - places[None], axis=-1) + 1e9 * np.eye(count)
        if count > 1:
            assert apart.min() == pytest.approx(1.5, rel=1e-6)
        assert np.abs(places).max() + env.radius <= env.length / 2


def test_a_formation_must_fit():
    with pytest.raises(
        OptionError, match=r"swarm/formation: side must be at least .* so that the formation fits .*, got 3"
    ):
        Formation(num_obstacles=0, side=3.0)


def test_formation_travels_and_pays_for_places():
    env = Formation(num_agents=4, num_obstacles=0, side=8.0, pace=1.0)
    params = env.default_params()
    reset, step = compiled(env)
    state = reset(jax.random.key(0))._replace(course=jnp.array([0.0, 1.0]))
    slots = jax.jit(lambda t: env._slots(state._replace(swarm=state.swarm._replace(t=t)), params))
    half = 4.0 - env.extent
    start, velocity = slots(jnp.int32(0))
    np.testing.assert_allclose(start.mean(axis=0), [4.0, 4.0 - half], atol=1e-5)
    np.testing.assert_allclose(velocity, [0.0, 1.0], atol=1e-6)
    np.testing.assert_allclose(slots(jnp.int32(10))[0] - start, np.tile([0.0, 1.0], (4, 1)), atol=1e-5)
    end, velocity = slots(jnp.int32(150))
    np.testing.assert_allclose(end.mean(axis=0), [4.0, 4.0 + half], atol=1e-5)
    np.testing.assert_allclose(velocity, [0.0, 0.0])
    place = end.at[0].add(jnp.array([0.0, -1.0]))
    swarm = state.swarm._replace(t=jnp.int32(149), body=state.swarm.body._replace(position=place))
    _, outcome, seen = step(jax.random.key(0), state._replace(swarm=swarm), {"agent": jnp.zeros((4, 2))})
    np.testing.assert_allclose(outcome.reward["agent"], [-0.2, 1.0, 1.0, 1.0], atol=1e-5)
    assert float(outcome.metrics["in_place"]) == 0.75
    np.testing.assert_allclose(seen["agent"].view[0, 4:8], [0.0, 0.25, 0.0, 0.0], atol=1e-5)


def test_delivery_parcels_are_taken_carried_and_dropped():
    env = Delivery(num_agents=3, num_obstacles=0, num_pickups=2, num_drops=2, side=10.0, arrivals=0.0)
    reset, step = compiled(env)
    state = reset(jax.random.key(0))
    assert state.stock.tolist() == [4, 4]
    pickup, drop = jnp.array([[2.0, 2.0], [8.0, 8.0]]), jnp.array([[2.0, 8.0], [8.0, 2.0]])

    def at(place, state, **more):
        body = state.swarm.body._replace(position=jnp.array(place), velocity=jnp.zeros((3, 2)))
        return state._replace(swarm=state.swarm._replace(body=body), pickup=pickup, drop=drop, **more)

    still = {"agent": jnp.zeros((3, 2))}
    go = functools.partial(step, jax.random.key(1))
    begun = at([[2.0, 2.5], [2.5, 2.0], [5.0, 5.0]], state, stock=jnp.array([1, 4]), following=jnp.array([1, 0]))
    taken, outcome, _ = go(begun, still)
    assert taken.cargo.tolist() == [1, -1, -1]  # one parcel, two takers: the first gets it
    assert taken.stock.tolist() == [0, 4]
    np.testing.assert_allclose(outcome.reward["agent"], [1.0, 0.0, 0.0], atol=1e-5)
    waiting, outcome, _ = go(taken, still)
    assert waiting.cargo.tolist() == [1, -1, -1]
    np.testing.assert_allclose(outcome.reward["agent"], 0.0, atol=1e-5)
    np.testing.assert_allclose(env._aim(taken), [[8.0, 2.0], [8.0, 8.0], [8.0, 8.0]])  # the first station is empty
    moving, outcome, _ = go(at([[3.0, 2.0], [5.0, 3.0], [5.0, 7.0]], taken), {"agent": jnp.ones((3, 2))})
    speed = norm(moving.swarm.body.velocity)
    assert float(speed[0]) < 0.8 * float(speed[1])  # 1.3 kg against 1 kg
    assert float(outcome.reward["agent"].min()) > 0  # nearer to their aims
    there, outcome, _ = go(at([[8.0, 2.4], [5.0, 3.0], [5.0, 7.0]], taken), still)
    assert there.cargo.tolist() == [-1, -1, -1]
    np.testing.assert_allclose(outcome.reward["agent"], [5.0, 0.0, 0.0], atol=1e-5)
    assert float(outcome.metrics["deliveries"]) == 1.0
    wrong, outcome, _ = go(at([[2.0, 8.0], [5.0, 3.0], [5.0, 7.0]], taken), still)
    assert wrong.cargo.tolist() == [1, -1, -1]
