"""The page of the experiment file: its examples are experiments, and it has an entry for every setting."""

import dataclasses
import re

import pytest

import shoal
from shoal.api.settings import read_experiment
from shoal.training.serialise import UNSTORED

from .pages import read

PAGE = read("reference/experiment-file.md")


def stored(kind):
    return {field.name for field in dataclasses.fields(kind) if field.metadata != UNSTORED}


def entries(heading):
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name for cell in rows for name in re.findall(r"`(\w+)`", cell)}


def test_every_entry_is_there():
    assert entries("Entries") == stored(shoal.Experiment)
    assert entries("A learner") == stored(shoal.Learner)


@pytest.mark.parametrize("text", re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL))
def test_examples_are_experiments(text, tmp_path):
    file = tmp_path / "exp.toml"
    file.write_text(text)
    experiment = read_experiment(file)
    assert experiment.setup.learners.keys() == experiment.learners.keys()
    assert experiment.num_updates > 0
