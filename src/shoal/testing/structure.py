"""The quick part of `check_env`: declarations, and the shapes of what the methods return. Nothing is played."""

from shoal.core.env import Env
from shoal.core.explain import explain
from shoal.testing._declarations import check_declarations
from shoal.testing._hidden_draws import check_hidden_draws
from shoal.testing._shapes import check_shapes
from shoal.testing.report import Findings, Report


def check_structure(env: Env) -> Report:
    """Traces the methods of a world, `reset` and `step` twice more: fast enough to be done before every run."""
    findings = Findings()
    groups = check_declarations(env, findings)
    if groups is not None:
        shapes = check_shapes(env, groups, findings)
        if shapes is not None:
            check_hidden_draws(env, groups, findings)
    return Report(type(env).__name__, findings.all())


def in_words(error: Exception, method: str) -> str:
    """What went wrong when a world's method raised, and where in its code."""
    _, where, what, _ = explain(error, method)
    return f"{where}: {what}"
