"""Runs that have a screen of their own besides that of every run."""

import os
from typing import Any

from shoal.cluster.supervisor import STATUS
from shoal.core.errors import OptionError
from shoal.training.catalogue import Catalogue, Entry
from shoal.ui.folder import is_file

TUNED = ("sweep", "pbt")
GROWN = ("psro",)


def screens_of(entry: Entry) -> list[str]:
    """The further screens that show a run, by their names in the address."""
    found = ["population"] if entry.kind in GROWN else ["tuning"] if entry.kind in TUNED else []
    return [*found, "cluster"] if entry.kind and is_file(os.path.join(entry.path, STATUS)) else found


def plain_entry(entry: Entry) -> dict[str, Any]:
    """An entry as plain data, with its screens."""
    return entry.plain() | {"screens": screens_of(entry)}


def entry_of_kind(catalogue: Catalogue, name: str, kinds: tuple[str, ...], what: str) -> Entry:
    """A run that must be of one of these kinds. what: the words for them."""
    entry = catalogue.entry(name)
    if entry.kind not in kinds:
        found = entry.problem or f"it is a run of the kind {entry.kind!r}"
        raise OptionError(f"{name} is not {what}: {found}. The list of runs leads to the screens that fit a run.")
    return entry
