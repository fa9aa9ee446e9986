"""Advice from a run's measured rates: what the bottleneck is, and how many actors keep the learner busy."""

import dataclasses
import math
from pathlib import Path
from typing import Any

from shoal.cluster.plan import ClusterPlan
from shoal.cluster.status import load_status
from shoal.cluster.supervisor import STATUS
from shoal.cluster.tasks.pool import PoolConfig
from shoal.core.errors import OptionError, RunError
from shoal.core.schema import Maybe, Whole, check
from shoal.training.serialise import from_plain


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
    """The status that the driver of a run wrote last, with a plan or a pool that can be built."""
    return load_status(folder, _check_plan)


def _check_plan(status: dict[str, Any]) -> None:
    if "team" in status:
        pool_from_status(status["team"])
    else:
        from_plain(ClusterPlan, status["plan"], "plan")


def pool_from_status(data: Any) -> PoolConfig:
    """The configuration of a worker pool from plain data. Raises `ValueError` where it does not fit."""
    hints: dict[str, Any] = {"workers": Whole(1), "retries": Whole(), "devices": Maybe(Whole(1))}
    hints |= dict.fromkeys(("cpus", "gpus", "task_timeout"), float)
    if isinstance(data, dict) and "patience" in data:  # what earlier versions called it
        data = {"task_timeout" if name == "patience" else name: value for name, value in data.items()}
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
        return _advise_from(status, timed, spent, made, len(actors))
    except (KeyError, OverflowError, ZeroDivisionError) as error:
        raise RunError(
            f"what {STATUS} says was not measured: {error!r}. It is written again when the run goes on."
        ) from None


def _advise_from(
    status: dict[str, Any], timed: list[dict[str, float]], spent: dict[str, float], made: int, actors: int
) -> Advice:
    steps = status["copies"] * status["steps"]
    making = [steps / max(seconds["roll"] + seconds.get("pull", 0.0), 1e-9) for seconds in timed]
    busy = sum(seconds for name, seconds in spent.items() if name != "wait")
    each = steps * from_plain(ClusterPlan, status["plan"], "plan").actors * made / max(busy, 1e-9)
    rate = sum(making) / len(making)
    share = spent.get("wait", 0.0) / max(sum(spent.values()), 1e-9)
    return Advice(actors, rate, each, share, max(1, math.ceil(each / rate)))
