"""Every algorithm against every probe that it claims to handle: five seeds of five must reach the known answer."""

import pytest

from tests.algorithms.probes import ALGORITHMS, AT_LEAST, scores, with_network

DISCRETE = ("bandit", "coordination", "credit", "delayed", "masked", "parts", "rooms", "seen")
FAST = {("ppo", "credit"), ("a2c", "rooms"), ("impala", "delayed"), ("dqn", "rooms"), ("dqn", "masked")}
FAST |= {("pqn", "credit"), ("pqn", "parts")}


def cases(algorithms, probes):
    for name in algorithms:
        for probe in probes:
            yield pytest.param(name, probe, marks=() if (name, probe) in FAST else pytest.mark.slow)


@pytest.mark.parametrize(("name", "probe"), cases(ALGORITHMS, DISCRETE))
def test_discrete_probe(name, probe):
    reached = scores(probe, ALGORITHMS[name])
    assert min(reached) >= AT_LEAST[probe], reached


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
