"""What swarm agents see and hear, and what disturbs them: exact against plain numpy, and the features that are off."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.swarm import _comms as comms
from shoal.envs.swarm import _views as views
from shoal.envs.swarm import _weather as weather
from shoal.envs.swarm._dynamics import PointMass, quadrotors
from shoal.envs.swarm.rendezvous import Rendezvous

speak = jax.jit(comms.speak, static_argnames="tokens")
hear, lose = jax.jit(comms.hear), jax.jit(comms.lose)


def still(env):
    """No action, for everybody."""
    return {name: jnp.zeros((group.size, *group.action.shape)) for name, group in env.groups.items()}


def seen_by(i, position, heading, k, reach, field_of_view):
    """Whom agent i sees, nearest first, None for the slots of those out of sight."""
    offset = position - position[i]
    distance = np.hypot(*offset.T)
    nearest = [j for j in np.argsort(distance, kind="stable") if j != i][:k]
    angle = [
        abs(math.remainder(math.atan2(*offset[j][::-1]) - math.atan2(*heading[i][::-1]), math.tau)) for j in nearest
    ]
    half = math.radians(field_of_view / 2)
    return [j if distance[j] <= reach and a <= half else None for j, a in zip(nearest, angle, strict=True)]


@pytest.mark.parametrize("field_of_view", [360.0, 120.0])
def test_agents_see_the_nearest_within_range_and_field_of_view(field_of_view):
    env = Rendezvous(num_agents=20, num_neighbours=4, sensing_range=3.0, field_of_view=field_of_view)
    params = env.default_params()
    observe = jax.jit(lambda key: (state := env.reset(key, params), env.observe(state, params)["agent"].view))
    hidden = shown = 0
    for seed in range(3):
        state, view = observe(jax.random.key(seed))
        position = np.asarray(state.swarm.body.position, np.float64)
        heading = np.asarray(state.swarm.heading) if field_of_view < 360 else np.tile([1.0, 0.0], (20, 1))
        slots = np.asarray(view)[:, -20:].reshape(20, 4, 5)
        for i in range(20):
            for slot, j in zip(slots[i], seen_by(i, position, heading, 4, 3.0, field_of_view), strict=True):
                expected = [0.0] * 5 if j is None else [*(position[j] - position[i]) / 3.0, 0.0, 0.0, 1.0]
                np.testing.assert_allclose(slot, expected, atol=1e-5)
                hidden, shown = hidden + (j is None), shown + (j is not None)
    assert hidden > 10
    assert shown > 10


def test_a_point_mass_looks_where_it_went_last():
    env = Rendezvous(num_agents=2, field_of_view=90.0, delay=0.0, drag=0.0)
    params = env.default_params()
    step = jax.jit(lambda state, action: env.step(jax.random.key(1), state, {"agent": action}, params)[0])
    state = jax.jit(env.reset)(jax.random.key(0), params)
    pull = jnp.array([[0.0, -1.0], [0.6, 0.8]])
    state = step(state, pull)
    np.testing.assert_allclose(state.swarm.heading, pull, atol=1e-5)
    state = step(state, -pull)  # back to rest: the heading stays
    np.testing.assert_allclose(state.swarm.heading, pull, atol=1e-5)


def test_quadrotors_see_in_their_own_frame():
    heading = jnp.array([0.0, math.pi / 2])
    body = quadrotors(jnp.zeros((2, 3)), heading, Rendezvous(dynamics="quadrotor").swarm_params().physics)
    way = jnp.array([[[1.0, 2.0, 3.0]], [[1.0, 2.0, 3.0]]])
    turned = views.into_frame(way, views.frame(body))
    np.testing.assert_allclose(turned, [[[1.0, 2.0, 3.0]], [[2.0, -1.0, 3.0]]], atol=1e-6)
    assert views.frame(PointMass(jnp.zeros((2, 2)), jnp.zeros((2, 2)), None)) is None


def test_nearest_surface_of_obstacles():
    place, centre = jnp.array([[0.0, 0.0], [5.0, 4.0]]), jnp.array([[3.0, 4.0], [-2.0, 0.0]])
    way, distance = views.nearest_surface(place, centre, 1.0)
    np.testing.assert_allclose(way, [[-1.0, 0.0], [-1.0, 0.0]], atol=1e-6)
    np.testing.assert_allclose(distance, [1.0, 1.0], atol=1e-6)


@pytest.mark.parametrize("delay", [0, 2])
def test_messages_arrive_exactly_when_they_should(delay):
    radio = comms.silence(3, 2, 1, delay, lossy=False)
    index = jnp.array([[1, 2], [0, 2], [0, 1]])
    reached = jnp.array([[True, True], [True, False], [True, True]])
    for t in range(6):
        radio = speak(radio, jnp.array([[0.1], [0.2], [0.3]]) * (t + 1) / 6, tokens=False)
        heard = hear(radio, index, reached)[..., 0]
        said = max(t - delay + 1, 0) / 6
        np.testing.assert_allclose(
            heard, said * np.array([[0.2, 0.3], [0.1, 0.0], [0.1, 0.2]]), atol=1e-6, err_msg=f"step {t}"
        )


def test_the_last_numbers_of_an_action_are_what_is_heard():
    env = Rendezvous(num_agents=2, num_neighbours=1, side=6.0, sensing_range=9.0, message_size=2, message_delay=1)
    params = env.default_params()
    step = jax.jit(lambda state, actions: env.step(jax.random.key(0), state, actions, params)[0])
    observe = jax.jit(lambda state: env.observe(state, params)["agent"].view[:, -2:])
    state = jax.jit(env.reset)(jax.random.key(0), params)
    said = np.array([[0.1, -0.2], [0.3, 0.4]])
    for scale in (1.0, 2.0):
        np.testing.assert_array_equal(observe(state), np.zeros((2, 2)))
        state = step(state, {"agent": jnp.concatenate([jnp.zeros((2, 2)), jnp.array(scale * said)], axis=1)})
    np.testing.assert_allclose(observe(state), said[::-1], atol=1e-6)  # each hears the other's first message
    state = step(state, still(env))
    np.testing.assert_allclose(observe(state), 2 * said[::-1], atol=1e-6)


def test_messages_are_clipped_or_one_word():
    radio = comms.silence(2, 1, 3, 0, lossy=False)
    message = jnp.array([[0.2, 5.0, -5.0], [-0.5, -0.5, -0.9]])
    np.testing.assert_allclose(comms.speak(radio, message, False).under_way[0], [[0.2, 1, -1], [-0.5, -0.5, -0.9]])
    np.testing.assert_allclose(comms.speak(radio, message, True).under_way[0], [[0, 1, 0], [1, 0, 0]])


def test_messages_are_lost_at_the_rate_and_by_each_listener_alone():
    radio = comms.silence(500, 8, 1, 0, lossy=True)
    radio = speak(radio, jnp.ones((500, 1)), tokens=False)
    index, reached = jnp.zeros((500, 8), jnp.int32), jnp.ones((500, 8), bool)
    heard = np.asarray(hear(lose(radio, jax.random.key(0), 0.3), index, reached))
    assert heard.mean() == pytest.approx(0.7, abs=4 * math.sqrt(0.21 / 4000))
    assert 0.5 < heard.mean(axis=0).min() < heard.mean(axis=0).max() < 0.9
    assert hear(lose(radio, jax.random.key(0), 0.0), index, reached).min() == 1.0
    assert hear(lose(radio, jax.random.key(0), 1.0), index, reached).max() == 0.0


def test_gusts_have_their_deviation_and_their_memory():
    def run(key):
        first, rest = jax.random.split(key)
        start = weather.first_wind(first, 2.0, 0.5)
        step = lambda wind, key: (weather.next_wind(key, wind, 0.5, 0.25), None)  # noqa: E731
        return start, jax.lax.scan(step, start, jax.random.split(rest, 20))[0]

    start, end = jax.tree.map(np.asarray, jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 4000)))
    np.testing.assert_allclose(np.hypot(*start.mean.T), 2.0, rtol=1e-5)
    np.testing.assert_array_equal(start.mean, end.mean)
    assert np.abs(start.mean.mean(axis=0)).max() < 0.1
    for wind in (start, end):
        np.testing.assert_allclose(wind.gust.std(axis=0), 0.5, rtol=0.05)
    kept = np.mean(start.gust * end.gust) / 0.25
    assert kept == pytest.approx(math.exp(-1), abs=0.04)  # 20 steps of 0.25 s are one memory


def test_pushes_come_at_their_rate_in_all_directions():
    velocity = np.asarray(weather.push(jax.random.key(0), jnp.zeros((40_000, 3)), 0.7, 0.1))
    size = np.hypot(velocity[:, 0], velocity[:, 1])
    hit = size > 0
    np.testing.assert_allclose(size[hit], 0.7, rtol=1e-4)
    assert hit.mean() == pytest.approx(1 - math.exp(-0.05), abs=0.005)
    angle = np.arctan2(velocity[hit, 1], velocity[hit, 0])
    share = np.histogram(angle, 4, (-math.pi, math.pi))[0] / hit.sum()
    np.testing.assert_allclose(share, 0.25, atol=0.05)
    assert not velocity[:, 2].any()


def test_noise_is_in_the_state_and_falsifies_fixes_not_flight():
    noisy, exact = Rendezvous(num_agents=40, sensor_noise=0.2), Rendezvous(num_agents=40)
    params = noisy.default_params()

    @jax.jit
    def play(key):
        state, true = noisy.reset(key, params), exact.reset(key, params)
        seen, plain = (env.observe(s, params)["agent"].view for env, s in ((noisy, state), (exact, true)))
        following = noisy.step(jax.random.key(7), state, still(noisy), params)[0]
        return state.swarm, true.swarm, seen[:, -15:], plain[:, -15:], following.swarm.noise

    state, true, seen, plain, following = jax.tree.map(np.asarray, play(jax.random.key(0)))
    np.testing.assert_array_equal(state.body.position, true.body.position)
    np.testing.assert_array_equal(state.near.who, true.near.who)
    assert state.noise.std() == pytest.approx(0.2, rel=0.2)
    seen, plain = seen.reshape(40, 3, 5), plain.reshape(40, 3, 5)
    error = (state.noise[state.near.who] - state.noise[:, None]) * plain[..., 4:]
    np.testing.assert_allclose(seen[..., :2] - plain[..., :2], error[..., :2] / 4.0, atol=1e-5)
    np.testing.assert_allclose(seen[..., 2:4], error[..., 2:] / 2.0, atol=1e-5)
    assert np.abs(following - state.noise).min() > 0


@pytest.mark.parametrize("dynamics", ["planar", "quadrotor"])
def test_what_is_off_draws_no_random_numbers_and_is_not_in_the_state(dynamics):
    plain = Rendezvous(dynamics=dynamics)
    state = jax.eval_shape(plain.reset, jax.random.key(0), plain.default_params())
    program = jax.make_jaxpr(plain.step)(jax.random.key(0), state, still(plain), plain.default_params())
    assert "random_bits" not in str(program)
    assert "random_split" not in str(program)
    left_out = state.swarm.noise, state.swarm.wind, state.swarm.radio, state.swarm.obstacle, state.swarm.heading
    assert left_out == (None,) * 5
    for option in ({"gusts": 0.1}, {"pushes": 0.1}, {"sensor_noise": 0.1}, {"message_size": 1, "message_loss": 0.1}):
        env = Rendezvous(dynamics=dynamics, **option)
        state = jax.eval_shape(env.reset, jax.random.key(0), env.default_params())
        program = str(jax.make_jaxpr(env.step)(jax.random.key(0), state, still(env), env.default_params()))
        assert program.count("random_bits[") == 1, option
