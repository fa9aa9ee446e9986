"""Numbers as people read them."""

from collections.abc import Mapping, Sequence
from typing import Any

BLOCKS = "▁▂▃▄▅▆▇█"
"""The heights of a curve of one row of characters."""


def format_count(number: float) -> str:
    """A large number in few letters: 950, 12.3k, 4.56M, 1.2G."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g}{letter}" if abs(number) < 999.5 * size else f"{number / size:.0f}{letter}"
    return f"{number:.0f}"


def pluralise(number: int, one: str, many: str | None = None) -> str:
    """A number of things: 1 copy, 3 copies. `many` is the plural, unless it is the singular and an s."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def format_duration(seconds: float) -> str:
    """Seconds as 0:42, 12:03 or 3:01:15."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def format_size(bytes: float) -> str:
    """Bytes as 40 kB, 12 MB or 3.4 GB."""
    if bytes < 1e6:
        return f"{bytes / 1e3:.0f} kB"
    return f"{bytes / 1e9:.1f} GB" if bytes >= 1e9 else f"{bytes / 1e6:.0f} MB"


def describe_iteration(line: Mapping[str, Any]) -> str:
    """The figures of one iteration in one line."""
    parts = [f"{line['iteration']:4d}"]
    if "value" in line:
        parts.append(f"value {line['value']:+.4f}")
    if "nash_conv" in line:
        parts.append(f"NashConv {unsigned(line['nash_conv'])}")
    if "gain" in line:
        parts.append("gains " + ", ".join(f"{round(gain, 3) + 0.0:+.3f}" for gain in line["gain"]))
    parts.append(f"support {' x '.join(map(str, line['support']))}")
    return "  ".join([*parts, format_duration(line["seconds"])])


def unsigned(number: float) -> str:
    """Four digits; rounding errors below 0 are 0."""
    return f"{max(number, 0.0):.4f}"


def sparkline(values: Sequence[float], width: int = 30) -> str:
    """A curve of one row of characters."""
    if len(values) < 2:
        return ""
    import numpy as np  # not needed by those who only show help

    picked = np.interp(np.linspace(0, len(values) - 1, min(width, len(values))), np.arange(len(values)), values)
    low, high = float(picked.min()), float(picked.max())
    scaled = (picked - low) / (high - low) * (len(BLOCKS) - 1) if high > low else np.zeros(len(picked))
    return "".join(BLOCKS[round(float(level))] for level in scaled)


def format_age(seconds: float) -> str:
    """How long ago something was, in one unit: 40 s, 12 min, 5 h, 3 d."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
