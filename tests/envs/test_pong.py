"""`pong`: agreement with a plain-Python twin, what can never happen, and rules and views worked out by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal import presets
from shoal.core.env import describe
from shoal.core.errors import OptionError
from shoal.envs.pong.pong import Ball, Pong, State

KEY = jax.random.key(5)
STAY, UP, DOWN = range(3)
FACE, CEILING, RADIUS = 0.9, 0.97, 0.03
FAST = {"serve_speed": 0.4, "max_speed": 1.0, "paddle_length": 1.2, "paddle_speed": 0.3}


def make_state(x=0.0, y=0.0, vx=0.05, vy=0.0, left=0.0, right=0.0, score=(0, 0), t=0):
    ball = Ball(*(jnp.float32(number) for number in (x, y, vx, vy)))
    counts = jnp.int32(score[0]), jnp.int32(score[1])
    return State(ball, (ball.x, ball.y), (jnp.float32(left), jnp.float32(right)), counts, jnp.int32(t))


def step(env, state, left=STAY, right=STAY):
    actions = {"left": jnp.array([left]), "right": jnp.array([right])}
    return jax.jit(env.step)(KEY, state, actions, env.default_params())


def play(env, games, steps, key=KEY):
    """States before each step, actions, states after it and outcomes of many games; leaves are `[T, E, ...]`.

    Half of the players move at random, half towards the ball, so that there are rallies.
    """
    params = env.default_params()

    def choose(key, state, paddle, chases):
        towards = jnp.where(state.ball.y > paddle, UP, DOWN)
        return jnp.where(chases, towards, jax.random.randint(key, (), 0, 3))[None]

    def one(key, i, state):
        keys = jax.random.split(key, 4)
        skills = i % 2 == 0, i % 4 < 2
        moves = [choose(*parts) for parts in zip(keys, (state, state), state.paddle, skills, strict=False)]
        actions = dict(zip(("left", "right"), moves, strict=True))
        after, outcome = env.step(keys[2], state, actions, params)
        over = outcome.terminated | outcome.truncated
        fresh = env.reset(keys[3], params)
        following = jax.tree.map(lambda a, b: jnp.where(over, a, b), fresh, after)
        return following, (state, actions, after, outcome)

    @jax.jit
    def everything(key):
        states = jax.vmap(env.reset, (0, None))(jax.random.split(key, games), params)
        states = states._replace(ball=states.ball._replace(vy=2 * states.ball.vy))  # for more bounces
        keys = jax.random.split(key, (steps, games))
        return jax.lax.scan(lambda s, k: jax.vmap(one)(k, jnp.arange(games), s), states, keys)[1]

    return jax.tree.map(np.asarray, everything(key))


def plain_step(env, state, left, right):
    """The rules again, in plain Python: the ball goes from event to event. Returns everything but a new serve."""
    params = env.default_params()
    most = 1 - params.paddle_length / 2
    paddles = [
        min(max(float(y) + params.paddle_speed * {UP: 1, DOWN: -1}.get(int(a), 0), -most), most)
        for y, a in zip(state.paddle, (left, right), strict=True)
    ]
    x, y, vx, vy = map(float, state.ball)
    time, hits, bounces = 1.0, 0, 0
    while True:
        side = 1 if vx > 0 else -1
        to_wall = ((CEILING if vy > 0 else -CEILING) - y) / vy if vy else np.inf
        to_paddle = (side * FACE - x) / vx if side * x < FACE else np.inf
        way = min(time, to_wall, to_paddle)
        x, y, time = x + vx * way, y + vy * way, time - way
        if way == to_paddle:
            x = side * FACE
            offset = (y - paddles[side > 0]) / (params.paddle_length / 2 + RADIUS)
            if abs(offset) <= 1:
                vx = -side * min(abs(vx) * params.speed_up, params.max_speed)
                vy = min(max(vy + params.spin * offset, -params.max_vertical), params.max_vertical)
                hits += 1
        elif way == to_wall:
            y, vy = np.sign(vy) * CEILING, -vy
            bounces += 1
        else:
            break
    point = 0 if abs(x) < 1 else int(np.sign(x))
    score = [int(state.score[0]) + (point > 0), int(state.score[1]) + (point < 0)]
    return (x, y, vx, vy), paddles, score, point, hits, bounces


@pytest.mark.parametrize("options", [{"max_steps": 90, "points": 2}, FAST | {"points": 3}])
def test_agrees_with_a_plain_twin(options):
    env = Pong(**options)
    before, actions, after, outcome = play(env, games=16, steps=120)
    counts = np.zeros(3, int)
    for t, i in np.ndindex(120, 16):
        where = f"game {i}, step {t}"
        old, moves, new, result = jax.tree.map(lambda leaf: leaf[t, i], (before, actions, after, outcome))  # noqa: B023
        ball, paddles, score, point, hits, bounces = plain_step(env, old, moves["left"][0], moves["right"][0])
        np.testing.assert_allclose(new.paddle, paddles, atol=1e-6, err_msg=where)
        if not point:
            np.testing.assert_allclose(new.ball, ball, atol=2e-6, err_msg=where)
            np.testing.assert_array_equal(new.before, old.ball[:2], err_msg=where)
        else:
            assert new.ball[:2] == (0, 0) == new.before
            assert abs(new.ball.vx) == np.float32(env.serve_speed)
        assert list(map(int, new.score)) == score, where
        assert (result.reward["left"][0], result.reward["right"][0]) == (point, -point), where
        assert result.metrics["hits"] == hits, where
        assert bool(result.terminated) == (max(score) == env.points), where
        assert bool(result.truncated) == (new.t == env.max_steps) == (old.t + 1 == env.max_steps), where
        counts += (hits, bounces, abs(point))
    assert (counts > 15).all(), counts


@pytest.mark.parametrize("options", [FAST, {"paddle_length": 2.0, "serve_speed": 1.0, "max_speed": 1.0}])
def test_what_can_never_happen(options):
    env = Pong(points=3, **options)
    before, _, after, outcome = play(env, games=100, steps=300, key=jax.random.key(9))
    hits, reward = outcome.metrics["hits"] > 0, outcome.reward["left"][..., 0]
    # The ball is inside the court whenever it is seen.
    assert (np.abs(after.ball.y) <= np.float32(CEILING)).all()
    assert (np.abs(after.ball.x) < 1).all()
    assert (np.abs(np.stack(after.paddle)) <= 1 - env.paddle_length / 2 + 1e-6).all()
    # Speeds keep their limits, and a ball goes on in its direction unless it is hit or served.
    assert (np.abs(after.ball.vx) <= np.float32(env.max_speed)).all()
    assert (np.abs(after.ball.vy) <= np.float32(0.12)).all()
    turned = np.sign(before.ball.vx) != np.sign(after.ball.vx)
    np.testing.assert_array_equal(turned[reward == 0], hits[reward == 0])
    # Nobody pays for what another does not gain, and a hit is no point.
    np.testing.assert_array_equal(outcome.reward["left"], -outcome.reward["right"])
    assert not (hits & (reward != 0)).any()
    # No tunnelling: a ball that comes to be behind a paddle was out of its reach while it passed.
    passed = (reward == 0) & (np.abs(after.ball.x) >= FACE) & (np.abs(before.ball.x) < FACE)
    paddle = np.where(after.ball.x > 0, after.paddle[1], after.paddle[0])
    furthest = np.maximum(np.abs(after.ball.y - paddle), np.abs(before.ball.y - paddle))
    assert (furthest[passed] > env.paddle_length / 2 + RADIUS).all()
    if env.paddle_length == 2.0:
        assert not reward.any()  # a paddle as high as the court misses nothing, at any speed
        assert hits.mean() > 0.4
    else:
        assert passed.sum() > 20
        assert {-1, 0, 1} == set(np.unique(reward))


def test_paddles_move_and_stop_at_the_edge():
    env = Pong()
    state, _ = step(env, make_state(left=0.1, right=0.1), UP, DOWN)
    np.testing.assert_allclose(state.paddle, [0.15, 0.05], atol=1e-6)
    state, _ = step(env, make_state(left=0.78, right=-0.78), UP, DOWN)
    np.testing.assert_allclose(state.paddle, [0.8, -0.8], atol=1e-6)
    state, _ = step(env, make_state(left=0.1, right=0.1), 77, STAY)
    np.testing.assert_allclose(state.paddle, [0.1, 0.1], atol=1e-7)


def test_a_hit_by_hand():
    # The ball reaches x = 0.9 after half the step, 0.115 above the paddle's middle, whose reach is 0.23.
    state, outcome = step(Pong(), make_state(x=0.85, y=0.105, vx=0.1, vy=0.02))
    vy = 0.02 + 0.06 * 0.5
    np.testing.assert_allclose(state.ball, [0.9 - 0.5 * 0.11, 0.115 + 0.5 * vy, -0.11, vy], atol=1e-6)
    assert float(outcome.metrics["hits"]) == 1.0
    # It is no faster than the limits, and a hit with the end of the paddle gives it all the spin.
    state, _ = step(Pong(), make_state(x=-0.85, y=-0.18, vx=-0.13, vy=-0.08))
    assert float(state.ball.vx) == pytest.approx(0.14)
    assert float(state.ball.vy) == pytest.approx(-0.12)


def test_the_end_of_a_paddle():
    for y, hit in ((0.2299, True), (0.2301, False), (-0.2299, True), (-0.2301, False)):
        _, outcome = step(Pong(), make_state(x=0.85, y=y, vx=0.1))
        assert bool(outcome.metrics["hits"]) == hit
    # The paddle moves before the ball does.
    _, outcome = step(Pong(), make_state(x=0.85, y=0.28, vx=0.1), right=UP)
    assert bool(outcome.metrics["hits"])


def test_a_miss_flies_on_and_is_a_point():
    env = Pong(points=2)
    state, outcome = step(env, make_state(x=0.85, y=0.5, vx=0.1))
    assert float(state.ball.x) == pytest.approx(0.95)
    assert not bool(outcome.metrics["hits"])
    moved = state._replace(paddle=(state.paddle[0], jnp.float32(0.5)))  # too late
    state, outcome = step(env, moved)
    assert (float(outcome.reward["left"][0]), float(outcome.reward["right"][0])) == (1.0, -1.0)
    assert tuple(map(int, state.score)) == (1, 0)
    assert not bool(outcome.terminated)
    assert float(state.paddle[1]) == 0.5
    state, outcome = step(env, make_state(x=-0.95, vx=-0.1, score=(1, 1)))
    assert (float(outcome.reward["left"][0]), float(outcome.reward["right"][0])) == (-1.0, 1.0)
    assert bool(outcome.terminated)


def test_the_ceiling_reflects():
    state, _ = step(Pong(), make_state(y=0.95, vy=0.08))
    np.testing.assert_allclose([state.ball.y, state.ball.vy], [0.97 - 0.06, -0.08], atol=1e-6)
    state, _ = step(Pong(), make_state(y=-0.95, vy=-0.08))
    np.testing.assert_allclose([state.ball.y, state.ball.vy], [-0.97 + 0.06, 0.08], atol=1e-6)


def test_serves_are_fair():
    env = Pong()
    balls = jax.vmap(lambda key: env.reset(key, env.default_params()).ball)(jax.random.split(KEY, 4000))
    assert set(np.unique(balls.vx)) == {np.float32(-0.05), np.float32(0.05)}
    assert abs(np.mean(balls.vx > 0) - 0.5) < 0.03
    for side in (balls.vx > 0, balls.vx < 0):
        vy = np.asarray(balls.vy)[np.asarray(side)]
        assert np.abs(vy).max() <= 0.04
        np.testing.assert_allclose(
            np.quantile(vy, [0.02, 0.25, 0.5, 0.75, 0.98]), [-0.0384, -0.02, 0, 0.02, 0.0384], atol=3e-3
        )


def mirrored(state):
    """The same game seen in a mirror, players swapped."""
    ball = state.ball._replace(x=-state.ball.x, vx=-state.ball.vx)
    return State(ball, (-state.before[0], state.before[1]), state.paddle[::-1], state.score[::-1], state.t)


@pytest.mark.parametrize("view", ["vector", "image"])
def test_both_players_see_themselves_on_the_left(view):
    env = Pong(view=view)
    state = make_state(0.3, -0.4, 0.07, 0.02, left=0.5, right=-0.1, score=(1, 3))
    state = state._replace(before=(jnp.float32(0.23), jnp.float32(-0.42)))
    seen, swapped = (env.observe(s, env.default_params()) for s in (state, mirrored(state)))
    np.testing.assert_array_equal(seen["right"].view, swapped["left"].view)
    np.testing.assert_array_equal(seen["left"].view, swapped["right"].view)
    assert (np.asarray(seen["left"].view) != np.asarray(seen["right"].view)).any()


def test_vector_view_by_hand():
    env = Pong(points=4)
    state = make_state(0.3, -0.4, 0.07, 0.02, left=0.5, right=-0.1, score=(1, 3))
    seen = env.observe(state, env.default_params())
    np.testing.assert_allclose(seen["left"].view, [[0.3, -0.4, 0.7, 0.2, 0.5, -0.1, 0.25, 0.75]], atol=1e-6)
    np.testing.assert_allclose(seen["right"].view, [[-0.3, -0.4, -0.7, 0.2, -0.1, 0.5, 0.75, 0.25]], atol=1e-6)
    np.testing.assert_array_equal(env.global_state(state, env.default_params()), seen["left"].view[0])


def plain_image(ball, before, own, other, length):
    """The picture again, pixel by pixel."""
    picture = np.zeros((12, 12, 3))
    step = 2 * CEILING / 11  # height of a row
    for row, column in np.ndindex(12, 12):
        y, x = CEILING - row * step, -1 + column * 2 / 11
        for plane, (bx, by) in enumerate((ball, before)):
            near = max(1 - abs(x - bx) * 5.5, 0) * max(1 - abs(y - by) / step, 0)
            picture[row, column, plane] = near
        if column in (0, 11):
            middle = own if column == 0 else other
            picture[row, column, 2] = min(max((length / 2 - abs(y - middle)) / step + 0.5, 0), 1)
    return 255 * picture


def test_image_view_by_hand():
    env = Pong(view="image")
    seen = env.observe(make_state(-1 + 6 / 11, CEILING - 4 * 2 * CEILING / 11), env.default_params())["left"].view[0]
    assert seen.shape == (12, 12, 3)
    assert seen.dtype == jnp.uint8
    assert int(seen[4, 3, 0]) == 255  # exactly on a pixel
    assert int(seen[..., 0].sum()) == 255
    np.testing.assert_array_equal(seen[..., 0], seen[..., 1])
    assert (np.asarray(seen[:, 1:11, 2]) == 0).all()
    paddle = np.asarray(seen[:, 0, 2], float)
    np.testing.assert_allclose(paddle.sum() / 255, 0.4 / (2 * CEILING / 11), atol=0.01)
    np.testing.assert_array_equal(paddle, paddle[::-1])  # in the middle


def test_image_view_agrees_with_a_plain_twin():
    env = Pong(view="image")
    params = env.default_params()
    states = jax.tree.map(lambda leaf: leaf[::10], play(Pong(), games=4, steps=120)[2])
    seen = jax.jit(jax.vmap(jax.vmap(lambda state: env.observe(state, params))))(states)
    for t, i in np.ndindex(12, 4):
        state = jax.tree.map(lambda leaf: leaf[t, i], states)  # noqa: B023
        expected = plain_image(state.ball[:2], state.before, *state.paddle, env.paddle_length)
        np.testing.assert_allclose(seen["left"].view[t, i, 0], expected, atol=0.51)


def test_one_policy_can_play_both_sides():
    for env in (Pong(), Pong(view="image")):
        left, right = describe(env).groups.values()
        assert (left.observation, left.action) == (right.observation, right.action)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"points": 0}, "pong: points must be a whole number, at least 1, got 0"),
        ({"max_steps": 1.5}, "pong: max_steps must be a whole number, at least 1, got 1.5"),
        ({"view": "pixels"}, "pong: view must be 'vector' or 'image', got 'pixels'"),
        ({"paddle_length": 0.0}, "pong: paddle_length must be greater than 0, got 0.0"),
        ({"paddle_length": 2.5}, "pong: paddle_length must be at most 2, the court's height, got 2.5"),
        ({"paddle_speed": -0.1}, "pong: paddle_speed must be at least 0, got -0.1"),
        ({"serve_speed": float("nan")}, "pong: serve_speed must be a finite number, got nan"),
        ({"serve_speed": 0.2}, r"pong: max_speed must be between serve_speed \(0.2\) and 1.0, got 0.14"),
        ({"max_speed": 1.5}, r"pong: max_speed must be between serve_speed \(0.05\) and 1.0, got 1.5"),
    ],
)
def test_bad_options(options, said):
    with pytest.raises(OptionError, match=said):
        Pong(**options)


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_well")
@pytest.mark.parametrize(("name", "env_steps", "least"), [("pong", 1_500_000, 3), ("pong/image", 400_000, 1.5)])
def test_self_play_beats_chance(name, env_steps, least):
    """One policy, trained against itself, plays each side against random play; 5 is to win every point."""
    experiment = dataclasses.replace(presets.get(name), total_env_steps=env_steps)
    policy = shoal.train(experiment).policies["shared"]
    algorithm = experiment.learners["shared"].algorithm
    sides = {side: shoal.Learner(algorithm, {side: (side,)}) for side in ("left", "right")}
    apart = dataclasses.replace(experiment, learners=sides).setup
    for side in sides:
        assert shoal.evaluate(apart, {side: policy}, episodes=256).mean_return[side] > least


def test_scene():
    env = Pong(points=3)
    scene = env.scene(make_state(0.3, -0.4, left=0.5, score=(1, 3)), env.default_params())
    np.testing.assert_allclose(scene.circles.position, [[0.3, -0.4]])
    assert [text for text, shown in zip(scene.labels.text, scene.labels.visible, strict=True) if shown] == ["1", "3"]
    heights = np.asarray(scene.polygons.points[..., 1])
    np.testing.assert_allclose([heights.min(1), heights.max(1)], [[0.3, -0.2], [0.7, 0.2]], atol=1e-6)
