"""Checking worlds: `check_env` finds what is wrong with one and says in words what to do."""

from shoal.testing.check_env import check_env
from shoal.testing.reference import Reference
from shoal.testing.report import Finding, Report

__all__ = ["Finding", "Reference", "Report", "check_env"]
