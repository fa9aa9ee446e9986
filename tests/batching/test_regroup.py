"""Seats reassigned: merged, split and renamed groups see and get what the originals did."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal.batching.regroup import regroup, return_groups, sum_rewards
from shoal.core.env import describe
from shoal.core.errors import OptionError, UnknownNameError
from tests.worlds.coordination import Coordination


@pytest.fixture(scope="module")
def tag():
    return shoal.make("tag/grid", num_taggers=3)


def test_merging_keeps_everything(tag):
    merged = regroup(tag, {"all": ["runner", "tagger"]})
    params = tag.default_params()
    state = tag.reset(jax.random.key(0), params)
    old, new = tag.observe(state, params), merged.observe(state, params)
    np.testing.assert_array_equal(new["all"].view[0], old["runner"].view[0])
    np.testing.assert_array_equal(new["all"].view[1:], old["tagger"].view)
    actions = jnp.array([1, 2, 3, 4])
    _, outcome = tag.step(jax.random.key(1), state, {"runner": actions[:1], "tagger": actions[1:]}, params)
    _, merged_outcome = merged.step(jax.random.key(1), state, {"all": actions}, params)
    np.testing.assert_array_equal(
        merged_outcome.reward["all"], np.concatenate([outcome.reward["runner"], outcome.reward["tagger"]])
    )
    assert merged.players == {"tagger": (("all", 1), ("all", 2), ("all", 3)), "runner": (("all", 0),)}
    assert describe(merged).groups["all"].size == 4


def test_splitting_out_of_order(tag):
    split = regroup(tag, {"b": ["tagger[1:]"], "a": ["tagger[0]"], "runner": ["runner"]})
    params = tag.default_params()
    state = tag.reset(jax.random.key(0), params)
    assert {name: group.size for name, group in split.groups.items()} == {"b": 2, "a": 1, "runner": 1}
    actions = {"b": jnp.array([1, 2]), "a": jnp.array([3]), "runner": jnp.array([0])}
    new, _ = split.step(jax.random.key(1), state, actions, params)
    old, _ = tag.step(jax.random.key(1), state, {"tagger": jnp.array([3, 1, 2]), "runner": jnp.array([0])}, params)
    jax.tree.map(np.testing.assert_array_equal, new, old)


def test_who_waits_and_who_has_left_stays_so():
    """Masks that a group has not are filled in where groups may be merged; those it has are kept."""

    class Leaving(Coordination):
        def observe(self, state, params):
            seen = super().observe(state, params)
            (name,) = seen
            here = jnp.array([True, False])
            return {name: seen[name].replace(active=here & jnp.array([False, True]), present=here)}

    env = Leaving()
    (name,) = env.groups
    params = env.default_params()
    state = env.reset(jax.random.key(0), params)
    split = regroup(env, {"first": [f"{name}[0]"], "second": [f"{name}[1]"]}).observe(state, params)
    assert [bool(split[one].present[0]) for one in ("first", "second")] == [True, False]
    assert [bool(split[one].active[0]) for one in ("first", "second")] == [False, False]
    whole = regroup(Coordination(), {"first": [f"{name}[0]"], "second": [f"{name}[1]"]}).observe(state, params)
    assert all(bool(whole[one].present[0]) and bool(whole[one].active[0]) for one in ("first", "second"))


def test_the_same_groups_need_no_wrapper(tag):
    assert regroup(tag, {"tagger": ["tagger"], "runner": ["runner"]}) is tag


@pytest.mark.parametrize(
    ("seats", "error", "words"),
    [
        ({"a": ["tagger"]}, OptionError, r"runner\[0\] has no policy"),
        ({"a": ["tagger", "runner"], "b": ["runner"]}, OptionError, "more than one policy"),
        ({"a": ["taggr", "runner"]}, UnknownNameError, "Did you mean 'tagger'"),
        ({"a": ["tagger[3]", "runner"]}, OptionError, "seats 0 to 2"),
        ({"a": ["tagger[x]", "runner"]}, OptionError, "expected 'group'"),
    ],
)
def test_bad_seats(tag, seats, error, words):
    with pytest.raises(error, match=words):
        regroup(tag, seats)


def test_groups_that_differ_cannot_share():
    with pytest.raises(
        OptionError, match=r"cannot be shared .* or put the wrapper `pad` around the world \(--wrap pad\)"
    ):
        regroup(shoal.make("mpe/simple_tag"), {"all": ["adversary", "agent"]})


def test_returns_are_counted_by_group_or_by_player():
    """By group; but the seats of one group that belong to several players are told apart."""
    hunt = shoal.make("mpe/simple_tag")
    assert {name: len(seats) for name, seats in return_groups(hunt).items()} == {"adversary": 3, "agent": 1}
    cards = shoal.make("cards/kuhn")
    assert return_groups(cards) == cards.players
    reward = {"player": jnp.array([[2.0, -2.0], [-1.0, 1.0]])}
    np.testing.assert_array_equal(sum_rewards(cards, reward)[next(iter(cards.players))], [2.0, -1.0])


def test_sides_do_not_depend_on_who_plays_for_whom():
    hunt = shoal.make("mpe/simple_tag")
    split = regroup(hunt, {"last": ["adversary[2]"], "agent": ["agent"], "first": ["adversary[0:2]"]})
    assert return_groups(split) == return_groups(hunt)
    reward = {"last": jnp.array([4.0]), "agent": jnp.array([-7.0]), "first": jnp.array([1.0, 2.0])}
    assert {name: float(value) for name, value in sum_rewards(split, reward).items()} == {"adversary": 7, "agent": -7}
