"""Fills in the figures of the README and of the docs from `benchmarks/results`: `python docs/build_figures.py`.

A figure stands between `<!-- figure NAME -->` and `<!-- /figure -->`, a number within a sentence or a whole table, and
is made by the function of that name in `docs/figures`, from JSON. `--check` says what is out of date; a test runs it.
So no figure is typed: to change one, measure it anew.
"""

import argparse
import re
import sys
from pathlib import Path

from figures import first_screen, outcomes, speed  # noqa: F401  # they make their figures known
from figures.forms import FIGURES, ROOT

SLOT = re.compile(r"(<!-- figure (\w+) -->)(.*?)(<!-- /figure -->)", re.DOTALL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    stale = [page for page in pages() if filled(page) != page.read_text()]
    names = ", ".join(str(page.relative_to(ROOT)) for page in stale)
    if args.check:
        print(f"out of date: {names}; run python docs/build_figures.py" if stale else "up to date")
        return bool(stale)
    for page in stale:
        page.write_text(filled(page))
    print(f"changed: {names}" if stale else "nothing changed")
    return 0


def pages() -> list[Path]:
    """The pages that have figures."""
    every = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in every if SLOT.search(page.read_text())]


def filled(page: Path) -> str:
    """The text of a page with all its figures made anew."""

    def fill(slot: re.Match) -> str:
        if slot[2] not in FIGURES:
            raise SystemExit(f"{page}: there is no figure {slot[2]!r}; there are {', '.join(sorted(FIGURES))}")
        return slot[1] + FIGURES[slot[2]]() + slot[4]

    return SLOT.sub(fill, page.read_text())


if __name__ == "__main__":
    sys.exit(main())
