"""Every algorithm against every probe that it claims to handle: five seeds of five must reach the known answer."""

import pytest

from shoal.algorithms import PPO
from shoal.networks.torsos import Network
from tests.algorithms.probes import (
    ALGORITHMS,
    AT_LEAST,
    CONTINUOUS,
    POLICY_GRADIENT,
    VARIANTS,
    scores,
    values_of_truncation,
    with_network,
)
from tests.worlds.messages import Messages

DISCRETE = ("bandit", "coordination", "credit", "delayed", "masked", "parts", "rooms", "seen")
TEAMS = ("coordination", "credit", "rooms")
CHANGED = {
    "a2c-sum": ("coordination", "credit"),
    "ppo-global": ("credit", "rooms"),
    "ppo-monotonic": ("credit",),
    "impala-clipped": ("credit", "delayed"),
    "dqn-sum": TEAMS,
    "dqn-monotonic": TEAMS,
    "dqn-prioritised": ("delayed", "rooms"),
    "dqn-dueling": ("delayed", "parts"),
    "dqn-3-steps": ("delayed", "rooms"),
    "pqn-sum": TEAMS,
    "pqn-monotonic": TEAMS,
    "ddpg-global": ("coordination", "rooms"),
    "sac-global": ("coordination", "rooms"),
    "sac-attention": ("coordination", "rooms"),
}
"""The probes of what a variant changes."""

FAST = {("impala", "delayed"), ("pqn", "coordination")}


def cases(probes_of):
    pairs = [(name, probe) for name, probes in probes_of.items() for probe in probes]
    return [pytest.param(*pair, marks=() if pair in FAST else pytest.mark.slow) for pair in pairs]


@pytest.mark.parametrize(("name", "probe"), cases(dict.fromkeys(ALGORITHMS, DISCRETE)))
def test_discrete_probe(name, probe):
    reached = scores(probe, ALGORITHMS[name])
    assert min(reached) >= AT_LEAST[probe], reached


@pytest.mark.slow
@pytest.mark.parametrize(("name", "probe"), cases(CHANGED))
def test_variant(name, probe):
    reached = scores(probe, VARIANTS[name])
    assert min(reached) >= AT_LEAST[probe], reached


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_target(name):
    reached = scores("target", CONTINUOUS[name])
    assert min(reached) >= AT_LEAST["target"], reached


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_truncation_is_bootstrapped(name):
    """Reward 1 for ever, cut short now and then: the value is 1 / (1 - γ) = 5, not what one episode pays."""
    # What SAC values beside the reward, the entropy, is made worth nothing.
    still = {"learn_temperature": False, "temperature": 1e-6} if name == "sac" else {}
    assert values_of_truncation(ALGORITHMS[name], **still) == pytest.approx([5.0] * 5, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICY_GRADIENT)
def test_truncation_is_bootstrapped_if_all_is_normalised(name):
    # The one view there is becomes 0, which units of `relu` pass no gradient for.
    changes = {"learning_rate": 1e-2, "network": Network(hidden=(32,)), "normalise_values": True}
    reached = values_of_truncation(ALGORITHMS[name], total=200_000, normalise_views=True, **changes)
    assert reached == pytest.approx([5.0] * 5, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("recurrent", ["none", "gru", "lstm", "min_gru"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_memory_needs_a_recurrent_network(name, recurrent):
    algorithm = with_network(ALGORITHMS[name], recurrent=recurrent, recurrent_size=32)
    sizes = {"num_steps": 16} if name in POLICY_GRADIENT else {}  # whole episodes in most rollouts
    reached = scores("memory", algorithm, total=400_000 if name == "sac" else 200_000, **sizes)
    if recurrent == "none":
        assert max(reached) < 0.65, reached
    else:
        assert min(reached) >= AT_LEAST["memory"], reached


@pytest.mark.slow
def test_messages_are_learnt():
    """One knows, the other acts: half as much again as can be had without words."""
    algorithm = PPO(learning_rate=3e-3, gamma=0.9, entropy_coef=0.02, network=Network(hidden=(64,)))
    reached = scores("messages", algorithm, total=1_000_000, num_seeds=2, num_envs=256, num_steps=16)
    assert min(reached) > 1.5 * 2 * (Messages.length - 1) / Messages.num_goals, reached
