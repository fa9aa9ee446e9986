"""Advice from a run's measured rates: what the bottleneck is, and how many actors keep the learner busy."""

import dataclasses
import math
import os
import time
from pathlib import Path
from typing import Any

from shoal.cluster import driver
from shoal.cluster.plan import ClusterPlan
from shoal.cluster.supervisor import STATUS
from shoal.cluster.tasks.pool import PoolConfig
from shoal.core.errors import OptionError, RunError, UnknownNameError
from shoal.core.files import read_json
from shoal.core.schema import Maybe, Whole, check
from shoal.training.serialise import from_plain

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


@dataclasses.dataclass(frozen=True)
class Advice:
    """Rates are env steps per second. actor_rate: of one actor that never waits; learner_rate: of a learner that never
    waits. wanted: actors needed to keep the learner busy.
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
    """The status that the driver of a run wrote last."""
    path = folder / STATUS
    if not folder.is_dir():
        raise RunError(f"{folder} is not a run folder: no such folder")
    if not os.path.lexists(path):
        raise RunError(f"{folder} has no {STATUS}: it was not trained on a cluster, or has not begun yet")
    try:
        status = read_json(path)
        age = time.time() - path.stat().st_mtime
        team = isinstance(status, dict) and "team" in status
        check(status, POPULATION if team else TRAINING, "the status")
        for name, service in status.get("services", {}).items():
            if "capacity" in service:
                check(service, QUEUE, f"the status.services.{name}")
        if team:
            pool_from_status(status["team"])
        else:
            from_plain(ClusterPlan, status["plan"], "plan")
    except (OSError, ValueError, UnknownNameError) as error:
        raise RunError(f"{path} is damaged: {error}. It is written again when the run goes on.") from error
    status["running"] = status["running"] and age < SILENT and not driver.is_gone(status.get("driver"))
    return status


def pool_from_status(data: Any) -> PoolConfig:
    """The configuration of a worker pool from plain data. Raises `ValueError` where it does not fit."""
    hints: dict[str, Any] = {"workers": Whole(1), "retries": Whole(), "devices": Maybe(Whole(1))}
    hints |= dict.fromkeys(("cpus", "gpus", "patience"), float)
    check(data, {f"{name}?": hint for name, hint in hints.items()}, "team")
    unknown = sorted(data.keys() - hints.keys())
    if unknown:
        raise OptionError(f"team: unknown entries {', '.join(unknown)[:80]}")
    return PoolConfig(**data)


def advise(status: dict[str, Any]) -> Advice:
    """How many actors feed the learner, from the rates that the run has measured."""
    if "team" in status:
        raise RunError(
            "advice is for trainings with actors and a learner; this is a population, whose workers take tasks"
        )
    actors = {name: worker for name, worker in status.get("workers", {}).items() if name.startswith("actor")}
    timed = [worker["seconds"] for worker in actors.values() if worker.get("seconds", {}).get("roll")]
    spent, made = status.get("learner", {}).get("spent"), status.get("learner", {}).get("made", 0)
    if not timed or not spent or not made or not status.get("copies") or not status.get("steps"):
        raise RunError("there is nothing to go by yet: the run must have made a few updates. Try again later.")
    try:
        return _measured(status, timed, spent, made, len(actors))
    except (KeyError, OverflowError, ZeroDivisionError) as error:
        raise RunError(
            f"what {STATUS} says was not measured: {error!r}. It is written again when the run goes on."
        ) from None


def _measured(
    status: dict[str, Any], timed: list[dict[str, float]], spent: dict[str, float], made: int, actors: int
) -> Advice:
    steps = status["copies"] * status["steps"]
    making = [steps / max(seconds["roll"] + seconds.get("pull", 0.0), 1e-9) for seconds in timed]
    busy = sum(seconds for name, seconds in spent.items() if name != "wait")
    each = steps * from_plain(ClusterPlan, status["plan"], "plan").actors * made / max(busy, 1e-9)
    rate = sum(making) / len(making)
    share = spent.get("wait", 0.0) / max(sum(spent.values()), 1e-9)
    return Advice(actors, rate, each, share, max(1, math.ceil(each / rate)))
