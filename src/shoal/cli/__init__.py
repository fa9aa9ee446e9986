"""The `shoal` command."""

from shoal.cli.app import main

__all__ = ["main"]
