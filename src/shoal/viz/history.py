"""A page that plays how a run learnt: drag along its learning curve to see how the policies played then.

It is whole in itself: the episodes that the run kept (`training.scene_files`), and the templates of the pages that play
them, each in a frame of its own that may do nothing but run the template's script.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shoal.core.errors import require
from shoal.viz.replay import filled_page, read_template, script_hash

_POINTS = 500  # of the curve


def history_page(
    points: Sequence[Mapping[str, Any]], steps: Sequence[float], values: Sequence[float], *, title: str, label: str
) -> bytes:
    """A page of points as `read_scene` gives them, over a curve of `values` at env `steps`; label: of the curve."""
    require(bool(points), "history_page", "points", len(points), "at least one")
    chosen = np.unique(np.linspace(0, max(len(steps) - 1, 0), _POINTS).astype(int)) if len(steps) else []
    numbers = [float(values[i]) if np.isfinite(values[i]) else None for i in chosen]
    names = sorted({point["page"] for point in points})
    hashes = {name: script_hash(name) for name in names}
    data = {
        "title": title,
        "label": label,
        "curve": {"steps": [int(steps[i]) for i in chosen], "values": numbers},
        "pages": {name: _template(name, hashes[name]) for name in names},
        "points": [{key: point[key] for key in ("update", "env_steps", "page", "data", "returns")} for point in points],
    }
    return filled_page(
        "history.html", title, data, {"@page-hashes@": "".join(f" '{each}'" for each in hashes.values())}
    )


def _template(name: str, digest: str) -> str:
    """A page without its data."""
    slots = {"@title@": "An episode", "@script-hash@": digest}
    return re.sub("|".join(slots), lambda slot: slots[slot[0]], read_template(name))
