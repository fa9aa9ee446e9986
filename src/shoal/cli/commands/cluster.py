"""`shoal cluster status | advise | scale RUN`: what a run on a cluster is doing, and how many are at it."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from shoal.cli.arguments import Count, Flag, RunArgument, parse
from shoal.cli.terminal import console, emit, format_count, pluralise, say
from shoal.cluster.advice import advise as advice_of
from shoal.cluster.advice import read_status
from shoal.cluster.plan import ClusterPlan
from shoal.cluster.recipes import recipe_of
from shoal.cluster.services.scaling import MOST, request_workers
from shoal.core.errors import OptionError, require, require_positive, shell_command


def describe_plan(plan: ClusterPlan) -> str:
    """A plan in a few words."""
    spare = f" + {plan.backups} spare" if plan.backups else ""
    actors = f"{plan.actors}{spare} actor{'s' * (plan.actors != 1)}, " if recipe_of(plan.recipe).acts else ""
    return f"{plan.recipe}: {actors}{pluralise(plan.learners, 'learner')}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class StatusOptions:
    """What a run on a cluster is doing: rates, queues, staleness, who is slow, what was begun again."""

    run: RunArgument  # folder of the run
    json: Flag = False  # one JSON object on stdout


def status(args: Sequence[str]) -> int:
    """Shows what the run last said of itself."""
    options = parse(StatusOptions, args, "shoal cluster status")
    found = read_status(Path(options.run))
    if options.json:
        emit(found)
        return 0
    out = console()
    if "team" in found:
        _show_team(out, options.run, found)
        return 0
    learner = found.get("learner", {})
    state = "running" if found.get("running") else "not running"
    say(
        out,
        f"{found.get('env', '')}: update {learner.get('update', 0)} of {found.get('total', '?')}, {state}",
        style="bold",
    )
    figures = [f"committed {learner.get('committed', 0)}"]
    stale = found.get("staleness", {})
    figures.append(f"staleness {stale.get('mean', 0):.2f} (at most {stale.get('largest', 0):.0f})")
    for name, told in found.get("services", {}).items():
        if told.keys() >= {"capacity", "length", "dropped"}:
            figures.append(f"{name}: {told['length']} of {told['capacity']} waiting, {told['dropped']} dropped")
    say(out, " | ".join(figures))
    out.print(_workers(found))
    _show_events(out, found)
    return 0


def _show_events(out: Console, found: dict[str, Any]) -> None:
    for event in found.get("events", [])[-8:]:
        say(out, f"{event['seconds']:>8.1f} s  {event['worker']}: {event['what']}")
    if found.get("dashboard"):
        say(out, f"Ray's dashboard: {found['dashboard']}")


def _show_team(out: Console, run: str, found: dict[str, Any]) -> None:
    """A population or an evolution: tasks instead of rollouts."""
    board = found.get("services", {}).get("board", {})
    figures = [f"{board[name]} {name}" for name in ("open", "leased", "broken") if name in board]
    state = "running" if found.get("running") else "not running"
    say(out, f"{run}: tasks {', '.join(figures) or 'not begun'}; {state}", style="bold")
    table = Table(box=None, pad_edge=False)
    for name in ("worker", "tasks done", "task", "for", "restarts"):
        table.add_column(name, justify="left" if name in ("worker", "task") else "right")
    for name, told in sorted(found.get("workers", {}).items()):
        busy = f"{told['busy_s']:.0f} s" if told["task"] else ""
        table.add_row(name, str(told["done"]), told["task"], busy, str(found.get("restarts", {}).get(name, 0)))
    out.print(table)
    _show_events(out, found)


def _workers(found: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("worker", "rollouts", "env steps/s", "task", "restarts", "notes"):
        table.add_column(name, justify="left" if name in ("worker", "task", "notes") else "right")
    steps = found.get("copies", 0) * found.get("steps", 0)
    restarts = found.get("restarts", {})
    for name, told in sorted(found.get("workers", {}).items()):
        spent = sum(told["seconds"].values())
        notes = ["slow"] if told["slow"] else []
        notes += [f"{told['nan_resets']} x NaN"] if told.get("nan_resets") else []
        notes += [f"{pluralise(len(told['quarantined']), 'copy', 'copies')} left out"] if told["quarantined"] else []
        rate = format_count(steps / spent) if spent else ""
        begun, task = str(restarts.get(name, told["restarts"])), told["task"] if found.get("running") else ""
        table.add_row(name, str(told["rounds"] or ""), rate, task, begun, ", ".join(notes))
    for name in found.get("absent", ()):
        table.add_row(name, "", "", "", str(restarts.get(name, 0)), "starts, or waits for free resources")
    return table


def advise(args: Sequence[str]) -> int:
    """Says from measured rates how many actors feed the learner."""
    options = parse(StatusOptions, args, "shoal cluster advise")
    found = advice_of(read_status(Path(options.run)))
    if options.json:
        emit(dataclasses.asdict(found))
    else:
        say(console(), found.text)
    return 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScaleOptions:
    """Add actors to a training that is on, or workers to a population, or remove some."""

    run: RunArgument  # folder of the run
    actors: Count = None  # how many there are to be in a training
    workers: Count = None  # how many there are to be in a population or an evolution


def scale(args: Sequence[str]) -> int:
    """Leaves word for the run's driver."""
    options = parse(ScaleOptions, args, "shoal cluster scale")
    found = read_status(Path(options.run))
    who, other = ("workers", "actors") if "team" in found else ("actors", "workers")
    number = getattr(options, who)
    if number is None or getattr(options, other) is not None:
        raise OptionError(f"shoal cluster scale: {options.run} has {who}: say how many there are to be, --{who} N")
    require_positive("shoal cluster scale", **{who: number})
    require(number <= MOST, "shoal cluster scale", who, number, f"{MOST} at most")
    if not found.get("running"):
        go_on = shell_command("resume", options.run)
        raise OptionError(f"{options.run} is not running: go on with it first, `{go_on}`")
    plan = None if "team" in found else ClusterPlan(**found["plan"])
    if plan is not None and not recipe_of(plan.recipe).acts:
        raise OptionError(f"the recipe {plan.recipe} has learners that act, and no actors: their number stays")
    if plan is not None and plan.sync_mode == "sync":
        raise OptionError(
            f"the recipe {plan.recipe} waits for all of its {plan.actors} actors in every update: their number stays. "
            "Start with --backups, or an asynchronous recipe."
        )
    request_workers(Path(options.run), number)
    say(console(), f"{options.run} will go on with {pluralise(number, who[:-1])}")
    return 0
