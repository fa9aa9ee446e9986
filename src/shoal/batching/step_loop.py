"""The loop over the steps of a rollout.

On a CPU it is a plain scan. On an accelerator every small operation inside a loop is a kernel of its own, which for
small worlds takes longer to launch than to run: there the keys of many steps are derived before the loop, the clock is
not carried along, and small bodies are unrolled, so that the compiler can join the end of a step with the beginning of
the next. Views are made at the beginning of a step and not carried either: one that is only summed up, say, is then
never written to memory. The results are the same.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shoal.batching.masked import inner_programs
from shoal.batching.vectorise import Vectorised, Worlds
from shoal.core.keys import StepKeys, derive_ahead
from shoal.core.types import PyTree

MOST_KEYS_OF_STEP, MOST_KEYS = 1 << 17, 1 << 24
"""The most keys of a step that are derived ahead, and of all the steps that this is done for at once."""
UNROLLED = ((4, 600), (2, 1200))
"""How many steps are unrolled, and the most operations of a step for that: more would take too long to compile."""

Body = Callable[[Worlds, PyTree], tuple[Worlds, PyTree, Any]]


def scan_steps(
    body: Body, vectorised: Vectorised, worlds: Worlds, carry: PyTree, num_steps: int
) -> tuple[Worlds, PyTree, Any]:
    """Scans `body(worlds, carry)`, which returns both and a result: both in the end, and all results `[T, ...]`."""
    if jax.default_backend() == "cpu":

        def plain(both, _):
            worlds, carry, result = body(*both)
            return (worlds, carry), result

        (worlds, carry), results = lax.scan(plain, (worlds, carry), length=num_steps)
        return worlds, carry, results
    return _scan_lean(body, vectorised, worlds, carry, num_steps)


def _scan_lean(
    body: Body, vectorised: Vectorised, worlds: Worlds, carry: PyTree, num_steps: int
) -> tuple[Worlds, PyTree, Any]:
    agents = sum(group.size for group in vectorised.env.groups.values())
    num_envs = worlds.first.shape[0]
    keys_of_step = num_envs * (agents + 2)
    ahead = keys_of_step <= MOST_KEYS_OF_STEP
    size = _largest_part(num_steps, MOST_KEYS // keys_of_step) if ahead else num_steps

    def derive(clock: jax.Array, count: int) -> StepKeys | None:
        return derive_ahead(worlds.key, clock, count, agents) if ahead else None

    def observe(worlds: Worlds) -> Worlds:
        return worlds.replace(observation=vectorised.observe(worlds.params, worlds.state, num_envs))

    def one(both, now):
        worlds, carry, result = body(observe(both[0].replace(clock=now[0], keys=now[1])), both[1])
        return (worlds.replace(clock=None, observation=None), carry), result

    both = (worlds.replace(clock=None, observation=None), carry)
    clocks = worlds.clock + jnp.arange(num_steps, dtype=jnp.uint32)
    now = jax.eval_shape(lambda clocks: jax.tree.map(lambda leaf: leaf[0], (clocks, derive(clocks[0], 1))), clocks)
    unroll = _unroll(jax.make_jaxpr(one)(both, now).jaxpr, size)

    def block(both, clocks):
        return lax.scan(one, both, (clocks, derive(clocks[0], size)), unroll=unroll)

    if size == num_steps:
        (after, carry), results = block(both, clocks)
    else:
        (after, carry), results = lax.scan(block, both, clocks.reshape(-1, size))
        results = jax.tree.map(lambda leaf: leaf.reshape(num_steps, *leaf.shape[2:]), results)
    return observe(after.replace(clock=worlds.clock + jnp.uint32(num_steps))), carry, results


def _largest_part(whole: int, most: int) -> int:
    """The largest divisor that is at most so large; one that can be unrolled, if there is any."""
    parts = [part for part in range(1, max(1, min(whole, most)) + 1) if whole % part == 0]
    return max(parts, key=lambda part: (part % UNROLLED[0][0] == 0, part))


def _unroll(jaxpr: Any, num_steps: int) -> int:
    operations = _count_operations(jaxpr)
    return next((n for n, most in UNROLLED if operations <= most and num_steps % n == 0), 1)


def _count_operations(jaxpr: Any) -> int:
    """The operations whose results are used."""
    count, used = 0, {id(var) for var in jaxpr.outvars}
    for equation in reversed(jaxpr.eqns):
        if any(id(var) in used for var in equation.outvars):
            used |= {id(var) for var in equation.invars}
            count += 1 + sum(map(_count_operations, inner_programs(equation)))
    return count
