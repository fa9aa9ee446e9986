"""`tag/grid`: its rules, worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.core.env import describe
from shoal.core.errors import OptionError
from shoal.envs.tag.grid import Cells, State, TagGrid

KEY = jax.random.key(0)
STAY, RIGHT, LEFT, UP, DOWN = range(5)


def make_state(taggers, runner, t=0):
    x, y = jnp.array(taggers, jnp.int32).T
    return State(Cells(x, y), Cells(jnp.array(runner[:1]), jnp.array(runner[1:])), jnp.int32(t))


def cells(state):
    """Positions as lists: taggers, runner."""
    return np.stack(state.tagger, -1).tolist(), np.stack(state.runner, -1)[0].tolist()


def step(env, state, taggers, runner):
    actions = {"tagger": jnp.array(taggers), "runner": jnp.array([runner])}
    return jax.jit(env.step)(KEY, state, actions, env.default_params())


def test_start():
    env = TagGrid()
    state = env.reset(KEY, env.default_params())
    assert cells(state) == ([[50, 50]] * 4, [0, 0])
    assert int(state.t) == 0


def test_groups_share_one_view_shape():
    for env, size in ((TagGrid(), 21), (TagGrid(full_view=False), 6), (TagGrid(num_taggers=9), 41)):
        groups = describe(env).groups
        assert groups["tagger"].observation.shape == groups["runner"].observation.shape == (size,)
        assert groups["tagger"].action == groups["runner"].action


def test_moves():
    env = TagGrid(num_taggers=6, grid_length=10)
    state = make_state([[5, 5]] * 6, [2, 2])
    state, outcome = step(env, state, [STAY, RIGHT, LEFT, UP, DOWN, 77], RIGHT)
    assert cells(state) == ([[5, 5], [6, 5], [4, 5], [5, 6], [5, 4], [5, 5]], [3, 2])
    np.testing.assert_allclose(outcome.reward["tagger"], [-0.01] * 6, atol=1e-7)
    np.testing.assert_allclose(outcome.reward["runner"], [0.01], atol=1e-7)
    assert int(state.t) == 1
    assert not bool(outcome.terminated)
    assert not bool(outcome.truncated)


def test_walls_clip_and_cost():
    env = TagGrid(grid_length=10)
    state = make_state([[10, 10], [10, 10], [0, 10], [10, 5]], [0, 0])
    state, outcome = step(env, state, [RIGHT, UP, LEFT, STAY], DOWN)
    assert cells(state) == ([[10, 10], [10, 10], [0, 10], [10, 5]], [0, 0])
    np.testing.assert_allclose(outcome.reward["tagger"], [-0.11, -0.11, -0.11, -0.01], atol=1e-6)
    np.testing.assert_allclose(outcome.reward["runner"], [0.01 - 0.1], atol=1e-6)


def test_catch_pays_every_tagger_and_ends():
    env = TagGrid(num_taggers=3, grid_length=10)
    state = make_state([[1, 0], [9, 9], [10, 0]], [0, 0])
    state, outcome = step(env, state, [LEFT, STAY, DOWN], DOWN)  # the last tagger and the runner bump into a wall
    np.testing.assert_allclose(outcome.reward["tagger"], [10.0, 10.0, 9.9], atol=1e-6)
    np.testing.assert_allclose(outcome.reward["runner"], [-5.1], atol=1e-6)
    assert bool(outcome.terminated)
    assert not bool(outcome.truncated)
    assert float(outcome.metrics["caught"]) == 1.0


def test_same_column_or_swapped_cells_are_no_catch():
    env = TagGrid(num_taggers=2, grid_length=10)
    state, outcome = step(env, make_state([[1, 0], [4, 7]], [0, 0]), [LEFT, STAY], RIGHT)
    assert cells(state) == ([[0, 0], [4, 7]], [1, 0])
    assert not bool(outcome.terminated)
    _, outcome = step(env, make_state([[3, 7], [4, 2]], [3, 2]), [STAY, STAY], STAY)
    assert not bool(outcome.terminated)


def test_ends_at_the_time_limit():
    env = TagGrid(max_steps=3)
    state = env.reset(KEY, env.default_params())
    over = []
    for _ in range(3):
        state, outcome = step(env, state, [STAY] * 4, STAY)
        over.append((bool(outcome.terminated), bool(outcome.truncated)))
    assert over == [(False, False), (False, False), (True, False)]


def test_full_view_by_hand():
    env = TagGrid(num_taggers=2, grid_length=10, max_steps=50)
    view = env.observe(make_state([[1, 2], [3, 4]], [5, 6], t=25), env.default_params())
    everybody = [0.1, 0.3, 0.5, 0.2, 0.4, 0.6, 0, 0, 1]
    np.testing.assert_allclose(view["tagger"].view[0], [*everybody, 1, 0, 0, 0.5], atol=1e-6)
    np.testing.assert_allclose(view["tagger"].view[1], [*everybody, 0, 1, 0, 0.5], atol=1e-6)
    np.testing.assert_allclose(view["runner"].view, [[*everybody, 0, 0, 1, 0.5]], atol=1e-6)


def test_partial_view_by_hand():
    env = TagGrid(num_taggers=3, grid_length=10, max_steps=50, full_view=False)
    # Taggers 1 and 2 are equally far from the runner (distance 2): it sees the first of them.
    view = env.observe(make_state([[9, 9], [3, 6], [5, 4]], [5, 6], t=5), env.default_params())
    expected = [[0.9, 0.9, 0.5, 0.6, 0, 0.1], [0.3, 0.6, 0.5, 0.6, 0, 0.1], [0.5, 0.4, 0.5, 0.6, 0, 0.1]]
    np.testing.assert_allclose(view["tagger"].view, expected, atol=1e-6)
    np.testing.assert_allclose(view["runner"].view, [[0.5, 0.6, 0.3, 0.6, 1, 0.1]], atol=1e-6)


def test_nearest_is_by_squared_distance():
    env = TagGrid(num_taggers=2, grid_length=100, full_view=False)
    # (3, 3) is nearer than (0, 5) though its coordinates add up to more.
    view = env.observe(make_state([[0, 5], [3, 3]], [0, 0]), env.default_params())["runner"].view
    np.testing.assert_allclose(view[0, 2:4], [0.03, 0.03], atol=1e-6)


def test_global_state():
    env = TagGrid(num_taggers=2, grid_length=10, max_steps=50)
    state = env.global_state(make_state([[1, 2], [3, 4]], [5, 6], t=25), env.default_params())
    np.testing.assert_allclose(state, [0.1, 0.3, 0.5, 0.2, 0.4, 0.6, 0.5], atol=1e-6)


def test_options_reach_the_rewards():
    env = TagGrid(num_taggers=1, grid_length=4, wall_penalty=2.0, tag_reward=3.0, tag_penalty=4.0, step_cost=0.5)
    _, outcome = step(env, make_state([[4, 4]], [0, 0]), [RIGHT], STAY)
    assert (float(outcome.reward["tagger"][0]), float(outcome.reward["runner"][0])) == (-2.5, 0.5)
    _, outcome = step(env, make_state([[0, 1]], [0, 0]), [DOWN], STAY)
    assert (float(outcome.reward["tagger"][0]), float(outcome.reward["runner"][0])) == (3.0, -4.0)


def test_params_are_traced():
    env = TagGrid(num_taggers=1, grid_length=4)
    params = jax.tree.map(lambda leaf: jnp.full(2, leaf), env.default_params())._replace(
        tag_reward=jnp.array([1.0, 2.0])
    )
    actions = {"tagger": jnp.array([DOWN]), "runner": jnp.array([STAY])}
    _, outcome = jax.vmap(lambda p: env.step(KEY, make_state([[0, 1]], [0, 0]), actions, p))(params)
    np.testing.assert_allclose(outcome.reward["tagger"], [[1.0], [2.0]])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_taggers": 0}, "tag/grid: num_taggers must be a whole number, at least 1, got 0"),
        (
            {"num_taggers": 10, "grid_length": 2},
            "num_taggers must be at most the number of cells, 9 with grid_length=2",
        ),
        ({"grid_length": 1}, "grid_length must be a whole number, at least 2, got 1"),
        ({"grid_length": 40_000}, "grid_length must be at most 32767, got 40000"),
        ({"grid_length": 10.0}, "grid_length must be a whole number"),
        ({"max_steps": -5}, "max_steps must be a whole number, at least 1, got -5"),
        ({"full_view": "no"}, "full_view must be True or False, got 'no'"),
        ({"tag_reward": float("inf")}, "tag_reward must be a finite number, got inf"),
        ({"step_cost": "1"}, "step_cost must be a finite number, got '1'"),
    ],
)
def test_bad_options(options, said):
    with pytest.raises(OptionError, match=said):
        TagGrid(**options)


def test_as_many_taggers_as_cells_are_allowed():
    assert TagGrid(num_taggers=9, grid_length=2).groups["tagger"].size == 9


def test_scene():
    env = TagGrid(num_taggers=2, grid_length=10)
    scene = env.scene(make_state([[1, 2], [3, 4]], [5, 6]), env.default_params())
    assert scene.circles.names == ("tagger_0", "tagger_1", "runner_0")
    np.testing.assert_allclose(scene.circles.position, [[1, 2], [3, 4], [5, 6]])
    np.testing.assert_array_equal(scene.circles.colour, [4, 4, 1])
    left, bottom, right, top = scene.bounds
    assert left == bottom < 0
    assert right == top > 10
