"""What the distribution says of itself: its name, its extras, and hints that name extras that exist."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from shoal.core.errors import install_command
from shoal.core.version import DISTRIBUTION

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
WANTED = [
    "plot",
    "tensorboard",
    "wandb",
    "ui",
    "video",
    "cluster",
    "storage",
    "evolution",
    "bridges",
    "torch",
    "atari",
    "cuda12",
    "cuda13",
    "onnx",
    "all",
]
HINT = re.compile(r"""pip install ['"]?shoal(-rl)?\\?\[([\w,]+)|install_command\(['"](\w+)""")


def parts(extra: str) -> set[str]:
    """The extras that one refers to."""
    (text,) = [text for text in EXTRAS[extra] if text.startswith(DISTRIBUTION)]
    return set(text.removeprefix(f"{DISTRIBUTION}[").removesuffix("]").split(","))


def test_names():
    assert PROJECT["name"] == DISTRIBUTION == "shoal-rl"
    assert PROJECT["scripts"] == {"shoal": "shoal.cli:main"}
    assert len(PROJECT["urls"]) == 1  # one setting
    supported = {f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)}
    assert supported <= set(PROJECT["classifiers"])


def test_every_python_that_is_named_was_tried():
    """`benchmarks/versions.py` tries them; a verdict that is not good keeps a version out of the classifiers."""
    rows = json.loads((ROOT / "benchmarks/results/versions.json").read_text())["rows"].values()
    good = {row["python"].rpartition(".")[0] for row in rows if row.get("tests_pass") and row["demo_trains"]}
    named = {text.rpartition(" ")[2] for text in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", text)}
    assert named == good
    assert all(row.get("tests_pass") and row["demo_trains"] for row in rows)


def test_extras():
    assert set(WANTED) | {"viz", "cuda"} == EXTRAS.keys()
    assert parts("all") == set(WANTED) - {"all", "cuda12", "cuda13"}
    assert parts("viz") == {"plot", "tensorboard"}
    assert parts("cuda") == {"cuda13"}


def test_what_development_needs_is_not_published():
    """It is in dependency groups, which `make setup` installs beside extras."""
    groups = PYPROJECT["dependency-groups"]
    assert groups.keys() == {"dev", "docs"}
    assert {"include-group": "docs"} in groups["dev"]
    extras, group = re.search(r"-e '\.\[(.*)\]' --group (\w+)", (ROOT / "Makefile").read_text()).groups()
    assert set(extras.split(",")) <= parts("all")
    assert group == "dev"


def test_the_command_that_installs():
    assert install_command("video") == "pip install 'shoal-rl[video]'"
    assert install_command("cluster", "0.1.0") == "pip install 'shoal-rl[cluster]==0.1.0'"


def test_the_page_of_extras_has_all_of_them():
    page = (ROOT / "docs/get-started/install.md").read_text().split("## Extras")[1].split("\n## ")[0]
    rows = [row.split("|")[1:3] for row in page.splitlines() if row.startswith("| `")]
    meanings = {name: meaning for names, meaning in rows for name in re.findall(r"`(\w+)`", names)}
    assert meanings.keys() == set(WANTED)
    left_out = set(re.findall(r"`(\w+)`", meanings["all"]))
    assert left_out == set(WANTED) - {"all"} - parts("all")


@pytest.mark.parametrize("folder", ["src", "tests", "docs", "examples", "README.md"])
def test_hints_name_the_distribution_and_extras_that_exist(folder):
    place = ROOT / folder
    files = [place] if place.is_file() else [*place.rglob("*.py"), *place.rglob("*.md")]
    hints = [(file, *match.groups()) for file in files for match in HINT.finditer(file.read_text())]
    for file, new_name, extras, called in hints:
        assert new_name or called, f"{file} says pip install 'shoal[{extras}]': that is another project"
        assert set((extras or called).split(",")) <= EXTRAS.keys() - {"viz", "cuda"}, file
    assert len(hints) >= (0 if folder == "examples" else 1)
