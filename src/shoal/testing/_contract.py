"""What can be seen of a world without playing it: its declarations, and the shapes of what its methods return."""

import dataclasses
import linecache
import math
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.env import Env
from shoal.core.errors import WorldError
from shoal.core.spaces import ActionSpace, Box, action_dtype, action_shape, num_logits
from shoal.core.types import Group, Observation, Outcome, PyTree, Scene
from shoal.testing._trees import named_leaves, show
from shoal.testing.report import Findings

_KINDS = ("cooperative", "competitive", "mixed")
_CALLBACK = re.compile(r"\b(pure_callback|io_callback|debug_callback|debug_print)\[")
_NOT_USER_CODE = (str(Path(jax.__file__).parent), str(Path(__file__).parent))

_SCENE_TYPES = {"colour": "integers", "visible": "booleans"}  # everything else is floats

_HOST_VALUES: tuple[tuple[type[Exception], str, str], ...] = (
    (
        jax.errors.TracerBoolConversionError,
        "needs the truth of a value that is only known when the program runs (`if`, `while`, `and`, `or`, `bool()`)",
        "Use `jnp.where`, `jnp.logical_and` or `jax.lax.cond`",
    ),
    (
        jax.errors.TracerIntegerConversionError,
        "uses a value that is only known when the program runs as a Python integer (an index of a list, `range`)",
        "Index jax arrays, or loop with `jax.lax.fori_loop`",
    ),
    (
        jax.errors.TracerArrayConversionError,
        "hands a value that is only known when the program runs to numpy",
        "Use `jax.numpy` instead of `numpy`",
    ),
    (
        jax.errors.NonConcreteBooleanIndexError,
        "indexes with a mask, so that a shape depends on values",
        "Use `jnp.where(mask, ..., ...)`, which keeps the shape",
    ),
    (
        jax.errors.UnexpectedTracerError,
        "uses a traced value that an earlier call left behind, on the world or in a global",
        "Keep everything that changes in the state",
    ),
    (
        jax.errors.ConcretizationTypeError,
        "turns a value that is only known when the program runs into a Python number (`float()`, `int()`, `.item()`)",
        "Leave it a jax array",
    ),
)


@dataclasses.dataclass(frozen=True)
class Shapes:
    """A world's groups, and the specs of its params and of what its methods return."""

    groups: dict[str, Group]
    params: PyTree
    state: PyTree
    observation: dict[str, Observation]

    @property
    def everyone_active(self) -> bool:
        return all(obs.active is None for obs in self.observation.values())


def check_declarations(env: Env, findings: Findings) -> dict[str, Group] | None:
    """The world as plain data: frozen, hashable, groups and players. Returns the groups if they can be used."""
    frozen = dataclasses.is_dataclass(env) and env.__dataclass_params__.frozen  # pyright: ignore[reportAttributeAccessIssue]
    if not frozen:
        findings.add(
            "not frozen", "class", "it is not a frozen dataclass", "Write `@dataclasses.dataclass(frozen=True)`"
        )
    _check_hash(env, findings)
    if env.kind not in _KINDS:
        findings.add("kind", "kind", f"it is {env.kind!r}", f"Use one of {', '.join(_KINDS)}")
    try:
        groups = dict(env.groups)
    except Exception as error:
        findings.add(*explain(error, "groups"))
        return None
    if not groups:
        findings.add("groups", "groups", "there are none", "A world needs at least one group of agents")
    if not all(_group_usable(name, group, findings) for name, group in groups.items()) or not groups:
        return None
    _check_players(env, groups, findings)
    return groups


def _check_hash(env: Env, findings: Findings) -> None:
    try:
        hash(env)
    except TypeError as error:
        fix = "Use tuples instead of lists and arrays in its fields, and put numbers that vary into params"
        findings.add("not hashable", "class", f"it cannot be hashed ({error})", fix)
        return
    if dataclasses.is_dataclass(env) and dataclasses.replace(env) != env:
        what = "it is not equal to a copy with the same fields, so every copy would be compiled anew"
        findings.add("not equal", "class", what, "Leave `eq` of the dataclass at its default")


def _group_usable(name: str, group: Any, findings: Findings) -> bool:
    where = f"groups[{name!r}]"
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
    try:
        taken = [tuple(seat) for seats in env.players.values() for seat in seats]
    except Exception as error:
        findings.add(*explain(error, "players"))
        return
    seats = [(name, i) for name, group in groups.items() for i in range(group.size)]
    fix = "Every seat (group, index) must belong to exactly one player"
    for seat in seats:
        if taken.count(seat) != 1:
            times = "no player" if seat not in taken else "more than one player"
            findings.add("players", "players", f"the seat {seat} has {times}", fix)
    for seat in taken:
        if seat not in seats:
            findings.add("players", "players", f"there is no seat {seat}", fix)


def check_shapes(env: Env, groups: dict[str, Group], findings: Findings) -> Shapes | None:
    """Traces every method once. Returns the shapes if the world can be played."""
    params = _check_params(env, findings)
    key = jax.eval_shape(lambda: jax.random.key(0))
    state = trace(findings, "reset", env.reset, key, params)
    if state is None:
        return None
    actions = {
        name: jax.ShapeDtypeStruct((group.size, *action_shape(group.action)), action_dtype(group.action))
        for name, group in groups.items()
    }
    observation = trace(findings, "observe", env.observe, state, params)
    stepped = trace(findings, "step", env.step, key, state, actions, params)
    whole = trace(findings, "global_state", env.global_state, state, params)
    scene = trace(findings, "scene", env.scene, state, params)
    if observation is None or stepped is None or whole is None or scene is None:
        return None
    usable = [
        _check_wide_types(findings, "reset", "state", state),
        _check_wide_types(findings, "global_state", "global_state", whole),
        _check_observations(findings, groups, observation),
        _check_step(findings, groups, state, stepped),
        _check_scene(findings, scene),
    ]
    return Shapes(groups, params, state, observation) if all(usable) else None


def trace(findings: Findings, method: str, function: Callable, *args: Any) -> Any:
    """The spec of what a method returns, or None after noting why it cannot be traced."""
    try:
        jaxpr, out = jax.make_jaxpr(function, return_shape=True)(*args)
    except Exception as error:  # whatever the world's own code raises
        findings.add(*explain(error, method))
        return None
    for name in sorted(set(_CALLBACK.findall(str(jaxpr)))):
        what = f"it calls back to the host from inside the program ({name})"
        fix = "Every step of every copy would wait for the host: remove the call, or compute it with `jax.numpy`"
        findings.add("callback", method, what, fix, is_warning=name.startswith("debug"))
    return out


def explain(error: Exception, method: str) -> tuple[str, str, str, str]:
    """Kind, place, words and remedy for an exception that a world's method raised."""
    where = f"{method}{_line_of(error)}"
    for kind, what, fix in _HOST_VALUES:
        if isinstance(error, kind):
            return "host value", where, f"it {what}", fix
    if isinstance(error, TypeError) and "concrete values" in str(error):
        fix = "Shapes must be known when the program is compiled: take them from the world's fields"
        return "host value", where, "it makes a shape out of a value that is only known when the program runs", fix
    if isinstance(error, dataclasses.FrozenInstanceError):
        fix = "Return a new state: `state.replace(...)`. Everything that changes lives there, not on the world"
        return "mutation", where, f"it changes something that is frozen ({error})", fix
    if isinstance(error, WorldError):
        return "missing", method, str(error), "See the environment contract"
    text = str(error).strip().split("\n")[0]
    return "raises", where, f"it raised {type(error).__name__}: {text}", "Make it run under `jax.jit`"


def _line_of(error: Exception) -> str:
    """The deepest line of the world's own code, such as ` (tag.py, line 12: "if x > 0:")`."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_NOT_USER_CODE)]
    if not frames or frames[-1].lineno is None:
        return ""
    frame = frames[-1]
    line = linecache.getline(frame.filename, frame.lineno).strip()  # pyright: ignore[reportArgumentType]
    return f" ({Path(frame.filename).name}, line {frame.lineno}: `{line}`)"


def _check_params(env: Env, findings: Findings) -> PyTree:
    """The spec of the default params, as traced arguments."""
    try:
        default = env.default_params()
    except Exception as error:
        findings.add(*explain(error, "default_params"))
        return ()
    key = jax.eval_shape(lambda: jax.random.key(0))
    sampled = trace(findings, "sample_params", env.sample_params, key)
    fix = "Params are float leaves, so that they can be randomised; sizes and flags are fields of the world"
    for method, params in (("default_params", default), ("sample_params", sampled)):
        for name, leaf in named_leaves(params, "params"):
            if not _is_float(leaf):
                findings.add("params", method, f"{name} is {_type_name(leaf)}, not a float", fix)
    specs = jax.eval_shape(strong, default)
    if sampled is not None and _form(sampled) != _form(specs):
        what = f"it returns {_form(sampled)}, but default_params returns {_form(specs)}"
        findings.add("params", "sample_params", what, "Both must have the same structure and shapes")
    return specs


def strong(params: PyTree) -> PyTree:
    """Params as strongly typed arrays, as they are when copies have their own."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), params)


def _is_float(leaf: Any) -> bool:
    return not isinstance(leaf, str) and jnp.issubdtype(jnp.result_type(leaf), np.floating)


def _type_name(leaf: Any) -> str:
    return show(leaf) if hasattr(leaf, "dtype") else type(leaf).__name__


def _form(tree: PyTree) -> list[str]:
    return [f"{name}{list(np.shape(leaf))}" for name, leaf in named_leaves(tree, "params")]


def _check_wide_types(findings: Findings, method: str, name: str, tree: PyTree) -> bool:
    """Arrays of 64 bits (with jax's x64 mode on) halve the speed and do not fit what the framework makes."""
    for leaf_name, leaf in named_leaves(tree, name):
        if str(leaf.dtype) in ("float64", "int64", "uint64", "complex128"):
            findings.add("dtype", method, f"{leaf_name} is {show(leaf)}", "Use 32-bit types: `.astype(jnp.float32)`")
    return True


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
    good &= _check_array(findings, where, "active", obs.active, (size,))
    good &= _check_array(findings, where, "present", obs.present, (size,))
    if isinstance(group.action, Box):
        if obs.legal is not None:
            what = "it returned `legal`, but the action is a Box"
            findings.add("shape", where, what, "Only Discrete and MultiDiscrete actions have legal masks")
            good = False
    else:
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
    _check_wide_types(findings, where, "view", view)
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
        if box.shape != leaf.shape[1:] or box.dtype != str(leaf.dtype):
            what = f"view{name} of one agent is {leaf.dtype}{list(leaf.shape[1:])}"
            findings.add("spec", where, f"{what}, but {box.dtype}{list(box.shape)} is declared", fix)
    return True


def _check_array(
    findings: Findings, where: str, name: str, leaf: Any, shape: tuple[int, ...], dtype: str = "bool"
) -> bool:
    """One optional array of a known shape and dtype. Returns whether the world can be played in spite of it."""
    if leaf is None:
        return True
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
    if jax.tree.structure(before) != jax.tree.structure(after):
        what = (
            "a static field of the state (`pytree_node=False`) or a container's type differs from what reset returned"
        )
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


def _check_weak(findings: Findings, name: str, before: Any, after: Any) -> None:
    fix = f"Give it a type where it is made: `jnp.zeros((), jnp.{before.dtype})`, `jnp.array(x, jnp.{before.dtype})`"
    if before.weak_type != after.weak_type:
        weak, strongly = ("reset", "step") if before.weak_type else ("step", "reset")
        what = f"{name} is weakly typed (made from a Python number) after {weak} and not after {strongly}"
        findings.add("weak type", weak, f"{what}: `step` is compiled twice", fix)
    elif before.weak_type:
        what = f"{name} is weakly typed (made from a Python number); a restored checkpoint would compile anew"
        findings.add("weak type", "reset", what, fix, is_warning=True)


def _check_scene(findings: Findings, scene: Any) -> bool:
    if not isinstance(scene, Scene):
        findings.add("scene", "scene", f"it returned {type(scene).__name__}", "Return a `shoal.Scene`")
        return False
    left, bottom, right, top = scene.bounds
    if not (all(math.isfinite(edge) for edge in scene.bounds) and left < right and bottom < top):
        fix = "They are (left, bottom, right, top) in world units, left < right and bottom < top"
        findings.add("scene", "scene", f"bounds are {scene.bounds}", fix)
    layers = {
        "circles": {"position": ("k", 2), "radius": ("k",), "colour": ("k",), "visible": ("k",), "heading": ("k",)},
        "polygons": {"points": ("k", "corners", 2), "colour": ("k",), "visible": ("k",)},
        "lines": {"start": ("k", 2), "end": ("k", 2), "colour": ("k",), "visible": ("k",)},
        "labels": {"position": ("k", 2), "visible": ("k",)},
    }
    checks = [_check_layer(findings, scene, layer, fields) for layer, fields in layers.items()]
    return all(checks)


def _check_layer(findings: Findings, scene: Scene, layer: str, fields: dict[str, tuple]) -> bool:
    shapes = getattr(scene, layer)
    if shapes is None:
        return True
    where = f"scene, {layer}"
    count = np.shape(shapes.visible)[0] if np.shape(shapes.visible) else 0
    good = True
    for field, axes in fields.items():
        leaf = getattr(shapes, field)
        optional = field == "heading" and leaf is None
        if not optional and not _fits(leaf, field, axes, count):
            what = f"{field} is {show(leaf) if hasattr(leaf, 'dtype') else leaf}"
            fix = f"Return {_SCENE_TYPES.get(field, 'floats')} of shape {_axes(axes)}, k = {count} as in `visible`"
            findings.add("scene", where, what, fix)
            good = False
    words = getattr(shapes, "names", None) or getattr(shapes, "text", ())
    if words and len(words) != count:
        findings.add("scene", where, f"there are {len(words)} names for {count} shapes", "Give one for each")
    return good


def _fits(leaf: Any, field: str, axes: tuple, count: int) -> bool:
    if not hasattr(leaf, "dtype") or leaf.ndim != len(axes) or leaf.shape[0] != count:
        return False
    family = {"integers": np.integer, "booleans": np.bool_, "floats": np.floating}[_SCENE_TYPES.get(field, "floats")]
    sizes_fit = all(isinstance(axis, str) or axis == size for axis, size in zip(axes, leaf.shape, strict=True))
    return sizes_fit and jnp.issubdtype(leaf.dtype, family)


def _axes(axes: tuple) -> str:
    return f"[{', '.join(map(str, axes))}]"
