"""What ships with Shoal, as the page shows it: worlds, their options, their presets and what these are known to reach.

All of it is read from files of the package that are made from the code (see `shoal.cli.inventory`): no JAX is needed.
"""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).parent.parent
STATIC = Path(__file__).parent / "static"
"""Files of the page."""
_FILMS = STATIC / "worlds"


@functools.cache
def read_index() -> Mapping[str, Any]:
    """Worlds, presets, algorithms, and the options of commands."""
    return json.loads((_PACKAGE / "cli" / "index.json").read_text("utf-8"))


@functools.cache
def describe_worlds() -> list[dict[str, Any]]:
    """Every world that ships, with its options, its film and its presets."""
    index = read_index()
    known = json.loads((_PACKAGE / "presets" / "known_returns.json").read_text("utf-8"))
    presets: dict[str, list[dict[str, Any]]] = {}
    for name, preset in index["presets"].items():
        presets.setdefault(preset["env"], []).append(preset | {"known": known.get(name)})
    return [
        _describe(world, index["texts"]["worlds"][id], presets.get(id, [])) for id, world in index["worlds"].items()
    ]


def _describe(world: Mapping[str, Any], texts: Mapping[str, str], presets: list[dict[str, Any]]) -> dict[str, Any]:
    kept = {key: world[key] for key in ("id", "kind", "description", "groups")}
    options = [
        {"name": name, "default": default, "text": texts.get(f"--env.{name.replace('_', '-')}", "")}
        for name, default in world["options"].items()
    ]
    return kept | {"options": options, "film": _film(world["id"]), "presets": presets}


def _film(id: str) -> str | None:
    """The address of the film of a world, if there is one."""
    name = f"{id.replace('/', '_')}.webp"
    return f"/static/worlds/{name}" if (_FILMS / name).is_file() else None
