"""What people type and what they are told: names of algorithms, numbers, options of other libraries, commands."""

import dataclasses
import importlib.metadata
import json
import re
import shlex
import sys
import tomllib
import warnings
from pathlib import Path

import jax
import pytest

import shoal as package
from shoal.algorithms import A2C, ALGORITHMS, DDPG, DQN, NAMES, PPO, SAC, named
from shoal.algorithms.names import name_of
from shoal.cli.app import main
from shoal.cli.arguments import as_typed, whole_number
from shoal.cli.commands import doctor
from shoal.cli.commands.psro import PsroOptions, translate_arguments
from shoal.cli.run_options import TrainOptions
from shoal.cli.runs import Hints
from shoal.cli.targets import parse_target
from shoal.core.errors import OptionError, UnknownNameError, shell_command
from shoal.networks.torsos import Network
from shoal.training.experiment import Experiment, Learner
from shoal.training.mismatch import differing_options, differing_shapes

from .conftest import SMALL, assert_refused

SOURCE = Path(package.__file__).parent


def parse(*args):
    return parse_target(TrainOptions, args, "shoal train").experiment


def test_names_are_classes_with_options():
    assert named("mappo") == PPO(critic="global")
    assert named("QMIX", learning_rate=0.1) == DQN(mixer="monotonic", learning_rate=0.1)
    assert named("td3") == DDPG(twin=True, policy_delay=2, target_noise=0.2)
    assert named("maac") == SAC(critic="attention")
    assert named("r2d2").network.recurrent == "gru"
    assert named("r2d2", network=Network(recurrent="lstm")).network.recurrent == "lstm"
    with pytest.raises(UnknownNameError, match=r"unknown algorithm 'mapo'. Did you mean 'mappo'"):
        named("mapo")
    with pytest.raises(OptionError, match=r"MAPPO: unknown option 'learning_rat'. Did you mean 'learning_rate'"):
        named("mappo", learning_rat=1)


def test_every_name_can_be_built_and_every_class_has_one():
    assert {type(named(name)) for name in NAMES} == set(ALGORITHMS.values())
    assert all(entry.use and entry.experience and entry.sees for entry in NAMES.values())
    asked = "mappo ippo qmix vdn iql maddpg r2d2 masac maac td3 appo vdac"
    assert set(asked.split()) <= set(NAMES)


def test_a_name_on_the_command_line_is_stored_as_its_class():
    """The rest of the experiment stays as the preset has it."""
    usual = parse("mpe/simple_spread")
    changed = parse("mpe/simple_spread", "--algo", "mappo")
    (before,), (after,) = usual.learners.values(), changed.learners.values()
    assert after.algorithm == type(before.algorithm)(**{**vars(before.algorithm), "critic": "global"})
    stored = changed.to_dict()["learners"]["agent"]["algorithm"]
    assert (stored["name"], stored["critic"]) == ("ppo", "global")
    assert Experiment.from_dict(json.loads(json.dumps(changed.to_dict()))) == changed
    (recurrent,) = parse("mpe/simple_spread", "--algo", "r2d2", "--algo.burn-in", "3").learners.values()
    assert (recurrent.algorithm.burn_in, recurrent.algorithm.network.recurrent) == (3, "gru")
    (own,) = parse("mappo/simple_spread", "--algo", "ippo").learners.values()
    assert own.algorithm.critic == "own"


def test_one_learner_where_an_algorithm_is_about_all():
    """A mixer owns a team, and never those who compete; critics of everybody's actions see everybody."""
    assert list(parse("mpe/simple_speaker_listener").learners) == ["speaker", "listener"]
    (team,) = parse("mpe/simple_speaker_listener", "--algo", "qmix").learners.values()
    assert (team.algorithm.mixer, list(team.policies)) == ("monotonic", ["speaker", "listener"])
    assert list(parse("mpe/simple_tag", "--algo", "vdn").learners) == ["adversary", "agent"]
    (everybody,) = parse("mpe/simple_tag", "--algo", "maddpg").learners.values()
    assert list(everybody.policies) == ["adversary", "agent"]


def test_an_oracle_may_be_named_so_too():
    args = translate_arguments(["cards/kuhn", "--oracle", "mappo"])
    experiment = parse_target(PsroOptions, args, "shoal psro").experiment
    assert {learner.algorithm.critic for learner in experiment.learners.values()} == {"global"}


def test_algos(shoal):
    listed = {entry["name"]: entry for entry in shoal("algos", "--json").json["algorithms"]}
    assert list(listed) == list(NAMES)
    assert listed["mappo"]["algorithm"] == "ppo"
    assert listed["mappo"]["options"] == {"critic": "global"}
    assert listed["qmix"]["use"]
    shown = shoal("algos", "mix").out
    assert "vdac_mix" in shown
    assert "mappo" not in shown
    assert_refused(shoal("algos", "mapo"), "Did you mean 'mappo'")


def test_presets_and_worlds_by_pattern(shoal):
    names = [entry["name"] for entry in shoal("presets", "qmix", "--json").json["presets"]]
    assert "qmix/simple_spread" in names
    assert all("qmix" in name for name in names)
    shaped = [entry["name"] for entry in shoal("presets", "qmix/*", "--json").json["presets"]]
    assert shaped == [name for name in names if name.startswith("qmix/")]
    assert [entry["id"] for entry in shoal("envs", "simple_spread", "--json").json["envs"]] == ["mpe/simple_spread"]
    outcome = shoal("presets", "qmax")
    assert_refused(outcome, "unknown preset 'qmax'")
    assert len(outcome.err) < 1500


def test_help_and_version_as_words(shoal):
    assert shoal("help").out == shoal("--help").out
    assert shoal("help", "presets").out == shoal("presets", "--help").out
    assert "usage: shoal bench env" in shoal("help", "bench", "env").out
    assert "--algo.learning-rate" in shoal("help", "train", "demo").out
    assert shoal("version").out == shoal("--version").out
    assert_refused(shoal("help", "trian"), "Did you mean 'train'")
    assert_refused(shoal("version", "2"), "takes no arguments")


def test_the_number_of_steps_is_that_of_all_copies(shoal):
    assert "steps over all copies" in " ".join(shoal("train", "--help").out.replace("│", " ").split())


@pytest.mark.parametrize(
    ("text", "number"), [("1M", 10**6), ("500k", 500_000), ("1.5m", 1_500_000), ("2B", 2 * 10**9), ("1e17", 10**17)]
)
def test_numbers_with_letters(text, number):
    assert whole_number(text) == number


def test_numbers_with_letters_everywhere():
    args = (
        "--num-envs",
        "1k",
        "--total-env-steps",
        "1.5M",
        "--env.num-agents",
        "4",
        "--algo.network.hidden",
        "1k",
        "2",
    )
    experiment = parse("mpe/simple_spread", *args)
    assert (experiment.num_envs, experiment.total_env_steps) == (1000, 1_500_000)
    assert experiment.learners["agent"].algorithm.network.hidden == (1000, 2)
    for text in ("1.2345k", "k", "1kk", "M1", "1e400", "9" * 5000):
        with pytest.raises(ValueError, match="is not a whole number") as caught:
            whole_number(text)
        assert len(str(caught.value)) < 100


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--algo.lr", "1"], "Did you mean --algo.learning-rate?"),
        (["--lr", "1"], "Did you mean --algo.learning-rate?"),
        (["--algo.ent_coef", "1"], "Did you mean --algo.entropy-coef?"),
        (["--algo.clip-range", "1"], "Did you mean --algo.clip-eps?"),
        (["--algo.vf-coef", "1"], "Did you mean --algo.value-coef?"),
        (["--discount", "1"], "Did you mean --algo.gamma?"),
        (["--n-envs", "1"], "Did you mean --num-envs?"),
        (["--n_steps", "1"], "Did you mean --num-steps?"),
        (["--total-timesteps", "1"], "Did you mean --total-env-steps?"),
        (["--hidden-sizes", "1"], "Did you mean --algo.network.hidden?"),
        (["--algo", "dqn", "--algo.tau", "1"], "Did you mean --algo.target-rate?"),
        (["--algo", "dqn", "--learning-starts", "1"], "Did you mean --algo.warm-up?"),
        (["--logdir", "x"], "Did you mean --run-dir?"),
    ],
)
def test_options_of_other_libraries_lead_to_ours(args, words):
    with pytest.raises(OptionError) as caught:
        parse("mpe/simple_spread", *args)
    assert words in str(caught.value)


def test_commands_are_quoted_for_the_shell(shoal, tmp_path, world, trained):
    assert shell_command("resume", Path("my run")) == "shoal resume 'my run'"
    hint = Hints(Path("/a b/c"), ("my file.py",))("watch", "--open")
    assert shlex.split(hint) == ["shoal", "watch", "/a b/c", "--import", "my file.py", "--open"]
    folder = tmp_path / "my run"
    folder.symlink_to(trained)
    outcome = shoal("train", "test/tiny", "--import", world, "--run-dir", folder, *SMALL)
    assert_refused(outcome, f"`shoal resume '{folder}'`")


def test_no_command_is_put_together_without_quotes():
    """A folder's name in a command that is printed goes through `shell_command`, or through `shlex`."""
    loose = re.compile(r"[`\"]shoal [a-z]+(?: [a-z]+)? \{(?!shlex|world or)")
    for file in SOURCE.rglob("*.py"):
        assert not loose.findall(file.read_text()), file


def test_doctor_knows_every_optional_package(shoal, monkeypatch):
    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    declared = {
        re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", text)[0]).lower()
        for extra, texts in extras.items()
        if extra not in doctor.FOR_OTHERS
        for text in texts
    }
    assert declared - {"shoal-rl"} <= set(doctor.PURPOSES)
    report = shoal("doctor", "--json").json
    assert {"matplotlib", "ray", "pettingzoo", "torch"} <= {entry["name"] for entry in report["packages"]}
    assert all(entry["for"] and entry["extra"] in extras for entry in report["packages"])

    real = importlib.metadata.version

    def missing(name):
        if name in doctor.PURPOSES:
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr("shoal.cli.commands.doctor.importlib.metadata.version", missing)
    said = shoal("doctor").out
    assert "ray (training on a cluster: --cluster auto). To have it: pip install 'shoal-rl[cluster]'" in said
    assert "all is well" not in said


def test_watch_with_an_opponent(shoal, trained, world, tmp_path):
    page = tmp_path / "other.html"
    told = shoal("watch", trained, "--import", world, "--out", page, "--opponent", "hunter=random", "--json")
    assert told.json["replay"] == str(page)
    assert page.read_text() != (trained / "replay.html").read_text()  # of the same seed, by its own policies
    outcome = shoal("watch", trained, "--import", world, "--opponent", "huntr=random")
    assert_refused(outcome, "Did you mean 'hunter'")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"network": Network(hidden=(8, 8))}, "network.hidden is 8 8 here, 4 there"),
        ({"network": Network(hidden=(4,), activation="relu")}, "network.activation is relu here, tanh there"),
        ({"network": Network(hidden=(4,), recurrent="gru")}, "network.recurrent is gru here, none there"),
        ({"normalise_views": True}, "normalise_views is True here, False there"),
        ({"critic": "global"}, "critic is global here, own there"),
    ],
)
def test_weights_that_do_not_fit_name_the_option(change, words):
    found = policy(A2C(network=Network(hidden=(4,))))
    assert differing_options(policy(dataclasses.replace(A2C(network=Network(hidden=(4,))), **change)), found) == words


def test_weights_of_another_world_or_algorithm_say_so():
    small = A2C(network=Network(hidden=(4,)))
    assert differing_options(policy(small), policy(DQN(network=small.network))) == "the algorithm is of another family"
    said = differing_options(policy(small, num_agents=4), policy(small))
    assert said == "the views, by the options of the world, have 24 numbers here, 18 there"
    shapes = {"agent/weights/params/torso/layers_0/kernel": (3, 4)}
    assert differing_shapes(shapes, shapes, "here", "there") == ""
    deep = {f"agent/weights/params/torso/layers_{i}/kernel": (4, 4) for i in range(1000)}
    said = differing_shapes(shapes, deep, "here", "there")
    assert said.startswith("network.hidden is 4 here, 4 4 4 4 4 4 4 4 ... (1000 in all) there")


def policy(algorithm, **options):
    """The shapes of a policy in `mpe/simple_spread`."""
    learners = {"one": Learner(algorithm)}
    setup = Experiment("mpe/simple_spread", options, learners=learners, num_envs=2, num_steps=2).setup
    algorithm, spec = setup.learners["one"]
    return jax.eval_shape(lambda: algorithm.init(jax.random.key(0), spec).params)["agent"]


@pytest.mark.parametrize("option", ["--algo.network.hidden", "--seed", "--algo", "--sharing", "--freeze"])
def test_what_nobody_could_read_is_cut(shoal, option):
    outcome = shoal("train", "mpe/simple_spread", option, "x" * 3000)
    assert_refused(outcome, "xxx")
    assert len(outcome.err) < 700


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [
        *((named(name), name) for name in NAMES if name not in ("ippo", "iql")),
        (named("ippo"), "ppo"),
        (named("mappo", epochs=8, learning_rate=1e-4), "mappo"),
        (PPO(critic="global"), "mappo"),
        (named("td3", policy_delay=1), "ddpg"),
    ],
)
def test_an_algorithm_is_called_by_the_name_of_its_options(algorithm, name):
    assert name_of(algorithm) == name


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("psro cards/kuhn --eval-every 1000", "shoal psro has no --eval-every: a population is judged by the payoffs"),
        ("league pong --eval_episodes=5", "shoal league has no --eval-episodes: a population is judged"),
        ("bench train demo --keep-checkpoints 5", "shoal bench train has no --keep-checkpoints: it times training"),
        ("evolve control/cartpole --num-envs 5", "shoal evolve has no --num-envs: the copies of the world are"),
        ("psro cards/kuhn --oracle exact --num-envs 8", "exact responses are worked out, not trained: leave out --num"),
        ("train control/cartpole --randomise", "control/cartpole has no sample_params to draw from: leave out --rand"),
        ("watch RUN --port 80", "--port is for the page that --serve hands out"),
        ("eval RUN --random --explore", "--random plays everybody at random: leave out --explore"),
    ],
)
def test_options_without_effect_are_refused(shoal, world, trained, typed, words):
    run = f"{shlex.quote(str(trained))} --import {shlex.quote(str(world))}"
    assert_refused(shoal(*shlex.split(typed.replace("RUN", run))), words)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"checkpoint_every": 100}, "on a cluster a training is saved by commit_seconds: leave out checkpoint_every"),
        ({"checkpoint_seconds": 9.0}, "on a cluster a training is saved by commit_seconds: leave out checkpoint_sec"),
    ],
)
def test_options_without_effect_on_a_cluster_are_refused(tmp_path, options, words):
    with pytest.raises(OptionError, match=words):
        package.train("control/cartpole", tmp_path / "run", cluster="auto", progress=False, **options)


@pytest.mark.parametrize(
    ("message", "typed", "told"),
    [
        (
            "num_envs must be a multiple of 4, got 7",
            "--algo.minibatches 4",
            "--num-envs must be a multiple of 4, got 7",
        ),
        ("PPO: gamma must be at most 1, got 2.0", "--algo.gamma 2", "PPO: --algo.gamma must be at most 1, got 2.0"),
        (
            "Network: hidden must be 1, got (0,)",
            "--algo.network.hidden=0",
            "Network: --algo.network.hidden must be 1, got 0",
        ),
        ("its warm_up must be less", "--algo.warm_up 9", "its --algo.warm-up must be less"),
        ("runs/num_envs is no run", "--num-envs 3", "runs/num_envs is no run"),
        ("x: seed must be 0, got None", "--seed 1", "x: --seed must be 0, got none"),
        ("unknown seed 'gamma'", "--seed 1 --algo.gamma 2", "unknown seed 'gamma'"),
    ],
)
def test_refusals_name_options_as_they_are_typed(message, typed, told):
    assert as_typed(message, ["train", "demo", *typed.split()]) == told


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("--algo.learning-rate fast", "--algo.learning-rate: 'fast' is not a number"),
        ("--num-envs True", "--num-envs: 'True' is not a whole number"),
        ("--algo.critic none", "--algo.critic must be one of 'own', 'global', got 'none'"),
    ],
)
def test_values_are_refused_in_words(shoal, typed, told):
    outcome = shoal("train", "demo", *typed.split())
    assert_refused(outcome, told)
    assert "Error parsing" not in outcome.err


def test_random_play_is_evaluated_without_a_run(shoal):
    world = "matrix/matching_pennies"
    told = shoal("eval", world, "--random", "--episodes", "4", "--json").json
    assert (told["env"], told["policy"], told["mean_return"]["all"], "updates" in told) == (world, "random", 0.0, False)
    assert "4 random episodes" in shoal("eval", world, "--random", "--episodes", "4").out
    assert_refused(shoal("eval", world), f"`shoal eval {world} --random` plays at random in it")
    assert_refused(shoal("eval", world, "--random", "--explore"), "leave out --explore")


def test_a_warning_is_a_note_without_a_line_of_code(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["shoal", "--version"])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # and puts it back
    assert main() == 0
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("this run used 2 devices", stacklevel=1)
    assert capsys.readouterr().err == "note: this run used 2 devices\n"
