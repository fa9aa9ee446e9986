"""Figures in the README and the docs are those of `benchmarks/results`, and none is made that nobody shows."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def figures():
    spec = importlib.util.spec_from_file_location("build_figures", ROOT / "docs" / "build_figures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_up_to_date(figures):
    pages = figures.pages()
    assert ROOT / "README.md" in pages
    for page in pages:
        assert figures.filled(page) == page.read_text(), f"{page} is out of date: run python docs/build_figures.py"


def test_every_figure_is_shown_and_comes_from_results(figures):
    shown = {slot[2] for page in figures.pages() for slot in figures.SLOT.finditer(page.read_text())}
    assert shown == set(figures.FIGURES)


def test_a_changed_result_changes_the_page(figures, monkeypatch, tmp_path):
    read = figures.read

    def doubled(name):
        found = read(name)
        if name == "h200/headline":
            for row in found:
                row["env_steps_per_s"] *= 2
        return found

    before = figures.FIGURES["gpu_training"]()
    monkeypatch.setattr(figures, "read", doubled)
    assert figures.FIGURES["gpu_training"]() != before


def test_speeds_of_the_gpu_are_typed_nowhere(figures):
    """Outside of slots, the README names no rate."""
    text = figures.SLOT.sub("", (ROOT / "README.md").read_text())
    assert re.findall(r"\d [MGk] (?:env|agent) steps|\d steps/s", text) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [(16_927_984, "16.9 M"), (456_000_000, "456 M"), (999_700, "1 M"), (352_000, "352 k"), (161, "161")],
)
def test_rates_are_short(figures, value, text):
    assert figures.short(value) == text
