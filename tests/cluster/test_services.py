"""The services alone: what they hand out, refuse, forget and remember, worked out by hand."""

import json
import threading
import time

import pytest

from shoal.cluster.plan import ClusterPlan
from shoal.cluster.services.clock import Clock
from shoal.cluster.services.coordinator import Coordinator
from shoal.cluster.services.dataset import Item, Queue
from shoal.cluster.services.directory import Services
from shoal.cluster.services.journal import Journal, read
from shoal.cluster.services.parameters import ParameterService
from shoal.cluster.transport.launcher import LocalStore, ThreadLauncher
from shoal.cluster.transport.service import ServiceUnavailable, WorkerError
from shoal.cluster.workers.learner import LearnerWorker
from shoal.core.errors import OptionError, RunError, ShoalError, UnknownNameError
from shoal.training.experiment import Experiment


def item(share, round, version=0, maker=None):
    return Item(maker or f"actor-{share}", share, round, version, f"{share}.{round}")


def refs(items):
    return [one.ref for one in items]


class TestQueue:
    def test_a_round_is_complete_or_waits(self):
        queue = Queue(8)
        assert queue.push(item(0, 0))
        assert queue.push(item(0, 1))
        assert queue.take(2, 0, 0) == []
        assert queue.push(item(1, 0))
        assert refs(queue.take(2, 0, 0)) == ["0.0", "1.0"]
        assert queue.figures()["length"] == 1

    def test_earlier_rounds_are_dropped(self):
        queue = Queue(8)
        for share, round in ((0, 0), (1, 0), (0, 1)):
            queue.push(item(share, round))
        assert refs(queue.take(1, 0, 1)) == ["0.1"]
        assert queue.figures()["dropped"] == 2

    def test_what_is_too_old_is_dropped(self):
        queue = Queue(8)
        for number, version in enumerate((0, 3, 5)):
            queue.push(item(number, 0, version))
        assert refs(queue.take(2, least=3)) == ["1.0", "2.0"]
        assert queue.figures()["dropped"] == 1

    def test_full_means_wait(self):
        queue = Queue(1)
        assert queue.push(item(0, 0))
        assert not queue.push(item(1, 0))
        assert queue.figures()["refused"] == 1
        later = threading.Timer(0.05, lambda: queue.take(1))
        later.start()
        assert queue.push(item(1, 0), 5.0)

    def test_of_one_round_there_is_never_more_than_one(self):
        queue = Queue(8)
        assert queue.push(item(0, 0))
        assert queue.push(item(0, 0))  # the first answer may have been lost on its way
        assert len(queue.take(1)) == 1
        assert queue.take(1) == []
        assert queue.push(item(0, 0))  # what was taken was lost with whoever took it: made again
        assert len(queue.take(1)) == 1

    def test_put_back_comes_first_and_clear_begins_anew(self):
        queue = Queue(8)
        queue.push(item(0, 4))
        queue.push(item(1, 4))
        (first,) = queue.take(1)
        queue.back(first)
        assert refs(queue.take(2)) == ["0.4", "1.4"]
        queue.clear(epoch=1)
        assert queue.push(item(0, 4))  # made for the learner that died: taken, and dropped
        assert queue.take(1) == []
        assert queue.push(item(0, 4)._replace(epoch=1))
        assert refs(queue.take(1)) == ["0.4"]
        queue.back(first)  # of the epoch before
        assert queue.take(1) == []

    def test_what_was_made_again_meanwhile_is_not_put_back(self):
        queue = Queue(8)
        queue.push(item(0, 4))
        (first,) = queue.take(1)
        queue.push(item(0, 4)._replace(ref="again"))
        queue.back(first)
        assert refs(queue.take(1)) == ["again"]
        assert queue.take(1) == []


class Holes:
    """A store some of whose values died with their makers."""

    def get(self, ref):
        if ref in ("0.4", "2.4"):
            raise ServiceUnavailable(ref)
        return ref


def test_a_learner_puts_back_what_is_whole_and_asks_for_the_rest(tmp_path):
    learner = LearnerWorker.__new__(LearnerWorker)
    queue, coordinator = Queue(8), Coordinator(str(tmp_path), ClusterPlan(actors=3), 10)
    launcher = ThreadLauncher()
    learner.store = Holes()
    handles = {
        "dataset": launcher.start("dataset", lambda: queue),
        "coordinator": launcher.start("coordinator", lambda: coordinator),
    }
    learner.services = Services(handles, "learner")
    coordinator.began(4)
    for share in range(3):
        assert coordinator.next(f"actor-{share}", {}, 0.0)["round"] == 4
        assert queue.push(item(share, 4))
        assert coordinator.next(f"actor-{share}", {"round": 4, **DONE}, 0.0) is None
    assert learner._fetch(queue.take(3, 0, 4)) is None
    assert queue.makers() == ["actor-1"]
    for share, round in ((0, 4), (1, None), (2, 4)):  # who has to make it again, and who waits
        task = coordinator.next(f"actor-{share}", {}, 0.0)
        assert (task and task["round"]) == round
    for share in (0, 2):
        assert queue.push(item(share, 4)._replace(ref=f"{share} again"))
    assert sorted(learner._fetch(queue.take(3, 0, 4))) == ["0 again", "1.4", "2 again"]
    launcher.stop()


@pytest.mark.parametrize(("recipe", "taken"), [("stale", ["2.0", "3.0"]), ("impala", ["0.0", "1.0"])])
def test_a_learner_leaves_what_is_too_stale(recipe, taken):
    """At update 5, at most 2 behind: what was made by version 2 is dropped, and version 3 will do."""
    learner, queue, launcher = LearnerWorker.__new__(LearnerWorker), Queue(8), ThreadLauncher()
    learner.plan, learner.update = ClusterPlan(recipe=recipe, actors=2, max_staleness=2), 5
    learner.dead, learner.clock = threading.Event(), Clock()
    learner.services = Services({"dataset": launcher.start("dataset", lambda: queue)}, "learner")
    for number, version in enumerate((1, 2, 3, 5)):
        queue.push(item(number, 0, version))
    assert refs(learner._take()) == taken
    launcher.stop()


class TestParameters:
    def test_only_newer_versions(self):
        service = ParameterService(LocalStore())
        assert service.pull("p", -1) is None
        service.push("p", 2, "two")
        service.push("p", 1, "one")
        assert service.pull("p", -1)[:2] == (2, "two")
        assert service.pull("p", 2) is None
        service.push("p", 1, "one again", 1)  # a learner that died goes on from there
        assert service.pull("p", 2) == (1, "one again", 1)
        service.push("p", 2, "two")
        assert service.figures() == {"p": 1}

    def test_waits_for_a_version(self):
        service = ParameterService(LocalStore())
        service.push("p", 0, "zero")
        assert service.pull("p", -1, 1, 0.01) is None
        threading.Timer(0.05, lambda: service.push("p", 1, "one")).start()
        assert service.pull("p", 0, 1, 5.0)[:2] == (1, "one")


class TestJournal:
    def test_what_was_written_is_there_again(self, tmp_path):
        journal = Journal(tmp_path)
        journal.write({"a": 1})
        journal.write({"b": [2, 3]}, wait=False)
        journal.flush()
        assert Journal(tmp_path).entries == [{"a": 1}, {"b": [2, 3]}]

    @pytest.mark.parametrize("damage", ['{"c": ', "17\n", "\x00\x00"])
    def test_a_line_that_was_cut_short_is_dropped(self, tmp_path, damage):
        Journal(tmp_path).write({"a": 1})
        path = tmp_path / "journal.jsonl"
        path.write_text(path.read_text() + damage)
        again = Journal(tmp_path)
        assert again.entries == [{"a": 1}]
        again.write({"d": 4})
        assert read(path) == [{"a": 1}, {"d": 4}]

    def test_what_follows_a_damaged_line_is_dropped(self, tmp_path):
        path = tmp_path / "journal.jsonl"
        path.write_text('{"a": 1}\n{"b": \n{"c": 3}\n')
        assert read(path) == [{"a": 1}]

    def test_writers_share_flushes(self, tmp_path, monkeypatch):
        flushed = []
        monkeypatch.setattr("os.fsync", lambda number: (time.sleep(0.01), flushed.append(number)))
        journal = Journal(tmp_path)
        threads = [threading.Thread(target=journal.write, args=({"n": n},)) for n in range(50)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert len(read(journal.path)) == 50
        assert len(flushed) < 25

    def test_a_full_disk_is_said(self, tmp_path, monkeypatch):
        journal = Journal(tmp_path)

        def full(number):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(ShoalError, match=r"No space left on device.*then resume"):
            journal.write({"a": 1})


DONE = {"env_steps": 8, "seconds": {"roll": 1.0}, "sick": [], "resets": 0}


class TestCoordinator:
    def test_synchronous_rounds_wait_for_the_update(self, tmp_path):
        it = Coordinator(str(tmp_path), ClusterPlan(actors=2), 10)
        assert it.next("actor-0", {}, 0.0) is None  # no weights yet
        it.began(0)
        assert it.next("actor-0", {}, 0.0) == {"kind": "rollout", "round": 0, "version": 0, "epoch": 0}
        assert it.next("actor-0", {"round": 0, **DONE}, 0.0) is None
        it.report_update(1, {"staleness": [0.0, 0.0]})
        assert it.next("actor-0", {}, 0.0) == {"kind": "rollout", "round": 1, "version": 1, "epoch": 0}
        assert it.next("actor-1", {}, 0.0) == {"kind": "rollout", "round": 1, "version": 1, "epoch": 0}

    def test_stale_ones_run_ahead_within_the_bound(self, tmp_path):
        it = Coordinator(str(tmp_path), ClusterPlan("stale", actors=1, max_staleness=2), 10)
        it.began(0)
        given = []
        while (task := it.next("actor-0", {"round": len(given) - 1, **DONE} if given else {}, 0.0)) is not None:
            given.append((task["round"], task["version"]))
        assert given == [(0, 0), (1, 0), (2, 0)]
        it.report_update(1, {"staleness": [0.0, 0.0]})
        assert it.next("actor-0", {"round": 2, **DONE}, 0.0) == {
            "kind": "rollout",
            "round": 3,
            "version": 1,
            "epoch": 0,
        }

    def test_asynchronous_ones_never_wait(self, tmp_path):
        it = Coordinator(str(tmp_path), ClusterPlan("impala", actors=1), 10)
        it.began(0)
        rounds = [it.next("actor-0", {"round": n - 1, **DONE} if n else {}, 0.0)["round"] for n in range(50)]
        assert rounds == list(range(50))

    def test_a_worker_that_died_makes_its_round_again(self, tmp_path):
        it = Coordinator(str(tmp_path), ClusterPlan(actors=1), 10)
        it.began(0)
        assert it.hello("actor-0") == 0
        assert it.next("actor-0", {}, 0.0)["round"] == 0
        assert it.hello("actor-0") == 1
        assert it.next("actor-0", {}, 0.0)["round"] == 0
        assert it.status()["workers"]["actor-0"]["restarts"] == 1

    def test_what_was_lost_is_made_again(self, tmp_path):
        it = Coordinator(str(tmp_path), ClusterPlan(actors=1), 10)
        it.began(0)
        it.next("actor-0", {}, 0.0)
        assert it.next("actor-0", {"round": 0, **DONE}, 0.0) is None
        it.report_lost("actor-0", 0)
        assert it.next("actor-0", {}, 0.0)["round"] == 0

    def test_a_learner_that_died_waits_for_its_round(self, tmp_path):
        it = Coordinator(str(tmp_path), ClusterPlan(actors=1), 10)
        it.began(0)
        for update in range(5):
            it.next("actor-0", {"round": update - 1, **DONE} if update else {}, 0.0)
            it.report_update(update + 1, {"staleness": [0.0, 0.0]})
        it.began(3, epoch=1)  # the newest state that was safe
        assert it.next("actor-0", {"round": 4, **DONE}, 0.0)["round"] == 3  # for the learner that died: not counted

    def test_a_learner_that_waits_brings_back_what_was_forgotten(self, tmp_path):
        it = Coordinator(str(tmp_path), ClusterPlan(actors=2), 10)  # it died, and knows nothing of the run
        assert it.next("actor-0", {}, 0.0) is None
        assert not it.standing("learner-0", 6, 2, [])
        assert it.next("actor-0", {}, 0.0) == {"kind": "rollout", "round": 6, "version": 6, "epoch": 2}
        assert it.next("actor-0", {"round": 6, "epoch": 2, **DONE}, 0.0) is None
        it.standing("learner-0", 6, 2, ["actor-0"])  # its rollout is there
        assert it.next("actor-0", {}, 0.0) is None
        it.standing("learner-0", 6, 2, [])  # the queue died with it
        assert it.next("actor-0", {}, 0.0)["round"] == 6

    def test_who_was_left_behind_goes_on_with_the_others(self, tmp_path):
        it = Coordinator(str(tmp_path), ClusterPlan(actors=1, backups=1), 10)
        it.began(0)
        assert it.next("actor-1", {}, 0.0)["round"] == 0
        it.report_update(4, {"staleness": [0.0, 0.0]})
        assert it.next("actor-1", {"round": 0, **DONE}, 0.0)["round"] == 4

    def test_it_remembers_what_counts(self, tmp_path):
        it = Coordinator(str(tmp_path), ClusterPlan(actors=1), 10)
        it.hello("actor-0")
        it.began(0)
        it.next("actor-0", {}, 0.0)
        it.next("actor-0", {"round": 0, **DONE, "sick": [3]}, 0.0)
        it.report_commit(7)
        again = Coordinator(str(tmp_path), ClusterPlan(actors=1), 10)
        assert again.hello("actor-0") == 1
        assert {"quarantine": "actor-0", "copies": [3]} in again.journal.entries
        assert {"committed": 7} in again.journal.entries

    def test_stop_and_slow(self, tmp_path):
        it = Coordinator(str(tmp_path), ClusterPlan("impala", actors=3), 10)
        it.began(0)
        for number, seconds in enumerate((1.0, 1.1, 5.0)):
            it.next(f"actor-{number}", {}, 0.0)
            it.next(f"actor-{number}", {"round": 0, **DONE, "seconds": {"roll": seconds}}, 0.0)
        slow = {name: worker["slow"] for name, worker in it.status()["workers"].items()}
        assert slow == {"actor-0": False, "actor-1": False, "actor-2": True}
        it.stop()
        assert it.next("actor-0", {}, 0.0) == {"kind": "stop"}
        assert it.standing("learner-0", 0, 0, [])
        json.dumps(it.status())


class Counter:
    def __init__(self, start):
        self.value = start

    def add(self, number):
        self.value += number
        return self.value

    def fail(self):
        raise ValueError("no such thing")


class Waits:
    def __init__(self):
        self.over = threading.Event()

    def wait(self, timeout):
        return "gone" if self.over.wait(timeout) else "late"

    def go(self):
        self.over.set()


class TestThreads:
    def test_what_dies_begins_anew(self):
        launcher = ThreadLauncher()
        handle = launcher.start("counter", Counter, 10)
        assert handle.by("actor").once.add(1) == 11
        launcher.kill("counter")
        assert handle.once.add(1) == 11
        launcher.remove("counter")
        with pytest.raises(ServiceUnavailable):
            handle.once.add(1)
        with pytest.raises(ServiceUnavailable):
            handle.retry_until(lambda: True).add(1)

    def test_a_call_that_is_retried_waits_until_the_service_is_back(self):
        launcher = ThreadLauncher()
        service = launcher.start("counter", Counter, 10)
        launcher.remove("counter")
        back = threading.Timer(0.1, launcher.start, ("counter", Counter, 20))
        back.start()
        assert service.retry.add(number=1) == 21
        back.join()

    def test_what_is_submitted_is_not_waited_for(self):
        launcher = ThreadLauncher()
        service = launcher.start("waits", Waits)
        answer = service.submit(Waits.wait, 60.0)
        assert not answer.done()
        service.once.go()
        assert answer.result(timeout=60.0) == "gone"
        hanging = launcher.start("other", Waits).submit(Waits.wait, timeout=60.0)
        launcher.kill("other")
        with pytest.raises(ServiceUnavailable):
            hanging.result()

    def test_errors_name_who_and_what_once(self):
        handle = ThreadLauncher().start("counter", Counter, 0)
        with pytest.raises(WorkerError) as caught:
            handle.once.fail()
        text = str(caught.value)
        assert text.startswith("counter: ValueError: no such thing\nTraceback")
        assert text.count("raise ValueError") == 1

    def test_messages_are_counted_by_sender(self):
        launcher = ThreadLauncher()
        handle = launcher.start("counter", Counter, 0)
        for _ in range(3):
            handle.by("actor").once.add(1)
        handle.once.add(1)
        assert handle.messages() == {"actor>add": 3, "driver>add": 1}


class TestPlan:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"actors": 0}, "actors must be greater than 0"),
            ({"max_staleness": -1}, "max_staleness must be 0 or more"),
            ({"retries": 0}, "retries must be at least 1"),
            ({"recipe": "impala", "backups": 1}, "backups are for synchronous recipes"),
        ],
    )
    def test_senseless_plans(self, options, said):
        with pytest.raises(OptionError, match=said):
            ClusterPlan(**options)

    def test_unknown_recipe(self):
        with pytest.raises(UnknownNameError, match="Did you mean 'impala'"):
            _ = ClusterPlan("impla").sync_mode

    def test_copies_are_dealt_evenly(self):
        assert ClusterPlan(actors=4).share(Experiment("mpe/simple_spread", num_envs=64)) == 16
        with pytest.raises(OptionError, match=r"multiple of the number of actors, 3, got 64\. Try 66"):
            ClusterPlan(actors=3).share(Experiment("mpe/simple_spread", num_envs=64))


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, ValueError])
def test_whatever_is_raised_in_a_service_comes_to_the_caller_in_words(error):
    class Rude:
        def leave(self):
            raise error

    handle = ThreadLauncher().start("rude", Rude)
    with pytest.raises(WorkerError, match=rf"^rude: {error.__name__}: ") as caught:
        handle.once.leave()
    assert caught.value.line == f"{error.__name__}: "
    assert WorkerError("").line == "it failed without a word"


@pytest.mark.parametrize(
    "line",
    [
        {"begun": ["actor-0"], "times": 1},
        {"begun": "actor-0"},
        {"begun": "actor-0", "times": "often"},
        {"begun": "actor-0", "times": float("nan")},
        {"begun": "actor-0", "times": -1},
        {"begun": "actor-0", "times": 10**30},
        {"begun": "actor-0", "times": True},
    ],
)
def test_a_forged_journal_is_refused_in_a_line(tmp_path, line):
    (tmp_path / "journal.jsonl").write_text(json.dumps({"committed": 3}) + "\n" + json.dumps(line) + "\n")
    with pytest.raises(RunError, match=r"journal\.jsonl is no journal of a run") as caught:
        Coordinator(str(tmp_path), ClusterPlan(), 10)
    assert "\n" not in str(caught.value)
