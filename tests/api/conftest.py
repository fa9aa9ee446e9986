"""Small runs, each made once for all tests here."""

import pytest

import shoal

SMALL = {"num_envs": 8, "num_steps": 5, "total_env_steps": 400, "hidden": (4,), "devices": 1, "progress": False}
"""Ten updates of a small network."""


@pytest.fixture(scope="session")
def spread(tmp_path_factory):
    """Two seeds of a world that is drawn, evaluated on the way, in a folder."""
    folder = tmp_path_factory.mktemp("runs") / "spread"
    often = {"eval_every": 80, "eval_episodes": 4, "num_seeds": 2, "seed": 3}
    return shoal.train("mappo/simple_spread", folder, env={"max_steps": 5}, minibatches=1, epochs=1, **often, **SMALL)


@pytest.fixture(scope="session")
def pennies(tmp_path_factory):
    """Two runs of a game for two, by unlike algorithms."""
    folder = tmp_path_factory.mktemp("runs")
    first = shoal.train("matrix/matching_pennies", folder / "a", algorithm="a2c", **SMALL)
    second = shoal.train("matrix/matching_pennies", folder / "b", algorithm="pqn", **SMALL | {"hidden": (6,)})
    return first, second
