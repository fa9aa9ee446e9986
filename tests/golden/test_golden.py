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
    wrong = record.differences(name, results[name], record.summarise(*run(name)), where == record.place())
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
    (wrong,) = record.differences("ppo", recorded[1]["ppo"], found, True)
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
    assert (not record.differences("ppo", mine, other, True)) == (change == 0.0)
    assert (not record.differences("ppo", mine, other, False)) == elsewhere
    monkeypatch.setattr(record, "RECORDED_AGAIN", {"ppo": "another order of operations"})
    assert (not record.differences("ppo", mine, other, True)) == as_listed


def test_another_return_or_another_number_of_weights_is_seen():
    mine = made(KERNEL)
    assert record.differences("ppo", mine, made(KERNEL, -14.22069), True) == [
        'ppo: returns were {"agent": -14.22068}, now {"agent": -14.22069}'
    ]
    assert not record.differences("ppo", mine, made(KERNEL, -14.22069), False)
    assert record.differences("ppo", mine, made(KERNEL, -16.0), False)
    fewer = dataclasses.replace(mine, count=mine.count - 1)
    assert record.differences("ppo", mine, fewer, False) == ["ppo: the policies held 50 numbers, now 49"]


def test_names_and_order_do_not_matter():
    other = {"a": {"b": KERNEL.T[::-1]}, "z": -np.zeros(5, np.float32), "n": np.array(3)}  # 0 and -0 are one value
    assert record.summarise({"agent": -14.22068}, other) == made(KERNEL)
    with pytest.raises(ValueError, match="NaN"):
        made(np.full((1,), np.nan, np.float32))
