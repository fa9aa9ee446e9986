"""Checks whether an algorithm keeps the contract, by tracing its methods: only shapes and types are checked.

This runs before every training with a third-party algorithm; `shoal.testing.check_algorithm` checks more.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from shoal.core.algorithm import ActOutput, Algorithm, Experience, LearnerSpec, Replays, Traits, float_options, supports
from shoal.core.errors import AlgorithmError, ShoalError
from shoal.core.explain import explain
from shoal.core.spaces import action_dtype, action_shape
from shoal.core.types import Group, Observation, PyTree

TRACED = "Begin `update` with `self = self.traced(state.hyper)`, and make `hyper` with `self.hyper(spec)` in `init`"


class Problem(NamedTuple):
    """A violation: where (a method), what, and how to fix it."""

    where: str
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}. {self.fix}"


def check_contract(algorithm: Algorithm, spec: LearnerSpec) -> None:
    """Refuses an algorithm that breaks the contract, with the first thing to fix."""
    for problem in contract_problems(algorithm, spec):
        raise AlgorithmError(f"{type(algorithm).__name__}: {problem}.")


def contract_problems(algorithm: Algorithm, spec: LearnerSpec) -> Iterator[Problem]:
    """Problems of `traits`, `init`, `initial_memory`, `act` and `value`; without those that follow from the first."""
    if not isinstance(algorithm.traits, Traits):
        yield Problem("traits", f"it is {algorithm.traits!r}", "Return a shoal.core.algorithm.Traits")
        return
    if (algorithm.traits.replay is not None) != supports(algorithm, Replays):
        yield Problem("traits", "`replay` is set, or the class derives from Replays, not both", "Do both or neither")
    state = _trace("init", lambda: algorithm.init(jax.random.key(0), spec))
    if isinstance(state, Problem):
        yield state
        return
    found = list(_state_problems(algorithm, spec, state))
    yield from found
    for name, group in spec.groups.items() if not found else ():
        yield from _policy_problems(algorithm, spec, name, group, state.params[name])


def checked_update(
    algorithm: Algorithm, state: Any, experience: Experience, key: jax.Array, axis: str | None
) -> tuple[Any, dict[str, jax.Array]]:
    """Traces `algorithm.update`; raises a readable error if it breaks the contract."""
    try:
        result = algorithm.update(state, experience, key, axis)
    except ShoalError:
        raise
    except Exception as error:  # the user's own code may raise anything
        raise AlgorithmError(f"{type(algorithm).__name__}: {_explain_exception(error, 'update')}.") from error
    for problem in update_problems(state, result):
        raise AlgorithmError(f"{type(algorithm).__name__}: {problem}.")
    return result


def update_problems(before: Any, result: Any) -> Iterator[Problem]:
    """Problems of the return value of `update`."""
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
        yield Problem("update", f"it returns {type(result).__name__}", "Return the state and a dict of metrics")
        return
    after, metrics = result
    different = difference(before, after)
    if different:
        yield Problem("update", f"the state has changed its form: {different}", "Keep its structure, shapes and types")
    for name, metric in metrics.items():
        if jnp.shape(metric) != ():
            fix = "Metrics are scalars: take a mean over the batch"
            yield Problem("update", f"the metric {name!r} has the shape {list(jnp.shape(metric))}", fix)


def checked_loss(algorithm: Algorithm, result: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Checks the return value of a method `loss`, which must be one number and metrics."""
    name = type(algorithm).__name__
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
        got = type(result).__name__ if not hasattr(result, "dtype") else _show(result)
        raise AlgorithmError(f"{name}: loss: it returns {got}. Return the loss and a dict of metrics.")
    if jnp.shape(result[0]) != ():
        fix = "Take a mean over the batch: batch.mean_active or batch.mean_present"
        raise AlgorithmError(f"{name}: loss: the loss has the shape {list(jnp.shape(result[0]))}. {fix}.")
    return result


def difference(before: PyTree, after: PyTree) -> str:
    """How two trees differ in structure, shapes or types; empty if they do not."""
    ours, theirs = _leaves(before), _leaves(after)
    for name in [*ours, *theirs]:
        if ours.get(name) != theirs.get(name):
            return f"{name} was {ours.get(name, 'not there')} and is {theirs.get(name, 'not there')}"
    same = jax.tree.structure(before) == jax.tree.structure(after)
    return "" if same else "its leaves are the same, but not its containers (static fields, tuples, lists)"


def one_agent(algorithm: Algorithm, spec: LearnerSpec, name: str) -> Observation:
    """The shapes of one agent's observation."""
    seen = spec.observations[name].replace(state=None)
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), seen)
    return one.replace(state=spec.state) if algorithm.traits.needs_global_state else one


def _state_problems(algorithm: Algorithm, spec: LearnerSpec, state: Any) -> Iterator[Problem]:
    params, hyper = getattr(state, "params", None), getattr(state, "hyper", None)
    if not (isinstance(params, Mapping) and set(params) == set(spec.groups)):
        got = sorted(params) if isinstance(params, Mapping) else type(params).__name__
        fix = "`state.params` is a dict of policies, one for each of `spec.groups`"
        yield Problem("init", f"`state.params` is {got}, the groups are {sorted(spec.groups)}", fix)
    wanted = {*float_options(type(algorithm)), "total_updates"}
    if not isinstance(hyper, Mapping) or wanted - set(hyper):
        lacks = sorted(wanted - set(hyper if isinstance(hyper, Mapping) else ()))
        yield Problem("init", f"`state.hyper` lacks {', '.join(lacks)}", TRACED)
    if algorithm.traits.replay is not None and getattr(state, "replay", None) is None:
        yield Problem("init", "`traits.replay` is set, but the state has no `replay`", "Make one in `init`")


def _policy_problems(
    algorithm: Algorithm, spec: LearnerSpec, name: str, group: Group, policy: PyTree
) -> Iterator[Problem]:
    memory = _trace("initial_memory", algorithm.initial_memory, policy)
    if isinstance(memory, Problem):
        yield memory
        return
    seen, key = one_agent(algorithm, spec, name), jax.eval_shape(lambda: jax.random.key(0))
    for explore in (True, False):
        act = functools.partial(algorithm.act, explore=explore)
        out = _trace("act", act, policy, seen, memory, key)
        yield from [out] if isinstance(out, Problem) else _act_problems(group, memory, out)
    value = _trace("value", algorithm.value, policy, seen, memory)
    if isinstance(value, Problem):
        yield value
    elif not (hasattr(value, "shape") and value.shape == () and jnp.issubdtype(value.dtype, jnp.floating)):
        yield Problem("value", f"it returns {_show(value)}", "Return one number, a float scalar, for one agent")


def _act_problems(group: Group, memory: PyTree, out: Any) -> Iterator[Problem]:
    if not isinstance(out, ActOutput):
        yield Problem("act", f"it returns {type(out).__name__}", "Return an ActOutput(action, memory, extras)")
        return
    shape, dtype = action_shape(group.action), action_dtype(group.action)
    if not (hasattr(out.action, "shape") and out.action.shape == shape and out.action.dtype == dtype):
        fix = f"One agent's action of {group.action} is {dtype}{list(shape)}: `act` is written without batch axes"
        yield Problem("act", f"the action is {_show(out.action)}", fix)
    different = difference(memory, out.memory)
    if different:
        fix = "`act` returns a memory of the structure, shapes and types that `initial_memory` gives"
        yield Problem("act", f"the memory has changed its form: {different}", fix)
    if not isinstance(out.extras, Mapping):
        yield Problem("act", f"extras is {type(out.extras).__name__}", "Record a dict of arrays by name")


def _trace(where: str, method: Callable, *args: Any) -> Any:
    """The shapes of a method's return value, or the problem if it raises."""
    try:
        return jax.eval_shape(method, *args)
    except ShoalError:
        raise
    except Exception as error:  # the user's own code may raise anything
        return _explain_exception(error, where)


def _explain_exception(error: Exception, method: str) -> Problem:
    _, where, what, fix = explain(error, method)
    return Problem(where, what, fix)


def _leaves(tree: PyTree) -> dict[str, str]:
    paths = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): _show(leaf) for path, leaf in paths}


def _show(leaf: Any) -> str:
    if not hasattr(leaf, "dtype"):
        return type(leaf).__name__
    return f"{leaf.dtype}{list(leaf.shape)}"
