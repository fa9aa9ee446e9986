"""The guide to an algorithm of one's own: what it shows runs, and what it says of the contract is so."""

import dataclasses
import inspect
import re

import jax.numpy as jnp
import pytest
from flax import struct

from shoal.core import algorithm as contract
from shoal.presets import _registry as preset_registry
from shoal.testing._check_algorithm import PROBES
from tests.docs.guides import ROOT, Guide, parse_command

GUIDE = Guide("your-own-algorithm.md")
FILES = {"calm_ppo.py": "class CalmPPO", "reinforce.py": "class Reinforce("}


@pytest.fixture(autouse=True)
def own_files(monkeypatch, tmp_path):
    """Presets of the guide are forgotten after a test; its files lie in the current folder."""
    monkeypatch.setattr(preset_registry, "_presets", dict(preset_registry._presets))
    monkeypatch.chdir(tmp_path)
    for file, word in FILES.items():
        (tmp_path / file).write_text(GUIDE.block(word))
    with (tmp_path / "reinforce.py").open("a") as file:
        file.write(GUIDE.block("class SplitReinforce"))


def is_check(block):
    return "check_algorithm(" in block and "def test" not in block


def test_listings_are_the_examples():
    for name in ("kl_ppo", "munchausen_dqn"):
        assert (ROOT / "examples" / f"{name}.py").read_text() in GUIDE.blocks


def test_what_the_guide_shows_runs(tmp_path):
    names = {"__name__": "guide"}
    printed = [GUIDE.run(names, block) for block in GUIDE.blocks if not is_check(block)]
    assert -2 <= float("".join(printed)) <= 2
    assert (tmp_path / "runs" / "kuhn" / "config.json").exists()
    state = State({"kl_coef": jnp.float32(1.5)})
    assert names["double_the_coefficient"](state).hyper["kl_coef"] == 3.0
    assert preset_registry._presets["reinforce/kuhn"]


class State(struct.PyTreeNode):
    hyper: dict


@pytest.mark.slow
def test_the_checks_say_what_the_guide_says():
    names = {"__name__": "guide"}
    for word in FILES.values():
        GUIDE.run(names, GUIDE.block(word))
    said = re.findall(r"```text\n(.*?)```", GUIDE.text, re.DOTALL)
    assert [GUIDE.run(names, block) for block in GUIDE.blocks if is_check(block)] == said


@pytest.mark.parametrize("words", [words for words in GUIDE.commands if "--import" in words], ids=" ".join)
def test_commands_can_be_parsed(words):
    parse_command(words)


def test_the_contract_is_listed_as_it_is():
    members = {re.match(r"\w+", row)[0] for row in GUIDE.table("What the contract asks for")}
    assert members == {"init", "act", "value", "update", "initial_memory", "traits"}
    for row in GUIDE.table("What the contract asks for"):
        name, _, arguments = row.partition("(")
        if arguments:
            parameters = list(inspect.signature(getattr(contract.Algorithm, name)).parameters)[1:]
            assert [part.split("=")[0].strip() for part in arguments.strip(") ").split(",")] == parameters


def test_traits_and_trajectories_are_listed_as_they_are():
    assert list(GUIDE.table("### Traits")) == [field.name for field in dataclasses.fields(contract.Traits)]
    rows = ", ".join(GUIDE.table("has what a group went through"))
    fields = {field.name for field in dataclasses.fields(contract.Trajectory)}
    assert set(rows.split(", ")) == fields


def test_protocols_are_listed_as_they_are():
    rows = GUIDE.table("### Protocols")
    found = [
        cls
        for _, cls in inspect.getmembers(contract, inspect.isclass)
        if inspect.isabstract(cls) and cls.__module__ == contract.__name__ and cls is not contract.Algorithm
    ]
    assert set(rows) == {cls.__name__ for cls in found}
    for cls in found:
        listed = re.findall(r"`(\w+)`", rows[cls.__name__].split("|")[0])
        assert set(listed) <= cls.__abstractmethods__
        assert "and others" in rows[cls.__name__] or set(listed) == cls.__abstractmethods__


def test_probes_are_listed_as_they_are():
    assert list(GUIDE.table("whose answers are known on paper")) == list(PROBES)
