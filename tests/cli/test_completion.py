"""What Tab offers, asked of the completer itself and of real shells."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.cli.app import COMMANDS
from shoal.cli.completion import MOST_FOLDERS, SCRIPTS, complete
from shoal.cli.index import read_index

from .conftest import assert_refused


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A working directory with two runs, a sweep, and things that are none."""
    for name in ("runs/one", "runs/two words", "sweeps/three", "elsewhere/four"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "runs" / "empty").mkdir()
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "elsewhere" / "four")
    (tmp_path / "runs" / "odd\nname").mkdir()
    (tmp_path / "runs" / "odd\nname" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tra", ["train"]),
        ("be", ["bench"]),
        ("bench ", ["env", "train", "suite", "autoscale"]),
        ("bench t", ["train"]),
        ("cluster a", ["advise"]),
        ("runs no", ["note"]),
        ("runs --st", ["--status"]),
        ("runs pong --al", ["--algo"]),
        ("runs pong ", []),
        ("--ver", ["--version"]),
        ("nonsense ", []),
        ("bench nonsense ", []),
        ("train mpe/simple_ta", ["mpe/simple_tag"]),
        ("train --seed 3 qmix/simple_sp", ["qmix/simple_speaker_listener", "qmix/simple_spread"]),
        ("train demo mpe/simple_ta", []),
        ("bench env tag/g", ["tag/grid"]),
        ("presets qmix/simple_spr", ["qmix/simple_spread"]),
        ("algos map", ["mappo"]),
        ("envs --ki", ["--kind"]),
        ("envs --kind c", ["cooperative", "competitive"]),
        ("envs --kind=m", ["--kind=mixed"]),
        ("envs --kind = m", ["mixed"]),
        ("envs --kind =", ["all", "cooperative", "competitive", "mixed"]),
        ("completion ", ["bash", "zsh", "fish"]),
        ("help dema", []),
        ("help doc", ["doctor"]),
        ("help cluster s", ["status", "scale"]),
        ("train demo --algo mapp", ["mappo"]),
        ("train mpe/simple_spread --env.num-a", ["--env.num-agents"]),
        ("train --env.num-a", []),
        ("train mpe/simple_spread --algo.clip", ["--algo.clip-eps"]),
        ("train mpe/simple_spread --algo dqn --algo.clip", []),
        ("train mpe/simple_spread --algo dqn --algo.buff", ["--algo.buffer-size"]),
        ("train mpe/simple_spread --algo=dqn --algo.buff", ["--algo.buffer-size"]),
        ("train mpe/simple_spread --algo.network.recurrent ", ["none", "gru", "lstm", "min_gru"]),
        ("train mpe/simple_tag --learners.agent.fr", ["--learners.agent.frozen"]),
        ("train mpe/simple_tag --algo maddpg --learners.a", []),
        ("train mpe/simple_spread --learners.", []),
        ("train mpe/simple_spread --rand", []),
        ("train swarm/coverage --rand", ["--randomise"]),
        ("train mpe/simple_spread --env-w", []),
        ("train gymnasium:CartPole-v1 --env-w", ["--env-workers"]),
        ("psro cards/leduc --num-s", ["--num-steps"]),
        ("psro cards/leduc --meta", ["--meta-solver"]),
        ("evolve control/cartpole --strategy e", ["erl"]),
        ("train demo --wrap fra", ["frame_stack"]),
        ("train demo --sharing g", ["group"]),
        ("train demo --help", ["--help", "--help-all"]),
        ("train demo --run-dir ", []),
        ("doctor ", []),
        ("version --", ["--help", "--help-all"]),
    ],
)
def test_what_is_offered(line, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert complete(line.split(" ")) == expected


def test_every_command_is_offered_and_answers_everywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert {*complete([""])} == {name.split()[0] for name in COMMANDS} | {"--help", "--version"}
    assert complete([]) == complete([""])
    for name in COMMANDS:
        for rest in ([""], ["-"], ["x", ""], ["--seed", ""], ["--=", "="], ["=", "="], ["mpe/simple_tag", "--"]):
            offered = complete([*name.split(), *rest])
            assert all(isinstance(word, str) and word.startswith(rest[-1].strip("=")) for word in offered)


def test_run_folders(runs):
    mine = ["runs/one", "runs/two words", "sweeps/three"]
    assert complete(["resume", ""]) == mine
    assert complete(["cluster", "status", "runs/t"]) == ["runs/two words"]
    assert complete(["eval", "elsewhere/"]) == ["elsewhere/four"]
    assert complete(["watch", str(runs / "runs" / "o")]) == [str(runs / "runs" / "one")]
    assert complete(["train", "runs/o"]) == ["runs/one"]
    assert complete(["resume", "nowhere/x"]) == []
    assert complete(["resume", "runs/one", ""]) == []


MINE = ["runs/one", "runs/two words", "sweeps/three"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("compare runs/one ", MINE[1:]),
        ("compare --by algorithm runs/one sweeps/three ", ["runs/two words"]),
        ("tournament sweeps/three runs", MINE[:2]),
        ("watch runs/one s", ["sweeps/three"]),
        ("runs remove runs/one r", ["runs/two words"]),
        ("diff runs/one runs/", ["runs/two words"]),
        ("diff tag/grid tag/g", []),
        ("diff runs/one tag/g", ["tag/grid"]),
        ("diff runs/one sweeps/three ", []),
        ("runs tag runs/one ", []),
        ("runs note runs/one ", []),
        ("match ", MINE),
        ("match left=", ["left=random", *(f"left={run}" for run in MINE)]),
        ("match left = runs/o", ["runs/one"]),
        ("match left = runs/one right =", ["random", *MINE]),
        ("match left=runs/one right=runs/o", ["right=runs/one"]),
        ("match left=elsewhere/", ["left=elsewhere/four"]),
        ("play pong --against ", MINE),
        ("play pong --against=runs/o", ["--against=runs/one"]),
        ("play pong --against = runs/o", ["runs/one"]),
        ("play pong --opponent left", []),
        ("eval runs/one --opponent left=s", ["left=sweeps/three"]),
        ("eval runs/one --opponent left = s", ["sweeps/three"]),
        ("eval runs/one --opponent=left=s", ["--opponent=left=sweeps/three"]),
        ("train demo --weights agent=s", ["agent=sweeps/three"]),
        ("train demo --weights agent=rand", []),
        ("train mpe/simple_tag --learners.agent.weights s", ["sweeps/three"]),
        ("psro cards/leduc --import-policies s", ["sweeps/three"]),
        ("psro cards/leduc --import-policies runs/one,s", ["runs/one,sweeps/three"]),
        ("ui ", MINE),
    ],
)
def test_runs_are_offered_wherever_one_is_wanted(line, expected, runs):
    assert complete(line.split(" ")) == expected


def test_a_large_folder_does_not_keep_the_shell_waiting(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in range(MOST_FOLDERS + 20):
        (tmp_path / "runs" / f"{number}").mkdir(parents=True)
        (tmp_path / "runs" / f"{number}" / "config.json").touch()
    assert len(complete(["resume", "runs/"])) == MOST_FOLDERS


def test_offered_options_are_those_of_the_command(shoal):
    """The index says what `--help-all` says."""
    shown = shoal("train", "tag/grid", "--help-all").out.replace("[no-]", "")
    offered = [word for word in complete(["train", "tag/grid", "--"]) if ".no-" not in word and "--no-" not in word]
    for option in offered:
        assert option in shown or option in ("--help", "--help-all")
    assert len(offered) > 80
    assert {*read_index()["options"]["commands"]} == COMMANDS.keys() - {"help", "version"}


def test_the_command(shoal):
    assert shoal("completion", "zsh").out == SCRIPTS["zsh"]
    assert shoal("--complete", "train", "mpe/simple_ta").out == "mpe/simple_tag\n"
    assert shoal("--complete").out.startswith("train\n")
    assert_refused(shoal("completion", "csh"), "csh")
    assert_refused(shoal("completion"), "missing")


def ask(shell: str, code: str, folder: Path) -> list[str]:
    """The lines that a shell prints after it has read our script. `shoal` is this Python's."""
    found = shutil.which(shell)
    if found is None and os.environ.get("SHOAL_REQUIRE_ALL"):
        pytest.fail(f"{shell} is not installed")
    if found is None:
        pytest.skip(f"{shell} is not installed")
    call = f"{sys.executable} -m shoal"
    own = f"function shoal; {call} $argv; end" if shell == "fish" else f'shoal() {{ {call} "$@"; }}'
    script = f"{own}\n{code.replace('SCRIPT', SCRIPTS[shell])}"
    quiet = {"bash": ["--norc", "--noprofile"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    done = subprocess.run([found, *quiet, "-c", script], capture_output=True, text=True, timeout=120, cwd=folder)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_in_bash(runs):
    code = (
        "SCRIPT\n"
        "COMP_WORDS=(shoal train mpe/simple_ta); COMP_CWORD=2; _shoal; printf '%s\\n' \"${COMPREPLY[@]}\"\n"
        "COMP_WORDS=(shoal resume runs/t); COMP_CWORD=2; _shoal; printf '%s\\n' \"${COMPREPLY[@]}\"\n"
        "COMP_WORDS=(shoal envs --kind = m); COMP_CWORD=4; _shoal; printf '%s\\n' \"${COMPREPLY[@]}\"\n"
        "COMP_WORDS=(shoal match left = runs/o); COMP_CWORD=4; _shoal; printf '%s\\n' \"${COMPREPLY[@]}\"\n"
    )
    assert ask("bash", code, runs) == ["mpe/simple_tag", "runs/two\\ words", "mixed", "runs/one"]


def test_in_zsh(runs):
    """`compadd` and `compdef` belong to its line editor: here they print what they are given."""
    code = (
        'compdef() { :; }; compadd() { shift; print -l -- "$@"; }; _files() { print files; }\nSCRIPT\n'
        "words=(shoal train mpe/simple_ta); CURRENT=3; _shoal\n"
        "words=(shoal resume runs/two\\\\ w); CURRENT=3; _shoal\n"
        "words=(shoal match left=runs/o); CURRENT=3; _shoal\n"
        "words=(shoal train demo --run-dir ''); CURRENT=5; _shoal\n"
    )
    assert ask("zsh", code, runs) == ["mpe/simple_tag", "runs/two words", "left=runs/one", "files"]


def test_in_fish(runs):
    lines = ("shoal train mpe/simple_ta", "shoal bench ", "shoal resume runs/t", "shoal match left=runs/o")
    code = "\n".join(["SCRIPT", *(f"complete -C '{line}'" for line in lines)])
    assert ask("fish", code, runs) == [
        "mpe/simple_tag",
        "autoscale",
        "env",
        "suite",
        "train",
        "runs/two words",
        "left=runs/one",
    ]
