"""`check_env`: does a world keep the environment contract?

First the declarations and, by tracing, every shape and type; if these hold, a few steps outside of `jit` and inside it,
alone and in a batch, on each kind of device; then many steps of several copies with random legal actions.
"""

from collections.abc import Callable
from typing import Any

import jax

from shoal.core.env import Env
from shoal.core.errors import WorldError, require_positive
from shoal.testing._agreement import check_agreement
from shoal.testing._declarations import check_declarations
from shoal.testing._play import Game, PlayCount
from shoal.testing._programs import make_programs
from shoal.testing._shapes import check_shapes
from shoal.testing.reference import Reference, as_function
from shoal.testing.report import Findings, Report
from shoal.training.devices import use_all_cores


def check_env(
    env: Env,
    *,
    reference: Reference | Callable[..., Any] | None = None,
    num_steps: int = 200,
    num_envs: int = 8,
    key: jax.Array | None = None,
    tolerance: float = 1e-5,
    raise_on_problems: bool = True,
) -> Report:
    """Checks a world and explains what to fix.

    reference: another implementation of the same rules (a `Reference`, or a function `(state, actions, params)` that
    returns views, rewards, terminated, truncated); every step played is compared with it to `tolerance`, relative and
    absolute. num_steps, num_envs: how many steps of how many copies to play. key: decides what is played.

    Raises `WorldError` listing every problem, unless `raise_on_problems` is off. Warnings never raise.
    """
    require_positive("check_env", num_steps=num_steps, num_envs=num_envs, tolerance=tolerance)
    if not isinstance(env, Env):
        raise WorldError(f"check_env: expected an instance of a class derived from shoal.Env, got {env!r}")
    use_all_cores()  # what is checked is often trained next
    findings = Findings()
    played = _check(env, reference, num_steps, num_envs, jax.random.key(0) if key is None else key, tolerance, findings)
    report = Report(type(env).__name__, findings.all(), played.num_steps, played.num_episodes)
    if raise_on_problems and not report.ok:
        raise WorldError(str(report))
    return report


def _check(
    env: Env, reference: Any, num_steps: int, num_envs: int, key: jax.Array, tolerance: float, findings: Findings
) -> PlayCount:
    nothing = PlayCount(0, 0)
    groups = check_declarations(env, findings)
    if groups is None:
        return nothing
    shapes = check_shapes(env, groups, findings)
    if shapes is None:
        return nothing
    programs = make_programs(env)
    check_agreement(env, shapes, programs, jax.random.fold_in(key, 0), findings)
    if findings.has("raises", "host value"):
        return nothing
    refer = None if reference is None else as_function(reference)
    game = Game(groups, programs, jax.random.fold_in(key, 1), num_envs, refer, tolerance, findings)
    played = game.play(num_steps)
    if played.num_steps and not played.num_episodes:
        what = f"no episode ended in {num_steps} steps of {num_envs} {'copy' if num_envs == 1 else 'copies'}"
        fix = "Return `terminated` or, for a time limit, `truncated`; check longer episodes with more `num_steps`"
        findings.add("never ends", "step", what, fix, is_warning=True)
    return played
