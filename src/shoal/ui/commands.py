"""Commands that fit a run, to be copied into a terminal."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.core.errors import shell_command
from shoal.training.catalogue import Entry

PLAYED = frozenset({"training", "evolution", "pbt"})
"""Kinds whose policies can be watched, evaluated and exported."""
GROWN = frozenset({"psro"})


def commands_of(entry: Entry, config: Mapping[str, Any], root: Path) -> list[dict[str, str]]:
    """What can be done next with a run: words and a command each. config: what its `config.json` holds."""
    folder = entry.path
    found: list[tuple[str, Any]] = []
    if entry.status in ("stopped", "failed"):
        found.append(("Go on with it", ("resume", folder)))
    if entry.kind in PLAYED:
        found += [
            ("Watch an episode", ("watch", folder, "--open")),
            ("Evaluate its policies", ("eval", folder)),
            ("Export its policies for numpy", ("export", folder)),
        ]
    if entry.kind in GROWN:
        found.append(("Look into the population", ("population", folder)))
    if entry.kind == "training":
        found.append(("Train it again with another seed", ("train", folder, "--seed", 1)))
    found.append(("See all runs beside it", ("ui", root)))
    next_ones = [{"what": what, "command": shell_command(*words)} for what, words in found]
    recorded = recorded_command(config)
    return next_ones if recorded is None else [*next_ones, {"what": "The command that started it", "command": recorded}]


def recorded_command(config: Mapping[str, Any]) -> str | None:
    """The command that a run folder says it was made by, if it is a command of Shoal and nothing else.

    A folder may come from anyone, and what is shown here is pasted into a shell: so whatever is not plain words after
    `shoal`, such as a second command behind a semicolon, is not shown.
    """
    provenance = config.get("provenance")
    text = provenance.get("command") if isinstance(provenance, Mapping) else None
    if not isinstance(text, str) or not text.isprintable():
        return None
    try:
        words = shlex.split(text)
    except ValueError:
        return None
    return text if words[:1] == ["shoal"] and shlex.join(words) == text else None
