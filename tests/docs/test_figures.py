"""Figures in the README and the docs are those of `benchmarks/results`, and none is made that nobody shows."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def figures():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")
        return importlib.import_module("build_figures")


def test_every_page_is_up_to_date(figures):
    pages = figures.pages()
    assert ROOT / "README.md" in pages
    for page in pages:
        assert figures.filled(page) == page.read_text(), f"{page} is out of date: run python docs/build_figures.py"


def test_every_figure_is_shown_and_comes_from_results(figures):
    shown = {slot[2] for page in figures.pages() for slot in figures.SLOT.finditer(page.read_text())}
    assert shown == set(figures.FIGURES)


def test_a_changed_result_changes_the_page(figures, monkeypatch, tmp_path):
    read = figures.speed.read

    def doubled(name):
        found = read(name)
        if name == "h200/headline":
            for row in found:
                row["env_steps_per_s"] *= 2
        return found

    before = figures.FIGURES["gpu_training"]()
    monkeypatch.setattr(figures.speed, "read", doubled)
    assert figures.FIGURES["gpu_training"]() != before


RATE = r"\d(?: ?[MGk])? (?:env |agent )?steps(?:/s| per (?:CPU-)?second)|\| \d[\d.]* [MGk] \|"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def find_typed_rates(figures, text):
    """Rates outside of slots, and outside of what a terminal showed."""
    return re.findall(RATE, re.sub(r"```.*?```", "", figures.SLOT.sub("", text), flags=re.DOTALL))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_speeds_are_typed_nowhere(figures, page):
    made_elsewhere = page.parent.name == "worlds"  # by docs/build_worlds.py, from JSON as well
    assert made_elsewhere or find_typed_rates(figures, page.read_text()) == []


def test_a_typed_rate_is_found(figures):
    slot = "<!-- figure x -->2 M env steps/s<!-- /figure -->"
    fence = "```console\n4.1k env steps, 21.7k env steps/s\n```"
    assert find_typed_rates(figures, f"{slot} and {fence}") == []
    typed = (
        "91 M env steps/s",
        "65 k env steps per CPU-second",
        "| 2.4 M | 5.6 |",
        "2,700 steps per second",
        "3 steps/s",
    )
    for text in typed:
        assert find_typed_rates(figures, text), text


def test_rows_that_were_measured_again_are_shown_as_they_are_now(figures):
    newest = {row["work"]: row["env_steps_per_s"] for row in figures.speed.read("h200/headline")}
    shown = {row["name"]: row["env_steps_per_s"] for row in figures.speed.stepped()}
    assert set(figures.speed.MEASURED_AGAIN) <= set(shown)
    for name, work in figures.speed.MEASURED_AGAIN.items():
        assert shown[name] == newest[work]
    assert figures.speed.short(newest["tag/grid 2000 x 5, random"]) in figures.FIGURES["gpu_worlds"]()


@pytest.mark.parametrize(
    ("shares", "launching", "limit"),
    [
        ((0.6, 0.1, 0.0), None, "memory"),
        ((0.1, 0.7, 0.0), [0.1, 0.2], "products"),
        ((0.1, 0.0, 0.1), [0.6, 1.2], "launching kernels"),
        ((0.6, 0.0, 0.1), [0.3, 0.6], "launching kernels, in part"),
        ((0.3, 0.2, 0.1), [0.1, 0.2], "no rate alone"),
        ((0.3, 0.2, 0.1), None, "no rate alone; launches not counted"),
    ],
)
def test_what_limits_a_row(figures, shares, launching, limit):
    names = ("share_of_bandwidth", "share_of_products", "share_of_float32")
    assert figures.speed._limit(dict(zip(names, shares, strict=True)), launching) == limit


@pytest.mark.parametrize(
    ("value", "text"),
    [(16_927_984, "16.9 M"), (456_000_000, "456 M"), (999_700, "1 M"), (352_000, "352 k"), (161, "161")],
)
def test_rates_are_short(figures, value, text):
    assert figures.speed.short(value) == text
