"""VMAS scenarios through the bridge do what they do when they are stepped directly."""

import numpy as np
import pytest

from shoal.core.errors import OptionError, ShoalError
from shoal.core.host import check_observations
from shoal.core.spaces import Box, Discrete, MultiDiscrete

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
vmas = pytest.importorskip("vmas", reason="VMAS is not installed: pip install vmas")

from shoal.bridges.incoming.vmas import make  # noqa: E402


def direct(name, count, **options):
    return vmas.make_env(name, num_envs=count, terminated_truncated=True, **options)


@pytest.mark.parametrize("continuous", [True, False])
def test_steps_are_those_of_vmas(continuous):
    """A time limit ends all copies at once: final views are those of the last step, then all restart."""
    options = {"n_agents": 3, "max_steps": 4, "continuous_actions": continuous}
    env = make("balance", **options)
    assert (env.groups["agent"].size, env.groups["agent"].action) == (
        3,
        Box((2,), -1.0, 1.0) if continuous else Discrete(9),
    )
    batch, theirs = env.open(5), direct("balance", 5, **options)
    seen = batch.reset(seed=7)["agent"].view
    expected = theirs.reset(seed=7)
    generator = np.random.default_rng(0)
    for count in range(1, 7):
        check_observations(env, {"agent": batch._seen(expected)["agent"]})
        np.testing.assert_array_equal(seen, np.stack(expected, 1))
        unit = generator.uniform(-1, 1, (5, 3, 2)).astype(np.float32)
        action = unit if continuous else generator.integers(0, 9, (5, 3)).astype(np.int32)
        told = batch.step({"agent": action})
        expected, reward, terminated, truncated, _ = theirs.step(
            [torch.tensor(action[:, i]).reshape(5, -1) for i in range(3)]
        )
        np.testing.assert_array_equal(told.final["agent"].view, np.stack(expected, 1))
        np.testing.assert_array_equal(told.outcome.reward["agent"], np.stack(reward, 1))
        np.testing.assert_array_equal(told.outcome.terminated, terminated)
        assert told.outcome.truncated.tolist() == truncated.tolist() == [count == 4] * 5
        seen = told.observation["agent"].view
        assert np.array_equal(seen, told.final["agent"].view) == (count != 4)
        if count == 4:  # VMAS keeps one random state for all its environments, so both are seeded anew
            assert batch.env.steps.tolist() == [0] * 5
            seen, expected = batch.reset(seed=9)["agent"].view, theirs.reset(seed=9)


def test_only_copies_that_ended_begin_anew():
    env = make("balance", max_steps=50)
    batch = env.open(4)
    batch.reset(seed=0)
    still = {"agent": np.zeros((4, 3, 2), np.float32)}
    batch.step(still)
    batch.env.steps[1] = 49
    told = batch.step(still)
    assert told.outcome.truncated.tolist() == [False, True, False, False]
    now, final = told.observation["agent"].view, told.final["agent"].view
    same = np.all(now == final, axis=(1, 2))
    assert same.tolist() == [True, False, True, True]
    assert batch.env.steps.tolist() == [2, 0, 2, 2]
    assert not batch.step(still).outcome.truncated.any()


def test_agents_with_different_spaces_are_different_groups():
    env = make("simple_speaker_listener", continuous_actions=False, max_steps=5)
    sizes = {name: (group.size, group.action, group.observation) for name, group in env.groups.items()}
    assert len(sizes) == 2
    batch = env.open(3)
    check_observations(env, batch.reset(seed=0))
    actions = {name: np.zeros((3, group.size), np.int32) for name, group in env.groups.items()}
    told = batch.step(actions)
    check_observations(env, told.observation)
    assert {name: reward.shape for name, reward in told.outcome.reward.items()} == dict.fromkeys(sizes, (3, 1))


def test_tag_has_two_kinds_of_agents():
    env = make("simple_tag", multidiscrete_actions=True, continuous_actions=False)
    assert [group.action for group in env.groups.values()] == [MultiDiscrete((3, 3))] * len(env.groups)
    assert sum(group.size for group in env.groups.values()) == 4
    names = list(env.groups)
    assert names == ["adversary", "agent"]


def test_communication_is_scaled_to_its_bounds():
    """-1 to 1 of ours is 0 to 1 for what agents say."""
    env = make("simple_reference", max_steps=5)
    assert {group.action.low for group in env.groups.values()} == {-1.0}
    batch = env.open(2)
    batch.reset(seed=0)
    low = {name: np.full((2, group.size, *group.action.shape), -1.0, np.float32) for name, group in env.groups.items()}
    batch.step(low)
    said = [agent.action.c for agent in batch.env.agents]
    assert all(torch.equal(one, torch.zeros_like(one)) for one in said)


def test_bad_input():
    with pytest.raises(ShoalError, match=r"unknown VMAS scenario 'balanse'. Did you mean 'balance'"):
        make("balanse")
    with pytest.raises(OptionError, match=r"vmas:balance.*agents"):
        make("balance", agents=3)
    with pytest.raises(OptionError, match=r"not used by the scenario\. Options for every scenario: max_steps"):
        make("balance", agents=3)
    batch = make("balance").open(2)
    batch.reset(0)
    with pytest.raises(OptionError, match=r"vmas:balance: an action of group 'agent' is outside .* got"):
        batch.step({"agent": np.full((2, 3, 2), 2.0, np.float32)})
    with pytest.raises(OptionError, match="max_steps must be greater than 0"):
        make("balance", max_steps=0)
    with pytest.raises(OptionError, match="multidiscrete_actions must be False unless"):
        make("balance", multidiscrete_actions=True)
