"""Checks of options that environments, algorithms and search strategies make when they are built."""

import math
from typing import Any

from shoal.core.errors import require

MAX_WHOLE = 2**31 - 1
"""Whole numbers are int32."""
MAX_COUNT = 100_000
"""The most agents, landmarks and the like; more is taken for a typing error."""


def require_whole(owner: str, at_least: int, *, at_most: int = MAX_WHOLE, **options: int) -> None:
    """Each option must be a whole number from `at_least` to `at_most`."""
    for option, got in options.items():
        whole = isinstance(got, int) and not isinstance(got, bool)
        require(whole and got >= at_least, owner, option, got, f"a whole number, at least {at_least}")
        require(got <= at_most, owner, option, got, f"at most {at_most}")


def require_finite(owner: str, **options: float) -> None:
    """Each option must be a finite number."""
    for option, got in options.items():
        require(_is_number(got) and math.isfinite(got), owner, option, got, "a finite number")


def require_not_negative(owner: str, **options: float) -> None:
    """Each option must be a finite number of at least 0."""
    require_finite(owner, **options)
    for option, got in options.items():
        require(got >= 0, owner, option, got, "at least 0")


def require_above_zero(owner: str, **options: float) -> None:
    """Each option must be a finite number greater than 0."""
    require_finite(owner, **options)
    for option, got in options.items():
        require(got > 0, owner, option, got, "greater than 0")


def require_flag(owner: str, **options: bool) -> None:
    """Each option must be True or False."""
    for option, got in options.items():
        require(isinstance(got, bool), owner, option, got, "True or False")


def check_floats(owner: Any, **limits: tuple[float, float | None]) -> None:
    """Each named option of `owner` must be within its limits, from the first to the second (None: any finite number).

    Arrays pass: an option that is swept is a tracer, which must not be inspected.
    """
    for option, (low, high) in limits.items():
        got = getattr(owner, option)
        if isinstance(got, int | float):
            fits = low <= got and (math.isfinite(got) if high is None else got <= high)
            bounds = f"at least {low}" + (" and finite" if high is None and got == math.inf else "")
            bounds += "" if high is None else f" and at most {high}"
            require(fits, type(owner).__name__, option, got, bounds)


def check_positive(owner: Any, *options: str) -> None:
    """Each named option of `owner` must be greater than 0 and finite; arrays pass."""
    for option in options:
        got = getattr(owner, option)
        if isinstance(got, int | float):
            fits = not isinstance(got, bool) and 0 < got < math.inf
            require(fits, type(owner).__name__, option, got, "greater than 0" + " and finite" * (got == math.inf))


def check_whole(owner: Any, **least: int) -> None:
    """Each named option of `owner` must be a whole number of at least the given size."""
    for option, low in least.items():
        got = getattr(owner, option)
        whole = isinstance(got, int) and not isinstance(got, bool) and got >= low
        require(whole, type(owner).__name__, option, got, f"a whole number, at least {low}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
