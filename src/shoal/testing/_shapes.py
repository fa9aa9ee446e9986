"""The shapes and types of what a world's methods return, found by tracing: nothing is played."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.env import Env, action_shapes
from shoal.core.spaces import Box, num_logits
from shoal.core.types import Group, Observation, Outcome, PyTree
from shoal.testing._declarations import check_params
from shoal.testing._explain import FAILED, trace
from shoal.testing._scene import check_scene
from shoal.testing._trees import named_leaves, show
from shoal.testing.report import Findings


@dataclasses.dataclass(frozen=True)
class Shapes:
    """A world's groups and the spec of its observations."""

    groups: dict[str, Group]
    observation: dict[str, Observation]


def check_shapes(env: Env, groups: dict[str, Group], findings: Findings) -> Shapes | None:
    """Traces every method once. Returns the shapes if the world can be played."""
    params = check_params(env, findings)
    if params is FAILED:
        return None
    key = jax.eval_shape(lambda: jax.random.key(0))
    state = trace(findings, "reset", env.reset, key, params)
    if state is FAILED:
        return None
    check_wide_types(findings, "reset", "state", state)
    observation = trace(findings, "observe", env.observe, state, params)
    stepped = trace(findings, "step", env.step, key, state, action_shapes(groups), params)
    scene = trace(findings, "scene", env.scene, state, params)
    usable = [
        observation is not FAILED and _check_observations(findings, groups, observation),
        stepped is not FAILED and _check_step(findings, groups, state, stepped),
        scene is not FAILED and check_scene(findings, scene),
    ]
    if usable[0]:  # by default made from the observations
        whole = trace(findings, "global_state", env.global_state, state, params)
        usable.append(whole is not FAILED and _check_global_state(findings, whole))
    return Shapes(groups, observation) if all(usable) else None


def check_wide_types(findings: Findings, method: str, name: str, tree: PyTree) -> bool:
    """Arrays of 64 bits come from numpy, or from jax in its x64 mode. Returns whether there are any leaves at all."""
    leaves = named_leaves(tree, name)
    for leaf_name, leaf in leaves:
        if str(getattr(leaf, "dtype", "")) in ("float64", "int64", "uint64", "complex128"):
            fix = "Use 32-bit types: make arrays with `jnp`, or with `dtype=jnp.float32`"
            findings.add("dtype", method, f"{leaf_name} is {show(leaf)}", fix)
    return bool(leaves)


def _check_global_state(findings: Findings, whole: PyTree) -> bool:
    if check_wide_types(findings, "global_state", "global_state", whole):
        return True
    findings.add("shape", "global_state", "it is empty", "Return an array or a tree of arrays, or leave it undefined")
    return False


def _check_observations(findings: Findings, groups: dict[str, Group], observations: Any) -> bool:
    if not isinstance(observations, dict) or set(observations) != set(groups):
        got = sorted(observations) if isinstance(observations, dict) else type(observations).__name__
        what = f"it returned {got}, but `groups` declares {sorted(groups)}"
        findings.add("groups", "observe", what, "Return a dict with one `Observation` for each group")
        return False
    checks = [_check_observation(findings, name, groups[name], observations[name]) for name in groups]
    return all(checks)


def _check_observation(findings: Findings, name: str, group: Group, obs: Any) -> bool:
    where = f"observe, group {name!r}"
    if not isinstance(obs, Observation):
        findings.add("groups", where, f"it returned {type(obs).__name__}", "Return a `shoal.Observation`")
        return False
    size = group.size
    good = _check_view(findings, where, group, obs.view)
    good &= obs.active is None or _check_array(findings, where, "active", obs.active, (size,))
    good &= obs.present is None or _check_array(findings, where, "present", obs.present, (size,))
    if isinstance(group.action, Box):
        if obs.legal is not None:
            what = "it returned `legal`, but the action is a Box"
            findings.add("shape", where, what, "Only Discrete and MultiDiscrete actions have legal masks")
            good = False
    elif obs.legal is not None:
        good &= _check_array(findings, where, "legal", obs.legal, (size, num_logits(group.action)))
    if obs.state is not None:
        findings.add("shape", where, "it filled in `state`", "Leave it out: the runner does, from `global_state`")
        good = False
    return good


def _check_view(findings: Findings, where: str, group: Group, view: PyTree) -> bool:
    leaves = named_leaves(view, "view")
    if not leaves:
        findings.add("shape", where, "the view is empty", "Return an array or a dict of arrays")
        return False
    check_wide_types(findings, where, "view", view)
    good = True
    for name, leaf in leaves:
        if leaf.ndim < 1 or leaf.shape[0] != group.size:
            what = f"{name} has shape {leaf.shape}"
            findings.add("shape", where, what, f"Its first axis must be the group's size, {group.size}")
            good = False
    if group.observation is None:
        for name, leaf in leaves:
            if jnp.issubdtype(leaf.dtype, np.integer) and leaf.dtype.itemsize > 1:
                fix = "Return float32 if these are numbers; declare `Group.observation` if whole numbers are meant"
                findings.add("dtype", where, f"{name} is {show(leaf)}", fix, is_warning=True)
    elif good:
        good = _check_declared_view(findings, where, group, view)
    return good


def _check_declared_view(findings: Findings, where: str, group: Group, view: PyTree) -> bool:
    boxes = jax.tree_util.tree_leaves_with_path(group.observation, is_leaf=lambda leaf: isinstance(leaf, Box))
    declared = {jax.tree_util.keystr(path): box for path, box in boxes}
    seen = dict(named_leaves(view))
    fix = "Make `Group.observation` and the view agree, or leave `Group.observation` out: it is derived then"
    if set(declared) != set(seen):
        what = f"the view has the leaves {sorted(seen)}, but Group.observation declares {sorted(declared)}"
        findings.add("spec", where, what, fix)
        return False
    for name, box in declared.items():
        leaf = seen[name]
        if not isinstance(box, Box):
            findings.add("spec", where, f"Group.observation{name} is {box!r}", "Use a `shoal.Box` for each leaf")
            return False
        if box.shape != leaf.shape[1:] or box.dtype != str(leaf.dtype):
            what = f"view{name} of one agent is {leaf.dtype}{list(leaf.shape[1:])}"
            findings.add("spec", where, f"{what}, but {box.dtype}{list(box.shape)} is declared", fix)
    return True


def _check_array(
    findings: Findings, where: str, name: str, leaf: Any, shape: tuple[int, ...], dtype: str = "bool"
) -> bool:
    """One array of a known shape and dtype. Returns whether the world can be played in spite of it."""
    if not hasattr(leaf, "dtype"):
        findings.add("shape", where, f"{name} is {type(leaf).__name__}, not one array", f"Return {dtype}{list(shape)}")
        return False
    if str(leaf.dtype) != dtype:
        findings.add("dtype", where, f"{name} is {show(leaf)}", f"Return {dtype}{list(shape)}")
    if leaf.shape != shape:
        findings.add("shape", where, f"{name} has shape {leaf.shape}", f"Return {dtype}{list(shape)}")
    return leaf.shape == shape


def _check_step(findings: Findings, groups: dict[str, Group], state: PyTree, stepped: Any) -> bool:
    if not (isinstance(stepped, tuple) and len(stepped) == 2 and isinstance(stepped[1], Outcome)):
        parts = stepped if isinstance(stepped, tuple) else (stepped,)
        got = ", ".join(type(part).__name__ for part in parts)
        findings.add("shape", "step", f"it returned ({got})", "Return `new_state, shoal.Outcome(...)`")
        return False
    same = _check_same_state(findings, state, stepped[0])
    outcome = stepped[1]
    good = [
        _check_array(findings, "step", "terminated", outcome.terminated, ()),
        _check_array(findings, "step", "truncated", outcome.truncated, ()),
        _check_rewards(findings, groups, outcome.reward),
    ]
    for name, leaf in named_leaves(outcome.metrics, "metrics"):
        if leaf.shape != () or not jnp.issubdtype(leaf.dtype, np.floating):
            findings.add("shape", "step", f"{name} is {show(leaf)}", "Metrics are float scalars")
    return same and all(good)


def _check_rewards(findings: Findings, groups: dict[str, Group], reward: Any) -> bool:
    if not isinstance(reward, dict) or set(reward) != set(groups):
        got = sorted(reward) if isinstance(reward, dict) else type(reward).__name__
        what = f"reward is for {got}, but `groups` declares {sorted(groups)}"
        findings.add("groups", "step", what, "Return a dict with one array for each group")
        return False
    checks = [
        _check_array(findings, f"step, group {name!r}", "reward", reward[name], (group.size,), "float32")
        for name, group in groups.items()
    ]
    return all(checks)


def _check_same_state(findings: Findings, before: PyTree, after: PyTree) -> bool:
    """The state must keep its structure, shapes and types from step to step, or no loop can be compiled."""
    fix = "Return from `step` exactly what `reset` returns: the same structure, shapes and types"
    old, new = dict(named_leaves(before, "state")), dict(named_leaves(after, "state"))
    for name in [*old, *new]:
        if name not in new or name not in old:
            there, missing = ("reset", "step") if name in old else ("step", "reset")
            findings.add("state changes", "step", f"{name} is returned by {there} but not by {missing}", fix)
            return False
    if not _same_structure(before, after):
        what = "a static field (`pytree_node=False`) or a container of the state is not the same as after reset"
        findings.add("state changes", "step", what, "Make what changes an array; the rest must stay the same")
        return False
    for name, leaf in old.items():
        if (leaf.shape, leaf.dtype) != (new[name].shape, new[name].dtype):
            what = f"{name} is {show(leaf)} after reset and {show(new[name])} after step"
            findings.add("state changes", "step", what, fix)
            return False
    for name, leaf in old.items():
        _check_weak(findings, name, leaf, new[name])
    return True


def _same_structure(before: PyTree, after: PyTree) -> bool:
    try:
        return jax.tree.structure(before) == jax.tree.structure(after)
    except ValueError:  # static fields that cannot be compared, such as arrays
        return False


def _check_weak(findings: Findings, name: str, before: Any, after: Any) -> None:
    fix = f"Give it a type where it is made: `jnp.zeros((), jnp.{before.dtype})`, `jnp.array(x, jnp.{before.dtype})`"
    if before.weak_type != after.weak_type:
        weak, strongly = ("reset", "step") if before.weak_type else ("step", "reset")
        what = f"{name} is weakly typed (made from a Python number) after {weak} and not after {strongly}"
        findings.add("weak type", weak, f"{what}: `step` is compiled twice", fix)
    elif before.weak_type:
        what = f"{name} is weakly typed (made from a Python number); a restored checkpoint would recompile"
        findings.add("weak type", "reset", what, fix, is_warning=True)
