"""Runs give what they gave when `results.json` was recorded."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from tests.golden import record
from tests.golden.cases import CASES

run = functools.cache(record.run)


@pytest.fixture(scope="module")
def recorded():
    return record.read()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if case.quick else pytest.mark.slow) for name, case in CASES.items()]
)
def test_as_recorded(recorded, name):
    where, results = recorded
    found = record.summarise(*run(name))
    wrong = record.compare(name, results[name], found, where, record.read_digests())
    assert not wrong, "\n".join(wrong)


def test_every_case_is_recorded_and_nothing_else(recorded):
    assert list(recorded[1]) == list(CASES)
    assert set(record.RECORDED_AGAIN) <= set(CASES)


def test_one_weight_that_differs_is_seen(recorded):
    """Of a real run: the smallest change of any one weight."""
    returns, policies = run("ppo")
    leaves, structure = jax.tree.flatten(jax.tree.map(np.array, policies))
    sizes = [leaf.size if leaf.dtype == np.float32 else 0 for leaf in leaves]
    weight = leaves[int(np.argmax(sizes))].reshape(-1)[:1]
    weight[:] = np.nextafter(weight, np.float32(np.inf))
    found = record.summarise(returns, jax.tree.unflatten(structure, leaves))
    (wrong,) = record.differences("ppo", recorded[1]["ppo"], found, 0.0)
    assert wrong.startswith("ppo: other weights")


def made(kernel, returns=-14.22068):
    return record.summarise({"agent": returns}, {"kernel": kernel, "bias": np.zeros(5, np.float32), "n": np.array(3)})


KERNEL = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)


@pytest.mark.parametrize(
    ("change", "as_listed", "elsewhere"),
    [(0.0, True, True), (3e-7, True, True), (1e-5, False, True), (1e-2, False, False)],
)
def test_how_far_weights_may_be(monkeypatch, change, as_listed, elsewhere):
    """To the bit where they were recorded; to rounding if that is said; less elsewhere."""
    mine, other = made(KERNEL), made(KERNEL + np.float32(change))
    assert (not record.differences("ppo", mine, other, 0.0)) == (change == 0.0)
    assert (not record.differences("ppo", mine, other, record.ELSEWHERE)) == elsewhere
    monkeypatch.setattr(record, "RECORDED_AGAIN", {"ppo": "another order of operations"})
    assert (not record.differences("ppo", mine, other, 0.0)) == as_listed


def test_a_model_of_cpu_has_digests_of_its_own(monkeypatch, tmp_path):
    """To the bit as on this model before; on a model that nobody recorded as near as its rounding allows."""
    mine, near, far = (made(KERNEL + np.float32(change)) for change in (0.0, 3e-7, 1e-3))
    here, digests = record.place(), {"ppo": near.sha256}
    assert not record.compare("ppo", mine, near, here, {})
    assert record.compare("ppo", mine, far, here, {})
    assert not record.compare("ppo", mine, near, here, digests)
    assert record.compare("ppo", mine, mine, here, digests)[0].startswith(
        "ppo: other weights than before on this model"
    )
    path = tmp_path / "digests.json"
    path.write_text("{}")
    record.write_digests(digests, path)
    assert record.read_digests(path) == digests
    monkeypatch.setattr(record, "model", lambda: "another")
    assert record.read_digests(path) == {}


def test_another_return_or_another_number_of_weights_is_seen():
    mine = made(KERNEL)
    assert record.differences("ppo", mine, made(KERNEL, -14.22069), 0.0) == [
        'ppo: returns were {"agent": -14.22068}, now {"agent": -14.22069}'
    ]
    assert not record.differences("ppo", mine, made(KERNEL, -14.22069), record.ELSEWHERE)
    assert record.differences("ppo", mine, made(KERNEL, -16.0), record.ELSEWHERE)
    fewer = dataclasses.replace(mine, count=mine.count - 1)
    assert record.differences("ppo", mine, fewer, record.ELSEWHERE) == ["ppo: the policies held 50 numbers, now 49"]


def test_names_and_order_do_not_matter():
    other = {"a": {"b": KERNEL.T[::-1]}, "z": -np.zeros(5, np.float32), "n": np.array(3)}  # 0 and -0 are one value
    assert record.summarise({"agent": -14.22068}, other) == made(KERNEL)
    with pytest.raises(ValueError, match="NaN"):
        made(np.full((1,), np.nan, np.float32))
