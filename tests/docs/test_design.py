"""The page about the design and the one for contributors name what is there: layers, modules, tests."""

import importlib
import re
import tomllib
from xml.etree import ElementTree

import pytest

from tests.docs.guides import ROOT

PAGES = {name: (ROOT / name).read_text() for name in ("docs/design.md", "CONTRIBUTING.md")}
LAYERS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"]


def test_the_picture_shows_the_layers_that_are_checked():
    found = {}
    for text in ElementTree.parse(ROOT / "docs" / "layers.svg").iter("{http://www.w3.org/2000/svg}text"):
        if text.get("class") == "name":
            found.setdefault(int(text.get("y")), []).append((int(text.get("x")), text.text))
    shown = [[name for _, name in sorted(row)] for _, row in sorted(found.items())]
    assert shown == [re.findall(r"shoal\.(\w+)", layer) for layer in LAYERS]


@pytest.mark.parametrize("page", PAGES)
def test_modules_and_folders_that_are_named_exist(page):
    layers = "|".join(re.findall(r"shoal\.(\w+)", " ".join(LAYERS)))
    names = re.findall(rf"`(?:shoal\.)?((?:{layers})\.(?!json)[\w.]+)", PAGES[page])
    assert names
    for name in names:
        module, _, attribute = f"shoal.{name}".rpartition(".")
        try:
            importlib.import_module(f"shoal.{name}")
        except ModuleNotFoundError:
            assert getattr(importlib.import_module(module), attribute, None) is not None, name
    paths = [path for path in re.findall(r"`((?:tests|src|benchmarks|docs)/[\w./-]+)`", PAGES[page]) if "<" not in path]
    assert paths
    for path in paths:
        assert (ROOT / path).exists(), path
