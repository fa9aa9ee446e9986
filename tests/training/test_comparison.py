"""Comparisons of runs: what is read, how runs are grouped and judged, tables and files; bad input."""

import csv
import importlib.util
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal.algorithms.names import NAMES, name_of, named
from shoal.core.errors import OptionError, RunError, UnknownNameError
from shoal.training.compared_runs import ComparedRun, flatten, read_compared
from shoal.training.comparison import compare
from shoal.training.comparison_tables import TABLES, escape_latex
from shoal.training.experiment import Experiment, Learner
from shoal.training.statistics import interval, iqm

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "benchmarks" / "results" / "algorithms"


def make_run(name="a", values=((1.0, 2.0),) * 10, steps=None, metric="return", **settings):
    """A run whose metric has these values, `[rows][seeds]`, every 10 env steps."""
    steps = steps or range(10, 10 * len(values) + 10, 10)
    lines = [
        {"update": i, "env_steps": step, metric: list(row)}
        for i, (step, row) in enumerate(zip(steps, values, strict=True))
    ]
    first = settings.pop("seed", 0)
    algorithm = settings.pop("algorithm", "ppo")
    plain = {"env": "test/world", "learners": {"team": {"algorithm": {"name": algorithm, "gamma": 0.9}}}} | settings
    count = len(values[0])
    flat = flatten(plain | {"seed": first, "num_seeds": count})
    return ComparedRun(name, flat, tuple(range(first, first + count)), lines)


def constant(name, scores, **settings):
    return make_run(name, [scores] * 10, **settings)


def test_final_performance_is_the_mean_over_the_last_tenth_of_the_steps():
    run = make_run(values=[(float(i), -float(i)) for i in range(1, 21)])  # steps 10, 20, ..., 200
    found = compare([run])
    np.testing.assert_array_equal(found.table["score"], [(19 + 20) / 2, -(19 + 20) / 2])  # 190, 200 > 180
    found = compare([run], at=100)  # 100 alone: 90 is not greater than 0.9 x 100
    np.testing.assert_array_equal(found.table["score"], [10.0, -10.0])
    np.testing.assert_array_equal(found.table["env_steps"], [100, 100])
    assert found.judged == "return: mean over the last tenth of the env steps up to 100"


def test_final_figures_of_a_group():
    scores = (3.0, 1.0, 2.0, 10.0, 4.0)
    final = compare([constant("a", scores)]).final["ppo"]
    low, high = interval(np.array(scores))
    assert (final.iqm, final.low, final.high) == (pytest.approx((0.75 * 2 + 3 + 0.75 * 4) / 2.5), low, high)
    assert (final.mean, final.median, final.worst, final.best, final.seeds, final.runs) == (4.0, 3.0, 1.0, 10.0, 5, 1)


def test_seeds_of_several_runs_of_a_group_count_together():
    runs = [constant("a", (1.0, 2.0)), constant("b", (3.0,), seed=2), constant("c", (9.0,), algorithm="dqn")]
    final = compare(runs).final
    assert (final["ppo"].runs, final["ppo"].seeds, final["ppo"].mean) == (2, 3, 2.0)
    assert list(final) == ["ppo", "dqn"]


def test_one_seed_has_no_interval_and_it_is_said():
    found = compare([constant("a", (1.0,))])
    assert (found.final["ppo"].low, found.final["ppo"].high) == (None, None)
    assert found.curves["ppo"].low is None
    assert "No interval for ppo: one seed only. Train several, as --num-seeds 5." in found.notes
    assert "| ppo | 1 | 1.00 | n/a |" in found.to_markdown()
    assert "& -- &" in found.to_latex()


@pytest.mark.parametrize(
    ("by", "groups"),
    [
        ("algorithm", ["ppo", "dqn"]),
        ("run", ["a", "b", "c"]),
        ("seed", ["0", "1", "5"]),
        ("gamma", ["0.9", "0.99"]),
        ("learners.team.algorithm.gamma", ["0.9", "0.99"]),
        ("algorithm, gamma", ["ppo, 0.9", "ppo, 0.99", "dqn, 0.9"]),
        ("num_envs", ["64", "256"]),
    ],
)
def test_groups_by_settings(by, groups):
    learners = {"team": {"algorithm": {"name": "ppo", "gamma": 0.99}}}
    runs = [
        constant("a", (1.0, 2.0), num_envs=256),
        constant("b", (1.0, 2.0), learners=learners, num_envs=64),
        constant("c", (1.0, 2.0), algorithm="dqn", seed=5, num_envs=64),
    ]
    found = list(compare(runs, by=by).final)
    assert found[: len(groups)] == groups


def test_environments_are_apart_unless_normalised():
    runs = [
        constant("a", (0.0, 10.0)),
        constant("b", (5.0, 10.0), algorithm="dqn"),
        constant("c", (-300.0, -100.0), env="test/other"),
        constant("d", (-200.0, -200.0), env="test/other", algorithm="dqn"),
        constant("e", (1.0, 2.0), env_options={"size": 3}),
    ]
    found = compare(runs)
    assert list(found.panels) == ["test/world", "test/other", "test/world size=3"]
    assert found.panels["test/other"].final["dqn"].iqm == -200.0
    with pytest.raises(OptionError, match=r"has 3 environments, .*: use comparison.panels\['test/world'\], or"):
        found.final  # noqa: B018
    together = compare(runs, normalise=True)
    assert list(together.panels) == ["all environments"]
    np.testing.assert_allclose(together.table["score"], [0.0, 1.0, 0.0, 1.0, 0.5, 1.0, 0.5, 0.5])
    assert together.final["ppo"].mean == 0.5
    assert "test/world size=3 is left out, as it has no runs of dqn." in together.notes
    # ppo against dqn: (0 + 1/2 x 1/2 ...) world: 0 loses twice, 10 beats 5 and ties 10: 1.5 / 4; other: 1 of 2
    assert together.improvement.probability[0, 1] == pytest.approx((1.5 / 4 + 2 / 4) / 2)
    with pytest.raises(OptionError, match="there is no environment that all of ppo, dqn have runs in"):
        compare([runs[0], runs[3]], normalise=True)


def test_grouped_by_environment_there_is_one_panel():
    runs = [constant("a", (0.0, 10.0)), constant("c", (-3.0, -1.0), env="test/other")]
    assert list(compare(runs, by="env").final) == ["test/world", "test/other"]
    sizes = [constant("a", (0.0,), env_options={"size": 2}), constant("b", (0.0,), env_options={"size": 10})]
    assert list(compare(sizes).panels) == ["test/world size=2", "test/world size=10"]
    for by in ("size", "env_options.size"):
        assert list(compare(sizes, by=by).final) == ["2", "10"]


def test_curves_at_the_same_steps_are_taken_as_they_are():
    run = make_run(values=[(1.0, 3.0, 5.0), (2.0, 4.0, 9.0)])
    curve = compare([run]).curves["ppo"]
    np.testing.assert_array_equal(curve.env_steps, [10, 20])
    np.testing.assert_allclose(curve.iqm, [3.0, (0.25 * 2 + 4 + 0.25 * 9) / 1.5])
    np.testing.assert_allclose((curve.low[1], curve.high[1]), interval(np.array([2.0, 4.0, 9.0])))


def test_curves_at_other_steps_are_interpolated_within_the_common_range_only():
    one = make_run("a", [(0.0,), (10.0,), (20.0,)], steps=[0, 100, 200])
    other = make_run("b", [(0.0,), (100.0,)], steps=[50, 150], seed=1)
    curve = compare([one, other]).curves["ppo"]
    np.testing.assert_array_equal(curve.env_steps, [50, 100, 150])
    np.testing.assert_allclose(curve.iqm, [(5 + 0) / 2, (10 + 50) / 2, (15 + 100) / 2])


def test_no_common_steps():
    runs = [make_run("a", [(1.0,)] * 2, steps=[10, 20]), make_run("b", [(1.0,)] * 2, steps=[30, 40], seed=1)]
    found = compare(runs)
    with pytest.raises(
        OptionError, match=r"runs of 'ppo' have no env steps in common.* a from 10 to 20, b from 30 to 40"
    ):
        found.curves  # noqa: B018
    assert found.final["ppo"].seeds == 2  # which needs none
    with pytest.raises(OptionError, match="marl-eval needs steps that all groups have"):
        found.to_marl_eval()


def test_seeds_without_a_value_are_left_out_and_named():
    values = [(1.0, 1.0)] * 9 + [(1.0, None)]
    found = compare([make_run("a", values)])
    assert found.final["ppo"].seeds == 1
    assert "seed 1 of a is left out: it has no return between 90 and 100 env steps." in found.notes
    values = [(1.0, float("nan"), float("inf"))] * 10
    assert compare([make_run("a", values)]).final["ppo"].seeds == 1
    with pytest.raises(UnknownNameError, match="a has no finite value of the metric 'return'"):
        compare([make_run("a", [(float("nan"),)] * 3)])


def test_a_line_without_a_return_is_bridged():
    run = make_run("a", [(0.0, 0.0), (None, 1.0), (2.0, 2.0)])
    np.testing.assert_allclose(compare([run]).curves["ppo"].iqm, [0.0, 1.0, 2.0])


def test_profiles_and_improvement_of_groups():
    found = compare([constant("a", (1.0, 2.0)), constant("b", (2.0, 3.0), algorithm="dqn")])
    profiles = found.profiles
    assert profiles["ppo"].thresholds[0] < 1.0 < 3.0 < profiles["ppo"].thresholds[-1]
    middle = np.searchsorted(profiles["ppo"].thresholds, 1.5)
    assert (profiles["ppo"].part[middle], profiles["dqn"].part[middle]) == (0.5, 1.0)
    np.testing.assert_array_equal(found.improvement.probability, [[0.5, 0.125], [0.875, 0.5]])  # one tie of four
    assert np.isnan(found.improvement.low[0, 0])
    assert found.improvement.low[1, 0] == 1 - found.improvement.high[0, 1]


def test_what_a_reader_should_know_is_noted():
    short = constant("a", (1.0, 2.0), total_env_steps=1000)
    assert "a is not finished: 100 of 1,000 env steps." in compare([short]).notes
    twice = compare([constant("a", (1.0, 2.0)), constant("b", (1.0, 2.0), seed=1)]).notes
    assert "a and b have the same settings and the seed 1: one training twice." in twice
    lengths = compare([constant("a", (1.0, 2.0)), make_run("b", [(1.0, 2.0)] * 20, algorithm="dqn")]).notes
    assert any("end at 100 to 200 env steps, each is judged where it ends; --at 100 judges" in note for note in lengths)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"metric": "retrun"}, "a: unknown metric 'retrun'. Did you mean 'return'?"),
        ({"metric": ""}, "metric must be a metric's name"),
        ({"by": "gama"}, "unknown setting 'gama'. Did you mean 'gamma' or 'name'?"),
        ({"by": "learners.team.algorithm.gama"}, "Did you mean 'learners.team.algorithm.gamma'"),
        ({"by": "learners.team"}, "'learners.team' holds several settings; choose one: learners.team.algorithm.gamma"),
        ({"by": "algorithm,"}, "by must be a setting, or several with commas between them, got 'algorithm,'"),
        ({"by": None}, "by must be a setting"),
        ({"baseline": "pp"}, "unknown baseline 'pp'. Did you mean 'ppo'?"),
        ({"labels": {"pp": "IPPO"}}, "unknown group 'pp'. Did you mean 'ppo'?"),
        ({"labels": {"ppo": 3}}, "labels['ppo'] must be a text, got 3"),
        ({"at": 5000}, "a has a return up to 100 env steps, and cannot be judged at 5,000"),
        ({"at": "start"}, "at must be 'end' or a whole number of env steps, got 'start'"),
        ({"at": 0}, "at must be 'end' or a whole number of env steps, got 0"),
    ],
)
def test_options_that_do_not_fit(options, words):
    with pytest.raises(shoal.ShoalError, match=re.escape(words)):
        compare([constant("a", (1.0, 2.0))], **options)


def test_settings_of_one_name_with_several_values():
    learners = {name: {"algorithm": {"name": "ppo", "gamma": g}} for name, g in (("x", 0.9), ("y", 0.8))}
    with pytest.raises(OptionError, match=r"several settings that end in 'gamma': learners.x.algorithm.gamma is 0.9"):
        compare([constant("a", (1.0, 2.0), learners=learners)], by="gamma")


def test_no_run(tmp_path):
    with pytest.raises(OptionError, match="runs must be at least one run"):
        compare([])
    with pytest.raises(OptionError, match="runs must be run folders, or runs"):
        compare([3])
    (tmp_path / "empty").mkdir()
    for path, words in (("nothing", "no such folder"), ("empty", "has no config.json"), ("x.json", "no such file")):
        with pytest.raises(RunError, match=words):
            compare([tmp_path / path])
    runs = ROOT / "tests" / "golden" / "runs"
    for path, words in (
        (runs, r"has \d+ in it: name them, as in `shoal compare \S+/cluster \S+/cluster_psro`"),
        (runs / "psro", "is a population, which is not compared"),
        (runs / "sweep", "sweep.json and sweep.png compare them"),
    ):
        with pytest.raises(RunError, match=words):
            compare([path])
    with pytest.raises(OptionError, match="ppo is there twice"):
        compare([runs / "ppo", runs / "ppo"])


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"preset": "a"}', '{"preset": 1, "experiment": {}, "greedy": {}, "curve": {}}', "[" * 10000],
)
def test_files_that_are_no_results(content, tmp_path):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(RunError, match=r"is not a result of benchmarks/algorithms_learn.py"):
        compare([tmp_path / "x.json"])


def test_links_out_of_a_run_folder_are_not_followed(tmp_path):
    golden = ROOT / "tests" / "golden" / "runs" / "ppo"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text((golden / "config.json").read_text())
    (tmp_path / "run" / "metrics.jsonl").symlink_to(golden / "metrics.jsonl")
    with pytest.raises(RunError, match="is a link, and must be a regular file"):
        compare([tmp_path / "run"])


def test_damaged_runs_are_refused_or_survived(tmp_path):
    """Bytes of the config and of the metrics changed, cut or repeated at random: never anything but a ShoalError."""
    golden = ROOT / "tests" / "golden" / "runs" / "ppo_two_seeds"
    numbers, refused = np.random.default_rng(0), 0
    (tmp_path / "run").mkdir()
    for trial in range(150):
        for name in ("config.json", "metrics.jsonl"):
            content = bytearray((golden / name).read_bytes())
            for _ in range(int(numbers.integers(0, 4))):
                place, letters = int(numbers.integers(len(content))), b'0-[]{}",:eNn\xff\x00'
                content[place : place + int(numbers.integers(0, 3))] = letters[int(numbers.integers(len(letters))) :][
                    :1
                ]
            if trial % 5 == 0:
                content = content[: int(numbers.integers(len(content)))]
            (tmp_path / "run" / name).write_bytes(content)
        try:
            found = compare([tmp_path / "run"], by="run,gamma")
            found.curves, found.profiles, found.to_csv("curves"), found.to_latex(), found._repr_html_()
        except shoal.ShoalError:
            refused += 1
    assert 30 < refused < 150


@pytest.mark.parametrize("env", [None, 3, [], {"a": 1}, "x" * 10_000, "a\nb", True])
def test_strange_settings_are_shown_in_short(env):
    (name,) = compare([constant("a", (1.0, 2.0), env=env)]).panels
    assert len(name) <= 80
    assert name.isprintable()


def test_run_folders_are_read():
    runs = ROOT / "tests" / "golden" / "runs"
    two = read_compared(runs / "ppo_two_seeds")
    assert (two.algorithm, two.seeds, two.task) == ("ppo", (3, 4), {"env": "cards/kuhn"})
    lines = [json.loads(line) for line in (runs / "ppo_two_seeds" / "metrics.jsonl").read_text().splitlines()]
    final = compare([runs / "ppo_two_seeds"], metric="return/player_0").final["ppo"]
    last = [line["return/player_0"] for line in lines if line["env_steps"] > 0.9 * lines[-1]["env_steps"]]
    assert final.mean == pytest.approx(np.mean(last))
    tuned = read_compared(runs / "pbt")
    assert tuned.members
    assert tuned.series("return").values.shape[1] == 1  # members are no seeds
    assert tuned.setting("pbt.members", 0) == 4
    assert tuned.algorithm == "ppo by pbt"
    assert read_compared(runs / "evolution_ga").algorithm == "ga"  # what its experiment would learn with is not used


@pytest.mark.parametrize("name", NAMES)
def test_algorithms_have_the_names_that_the_field_knows(name):
    """The table of variants, which needs no JAX, agrees with `name_of`."""
    algorithm = named(name)
    plain = Experiment("mpe/simple_spread", learners={"team": Learner(algorithm)}).to_dict()
    assert ComparedRun("a", flatten(plain), (0,), []).algorithm == name_of(algorithm)


def test_jax_is_not_imported():
    path = KEPT / "mappo-simple_spread.json"
    code = (
        "import sys, shoal\n"
        f"found = shoal.compare([{str(path)!r}], metric='eval/return')\n"
        "found.curves, found.profiles, found.improvement, found.to_csv(), found.to_latex(), found.to_marl_eval()\n"
        "print('jax' in sys.modules, 'matplotlib' in sys.modules, list(found.final))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False", "False", "['mappo']"]


@pytest.fixture(scope="module")
def spread():
    """Seventeen algorithms, five seeds each, as kept by `benchmarks/algorithms_learn.py`."""
    return compare(sorted(KEPT.glob("*-simple_spread*.json")), metric="eval/return/agent", by="preset,total_env_steps")


def test_the_table_of_algorithms_is_reproduced_to_the_digit(spread):
    """Each line of `table.md` about simple_spread, from the seeds alone: IQM, interval and worst seed."""
    lines = [line for line in (KEPT / "table.md").read_text().splitlines() if "/simple_spread |" in line]
    assert len(lines) == len(spread.final) == 34
    for line in lines:
        preset, steps, _, _, middle, between, worst = (cell.strip() for cell in line.strip("|").split("|"))
        group = f"{preset}, {steps.replace(',', '')}"
        found = spread.final[group]
        assert (f"{found.iqm:.1f}", f"{found.low:.1f} to {found.high:.1f}") == (middle, between)
        assert f"{found.worst:.1f}" == worst
        assert f"| {group} | 5 | {middle} | {between} |" in spread.to_markdown(digits=1)


def test_the_benchmarks_table_is_made_by_the_comparison_to_the_letter():
    location = importlib.util.spec_from_file_location("algorithms_learn", ROOT / "benchmarks" / "algorithms_learn.py")
    module = importlib.util.module_from_spec(location)
    location.loader.exec_module(module)
    assert module.table(sorted(KEPT.glob("*.json"))) == (KEPT / "table.md").read_text()
    assert (module.iqm, module.interval) == (iqm, interval)


def _rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_keeps_every_digit(spread):
    rows = _rows(spread.to_csv())
    assert [row["group"] for row in rows] == list(spread.final)
    for row in rows:
        final = spread.final[row["group"]]
        assert {name: float(row[name]) for name in ("iqm", "low", "high", "mean")} == {
            name: getattr(final, name) for name in ("iqm", "low", "high", "mean")
        }
    scores = _rows(spread.to_csv("scores"))
    assert [float(row["score"]) for row in scores] == spread.table["score"].tolist()
    assert len(_rows(spread.to_csv("improvement"))) == 34 * 33
    with pytest.raises(UnknownNameError, match=r"unknown table 'finals'. Did you mean 'final'"):
        spread.to_csv("finals")


def test_csv_of_names_that_need_quotes_and_of_what_is_not_known():
    found = compare([constant('a "b", c', (1.0,))], by="run")
    (row,) = _rows(found.to_csv())
    assert (row["group"], row["low"], row["iqm"]) == ('a "b", c', "", "1.0")
    assert [row["low"] for row in _rows(found.to_csv("curves"))] == [""] * 10
    assert {row["low"] for row in _rows(found.to_csv("profile"))} == {""}


def test_latex_is_escaped(tmp_path):
    assert escape_latex("a_b & 50% {x} #1 $y$ ~^\\") == (
        r"a\_b \& 50\% \{x\} \#1 \$y\$ \textasciitilde{}\textasciicircum{}\textbackslash{}"
    )
    runs = [constant("x_1", (-1.0, -2.0)), constant("50%", (-5.0, -6.0), algorithm="dqn")]
    text = compare(runs, by="run").to_latex()
    assert r"x\_1 & 2 & $\mathbf{-1.50}$ & [$-2.00$, $-1.00$] & $-1.50$ & $-1.50$ \\" in text
    assert r"50\% & 2 & $-5.50$ & [" in text
    (file,) = compare(runs, by="run").save(tmp_path / "final.tex", digits=1)
    assert r"50\% & 2 & $-5.5$ & [" in file.read_text()
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
    assert {line.count(" & ") for line in text.splitlines() if line.endswith(r"\\")} == {5}


def test_markup_in_names_is_escaped():
    found = compare([constant("<b>|x", (1.0, 2.0))], by="run")
    assert "<b>" not in found._repr_html_()
    assert "&lt;b&gt;|x" in found._repr_html_()
    assert r"| <b>\|x | 2 |" in found.to_markdown()


def test_marl_eval_has_its_structure():
    """Environment, task, algorithm, run, step; the last entry of a run is its absolute metrics."""
    runs = [make_run("a", [(1.0, 2.0), (3.0, 4.0)], env="Mpe/Spread"), constant("b", (5.0, 6.0), env="Mpe/Spread")]
    runs[1] = make_run("b", [(5.0, 6.0), (7.0, 8.0)], env="Mpe/Spread", algorithm="dqn")
    data = compare(runs).to_marl_eval()
    assert json.loads(json.dumps(data)) == data
    assert data == {
        "mpe": {
            "spread": {
                "ppo": {
                    "run_1": {
                        "step_1": {"step_count": 10, "return": [1.0]},
                        "step_2": {"step_count": 20, "return": [3.0]},
                        "absolute_metrics": {"return": [3.0]},
                    },
                    "run_2": {
                        "step_1": {"step_count": 10, "return": [2.0]},
                        "step_2": {"step_count": 20, "return": [4.0]},
                        "absolute_metrics": {"return": [4.0]},
                    },
                },
                "dqn": {
                    "run_1": {
                        "step_1": {"step_count": 10, "return": [5.0]},
                        "step_2": {"step_count": 20, "return": [7.0]},
                        "absolute_metrics": {"return": [7.0]},
                    },
                    "run_2": {
                        "step_1": {"step_count": 10, "return": [6.0]},
                        "step_2": {"step_count": 20, "return": [8.0]},
                        "absolute_metrics": {"return": [8.0]},
                    },
                },
            }
        }
    }


def test_marl_eval_needs_as_many_seeds_of_each():
    found = compare([constant("a", (1.0, 2.0)), constant("b", (1.0,), algorithm="dqn")])
    with pytest.raises(OptionError, match="as many seeds of every group in test/world, and there are: ppo 2, dqn 1"):
        found.to_marl_eval()


def test_what_a_comparison_is_called():
    found = compare([constant("a", (1.0, 2.0)), constant("b", (3.0, 4.0), algorithm="dqn")])
    assert repr(found) == "Comparison(return; 2 groups by algorithm; 4 seeds; test/world: dqn is best, IQM 3.5)"
    assert repr(compare([constant("a", (1.0,))])).startswith("Comparison(return; 1 group by algorithm; 1 seed; ")
    assert list(found.table) == ["env", "group", "run", "seed", "env_steps", "score"]
    assert found.table["run"].tolist() == ["a", "a", "b", "b"]


def test_a_folder_gets_everything(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install matplotlib")
    found = compare([constant("a", (1.0, 2.0)), constant("b", (3.0, 4.0), algorithm="dqn")], baseline="ppo")
    files = {path.name for path in found.save(tmp_path / "out")}
    pictures = {f"{kind}.{s}" for kind in ("curves", "final", "profile", "improvement") for s in ("png", "svg", "pdf")}
    assert files == pictures | {f"{table}.csv" for table in TABLES} | {"final.md", "final.tex", "marl_eval.json"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == files
    assert "better than ppo" in (tmp_path / "out" / "final.md").read_text()
    assert json.loads((tmp_path / "out" / "marl_eval.json").read_text()) == found.to_marl_eval()
    for name, start in (("curves.png", b"\x89PNG"), ("final.pdf", b"%PDF"), ("profile.svg", b"<?xml")):
        assert (tmp_path / "out" / name).read_bytes().startswith(start)


def test_files_that_cannot_be_written(tmp_path):
    found = compare([constant("a", (1.0, 2.0))])
    with pytest.raises(
        OptionError, match=r"must end in one of .png, .svg, .pdf, .csv, .tex, .md, .json, or be a folder"
    ):
        found.save(tmp_path / "x.doc")
    with pytest.raises(RunError, match="cannot write"):
        found.save(tmp_path / "nothing" / "x.csv")
    with pytest.raises(UnknownNameError, match=r"unknown picture 'curve'. Did you mean 'curves'"):
        found.save(tmp_path / "x.png", "curve")


def test_a_run_that_is_rarely_measured_is_judged_by_the_newest_value_before():
    rare = make_run("b", [(1.0,), (5.0,), (9.0,)], steps=(40, 80, 120), algorithm="dqn")
    found = compare([constant("a", (2.0,)), rare], at=100)
    np.testing.assert_array_equal(found.table["score"], [2.0, 5.0])
    assert "b has no return in the last tenth before 100 env steps: that at 80 counts." in found.notes


def test_runs_of_one_group_with_other_settings_are_told():
    learners = {"team": {"algorithm": {"name": "ppo", "gamma": 0.99}}}
    runs = [constant("a", (1.0, 2.0)), constant("b", (2.0, 3.0), seed=2), constant("c", (4.0, 5.0), learners=learners)]
    told = "runs of ppo differ in gamma: their seeds count together; --by gamma or --by run."
    assert told in compare(runs).notes
    assert told not in compare(runs[:2]).notes
    assert not any("differ in" in note for by in ("gamma", "run") for note in compare(runs, by=by).notes)


def test_groups_have_labels_everywhere():
    runs = [constant("a", (1.0, 2.0, 3.0)), constant("b", (2.0, 3.0, 4.0), algorithm="dqn")]
    found = compare(runs, labels={"ppo": "IPPO"}, baseline="IPPO")
    assert list(found.final) == list(found.curves) == list(found.profiles) == ["IPPO", "dqn"]
    assert found.improvement.groups == ("IPPO", "dqn")
    assert list(found.table["group"]) == ["IPPO"] * 3 + ["dqn"] * 3
    assert found.final["IPPO"] == compare(runs).final["ppo"]
    assert compare(runs, labels={"ppo": "IPPO"}, baseline="ppo").baseline == "IPPO"


def test_baseline_in_tables():
    runs = [constant("a", (1.0, 2.0, 3.0)), constant("b", (2.0, 3.0, 4.0), algorithm="dqn")]
    # dqn wins 6 of 9, two ties
    row = compare(runs, baseline="ppo").to_markdown().splitlines()[-1]
    assert row.startswith("| dqn | 3 | 3.00 |")
    assert row.split("|")[-2].strip().startswith(f"{(6 + 0.5 * 2) / 9:.2f} (")
