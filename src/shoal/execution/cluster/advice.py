"""What a run's own measurements say: who is the bottleneck, and how many actors feed its learner."""

import dataclasses
import json
import math
import time
from pathlib import Path
from typing import Any

from shoal.core.errors import RunError
from shoal.execution.cluster import driver
from shoal.execution.cluster.runner import STATUS

SILENT = 30.0
"""Seconds after which a run that says nothing of itself, though it should every second, is not running any more.

That is for drivers on other machines, and such as hang: of one on this machine that is gone it is known at once.
"""


@dataclasses.dataclass(frozen=True)
class Advice:
    """Rates are env steps a second. actor_rate: of one actor that never waits; learner_rate: of a learner that never
    does. wanted: actors that feed it.
    """

    actors: int
    actor_rate: float
    learner_rate: float
    waiting: float  # share of its time that the learner waits for rollouts
    wanted: int

    @property
    def text(self) -> str:
        """The advice in a sentence or two."""
        fed = f"one actor makes {self.actor_rate:,.0f} env steps/s, the learner takes in {self.learner_rate:,.0f}"
        feeding = "1 actor feeds" if self.wanted == 1 else f"{self.wanted} actors feed"
        enough = f"{fed}: {feeding} it (there {'is' if self.actors == 1 else 'are'} {self.actors})."
        if self.wanted > self.actors:
            return f"{enough} It waits {self.waiting:.0%} of the time: add {self.wanted - self.actors}."
        if self.wanted < self.actors:
            return f"{enough} Actors wait for it: {self.actors - self.wanted} fewer would do, or a faster learner."
        return f"{enough} That fits."


def read_status(folder: Path) -> dict[str, Any]:
    """What the driver of a run last wrote of it."""
    path = folder / STATUS
    if not folder.is_dir():
        raise RunError(f"{folder} is not a run folder: no such folder")
    if not path.is_file():
        raise RunError(f"{folder} has no {STATUS}: it was not trained on a cluster, or has not begun yet")
    try:
        status = json.loads(path.read_text())
        age = time.time() - path.stat().st_mtime
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is damaged: {error}. It is written again when the run goes on.") from error
    known = isinstance(status, dict) and ("plan" in status or "team" in status)
    if not known or not isinstance(status.get("workers", {}), dict):
        raise RunError(f"{path} is damaged: it does not say who is at work. It is written again when the run goes on.")
    status["running"] = bool(status.get("running")) and age < SILENT and not driver.is_gone(status.get("driver"))
    return status


def advise(status: dict[str, Any]) -> Advice:
    """How many actors feed the learner, from the rates that the run has measured."""
    if "team" in status:
        raise RunError(
            "advice is for trainings with actors and a learner; this is a population, whose workers take tasks"
        )
    actors = {name: worker for name, worker in status.get("workers", {}).items() if name.startswith("actor")}
    timed = [worker["seconds"] for worker in actors.values() if worker.get("seconds", {}).get("roll")]
    spent, made = status.get("learner", {}).get("spent"), status.get("learner", {}).get("made", 0)
    if not timed or not spent or not made:
        raise RunError("there is nothing to go by yet: the run must have made a few updates. Try again later.")
    steps = status["copies"] * status["steps"]
    making = [steps / (seconds["roll"] + seconds.get("pull", 0.0)) for seconds in timed]
    busy = sum(seconds for name, seconds in spent.items() if name != "wait")
    each = steps * status["plan"]["actors"] * made / max(busy, 1e-9)
    rate = sum(making) / len(making)
    share = spent.get("wait", 0.0) / max(sum(spent.values()), 1e-9)
    return Advice(len(actors), rate, each, share, max(1, math.ceil(each / rate)))
