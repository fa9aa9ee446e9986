"""What ships with Shoal, by name, from `index.json`: worlds, presets, algorithms and the options of commands.

It is there so that listing and completing need no JAX, which takes longer to import than anybody wants to wait for a
list. `inventory` makes it from the code, `docs/build_command_line.py` writes it, and a test compares the two.
"""

import functools
import importlib.resources
import json
from typing import Any

from shoal.core.extensions import identity
from shoal.core.registry import WORLDS, ids

FILE = "index.json"


@functools.cache
def read_index() -> dict[str, Any]:
    """All of it: see `inventory.make_index`."""
    return json.loads(importlib.resources.files("shoal.cli").joinpath(FILE).read_text())


@functools.cache
def speeds() -> dict[str, dict[str, float | None]]:
    """Env steps per second of the worlds that ship, as measured by benchmarks/worlds_speed.py."""
    return json.loads(importlib.resources.files("shoal.envs").joinpath("speeds.json").read_text())


def world_entries() -> dict[str, dict[str, Any]]:
    """What is known of every world, by id. Only those that are not Shoal's own are built for it."""
    shipped, found = read_index()["worlds"], {}
    for id in ids():
        entry = shipped.get(id)
        if entry is None or identity(WORLDS.table.get(id, "")) != entry["class"]:
            from shoal.cli.inventory import describe_world

            entry = describe_world(id)
        found[id] = entry
    return found
