"""The site builds without a warning, its links lead somewhere, and it documents every public name."""

import html.parser
import inspect
import os
import subprocess
import sys
import urllib.parse
from pathlib import Path

import pytest

import shoal

ROOT = Path(__file__).parents[2]
sphinx_inventory = pytest.importorskip("sphinx.util.inventory", reason="Sphinx is not installed: pip install sphinx")


class Page(html.parser.HTMLParser):
    """The links, the anchors and what is loaded of a page."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors, self.loaded = [], set(), []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.anchors.add(given.get("id"))
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag in ("img", "script", "link"):
            self.loaded.append(given.get("src") or given.get("href") or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site, built as `make docs` builds it."""
    out = tmp_path_factory.mktemp("site")
    flags = ["-W", "--keep-going", "-q", "-b", "html", "-d", str(out / "doctrees")]
    line = [sys.executable, "-m", "sphinx", *flags, str(ROOT / "docs"), str(out / "site")]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(line, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return out / "site"


@pytest.fixture(scope="module")
def pages(site):
    return {path.resolve(): Page(path) for path in site.rglob("*.html")}


def test_links_and_anchors_lead_somewhere(pages):
    wrong = []
    for path, page in pages.items():
        for link in page.links:
            target = urllib.parse.urlparse(urllib.parse.unquote(link))
            if target.scheme or path.stem in ("search", "genindex"):
                continue
            found = (path.parent / target.path).resolve() if target.path else path
            anchors = pages[found].anchors if found in pages and target.fragment else {target.fragment}
            if not found.is_file() or target.fragment not in anchors:
                wrong.append((path.name, link))
    assert not wrong


def test_nothing_is_loaded_from_elsewhere_and_all_of_it_is_there(pages, site):
    for path, page in pages.items():
        for source in page.loaded:
            target = urllib.parse.urlparse(source)
            if source and not source.startswith("#") and target.scheme != "data":
                assert not target.scheme, (path.name, source)
                assert not target.netloc, (path.name, source)
                assert (path.parent / urllib.parse.unquote(target.path)).exists(), (path.name, source)
    assert (site / "searchindex.js").exists()


def test_every_page_can_be_reached_from_the_first(pages, site):
    start = (site / "index.html").resolve()
    seen, waiting = set(), [start]
    while waiting:
        path = waiting.pop()
        if path in seen or path not in pages:
            continue
        seen.add(path)
        waiting += [(path.parent / link.split("#")[0]).resolve() for link in pages[path].links if ":" not in link]
    assert set(pages) - seen == set()


def test_every_public_name_is_documented(site):
    inventory = sphinx_inventory.InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    known = {name for domain, names in inventory.data.items() if domain.startswith("py:") for name in names}
    assert {f"shoal.{name}" for name in dir(shoal)} - known == set()


@pytest.mark.parametrize("name", [name for name in dir(shoal) if name != "__version__"])
def test_every_public_name_says_what_it_is(name):
    thing = getattr(shoal, name)
    text = inspect.getdoc(thing) or ""
    assert len(text) > 10
    assert not text.startswith(f"{name}("), "dataclasses write such a line for themselves"
