"""Strategies over vectors: steps by hand, agreement with evosax, chains of seeds, ERL's genetic algorithm."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from shoal.core.errors import OptionError, ShoalError, UnknownNameError
from shoal.populations.evolution.evosax_strategy import _algorithms
from shoal.populations.evolution.search import centred_ranks
from shoal.populations.evolution.seed_chain import decode
from shoal.populations.evolution.strategies import (
    ARS,
    ERL,
    Evosax,
    OpenES,
    SeedChainGA,
    Strategy,
    make_strategy,
)
from shoal.training.serialise import from_plain, to_plain

TARGET = jnp.array([0.5, -1.0, 2.0, 0.0])
PAIRS = jnp.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
"""Four members around 0: two steps and their opposites."""


def draw(key):
    return jax.random.normal(key, (4,))


def fitness(members):
    return -jnp.sum((members - TARGET) ** 2, axis=-1)


def search(strategy, population=32, generations=40, seed=0):
    """The fitness of the centre before and after."""
    state = jax.jit(lambda key: strategy.init(key, draw, population, generations))(jax.random.key(seed))

    def generation(state, key):
        for_ask, for_tell = jax.random.split(key)
        members, state = strategy.ask(for_ask, state, population)
        return strategy.tell(for_tell, members, fitness(members), state), members

    after, members = jax.jit(lambda state, keys: jax.lax.scan(generation, state, keys))(
        state, jax.random.split(jax.random.key(1), generations)
    )
    return float(fitness(strategy.centre(state))), float(fitness(strategy.centre(after))), after, members


def test_the_gradient_of_a_plane_by_hand():
    strategy = OpenES(std=1.0)
    state = strategy.init(jax.random.key(0), lambda key: jnp.zeros(2), 4, 1)
    heights = jnp.array([3.0, -1.0, -3.0, 1.0])  # of 3 x - y
    assert strategy.gradient(state, PAIRS, heights).tolist() == [1.5, -0.5]  # (3 + 3) / 4, (-1 - 1) / 4


def test_the_gradient_of_a_quadratic():
    """Of -|x - a|² at x it is -2 (x - a), whatever the std: here 2 a, to 5 standard errors."""
    strategy = OpenES(std=0.1)
    state = strategy.init(jax.random.key(0), lambda key: jnp.zeros(4), 40_000, 1)
    members, _ = strategy.ask(jax.random.key(1), state, 40_000)
    np.testing.assert_allclose(strategy.gradient(state, members, fitness(members)), 2 * TARGET, atol=0.2)


def test_members_come_in_opposite_pairs():
    strategy = OpenES(std=0.5)
    state = strategy.init(jax.random.key(0), draw, 10, 1)
    members, _ = strategy.ask(jax.random.key(1), state, 10)
    np.testing.assert_allclose(members[:5] + members[5:], jnp.broadcast_to(2 * state.mean, (5, 4)), atol=1e-6)


def test_ranks_by_hand():
    assert centred_ranks(jnp.array([10.0, -5.0, 1e9])).tolist() == [0.0, -0.5, 0.5]
    assert centred_ranks(jnp.array([1.0, 1.0, 2.0])).tolist() == [-0.25, -0.25, 0.5]  # equals share their rank


def test_a_step_of_ars_by_hand():
    """Pairs are worth max(3, -3) = 3 and max(-1, 1) = 1; the first counts: std of (3, -3) is 3, so a step of 6 / 3."""
    strategy = ARS(learning_rate=0.1, std=1.0, elite_share=0.5)
    state = strategy.init(jax.random.key(0), lambda key: jnp.zeros(2), 4, 1)
    state = strategy.tell(jax.random.key(1), PAIRS, jnp.array([3.0, -1.0, -3.0, 1.0]), state)
    np.testing.assert_allclose(state.mean, [0.2, 0.0], atol=1e-6)


@pytest.mark.parametrize("name", ["Open_ES", "ARS"])
def test_the_own_updates_equal_those_of_evosax(name):
    algorithms = pytest.importorskip("evosax.algorithms", reason="evosax is not installed")
    own, optimizer = {
        "Open_ES": (OpenES(learning_rate=0.1, std=0.3), optax.adam(0.1)),
        "ARS": (ARS(learning_rate=0.1, std=0.3), optax.sgd(0.1)),
    }[name]
    theirs = getattr(algorithms, name)(16, jnp.zeros(4), optimizer=optimizer, std_schedule=optax.constant_schedule(0.3))
    params = theirs.default_params
    mine = own.init(jax.random.key(0), draw, 16, 3)
    other = theirs.init(jax.random.key(0), mine.mean, params)

    @jax.jit
    def both(mine, other, key):
        members, mine = own.ask(key, mine, 16)
        asked, other = theirs.ask(key, other, params)
        told, _ = theirs.tell(key, asked, -fitness(asked), other, params)
        return own.tell(key, members, fitness(members), mine), told, members, asked

    for i in range(3):
        mine, other, members, asked = both(mine, other, jax.random.key(i))
        np.testing.assert_allclose(members, asked, atol=1e-5)
        np.testing.assert_allclose(mine.mean, other.mean, atol=1e-5)


@pytest.mark.parametrize(
    "strategy", [OpenES(), ARS(learning_rate=0.1), SeedChainGA(std=0.2), ERL()], ids=lambda one: one.name
)
def test_strategies_climb(strategy):
    before, after, _, _ = search(strategy)
    assert before < -1.0
    assert after > -0.2


@pytest.mark.parametrize("name", ["SNES", "simple_ga", "sv_open_es"])
def test_some_strategies_of_evosax_climb(name):
    pytest.importorskip("evosax", reason="evosax is not installed")
    before, after, _, _ = search(make_strategy(name))
    assert after > max(before + 1.0, -1.0)


@pytest.mark.slow
def test_every_strategy_of_evosax_runs():
    pytest.importorskip("evosax", reason="evosax is not installed")
    assert len(_algorithms()) > 30
    for name in _algorithms():
        _, after, _, members = search(Evosax(name), generations=10)
        assert members.shape == (10, 32, 4), name
        if name != "LM_MA_ES":  # which, by itself, runs into NaN in so few dimensions
            assert np.isfinite(after), name


def test_the_first_generation_of_a_population_is_as_drawn_and_valued():
    """evosax wants to know how fit it is before it breeds."""
    pytest.importorskip("evosax", reason="evosax is not installed")
    strategy = make_strategy("SimpleGA")
    state = strategy.init(jax.random.key(0), draw, 8, 2)
    members, asked = strategy.ask(jax.random.key(1), state, 8)
    assert (members == state.inner.population).all()
    state = strategy.tell(jax.random.key(2), members, fitness(members), asked)
    assert (strategy.centre(state) == members[jnp.argmax(fitness(members))]).all()


def test_options_of_evosax():
    pytest.importorskip("evosax", reason="evosax is not installed")
    algorithm, params = Evosax("cma-es", {"std": 0.7})._built(8, 4)
    assert type(algorithm).__name__ == "CMA_ES"
    assert params.std_init == 0.7
    with pytest.raises(OptionError, match="unknown option 'sdt'"):
        Evosax("CMA_ES", {"sdt": 1.0}).check(8)
    with pytest.raises(OptionError, match="must be even"):
        Evosax("evosax:Open_ES").check(7)
    with pytest.raises(OptionError, match="multiple of num_populations, 2, got 7"):
        Evosax("SV_CMA_ES").check(7)


def test_without_evosax_the_own_strategies_remain(monkeypatch):
    monkeypatch.setitem(sys.modules, "evosax", None)
    monkeypatch.setitem(sys.modules, "evosax.algorithms", None)
    with pytest.raises(ShoalError, match=r"pip install 'shoal-rl\[evolution\]'"):
        make_strategy("cma_es")


def test_chains_of_seeds_say_all():
    """Every parent's weights, after several generations, follow from its chain alone."""
    strategy = SeedChainGA(parents=5, std=0.1)
    _, _, state, members = search(strategy, population=16, generations=12)
    decoded = jax.jit(jax.vmap(lambda chain, length: decode(chain, length, 0.1, draw)))
    np.testing.assert_allclose(decoded(state.chains, state.length), state.parents, atol=1e-5)
    assert len(set(state.length.tolist())) > 1  # the elite goes on without a mutation
    assert max(state.length.tolist()) <= 13
    assert not np.allclose(decoded(state.chains, state.length - 1), state.parents, atol=1e-3)
    best = fitness(members).max(axis=1).tolist()
    assert best == sorted(best)  # the best is never lost


def test_erl_keeps_elites_and_takes_an_actor_in():
    strategy = ERL(elite_share=0.25, period=2)
    state = jax.jit(lambda key: strategy.init(key, draw, 8, 4))(jax.random.key(0))
    members, state = strategy.ask(jax.random.key(1), state, 8)
    told = jax.jit(strategy.tell)(jax.random.key(2), members, fitness(members), state)
    best = jnp.argsort(-fitness(members))[:2]
    assert (told.members[:2] == members[best]).all()
    assert not np.array_equal(told.members[2:], members[2:])
    actor = jnp.full(4, 7.0)
    assert int(told.generation) == 1
    assert (strategy.inject(told, actor).members == told.members).all()  # not yet
    later = strategy.inject(told.replace(generation=jnp.int32(2)), actor).members
    assert (later[-1] == actor).all()
    assert (later[:-1] == told.members[:-1]).all()


def test_a_good_actor_takes_over():
    strategy = ERL(mutated_share=0.0)
    state = jax.jit(lambda key: strategy.init(key, draw, 10, 9))(jax.random.key(0))
    state, tell = strategy.inject(state, TARGET), jax.jit(strategy.tell)
    for i in range(8):
        members, state = strategy.ask(jax.random.key(i), state, 10)
        state = tell(jax.random.key(i), members, fitness(members), state)
    assert (strategy.centre(state) == TARGET).all()
    assert float(jnp.mean(jnp.all(state.members == TARGET, axis=1))) > 0.5


@pytest.mark.parametrize("strategy", [OpenES(std=0.2), ARS(), SeedChainGA(parents=3), ERL(period=4)])
def test_strategies_are_plain_data(strategy):
    assert from_plain(Strategy, to_plain(strategy), "strategy") == strategy


def test_those_of_evosax_are_plain_data_too():
    pytest.importorskip("evosax", reason="evosax is not installed")
    strategy = Evosax("SNES", {"std": 0.5})
    assert from_plain(Strategy, to_plain(strategy), "strategy") == strategy


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: OpenES(std=0.0), "OpenES: std must be at least 1e-08"),
        (lambda: OpenES(learning_rate=-1.0), "learning_rate must be at least 0"),
        (lambda: ARS(elite_share=2.0), "elite_share must be at least 0.0 and at most 1.0, got 2.0"),
        (lambda: SeedChainGA(parents=0), "parents must be a whole number, at least 1"),
        (lambda: ERL(period=0), "period must be a whole number"),
        (lambda: ERL(super_share=0.7, reset_share=0.7), "at most 1"),
        (lambda: OpenES().check(1), "population must be a whole number, at least 2, got 1"),
        (lambda: OpenES().check(7), "population must be even.*got 7. Try 8"),
        (lambda: ARS().check(3), "antithetic"),
        (lambda: SeedChainGA().check(0), "at least 2"),
        (lambda: make_strategy("open_es", sigma=0.1), "unknown option 'sigma'"),
    ],
)
def test_bad_options(make, words):
    with pytest.raises(OptionError, match=words):
        make()


def test_an_unknown_strategy():
    pytest.importorskip("evosax", reason="evosax is not installed")
    with pytest.raises(UnknownNameError, match=r"unknown strategy 'cma_ess'\. Did you mean 'cma_es'"):
        make_strategy("cma_ess")
