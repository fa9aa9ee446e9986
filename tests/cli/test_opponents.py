"""`shoal eval --opponent`: seats of a shared policy that play at random, or as in another run."""

import pytest

from shoal.api.seats import _divided
from shoal.batching.regroup import dealt_seats
from shoal.cli import main
from shoal.core.registry import import_file
from shoal.presets import share
from shoal.training.experiment import Experiment

from .conftest import SMALL, assert_refused


@pytest.fixture(scope="module")
def choosers(tmp_path_factory):
    """Two players who share a policy, each paid what it chooses, 0 or 1."""
    run = tmp_path_factory.mktemp("runs") / "choosers"
    payoffs = "[[[0, 0], [1, 1]], [[0, 1], [0, 1]]]"
    args = ["--env.payoffs", payoffs, "--sharing", "all", "--run-dir", str(run), *SMALL]
    assert main(["train", "matrix/game", *args]) == 0
    return run


@pytest.mark.parametrize("who", ["player_1[0]", "player_1"])
def test_one_seat_of_a_shared_policy_plays_at_random(shoal, choosers, who):
    outcome = shoal("eval", choosers, "--episodes", "1000", "--opponent", f"{who}=random", "--json")
    assert outcome.code == 0, outcome.err
    mean, error = outcome.json["mean_return"], outcome.json["standard_error"]
    assert mean["player_0"] in (0.0, 1.0)  # greedy: always the same choice
    assert error["player_0"] == 0.0
    assert mean["player_1"] == pytest.approx(0.5, abs=0.06)  # four standard errors
    assert error["player_1"] == pytest.approx(0.5 / 1000**0.5, rel=0.02)


def test_seats_of_a_shared_policy_from_another_run(shoal, choosers, trained, world):
    plain = shoal("eval", choosers, "--episodes", "8", "--json").json
    same = shoal("eval", choosers, "--episodes", "8", "--opponent", f"player_0={choosers}", "--json").json
    assert same["mean_return"] == plain["mean_return"]
    both = shoal("eval", choosers, "--episodes", "64", "--opponent", "shared=random", "--json").json
    chance = shoal("eval", choosers, "--episodes", "64", "--random", "--json").json
    assert both["mean_return"] == chance["mean_return"]
    refused = shoal("eval", choosers, "--opponent", f"player_0={trained}", "--import", world)
    assert_refused(refused, "unknown policy 'shared'", "hunter")


@pytest.mark.parametrize(
    ("who", "words"),
    [
        ("player_0[2]", "seats 'player_0[2]': the group 'player_0' has seats 0 to 0"),
        ("player_0[", "expected 'group', 'group[2]' or 'group[1:3]'"),
        ("playr_1", "--opponent: unknown policy, player or seat 'playr_1'. Did you mean 'player_1' or 'player_0'?"),
    ],
)
def test_seats_that_there_are_not(shoal, choosers, who, words):
    assert_refused(shoal("eval", choosers, "--opponent", f"{who}=random"), words)


def test_seats_are_dealt_by_hand(world):
    import_file(str(world))
    setup = share(Experiment(env="test/tiny", env_options={"hunters": 3}), "all").setup
    given = {("hunter", 1): "random", ("hunter", 2): "a", ("prey", 0): "random"}
    divided, parts = _divided(setup, given)
    assert parts == {"shared": ("shared", None), "shared=random": ("shared", "random"), "shared=a": ("shared", "a")}
    assert dealt_seats(divided.env) == {
        "shared": [("hunter", 0)],
        "shared=random": [("hunter", 1), ("prey", 0)],
        "shared=a": [("hunter", 2)],
    }
    everybody = dict.fromkeys([("hunter", 0), ("hunter", 1), ("hunter", 2), ("prey", 0)], "b")
    assert _divided(setup, everybody) == (setup, {"shared": ("shared", "b")})
