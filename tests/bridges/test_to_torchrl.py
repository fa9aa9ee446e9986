"""Shoal's worlds as TorchRL environments: they pass its own checker, and say what the world says."""

import jax
import numpy as np
import pytest

import shoal
from shoal.batching.vectorise import Vectorised
from shoal.core.errors import OptionError, UnknownNameError

pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
pytest.importorskip("torchrl", reason="TorchRL is not installed: pip install torchrl")

import torch
from torchrl.envs.utils import check_env_specs

from shoal.bridges.outgoing._single import ResetNeeded
from shoal.bridges.outgoing.torchrl import ShoalEnv
from tests.worlds.fair import Fair

WORLDS = {
    "mpe/simple_spread": {"max_steps": 3},
    "cards/leduc": {},
    "tag/continuous": {"num_taggers": 3, "num_runners": 4, "num_neighbours": 2, "max_steps": 3},
}


@pytest.mark.parametrize("id", WORLDS)
def test_their_own_checker(id):
    env = ShoalEnv(id, 2, seed=0, **WORLDS[id])
    check_env_specs(env, break_when_any_done="both")


def spread():
    return shoal.make("mpe/simple_spread", max_steps=3)


def test_a_rollout_says_what_the_world_says():
    """Over the ends of episodes: what is seen at the end is in `next`, what is seen then is the next episode."""
    env, worlds = ShoalEnv("mpe/simple_spread", 2, seed=4, max_steps=3), Vectorised(spread(), 2)
    step, state = jax.jit(worlds.step), jax.jit(worlds.reset)(jax.random.key(4))
    observe = jax.jit(lambda state: worlds.observe(None, state, 2)["agent"].view)
    rollout = env.rollout(5, break_when_any_done=False)
    assert rollout["agent", "observation"].shape == (2, 5, 3, 18)
    assert rollout["next", "agent", "reward"].shape == (2, 5, 3, 1)
    for t in range(5):
        now = rollout[:, t]
        np.testing.assert_allclose(now["agent", "observation"], state.observation["agent"].view, rtol=1e-5, atol=1e-6)
        state, outcome, ended = step(state, {"agent": now["agent", "action"].int().numpy()})
        np.testing.assert_allclose(now["next", "agent", "reward"][..., 0], outcome.reward["agent"], rtol=1e-5)
        np.testing.assert_allclose(now["next", "agent", "observation"], observe(ended.state), rtol=1e-5, atol=1e-6)
        assert now["next", "truncated"].tolist() == now["next", "done"].tolist() == [[t == 2]] * 2
        assert not now["next", "terminated"].any()


def test_some_copies_begin_anew():
    env = ShoalEnv("mpe/simple_spread", 2, seed=0, max_steps=3)
    first = env.reset()["agent", "observation"].clone()
    assert not torch.equal(first, env.reset()["agent", "observation"])
    moved = env.step(env.rand_action(env.reset()))["next"]
    before = moved["agent", "observation"].clone()
    moved["_reset"] = torch.tensor([[True], [False]])
    after = env.reset(moved)["agent", "observation"]
    assert torch.equal(after[1], before[1])
    assert not torch.equal(after[0], before[0])
    assert after[0, :, :2].abs().max() == 0  # at rest again
    env.set_seed(0)
    assert torch.equal(first, env.reset()["agent", "observation"])


def test_masks_and_who_is_active():
    env = ShoalEnv("cards/leduc", 2, seed=0)
    start = env.reset()
    assert start["player", "active"].tolist() == [[True, False]] * 2
    assert start["player", "action_mask"][0, 0].tolist() == [False, True, True]
    start["player", "action"] = torch.tensor([[2, 0], [1, 0]])
    after = env.step(start)["next"]
    assert after["player", "active"].tolist() == [[False, True]] * 2
    assert after["player", "action_mask"][:, 1].tolist() == [[True, True, True], [False, True, True]]
    assert env.group_map == {"player": ["player_0", "player_1"]}


def test_masks_over_several_choices():
    """TorchRL takes one row for all choices of an action; two kinds of agents that leave pass its own checker."""
    env = ShoalEnv(Fair(), 2, seed=0)
    check_env_specs(env, break_when_any_done="both")
    start = env.reset()
    start["buyer", "action"] = torch.tensor([[[1, 2], [0, 0]]] * 2)
    start["seller", "action"] = torch.tensor([[[0, 1, 3], [2, 0, 0]]] * 2)
    after = env.step(start)["next"]
    assert after["buyer", "action_mask"][0].int().tolist() == [[1, 0, 1, 1, 0], [0, 1, 0, 1, 1]]
    assert after["seller", "action_mask"][1, 0].int().tolist() == [0, 1, 1, 1, 0, 1, 1, 1, 0]
    spec = env.full_action_spec_unbatched["buyer", "action"]
    spec.update_mask(after["buyer", "action_mask"][0])
    drawn = torch.stack([spec.rand() for _ in range(20)])
    assert set(drawn[:, 0, 0].tolist()) == {0}
    assert set(drawn[:, 1, 1].tolist()) == {1, 2}


def test_bad_input():
    with pytest.raises(UnknownNameError, match="cards/leduc"):
        ShoalEnv("cards/ledoc", 2)
    with pytest.raises(OptionError, match="num_envs must be greater than 0"):
        ShoalEnv("cards/leduc", 0)
    env = ShoalEnv("cards/leduc", 2, seed=0)
    actions = env.action_spec.zero()
    with pytest.raises(ResetNeeded, match="reset"):
        env.step(actions)
    start = env.reset()
    start["player", "action"] = torch.tensor([[3, 0], [1, 0]])
    with pytest.raises(OptionError, match=r"an action of 'player' is outside its space Discrete\(n=3\): got 3"):
        env.step(start)
    start["player", "action"] = torch.zeros(2, 2, 1, dtype=torch.int64)
    with pytest.raises(OptionError, match=r"must have shape \(2, 2\), got \(2, 2, 1\)"):
        env.step(start)
    start["player", "action"] = torch.zeros(2, 2)
    with pytest.raises(
        OptionError, match=r"cards/leduc: the actions of 'player' must be whole numbers .* torch.float32"
    ):
        env.step(start)
    with pytest.raises(OptionError, match=r"cards/leduc: no actions of 'player' \(player_0, player_1\)"):
        env.step(env.reset())
