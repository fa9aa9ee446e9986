"""`cluster.json`, what the driver of a run on a cluster wrote last, read and checked without JAX."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.cluster import driver
from shoal.cluster.supervisor import STATUS
from shoal.core.errors import RunError, UnknownNameError
from shoal.core.files import read_json
from shoal.core.schema import Maybe, Whole, check

SILENT = 30.0
"""Seconds without a status (written every second) after which a run counts as not running.

For drivers that hang or are on other machines; that a driver on this machine is gone is known at once.
"""

LEARNER = {
    **dict.fromkeys(("update?", "committed?", "made?", "left_out?"), Whole()),
    **dict.fromkeys(("seconds?", "compile_s?"), float),
    "spent?": {str: float},
}
SERVICE = dict.fromkeys(("capacity?", "length?", "dropped?", "open?", "leased?", "broken?"), Whole())
QUEUE = {"capacity": Whole(), "length": Whole(), "dropped": Whole()}
"""What is shown of a service that is a queue."""
COMMON = {
    "running": bool,
    "services?": {str: SERVICE},
    "restarts?": {str: Whole()},
    "events?": [{"seconds": float, "worker": str, "what": str}],
    "dashboard?": Maybe(str),
}
TRAINING = COMMON | {
    "plan": {str: Any},
    "env?": str,
    "total?": Whole(),
    "staleness?": {"mean?": float, "largest?": float},
    "learner?": LEARNER,
    "copies?": Whole(),
    "steps?": Whole(),
    "absent?": [str],
    "workers?": {
        str: {
            **dict.fromkeys(("rounds", "restarts", "env_steps"), Whole()),
            "task": str,
            "seconds": {str: float},
            "slow": bool,
            "quarantined": [Whole()],
            "nan_resets?": Whole(),
        }
    },
}
POPULATION = COMMON | {"team": {str: Any}, "workers?": {str: {"done": Whole(), "task": str, "busy_s": float}}}
"""The parts of `cluster.json` that are shown, of a training and of a population."""


def load_status(folder: Path, check_plan: Callable[[dict[str, Any]], None] | None = None) -> dict[str, Any]:
    """The status of a run as plain data of the types above; `running` is whether its driver still is.

    check_plan: a further check, of how the run was planned, which may raise `ValueError` or `UnknownNameError`.
    """
    path = folder / STATUS
    if not folder.is_dir():
        raise RunError(f"{folder} is not a run folder: no such folder")
    if not os.path.lexists(path):
        raise RunError(f"{folder} has no {STATUS}: it was not trained on a cluster, or has not begun yet")
    try:
        status = read_json(path)
        age = time.time() - path.stat().st_mtime
        check(status, POPULATION if isinstance(status, dict) and "team" in status else TRAINING, "the status")
        for name, service in status.get("services", {}).items():
            if "capacity" in service:
                check(service, QUEUE, f"the status.services.{name}")
        if check_plan is not None:
            check_plan(status)
    except (OSError, ValueError, UnknownNameError) as error:
        raise RunError(f"{path} is damaged: {error}. It is written again when the run goes on.") from error
    status["running"] = status["running"] and age < SILENT and not driver.is_gone(status.get("driver"))
    return status
