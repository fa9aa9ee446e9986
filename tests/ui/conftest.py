"""Folders of runs, a server over them, and a browser that looks at it."""

import importlib.util
import threading
import time
from pathlib import Path

import pytest

from shoal.ui import shelf
from shoal.ui.endpoints import live
from shoal.ui.server import Site, _Server
from tests.chromium import Browser, find_browser
from tests.ui.folders import make_run
from tests.ui.gallery import make_runs

TOKEN = "a-token-for-tests"
NASTY = "<img src=x onerror=window.hacked=1>"


@pytest.fixture(autouse=True, scope="session")
def _cache_elsewhere(tmp_path_factory):
    """What is remembered between processes is not left behind in the user's folders."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Six runs: of two algorithms, one stopped, one with markup in its name, one that cannot be read."""
    root = tmp_path_factory.mktemp("runs")
    make_runs(root)
    make_run(root / NASTY, notes={"tags": ["<b>bold</b>"], "note": "</script><script>window.hacked=1</script>"})
    return root


@pytest.fixture(scope="module")
def site(root):
    """A server over these runs, on a free port, that looks at them more often than usual."""
    patch = pytest.MonkeyPatch()
    patch.setattr(shelf, "LEAST_SECONDS", 0.2)
    patch.setattr(shelf, "MOST_SHARE", 1.0)
    patch.setattr(live, "SECONDS", 0.2)
    site = Site(root, token=TOKEN)
    server = _Server(site.config())
    thread = threading.Thread(target=server.run, kwargs={"sockets": [site.socket]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield site
    server.handle_exit(0, None)
    thread.join(10)
    patch.undo()
    assert not thread.is_alive(), "the server did not end"


@pytest.fixture(scope="module")
def browser(tmp_path_factory, site):
    browser = Browser(find_browser(), str(tmp_path_factory.mktemp("profile")))
    browser.local = (f"http://127.0.0.1:{site.port}/", "data:", "about:", "blob:")
    yield browser
    browser.close()


@pytest.fixture
def page(browser, site):
    """Opens an address of the site; whatever a test does with it must not make it complain."""

    def show(where: str = "", width: int = 1280, height: int = 800, scheme: str = "light") -> Browser:
        browser.visit(f"{site.address}{where}", "Boolean(window.shoalReady)", width, height, scheme)
        return browser

    yield show
    assert browser.complaints() == []


@pytest.fixture(scope="module")
def axe() -> str:
    """The rules of axe-core, as a script."""
    found = importlib.util.find_spec("axe_core_python")
    if found is None or found.origin is None:
        pytest.skip("axe-core-python is not installed")
    return (Path(found.origin).parent / "axe.min.js").read_text("utf-8")
