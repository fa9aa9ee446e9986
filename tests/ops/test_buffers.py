"""The replay: its ring by hand, how often what is drawn, and equality with a plain numpy twin."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.ops import replay as buffers

NUMBER = jax.ShapeDtypeStruct((), jnp.int32)
add = jax.jit(buffers.add, static_argnums=2)
sample = jax.jit(buffers.sample, static_argnums=(2, 3))
take = jax.jit(buffers.take, static_argnums=2)
reprioritise = jax.jit(buffers.reprioritise)


def numbered(start, count, num_envs=2):
    """Rows `[count, num_envs]` that tell which they are: 10 times the step, plus the copy."""
    return jnp.int32(10 * np.arange(start, start + count)[:, None] + np.arange(num_envs))


def filled(length, count, adds, window=2, num_envs=2, prioritised=False):
    """A replay after some rounds of `count` numbered rows."""
    replay = buffers.init(NUMBER, length, num_envs, prioritised)
    for i in range(adds):
        replay = add(replay, numbered(i * count, count, num_envs), window)
    return replay


def with_priority(priority):
    """A full replay with the given priorities."""
    priority = jnp.asarray(priority, jnp.float32)
    return buffers.Replay(numbered(0, *priority.shape), jnp.int32(priority.shape[0]), priority)


def drawn_at(row, env, odds=None):
    row, env = jnp.array(row), jnp.array(env)
    return buffers.ReplaySample(row, env, jnp.ones(row.shape) if odds is None else jnp.array(odds))


def starts(replay, draws, window, seed=0):
    """How often each start was drawn, `[L, E]`."""
    drawn = sample(replay, jax.random.key(seed), draws, window)
    count = np.zeros((replay.length, replay.num_envs), int)
    np.add.at(count, (np.asarray(drawn.row), np.asarray(drawn.env)), 1)
    return count


@pytest.mark.parametrize(
    ("length", "count", "adds", "steps"),
    [
        (4, 2, 1, [0, 1, None, None]),
        (4, 2, 2, [0, 1, 2, 3]),
        (4, 2, 3, [4, 5, 2, 3]),  # whole blocks
        (5, 2, 2, [0, 1, 2, 3, None]),
        (5, 2, 3, [5, 1, 2, 3, 4]),  # a block in two pieces
        (5, 2, 4, [5, 6, 7, 3, 4]),
    ],
)
def test_a_ring_by_hand(length, count, adds, steps):
    replay = filled(length, count, adds)
    expected = [[0, 0] if step is None else [10 * step, 10 * step + 1] for step in steps]
    np.testing.assert_array_equal(replay.store, expected)
    assert int(replay.written) == count * adds
    assert (replay.length, replay.num_envs) == (length, 2)


def test_any_tree_of_arrays_is_kept_as_it_is():
    example = {"a": jax.ShapeDtypeStruct((3,), jnp.uint8), "b": (jax.ShapeDtypeStruct((), bool), None)}
    replay = buffers.init(example, 4, 2)
    rows = {"a": jnp.arange(12, dtype=jnp.uint8).reshape(2, 2, 3), "b": (jnp.array([[True, False]] * 2), None)}
    replay = add(replay, rows, 1)
    assert replay.store["a"].dtype == jnp.uint8
    assert replay.store["b"][0].dtype == bool
    window = take(replay, drawn_at([1, 0], [0, 1]), 1)
    np.testing.assert_array_equal(window["a"], [[[6, 7, 8], [3, 4, 5]]])
    np.testing.assert_array_equal(window["b"][0], [[True, False]])


def test_num_bytes_by_hand():
    example = {"a": jax.ShapeDtypeStruct((3, 5), jnp.uint8), "b": jax.ShapeDtypeStruct((2,), jnp.float32), "c": NUMBER}
    assert buffers.num_bytes(example, 7, 11) == (15 + 8 + 4) * 7 * 11
    store = buffers.init(example, 7, 11).store
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(store)) == buffers.num_bytes(example, 7, 11)


def test_take_by_hand():
    """Five slots hold the steps 5 6 7 3 4: the window from step 4 goes on at the beginning of the store."""
    replay = filled(5, 2, 4)
    window = take(replay, drawn_at([3, 4, 0], [1, 0, 1]), 3)
    np.testing.assert_array_equal(window, [[31, 40, 51], [41, 50, 61], [51, 60, 71]])


@pytest.mark.parametrize("prioritised", [False, True])
@pytest.mark.parametrize(("length", "count", "window"), [(6, 2, 1), (6, 2, 3), (7, 3, 4)])
def test_windows_are_steps_in_a_row_and_all_are_reached(prioritised, length, count, window):
    """After each of many rounds: every possible start is drawn, no other, and no window reaches over the newest row."""
    replay = buffers.init(NUMBER, length, 2, prioritised)
    for i in range(2 * length):
        replay = add(replay, numbered(i * count, count), window)
        written = (i + 1) * count
        assert bool(buffers.can_sample(replay, window)) == (written >= window)
        if written < window:
            continue
        possible = range(max(0, written - length), written - window + 1)
        drawn = sample(replay, jax.random.key(i), 200, window)
        got = np.asarray(take(replay, drawn, window))
        np.testing.assert_array_equal(got, got[0] + 10 * np.arange(window)[:, None])
        assert set(got[0].tolist()) == {10 * step + env for step in possible for env in range(2)}


def test_can_sample_waits_for_as_many_rows_as_asked():
    replay = filled(6, 2, 2)
    assert bool(buffers.can_sample(replay, 2, 4))
    assert not bool(buffers.can_sample(replay, 2, 5))
    assert not bool(buffers.can_sample(replay, 5))


def test_uniform_sampling_is_uniform():
    replay = filled(5, 2, 4, window=2, num_envs=3)
    count = starts(replay, 12_000, 2)
    # Slots hold the steps 5 6 7 3 4; none may begin at 7. 12 starts, 1,000 times each, with a deviation of 30.
    assert count[2].sum() == 0
    assert np.abs(count[[0, 1, 3, 4]] - 1_000).max() < 130
    assert len(set(count[[0, 1, 3, 4]].ravel())) > 4
    np.testing.assert_array_equal(sample(replay, jax.random.key(0), 9, 2).odds, np.ones(9))


PRIORITY = [[0.0, 1.0, 0.0], [2.0, 0.5, 0.0], [0.0, 0.0, 0.0], [4.0, 0.0, 2.5]]


def test_prioritised_frequencies():
    """Single draws, so that nothing but the priorities is at work: chi-square with 4 degrees of freedom."""
    replay = with_priority(PRIORITY)
    keys = jax.random.split(jax.random.key(1), 10_000)
    drawn = jax.jit(jax.vmap(lambda key: buffers.sample(replay, key, 1, 1)))(keys)
    count = np.zeros((4, 3))
    np.add.at(count, (np.asarray(drawn.row), np.asarray(drawn.env)), 1)
    expected = 10_000 * np.array(PRIORITY) / 10
    assert count[expected == 0].sum() == 0
    there = expected > 0
    assert ((count - expected)[there] ** 2 / expected[there]).sum() < 18.5  # exceeded once in a thousand times
    odds = np.asarray(replay.priority)[drawn.row, drawn.env] / 10 * 5
    np.testing.assert_allclose(drawn.odds, odds, rtol=1e-6)


def test_a_batch_is_spread_over_the_priorities():
    """One draw from each of 1,000 equal shares: every start is drawn as often as it should be, give or take 1."""
    np.testing.assert_allclose(starts(with_priority(PRIORITY), 1_000, 1), 100 * np.array(PRIORITY), atol=1.01)


def test_nothing_without_priority_is_drawn_whatever_the_rounding():
    for seed in range(4):
        numbers = np.random.default_rng(seed)
        priority = np.exp(numbers.normal(0, 12, (64, 33))) * (numbers.random((64, 33)) < 0.2)
        priority[-5:] = 0
        count = starts(with_priority(priority), 20_000, 1)
        assert count[priority == 0].sum() == 0


def test_new_windows_get_the_highest_priority():
    """The first ones 1; rows that are too new, or overwritten and not yet followed, 0."""
    replay = filled(6, 2, 1, window=3, prioritised=True)
    np.testing.assert_array_equal(replay.priority, np.zeros((6, 2)))
    replay = add(replay, numbered(2, 2), 3)
    np.testing.assert_array_equal(replay.priority[:, 0], [1, 1, 0, 0, 0, 0])
    replay = reprioritise(replay, drawn_at([0, 1], [1, 0]), jnp.array([7.0, 0.25]))
    np.testing.assert_array_equal(replay.priority[:2], [[1, 7], [0.25, 1]])
    replay = add(replay, numbered(4, 2), 3)
    np.testing.assert_array_equal(replay.priority, [[1, 7], [0.25, 1], [7, 7], [7, 7], [0, 0], [0, 0]])
    replay = add(replay, numbered(6, 2), 3)  # over steps 0 and 1, and with them the 7 that was measured
    np.testing.assert_array_equal(replay.priority, [[0, 0], [0, 0], [7, 7], [7, 7], [7, 7], [7, 7]])


def test_small_priorities_stay_the_highest():
    """New windows get the highest there is, even if that is much less than 1."""
    replay = filled(6, 2, 2, window=2, prioritised=True)
    rows, envs = np.nonzero(np.asarray(replay.priority))
    replay = reprioritise(replay, drawn_at(rows, envs), jnp.full(len(rows), 1e-6))
    replay = add(replay, numbered(4, 2), 2)
    np.testing.assert_allclose(replay.priority[:5], np.full((5, 2), 1e-6))


def test_importance_by_hand():
    """Twice as probable as a uniform draw, half as probable, equally: to the power -1/2, the largest being 1."""
    drawn = drawn_at([0, 1, 2], [0, 0, 0], [2.0, 0.5, 1.0])
    got = jax.jit(buffers.importance)(drawn.odds, 0.5)
    np.testing.assert_allclose(got, [0.5, 1.0, 1 / np.sqrt(2)], rtol=1e-6)
    np.testing.assert_allclose(buffers.importance(drawn.odds, 1.0), [0.25, 1.0, 0.5], rtol=1e-6)
    np.testing.assert_allclose(buffers.importance(drawn.odds, 0.0), np.ones(3))


def test_weights_undo_the_bias():
    """The weighted mean over prioritised draws is the plain mean over all windows."""
    replay = with_priority([[1.0, 4.0], [0.5, 2.5]])
    drawn = sample(replay, jax.random.key(0), 4_000, 1)
    weight = buffers.importance(drawn.odds, 1.0)
    got = jnp.sum(weight * take(replay, drawn, 1)[0]) / jnp.sum(weight)
    assert float(got) == pytest.approx((0 + 1 + 10 + 11) / 4, rel=0.01)


def test_vmap_over_seeds():
    """Replays side by side are the same as replays one by one, and each has its own draws."""
    window = 2

    def life(key, scale):
        def round(replay, i):
            replay = buffers.add(replay, scale * (numbered(0, 2) + 20 * i), window)
            drawn = buffers.sample(replay, jax.random.fold_in(key, i), 4, window)
            replay = buffers.reprioritise(replay, drawn, 2.0 ** drawn.row.astype(jnp.float32))
            return replay, (drawn.row, drawn.env, buffers.take(replay, drawn, window))

        return jax.lax.scan(round, buffers.init(NUMBER, 5, 2, prioritised=True), jnp.arange(4))

    keys, scales = jax.random.split(jax.random.key(0), 3), jnp.arange(1, 4)
    together, one = jax.jit(jax.vmap(life))(keys, scales), jax.jit(life)
    for i in range(3):
        alone = one(keys[i], scales[i])
        jax.tree.map(lambda a, b, i=i: np.testing.assert_array_equal(a[i], b), together, alone)
    assert len({tuple(row) for row in np.asarray(together[1][0]).reshape(3, -1).tolist()}) == 3


class Twin:
    """The same in plain Python: rows and priorities by the number of the step, forgotten when they are too old."""

    def __init__(self, length, num_envs, window):
        self.length, self.num_envs, self.window = length, num_envs, window
        self.rows, self.priority, self.written = {}, {}, 0

    def add(self, rows):
        highest = max((p.max() for p in self.priority.values()), default=1.0)
        for row in rows:
            self.rows[self.written] = row
            self.written += 1
        for step in range(max(0, self.written - len(rows) - self.window + 1), self.written - self.window + 1):
            self.priority[step] = np.full(self.num_envs, highest, np.float32)
        for kept in (self.rows, self.priority):
            for step in [step for step in kept if step < self.written - self.length]:
                del kept[step]

    def step_at(self, slot):
        """The number of the step in a slot of the ring."""
        return next(step for step in self.rows if step % self.length == slot)

    def check(self, replay):
        store, priority = np.zeros((self.length, self.num_envs)), np.zeros((self.length, self.num_envs), np.float32)
        for step, row in self.rows.items():
            store[step % self.length] = row
        for step, numbers in self.priority.items():
            priority[step % self.length] = numbers
        np.testing.assert_array_equal(replay.store, store)
        np.testing.assert_array_equal(replay.priority, priority)
        assert int(replay.written) == self.written


@pytest.mark.parametrize(("length", "count", "window"), [(6, 2, 3), (8, 4, 1), (7, 3, 4), (11, 5, 6)])
def test_equals_a_plain_twin(length, count, window):
    """Random rows, draws and priorities: store, priorities, windows and odds are those of the twin throughout."""
    numbers, num_envs = np.random.default_rng(length * count * window), 3
    replay, twin = buffers.init(jax.ShapeDtypeStruct((), jnp.float32), length, num_envs, True), Twin(length, 3, window)
    for i in range(25):
        rows = numbers.normal(size=(count, num_envs)).astype(np.float32)
        replay = add(replay, jnp.asarray(rows), window)
        twin.add(rows)
        twin.check(replay)
        if twin.written < window:
            continue
        drawn = jax.device_get(sample(replay, jax.random.key(i), 4, window))
        windows = np.asarray(take(replay, drawn, window))
        total = sum(p.sum() for p in twin.priority.values())
        for b, (slot, env) in enumerate(zip(drawn.row.tolist(), drawn.env.tolist(), strict=True)):
            step = twin.step_at(slot)
            np.testing.assert_array_equal(windows[:, b], [twin.rows[step + w][env] for w in range(window)])
            odds = twin.priority[step][env] / total * len(twin.priority) * num_envs
            assert drawn.odds[b] == pytest.approx(odds, rel=1e-4)
        places = dict(zip(zip(drawn.row.tolist(), drawn.env.tolist(), strict=True), drawn.odds, strict=True))
        fresh = {place: np.float32(numbers.exponential() + 1e-3) for place in places}
        chosen = drawn_at([slot for slot, _ in fresh], [env for _, env in fresh])
        replay = buffers.reprioritise(replay, chosen, jnp.array(list(fresh.values())))
        for (slot, env), priority in fresh.items():
            twin.priority[twin.step_at(slot)][env] = priority
        twin.check(replay)
