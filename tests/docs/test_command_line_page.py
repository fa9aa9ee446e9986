"""The page of the command line and the index of what ships say what the code says."""

import importlib.util
import json
import re
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


def test_every_option_is_there_with_its_meaning(builder):
    """Also those that are shared, which stand under `shoal train` and are named where they apply."""
    text = builder.PAGE.read_text().split("## Every option")[1].replace("[no-]", "")
    sections = dict(part.split("\n", 1) for part in text.split("### shoal ")[1:])
    for name, options in builder.inventory.command_options().items():
        for option in options:
            for flag in option.flags[:1]:
                assert re.search(rf"[` /]{flag}[ `,/|]", sections[name]), (name, flag)
    assert "| `--seed INT` | `0` | seed of everything random |" in sections["train"]
    assert re.search(
        r"^\| `--cluster auto\\\|ADDRESS` \| {2}\| train on a Ray cluster", sections["train"], re.MULTILINE
    )


def test_the_index_agrees_with_the_worlds_presets_algorithms_and_commands(builder):
    stored, made = json.loads(builder.INDEX.read_text()), json.loads(builder.index())
    assert stored.keys() == made.keys()
    for part, entries in made.items():
        for name, entry in entries.items():
            assert stored[part].get(name) == entry, f"{part} {name}: {AGAIN}"
        assert stored[part].keys() == entries.keys(), AGAIN
