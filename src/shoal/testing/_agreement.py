"""A world's methods must be functions: the same inputs, the same results, however they are run."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from shoal.core.env import Env
from shoal.core.types import PyTree
from shoal.testing._declarations import strong
from shoal.testing._explain import FAILED, attempt
from shoal.testing._hidden_draws import HIDDEN_FIX
from shoal.testing._programs import Programs, look, sample_actions
from shoal.testing._shapes import Shapes, check_wide_types
from shoal.testing._trees import difference, on_host, row
from shoal.testing.report import Findings

ROUNDING = 1e-4
"""Programs that do the same in another order differ by rounding, relative to the size of a leaf."""
DEVICE_ROUNDING = 2e-3
"""Accelerators multiply matrices in reduced precision by default."""

_NUM_STEPS = 3


def check_agreement(env: Env, shapes: Shapes, programs: Programs, key: jax.Array, findings: Findings) -> None:
    """Plays a few steps of one copy outside `jit` (each call twice), inside, and on every other kind of device."""
    before = snapshot(env)
    params = strong(env.default_params())
    rng = np.random.default_rng(0)
    keys = [jax.random.fold_in(key, i) for i in range(_NUM_STEPS + 1)]
    state = _twice(findings, "reset", env.reset, keys[-1], params)
    if state is FAILED:
        return
    check_wide_types(findings, "reset", "state", state)
    for step_key in keys[:_NUM_STEPS]:
        seen = _look_twice(env, findings, state, params)
        if seen is FAILED:
            break
        actions = sample_actions(rng, shapes.groups, on_host(seen["observation"]))
        actions = {name: jax.numpy.asarray(action) for name, action in actions.items()}
        stepped = _twice(findings, "step", env.step, step_key, state, actions, params)
        inside = attempt(findings, "step inside of jit", programs.single, step_key, state, actions, params)
        if stepped is FAILED or inside is FAILED:
            break
        check_wide_types(findings, "step", "(state, outcome)", stepped)
        if not findings.has("hidden state", "mutation"):
            _compare_step(env, findings, stepped, inside, params)
            _compare_devices(findings, programs, inside, step_key, state, actions, params)
        state = inside["state"]
    _check_traces(findings, programs)
    _check_unchanged(findings, before, snapshot(env))


def _twice(findings: Findings, method: str, function: Callable[..., Any], *args: Any) -> Any:
    """Calls a method two times outside `jit` and compares the results to the bit."""
    leaves, structure = jax.tree.flatten(args)
    first = attempt(findings, f"{method} outside of jit", function, *args)
    _check_arguments(findings, method, leaves, structure, args)
    second = attempt(findings, f"{method} outside of jit", function, *jax.tree.unflatten(structure, leaves))
    if first is FAILED or second is FAILED:
        return FAILED
    words = difference(on_host(first), on_host(second), method)
    if words:
        findings.add("hidden state", method, f"called twice with the same arguments, {words}", HIDDEN_FIX)
    return first


def _look_twice(env: Env, findings: Findings, state: PyTree, params: PyTree) -> Any:
    seen = {
        "observation": _twice(findings, "observe", env.observe, state, params),
        "global_state": _twice(findings, "global_state", env.global_state, state, params),
        "scene": _twice(findings, "scene", env.scene, state, params),
    }
    if any(part is FAILED for part in seen.values()):
        return FAILED
    for name, obs in seen["observation"].items():
        check_wide_types(findings, f"observe, group {name!r}", "view", obs.view)
    return seen


def _check_arguments(findings: Findings, method: str, leaves: list[Any], structure: Any, args: Any) -> None:
    now, structure_now = jax.tree.flatten(args)
    if structure_now != structure or any(new is not old for new, old in zip(now, leaves, strict=True)):
        what = "it changes the state or the actions that it is given, in place"
        findings.add("mutation", method, what, "Return a new state; leave the arguments alone")


def _compare_step(env: Env, findings: Findings, stepped: Any, inside: dict[str, Any], params: PyTree) -> None:
    outside = {"state": stepped[0], "outcome": stepped[1], **look(env, stepped[0], params)}
    for part, method in _METHOD_OF.items():
        words = difference(on_host(outside[part]), on_host(inside[part]), part, ROUNDING)
        if words:
            what = f"outside of jit and inside it give different results: {words}"
            fix = "Do not ask whether values are traced, and use jnp types throughout (numpy's are 64 bits wide)"
            findings.add("jit disagrees", method, what, fix)


_METHOD_OF = {
    "state": "step",
    "outcome": "step",
    "observation": "observe",
    "global_state": "global_state",
    "scene": "scene",
}


def compare_copies(findings: Findings, programs: Programs, args: Any, after: dict[str, Any], copy: int) -> None:
    """One copy of a batch (`args` on the device, results `after` on the host) must do what it would do alone."""
    alone = on_host(programs.single(*row(args, copy)))
    for part, method in _METHOD_OF.items():
        together = jax.tree.map(lambda leaf: np.asarray(leaf[copy]), after[part])
        words = difference(together, alone[part], part, ROUNDING)
        if words:
            what = f"in a batch (vmap) and alone give different results: {words}"
            fix = "Write for one copy and leave batching to the framework; look for wrong axes in custom batching rules"
            findings.add("vmap disagrees", method, what, fix)


def other_devices() -> list[Any]:
    """One device of each other kind that this machine has."""
    found = []
    for platform in ("cpu", "gpu"):
        try:
            found.append(jax.local_devices(backend=platform)[0])
        except RuntimeError:
            continue
    return [device for device in found if device.platform != jax.local_devices()[0].platform]


def _compare_devices(findings: Findings, programs: Programs, here: dict[str, Any], *args: Any) -> None:
    for device in other_devices():
        there = programs.single(*jax.device_put(args, device))
        for part, method in _METHOD_OF.items():
            words = difference(on_host(here[part]), on_host(there[part]), part, DEVICE_ROUNDING)
            if words:
                what = f"{jax.local_devices()[0].platform} and {device.platform} give different results: {words}"
                fix = "Look for results that depend on the order of a sum, on ties in a sort, or on the device itself"
                findings.add("devices disagree", method, what, fix)


def _check_traces(findings: Findings, programs: Programs) -> None:
    count = len(programs.traces)
    if count > 1:
        what = f"it was traced {count} times in {_NUM_STEPS} steps of the same shapes"
        fix = "Keep types (also weak ones) and static fields of the state the same from step to step"
        findings.add("retracing", "step", what, fix)


def snapshot(env: Env) -> dict[str, str]:
    """The world's attributes in words, cached properties apart."""
    names = [field.name for field in dataclasses.fields(env)] if dataclasses.is_dataclass(env) else []
    names += [name for name in getattr(env, "__dict__", {}) if name not in names]
    cached = [name for name in names if isinstance(getattr(type(env), name, None), functools.cached_property)]
    return {name: repr(getattr(env, name, None)) for name in names if name not in cached}


def _check_unchanged(findings: Findings, before: dict[str, str], after: dict[str, str]) -> None:
    for name in after:
        if before.get(name) != after[name]:
            what = f"`self.{name}` is not what it was before `reset`, `step` and `observe` were called"
            findings.add("mutation", "class", what, "Keep everything that changes in the state")
