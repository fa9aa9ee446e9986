"""The pages for those who come from another library: its code runs where it is installed, and else it says so."""

import importlib.util
import re

import pytest

from .pages import BLOCK, PAGES, blocks, read

OWN = [page for page in PAGES if page.startswith("coming-from/")]
NAMES = {
    "lz4": "pip install 'ray[rllib]'",
    "benchmarl": "pip install 'benchmarl[vmas]', beside an older torchrl",
    "cvxpy": "pip install open_spiel cvxpy",
    "pyspiel": "pip install open_spiel",
}
"""How to install what a mark names, where that is not `pip install` and its name."""
APART = {"benchmarl"}
"""What cannot be installed beside the rest: BenchMARL needs an older torchrl than the one that is tested here."""
NEEDED = sorted(
    {
        (page, found["mark"][7:])
        for page in OWN
        for found in BLOCK.finditer(read(page))
        if "needs" in str(found["mark"]) and found["mark"][7:] not in APART
    }
)
PARTS = (
    "Words",
    "The same task",
    "What you gain, what you lose",
    "Keep your environments",
    "Keep your policies",
    "Pitfalls",
)


@pytest.mark.parametrize(("page", "package"), NEEDED)
def test_what_a_page_shows_of_others_is_run_where_they_are_installed(page, package):
    command = NAMES.get(package, f"pip install {package}")
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"docs/{page} shows code that needs {package}, which is not run: {command}")
    assert f"needs: {package}" in {block.mark for block in blocks(read(page))}


@pytest.mark.parametrize("page", OWN)
def test_pages_have_the_same_parts(page):
    assert tuple(re.findall(r"^## (.*)$", read(page), re.MULTILINE)) == PARTS
