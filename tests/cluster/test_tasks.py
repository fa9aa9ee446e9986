"""The task board and its pool: order, leases, what a crash leaves, and who is told what failed."""

import itertools
import json
import pickle
import random
import shutil
import threading
import time

import jax.numpy as jnp
import numpy as np
import pytest

from shoal.cluster.tasks.board import Task, TaskBoard, TaskResult
from shoal.cluster.tasks.ledger import Ledger
from shoal.cluster.tasks.pool import PoolConfig, WorkerPool
from shoal.cluster.transport.launcher import ThreadLauncher
from shoal.cluster.transport.service import Failure, WorkerError
from shoal.core.errors import OptionError, RunError


def done(id, **figures):
    return TaskResult(id, figures)


def ids(tasks):
    return [task.id for task in tasks]


def test_tasks_are_handed_out_in_order_and_after_what_they_wait_for(tmp_path):
    board = TaskBoard(tmp_path)
    board.add([Task("c", "sum", after=("a", "b")), Task("a", "one"), Task("b", "two"), Task("d", "one")])
    board.hello("w", "1")
    assert ids(board.report_and_fetch("w", "1", ("two",), count=5)) == ["b"]
    assert ids(board.report_and_fetch("w", "1", (), count=5)) == ["a", "d"]
    assert board.report_and_fetch("w", "1", ("sum",), [done("a")]) == []
    assert ids(board.report_and_fetch("w", "1", ("sum",), [done("b")])) == ["c"]
    assert board.wait(["a", "b", "x"]) == (2, ["x"], None)


def test_a_result_counts_once_and_survives(tmp_path):
    board = TaskBoard(tmp_path)
    board.add([Task("a", "k"), Task("b", "k")])
    board.report_and_fetch("w", "1", (), count=2)
    board.report("w", [TaskResult("a", {"n": 0.1}, [np.arange(3, dtype=np.float32), np.array(True)])])
    board.report("v", [done("a", n=7.0)])
    again = TaskBoard(tmp_path)
    for each in (board, again):
        (found,) = each.results(["a"])
        assert found.figures == {"n": 0.1}
        assert found.leaves[0].dtype == np.float32
        np.testing.assert_array_equal(found.leaves[0], [0, 1, 2])
        assert found.leaves[1].shape == ()
    assert board.figures()["ignored"] == 1
    again.add([Task("a", "k"), Task("b", "k")])
    assert ids(again.report_and_fetch("w", "1", (), count=9)) == ["b"]


def test_the_first_result_of_a_task_is_the_one(tmp_path):
    """One who was given up may report as well, later and something else."""
    ledger = Ledger(tmp_path)
    for number in (1, 2):
        ledger.count(ledger.write([TaskResult("a", {"number": number})]))
    assert ledger.read("a").figures == {"number": 1}
    assert Ledger(tmp_path).read("a").figures == {"number": 1}


def test_what_is_forgotten_does_not_come_back_with_the_journal(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.count(ledger.write([TaskResult("a", {}), TaskResult("b", {})]))
    ledger.forget(["a"])
    again = Ledger(tmp_path)
    assert "a" not in again
    assert "b" in again


def test_no_pickle_and_no_half_line(tmp_path):
    board = TaskBoard(tmp_path)
    board.report("w", [done("a", n=1), TaskResult("b", {}, [np.ones(2)])])
    path = tmp_path / "journal.jsonl"
    assert [json.loads(line)["done"] for line in path.read_text().splitlines()] == ["a", "b"]
    (file,) = tmp_path.glob("*.npz")
    with np.load(file, allow_pickle=False) as stored:
        np.testing.assert_array_equal(stored["0"], [1.0, 1.0])
    with open(path, "a") as journal:
        journal.write('{"done": "c", "fig')
    assert TaskBoard(tmp_path).wait(["a", "b", "c"]) == (2, ["c"], None)
    file.unlink()
    assert TaskBoard(tmp_path).wait(["a", "b"]) == (1, ["b"], None)


def test_types_that_came_from_elsewhere(tmp_path):
    """An array that another process sent has a type that is equal to numpy's own, but not the same object."""
    sent = pickle.loads(pickle.dumps(np.arange(2.0), protocol=5, buffer_callback=(kept := []).append), buffers=kept)
    small = np.arange(2, dtype=jnp.bfloat16)
    board = TaskBoard(tmp_path)
    board.report("w", [TaskResult("a", {}, [sent, np.ones(2, np.dtype("float64", copy=True)), small])])
    (found,) = board.results(["a"])
    assert [leaf.dtype for leaf in found.leaves] == [np.float64, np.float64, jnp.bfloat16]
    np.testing.assert_array_equal(found.leaves[0], [0.0, 1.0])


def test_arrays_that_the_journal_does_not_name_do_not_count(tmp_path):
    board = TaskBoard(tmp_path)
    board.report("w", [TaskResult("a", {}, [np.ones(2)])])
    (tmp_path / "journal.jsonl").write_text("")
    assert TaskBoard(tmp_path).wait(["a"]).unknown == ["a"]
    assert not list(tmp_path.glob("*.npz"))


def test_what_is_forgotten_is_gone_for_good(tmp_path):
    board = TaskBoard(tmp_path)
    board.report("w", [TaskResult("a", {}, [np.ones(2)]), done("b")])
    board.forget(["a", "unheard of"])
    assert not list(tmp_path.glob("*.npz"))
    for each in (board, TaskBoard(tmp_path)):
        assert each.wait(["a", "b"]) == (1, ["a"], None)
    assert len((tmp_path / "journal.jsonl").read_text().splitlines()) == 1


def test_who_begins_anew_or_is_dead_loses_its_leases(tmp_path):
    board = TaskBoard(tmp_path)
    board.add([Task("a", "k"), Task("b", "k")])
    board.hello("w", "1")
    assert ids(board.report_and_fetch("w", "1", ())) == ["a"]
    board.hello("w", "2")
    assert board.report_and_fetch("w", "1", ()) is None  # the life before
    assert ids(board.report_and_fetch("w", "2", (), count=2)) == ["a", "b"]
    assert board.report_and_fetch("v", "x", ()) == []
    board.release("w")
    assert board.report_and_fetch("w", "2", ()) is None
    assert ids(board.report_and_fetch("v", "x", (), count=2)) == ["b", "a"]
    board.report("w", [done("a", late=True)])  # of a life before, but it is done
    assert board.wait(["a"]).done == 1


def test_who_takes_too_long_is_found_out(tmp_path):
    board = TaskBoard(tmp_path, limit=0.05)
    board.add([Task("a", "k"), Task("b", "k", limit=60.0)])
    assert ids(board.report_and_fetch("w", "1", (), count=2)) == ["a", "b"]
    assert board.report_and_fetch("v", "1", (), timeout=0.1) == []  # first tasks compile: five times as long
    assert ids(board.report_and_fetch("v", "1", (), timeout=2.0)) == ["a"]
    assert board.status()["w"]["hangs"]
    assert not board.status()["v"]["hangs"]
    board.report("w", [done("a")])
    board.report("v", [done("a")])
    assert board.figures() | {"repeated": 1, "ignored": 1, "leased": 1} == board.figures()


def test_a_task_that_always_fails_is_given_up(tmp_path):
    board = TaskBoard(tmp_path, retries=1)
    board.add([Task("a", "k"), Task("b", "k")])
    for times in (1, 2):
        assert ids(board.report_and_fetch("w", "1", ("k",))) == ["a"]
        board.report_failure("w", "a", Failure("ValueError", "no", "trace", False))
        broken = board.wait(["a", "b"]).broken
        assert (broken is None) == (times == 1)
    assert (broken.id, broken.worker, broken.times, broken.failure.text) == ("a", "w", 2, "no")
    assert ids(board.report_and_fetch("w", "1", ("k",), count=5)) == ["b"]


def test_bad_options(tmp_path):
    with pytest.raises(OptionError, match="limit"):
        TaskBoard(tmp_path, limit=0)
    with pytest.raises(OptionError, match="workers"):
        PoolConfig(workers=0)


class Squares:
    """Squares numbers; knows how to fail and to hang."""

    def __init__(self, pause=0.0):
        self.pause = pause

    def run(self, task, board):
        kind, payload = task.kind, task.payload
        if kind == "fail":
            raise ValueError(f"cannot square {payload}")
        if kind == "hang":
            time.sleep(payload.pop() if payload else 0)
            return {}, None
        time.sleep(self.pause)
        return {"square": payload**2}, [np.full(4, payload, np.float32)]


def pool_of(tmp_path, *args, **team):
    launcher = ThreadLauncher()
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "config.json").touch()
    return WorkerPool(tmp_path, launcher, PoolConfig(**team), Squares, *args), launcher


def test_a_crew_carries_tasks_out(tmp_path):
    pool, _ = pool_of(tmp_path, workers=2)
    tasks = [Task(f"t{n}", "square", n) for n in range(20)]
    results = pool.run(tasks)
    assert [result.figures["square"] for result in results] == [n**2 for n in range(20)]
    assert all((result.leaves[0] == n).all() for n, result in enumerate(results))
    handed = pool.board.once.figures()["handed"]
    pool.run(tasks)  # known already
    assert pool.board.once.figures()["handed"] == handed == 20
    pool.close()
    assert json.loads((tmp_path / "cluster.json").read_text())["services"]["board"]["done"] == 20


def test_short_tasks_travel_in_groups_and_long_ones_alone(tmp_path):
    def trades(folder, pause):
        pool, _ = pool_of(tmp_path / folder, pause, workers=1)
        pool.run([Task(f"t{n}", "square", n) for n in range(64)])
        found = pool.board.messages()["worker>report_and_fetch"]
        pool.close()
        return found

    assert trades("short", 0.0) <= 64 / 4  # 1, then 16 at a time but for a slow moment
    assert trades("long", 0.025) >= 64


def test_a_group_is_of_one_kind(tmp_path):
    board = TaskBoard(tmp_path)
    board.hello("w", "1")
    board.add([Task("a", "short"), Task("b", "long"), Task("c", "long"), Task("d", "short"), Task("e", "short")])
    asked = ("w", "1", (), (), 5, 0.0, "short")
    assert ids(board.report_and_fetch(*asked)) == ["a", "d", "e"]
    assert ids(board.report_and_fetch(*asked)) == ["b"]
    assert ids(board.report_and_fetch(*asked)) == ["c"]


def test_an_error_comes_once_with_its_worker_and_its_task(tmp_path):
    pool, _ = pool_of(tmp_path, workers=1, retries=1)
    with pytest.raises(WorkerError) as caught:
        pool.run([Task("the/task", "fail", 3)])
    text = str(caught.value)
    pool.close()
    assert "worker-0 failed 2 times (task the/task)" in text
    assert text.count("ValueError: cannot square 3\n") == 2  # in front, and at the end of the traceback
    assert text.count("Traceback") == 1
    assert "shoal resume" in text


def test_a_run_folder_that_is_removed_ends_the_work(tmp_path):
    pool, _ = pool_of(tmp_path / "run", workers=1)
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(RunError, match="run is gone: it was removed or renamed"):
        pool.run([Task("a", "square", 1)])
    pool.close()


class Unmakeable:
    def __init__(self):
        raise RuntimeError("no such world")


def test_a_worker_that_cannot_be_made_ends_the_run(tmp_path):
    (tmp_path / "config.json").touch()
    pool = WorkerPool(tmp_path, ThreadLauncher(), PoolConfig(workers=1, retries=1), Unmakeable)
    with pytest.raises(WorkerError, match=r"worker-0 failed 2 times in a row \(starting\).*no such world"):
        pool.run([Task("a", "square", 1)])
    pool.close()


def test_who_hangs_is_replaced(tmp_path):
    pool, _ = pool_of(tmp_path, workers=1, task_timeout=0.1)
    began = time.monotonic()
    pool.run([Task("a", "hang", [30.0])])  # the second time there is nothing left to wait for
    assert time.monotonic() - began < 10
    pool.close()
    assert any("hung" in event["what"] for event in pool.events)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_kills_at_any_time_cost_nothing(tmp_path, seed):
    """Workers and the board die again and again: every task is done, each result is the right one, none changes."""
    pool, launcher = pool_of(tmp_path, 0.002, workers=3)
    draws, stop, killed = random.Random(seed), threading.Event(), []

    def shoot():
        for victim in itertools.cycle(["board", "worker-0", "worker-1", "worker-2"]):
            if stop.wait(draws.uniform(0.02, 0.2)):
                return
            killed.append(victim)
            launcher.kill(victim)

    gun = threading.Thread(target=shoot)
    gun.start()
    tasks = [Task(f"t{n}", "square", n, after=(f"t{n - 20}",) if n >= 20 else ()) for n in range(200)]
    results = pool.run(tasks)
    stop.set()
    gun.join()
    assert [result.figures["square"] for result in results] == [n**2 for n in range(200)]
    pool.close()
    assert "board" in killed
    found = TaskBoard(tmp_path / "tasks").results(ids(tasks))
    assert all((result.leaves[0] == n).all() for n, result in enumerate(found))
