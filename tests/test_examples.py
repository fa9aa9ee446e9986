"""The examples run, and what the documentation says is so: its code, its commands, its tables, its links."""

import contextlib
import io
import re
import runpy
import shlex
from pathlib import Path

import pytest

import shoal
from shoal.algorithms import ALGORITHMS
from shoal.cli import main
from shoal.cli.app import COMMANDS, FAMILIES
from shoal.cli.arguments import parse
from shoal.cli.commands.bench import AutoscaleOptions, BenchTrainOptions
from shoal.cli.commands.catalogue import NoteOptions, RemoveOptions, TagOptions
from shoal.cli.commands.cluster import ScaleOptions, StatusOptions
from shoal.cli.commands.compare import CompareOptions
from shoal.cli.commands.completion import SCRIPTS
from shoal.cli.commands.evaluate import EvalOptions
from shoal.cli.commands.evolve import parse_plan
from shoal.cli.commands.export import ExportOptions
from shoal.cli.commands.match import MatchOptions
from shoal.cli.commands.play import PlayOptions
from shoal.cli.commands.psro import LeagueOptions, PsroOptions, translate_arguments
from shoal.cli.commands.settings import DiffOptions, ShowOptions
from shoal.cli.commands.sweep import SweepOptions
from shoal.cli.commands.tournament import TournamentOptions
from shoal.cli.commands.train import ResumeOptions, TrainOptions
from shoal.cli.commands.ui import UIOptions
from shoal.cli.commands.watch import WatchOptions, name_films
from shoal.cli.targets import parse_target, world_options
from shoal.core.registry import import_file, world_class
from shoal.testing import check_env
from shoal.training.experiment import Experiment

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
README = (ROOT / "README.md").read_text()
CODE = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def printed(run):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        run()
    return out.getvalue()


def table(page, heading):
    """The rows of the first table below a heading of a page, without its first two lines."""
    lines = (ROOT / "docs" / page).read_text().split(f"{heading}\n", 1)[1].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_short(path):
    assert len(path.read_text().splitlines()) <= 60


def test_own_world():
    text = printed(lambda: runpy.run_path(str(ROOT / "examples" / "own_world.py"), run_name="__main__"))
    assert "Owl keeps the environment contract" in text
    first, last = map(float, re.search(r"([\d.]+) at first, ([\d.]+) in the end", text).groups())
    assert first < 2 < 2.5 < last


@pytest.mark.slow
def test_notebook():
    module = runpy.run_path(str(ROOT / "examples" / "notebook.py"))
    found = {}
    text = printed(lambda: found.update(module["main"](total_env_steps=100_000)))
    assert re.search(r"trained: mean return \(95 % interval\): agent .*; 2 seeds x 500 episodes", text)
    assert found["trained"] > found["random"] + 10
    written = {path.name for path in found["folder"].iterdir()}
    assert {"metrics.csv", "return.png", "episode.html", "best"} <= written


def test_sb3_ppo():
    pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is not installed: pip install stable-baselines3")
    module = runpy.run_path(str(ROOT / "examples" / "sb3_ppo.py"))
    scores = []
    assert "of 500" in printed(lambda: scores.append(module["main"]()))
    assert scores[0] > 200


def test_cleanrl_style_ppo():
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    pytest.importorskip("gymnasium", reason="Gymnasium is not installed: pip install gymnasium")
    module = runpy.run_path(str(ROOT / "examples" / "cleanrl_style_ppo.py"))
    returns = []
    assert "of 500" in printed(lambda: returns.extend(module["main"]()))
    assert sum(returns) / len(returns) > 100


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of parts of TorchRL to each other
def test_torchrl_collector():
    pytest.importorskip("torchrl", reason="TorchRL is not installed: pip install torchrl")
    module = runpy.run_path(str(ROOT / "examples" / "torchrl_collector.py"))
    rewards = []
    assert "in the end" in printed(lambda: rewards.extend(module["main"]()))
    assert sum(rewards[-3:]) > sum(rewards[:3]) + 0.1


def test_own_world_of_the_readme(tmp_path):
    file, run = tmp_path / "meet.py", tmp_path / "run"
    file.write_text(CODE[1])
    import_file(str(file))
    check_env(world_class("my/meet")(), num_steps=30, num_envs=2)
    small = ["--num-envs", "8", "--num-steps", "25", "--total-env-steps", "400", "--env.num-agents", "6"]
    small += ["--algo", "a2c", "--algo.network.hidden", "4"]
    text = printed(lambda: main(["train", "my/meet", "--import", str(file), *small, "--run-dir", str(run)]))
    assert "next: shoal watch" in text
    written = {path.name for path in run.iterdir()}
    promised = {row[0].strip("`/") for row in table("reference/run-folder.md", "# The run folder")}
    assert written == promised


def test_python_of_the_readme():
    text = printed(lambda: exec(compile(CODE[0], "README.md", "exec"), {}))
    found = re.fullmatch(r"mean return \(95 % interval\): agent (-[\d.]+) \(.*\); 2 seeds x 1000 episodes\n", text)
    assert float(found[1]) > -70


def commands():
    text = README + (ROOT / "docs" / "commands.md").read_text()
    lines = re.findall(r"^\$ (shoal .*)$", text, re.MULTILINE)
    found = [part for line in lines for part in line.split("#")[0].split(";")]
    return [shlex.split(command)[1:] for command in found]


@pytest.mark.parametrize("words", [words for words in commands() if "--import" not in words], ids=" ".join)
def test_commands_can_be_parsed(words):
    words = ["a-run" if word == "runs/..." else word for word in words]
    match words:
        case ["train", *rest]:
            parse_target(TrainOptions, rest, "shoal train")
        case ["sweep", *rest]:
            parse_target(SweepOptions, rest, "shoal sweep")
        case ["psro" | "league" as name, *rest]:
            parse_target(PsroOptions if name == "psro" else LeagueOptions, translate_arguments(rest), f"shoal {name}")
        case ["evolve", *rest]:
            parse_plan(rest)
        case ["population", *_] | ["pbt", *_]:
            pass
        case ["ui", *rest]:
            parse(UIOptions, rest, "shoal ui")
        case ["cluster", "status" | "advise", *rest]:
            parse(StatusOptions, rest, "shoal cluster")
        case ["cluster", "scale", *rest]:
            parse(ScaleOptions, rest, "shoal cluster scale")
        case ["bench", "train", *rest]:
            parse_target(BenchTrainOptions, rest, "shoal bench train")
        case ["play", target, *rest]:
            parse(world_options(PlayOptions, Experiment(target)), rest, f"shoal play {target}")
        case ["compare", *rest]:
            parse(CompareOptions, rest, "shoal compare")
        case ["bench", "autoscale", *rest]:
            parse_target(AutoscaleOptions, rest, "shoal bench autoscale")
        case ["resume" | "eval" | "watch" | "export" as name, *rest]:
            options = {"resume": ResumeOptions, "eval": EvalOptions, "watch": WatchOptions, "export": ExportOptions}
            parse(options[name], name_films(rest) if name == "watch" else rest, f"shoal {name}")
        case ["runs", "tag" | "untag", *rest]:
            parse(TagOptions, rest, "shoal runs")
        case ["runs", "note", *rest]:
            parse(NoteOptions, rest, "shoal runs")
        case ["runs", "remove", *rest]:
            parse(RemoveOptions, rest, "shoal runs")
        case ["show", *rest]:
            parse(ShowOptions, rest, "shoal show")
        case ["diff", *rest]:
            parse(DiffOptions, rest, "shoal diff")
        case ["completion", shell]:
            assert shell in SCRIPTS
        case ["match", *rest]:
            parse(MatchOptions, rest, "shoal match")
        case ["tournament", *rest]:
            parse(TournamentOptions, rest, "shoal tournament")
        case _:
            assert " ".join(words) in COMMANDS or words[:3] == ["bench", "env", "tag/grid"]


def test_every_command_is_shown():
    shown = {" ".join(words[: 2 if words[0] in FAMILIES else 1]) for words in commands()}
    assert shown == set(COMMANDS)


def test_the_table_of_worlds():
    """Every world is in it, under its family, and nothing else is."""
    named = set()
    for family, worlds, _ in table("worlds/README.md", "## Families"):
        family = family.strip("`")
        named |= {family + name for name in re.findall(r"`([^`]+)`", worlds)} if family.endswith("/") else {family}
    assert named == {id for id in shoal.ids() if world_class(id).__module__.startswith("shoal.envs.")}


def test_the_table_of_algorithms():
    """Every class is on a page."""
    named = [
        name for row in table("algorithms/index.md", "# Algorithms")[:3] for name in re.findall(r"`(\w+)`", row[1])
    ]
    assert sorted(named) == sorted(cls.__name__ for cls in ALGORITHMS.values())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = page.read_text()
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text) + re.findall(r"(?:src|srcset)=\"([^\"]+)\"", text)
    for link in links:
        assert link.startswith("https://") or (page.parent / link).exists(), link
    for page_link, anchor in re.findall(r"\]\(([^)#\s]*)#([^)]*)\)", text):
        target = (page.parent / page_link if page_link else page).read_text()
        headings = [re.sub(r"[^\w\- ]", "", title).lower() for title in re.findall(r"^#+ (.*)$", target, re.MULTILINE)]
        assert anchor in [title.replace(" ", "-") for title in headings], anchor


def test_pictures_are_small():
    for picture in (ROOT / "docs" / "images").iterdir():
        assert picture.stat().st_size < 200_000, picture


def test_the_readme_is_short_and_begins_with_what_it_is():
    assert len(" ".join(line for line in README.splitlines() if line[:1] != "|").split()) <= 700
    first = README[: README.index("## ")]
    for part in ("demo-light.webp", "pip install 'shoal-rl", "$ shoal train demo", "$ make demo", "$ make test"):
        assert part in first
