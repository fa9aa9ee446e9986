"""Whole runs on a cluster belong to `make test-all`.

To `make test`: the services alone, what is refused, runs whose messages are counted, and some deaths.
"""

from pathlib import Path

import pytest

FILES = ("test_services.py", "test_tasks.py", "test_replay.py", "test_clock.py")
QUICK = (
    "TestBadInput",
    "by_hand",
    "damaged",
    "test_synchronous_equals_fused[mpe/simple_spread-2]",
    "test_what_cannot_work",
    "refused",
    # what travels
    "test_actors_pull_no_weights",
    "test_only_seeds_and_returns_travel",
    "test_a3c_moves_gradients",
    "test_actors_set_priorities_and_the_learner_only_corrects_them[apex",
    # who dies
    "test_whoever_dies_the_run_ends_with_all_updates[actor-0-sync]",
    "test_whoever_dies_the_run_ends_with_all_updates[learner-0-stale]",
    "test_whoever_dies_the_run_ends_with_all_updates[coordinator-stale]",
    "test_whoever_dies_apex_ends_with_all_updates[replay-0]",
    "test_shot_processes_come_back",
    "test_an_environment_that_raises",
    "test_an_environment_that_always",
    "test_an_environment_that_hangs",
    "test_an_environment_that_ends_its_actor_is_named_in_the_run[SystemExit]",
    "test_what_is_forgiven",
    "test_a_world_that_gave_nan",
    "test_nan_now_and_then",
    "is_cut_short_before_it_and_another_begun[observation]",
    "gets_the_usual_words[False-KeyboardInterrupt]",
    "test_a_full_disk",
)


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        quick = item.path.name in FILES or any(name in item.nodeid for name in QUICK)
        if here in item.path.parents and not quick:
            item.add_marker(pytest.mark.slow)
