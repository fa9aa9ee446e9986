"""Comparing a world with another implementation of the same rules, step by step."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from shoal.core.types import Group, Observation, Outcome, PyTree
from shoal.testing._trees import first_true, named_leaves
from shoal.testing.report import Findings

Results = tuple[Mapping[str, PyTree], Mapping[str, Any], Any, Any]
"""Views by group `[n, ...]`, rewards by group `[n]`, terminated, truncated."""


class Reference(Protocol):
    """Another implementation of a world's rules, driven from the world's own states and actions.

    The world's `step` must not depend on its key for the two to agree: the reference cannot know it.
    """

    def set_state(self, state: PyTree, params: PyTree) -> None:
        """Puts the reference into a state of the world (as numpy arrays)."""
        ...

    def step(self, actions: dict[str, np.ndarray]) -> Results:
        """Makes one step: views after it, rewards, terminated, truncated."""
        ...


def as_function(reference: Any) -> Callable[[PyTree, dict[str, np.ndarray], PyTree], Results]:
    """A `Reference`, or a plain `function(state, actions, params)`, as the latter."""
    if not hasattr(reference, "set_state"):
        return reference

    def call(state: PyTree, actions: dict[str, np.ndarray], params: PyTree) -> Results:
        reference.set_state(state, params)
        return reference.step(actions)

    return call


def compare(
    findings: Findings,
    groups: dict[str, Group],
    results: Results,
    observation: dict[str, Observation],
    outcome: Outcome,
    step: int,
    tolerance: float,
) -> None:
    """Notes where one step of one copy differs from the reference. Views of agents not present are not compared."""
    views, rewards, terminated, truncated = results
    for name, group in groups.items():
        present = observation[name].present
        everyone = np.ones(group.size, bool)
        _compare_leaf(findings, step, name, "reward", outcome.reward[name], rewards[name], everyone, tolerance)
        ours, theirs = named_leaves(observation[name].view, "view"), dict(named_leaves(views[name], "view"))
        for leaf_name, leaf in ours:
            who = everyone if present is None else np.asarray(present, bool)
            _compare_leaf(findings, step, name, leaf_name, leaf, theirs.get(leaf_name), who, tolerance)
    for flag, ours, theirs in (
        ("terminated", outcome.terminated, terminated),
        ("truncated", outcome.truncated, truncated),
    ):
        if bool(ours) != bool(theirs):
            what = f"in step {step} the world says {bool(ours)}, the reference {bool(theirs)}"
            findings.add("reference", f"step, {flag}", what, _FIX)


_FIX = "One of the two breaks the rules: follow this step in both"


def _compare_leaf(
    findings: Findings, step: int, group: str, name: str, ours: Any, theirs: Any, who: np.ndarray, tolerance: float
) -> None:
    where = f"{'step' if name == 'reward' else 'observe'}, group {group!r}, {name}"
    ours = np.asarray(ours)
    if theirs is None or np.shape(theirs) != ours.shape:
        got = "nothing" if theirs is None else f"shape {np.shape(theirs)}"
        findings.add("reference", where, f"the world gives shape {ours.shape}, the reference {got}", _FIX)
        return
    theirs = np.asarray(theirs)
    same = np.isclose(ours.astype(np.float64), theirs.astype(np.float64), rtol=tolerance, atol=tolerance)
    at = first_true(~same & who.reshape(who.shape + (1,) * (ours.ndim - 1)))
    if at is not None:
        agent, *entry = at
        place = f"agent {agent}, entry {entry}," if entry else f"agent {agent}"
        what = f"in step {step} {place} is {ours[at]} in the world and {theirs[at]} in the reference"
        findings.add("reference", where, what, _FIX)
