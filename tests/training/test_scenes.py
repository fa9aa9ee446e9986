"""Scenes along the learning curve: which points, the same bits without them, and nothing hostile is believed."""

import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from shoal import A2C, Network
from shoal.core import registry
from shoal.core.errors import OptionError, RunError
from shoal.training import scenes
from shoal.training.experiment import Experiment, Learner
from shoal.training.run import weights_sha256
from shoal.training.runner import resume, run
from shoal.training.scene_files import (
    MOST_BYTES,
    ScenePoint,
    crowded,
    read_plan,
    read_scene,
    read_scenes,
    write_plan,
    write_scene,
)
from shoal.training.scenes import sample_points

LEARNERS = {"agent": Learner(A2C(network=Network(hidden=(4,))), {"agent": ("agent",)})}
SMALL = {"num_envs": 4, "num_steps": 5}
DRIFT = str(Path(__file__).parents[1] / "worlds" / "drift.py")


@pytest.fixture(scope="module")
def experiment():
    return Experiment("mpe/simple", {"max_steps": 5}, learners=LEARNERS, **SMALL, total_env_steps=20 * 12)


@pytest.fixture(scope="module")
def watched(experiment, tmp_path_factory):
    """A run of twelve updates that keeps five scenes; its folder and its result."""
    folder = tmp_path_factory.mktemp("runs") / "watched"
    return folder, run(experiment, folder, scenes=5)


@pytest.fixture
def point(watched):
    return read_scene(read_scenes(watched[0])[-1].path)


def test_points_are_dense_early_and_include_both_ends():
    assert sample_points(100, 5) == [0, 12, 35, 65, 100]
    assert sample_points(2, 20) == [0, 1, 2]
    assert sample_points(9, 1) == [9]
    assert sample_points(9, 0) == []


def test_a_watched_run_has_the_same_weights(watched, experiment):
    folder, result = watched
    assert weights_sha256(result.policies) == weights_sha256(run(experiment).policies)
    points = read_scenes(folder)
    assert [point[:2] for point in points] == [(update, 20 * update) for update in sample_points(12, 5)]
    first, last = (read_scene(point.path) for point in (points[0], points[-1]))
    assert first["data"]["length"] == last["data"]["length"] == 6
    assert last["data"]["subtitle"] == "after 12 updates, 240 env steps"
    assert first["returns"].keys() == {"agent"}
    assert first["data"]["circles"] != last["data"]["circles"], "another policy plays"
    assert read_plan(folder) == 5


def test_a_point_of_an_early_version_has_no_label(point, tmp_path):
    assert point["label"] == "", "of a single training"
    path = tmp_path / "0000000012-240.json"
    path.write_text(json.dumps(changed(point, "label", ...)))
    assert read_scene(path) == point


def test_of_several_seeds_the_first_is_shown(watched, experiment, tmp_path):
    run(experiment.replace(num_seeds=2, total_env_steps=40), tmp_path / "seeds", scenes=2)
    first, alone = (read_scene(read_scenes(folder)[0].path) for folder in (tmp_path / "seeds", watched[0]))
    assert first == alone


def test_a_resumed_run_goes_on_with_as_many(watched, tmp_path):
    folder = shutil.copytree(watched[0], tmp_path / "run")
    resume(folder, total_env_steps=20 * 24)
    points = [point.update for point in read_scenes(folder)]
    assert len(points) == 5
    assert (points[0], points[-1]) == (0, 24)
    resume(folder, total_env_steps=20 * 26, scenes=0)
    assert [point.update for point in read_scenes(folder)] == points


def test_a_short_run_keeps_none_unless_asked(experiment, tmp_path, monkeypatch):
    run(experiment.replace(total_env_steps=20), tmp_path / "short")
    assert not (tmp_path / "short" / "scenes").exists()
    monkeypatch.setattr(scenes, "LATE", 0.0)
    monkeypatch.setattr(scenes, "AFTER", 1e9)
    run(experiment.replace(total_env_steps=20), tmp_path / "late")
    assert [point.update for point in read_scenes(tmp_path / "late")] == [0, 1]


def test_what_fails_does_not_fail_the_run(experiment, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(scenes, "write_scene", full)
    with pytest.warns(UserWarning, match="kept no more scenes: OSError: .*No space left on device"):
        result = run(experiment.replace(total_env_steps=40), tmp_path / "run", scenes=2)
    assert result.update == 2


class Watch:
    """A clock that moves only while a point is played, or when it is told to; and what a sampler has played by it."""

    def __init__(self, monkeypatch, costs):
        self.now, self.played, self.costs = 0.0, [], iter(costs)
        monkeypatch.setattr(scenes.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(scenes, "write_scene", lambda folder, update, most: self.played.append(update))
        monkeypatch.setattr(scenes.SceneSampler, "_record", self.record)
        monkeypatch.setattr(scenes.threading, "Thread", self.start)

    def record(self, sampler, update, *_):
        self.now += next(self.costs)
        return update

    def start(self, target, **_):
        """In place of a thread: `wake` does its work at once."""
        return SimpleNamespace(start=lambda: None, join=lambda: None)

    def run(self, experiment, folder, seconds_each, *, asked, compiling=0.0, hosted=False):
        """A run of 100 updates with points at 0, 50 and 100; what was played after each of them, and at the end."""
        sampler = scenes.SceneSampler(experiment.setup, folder, 100, 3, asked)
        sampler.points, sampler.hosted = [0, 50, 100], hosted
        sampler.begin(compiling)
        sampler._wake = SimpleNamespace(set=lambda: sampler._closing or sampler._play_waiting(sampler._affordable))
        found = []
        for before, update in zip([0, 0, 50], sampler.points, strict=True):
            self.now += seconds_each * (update - before)
            sampler.take(update, update, {})
            found.append([*self.played])
        sampler.close()
        return [*found, [*self.played]]


CASES = {
    "short": (10.0, [2.0, 0.1, 0.1], False, 0.0, [[], [], [], []]),
    "too-short-to-compile": (60.0, [2.0, 0.1, 0.1], False, 2.0, [[], [], [], [100, 0, 50]]),
    "long": (300.0, [2.0, 0.1, 0.1], False, 2.0, [[], [0, 50], [0, 50, 100], [0, 50, 100]]),
    "compiles-longer-than-training": (300.0, [7.0, 0.1, 0.1], False, 2.0, [[], [0], [0], [0, 100, 50]]),
    "slow-episodes": (100.0, [1.0, 9.0, 9.0], False, 1.0, [[], [0, 50], [0, 50], [0, 50, 100]]),
    "very-slow-episodes": (100.0, [1.0, 19.0, 9.0], False, 1.0, [[], [0, 50], [0, 50], [0, 50]]),
    "asked": (10.0, [2.0, 0.1, 0.1], True, 2.0, [[0], [0], [0], [0, 100, 50]]),
}


@pytest.mark.parametrize("hosted", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_points_wait_until_playing_them_is_within_the_share(experiment, tmp_path, monkeypatch, case, hosted):
    """The share is that of the whole run, as expected from its speed, and compiling counts."""
    total, costs, asked, compiling, expected = CASES[case]
    watch = Watch(monkeypatch, costs)
    found = watch.run(experiment, tmp_path, total / 100, asked=asked, compiling=compiling, hosted=hosted)
    assert found == expected


def test_policies_that_wait_are_bounded(experiment, tmp_path, monkeypatch):
    monkeypatch.setattr(scenes, "WAITING", 100)
    watch = Watch(monkeypatch, [1.0] * 3)
    sampler = scenes.SceneSampler(experiment.setup, tmp_path, 100, 5, True)
    monkeypatch.setattr(sampler, "_affordable", lambda: False)
    for update in sampler.points:
        sampler.take(update, update, {"agent": np.zeros(10, np.float32)})
    sampler.close()
    assert watch.played == [100, 35, 65], "the oldest are gone"


@pytest.mark.slow
def test_environments_that_draw_themselves(tmp_path, monkeypatch):
    pytest.importorskip("gymnasium", reason="Gymnasium is not installed: pip install gymnasium")
    monkeypatch.setattr(registry, "_files", {})
    registry.import_file(DRIFT)
    drift = Experiment("gymnasium:Drift-v0", {"length": 4}, learners=LEARNERS, num_envs=2, num_steps=2)
    run(drift.replace(total_env_steps=8), tmp_path / "run", scenes=2)
    (first, last) = (read_scene(point.path) for point in read_scenes(tmp_path / "run"))
    assert (first["update"], last["update"]) == (0, 2)
    assert first["page"] == "film.html"
    assert len(first["data"]["frames"]) == 5
    assert first["data"]["kind"] in ("webp", "png")
    monkeypatch.setattr(scenes, "LATE", 0.0)
    run(drift.replace(total_env_steps=8), tmp_path / "unasked")
    assert read_scenes(tmp_path / "unasked") == []


@pytest.mark.parametrize(("scenes", "folder"), [(-1, "run"), (201, "run"), (True, "run"), (2, None)])
def test_numbers_that_mean_nothing(experiment, tmp_path, scenes, folder):
    with pytest.raises(OptionError, match="scenes"):
        run(experiment, folder and tmp_path / folder, scenes=scenes)
    assert not list(tmp_path.iterdir())


def test_the_closest_go_first():
    points = [ScenePoint(update, 0, Path()) for update in (0, 10, 11, 20, 40)]
    assert [point.update for point in crowded(points, 2)] == [11, 10]
    assert crowded(points[:2], 5) == []


def test_reading_needs_no_jax():
    code = "import sys, shoal.training.scene_files; sys.exit('jax' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def changed(point, *path_and_value):
    *path, value = path_and_value
    point = copy.deepcopy(point)
    inner = point
    for name in path[:-1]:
        inner = inner[name]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return point


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("format", 2), "point.format"),
        (("update", -1), "point.update"),
        (("update", 7), "another name"),
        (("label", 5), "point.label"),
        (("label", "a" * 201), "label must be at most 200 letters"),
        (("label", "a\nb"), "label must be at most 200 letters"),
        (("page", "../../etc/passwd"), "page must be one of"),
        (("data", ...), "no entry 'data'"),
        (("data", "length", 10**9), "data.length"),
        (("data", "fps", 0), "data.fps"),
        (("data", "bounds", [0, 0, 0, 0]), "data.bounds"),
        (("data", "ends", [99]), "data.ends"),
        (("data", "circles", "points", "shape", [6, 10**6, 1, 2]), r"bytes|shape"),
        (("data", "circles", "points", "data", "<script>"), "not base64"),
        (("data", "circles", "visible", "type", "f64"), "type must be bits"),
        (("data", "circles", "names", ["a"] * 9), "a text for each"),
        (("data", "circles", "radius", ...), "radius"),
        (("data", "series", None), "data.series"),
        (("returns", {"agent": "x"}), "returns.agent"),
    ],
)
def test_a_changed_point_is_refused(point, tmp_path, change, words):
    path = tmp_path / "0000000012-240.json"
    path.write_text(json.dumps(changed(point, *change)))
    with pytest.raises(RunError, match=words):
        read_scene(path)


def test_a_hostile_folder(point, tmp_path):
    inside, outside = tmp_path / "run", tmp_path / "outside"
    outside.mkdir()
    (outside / "0000000012-240.json").write_text(json.dumps(point))
    inside.mkdir()
    (inside / "scenes").symlink_to(outside)
    with pytest.raises(RunError, match="must be a folder"):
        read_scenes(inside)
    with pytest.raises(RunError, match="must be a folder"):
        write_scene(inside, point, 5)
    (inside / "scenes").unlink()
    write_plan(inside, 3)
    (inside / "scenes" / "0000000012-240.json").symlink_to(outside / "0000000012-240.json")
    (inside / "scenes" / "1-2.json.exe").write_text("{}")
    os.mkfifo(inside / "scenes" / "0000000001-20.json")
    assert read_scenes(inside) == []
    with pytest.raises(RunError, match="a link"):
        read_scene(inside / "scenes" / "0000000012-240.json")
    large = inside / "scenes" / "0000000002-40.json"
    large.write_bytes(b" " * (MOST_BYTES + 1))
    with pytest.raises(RunError, match="too large"):
        read_scene(large)
    large.write_text("[" * 10_000)
    with pytest.raises(RunError, match="no scene of a run"):
        read_scene(large)
    (inside / "scenes" / "points.json").write_text('{"points": 1e99}')
    with pytest.raises(RunError, match=r"points\.json is damaged"):
        read_plan(inside)
