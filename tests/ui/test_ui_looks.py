"""How the screens look to those who see, and read to those who do not: accessibility, widths, both themes."""

import json

import pytest

from tests.ui.gallery import SCREENS


def violations(page, axe: str) -> list[str]:
    """What a page does against the rules."""
    page.js(f"{axe}; undefined")
    # Rules that a page for a moving, dense display decides for itself are none: all that apply are run.
    found = page.js("axe.run(document, {iframes: false}).then((result) => result.violations)")
    return [
        f"{one['id']}: {node['html'][:160]} {json.dumps(node['any'])[:300]}" for one in found for node in one["nodes"]
    ]


@pytest.mark.parametrize("name", ["runs", "run", "compare"])
def test_accessible(page, axe, name):
    shown = page(SCREENS[name])
    shown.settle()
    assert violations(shown, axe) == []


@pytest.mark.parametrize(
    ("low", "high", "wanted", "expected"),
    [
        (1600, 96_000, 1.8, [20_000, 40_000, 60_000, 80_000]),
        (0, 60, 3, [0, 20, 40, 60]),
        (0.75, 1.8, 2, [1, 1.5]),
        (1600, 96_000, 9, [*range(20_000, 100_000, 20_000)]),
        (-0.3, 0.3, 1, [-0.2, 0, 0.2]),
    ],
)
def test_an_axis_has_two_numbers_at_least(page, low, high, wanted, expected):
    found = page("#/runs").js(f"import('/static/lib/chart.js').then((chart) => chart.ticks({low}, {high}, {wanted}))")
    assert found == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", SCREENS)
def test_every_screen_is_accessible(page, axe, name, scheme):
    shown = page(SCREENS[name], width=1280, height=1400, scheme=scheme)
    shown.settle()
    assert violations(shown, axe) == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 680, 820, 1080, 1280, 2560])
@pytest.mark.parametrize("name", SCREENS)
def test_nothing_sticks_out(page, name, width):
    shown = page(SCREENS[name], width=width)
    shown.settle()
    assert shown.js("document.documentElement.scrollWidth <= innerWidth")
