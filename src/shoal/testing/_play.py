"""Playing a world with random actions and watching whether it keeps the contract."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.spaces import Box, MultiDiscrete
from shoal.core.types import Group, Observation, Outcome, PyTree
from shoal.testing._agreement import compare_copies
from shoal.testing._contract import Shapes
from shoal.testing._programs import Programs, change_inactive, sample_actions
from shoal.testing._trees import difference, named_leaves, on_host, row
from shoal.testing.reference import as_function, compare
from shoal.testing.report import Findings

_NUM_COLOURS = 8


@dataclasses.dataclass(frozen=True)
class Played:
    """How much was played, summed over copies."""

    num_steps: int
    num_episodes: int


def play(
    shapes: Shapes,
    programs: Programs,
    key: jax.Array,
    num_steps: int,
    num_envs: int,
    reference: Any,
    tolerance: float,
    findings: Findings,
) -> Played:
    """Plays `num_envs` copies for `num_steps` steps, each episode with params of its own."""
    groups = shapes.groups
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, np.arange(num_envs))
    refer = None if reference is None else as_function(reference)
    carry = programs.begin(keys, np.uint32(0))
    now = on_host(carry)
    check_seen(findings, groups, now, "after reset")
    num_episodes = 0
    for step in range(num_steps):
        actions = sample_actions(rng, groups, now["observation"], (num_envs,))
        others = change_inactive(rng, groups, now["observation"], actions)
        params, state = carry["params"], carry["state"]
        batch = programs.advance(keys, np.uint32(step + 1), params, state, actions, others)
        after = on_host(batch["after"])
        check_seen(findings, groups, after, f"in step {step}")
        check_outcome(findings, groups, now["observation"], after, step)
        if batch["probe"] is not None:
            check_inactive(findings, after, on_host(batch["probe"]), step)
        if step in (0, num_steps // 2):
            compare_copies(findings, programs, batch, state, actions, params, copy=step % num_envs)
        if refer is not None:
            _consult(findings, groups, refer, now, actions, after, step, tolerance)
        num_episodes += int(np.sum(_ended(after["outcome"])))
        carry = batch["carry"]
        now = on_host(carry)
    if num_episodes == 0:
        what = f"no episode ended in {num_steps} steps of {num_envs} copies"
        fix = (
            "Return `terminated` or, for a time limit, `truncated`; if episodes are longer, check with more `num_steps`"
        )
        findings.add("never ends", "step", what, fix, is_warning=True)
    return Played(num_steps * num_envs, num_episodes)


def _ended(outcome: Outcome) -> np.ndarray:
    return np.asarray(outcome.terminated, bool) | np.asarray(outcome.truncated, bool)


def _consult(findings, groups, refer, now, actions, after, step, tolerance) -> None:
    """Asks the reference about this step, copy by copy."""
    for copy in range(len(after["outcome"].terminated)):
        own, of, result = jax.tree.map(lambda leaf, copy=copy: leaf[copy], (now, actions, after))
        results = refer(own["state"], of, own["params"])
        compare(findings, groups, results, result["observation"], result["outcome"], step, tolerance)


def check_seen(findings: Findings, groups: dict[str, Group], seen: dict[str, Any], when: str) -> None:
    """Everything that can be seen of a batch of states (leaves `[E, ...]`, on the host)."""
    for name, group in groups.items():
        _check_observation(findings, name, group, seen["observation"][name], when)
    for leaf_name, leaf in named_leaves(seen["global_state"], "global_state"):
        _check_finite(findings, "global_state", leaf_name, leaf, when, "copy")
    _check_scene(findings, seen["scene"], when)


def _check_finite(findings: Findings, where: str, name: str, leaf: np.ndarray, when: str, *axes: str) -> None:
    """`axes` names the leading axes of the leaf, the copies first."""
    if not jnp.issubdtype(leaf.dtype, np.inexact):
        return
    at = _first(~np.isfinite(leaf.astype(np.float64)))
    if at is not None:
        place = ", ".join(f"{axis} {i}" for axis, i in zip(axes, at, strict=False))
        what = f"{name} is {leaf[at]} {when} ({place})"
        fix = "Look for a division by zero, a root or logarithm of a number below 0, or growth without bound"
        findings.add("not finite", where, what, fix)


def _first(mask: np.ndarray) -> tuple[int, ...] | None:
    return tuple(int(i) for i in np.argwhere(mask)[0]) if mask.any() else None


def _check_observation(findings: Findings, name: str, group: Group, obs: Observation, when: str) -> None:
    where = f"observe, group {name!r}"
    for leaf_name, leaf in named_leaves(obs.view, "view"):
        _check_finite(findings, where, leaf_name, leaf, when, "copy", "agent")
    _check_bounds(findings, where, group, obs.view, when)
    active, present = _who(obs.active, group), _who(obs.present, group)
    at = _first(active & ~present)
    if at is not None:
        what = f"agent {at[1]} is active and not present {when}"
        findings.add("active", where, what, "Who may act now is present: `present` must be true where `active` is")
    if group.movers is not None and active.ndim > 1 and (count := int(active.sum(-1).max())) > group.movers:
        what = f"{count} agents are active at once {when}, but the group declares movers={group.movers}"
        findings.add("movers", where, what, "Correct `active`, or raise `movers`, or leave it out")
    if obs.legal is not None:
        _check_legal(findings, where, group, np.asarray(obs.legal, bool), when)


def _who(flags: Any, group: Group) -> np.ndarray:
    return np.ones((1, group.size), bool) if flags is None else np.asarray(flags, bool)


def _check_legal(findings: Findings, where: str, group: Group, legal: np.ndarray, when: str) -> None:
    sizes = group.action.sizes if isinstance(group.action, MultiDiscrete) else (legal.shape[-1],)
    for part, mask in enumerate(np.split(legal, np.cumsum(sizes)[:-1], axis=-1)):
        at = _first(~mask.any(-1))
        if at is not None:
            choice = f" of choice {part}" if len(sizes) > 1 else ""
            what = f"no action{choice} of agent {at[1]} is legal {when}"
            fix = "Every row needs a true entry, also those of agents that are not active: allow one that does nothing"
            findings.add("legal", where, what, fix)


def _check_bounds(findings: Findings, where: str, group: Group, view: PyTree, when: str) -> None:
    boxes = jax.tree_util.tree_leaves_with_path(group.observation, is_leaf=lambda leaf: isinstance(leaf, Box))
    declared = {jax.tree_util.keystr(path): box for path, box in boxes}
    for name, leaf in named_leaves(view):
        box = declared.get(name)
        if box is None:
            continue
        values = leaf.astype(np.float64)
        at = _first((values < box.low) | (values > box.high))
        if at is not None:
            what = f"view{name} is {leaf[at]} {when}, outside of the declared [{box.low}, {box.high}]"
            findings.add("spec", where, what, "Clip the view or widen the bounds of `Group.observation`")


def _check_scene(findings: Findings, scene: Any, when: str) -> None:
    for layer in ("polygons", "lines", "circles", "labels"):
        shapes = getattr(scene, layer)
        if shapes is None:
            continue
        visible = np.asarray(shapes.visible, bool)
        for field in ("points", "start", "end", "position", "radius"):
            if hasattr(shapes, field):
                leaf = np.where(
                    visible.reshape(visible.shape + (1,) * (getattr(shapes, field).ndim - 2)), getattr(shapes, field), 0
                )
                _check_finite(findings, f"scene, {layer}", field, leaf, when, "copy", "shape")
        colour = getattr(shapes, "colour", np.zeros(1, np.int32))
        if ((colour < 0) | (colour >= _NUM_COLOURS)).any():
            what = f"a colour is {int(colour.max()) if colour.max() > 0 else int(colour.min())}"
            findings.add("scene", f"scene, {layer}", what, f"Colours are 0 to {_NUM_COLOURS - 1}, see `shoal.Scene`")


def check_outcome(
    findings: Findings, groups: dict[str, Group], before: dict[str, Observation], after: dict[str, Any], step: int
) -> None:
    """Rewards and who is there, from one state to the next (before any reset)."""
    outcome = after["outcome"]
    when = f"in step {step}"
    for name, metric in outcome.metrics.items():
        _check_finite(findings, "step", f"metrics[{name!r}]", metric, when, "copy")
    for name, group in groups.items():
        where = f"step, group {name!r}"
        reward = outcome.reward[name]
        _check_finite(findings, where, "reward", reward, when, "copy", "agent")
        was, is_now = _who(before[name].present, group), _who(after["observation"][name].present, group)
        at = _first((reward != 0) & ~was)
        if at is not None:
            what = f"agent {at[1]} is paid {reward[at]} {when}, though it was not present when the step began"
            fix = "Pay nothing to who has left, or keep it present until its last reward"
            findings.add("pay", where, what, fix)
        at = _first(is_now & ~was)
        if at is not None:
            what = f"agent {at[1]} is present after step {step}, though it had left this episode before"
            fix = "Who is not present stays away until the next reset; who may come back is present and not active"
            findings.add("return", f"observe, group {name!r}", what, fix)


def check_inactive(findings: Findings, after: dict[str, Any], probe: Any, step: int) -> None:
    """Both steps were the same but for what inactive agents did."""
    words = difference((after["state"], after["outcome"]), probe, "(state, outcome)")
    if words:
        what = f"in step {step} the actions of agents that are not active have an effect: {words}"
        fix = "Ignore their actions: `jnp.where(active, action, ...)`"
        findings.add("inactive", "step", what, fix)
