"""Where a run is made: on this machine or on a cluster. Decided here for the calls of `shoal` and the command line."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.cluster.plan import ClusterPlan
from shoal.cluster.recipes import recipe_of
from shoal.cluster.run import Cluster, pool_of
from shoal.cluster.tasks.pool import PoolConfig
from shoal.cluster.training import default_plan, plan_of
from shoal.core.errors import OptionError
from shoal.training.experiment import Config, Experiment
from shoal.training.roll import Hosts
from shoal.training.runner import Local

AUTO = "auto"
"""The Ray cluster that runs here, or a new one on this machine."""
CHOSEN = ("learners", "shards", "backups", "max_staleness", "max_divergence")
"""Options of a plan that only some recipes heed."""


def choose_place(
    config: Config,
    cluster: str | Cluster | None = None,
    given: Mapping[str, Any] | None = None,
    *,
    devices: int | None = None,
    stepping: Mapping[str, Any] | None = None,
    saving: Sequence[str] = (),
    resumed: Path | None = None,
    imports: Sequence[str] = (),
    spell: Callable[[str], str] = str,
    owner: str = "",
) -> Local | Cluster:
    """The machine that calls, or a cluster: the one that was named, or for a resumed run the kind it was on.

    given: what was said about the plan of a training, or else about the pool of workers. stepping: how environments of
    other libraries are stepped. saving: options of when to save that were given. resumed: the folder of a resumed
    run. spell, owner: options and who takes them, as the user knows them.
    """
    given, stepping, said = dict(given or {}), dict(stepping or {}), f"{owner}: " if owner else ""
    training, known = isinstance(config, Experiment), None
    if resumed is not None:
        known = plan_of(resumed) if training else pool_of(resumed)
    if cluster is None and known is None:
        if given:
            names = ", ".join(map(spell, given))
            raise OptionError(f"{said}{names} is for work on a cluster: add {spell('cluster')} {AUTO}")
        return Local(devices, **stepping)
    if resumed is not None and training and known is None:
        raise OptionError(f"{resumed} was not begun on a cluster: leave out {spell('cluster')}")
    if devices is not None and resumed is not None:
        own = "is at work on a cluster, whose workers have devices of their own"
        raise OptionError(f"{resumed} {own}: leave out {spell('devices')}")
    _refuse_options_of_one_machine(training, devices, list(stepping), saving, spell, said)
    if isinstance(cluster, Cluster):
        return cluster
    place = Cluster(cluster or AUTO, imports=tuple(imports))
    if resumed is not None and not given:  # as it was
        return place
    if isinstance(config, Experiment):
        plan = known if isinstance(known, ClusterPlan) else default_plan(config)
        return dataclasses.replace(place, plan=_change_plan(plan, given, spell, said))
    pool = known if isinstance(known, PoolConfig) else PoolConfig()
    return dataclasses.replace(place, pool=dataclasses.replace(pool, **given))


def _refuse_options_of_one_machine(
    training: bool,
    devices: int | None,
    stepping: Sequence[str],
    saving: Sequence[str],
    spell: Callable[[str], str],
    said: str,
) -> None:
    """Refuses what a cluster does in another way, and says by which options."""
    if devices is not None:
        own = ("learner_cpus", "learner_gpus") if training else ("cpus", "gpus")
        raise OptionError(
            f"{said}{spell('devices')} is for one machine: on a cluster give {' or '.join(map(spell, own))}"
        )
    if stepping:
        names = " and ".join(map(spell, stepping))
        raise OptionError(f"{said}on a cluster actors step environments: leave out {names}")
    if saving and training:
        names, instead = " and ".join(map(spell, saving)), spell("commit_seconds")
        raise OptionError(f"{said}on a cluster a training is saved by {instead}: leave out {names}")


def among_hosts(place: Local | Cluster, hosts: Hosts | None) -> Local | Cluster:
    """The place as one of several hosts that train together, if there are any."""
    if hosts is None:
        return place
    if not isinstance(place, Local):
        raise OptionError("hosts and a cluster are two ways to use many machines: choose one, and leave out the other")
    return dataclasses.replace(place, hosts=hosts)


def _change_plan(plan: ClusterPlan, given: dict[str, Any], spell: Callable[[str], str], said: str) -> ClusterPlan:
    """The plan with what was given; options that its recipe does not heed are refused."""
    plan = dataclasses.replace(plan, **given)
    recipe = recipe_of(plan.recipe)
    idle = [name for name in given if name in CHOSEN and name not in recipe.takes]
    idle += ["actors"] if "actors" in given and not recipe.acts else []
    if idle:
        names = ", ".join(map(spell, idle))
        raise OptionError(f"{said}{names} has no effect with the recipe {recipe.name}: leave it out")
    return plan
