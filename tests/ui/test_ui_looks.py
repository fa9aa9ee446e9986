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
