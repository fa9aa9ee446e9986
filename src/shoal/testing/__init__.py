"""Checking worlds and algorithms: `check_env` and `check_algorithm` find what is wrong and say in words what to do."""

import importlib
from typing import TYPE_CHECKING, Any

from shoal.testing.check_env import check_env
from shoal.testing.reference import Reference
from shoal.testing.report import Finding, Report

if TYPE_CHECKING:
    from shoal.testing._check_algorithm import check_algorithm


def __getattr__(name: str) -> Any:
    if name != "check_algorithm":  # imported when first used: a world's author needs no runner
        raise AttributeError(f"module 'shoal.testing' has no attribute {name!r}")
    return importlib.import_module("shoal.testing._check_algorithm").check_algorithm


__all__ = ["Finding", "Reference", "Report", "check_algorithm", "check_env"]
