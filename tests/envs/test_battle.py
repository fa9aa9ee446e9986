"""`battle/open`: its rules by hand, against a twin in plain Python, and what must hold whatever is played."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.core.env import describe
from shoal.core.errors import OptionError
from shoal.envs.battle._field import ATTACKS, MOVES, formation, room
from shoal.envs.battle.open import OpenBattle, State

KEY = jax.random.key(0)
MOVE = {way: i for i, way in enumerate(MOVES)}
ATTACK = {way: len(MOVES) + i for i, way in enumerate(ATTACKS)}
STAY, LEFT, RIGHT, UP = MOVE[0, 0], MOVE[-1, 0], MOVE[1, 0], MOVE[0, 1]


def make_state(red, blue, points=None, t=0):
    """Everybody's cells, and points if they are not full."""
    x, y = jnp.array([*red, *blue], jnp.int16).T
    points = jnp.full(len(x), 10.0) if points is None else jnp.array(points, jnp.float32)
    return State(x, y, points, jnp.zeros(len(x), jnp.int8), jnp.int32(t))


def step(env, state, actions, key=KEY):
    half = len(actions) // 2
    split = {"red": jnp.array(actions[:half], jnp.int32), "blue": jnp.array(actions[half:], jnp.int32)}
    state, outcome = jax.jit(env.step)(key, state, split, env.default_params())
    return state, outcome, np.concatenate([outcome.reward["red"], outcome.reward["blue"]])


def cells(state):
    return np.stack([state.x, state.y], -1).tolist()


def test_the_ways():
    assert len(MOVES) == 13
    assert MOVES[0] == (0, 0)
    assert set(MOVES[1:5]) == {(-1, 0), (0, -1), (0, 1), (1, 0)}
    assert {abs(dx) + abs(dy) for dx, dy in MOVES[9:]} == {2}
    assert sorted(ATTACKS) == sorted((dx, dy) for dx in (-1, 0, 1) for dy in (-1, 0, 1) if (dx, dy) != (0, 0))


def test_attacks_fall_at_once():
    env = OpenBattle(num_agents=2, map_size=6, view_radius=1)
    state = make_state([(1, 1), (1, 2)], [(2, 1), (5, 5)], points=[2, 10, 3, 10])
    actions = [ATTACK[1, 0], ATTACK[1, -1], ATTACK[-1, 0], ATTACK[1, 1]]
    state, outcome, reward = step(env, state, actions)
    # The first of each side strike each other dead; the last attacks a wall.
    np.testing.assert_allclose(state.points, [0, 10, 0, 10])
    hit, kill, death, cost = 0.2 - 0.1 - 0.005, 5.0, 0.1, 0.105
    np.testing.assert_allclose(reward, [hit + kill / 2 - death, hit + kill / 2, hit + kill - death, -cost], atol=1e-6)
    assert not bool(outcome.terminated)
    assert float(outcome.metrics["kills"]) == 2
    assert float(outcome.metrics["red_alive"]) == 0.5


def test_friends_are_not_struck_and_points_come_back():
    env = OpenBattle(num_agents=2, map_size=6, view_radius=1)
    state = make_state([(1, 1), (1, 2)], [(4, 1), (5, 5)], points=[4, 9.95, 3, 10])
    state, _, reward = step(env, state, [ATTACK[0, 1], STAY, STAY, STAY])
    np.testing.assert_allclose(state.points, [4.1, 10, 3.1, 10], atol=1e-6)
    np.testing.assert_allclose(reward, [-0.105, -0.005, -0.005, -0.005], atol=1e-6)


def test_moves_onto_free_cells_only():
    env = OpenBattle(num_agents=2, map_size=4, view_radius=1)
    state = make_state([(0, 0), (1, 0)], [(2, 0), (3, 3)])
    # The first follows the second, who jumps over blue onto (3, 0); blue leaves upwards; the last runs into the wall.
    state, *_ = step(env, state, [RIGHT, MOVE[2, 0], UP, UP])
    assert cells(state) == [[0, 0], [3, 0], [2, 1], [3, 3]]
    state, *_ = step(env, make_state([(0, 0), (1, 0)], [(2, 2), (3, 3)]), [RIGHT, LEFT, STAY, STAY])
    assert cells(state)[:2] == [[0, 0], [1, 0]]  # nobody swaps places


def test_the_cell_of_somebody_struck_dead_is_free():
    env = OpenBattle(num_agents=2, map_size=6, view_radius=1)
    state = make_state([(1, 1), (1, 2)], [(2, 1), (5, 5)], points=[10, 10, 1, 10])
    state, *_ = step(env, state, [ATTACK[1, 0], MOVE[1, -1], STAY, STAY])
    assert cells(state)[1] == [2, 1]


def test_one_of_several_gets_the_cell_and_each_as_often():
    env = OpenBattle(num_agents=2, map_size=6, view_radius=1)
    start = make_state([(1, 2), (3, 2)], [(2, 1), (2, 3)])
    actions = {"red": jnp.array([RIGHT, LEFT]), "blue": jnp.array([UP, MOVE[0, -1]])}
    keys = jax.random.split(KEY, 2000)
    ends, _ = jax.jit(jax.vmap(lambda key: env.step(key, start, actions, env.default_params())))(keys)
    there = np.asarray((ends.x == 2) & (ends.y == 2))
    assert (there.sum(axis=1) == 1).all()
    np.testing.assert_allclose(there.mean(axis=0), 0.25, atol=0.04)  # 4 standard deviations


def twin(env, state, action, number):
    """One step in plain Python: points, cells and rewards. `number` decides who gets a cell."""
    n = env.num_agents
    points, places = [float(p) for p in state.points], [tuple(cell) for cell in cells(state)]
    alive = [p > 0 for p in points]
    reward = [-env.step_cost if a else 0.0 for a in alive]
    hitters = {i: [] for i in range(2 * n)}
    for i in range(2 * n):
        if not alive[i] or action[i] < len(MOVES):
            continue
        reward[i] -= env.attack_cost
        dx, dy = ATTACKS[action[i] - len(MOVES)]
        aim = places[i][0] + dx, places[i][1] + dy
        for j in range(2 * n):
            if alive[j] and places[j] == aim and (j < n) != (i < n):
                hitters[j].append(i)
                reward[i] += env.hit_reward
    for j in range(2 * n):
        points[j] -= env.damage * len(hitters[j])
        if alive[j] and points[j] < 1e-3:
            reward[j] -= env.death_cost
            for i in hitters[j]:
                reward[i] += env.kill_reward / len(hitters[j])
        points[j] = min(points[j] + env.recovery, env.health) if points[j] >= 1e-3 else 0.0
    taken = {places[i] for i in range(2 * n) if points[i] > 0}
    for i in sorted(range(2 * n), key=lambda i: -number[i]):  # one after the other, the highest number first
        if points[i] > 0 and 0 < action[i] < len(MOVES):
            aim = tuple(np.add(places[i], MOVES[action[i]]))
            if aim not in taken and min(aim) >= 0 and max(aim) < env.map_size:
                taken.add(aim)  # the old cell stays taken: nobody follows in this step
                places[i] = aim
    return points, places, reward


def numbers(env, key):
    """What the world draws for everybody: random bits, made different by the agents' own numbers."""
    n = 2 * env.num_agents
    shift = n.bit_length()
    return [(int(bits) >> shift << shift) + i + 1 for i, bits in enumerate(np.asarray(jax.random.bits(key, (n,))))]


@pytest.mark.parametrize("seed", range(2))
def test_like_the_twin_in_plain_python(seed):
    env = OpenBattle(num_agents=10, map_size=7, view_radius=1, damage=6.0, max_steps=1000)
    params = env.default_params()
    advance = jax.jit(env.step)
    key = jax.random.key(seed)
    rng = np.random.default_rng(seed)
    state, deaths, kills = env.reset(key, params), 0, 0.0
    for t in range(40):
        step_key = jax.random.fold_in(key, t)
        action = rng.integers(0, 21, 20)
        points, places, reward = twin(env, state, action, numbers(env, step_key))
        before = np.asarray(state.points) > 0
        split = {"red": jnp.array(action[:10]), "blue": jnp.array(action[10:])}
        state, outcome = advance(step_key, state, split, params)
        got = np.concatenate([outcome.reward["red"], outcome.reward["blue"]])
        np.testing.assert_allclose(state.points, points, atol=1e-4)
        np.testing.assert_allclose(got, reward, atol=1e-5)
        alive = np.asarray(state.points) > 0
        here = [cell for cell, lives in zip(cells(state), alive, strict=True) if lives]
        assert here == [list(cell) for cell, lives in zip(places, alive, strict=True) if lives]
        assert len({tuple(cell) for cell in here}) == len(here)  # one agent a cell
        assert not (alive & ~before).any()
        kills += float(outcome.metrics["kills"])
        deaths += int((before & ~alive).sum())
        if outcome.terminated:
            break
    assert deaths == kills == 20 - alive.sum()
    assert deaths > 3


def test_both_sides_have_the_same_game():
    """With the sides' parts exchanged, and left and right, everything is exchanged."""
    env = OpenBattle(num_agents=4, map_size=6, view_radius=2)
    params = env.default_params()
    start = make_state(
        [(1, 1), (2, 4), (2, 2), (0, 0)], [(3, 1), (3, 4), (5, 2), (3, 3)], points=[1, 2, 3, 4, 5, 6, 7, 8]
    )
    other = jax.tree.map(lambda leaf: jnp.roll(leaf, 4) if leaf.ndim else leaf, start)
    other = other._replace(x=(5 - other.x).astype(jnp.int16))
    ways = MOVES + ATTACKS
    mirrored = [ways.index((-dx, dy)) if i < 13 else 13 + ATTACKS.index((-dx, dy)) for i, (dx, dy) in enumerate(ways)]
    action = [ATTACK[1, 0], ATTACK[1, 0], STAY, UP, ATTACK[-1, 0], RIGHT, UP, ATTACK[-1, -1]]
    after, _, reward = step(env, start, action)
    after_other, _, reward_other = step(env, other, [mirrored[a] for a in action[4:] + action[:4]])
    np.testing.assert_allclose(np.roll(reward, 4), reward_other)
    np.testing.assert_allclose(jnp.roll(after.points, 4), after_other.points)
    look = jax.jit(env.observe)
    seen, seen_other = look(after, params), look(after_other, params)
    np.testing.assert_array_equal(seen["red"].view["map"][:, ::-1], seen_other["blue"].view["map"])
    flipped = np.array([1, -1, 1, 1, 1, -1, 1]) * seen["blue"].view["self"] + np.array([0, 1, 0, 0, 0, 0, 0])
    np.testing.assert_allclose(flipped, seen_other["red"].view["self"], atol=1e-6)


def test_view_by_hand():
    env = OpenBattle(num_agents=2, map_size=6, view_radius=1)
    state = make_state([(0, 0), (5, 4)], [(1, 1), (3, 3)], points=[10, 5, 2, 0])
    view = jax.jit(env.observe)(state, env.default_params())
    around = np.asarray(view["red"].view["map"][0])
    np.testing.assert_array_equal(around[..., 0], [[255, 255, 255], [255, 0, 0], [255, 0, 0]])
    np.testing.assert_array_equal(around[1, 1], [0, 255, 255, 0, 0])
    np.testing.assert_array_equal(around[2, 2], [0, 0, 0, 255, 51])
    assert around[..., 1:].sum() == 255 + 255 + 255 + 51
    np.testing.assert_array_equal(view["blue"].view["map"][0, 0, 0], [0, 0, 0, 255, 255])
    numbers = np.asarray(view["red"].view["self"][1])
    np.testing.assert_allclose(numbers, [0.5, 1.0, 0.8, 1.0, 0.5, 0.2 - 1.0, 0.2 - 0.8], atol=1e-6)
    np.testing.assert_array_equal(view["blue"].active, [True, False])
    np.testing.assert_array_equal(view["blue"].present, [True, False])


def test_global_state():
    env = OpenBattle(num_agents=2, map_size=6, view_radius=1)
    state = make_state([(0, 0), (5, 4)], [(1, 1), (3, 3)], points=[10, 5, 2, 0])
    image = np.asarray(env.global_state(state, env.default_params()))
    assert image.shape == (6, 6, 4)
    np.testing.assert_array_equal(image[0, 0], [255, 255, 0, 0])
    np.testing.assert_array_equal(image[5, 4], [255, 128, 0, 0])
    np.testing.assert_array_equal(image[1, 1], [0, 0, 255, 51])
    assert not image[3, 3].any()


def test_ends():
    env = OpenBattle(num_agents=1, map_size=4, view_radius=1, max_steps=3)
    state, outcome, _ = step(env, make_state([(1, 1)], [(2, 1)], points=[10, 2]), [ATTACK[1, 0], STAY])
    assert (bool(outcome.terminated), bool(outcome.truncated)) == (True, False)
    state, outcome, _ = step(env, make_state([(1, 1)], [(2, 1)], t=1), [STAY, STAY])
    assert (bool(outcome.terminated), bool(outcome.truncated)) == (False, False)
    _, outcome, _ = step(env, state, [STAY, STAY])
    assert (bool(outcome.terminated), bool(outcome.truncated)) == (False, True)


@pytest.mark.parametrize(("count", "size"), [(1, 4), (4, 4), (16, 18), (64, 40), (24, 8), (500, 100)])
def test_sides_start_as_mirror_images(count, size):
    x, y = formation(count, size)
    assert len(set(zip(x.tolist(), y.tolist(), strict=True))) == count
    assert (min(x.min(), y.min()) >= 0) & (x.max() < size // 2) & (y.max() < size)
    env = OpenBattle(num_agents=count, map_size=size, view_radius=1)
    left, reset = set(), jax.jit(env.reset)
    for seed in range(6):
        state = reset(jax.random.key(seed), env.default_params())
        np.testing.assert_array_equal(state.x[:count] + state.x[count:], size - 1)
        np.testing.assert_array_equal(state.y[:count], state.y[count:])
        left.add(bool(state.x[0] < size // 2))
    assert left == {True, False}


def test_a_thousand_a_side():
    env = OpenBattle(num_agents=1000, map_size=90)
    groups = describe(env).groups
    assert (groups["red"].size, groups["blue"].size) == (1000, 1000)
    assert groups["red"].observation["map"].shape == (13, 13, 5)
    state = jax.jit(env.reset)(KEY, env.default_params())
    state, *_ = step(env, state, [RIGHT] * 2000)
    assert len({tuple(cell) for cell in cells(state)}) == 2000


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_agents": 0}, "battle/open: num_agents must be a whole number, at least 1, got 0"),
        ({"num_agents": 25, "map_size": 8}, "num_agents must be at most 24, for whom there is room with map_size=8"),
        ({"map_size": 3}, "map_size must be a whole number, at least 4, got 3"),
        ({"map_size": 1001}, "map_size must be at most 1000, got 1001"),
        ({"view_radius": 0}, "view_radius must be a whole number, at least 1, got 0"),
        ({"view_radius": 41}, r"view_radius must be at most map_size \(40\), got 41"),
        ({"max_steps": 0.5}, "max_steps must be a whole number"),
        ({"health": 0.0}, "health must be greater than 0, got 0"),
        ({"damage": -1.0}, "damage must be at least 0, got -1"),
        ({"recovery": -1.0}, "recovery must be at least 0, got -1"),
        ({"step_cost": float("nan")}, "step_cost must be a finite number, got nan"),
        ({"attack_cost": "1"}, "attack_cost must be a finite number, got '1'"),
        ({"hit_reward": float("inf")}, "hit_reward must be a finite number, got inf"),
        ({"kill_reward": None}, "kill_reward must be a finite number, got None"),
        ({"death_cost": True}, "death_cost must be a finite number, got True"),
    ],
)
def test_bad_options(options, said):
    with pytest.raises(OptionError, match=said):
        OpenBattle(**options)


def test_room_is_used_up():
    columns, rows = room(8, spacing=1)
    assert OpenBattle(num_agents=columns * rows, map_size=8).groups["red"].size == 24


def test_scene():
    env = OpenBattle(num_agents=2, map_size=6, view_radius=1)
    state = make_state([(0, 0), (5, 4)], [(1, 1), (3, 3)], points=[10, 5, 2, 0])
    state = state._replace(action=jnp.array([ATTACK[1, 1], STAY, UP, ATTACK[1, 0]], jnp.int8))
    scene = env.scene(state, env.default_params())
    assert scene.circles.names == ("red_0", "red_1", "blue_0", "blue_1")
    np.testing.assert_array_equal(scene.circles.colour, [4, 4, 1, 1])
    np.testing.assert_array_equal(scene.circles.visible, [True, True, True, False])
    np.testing.assert_array_equal(scene.lines.visible[4:], [True, False, False, False])
    np.testing.assert_allclose(scene.lines.end[4] - scene.lines.start[4], [1, 1])
