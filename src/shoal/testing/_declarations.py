"""A world as plain data: frozen, hashable, with groups, players and params that make sense."""

import copy
import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.env import Env
from shoal.core.spaces import ActionSpace
from shoal.core.types import Group, PyTree
from shoal.testing._explain import FAILED, attempt, trace
from shoal.testing._trees import named_leaves, show
from shoal.testing.report import Findings

_KINDS = ("cooperative", "competitive", "mixed")


def check_declarations(env: Env, findings: Findings) -> dict[str, Group] | None:
    """The world as plain data: frozen, hashable, groups and players. Returns the groups if they can be used."""
    frozen = dataclasses.is_dataclass(env) and env.__dataclass_params__.frozen  # pyright: ignore[reportAttributeAccessIssue]
    if not frozen:
        findings.add(
            "not frozen", "class", "it is not a frozen dataclass", "Write `@dataclasses.dataclass(frozen=True)`"
        )
    _check_hash(env, frozen, findings)
    if env.kind not in _KINDS:
        findings.add("kind", "kind", f"it is {env.kind!r}", f"Use one of {', '.join(_KINDS)}")
    groups = attempt(findings, "groups", lambda: env.groups)
    if groups is FAILED:
        return None
    if not isinstance(groups, Mapping) or not groups:
        what = "there are none" if isinstance(groups, Mapping) else f"it is {groups!r}"
        fix = "Return a dict with at least one group, such as {'agent': shoal.Group(3, shoal.Discrete(5))}"
        findings.add("groups", "groups", what, fix)
        return None
    if not all(_group_usable(name, group, findings) for name, group in groups.items()):
        return None
    groups = dict(groups)
    _check_players(env, groups, findings)
    return groups


def _check_hash(env: Env, frozen: bool, findings: Findings) -> None:
    try:
        hash(env)
    except TypeError as error:
        fix = "Use tuples instead of lists and arrays in its fields, and put numbers that vary into params"
        findings.add("not hashable", "class", f"it cannot be hashed ({error})", fix)
        return
    if frozen and copy.copy(env) != env:
        what = "it is not equal to a copy with the same fields, so every copy would be recompiled"
        findings.add("not equal", "class", what, "Leave `eq` of the dataclass at its default")


def _group_usable(name: str, group: Any, findings: Findings) -> bool:
    where = f"groups[{name!r}]"
    if not isinstance(name, str):
        findings.add("groups", where, f"its name is {name!r}", "Name groups by strings")
        return False
    if not isinstance(group, Group):
        findings.add("groups", where, f"it is {group!r}", "Return a `shoal.Group`")
        return False
    if not isinstance(group.action, ActionSpace):
        findings.add("groups", where, f"action is {group.action!r}", "Use Discrete, MultiDiscrete or Box")
        return False
    if group.size < 1:
        findings.add("groups", where, f"size is {group.size}", "A group has at least one agent")
        return False
    if group.movers is not None and not 1 <= group.movers <= group.size:
        findings.add("movers", where, f"movers is {group.movers}", f"It must be None or in 1 to {group.size}")
    return True


def _check_players(env: Env, groups: dict[str, Group], findings: Findings) -> None:
    taken = attempt(
        findings, "players", lambda: Counter(tuple(seat) for seats in env.players.values() for seat in seats)
    )
    if taken is FAILED:
        return
    seats = {(name, i): None for name, group in groups.items() for i in range(group.size)}
    fix = "Every seat (group, index) must belong to exactly one player"
    for seat in seats:
        if taken[seat] != 1:
            times = "more than one player" if taken[seat] else "no player"
            findings.add("players", "players", f"the seat {seat} has {times}", fix)
    for seat in taken:
        if seat not in seats:
            findings.add("players", "players", f"there is no seat {seat}", fix)


def check_params(env: Env, findings: Findings) -> PyTree:
    """The spec of the default params, as traced arguments; `FAILED` if there is no playing with them."""
    default = attempt(findings, "default_params", env.default_params)
    if default is FAILED or not _check_floats(findings, "default_params", default):
        return FAILED
    key = jax.eval_shape(lambda: jax.random.key(0))
    sampled = trace(findings, "sample_params", env.sample_params, key)
    if sampled is FAILED or not _check_floats(findings, "sample_params", sampled):
        return FAILED
    if _form(sampled) != _form(default):
        what = f"it returns {_form(sampled)}, but default_params returns {_form(default)}"
        findings.add("params", "sample_params", what, "Both must have the same structure and shapes")
        return FAILED
    return jax.eval_shape(lambda: strong(default))


def _check_floats(findings: Findings, method: str, params: PyTree) -> bool:
    fix = "Params are float leaves, so that they can be randomised; sizes and flags are fields of the world"
    leaves = named_leaves(params, "params")
    for name, leaf in leaves:
        if not _is_float(leaf):
            kind = show(leaf) if hasattr(leaf, "dtype") else type(leaf).__name__
            findings.add("params", method, f"{name} is {kind}, not a float", fix)
    return all(_is_float(leaf) for _, leaf in leaves)


def strong(params: PyTree) -> PyTree:
    """Params as strongly typed arrays, as they are when copies have their own."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), params)


def _is_float(leaf: Any) -> bool:
    return not isinstance(leaf, str) and jnp.issubdtype(jnp.result_type(leaf), np.floating)


def _form(tree: PyTree) -> list[str]:
    return [f"{name}{list(np.shape(leaf))}" for name, leaf in named_leaves(tree, "params")]
