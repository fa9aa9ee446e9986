"""Every algorithm against every probe that it claims to handle: five seeds of five must reach the known answer."""

import pytest

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

DISCRETE = ("bandit", "coordination", "credit", "delayed", "masked", "parts", "rooms", "seen")
TEAMS = ("coordination", "credit", "rooms")
FAST = {("ppo", "credit"), ("a2c", "rooms"), ("impala", "delayed"), ("dqn", "rooms"), ("dqn", "masked")}
FAST |= {("pqn", "credit"), ("pqn", "parts")}


def cases(algorithms, probes):
    for name in algorithms:
        for probe in probes:
            yield pytest.param(name, probe, marks=() if (name, probe) in FAST else pytest.mark.slow)


def marked(names, fast):
    return [name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize(("name", "probe"), cases(ALGORITHMS, DISCRETE))
def test_discrete_probe(name, probe):
    reached = scores(probe, ALGORITHMS[name])
    assert min(reached) >= AT_LEAST[probe], reached


@pytest.mark.parametrize(("name", "probe"), cases(VARIANTS, DISCRETE))
def test_variant(name, probe):
    reached = scores(probe, VARIANTS[name])
    assert min(reached) >= AT_LEAST[probe], reached


@pytest.mark.parametrize("name", marked(CONTINUOUS, ()))
def test_continuous_target(name):
    reached = scores("target", CONTINUOUS[name])
    assert min(reached) >= AT_LEAST["target"], reached


@pytest.mark.parametrize("name", marked(ALGORITHMS, ()))
def test_truncation_is_bootstrapped(name):
    """Reward 1 for ever, cut short now and then: the value is 1 / (1 - γ) = 5, not what one episode pays."""
    # What SAC values beside the reward, the entropy, is made worth nothing.
    still = {"learn_temperature": False, "temperature": 1e-6} if name == "sac" else {}
    assert values_of_truncation(ALGORITHMS[name], **still) == pytest.approx([5.0] * 5, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in POLICY_GRADIENT if name != "impala"])
def test_truncation_is_bootstrapped_if_all_is_normalised(name):
    changes = {"normalise_values": True, "normalise_views": True}
    assert values_of_truncation(ALGORITHMS[name], **changes) == pytest.approx([5.0] * 5, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("recurrent", ["none", "gru", "lstm"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_memory_needs_a_recurrent_network(name, recurrent):
    algorithm = with_network(ALGORITHMS[name], recurrent=recurrent, recurrent_size=32)
    reached = scores("memory", algorithm, total=200_000)
    if recurrent == "none":
        assert max(reached) < 0.65, reached
    else:
        assert min(reached) >= AT_LEAST["memory"], reached
