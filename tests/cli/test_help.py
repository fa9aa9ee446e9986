"""`--help` fits a screen, begins with what is common, shows true defaults and names what it leaves out."""

import re
import shlex
import tomllib

import pytest

from shoal.cli.app import COMMANDS, FAMILIES
from shoal.cli.arguments import Section
from shoal.cli.help import LINES, SHOWN
from shoal.cli.inventory import command_options
from shoal.cli.run_options import TrainOptions
from shoal.cli.targets import parse_target
from shoal.cluster.run import Cluster

from .conftest import assert_refused

COLUMNS = 80
TARGETS = (
    *("train mpe/simple_tag", "train tag/continuous", "train swarm/pursuit", "train battle/open", "train matrix/game"),
    *("train mpe/simple_spread --algo qmix", "train mpe/simple_world_comm --sharing none", "train demo --algo sac"),
    *("psro leduc", "league pong", "sweep demo", "pbt demo", "evolve control/cartpole", "bench train demo"),
    *("evolve control/cartpole --strategy erl", "bench env swarm/coverage"),
)
"""Worlds with several learners, with many options, and other algorithms; every command that takes a target."""
LINE = re.compile(r"^  (--\S+|[A-Z\[]+\]?)( |$)")


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", str(COLUMNS))


@pytest.fixture(scope="module")
def indexed():
    return command_options()


def titles(text: str) -> list[str]:
    known = {section.value for section in Section}
    return [line[:-1] for line in text.splitlines() if line.endswith(":") and line[:-1] in known]


def options(text: str) -> list[str]:
    """What stands at the beginning of an option's lines."""
    return [match[1] for line in text.splitlines() if (match := LINE.match(line))]


@pytest.mark.parametrize("line", [*(name for name in COMMANDS if name not in ("help", "version")), *TARGETS])
def test_help_fits_a_screen_and_all_is_more(shoal, line):
    short, full = shoal(*line.split(), "--help"), shoal(*line.split(), "--help-all")
    assert short.code == full.code == 0
    shown = short.out.splitlines()
    assert len(shown) <= LINES
    assert max(map(len, [*shown, *full.out.splitlines()])) <= COLUMNS
    assert set(options(short.out)) <= set(options(full.out))
    order = [section.value for section in Section]
    for text in (short.out, full.out):
        assert "default: None" not in text
        assert titles(text) == sorted(titles(text), key=order.index)
        assert titles(text)[0] == Section.COMMON.value
    left = len(options(full.out)) - len(options(short.out))
    if left:
        said = re.search(r"^(\d+|One) more option", short.out, re.MULTILINE)
        assert said[1] == ("One" if left == 1 else str(left))
        assert shown[-1].startswith("All of them: shoal ")
        again = shlex.split(shown[-1].removeprefix("All of them: shoal"))
        assert shoal(*again) == full
    else:
        assert "--help-all" not in short.out


def test_the_common_ones_come_first_and_the_cluster_last(shoal):
    found = options(shoal("train", "mpe/simple_spread", "--help").out)
    assert found[0] == "--num-envs"
    assert found.index("--seed") < found.index("--env.num-agents") < found.index("--algo.learning-rate")
    assert found.index("--algo.learning-rate") < found.index("--algo.network.hidden") < found.index("--run-dir")
    assert found[-1] == "--cluster"
    assert options(shoal("sweep", "mpe/simple_spread", "--help").out)[0] == "--over"


def test_the_options_of_single_learners_are_left_for_all(shoal):
    assert "--learners.NAME" in shoal("train", "mpe/simple_tag", "--help").out
    assert "--learners.agent.algorithm.gamma" not in shoal("train", "mpe/simple_tag", "--help").out
    assert "--learners.agent.algorithm.gamma" in shoal("train", "mpe/simple_tag", "--help-all").out


@pytest.mark.parametrize(
    ("line", "absent", "present"),
    [
        ("psro leduc", ("--num-seeds", "--freeze", "--weights", "--eval-every", ".frozen"), "--iterations"),
        ("league pong", ("--num-seeds", "--freeze", "--weights", ".weights"), "--exploit-every"),
        ("pbt demo", ("--num-seeds",), "--members"),
        ("train mpe/simple_spread", ("--randomise", "--env-workers", "--env-timeout"), "--num-seeds"),
        ("train swarm/coverage", ("--env-workers",), "--[no-]randomise"),
    ],
)
def test_what_would_be_refused_is_not_shown(shoal, line, absent, present):
    shown = shoal(*line.split(), "--help-all").out
    assert present in shown
    for option in absent:
        assert option not in shown


def test_what_is_not_shown_is_refused_with_the_reason(shoal):
    assert_refused(shoal("psro", "leduc", "--num-seeds", "2"), "shoal psro has no --num-seeds: a population has one")
    assert_refused(shoal("league", "pong", "--freeze", "left"), "has no --freeze", "--import-policies")
    assert_refused(shoal("pbt", "demo", "--num-seeds=2"), "has no --num-seeds: each member has its own seed")


def test_an_option_without_a_default_says_what_happens_without_it(indexed):
    """It has a default, is a switch, may be repeated, must be given, or its text says what is done by default."""
    missing = []
    for command, found in indexed.items():
        for option in found:
            told = re.search(r"\(default: .+\)|by default|\(repeatable\)|\(required\)|may be repeated", option.text)
            spoken_of = option.name in ("folder", "pattern", "watch", "patience", "target-error", "target-nash-conv")
            asked_for = option.name in ("random", "import-policies") or command == "cluster scale"
            positional = not option.flags
            if not (told or positional or not option.takes_value or spoken_of or asked_for):
                missing.append((command, option.name, option.text))
    assert not missing


def test_the_table_of_common_options_names_options_that_there_are(shoal, indexed):
    every = {option.name for found in indexed.values() for option in found}
    for section in (Section.RUN, Section.CLUSTER):
        assert set(SHOWN[section]) <= every
    lines = ("train demo", "train demo --algo sac", "train demo --algo dqn", "train pong --algo ddpg")
    texts = "".join(shoal(*line.split(), "--help-all").out for line in (*lines, "evolve control/cartpole"))
    for section in (Section.ALGORITHM, Section.NETWORK):
        for name in SHOWN[section]:
            assert re.search(rf"[-.\]]{name}\b", texts), name


def test_help_all_by_other_ways(shoal):
    assert shoal("help", "train", "demo", "--help-all") == shoal("train", "demo", "--help-all")
    assert shoal("--help-all") == shoal("--help")
    for family in set(FAMILIES) - COMMANDS.keys():
        assert shoal(family, "--help-all") == shoal(family)


def test_spellings_with_z_are_understood(shoal):
    """Also where an option is for all learners of several."""
    given = ("--algo.normalize-views", "--algo.no_normalize_values")
    experiment = parse_target(TrainOptions, ["mpe/simple_tag", *given], "shoal train").experiment
    for learner in experiment.learners.values():
        assert (learner.algorithm.normalise_views, learner.algorithm.normalise_values) == (True, False)
    assert parse_target(TrainOptions, ["swarm/coverage", "--randomize"], "shoal train").experiment.randomise
    replay = parse_target(TrainOptions, ["demo", "--algo", "dqn", "--algo.prioritized"], "shoal train").experiment
    assert all(learner.algorithm.prioritised for learner in replay.learners.values())
    assert_refused(shoal("train", "demo", "--sizes", "3"), "unknown option --sizes")


def test_a_dry_run_refuses_what_the_run_would_refuse_on_a_cluster(shoal, tmp_path, monkeypatch):
    """Nothing is joined or started for it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Cluster, "_join", None)
    small = ("train", "matrix/stag_hunt", "--cluster", "auto", "--dry-run")
    told = shoal(*small, "--recipe", "sync", "--actors", "2")
    assert told.code == 0, told.err
    assert "# on a cluster, sync: 2 actors" in told.out
    assert "# on a cluster, sync: " in shoal(*small, "--algo", "a2c").out, "the recipe that a run would have"
    assert_refused(shoal(*small, "--recipe", "apex"), "apex")
    assert_refused(shoal(*small, "--actors", "3"), "multiple of the number of actors, 3")
    assert_refused(shoal(*small, "--num-seeds", "2"), "a cluster run has one seed")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_target_is_not_answered_with_a_hundred_names(shoal):
    outcome = shoal("train", "xyzzyq")
    assert_refused(outcome, "unknown world or preset 'xyzzyq'", "`shoal envs` and `shoal presets` list all")
    assert len(outcome.err) < 300


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(shoal, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ("--algo", "a2c", "--algo.network.hidden", "4", "--num-steps", "10", "--dry-run")
    told = shoal("train", "control/cartpole", *small, "--num-envs", "100", "--total-env-steps", "9500")
    assert told.code == 0
    for words in ("10 updates of 1,000 env steps, 10,000 in all", "memory: about", "dry run"):
        assert words in told.out
    settings = tomllib.loads(told.out)
    assert settings["learners"]["agent"]["algorithm"]["name"] == "a2c"
    assert "checkpoints" not in "".join(line for line in told.out.splitlines() if line.startswith("#"))
    replayed = shoal("train", "mpe/simple_spread", "--algo", "vdn", "--dry-run").out
    assert re.search("# the newest checkpoint: about .* with its replay, which older ones and the best lose", replayed)
    seeded = shoal("train", "matrix/stag_hunt", "--dry-run").out
    assert "# seed 3 is the preset's own: --seed N takes another" in seeded
    assert "preset's own" not in shoal("train", "matrix/stag_hunt", "--seed", "4", "--dry-run").out
    few, many = (
        shoal("train", "control/cartpole", *small, "--num-envs", number, "--json").json for number in (100, 100_000)
    )
    assert few["updates"] == -(-few["experiment"]["total_env_steps"] // 1000)
    assert few["experiment"]["learners"]["agent"]["algorithm"]["name"] == "a2c"
    assert many["memory_bytes"] > few["memory_bytes"] > 0
    assert_refused(shoal("train", "demo", "--dry-run", "--num-envs", "0"), "--num-envs")
    assert_refused(shoal("train", "demo", "--print-config"), "Did you mean --dry-run?")
    assert list(tmp_path.iterdir()) == []
