"""Runs side by side: final performance, learning curves, performance profiles, probabilities of improvement.

A *sample* is one seed of one run. Samples are put into groups by settings (`by`), and within a group into strata by
environment. What is compared:

- **Final performance** of a sample: the mean of its metric over the last tenth of the env steps, those greater than
  0.9 N and at most N. N is where the run ends, or the same number for all runs, if one is asked for (`at`).
- Of a group: the interquartile mean (IQM) of its samples with a 95 % interval by stratified bootstrap.
- **Curves**: the IQM at each step. Runs of one group that logged at the same steps are taken as they are; others are
  interpolated, within the steps that all of them have and never beyond.
- **Profiles**: for each value, the part of a group's samples whose final performance is greater.
- **Improvement**: how likely a sample of one group is to do better than one of another; ties count half.

Environments are kept apart, each in a panel of its own, unless values are normalised: then the least value that any of
the runs has in an environment becomes 0, the greatest 1, and all environments are compared together.

Numbers only, by numpy: JAX is not imported, and matplotlib only to draw.
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shoal.core.errors import OptionError, require, unknown_name
from shoal.training import comparison_tables
from shoal.training.compared_runs import read_compared
from shoal.training.comparison_panels import Final, GroupCurve, Improvement, Panel, Profile, Sample, scores_of
from shoal.training.comparison_samples import (
    END,
    OWNER,
    check_at,
    check_by,
    label_groups,
    note_few_seeds,
    note_lengths,
    note_settings,
    notes_on_runs,
    order_groups,
    panel_of_all,
    panel_per_environment,
    samples_of,
    shorten_names,
)

Kind = Literal["curves", "final", "profile", "improvement"]
KINDS: tuple[Kind, ...] = ("curves", "final", "profile", "improvement")
"""The pictures of a comparison."""


@dataclasses.dataclass(frozen=True, repr=False)
class Comparison:
    """Runs that were compared: figures, pictures and tables.

    `final`, `curves`, `profiles` and `improvement` are those of the only panel; with several environments,
    `panels[env]` has them. notes: what a reader should know, such as seeds that were left out.
    """

    metric: str
    by: str
    at: int | str
    baseline: str | None
    normalised: bool
    panels: Mapping[str, Panel]
    notes: tuple[str, ...]

    @property
    def final(self) -> dict[str, Final]:
        return self._only.final

    @property
    def curves(self) -> dict[str, GroupCurve]:
        return self._only.curves

    @property
    def profiles(self) -> dict[str, Profile]:
        return self._only.profiles

    @property
    def improvement(self) -> Improvement:
        return self._only.improvement

    @property
    def samples(self) -> list[Sample]:
        """Every seed of every run, panel by panel and group by group."""
        strata = [stratum for panel in self.panels.values() for found in panel.groups.values() for stratum in found]
        return [sample for stratum in strata for sample in stratum]

    @property
    def table(self) -> dict[str, np.ndarray]:
        """Final performance of every seed of every run, a tidy table: `pandas.DataFrame(comparison.table)`."""
        rows = [(s.env, s.group, s.run, s.seed, s.judged_at, s.score) for s in self.samples]
        kinds = {"env": object, "group": object, "run": object, "seed": np.int64, "env_steps": np.int64}
        kinds |= {"score": np.float64}
        return {name: np.array([row[i] for row in rows], kind) for i, (name, kind) in enumerate(kinds.items())}

    @property
    def judged(self) -> str:
        """What final performance is, in words."""
        where = "of each run" if self.at == END else f"up to {int(self.at):,}"
        scale = ", normalised by environment" if self.normalised else ""
        return f"{self.metric}{scale}: mean over the last tenth of the env steps {where}"

    def plot(self, kind: Kind = "curves", axes: Any = None) -> Any:
        """Draws one of the pictures, and returns matplotlib's axes: one, or a list with one per environment.

        axes: where to draw, one for each panel; by default new ones, which show themselves in a notebook.
        """
        self._check_kind(kind)
        from shoal.viz.comparison import plot_comparison

        return plot_comparison(self._drawing(kind), axes=axes)

    def save(self, path: str | Path, kind: Kind | None = None, digits: int | None = None) -> list[Path]:
        """Writes the comparison, and returns the files. digits: behind the point, in tables to be read.

        The suffix says what: `.png`, `.svg` and `.pdf` one picture (its `kind`; by default the file's name, if it is
        one, else curves), `.csv` and `.md` final performance, `.tex` the same as a LaTeX table, `.json` all curves in
        marl-eval's format. A path without a suffix is a folder, which gets all of these.
        """
        from shoal.training.comparison_files import save

        if kind is not None:
            self._check_kind(kind)
        return save(self, Path(path), kind, digits)

    def pictures(self, kind: Kind, *suffixes: str) -> dict[str, bytes]:
        """One of the pictures as files, by suffix: png, svg or pdf."""
        self._check_kind(kind)
        from shoal.viz.comparison import comparison_pictures

        return comparison_pictures(self._drawing(kind), suffixes)

    def to_csv(self, what: str = "final") -> str:
        """A table as CSV: `final`, `scores` (of every seed), `curves`, `profile` or `improvement`."""
        return comparison_tables.to_csv(self, what)

    def to_latex(self, digits: int | None = None) -> str:
        """Final performance as a LaTeX table, for the package booktabs; the best IQM of an environment is bold."""
        return comparison_tables.to_latex(self, digits)

    def to_markdown(self, digits: int | None = None) -> str:
        """Final performance as a table in Markdown."""
        return comparison_tables.to_markdown(self, digits)

    def to_marl_eval(self) -> dict[str, Any]:
        """All curves and final performances in the format that marl-eval reads, as plain data for JSON."""
        return comparison_tables.to_marl_eval(self)

    @functools.cached_property
    def without_marl_eval(self) -> str | None:
        """Why there is nothing for marl-eval: it needs the same runs and steps of all groups. None if there is."""
        try:
            self.to_marl_eval()
        except OptionError as error:
            return str(error)
        return None

    def __repr__(self) -> str:
        best = {name: max(panel.final, key=lambda g: panel.final[g].iqm) for name, panel in self.panels.items()}
        groups = list(dict.fromkeys(group for panel in self.panels.values() for group in panel.groups))
        counts = len(groups), len(self.samples)
        ends = ["" if count == 1 else "s" for count in counts]
        parts = [f"{counts[0]} group{ends[0]} by {self.by}", f"{counts[1]} seed{ends[1]}"]
        finals = {name: self.panels[name].final[group] for name, group in best.items()}
        parts += [f"{name}: {group} is best, IQM {finals[name].iqm:.4g}" for name, group in best.items()]
        return f"Comparison({self.metric}; {'; '.join(parts[:5])}{'; ...' if len(parts) > 5 else ''})"

    def _repr_html_(self) -> str:
        return comparison_tables.to_html(self)

    @property
    def _only(self) -> Panel:
        if len(self.panels) == 1:
            return next(iter(self.panels.values()))
        raise OptionError(
            f"this comparison has {len(self.panels)} environments, {', '.join(self.panels)}: use "
            f"comparison.panels[{next(iter(self.panels))!r}], or normalise=True to compare in all of them together"
        )

    def _check_kind(self, kind: str) -> None:
        if kind not in KINDS:
            raise unknown_name("picture", str(kind), KINDS)

    def _drawing(self, kind: Kind) -> dict[str, Any]:
        """What is drawn, as plain data: the layer that draws knows nothing of runs."""
        attribute = "profiles" if kind == "profile" else kind
        groups = list(dict.fromkeys(group for panel in self.panels.values() for group in panel.groups))
        scores = {
            name: {group: np.concatenate(scores_of(strata)) for group, strata in panel.groups.items()}
            for name, panel in self.panels.items()
        }
        return {
            "kind": kind,
            "label": f"{self.metric}, normalised" if self.normalised else self.metric,
            "judged": self.judged,
            "by": self.by,
            "groups": groups,
            "baseline": self.baseline,
            "panels": {name: getattr(panel, attribute) for name, panel in self.panels.items()},
            "scores": scores,
        }


def compare(
    runs: Iterable[Any],
    metric: str = "return",
    by: str = "algorithm",
    baseline: str | None = None,
    at: int | float | str = END,
    normalise: bool = False,
    labels: Mapping[str, str] | None = None,
) -> Comparison:
    """Compares runs, each a folder, a run as `shoal.train` and `shoal.load` return it, or a JSON file of
    `benchmarks/algorithms_learn.py`, by groups of settings.

    metric: any that all of them have, as `metrics.jsonl` names it: `return`, `return/agent`, or `eval/return` for the
    greedy evaluations of `eval_every`. by: a setting by its dotted name, or several with commas between them:
    `algorithm`, `env`, `run`, `seed`, `learners.agent.algorithm.gamma` or, where that is clear, `gamma`. baseline: the
    group that tables compare the others with. at: env steps at which runs are judged, by the mean over the tenth
    before; by default each where it ends. normalise: compare in all environments together, each from 0 to 1 between
    the least and the greatest value of these runs. labels: what groups are called in all tables and pictures, by the
    names that they would have: `{"ppo": "IPPO"}`.

    The result has `final`, `curves`, `profiles`, `improvement`, `table` and `notes`; `plot` draws it, `save` writes it.
    """
    given = [runs] if isinstance(runs, str | Path) else list(runs)
    require(bool(given), OWNER, "runs", given, "at least one run")
    require(isinstance(metric, str) and bool(metric), OWNER, "metric", metric, "a metric's name, such as 'return'")
    read = shorten_names([read_compared(run) for run in given])
    notes = notes_on_runs(read, metric)
    steps = check_at(at)
    settings = check_by(by, read)
    samples = [sample for run in read for sample in samples_of(run, metric, settings, steps, notes)]
    if not samples:
        raise OptionError(f"compare: none of the seeds has a {metric} where it is judged. {' '.join(notes)}")
    samples = label_groups(order_groups(samples, settings), labels or {})
    note_settings(read, samples, settings, notes)
    note_lengths(samples, steps, settings, notes)
    panels = panel_of_all(samples, notes) if normalise else panel_per_environment(samples)
    groups = dict.fromkeys(group for panel in panels.values() for group in panel.groups)
    baseline = (labels or {}).get(baseline, baseline) if isinstance(baseline, str) else baseline
    if baseline is not None and baseline not in groups:
        raise unknown_name("baseline", str(baseline), groups)
    note_few_seeds(panels, notes)
    return Comparison(metric, by, steps, baseline, normalise, panels, tuple(notes))
