"""What a driver notes over time: bounded, going on where a run goes on, and never in the way of the run."""

import itertools
import json

import pytest

from shoal.cluster import history
from shoal.cluster.history import EVERY, FILE, ClusterHistory, read_cluster_history
from shoal.core.errors import RunError


def noted(folder):
    return [json.loads(line) for line in (folder / FILE).read_text().splitlines()]


def test_lines_tell_queues_restarts_and_what_was_finished_since_the_line_before(tmp_path):
    kept = ClusterHistory(tmp_path)
    kept.add(1.0, {"dataset": 3}, 0, {"actor-0": 10, "actor-1": 20})
    kept.add(1.5, {"dataset": 4}, 0, {"actor-0": 11, "actor-1": 21})  # too early
    kept.add(5.0, {"dataset": 2}, 1, {"actor-0": 30, "actor-1": 4, "actor-2": 9})  # one began anew, one was added
    assert noted(tmp_path) == [
        {"seconds": 1.0, "queues": {"dataset": 3}, "restarts": 0, "rate": None},
        {"seconds": 5.0, "queues": {"dataset": 2}, "restarts": 1, "rate": 5.0},
    ]
    assert read_cluster_history(tmp_path) == noted(tmp_path)


def test_a_run_that_goes_on_goes_on_in_time_and_in_restarts(tmp_path):
    ClusterHistory(tmp_path).add(7.0, {}, 2, {})
    with (tmp_path / FILE).open("a") as file:
        file.write('{"seconds": 9')  # the driver was killed while it wrote
    following = ClusterHistory(tmp_path)
    following.add(0.5, {}, 0, {})  # too early
    following.add(10.0, {}, 1, {})
    assert [(line["seconds"], line["restarts"]) for line in noted(tmp_path)] == [(7.0, 2), (17.0, 3)]


def test_a_full_file_is_thinned_and_lines_become_rarer(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "MOST_LINES", 10)
    kept = ClusterHistory(tmp_path)
    for i in range(200):
        kept.add(EVERY * i, {}, 0, {})
    lines = [line["seconds"] for line in noted(tmp_path)]
    assert len(lines) < 10
    assert lines[0] == 0.0
    gaps = {b - a for a, b in itertools.pairwise(lines)}
    assert gaps == {kept.every}
    assert lines[-1] > EVERY * 200 - 2 * kept.every
    assert ClusterHistory(tmp_path).every >= kept.every / 2, "it stays as rare when the run goes on"


def test_a_link_is_refused(tmp_path):
    (tmp_path / "other").write_text("")
    (tmp_path / FILE).symlink_to(tmp_path / "other")
    with pytest.raises(RunError, match="regular file"):
        read_cluster_history(tmp_path)
    kept = ClusterHistory(tmp_path)
    with pytest.raises(RunError, match="regular file"):
        kept.add(0.0, {}, 0, {})
    assert (tmp_path / "other").read_text() == ""
