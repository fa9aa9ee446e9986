"""What checkpoints keep beside arrays: bounded, checked, and the same lines of metrics whoever wrote it."""

import json

import numpy as np
import pytest

from shoal.core.errors import RunError
from shoal.training import checkpoint, records
from shoal.training.metrics import Aggregator, read_metrics

NAMES = ("episodes", "length", "return/a", "return/b", "loss", "fault")
ROWS = np.random.default_rng(0).normal(size=(23, 3, len(NAMES))).astype(np.float32) ** 2
LAST = 23


def lines_of(shape, split=None, early=False):
    """Lines over ten updates each; stopped after `split` rows and picked up from plain JSON, if it is given."""
    rows = ROWS if shape else ROWS[:, 0]
    aggregator = Aggregator(NAMES, 10, 4)
    if split is None:
        return aggregator.add(rows, LAST)
    lines = aggregator.add(rows[:split], LAST)
    pending = aggregator.pending()
    if early:
        pending = [row.tolist() for row in rows[split - split % 10 : split]]
    going_on = Aggregator(NAMES, 10, 4)
    going_on.restore(split, json.loads(json.dumps(pending)), LAST, shape)
    return lines + going_on.add(rows[split:], LAST)


@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("split", [0, 1, 7, 10, 19, 22])
def test_a_resumed_run_writes_the_lines_of_an_undisturbed_one(shape, split, early):
    assert lines_of(shape, split, early) == lines_of(shape)


def test_a_line_is_made_of_sums_and_means():
    first = lines_of(())[0]
    rows = ROWS[:10, 0].astype(np.float64)
    assert first["update"] == 10
    assert first["return/a"] == round(rows[:, 2].sum() / rows[:, 0].sum(), 6)
    assert first["loss"] == round(rows[:, 4].mean(), 6)
    assert lines_of(())[-1]["loss"] == round(ROWS[20:, 0, 4].astype(np.float64).mean(), 6)


def test_unwritten_metrics_do_not_grow():
    aggregator = Aggregator(NAMES, 10_000, 4)
    sizes = []
    for _ in range(3):
        aggregator.add(np.ones((3000, len(NAMES)), np.float32), 10_000)
        sizes.append(len(json.dumps(aggregator.pending())))
    assert max(sizes) < 100


def test_sums_that_are_not_finite_come_back_as_nothing():
    rows = np.array([[1.0, 1.0, np.nan, np.inf, 1.0, 0.0]], np.float32)
    aggregator = Aggregator(NAMES, 2, 4)
    aggregator.add(rows, 9)
    going_on = Aggregator(NAMES, 2, 4)
    going_on.restore(1, json.loads(json.dumps(aggregator.pending(), allow_nan=False)), 9)
    line = going_on.add(rows, 9)[0]
    assert (line["return/a"], line["return/b"], line["loss"]) == (None, None, 1.0)


@pytest.mark.parametrize(
    "pending",
    [
        [],
        [[1.0] * 6],
        [[1.0]] * 3,
        [["x"] * 6] * 3,
        [{}] * 3,
        {},
        {"count": 2, "sums": [1.0] * 6},
        {"count": 3, "sums": [1.0]},
    ],
)
def test_unwritten_metrics_that_do_not_fit(pending):
    with pytest.raises(ValueError, match=r"pending|could not convert"):
        Aggregator(NAMES, 10, 4).restore(3, pending, 100)


META = {"update": 3, "env_steps": 12, "devices": 1, "seconds": 0.5, "pending": []}


def saved(folder, **changes):
    meta = {name: value for name, value in (META | changes).items() if value is not ...}
    return checkpoint.save(folder, 3, {"w": np.ones(2)}, meta)


def test_progress_that_is_sound(tmp_path):
    assert records.read_progress(saved(tmp_path), 3) == META


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"update": 4}, "meta.update must be between 0 and 3, got 4"),
        ({"update": "3"}, "meta.update must be a whole number"),
        ({"devices": 0}, "meta.devices must be between 1"),
        ({"seconds": -1.0}, "meta.seconds must be a time"),
        ({"seconds": 1e300}, "meta.seconds must be"),
        ({"pending": None}, "meta.pending must be unwritten metrics"),
        ({"env_steps": ...}, "meta has no entry 'env_steps'"),
        ({"pbt": {"member": 2, "scores": [1.0], "values": {}}}, "meta.pbt.member must be one of the members"),
        ({"pbt": {"member": 0, "scores": [1.0], "values": {"a": []}}}, "one value for each member"),
    ],
)
def test_progress_that_no_run_writes(tmp_path, changes, words):
    path = saved(tmp_path, **changes)
    with pytest.raises(RunError, match=words) as caught:
        records.read_progress(path, 3)
    assert str(path) in str(caught.value)


def test_weights_that_are_not_finite_are_said(tmp_path):
    records.check_finite(tmp_path, {"a": {"w": np.ones(3), "n": np.arange(3)}})
    for value in (np.nan, np.inf):
        with pytest.raises(RunError, match=r"NaN or infinity in its weights \(a/w\)"):
            records.check_finite(tmp_path, {"a": {"w": np.array([1.0, value], np.float32)}})


def test_a_run_that_lost_its_checkpoints_does_not_begin_anew(tmp_path):
    assert records.newest_checkpoint(tmp_path) is None
    (tmp_path / "metrics.jsonl").write_text("")
    assert records.newest_checkpoint(tmp_path) is None
    (tmp_path / "metrics.jsonl").write_text('{"update": 1}\n')
    with pytest.raises(RunError, match="no checkpoint to resume from: its checkpoints were removed"):
        records.newest_checkpoint(tmp_path)
    path = saved(tmp_path / "checkpoints")
    assert records.newest_checkpoint(tmp_path) == path


def test_checkpoints_that_are_elsewhere(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    for step in range(5):
        checkpoint.save(outside, step, {"w": np.ones(2)}, META, keep=9)
    (outside / "step-0000000009.npz.tmp").write_text("precious")
    (tmp_path / "checkpoints").symlink_to(outside)
    before = sorted(outside.iterdir())
    for attempt in (
        lambda: checkpoint.save(tmp_path / "checkpoints", 7, {"w": np.ones(2)}, META),
        lambda: checkpoint.latest(tmp_path / "checkpoints"),
        lambda: checkpoint.read_meta(tmp_path / "checkpoints" / "step-0000000004.npz"),
    ):
        with pytest.raises(RunError, match="checkpoints is a link, and must be a folder"):
            attempt()
    assert sorted(outside.iterdir()) == before


def test_lines_that_no_run_writes_end_the_metrics(tmp_path):
    fine = '{"update": 1, "env_steps": 4, "return/a": [1.5, null], "seconds": 0.1}\n'
    for bad in ('{"update": 2}', '{"update": 2, "env_steps": "x"}', '{"update": 2, "env_steps": 8, "x": {}}'):
        (tmp_path / "metrics.jsonl").write_text(fine + bad + "\n" + fine)
        assert [line["update"] for line in read_metrics(tmp_path / "metrics.jsonl")] == [1]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            [{"x": 1.0}] * 2000 + [{"x": [0] * 20_000}],
            "line 2001 makes it a table of 3 metrics with up to 20,000 numbers",
        ),
        ([{f"x{i}": 1 for i in range(5000)}], "a table of 5,002 metrics"),
        ([{"x" * 201: 1}], "a metric named 'x+', 201 letters"),
        ([{"a\nb": 1}], r"a metric named 'a\\nb', 3 letters"),
    ],
)
def test_metrics_of_more_than_a_run_writes_are_refused(tmp_path, lines, words):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"update": 1, "env_steps": 4} | line) + "\n" for line in lines))
    with pytest.raises(RunError, match=rf"^\S*metrics.jsonl is not what a run writes: .*{words}") as caught:
        read_metrics(path)
    assert len(str(caught.value).splitlines()) == 1


def test_long_lists_in_every_line_are_read(tmp_path):
    line = json.dumps({"update": 1, "env_steps": 4, "return": [0.5] * 5000}) + "\n"
    (tmp_path / "metrics.jsonl").write_text(line * 200)  # as a sweep of 5,000 points writes them
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 200
