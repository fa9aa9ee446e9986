"""Whole numbers that no world can count with, or that nobody means, are refused when the world is built."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import shoal
from shoal.core.checks import require_whole
from shoal.core.errors import OptionError
from shoal.core.registry import world_class

WHOLE = [
    (id, field.name)
    for id in shoal.ids()
    if not id.startswith("test/")
    for field in dataclasses.fields(world_class(id))
    if field.type is int
]
COUNTS = [
    ("mpe/simple_spread", "num_agents"),
    ("mpe/simple_adversary", "num_agents"),
    ("mpe/simple_tag", "num_good"),
    ("mpe/simple_tag", "num_adversaries"),
    ("mpe/simple_tag", "num_obstacles"),
    ("mpe/simple_world_comm", "num_food"),
    ("mpe/simple_world_comm", "num_forests"),
    ("tag/continuous", "num_runners"),
    ("tag/continuous", "num_turns"),
    ("tag/grid", "num_taggers"),
    ("battle/open", "num_agents"),
]


@pytest.mark.parametrize(("id", "option"), WHOLE)
def test_no_world_takes_more_than_32_bits(id, option):
    with pytest.raises(OptionError, match=rf"{id}: {option} must be .*at most .*got 2147483648"):
        shoal.make(id, **{option: 2**31})


@pytest.mark.parametrize(("id", "option"), COUNTS)
def test_counts_have_a_lower_limit(id, option):
    with pytest.raises(OptionError, match=f"{id}: {option} must be at most 100000, got 100001"):
        shoal.make(id, **{option: 100_001})


def test_the_limits_themselves_are_allowed():
    require_whole("world", 1, a=1, b=2**31 - 1)
    require_whole("world", 0, at_most=5, a=0, b=5)
    with pytest.raises(OptionError, match="world: b must be at most 5, got 6"):
        require_whole("world", 0, at_most=5, a=0, b=6)
    with pytest.raises(OptionError, match="world: a must be a whole number, at least 0, got -1"):
        require_whole("world", 0, at_most=5, a=-1)


@pytest.mark.parametrize(
    ("id", "option"), [("pong", "points"), ("control/cartpole", "max_steps"), ("matrix/game", "num_rounds")]
)
def test_the_largest_number_can_be_played_with(id, option):
    world, key = shoal.make(id, **{option: 2**31 - 1}), jax.random.key(0)
    actions = {name: jnp.zeros(group.size, jnp.int32) for name, group in world.groups.items()}
    params = world.default_params()
    _, outcome = jax.jit(lambda key: world.step(key, world.reset(key, params), actions, params))(key)
    assert not outcome.terminated
    assert not outcome.truncated
