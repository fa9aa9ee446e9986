"""What figures are made with: how they are made known, what they are read from, numbers and tables as text."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
FIGURES: dict[str, Callable[[], str]] = {}


def figure(make: Callable[[], str]) -> Callable[[], str]:
    """Makes a function known as the figure of its name."""
    FIGURES[make.__name__] = make
    return make


def read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown, with the line breaks that set it apart from the slot's marks."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n\n"


def short(value: float) -> str:
    """`16900000` as `16.9 M`: three digits."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= 0.9995 * size:
            return f"{float(f'{value / size:.3g}'):g}{unit}"
    return f"{value:.3g}"


def listed(values: Iterable[float], form: str = "{:.0f}") -> str:
    return ", ".join(form.format(value) for value in values).replace("-", "−")


def spread(values: Sequence[float], form: str = "{:.0f}") -> str:
    low, high = (form.format(end).replace("-", "−") for end in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"
