"""`shoal.compare`: runs side by side. Needs no JAX, unless a run in memory is compared, which has it already."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.training import comparison
from shoal.training.comparison import END, Comparison

if TYPE_CHECKING:
    from shoal.api.run import Run


def compare(
    runs: "Iterable[str | Path | Run]",
    metric: str = "return",
    by: str = "algorithm",
    baseline: str | None = None,
    at: int | float | str = END,
    normalise: bool = False,
) -> Comparison:
    """Compares runs, each a folder or a run as `shoal.train` and `shoal.load` return it, by groups of settings.

    metric: any that all of them have, as `metrics.jsonl` names it: `return`, `return/agent`, or `eval/return` for the
    greedy evaluations of `eval_every`. by: a setting by its dotted name, or several with commas between them:
    `algorithm`, `env`, `run`, `seed`, `learners.agent.algorithm.gamma` or, where that is clear, `gamma`. baseline: the
    group that tables compare the others with. at: env steps at which runs are judged, by the mean over the tenth
    before; by default each where it ends. normalise: compare in all environments together, each from 0 to 1 between
    the least and the greatest value of these runs.

    The result has `final`, `curves`, `profiles`, `improvement`, `table` and `notes`; `plot` draws it, `save` writes it.
    """
    return comparison.compare(runs, metric, by, baseline, at, normalise)
