"""A learner's time, worked out by hand."""

import time

import pytest

from shoal.cluster.services.clock import Clock


@pytest.fixture
def now(monkeypatch):
    """A clock that stands still until it is set."""
    at = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: at[0])
    return at


def test_the_first_update_counts_as_long_as_the_second(now):
    clock = Clock(before=7.0)
    now[0] = 120.0
    clock.spend("learn", since=101.0)
    assert clock.seconds == 7.0  # nothing is made yet
    clock.count_update()
    assert (clock.seconds, clock.compile_seconds) == (7.0, 20.0)
    assert clock.figures["spent"] == {}  # what compiled tells nothing of what follows
    now[0] = 122.0
    clock.spend("wait", since=120.0, until=120.5)
    clock.spend("learn", since=120.5)
    clock.count_update()
    assert (clock.seconds, clock.compile_seconds) == (11.0, 18.0)  # two updates of 2 s
    now[0] = 125.0
    clock.spend("learn", since=122.0)
    clock.count_update()
    assert clock.seconds == 14.0
    assert clock.figures == {"seconds": 14.0, "compile_s": 18.0, "spent": {"wait": 0.5, "learn": 4.5}, "made": 2}


def test_a_second_update_that_took_longer_than_all_before_leaves_no_time_for_compiling(now):
    clock = Clock()
    now[0] = 101.0
    clock.count_update()
    now[0] = 104.0
    clock.count_update()
    assert (clock.seconds, clock.compile_seconds) == (4.0, 0.0)
