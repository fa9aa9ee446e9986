"""Shoal's worlds as PettingZoo environments: they pass its own tests, and say what the world says."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal.batching.vectorise import Vectorised
from shoal.core.errors import OptionError, UnknownNameError

pytest.importorskip("pettingzoo", reason="PettingZoo is not installed: pip install pettingzoo")

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # PettingZoo's tests import its own worlds the old way
    from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test
    from pettingzoo.utils.wrappers import TerminateIllegalWrapper

from shoal.bridges.outgoing._single import ResetNeeded
from shoal.bridges.outgoing.pettingzoo import aec_env, parallel_env
from tests.worlds.fair import Fair

WORLDS = {
    "mpe/simple_spread": {},
    "tag/grid": {"max_steps": 20},
    "cards/leduc": {},
    "pong": {"max_steps": 30},
    "tag/continuous": {"num_taggers": 3, "num_runners": 4, "num_neighbours": 2, "max_steps": 40},
    "swarm/rendezvous": {"num_agents": 3, "max_steps": 10},
}
# Of the world itself: views have no bounds, masks make an observation a dict, groups differ.
EXPECTED = ("infinity", "not a NumPy array", "probably should be gymnasium.spaces", "different", "all zeros")


@pytest.mark.parametrize("id", WORLDS)
def test_their_own_tests(id, capsys):
    options = WORLDS[id]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        parallel_api_test(parallel_env(id, **options), num_cycles=100)
        parallel_seed_test(lambda: parallel_env(id, **options), num_cycles=20)
        api_test(aec_env(id, **options), num_cycles=30)
        seed_test(lambda: aec_env(id, **options), num_cycles=20)
    unexpected = [str(one.message) for one in said if not any(words in str(one.message) for words in EXPECTED)]
    assert unexpected == []


def test_masks_over_several_choices_pass_their_own_tests(capsys):
    """Two kinds of agents that leave; a mask is a tuple of parts, as `sample(mask)` takes it, so it draws legally."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what they warn about is looked at above
        parallel_api_test(parallel_env(Fair()), num_cycles=20)
        parallel_seed_test(lambda: parallel_env(Fair()), num_cycles=10)
        api_test(aec_env(Fair()), num_cycles=10)
        seed_test(lambda: aec_env(Fair()), num_cycles=10)
    env = parallel_env(Fair())
    seen, _ = env.reset(seed=0)
    mask = seen["seller_1"]["action_mask"]
    assert [(part.dtype, part.tolist()) for part in mask] == [(np.int8, [1] * size) for size in (3, 2, 4)]
    for left in (["buyer_0", "buyer_1", "seller_0", "seller_1"], ["buyer_1", "seller_1"], []):
        acts = {agent: env.action_space(agent).sample(seen[agent]["action_mask"]) for agent in env.agents}
        seen, _, _, _, infos = env.step(acts)
        assert env.agents == left
        assert {info["broken"] for info in infos.values()} == {0.0}
        assert all(env.observation_space(agent).contains(seen[agent]) for agent in seen)


def test_an_illegal_choice_among_several_is_refused():
    env = aec_env(Fair(buyers=1, sellers=0))
    env.reset(seed=0)
    env.step(np.array([1, 2]))
    with pytest.raises(OptionError, match=r"buyer_0 may not take .* \[0 2\]: .* is \[\[1, 0\], \[1, 1, 0\]\]\.$"):
        env.step(np.array([0, 2]))


def test_it_says_what_the_world_says():
    """Episode after episode, as copy 0 of the vectorised world."""
    env, worlds = parallel_env("mpe/simple_spread", max_steps=3), Vectorised(spread(), 2)
    assert env.possible_agents == ["agent_0", "agent_1", "agent_2"]
    step = jax.jit(worlds.step)
    state = jax.jit(worlds.reset)(jax.random.key(7))
    seen, _ = env.reset(seed=7)
    for t, chosen in enumerate([[1, 2, 3], [4, 0, 1], [2, 2, 2], [1, 1, 0]]):
        for i, agent in enumerate(env.agents):
            np.testing.assert_allclose(seen[agent], state.observation["agent"].view[0, i], rtol=1e-6)
        state, outcome, _ = step(state, {"agent": jnp.array([chosen, chosen])})
        seen, rewards, terminated, truncated, infos = env.step(dict(zip(env.agents, chosen, strict=True)))
        np.testing.assert_allclose(list(rewards.values()), outcome.reward["agent"][0], rtol=1e-5)
        assert infos["agent_1"]["touches"] == outcome.metrics["touches"][0]
        assert set(truncated.values()) == {t == 2}
        assert not any(terminated.values())
        if t == 2:
            assert env.agents == []
            seen, _ = env.reset()


def spread():
    return shoal.make("mpe/simple_spread", max_steps=3)


def test_a_turn_based_game_played_by_hand():
    """Leduc: both call in the first round; then a bet of 4 is not answered, and the ante of 1 is lost."""
    env = aec_env("cards/leduc")
    env.reset(seed=3)
    checks = [("player_0", 1, [0, 1, 1]), ("player_1", 1, [0, 1, 1])]
    script = [*checks, ("player_0", 2, [0, 1, 1]), ("player_1", 0, [1, 1, 1])]
    for agent, action, mask in script:
        assert env.agent_selection == agent
        seen, reward, terminated, _, info = env.last()
        np.testing.assert_array_equal(seen["action_mask"], mask)
        assert (reward, terminated, info["active"]) == (0.0, False, True)
        env.step(action)
    ends = {}
    for agent in env.agent_iter():
        ends[agent] = env.last()[1:3]
        env.step(None)
    assert ends == {"player_0": (1.0, True), "player_1": (-1.0, True)}
    with pytest.raises(ResetNeeded, match="no agent to act"):
        env.step(1)


def test_who_waits_needs_no_action():
    one, other = parallel_env("cards/leduc"), parallel_env("cards/leduc")
    one.reset(seed=0)
    other.reset(seed=0)
    _, _, _, _, infos = one.step({"player_0": 1})
    assert (infos["player_0"]["active"], infos["player_1"]["active"]) == (False, True)
    other.step({"player_0": 1, "player_1": 2})
    a, b = (env.step({"player_0": None, "player_1": 1})[0] for env in (one, other))
    np.testing.assert_array_equal(a["player_0"]["observation"], b["player_0"]["observation"])


@dataclasses.dataclass(frozen=True)
class Leaving(shoal.Env):
    """Agent i leaves after i + 1 steps, with a reward of 10 + i."""

    @property
    def groups(self):
        return {"guest": shoal.Group(3, shoal.Discrete(2))}

    def reset(self, key, params):
        return jnp.int32(0)

    def step(self, key, state, actions, params):
        leaving = jnp.arange(3) == state
        return state + 1, shoal.Outcome({"guest": leaving * (10.0 + jnp.arange(3))}, state >= 2, jnp.bool_(False))

    def observe(self, state, params):
        present = jnp.arange(3) >= state
        return {"guest": shoal.Observation(jnp.full((3, 2), state, jnp.float32), active=present, present=present)}


def test_agents_leave():
    env = parallel_env(Leaving())
    env.reset(seed=0)
    for t in range(3):
        agents = env.agents
        assert agents == [f"guest_{i}" for i in range(t, 3)]
        seen, rewards, terminated, truncated, _ = env.step(dict.fromkeys(agents, 0))
        assert list(seen) == list(rewards) == agents
        assert rewards[f"guest_{t}"] == 10.0 + t
        assert terminated == {agent: t == 2 or agent == f"guest_{t}" for agent in agents}
        assert not any(truncated.values())
    assert env.agents == []


def test_agents_leave_one_by_one():
    env = aec_env(Leaving())
    env.reset(seed=0)
    order, got = [], {}
    for agent in env.agent_iter():
        _, reward, terminated, _, _ = env.last()
        order.append((agent[-1], terminated))
        got[agent] = got.get(agent, 0) + reward
        env.step(None if terminated else 0)
    assert "".join(name + "!" * over for name, over in order) == "0120!121!22!"
    assert got == {"guest_0": 10.0, "guest_1": 11.0, "guest_2": 12.0}


def test_pictures_and_state():
    env = parallel_env("mpe/simple_spread", draw=lambda scene: np.full((2, 2, 3), len(scene.circles.radius), np.uint8))
    env.reset(seed=0)
    assert env.render().max() == 6  # three agents, three landmarks
    assert env.state().shape == (54,)
    assert parallel_env("mpe/simple_spread").render() is None


def test_their_render_check_and_pictures_by_default():
    pytest.importorskip("PIL", reason="Pillow is not installed: pip install 'shoal-rl[video]'")
    from pettingzoo.test import render_test

    def without_window(render_mode):
        """Their check asks a window for its metadata before it renders arrays; worlds have none."""
        return aec_env("cards/kuhn", render_mode=None if render_mode == "human" else render_mode)

    render_test(without_window)
    env = parallel_env("mpe/simple_spread", render_mode="rgb_array")
    with pytest.raises(ResetNeeded, match="nothing to draw"):
        env.render()
    env.reset(seed=0)
    before = env.render()
    assert (before.dtype, before.ndim, before.shape[2]) == (np.uint8, 3, 3)
    for _ in range(2):  # the first gives them speed
        env.step(dict.fromkeys(env.agents, 1))
    assert (env.render() != before).any()
    with pytest.raises(OptionError, match=r"render_mode must be None or 'rgb_array'.* got 'human'"):
        parallel_env("mpe/simple_spread", render_mode="human")


def test_bad_input():
    with pytest.raises(UnknownNameError, match="mpe/simple_spread"):
        parallel_env("mpe/simple_spred")
    with pytest.raises(OptionError, match="num_agents"):
        parallel_env("mpe/simple_spread", num_agent=3)
    with pytest.raises(OptionError, match="made already"):
        aec_env(spread(), num_agents=3)
    env = parallel_env("mpe/simple_spread", max_steps=1)
    with pytest.raises(ResetNeeded, match="has not begun"):
        env.step({})
    env.reset(seed=0)
    with pytest.raises(OptionError, match="no action for agent_1, agent_2"):
        env.step({"agent_0": 0})
    with pytest.raises(OptionError, match="actions for agent_7"):
        env.step({"agent_7": 0})
    with pytest.raises(OptionError, match=r"action of agent_1 is outside its space Discrete\(n=5\): got 5"):
        env.step({"agent_0": 0, "agent_1": 5, "agent_2": 0})
    with pytest.raises(OptionError, match="whole numbers"):
        env.step({"agent_0": 0, "agent_1": 0.5, "agent_2": 0})
    env.step(dict.fromkeys(env.agents, 0))
    with pytest.raises(ResetNeeded, match="is over"):
        env.step({})
    drones = parallel_env("swarm/rendezvous", num_agents=3, max_steps=10)
    drones.reset(seed=0)
    with pytest.raises(OptionError, match="outside its space"):
        drones.step(dict.fromkeys(drones.agents, np.array([0.0, np.nan])))
    with pytest.raises(OptionError, match=r"shape \(2,\)"):
        drones.step(dict.fromkeys(drones.agents, np.zeros(3)))


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, "1", True])
def test_seeds_that_are_none_are_refused(seed):
    for env in (parallel_env("mpe/simple_spread"), aec_env("cards/kuhn")):
        with pytest.raises(OptionError, match=r"seed must be None or a whole number from 0 to 2\*\*32 - 1, got"):
            env.reset(seed=seed)


def test_seeds_up_to_32_bits_differ():
    env = parallel_env("mpe/simple_spread")
    first = [env.reset(seed=seed)[0]["agent_0"].tolist() for seed in (0, 2**31, 2**32 - 1, np.uint32(2**32 - 1))]
    assert first[2] == first[3]
    assert len({tuple(view) for view in first}) == 3


def test_an_illegal_action_in_turns_is_refused_or_lost():
    """The first to act in Leduc poker may not fold."""
    env = aec_env("cards/leduc")
    env.reset(seed=0)
    with pytest.raises(
        OptionError, match=r"cards/leduc: player_0 may not take the action 0: its action_mask is \[0, 1, 1\]"
    ):
        env.step(0)
    env.step(1)
    assert env.agent_selection == "player_1"
    wrapped = TerminateIllegalWrapper(aec_env("cards/leduc"), illegal_reward=-1)
    wrapped.reset(seed=0)
    wrapped.step(0)
    assert wrapped.terminations == {"player_0": True, "player_1": True}
    assert wrapped.rewards["player_0"] == -1
