"""The guide to a world of one's own: what it shows runs, and what it says about arguments is so."""

import contextlib
import inspect
import io
import re
import shlex
from pathlib import Path

import pytest

import shoal
from shoal.cli import main
from shoal.cli.arguments import parse
from shoal.cli.commands.watch import WatchOptions
from shoal.cli.run_options import TrainOptions
from shoal.cli.targets import parse_target
from shoal.core import registry
from shoal.envs.wrappers import WRAPPERS
from shoal.presets import _registry as preset_registry

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "your-own-world.md").read_text()
LISTING, *SNIPPETS = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
EXAMPLE = ROOT / "examples" / "own_world.py"


@pytest.fixture(autouse=True)
def own_registries(monkeypatch):
    """Worlds and presets that the guide makes known are forgotten after a test."""
    monkeypatch.setattr(registry.WORLDS, "table", dict(registry.WORLDS.table))
    monkeypatch.setattr(preset_registry, "_presets", dict(preset_registry._presets))


def commands():
    found = re.findall(r"^\$ (.*)$", GUIDE, re.MULTILINE)
    return [shlex.split(command) for command in found]


def test_the_listing_is_the_example():
    assert EXAMPLE.read_text() == LISTING


def test_what_the_guide_shows_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "guide"}  # the example trains when it is the main program: that is tested with the examples
    for number, code in enumerate([LISTING, *SNIPPETS]):
        exec(compile(code, f"your-own-world.md, block {number}", "exec"), names)
    with pytest.raises(shoal.ShoalError, match="num_mice must be at least 1, got 0"):
        names["CarefulOwl"](num_mice=0)
    assert (tmp_path / "owl.json").exists()


@pytest.mark.parametrize("words", [words for words in commands() if words[0] == "shoal"], ids=" ".join)
def test_commands_can_be_parsed(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    match words:
        case ["shoal", "train", *rest]:
            assert parse_target(TrainOptions, rest, "shoal train").experiment.env == "example/owl"
        case ["shoal", "watch", *rest]:
            parse(WatchOptions, rest, "shoal watch")


def test_it_trains_from_the_command_line(tmp_path):
    small = ["--num-envs", "8", "--num-steps", "8", "--total-env-steps", "128", "--algo", "a2c"]
    plans = ["--wrap", "pad", "--sharing", "all", "--randomise", "--env.num-mice", "2"]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(
            ["train", "example/owl", "--import", str(EXAMPLE), *small, *plans, "--run-dir", str(tmp_path / "run")]
        )
    assert code == 0
    assert "example/owl (pad): shared by a2c" in out.getvalue()
    assert (tmp_path / "run" / "replay.html").exists()  # it has a scene


SHOWN = ("Group", "Outcome", "Observation", "Scene", "Discrete", "MultiDiscrete", "Box", "Circles", "Polygons", "Lines")


@pytest.mark.parametrize("name", [*SHOWN, "Labels"])
def test_arguments_are_listed_as_they_are(name):
    shown = re.search(rf"`{name}\((.*?)\)`", GUIDE)[1]
    expected = inspect.signature(getattr(shoal, name)).parameters.values()
    said = re.sub(r"\([^)]*\)?|\{\}", "_", shown)  # default values that contain commas
    assert [part.partition("=")[0].strip() for part in said.split(",")] == [parameter.name for parameter in expected]
    for part, parameter in zip(said.split(","), expected, strict=True):
        assert ("=" in part) == (parameter.default is not parameter.empty), part


def test_wrappers_are_listed_as_they_are():
    for name, wrapper in WRAPPERS.items():
        shown = re.search(rf"\| `{name}` \| `{wrapper.__name__}\((.*?)\)` \|", GUIDE)[1]
        expected = [
            f"{parameter.name}={parameter.default}"
            for parameter in inspect.signature(wrapper).parameters.values()
            if parameter.name != "env"
        ]
        assert shown.split(", ") == ["env", *expected]


def test_every_colour_of_the_palette_is_named():
    for number, colour in re.findall(r"(\d) (\w+)", shoal.Scene.__doc__.partition("Palette: ")[2].partition(".")[0]):
        assert f"{number} {colour}" in GUIDE
