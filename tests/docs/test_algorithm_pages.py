"""The pages of the algorithms: their tables are those of the code, their commands can be parsed, their code runs."""

import dataclasses
import importlib.util
import re
import shlex
from pathlib import Path

import jax
import numpy as np
import pytest

import shoal
from shoal import presets
from shoal.algorithms import ALGORITHMS, DQN, SAC
from shoal.cli.commands.sweep import SweepOptions
from shoal.cli.run_options import TrainOptions
from shoal.cli.targets import parse_target
from shoal.networks.torsos import Network
from shoal.ops.replay import num_bytes
from shoal.training.fused import make_fused_program
from shoal.training.run import load_policies

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "algorithms"
PAGES = {file.stem: file.read_text() for file in FOLDER.glob("*.md")}
FAMILIES = ("policy-gradient", "values", "actor-critic")
COMMANDS = sorted({line for text in PAGES.values() for line in re.findall(r"^\$ (shoal .*)$", text, re.MULTILINE)})
SMALL = {"num_envs": 8, "num_steps": 4, "total_env_steps": 64, "episodes": 4, "buffer_size": 400, "warm_up": 8}


@pytest.fixture(scope="module")
def builder():
    spec = importlib.util.spec_from_file_location("build_algorithms", ROOT / "docs" / "build_algorithms.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES)
def test_tables_are_those_of_the_code(builder, page):
    assert builder.filled(PAGES[page]) == PAGES[page], "run python docs/build_algorithms.py"


def test_every_algorithm_and_every_option_is_listed_once(builder):
    listed = [name for page in FAMILIES for name in builder.documented(PAGES[page])]
    assert sorted(listed) == sorted(cls.__name__ for cls in ALGORITHMS.values())
    assert builder.documented(PAGES["index"]) == ["Network"]
    rows = re.findall(r"^\| `(\w+)` \|", PAGES["values"], re.MULTILINE)
    assert {field.name for field in dataclasses.fields(DQN)} <= set(rows)


def test_a_table_shows_defaults_and_comments(builder):
    table = builder.options_table([builder.CLASSES["DQN"], builder.CLASSES["PQN"]]).splitlines()
    assert "| `anneal` | `False` | `True` | learning rate falls linearly to 0 |" in table
    assert any(line.startswith("| `trace_lambda` | – | `0.65` |") for line in table)
    assert table[-1].startswith("| `network` | `Network()` | `Network(hidden=(128, 128), activation='relu', layer_norm")


@pytest.mark.parametrize("name", sorted(cls.__name__ for cls in ALGORITHMS.values()))
def test_no_option_is_without_a_word(builder, name):
    cls = builder.CLASSES[name]
    assert set(builder.comments(cls)) >= {field.name for field in dataclasses.fields(cls)}


def test_a_page_that_is_out_of_date_is_noticed(builder):
    changed = PAGES["values"].replace("| `gamma` | `0.99` |", "| `gamma` | `0.9` |")
    assert changed != PAGES["values"]
    assert builder.filled(changed) == PAGES["values"]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", PAGES[page]):
        path, _, anchor = target.partition("#")
        if "benchmarks/results/algorithms" in path:  # made by benchmarks/algorithms_learn.py
            continue
        text = (FOLDER / path).read_text() if path else PAGES[page]
        heads = [
            re.sub(r"[^\w\- ]", "", head).lower().replace(" ", "-") for head in re.findall(r"^#+ (.*)$", text, re.M)
        ]
        assert not anchor or anchor in heads, f"{target}: {heads}"


@pytest.mark.parametrize("page", [*FAMILIES, "index", "replay"])
def test_there_is_a_place_for_evidence(page):
    _, _, evidence = PAGES[page].partition("\n## Evidence\n")
    assert "(../../benchmarks/results/algorithms/table.md)" in evidence


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_commands_make_experiments(command):
    _, verb, *words = shlex.split(command)
    if verb == "presets":
        assert not words
        return
    if "--help" in words:
        words.remove("--help")
    options = {"train": TrainOptions, "sweep": SweepOptions}[verb]
    experiment = parse_target(options, words, f"shoal {verb}").experiment
    for algorithm, spec in experiment.setup.learners.values():
        jax.eval_shape(lambda a=algorithm, s=spec: a.init(jax.random.key(0), s))


def blocks(page: str) -> list[str]:
    """The Python of a page, with small sizes in place of its own."""
    code = re.findall(r"```python\n(.*?)```", PAGES[page], re.DOTALL)
    for name, size in SMALL.items():
        code = [re.sub(rf"\b{name}=[\d_]+", f"{name}={size}", block) for block in code]
    return code


@pytest.mark.slow
def test_a_team_by_ppo_against_a_frozen_one_by_dqn(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("index")
    names = {}
    exec(compile(code, "index.md", "exec"), names)
    before = load_policies(tmp_path / "runs" / "hunters")[1]
    after = names["result"].policies
    weights = [jax.tree.leaves(policies["adversary"]) for policies in (before, after)]
    assert all(np.array_equal(a, b) for a, b in zip(*weights, strict=True))
    moved = [jax.tree.leaves(policies["agent"].weights) for policies in (before, after)]
    assert not all(np.array_equal(a, b) for a, b in zip(*moved, strict=True))
    assert "'adversary'" in capsys.readouterr().out


@pytest.mark.parametrize("page", [page for page in PAGES if page not in ("index", "replay") and blocks(page)])
def test_other_code_builds(page, monkeypatch):
    built = []

    def record(experiment, folder):
        long_enough = dataclasses.replace(experiment, total_env_steps=10_000)  # for any warm-up
        built.append(make_fused_program(long_enough).shapes())

    monkeypatch.setattr(shoal, "train", record)
    for code in blocks(page):
        exec(compile(code, f"{page}.md", "exec"), {})
    assert built
    for shapes in built:
        assert set(shapes.memory) == {"leadadversary", "adversary", "agent"}


def test_the_replay_is_as_large_as_the_page_says(capsys):
    (code,) = blocks("replay")
    exec(compile(code, "replay.md", "exec"), {})
    assert capsys.readouterr().out == "891 bytes per step, 85 MiB in all\n"
    gru = {"network": Network(recurrent="gru", recurrent_size=64), "sequence": 8, "burn_in": 4}
    said = {459: [DQN(), SAC()], 891: [DQN(mixer="monotonic"), SAC(critic="global")], 1227: [DQN(**gru)]}
    said[2763] = [SAC(**gru)]
    _, spec = presets.get("iql/simple_spread").setup.learners["team"]
    for size, learners in said.items():
        assert f"| {size:,} |" in PAGES["replay"]
        assert [num_bytes(learner.replay_shape(spec)[0], 1, 1) for learner in learners] == [size] * len(learners)
    assert DQN().replay_shape(spec)[1:] == (1565, 64)
