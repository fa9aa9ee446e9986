"""A run folder is data, from anybody: whatever its `config.json` names, no command imports, calls or reads it."""

import json
import shlex
import subprocess
import sys
import time

import pytest
from rich.table import Table

import shoal as package
from shoal.cli.app import COMMANDS, FAMILIES
from shoal.cli.terminal import complain, console, say
from shoal.core import origin, registry
from shoal.core.errors import OptionError, RunError
from shoal.core.origin import USER, Origin, claimed
from shoal.populations.pbt.plan import PBT, Range
from shoal.populations.population import PopulationConfig
from shoal.training.experiment import Experiment
from shoal.training.run import load_policies, open_run
from shoal.training.serialise import to_plain
from shoal.training.sweep import Sweep
from tests.cli.conftest import assert_refused

for library in ("gymnasium", "pettingzoo", "dm_env"):
    pytest.importorskip(library, reason=f"{library} is not installed: pip install 'shoal-rl[bridges]'")

CODE = """
import pathlib
pathlib.Path({marker!r}).touch()
import dm_env, pettingzoo

def make(**options):
    pathlib.Path({marker!r}).touch()
"""


@pytest.fixture(autouse=True)
def nothing_trusted(monkeypatch):
    monkeypatch.setattr(origin, "_trusted", set())
    monkeypatch.setattr(registry, "_foreigners", {})


@pytest.fixture
def marker(tmp_path, monkeypatch):
    """A file that appears if the module `evil_kit` is imported, or its functions are called."""
    path = tmp_path / "marker"
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "evil_kit.py").write_text(CODE.format(marker=str(path)))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    monkeypatch.chdir(tmp_path)
    yield path
    sys.modules.pop("evil_kit", None)


def hostile(folder, env, options=(), kind="training"):
    """A run folder of that kind whose world is `env`."""
    experiment = Experiment(env, dict(options))
    entries = {"experiment": experiment.to_dict()}
    if kind == "psro":
        entries = {"psro": to_plain(PopulationConfig(experiment))}
    if kind == "sweep":
        entries = {"sweep": to_plain(Sweep(experiment, {"learning_rate": (1e-4, 1e-2)}))}
    if kind == "pbt":
        entries["pbt"] = to_plain(PBT(Experiment(env), {"learning_rate": Range(1e-4, 1e-2)}, interval=2))
        del entries["pbt"]["experiment"]
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"format": 1, "shoal": "0", "kind": kind, **entries}))
    return folder


COMMAND_LINES = {
    "eval": "eval RUN",
    "eval --opponent": "eval TRAINED --import WORLD --opponent prey=RUN",
    "match": "match prey=RUN hunter=random",
    "match of a population": "match POPULATION random",
    "tournament": "tournament RUN random",
    "tournament of a population": "tournament TRAINED POPULATION --import WORLD",
    "resume": "resume RUN",
    "compare": "compare RUN",
    "watch": "watch RUN",
    "play": "play RUN",
    "play --against": "play pong --against RUN",
    "play --opponent": "play test/tiny --import WORLD --against TRAINED --opponent prey=RUN",
    "export": "export RUN --out out",
    "train": "train RUN",
    "train --help": "train RUN --help",
    "train --weights": "train test/tiny --import WORLD --sharing all --weights shared=RUN --num-envs 4 --num-steps 8",
    "sweep": "sweep RUN --over learning_rate=1e-4:1e-2:2",
    "pbt": "pbt RUN --over learning_rate=1e-4:1e-2",
    "evolve": "evolve RUN",
    "psro": "psro RUN",
    "psro --import-policies": "psro cards/kuhn --import-policies RUN --run-dir new",
    "psro --import-policies of a population": "psro cards/kuhn --import-policies POPULATION --run-dir new",
    "league": "league RUN",
    "league --import-policies": "league cards/kuhn --import-policies RUN --run-dir new",
    "population": "population POPULATION",
    "resume of a population": "resume POPULATION",
    "psro of a population": "psro POPULATION",
    "resume of a tuning": "resume TUNED",
    "pbt of a tuning": "pbt TUNED",
    "resume of a sweep": "resume SWEPT",
    "sweep of a sweep": "sweep SWEPT",
    "bench train": "bench train RUN",
    "bench env": "bench env RUN",
    "bench autoscale": "bench autoscale RUN",
    "cluster status": "cluster status RUN",
    "cluster advise": "cluster advise RUN",
    "cluster scale": "cluster scale RUN --actors 2",
}
READING = {
    "runs": "runs --root PARENT",
    "runs tag": "runs tag RUN paper --root PARENT",
    "runs untag": "runs untag RUN paper --root PARENT",
    "runs note": "runs note RUN words --root PARENT",
    "runs remove": "runs remove RUN --yes --root PARENT",
    "show": "show RUN",
    "diff": "diff RUN POPULATION",
    "ui": "ui PARENT --export page.html RUN",
}
"""Commands that read settings and metrics, and never build the world."""
HOSTILE_FOLDERS = ("RUN", "POPULATION", "TUNED", "SWEPT")
NAMELESS = ("psro of a population", "sweep of a sweep", "bench env", "cluster", "compare")
"""Commands that refuse such a folder for another reason, before its world is looked at."""


def test_every_command_that_takes_a_run_is_tried():
    words = [line.split() for line in COMMAND_LINES.values()]
    tried = {" ".join(line[: 2 if line[0] in FAMILIES else 1]) for line in words}
    alone = {"envs", "presets", "doctor", "algos", "completion", "version", "help", "bench suite"}
    assert tried | READING.keys() == COMMANDS.keys() - alone


@pytest.mark.parametrize("line", READING)
def test_reading_runs_nothing(line, tmp_path, marker, shoal):
    env, options = "pettingzoo:subprocess:check_output", {"args": ["touch", str(marker)]}
    folders = {
        "RUN": hostile(tmp_path / "runs" / "bad run", env, options),
        "POPULATION": hostile(tmp_path / "runs" / "population", "dm_env:os:system", {"command": "true"}, "psro"),
        "PARENT": tmp_path / "runs",
    }
    outcome = shoal(*(str(folders.get(word, word)) for word in READING[line].split()))
    assert not marker.exists()
    assert outcome.code in (0, 2)
    assert outcome.code == 0 or len(outcome.err.strip().splitlines()) == 1


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_no_command_runs_what_a_folder_names(line, tmp_path, marker, shoal, trained, world):
    env, options = "pettingzoo:subprocess:check_output", {"args": ["touch", str(marker)]}
    folders = {
        "RUN": hostile(tmp_path / "bad run", env, options),
        "POPULATION": hostile(tmp_path / "population", "dm_env:os:system", {"command": f"touch {marker}"}, "psro"),
        "TUNED": hostile(tmp_path / "tuned", "gymnasium:evil_kit:X-v0", kind="pbt"),
        "SWEPT": hostile(tmp_path / "swept", "pettingzoo:evil_kit", kind="sweep"),
        "TRAINED": trained,
        "WORLD": world,
    }
    words = [str(folders.get(word, word)) for word in COMMAND_LINES[line].split()]
    outcome = shoal(*[word.replace("=RUN", f"={folders['RUN']}") for word in words])
    assert not marker.exists()
    assert_refused(outcome)
    assert len(outcome.err.strip().splitlines()) == 1
    if not line.startswith(NAMELESS):
        used = next(
            str(folders[name]) for name in ("RUN", "POPULATION", "TUNED", "SWEPT") if name in COMMAND_LINES[line]
        )
        assert outcome.err.startswith(f"error: {used}: its environment ")
        assert "repeat it: --import " in outcome.err


HOSTILE = [
    ("pettingzoo:evil_kit:make", {}),
    ("pettingzoo:evil_kit", {}),
    ("pettingzoo:pettingzoo", {}),
    ("pettingzoo:evil_kit:make/x", {}),
    ("pettingzoo:mpe2.simple_spread_v3:raw_env", {}),
    ("dm_env:evil_kit:make", {}),
    ("dm_env:dm_env:make", {}),
    ("gymnasium:evil_kit:CartPole-v1", {}),
    ("gymnasium:evil_kit:", {}),
    ("gymnasium:CartPole-v1\nevil_kit", {}),
    ("gymnasium:CartPole-v1", {"env_id": "evil_kit:X-v0"}),
    ("gymnasium:CartPole-v1", {"kwargs": {"entry_point": "evil_kit"}}),
    ("gymnasium:Ant-v5", {"xml_file": "passwd"}),
    ("gymnasium:Ant-v5", {"model": ["../../etc/passwd"]}),
    ("gymnasium:Ant-v5", {"plug": "evil_kit.make"}),
    ("openspiel:efg_game(filename=secret)", {}),
    ("openspiel:efg_game", {"filename": "secret"}),
    ("openspiel:colored_trails(players=3,boards_file =secret)", {}),
    ("openspiel:add_noise(epsilon=1.,seed=1,game=nfg_game(filename=secret))", {}),
    ("vmas:balance", {"asset_path": "x"}),
]


@pytest.mark.parametrize(("env", "options"), HOSTILE)
def test_ids_and_options_that_name_code_or_files_are_not_taken_from_a_folder(env, options, tmp_path, marker, shoal):
    outcome = shoal("eval", hostile(tmp_path / "run", env, options))
    assert not marker.exists()
    assert_refused(outcome, f"{tmp_path / 'run'}: its environment ")
    assert len(outcome.err.strip().splitlines()) == 1
    with pytest.raises(RunError, match="its environment"):
        load_policies(tmp_path / "run")
    with pytest.raises(RunError, match="its environment"):
        package.resume(tmp_path / "run")


FREE = [
    ("gymnasium:CartPole-v1", {"max_episode_steps": 5, "render_mode": "rgb_array"}),
    ("gymnasium:ale_py:ALE/Pong-v5", {"obs_type": "ram"}),
    ("gymnasium:FrozenLake-v1", {"desc": ["SFF", "FHF", "FFG"], "is_slippery": False}),
    ("pettingzoo:mpe2.simple_spread_v3", {"max_cycles": 5}),
    ("pettingzoo:pettingzoo.classic.connect_four_v3", {}),
    ("pettingzoo:classic/connect_four-v3", {}),
    ("openspiel:leduc_poker", {}),
    ("openspiel:turn_based_simultaneous_game(game=goofspiel(num_cards=4,points_order=descending))", {}),
    ("openspiel:universal_poker", {"blind": "100 100", "numBoardCards": "0 1"}),
    ("openspiel:pathfinding", {"grid": "A.*..**\n..*....\n....*a.\n"}),
    ("vmas:balance", {"n_agents": 4}),
    ("jaxmarl:MPE_simple_spread_v3", {"num_agents": 3}),
    ("jumanji:Game2048-v1", {}),
    ("gymnax:CartPole-v1", {"gravity": 5.0}),
    ("tag/grid", {"num_taggers": 3}),
]


@pytest.mark.parametrize(("env", "options"), FREE)
def test_what_a_library_looks_up_in_its_own_list_needs_no_ceremony(env, options):
    assert claimed(env, options) is None


OWN = """
from pettingzoo.classic import tictactoe_v3

def make(**options):
    return tictactoe_v3.env(**options)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The run folder of an environment that a function of the user's own makes; nobody has played it yet."""
    pytest.importorskip("pygame", reason="PettingZoo's board games need pygame")
    (tmp_path / "own_kit.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield hostile(tmp_path / "run", "pettingzoo:own_kit:make")
    sys.modules.pop("own_kit", None)


def test_a_user_who_repeats_the_id_is_obeyed(own, shoal):
    assert_refused(shoal("eval", own), "--import pettingzoo:own_kit:make")
    assert "own_kit" not in sys.modules
    outcome = shoal("eval", own, "--import", "pettingzoo:own_kit:make")
    assert "no checkpoint yet" in outcome.err  # its world was made
    assert "own_kit" in sys.modules


def test_options_that_name_files_are_repeated_with_the_id(tmp_path, shoal):
    run = hostile(tmp_path / "run", "gymnasium:Ant-v5", {"xml_file": "a b.xml", "frame_skip": 2})
    said = shoal("eval", run).err
    claim = "gymnasium:Ant-v5 xml_file=a b.xml"
    assert f"--import {shlex.quote(claim)} " in said
    assert claimed("gymnasium:Ant-v5", {"xml_file": "a b.xml", "frame_skip": 2}) == claim
    Origin("a").admit("gymnasium:CartPole-v1", {})
    for trusted in ("gymnasium:Ant-v5", claim):
        registry.import_named(trusted)
        if trusted != claim:
            with pytest.raises(RunError, match="names code or files"):
                Origin("a").admit("gymnasium:Ant-v5", {"xml_file": "a b.xml"})
    Origin("a").admit("gymnasium:Ant-v5", {"xml_file": "a b.xml"})


def test_python_trusts_by_name(own):
    with pytest.raises(RunError, match=r"shoal\.trust"):
        load_policies(own)
    package.trust("pettingzoo:own_kit:make")
    with pytest.raises(RunError, match="no checkpoint yet"):
        load_policies(own)


def test_what_the_user_made_in_this_process_is_known_to_be_theirs(own):
    package.make("pettingzoo:own_kit:make")
    with pytest.raises(RunError, match="no checkpoint yet"):
        load_policies(own)


def test_an_installed_package_may_declare_an_id(own, tmp_path, monkeypatch):
    folder = tmp_path / "own_kit-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: own_kit\nVersion: 1\n")
    (folder / "entry_points.txt").write_text("[shoal.envs]\npettingzoo:own_kit:make = own_kit:make\n")
    with pytest.raises(RunError, match="no checkpoint yet"):
        load_policies(own)
    assert "pettingzoo:own_kit:make" not in registry.ids()


def test_experiments_read_from_data_are_not_the_users():
    data = Experiment("dm_env:os:system", {"command": "true"}).to_dict()
    assert "origin" not in data
    assert Experiment.from_dict(data).origin.folder is not None
    assert Experiment("tag/grid").origin == USER
    with pytest.raises(OptionError, match="unknown entry 'origin'"):
        Experiment.from_dict(data | {"origin": {"folder": None}})


def test_opening_a_run_says_whose_ids_it_names(run):
    assert open_run(run).experiment.origin == Origin(str(run))


REFUSED = [
    ("pettingzoo:subprocess:check_output", {"args": ["touch", "MARKER"]}, "nothing shows that it makes a ParallelEnv"),
    ("pettingzoo:subprocess:Popen", {"args": ["touch", "MARKER"]}, "the class Popen is not a ParallelEnv"),
    ("pettingzoo:os:system", {"command": "touch MARKER"}, "nothing shows that it makes"),
    ("pettingzoo:pathlib:Path", {}, "the class Path is not"),
    ("dm_env:os:system", {"command": "touch MARKER"}, "nothing shows that it makes a dm_env.Environment"),
    ("dm_env:subprocess:run", {"args": ["touch", "MARKER"]}, "annotate what it returns: def run"),
]


@pytest.mark.parametrize(("env", "options", "said"), REFUSED)
def test_only_what_makes_an_environment_is_called_for_the_user(env, options, said, marker, shoal):
    options = json.loads(json.dumps(options).replace("MARKER", str(marker)))
    given = [word for name, value in options.items() for word in ("--env-option", f"{name}={json.dumps(value)}")]
    assert_refused(shoal("train", env, *given), said)
    assert not marker.exists()


KIT = """
from __future__ import annotations
import functools
from subprocess import check_output
from typing import TYPE_CHECKING
from own_other import plain, annotated, lying, late

if TYPE_CHECKING:
    from pettingzoo import ParallelEnv

def of_a_checker() -> ParallelEnv: ...
partial = functools.partial(late, 1)
def wrap(function):
    return functools.wraps(function)(lambda *args: function(*args))
wrapped = wrap(late)
"""
OTHER = """
def plain(): ...
def late(n=0):
    from pettingzoo.classic import tictactoe_v3
    return tictactoe_v3.env()
def annotated() -> "__import__('pettingzoo').AECEnv": ...
def lying() -> str:
    import pettingzoo
"""


def test_how_a_function_is_seen_to_make_an_environment(tmp_path, monkeypatch):
    from shoal.bridges.incoming import _makers, pettingzoo

    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_kit.py").write_text(KIT)
    (tmp_path / "own_other.py").write_text(OTHER)
    import own_kit  # pyright: ignore[reportMissingImports]

    try:
        for name in ("late", "annotated", "partial", "wrapped", "of_a_checker"):
            _makers.check_maker(name, getattr(own_kit, name), pettingzoo._KIND)
        for name in ("plain", "lying", "check_output"):
            with pytest.raises(OptionError, match="nothing shows that it makes"):
                _makers.check_maker(name, getattr(own_kit, name), pettingzoo._KIND)
    finally:
        del sys.modules["own_kit"], sys.modules["own_other"]


@pytest.mark.parametrize(
    "env",
    [
        "openspiel:" + "file" * 100_000,
        "openspiel:" + "misere(game=" * 2000 + "kuhn_poker()" + ")" * 2000,
        "gymnax:MNISTBandit-bsuite",
        "jumanji:Sokoban-v0",
    ],
)
def test_ids_that_take_long_or_download_are_not_taken_from_a_folder(env):
    began = time.monotonic()
    with pytest.raises(RunError, match="a folder"):
        Origin("a folder").admit(env, {})
    assert time.monotonic() - began < 1.0


def test_long_texts_among_options_are_not_taken_from_a_folder():
    with pytest.raises(RunError, match="names code or files"):
        Origin("a folder").admit("openspiel:misere", {"game": "misere(game=" * 100})


def test_an_option_that_a_bridge_would_take_for_its_own_is_refused():
    with pytest.raises(OptionError, match="name is not an option here"):
        package.make("gymnasium:CartPole-v1", name="x")


STARTS_A_PROCESS = """
import multiprocessing

if __name__ == "__main__":
    from shoal.core.processes import away_from_current_folder

    process = multiprocessing.get_context("spawn").Process(target=print)
    with away_from_current_folder():
        process.start()
    process.join()
"""


def test_processes_do_not_look_for_modules_in_a_run_folder(tmp_path):
    """`cd RUN; shoal resume .`: what lies there must not be imported by the processes of environments."""
    (tmp_path / "multiprocessing.py").write_text("open('ran', 'w')\n")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "main.py").write_text(STARTS_A_PROCESS)
    subprocess.run([sys.executable, "own/main.py"], cwd=tmp_path, check=True, capture_output=True)
    assert not (tmp_path / "ran").exists()


def test_control_characters_do_not_reach_the_terminal(capsys):
    out = console()
    say(out, "a\x1b]0;title\x07b\x9b31m")
    table = Table("name\x1b[2J")
    table.add_row("\x1bc")
    out.print(table)
    complain("no\x1b[31m")
    told = capsys.readouterr()
    assert "\x1b" not in told.out + told.err
    assert "\x9b" not in told.out
    assert "a\N{REPLACEMENT CHARACTER}]0;title" in told.out
