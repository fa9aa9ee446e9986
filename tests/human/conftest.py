"""Games that tests share, as compiling them takes time, and a browser."""

import pytest

from shoal.human.game import Game
from shoal.training.experiment import Experiment
from tests.chromium import Browser, find_browser
from tests.ui.conftest import axe  # noqa: F401  # a fixture


@pytest.fixture(scope="session")
def kuhn():
    """Kuhn poker, the person being player 0."""
    return Game(Experiment("cards/kuhn").setup, {}, ("player", 0))


@pytest.fixture(scope="session")
def pong():
    """A short game of pong, the person on the left."""
    return Game(Experiment("pong", {"points": 1}).setup, {}, ("left", 0))


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(find_browser(), str(tmp_path_factory.mktemp("profile")))
    browser.local = (*browser.local, "http://127.0.0.1:")
    yield browser
    browser.close()
