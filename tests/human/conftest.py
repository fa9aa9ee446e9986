"""Games that tests share: compiling them is what takes time."""

import pytest

from shoal.human.game import Game
from shoal.training.experiment import Experiment


@pytest.fixture(scope="session")
def kuhn():
    """Kuhn poker, the person being player 0."""
    return Game(Experiment("cards/kuhn").setup, {}, ("player", 0))


@pytest.fixture(scope="session")
def pong():
    """A short game of pong, the person on the left."""
    return Game(Experiment("pong", {"points": 1}).setup, {}, ("left", 0))
