"""Who shares a policy with whom: one policy per group, one for everybody, or one per agent."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

from shoal.core.env import groups_of
from shoal.core.errors import require
from shoal.core.types import Group
from shoal.training.experiment import Experiment, Learner, make_world

Sharing = Literal["group", "all", "none"]
SHARED = "shared"
"""Name of the learner and of the policy that everybody shares."""


def share(experiment: Experiment, sharing: Sharing) -> Experiment:
    """The same experiment with its seats reassigned.

    group: one policy per group; all: one for everybody; none: one per agent. Each group has its own learner, but for
    `all`. A group keeps the algorithm, the weights and the frozen state of the learner that played its first seat.
    """
    require(sharing in ("group", "all", "none"), "experiment", "sharing", sharing, "'group', 'all' or 'none'")
    groups = groups_of(make_world(experiment))
    owners = _owners(experiment.learners, groups)
    if sharing == "all":
        everybody = {SHARED: tuple(groups)}
        learners = {SHARED: dataclasses.replace(next(iter(owners.values())), policies=everybody)}
    else:
        learners = {
            name: dataclasses.replace(owner, policies=_policies(name, groups[name].size, sharing))
            for name, owner in owners.items()
        }
    return experiment.replace(learners=learners)


def _policies(group: str, size: int, sharing: Sharing) -> dict[str, tuple[str, ...]]:
    if sharing == "group" or size == 1:
        return {group: (group,)}
    return {f"{group}_{i}": (f"{group}[{i}]",) for i in range(size)}


def _owners(learners: Mapping[str, Learner], groups: Mapping[str, Group]) -> dict[str, Learner]:
    """The learner of each group's first seat."""
    owners = {}
    for learner in learners.values():
        for seat in [seat for seats in learner.policies.values() for seat in seats] or list(groups):
            group, _, index = seat.partition("[")
            if not index or index.startswith(("0]", "0:")):
                owners[group] = learner
    return {name: owners.get(name) or next(iter(learners.values())) for name in groups}
