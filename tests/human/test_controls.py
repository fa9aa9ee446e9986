"""Actions as a person chooses them: names, keys, legality, and back to what the world gets."""

import jax
import numpy as np
import pytest

import shoal
from shoal.core.errors import OptionError, WorldError
from shoal.core.registry import ids
from shoal.core.spaces import Box, Discrete, MultiDiscrete, names_fit, number_actions
from shoal.envs.wrappers import Pad
from shoal.human.controls import Controls, Part, controls_of


@pytest.mark.parametrize("id", ids())
def test_every_world_names_its_actions(id):
    env = shoal.make(id)
    for name, group in env.groups.items():
        assert names_fit(group.action, env.action_names(name))
    assert env.play_fps >= 0


@pytest.mark.parametrize("space", [Discrete(3), MultiDiscrete((2, 3)), Box((2,), -1.0, 1.0)])
def test_actions_without_names_are_numbered(space):
    assert names_fit(space, number_actions(space))
    assert not names_fit(space, {"x": ("a",), "y": ("b",)})


def test_names_mean_what_the_world_does():
    """Each named direction moves who takes it that way, in the picture that the person sees."""
    for id, group in (("tag/grid", "runner"), ("mpe/simple", "agent")):
        env = shoal.make(id)
        params = env.default_params()
        key = jax.random.key(0)
        start = env.reset(key, params)
        if id == "tag/grid":  # away from the walls
            start = start._replace(runner=jax.tree.map(lambda x: x + 3, start.runner))
        ways = {"left": (-1, 0), "right": (1, 0), "up": (0, 1), "down": (0, -1), "stay": (0, 0)}
        for action, name in enumerate(env.action_names(group)["move"]):
            actions = {g: np.zeros(s.size, np.int32) for g, s in env.groups.items()} | {group: np.array([action])}
            state, _ = env.step(key, start, actions, params)
            state, _ = env.step(key, state, actions, params)
            index = env.scene(start, params).circles.names.index(f"{group}_0")
            moved = env.scene(state, params).circles.position[index] - env.scene(start, params).circles.position[index]
            assert tuple(np.sign(np.round(moved, 6)).astype(int)) == ways[name], (id, name)


def test_a_product_of_choices_and_its_keys():
    controls = controls_of(shoal.make("mpe/simple_reference"), "agent")
    assert [part.name for part in controls.parts] == ["move", "word"]
    assert int(controls.read([2, 3])) == 2 + 5 * 3
    assert controls.split(np.int32(17)) == [2, 3]
    assert controls.parts[0].keys[1] == ("ArrowLeft", "a")
    assert controls.parts[1].keys[0] == ("1",)  # `a` is taken by the move to the left
    assert controls.neutral() == [0, 0]


def test_keys_of_a_card_game_are_numbers_and_letters():
    (part,) = controls_of(shoal.make("cards/leduc"), "player").parts
    assert part.choices == ("fold", "call", "raise")
    assert part.keys == (("1", "f"), ("2", "c"), ("3", "r"))


def test_an_illegal_action_is_refused_in_words():
    controls = controls_of(shoal.make("cards/leduc"), "player")
    legal = np.array([False, True, True])
    with pytest.raises(OptionError, match=r"fold is not legal now. Legal: call, raise."):
        controls.read([0], legal)
    assert controls.legal_choices(legal) == [[False, True, True]]
    assert controls.neutral(legal=legal) == [1]  # nothing is neutral, so it is the first that is legal


@pytest.mark.parametrize("given", [None, 1, [], [0, 0], ["up"], [3], [-1], [1.0], [True]])
def test_what_is_no_action_is_refused(given):
    with pytest.raises(OptionError, match="action"):
        controls_of(shoal.make("pong"), "left").read(given)


def test_numbers_are_kept_within_their_bounds():
    controls = controls_of(shoal.make("swarm/pursuit"), "pursuer")
    np.testing.assert_array_equal(controls.read([0.5, -7]), np.array([0.5, -1.0], np.float32))
    for bad in ([0.1, float("nan")], [0.1, float("inf")], ["x", 0]):
        with pytest.raises(OptionError, match="a number from -1 to 1"):
            controls.read(bad)


def test_legal_rows_of_products_and_of_several_choices():
    parts = (Part("a", ("p", "q"), ((), ()), None), Part("b", ("x", "y", "z"), ((), (), ()), None))
    product = Controls(Discrete(6), parts)
    legal = np.array([True, False, False, False, True, False])  # (p, x) and (p, z)
    assert product.legal_choices(legal) == [[True, False], [True, False, True]]
    with pytest.raises(OptionError, match="q, x is not legal"):
        product.read([1, 0], legal)
    several = Controls(MultiDiscrete((2, 3)), parts)
    assert several.legal_choices(np.array([True, False, True, True, False])) == [[True, False], [True, True, False]]
    np.testing.assert_array_equal(several.read([0, 1]), [0, 1])


def test_names_that_do_not_fit_are_put_down_to_the_world():
    class Wrong(type(shoal.make("pong"))):
        def action_names(self, group):
            return {"paddle": ("up", "down")}

    with pytest.raises(WorldError, match=r"Wrong.action_names\('left'\)"):
        controls_of(Wrong(), "left")


def test_padded_actions_have_names_too():
    env = Pad(shoal.make("mpe/simple_speaker_listener"))
    assert env.action_names("listener")["move"][1] == "left"
    assert len(env.action_names("speaker")["action"]) == 5
