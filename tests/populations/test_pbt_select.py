"""Exploit and explore, by hand on five members, and at the edges."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.core.errors import OptionError
from shoal.populations.pbt import select as pbt
from shoal.populations.pbt.select import exploit

sources = jax.jit(pbt.sources, static_argnums=2)  # quicker than one operation after the other
explore = jax.jit(pbt.explore, static_argnums=2)


@dataclasses.dataclass(frozen=True)
class Within:
    start: float
    stop: float
    log: bool = False


RATES, SHARES = Within(1.0, 16.0, log=True), Within(0.0, 1.0)
VALUES = {"rate": jnp.array([1.0, 2.0, 4.0, 8.0, 16.0]), "share": jnp.array([0.1, 0.2, 0.3, 0.5, 0.95])}
SCORES = jnp.array([3.0, jnp.nan, 1.0, 5.0, 2.0])
"""The best are 3 and 0; the worst are 1, which has failed, and 2."""


def outcomes(count=64, **options):
    step = jax.jit(jax.vmap(lambda key: exploit(key, SCORES, VALUES, {"rate": RATES, "share": SHARES}, **options)))
    source, values = jax.device_get(step(jax.random.split(jax.random.key(0), count)))
    return [(source[i].tolist(), {name: found[i].tolist() for name, found in values.items()}) for i in range(count)]


def test_five_members_by_hand():
    """Copies of 3 have a rate of 8 * 2 or 8 / 2, those of 0 one of 1 * 2 or, clipped, 1; shares move by 0.1."""
    rates, shares = {3: {16.0, 4.0}, 0: {2.0, 1.0}}, {3: {0.6, 0.4}, 0: {0.2, 0.0}}
    seen = set()
    for source, values in outcomes(fraction=0.4, factor=1.1, resample=0.0):
        assert (source[0], source[3], source[4]) == (0, 3, 4)
        for member in (1, 2):
            assert source[member] in (0, 3)
            share = round(values["share"][member], 6)
            assert share in shares[source[member]]
            seen.add((member, source[member], share))
        for member in (0, 3, 4):
            assert values["share"][member] == pytest.approx(VALUES["share"][member])
    assert len(seen) == 8  # every combination comes up
    found = {
        (source[2], values["rate"][2], values["rate"][1])
        for source, values in outcomes(fraction=0.4, factor=2.0, resample=0.0)
    }
    assert {rate for one, rate, _ in found if one == 3} == rates[3]
    assert {rate for one, rate, _ in found if one == 0} == rates[0]
    assert {rate for _, _, rate in found} == rates[0] | rates[3]


def test_a_small_share_replaces_the_worst_and_whoever_failed():
    """One of five: the best is 3, the worst has failed."""
    assert {tuple(source) for source, _ in outcomes(8, fraction=0.2)} == {(0, 3, 2, 3, 4)}
    scores = jnp.array([jnp.nan, -jnp.inf, jnp.inf, 1.0, 0.0])
    assert sources(jax.random.key(0), scores, 0.2).tolist() == [3, 3, 3, 3, 4]


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([jnp.nan] * 4, [0, 1, 2, 3]),
        ([2.0] * 4, [0, 1, 2, 3]),
        ([0.0, 1.0], [1, 1]),
        ([jnp.nan, 1.0], [1, 1]),
        ([1.0, 1.0, 1.0, 0.5], [0, 1, 2, 0]),
    ],
    ids=["all failed", "all the same", "two", "one failed", "ties among the best"],
)
def test_edges(scores, expected):
    assert sources(jax.random.key(3), jnp.array(scores), 0.25).tolist() == expected


def test_how_many():
    """0.29 of 100 is 29, although the product is a little less."""
    source = np.asarray(sources(jax.random.key(0), jnp.arange(100.0), 0.29))
    assert (source[:29] >= 71).all()
    assert (source[29:] == np.arange(29, 100)).all()


def test_the_same_key_gives_the_same_answer_compiled_or_not():
    ranges = {"rate": RATES, "share": SHARES}
    plain = exploit(jax.random.key(5), SCORES, VALUES, ranges, 0.4)
    compiled = jax.jit(lambda key, scores: exploit(key, scores, VALUES, ranges, 0.4))(jax.random.key(5), SCORES)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-6), plain, compiled)
    assert plain[0].dtype == jnp.int32


def test_drawn_anew_is_uniform_on_the_own_scale():
    old = jnp.full(4000, 1.0)
    rates = np.asarray(explore(jax.random.key(0), old, RATES, 1.2, 1.0))
    assert 0.47 < np.mean(rates < 4.0) < 0.53  # half of the logarithms
    shares = np.asarray(explore(jax.random.key(0), old, SHARES, 1.2, 1.0))
    assert 0.47 < np.mean(shares < 0.5) < 0.53
    some = np.asarray(explore(jax.random.key(0), jnp.full(4000, 2.0), RATES, 2.0, 0.25))
    near = (some == 1.0) | (some == 4.0)
    assert 0.72 < near.mean() < 0.78
    assert 0.45 < (some[near] == 4.0).mean() < 0.55


@pytest.mark.parametrize("fraction", [0.0, 0.6, -1.0, float("nan")])
def test_impossible_fractions(fraction):
    with pytest.raises(OptionError, match=r"fraction must be greater than 0 and at most 0.5"):
        sources(jax.random.key(0), SCORES, fraction)
