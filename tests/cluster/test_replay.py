"""The replay service against the replay on the device, by hand-made contents, and under faults."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.cluster.replay.ring import Ring, Table, places
from shoal.cluster.replay.service import LIFE, ReplayPush, ReplayService
from shoal.cluster.replay.shards import Shards
from shoal.cluster.transport.launcher import ThreadLauncher
from shoal.core.errors import OptionError
from shoal.ops import replay as buffers

T, E = 3, 2


def rows(start: int, maker: int = 0, count: int = T) -> list[np.ndarray]:
    """Steps whose content says what they are: maker, time, copy."""
    times = np.arange(start, start + count)[:, None] + np.zeros((1, E), int)
    return [(maker * 1000 + 10 * times + np.arange(E)).astype(np.float32), times.astype(np.int32)]


def push(start: int, maker: int = 0, priority=None, version: int = 0, told=None, life: int = 0) -> ReplayPush:
    steps = {"team": (rows(start, maker), priority)}
    return ReplayPush(maker, life * LIFE + start, version, T * E, steps, told or {})


def service(length: int = 9, window: int = 2, prioritised: bool = False, room: int = 10**9, **more) -> ReplayService:
    return ReplayService({"team": Table(length, window, prioritised)}, room, **more)


def content(replay: ReplayService, count: int = 400) -> set[tuple[float, ...]]:
    drawn = replay.draw({"team": count})["team"]
    assert drawn is not None
    return {tuple(window) for window in drawn.leaves[0].T}


@pytest.mark.parametrize(("window", "pushes"), [(1, 1), (1, 4), (2, 2), (4, 1), (4, 3), (4, 5)])
def test_the_same_windows_can_be_drawn_as_on_the_device(window, pushes):
    example = [jax.ShapeDtypeStruct((), leaf.dtype) for leaf in rows(0)]
    device, ring = buffers.init(example, 9, E), Ring(Table(9, window))
    for number in range(pushes):
        device = buffers.add(device, [jnp.asarray(leaf) for leaf in rows(T * number)], window)
        ring.add(rows(T * number), T * number, 0)
    if pushes * T < window:
        assert not ring.possible.any()
        return
    drawn = buffers.sample(device, jax.random.key(0), 500, window)
    theirs = {tuple(one) for one in np.asarray(buffers.take(device, drawn, window)[0]).T.tolist()}
    row, copy = np.nonzero(ring.possible[:, None] & np.ones((1, E), bool))
    ours = {tuple(one) for one in ring.windows(row, copy)[0].T.tolist()}
    assert ours == theirs


def test_priorities_and_places_are_those_of_the_device():
    example, window = [jax.ShapeDtypeStruct((), leaf.dtype) for leaf in rows(0)], 2
    device, ring = buffers.init(example, 9, E, True), Ring(Table(9, window, True))
    for number in range(5):
        device = buffers.add(device, [jnp.asarray(leaf) for leaf in rows(T * number)], window)
        ring.add(rows(T * number), T * number, 0)
        np.testing.assert_allclose(ring.priority, device.priority)
        draws = jax.random.uniform(jax.random.key(number), (16,))
        theirs = buffers.sample(device, jax.random.key(number), 16, window)
        _, row, rest = places([ring.masses()], np.asarray(draws, np.float64))
        copy = ring.copies_at(row, rest)
        np.testing.assert_array_equal(row, theirs.row)
        np.testing.assert_array_equal(copy, theirs.env)
        new = np.linspace(0.1, 3.0, 16).astype(np.float32) * (number + 1)
        unique = np.unique(row * E + copy, return_index=True)[1]  # the device may take any of two for one place
        device = buffers.reprioritise(device, jax.tree.map(lambda leaf, u=unique: leaf[u], theirs), new[unique])
        assert ring.reprioritise(row[unique], copy[unique], ring.stamp[row[unique]], new[unique]) == len(unique)


def test_draws_are_in_proportion_to_priorities_over_makers():
    replay = service(window=1, prioritised=True)
    replay.push(push(0, 0, np.array([[1.0, 0.5], [0.5, 2.0], [1.0, 1.0]])))  # 6 in all
    replay.push(push(0, 1, np.full((T, E), 3.0)))  # 18
    drawn = replay.draw({"team": 24_000})["team"]
    assert drawn is not None
    assert (drawn.mass, drawn.possible) == (24.0, 12)
    values, counts = np.unique(drawn.leaves[0][0], return_counts=True)
    expected = {0.0: 1, 1.0: 0.5, 10.0: 0.5, 11.0: 2, 20.0: 1, 21.0: 1}
    expected |= {1000.0 + value: 3 for value in list(expected)}
    assert dict(zip(values.tolist(), (counts / 1000).round(2).tolist(), strict=True)) == pytest.approx(
        expected, abs=0.01
    )
    np.testing.assert_allclose(drawn.chance * 24, [expected[value] for value in drawn.leaves[0][0]])


def test_no_window_reaches_over_a_gap():
    replay = service(window=2)
    replay.push(push(0))
    replay.push(push(0, life=1))  # the maker restarted: time 0 follows time 2
    windows = {(first // 10, second // 10) for first, second in content(replay)}
    assert windows == {(0, 1), (1, 2)}
    replay.push(push(6, life=1))  # what it made of times 3 to 5 was lost
    windows = {(first // 10, second // 10) for first, second in content(replay)}
    assert windows == {(0, 1), (1, 2), (6, 7), (7, 8)}


def test_what_is_pushed_twice_is_taken_once():
    replay = service()
    assert replay.push(push(0))
    assert replay.push(push(0))
    assert replay.figures()["inserted"] == T * E
    assert replay.figures()["repeated"] == 1


def test_priorities_of_overwritten_rows_are_left_alone():
    replay = service(length=6, window=1, prioritised=True)
    replay.push(push(0, priority=np.ones((T, E))))
    drawn = replay.draw({"team": 50})["team"]
    assert drawn is not None
    assert replay.reprioritise("team", drawn.ids, np.full(50, 7.0)) == 50
    replay.push(push(3, priority=np.ones((T, E))))
    replay.push(push(6, priority=np.ones((T, E))))  # over the rows that were drawn
    assert replay.reprioritise("team", drawn.ids, np.full(50, 9.0)) == 0
    assert replay.figures()["late"] == 50
    after = replay.draw({"team": 10})["team"]
    assert after is not None
    assert after.mass == 12.0


def test_makers_wait_for_the_learner_and_the_learner_for_makers():
    replay = service(room=T * E)
    assert replay.push(push(0))
    assert not replay.push(push(3))  # full until a learner says so
    news = replay.news(2 * T * E, (replay.life, T * E))
    assert (news.inserted, news.pushes) == (T * E, 1)
    assert replay.push(push(3))
    assert replay.push(push(6))
    assert not replay.push(push(9))
    assert replay.figures()["refused"] == 2
    began = time.monotonic()
    assert replay.news(0, (replay.life, 3 * T * E), enough=1, timeout=0.2).inserted == 3 * T * E
    assert time.monotonic() - began >= 0.2
    assert replay.news(T * E, (0, 99 * T * E), enough=1, timeout=5.0).inserted == 3 * T * E  # known of another life
    assert not replay.push(push(9))  # 3 came, 1 might
    replay.news(4 * T * E, (replay.life, 0))
    assert replay.push(push(9))


def test_figures_of_episodes_are_handed_on_once():
    replay = service()
    replay.push(push(0, told={"episodes": 2.0, "world/x": 0.5}))
    replay.push(push(3, told={"episodes": 1.0, "world/x": 1.5}))
    news = replay.news(100)
    assert (news.told, news.pushes) == ({"episodes": 3.0, "world/x": 2.0}, 2)
    assert replay.news(100).told == {}


def test_a_spill_is_reloaded(tmp_path):
    replay = service(window=2, prioritised=True, folder=str(tmp_path))
    replay.push(push(0, 0, np.arange(1.0, 7.0).reshape(T, E)))
    replay.push(push(0, 1, np.full((T, E), 2.0)))
    replay.spill()
    replay.push(push(3, 0, np.full((T, E), 5.0)))  # lost
    again = service(window=2, prioritised=True, folder=str(tmp_path))
    assert again.life != replay.life
    assert again.figures()["steps"] == {"team": 2 * T * E}
    drawn = again.draw({"team": 10})["team"]
    assert drawn is not None
    # Row 0 has the priorities of row 1 of what was pushed: those of the windows that end at each row.
    assert drawn.mass == 3.0 + 4.0 + 5.0 + 6.0 + 4 * 2.0
    assert again.push(push(0, 0))  # known
    assert again.figures()["repeated"] == 1
    assert again.push(push(6, 0, np.ones((T, E))))  # what was lost leaves a gap
    windows = {(a // 10, b // 10) for a, b in content(again) if a < 1000}
    assert windows == {(0, 1), (1, 2), (6, 7), (7, 8)}


def test_a_damaged_spill_is_left_out(tmp_path):
    replay = service(folder=str(tmp_path))
    replay.push(push(0))
    replay.spill()
    [path] = tmp_path.glob("*/step-*.npz")
    path.write_bytes(path.read_bytes()[:-100])
    assert service(folder=str(tmp_path)).figures()["steps"] == {"team": 0}


def test_spills_by_itself(tmp_path):
    replay = service(folder=str(tmp_path), seconds=0.0)
    replay.push(push(0))
    end = time.monotonic() + 10
    while not list(tmp_path.glob("*/step-*.npz")) and time.monotonic() < end:
        time.sleep(0.01)
    replay.die()
    assert service(folder=str(tmp_path)).figures()["steps"] == {"team": T * E}


def test_an_unknown_table_is_named():
    with pytest.raises(OptionError, match="no table 'other', only team"):
        service().push(ReplayPush(0, 0, 0, 6, {"other": (rows(0), None)}, {}))


def started(prioritised: bool = True, shards: int = 2) -> tuple[ThreadLauncher, Shards]:
    launcher = ThreadLauncher()
    table = {"team": Table(9, 1, prioritised)}
    handles = [launcher.start(f"replay-{i}", ReplayService, table, 10**6) for i in range(shards)]
    return launcher, Shards(handles, ["team"])


def test_shards_are_drawn_from_by_what_they_weigh():
    _, shards = started()
    shards.handles[0].once.push(push(0, 0, np.full((T, E), 1.0)))
    shards.handles[1].once.push(push(0, 1, np.full((T, E), 3.0)))
    assert shards.news(100, 0, 0.0)[0] == 2 * T * E
    shards.collect(shards.ask({"team": 10}))  # by now they have said what they weigh
    batch = (shards.collect(shards.ask({"team": 400})) or {})["team"]
    assert np.sum(batch.shard == 0) == 100
    # 12 windows; those of the first shard are half as probable as in a uniform draw, the others 1.5 times.
    np.testing.assert_allclose(batch.odds[batch.shard == 0], 0.5, rtol=1e-6)
    np.testing.assert_allclose(batch.odds[batch.shard == 1], 1.5, rtol=1e-6)
    shards.reprioritise("team", batch, np.full(400, 2.0))
    shards.spill()  # waits for nothing but itself; the priorities are on their way
    end = time.monotonic() + 10
    while time.monotonic() < end and sum(h.once.figures()["written"] for h in shards.handles) < 400:
        time.sleep(0.01)
    assert shards.handles[1].once.draw({"team": 1})["team"].mass == 12.0


def test_while_a_shard_is_away_the_others_give_its_share():
    launcher, shards = started()
    shards.handles[0].once.push(push(0, 0, np.ones((T, E))))
    shards.handles[1].once.push(push(0, 1, np.ones((T, E))))
    assert shards.news(100, 0, 0.0)[0] == 2 * T * E
    launcher.kill("replay-1")  # it comes back empty: nothing was written
    batch = (shards.collect(shards.ask({"team": 64})) or {})["team"]
    assert len(batch.odds) == 64
    assert set(batch.shard) == {0}
    shards.handles[1].once.push(push(3, 1, np.ones((T, E))))
    assert shards.news(100, 0, 0.0)[0] == T * E  # counted from zero again
    launcher.remove("replay-0")
    launcher.remove("replay-1")
    assert shards.collect(shards.ask({"team": 64})) is None
