"""The pages that list things list all there are: errors, exit codes, environment variables, metrics."""

import ast
import json
import re
from pathlib import Path

import pytest

import shoal
from shoal.cli import app, leaving

from .pages import ROOT, read

SOURCES = sorted((ROOT / "src").rglob("*.py"))
VARIABLE = re.compile(r"[A-Z][A-Za-z_]*_[A-Za-z_]+|PYTHON[A-Z]+")
PREFIXES = ("SHOAL_", "JAX_", "XLA_", "RAY_", "XDG_", "SDL_", "PYGAME_", "PYTHON")
"""Of variables that are read through a constant, so that their names are strings elsewhere in the module."""
NOT_VARIABLES = {"RAY_CLUSTERS_ENV_VAR"}


def variables(path: Path) -> set[str]:
    """Names of environment variables in a module that uses the environment."""
    text = path.read_text()
    tree = ast.parse(text)
    words = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    names = set(re.findall(r"environ(?:\.\w+)?[\[(]\s*\"(\w+)\"", text))
    if re.search(r"\benviron\b|\bgetenv\b", text) or path.name == "processes.py":
        names |= {word for word in words if VARIABLE.fullmatch(word) and word.startswith(PREFIXES)}
    return names - NOT_VARIABLES


def test_every_environment_variable_is_explained():
    found = {name for path in SOURCES for name in variables(path)}
    assert {"SHOAL_DEBUG", "XDG_CACHE_HOME", "JAX_COORDINATOR_ADDRESS", "RAY_ADDRESS", "PYTHONSAFEPATH"} <= found
    text = read("reference/environment-variables.md")
    assert not [name for name in sorted(found) if f"`{name}`" not in text]


def error_classes() -> set[str]:
    """Classes that derive from `ShoalError`, by their bases in the source."""
    bases = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = {base.id for base in node.bases if isinstance(base, ast.Name)}
    found = {"ShoalError"}
    while more := {name for name, parents in bases.items() if parents & found} - found:
        found |= more
    return found


def test_every_error_and_exit_code_is_explained():
    text = read("reference/errors.md")
    rows = "\n".join(line.split("|")[1] for line in text.splitlines() if line.startswith("|"))
    assert error_classes() == set(re.findall(r"`(\w+)`", rows))
    for code in (app.DONE, app.WRONG, leaving.INTERRUPTED, app.BROKEN_PIPE):
        assert f"| {code} |" in text


def listed_metrics() -> list[re.Pattern]:
    """The metrics of the page; a name in capitals stands for any."""
    rows = [line.split("|")[1] for line in read("reference/run-folder.md").splitlines() if line.startswith("| `")]
    names = [name for row in rows for name in re.findall(r"`([\w/]+)`", row)]
    return [re.compile(re.sub(r"\b(GROUP|POLICY|NAME)\b", r"[^/]+", name)) for name in names]


def unexplained(names) -> list[str]:
    return sorted(name for name in set(names) if not any(one.fullmatch(name) for one in listed_metrics()))


SMALL = {"total_env_steps": 320, "num_envs": 8, "num_steps": 20, "hidden": (4,), "progress": False}
REPLAY = {"warm_up": 8, "buffer_size": 400}


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("ppo", {"eval_every": 160}),
        pytest.param("dqn", REPLAY, marks=pytest.mark.slow),
        pytest.param("sac", REPLAY, marks=pytest.mark.slow),
        *(pytest.param(name, {}, marks=pytest.mark.slow) for name in ("a2c", "impala", "pqn", "vdac")),
        *(pytest.param(name, REPLAY, marks=pytest.mark.slow) for name in ("qmix", "maddpg", "maac")),
    ],
)
def test_every_metric_of_a_training_is_explained(algorithm, options):
    run = shoal.train("mpe/simple_spread", algorithm=algorithm, **SMALL, **options)
    names = {*map(str, run.metrics["name"])}
    assert {"return", "return/agent", "length", "world/distance"} <= names
    assert not unexplained(names)


def test_a_metric_that_is_missing_is_noticed():
    assert unexplained({"return/agent", "surprise/agent"}) == ["surprise/agent"]


def metrics_of(folder: Path) -> set[str]:
    return {name for line in (folder / "metrics.jsonl").read_text().splitlines() for name in json.loads(line)}


def test_every_metric_of_psro_is_explained(tmp_path):
    shoal.psro("cards/kuhn", tmp_path / "psro", iterations=1, oracle="exact")
    names = metrics_of(tmp_path / "psro")
    assert "nash_conv" in names
    assert not unexplained(names)


@pytest.mark.slow
def test_every_metric_of_pbt_and_evolution_is_explained(tmp_path):
    shoal.pbt(
        "mpe/simple_spread", tmp_path / "pbt", learning_rate=shoal.log(1e-4, 1e-2), members=2, interval=1, **SMALL
    )
    shoal.evolve("control/cartpole", tmp_path / "es", strategy="open_es", population=8, generations=1, max_steps=20)
    names = metrics_of(tmp_path / "pbt") | metrics_of(tmp_path / "es")
    assert {"pbt/score", "fitness/best"} <= names
    assert not unexplained(names)
