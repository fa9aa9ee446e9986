"""Checks that worlds make on their options when they are built."""

import math

from shoal.core.errors import require

MAX_WHOLE = 2**31 - 1
"""Whole numbers are counted with in int32."""
MAX_COUNT = 100_000
"""Of agents, landmarks and the like; more is taken for a slip of the keyboard."""


def require_whole(owner: str, at_least: int, *, at_most: int = MAX_WHOLE, **options: int) -> None:
    """Each option must be a whole number, `at_least` and `at_most` that large."""
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


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
