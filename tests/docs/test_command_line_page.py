"""The page of the command line and the index of what ships say what the code says."""

import importlib.util
import json
from pathlib import Path

import pytest

from shoal.cli.app import COMMANDS

ROOT = Path(__file__).parents[2]
AGAIN = "run python docs/build_command_line.py"


@pytest.fixture(scope="module")
def builder():
    spec = importlib.util.spec_from_file_location("build_command_line", ROOT / "docs" / "build_command_line.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page(builder):
    text = builder.PAGE.read_text()
    assert text == builder.page(), AGAIN
    for name in COMMANDS:
        assert f"| `shoal {name}" in text
    assert len(text.splitlines()) < 80


def test_the_index_agrees_with_the_worlds_presets_algorithms_and_commands(builder):
    stored, made = json.loads(builder.INDEX.read_text()), json.loads(builder.index())
    assert stored.keys() == made.keys()
    for part, entries in made.items():
        for name, entry in entries.items():
            assert stored[part].get(name) == entry, f"{part} {name}: {AGAIN}"
        assert stored[part].keys() == entries.keys(), AGAIN
