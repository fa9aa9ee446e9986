"""Every call of `shoal`: what it gives back, that it is what the command line makes, and what it refuses."""

import dataclasses
import subprocess
import sys
from typing import ClassVar

import flax.linen as nn
import jax
import numpy as np
import pytest

import shoal
from shoal.cli.commands.evolve import parse_plan as evolve_plan
from shoal.cli.commands.pbt import parse_plan as pbt_plan
from shoal.core.errors import OptionError, RunError, UnknownNameError
from shoal.training import runner
from shoal.training.evaluate import evaluate as play
from shoal.training.run import weights_sha256

from .conftest import SMALL

GAME = "matrix/matching_pennies"


def test_all_of_it_is_listed_and_there():
    names = dir(shoal)
    calls = {"train", "sweep", "pbt", "evolve", "psro", "league", "match", "compare", "evaluate", "load", "resume"}
    calls |= {"make", "vectorise", "log", "lin"}
    algorithms = ["A2C", "DDPG", "DQN", "Impala", "PPO", "PQN", "SAC"]
    rooms = ["presets", "testing", "viz", "bridges", "algorithms"]
    assert {*calls, *algorithms, *rooms, "Run", "Callback", "Logger"} <= set(names)
    for name in names:
        assert getattr(shoal, name) is not None
    assert set(shoal.__all__) == set(names) - {"__version__"}
    with pytest.raises(AttributeError, match="module 'shoal' has no attribute 'trian'"):
        shoal.trian  # noqa: B018


def test_neither_import_nor_help_need_jax():
    code = "import sys, shoal, shoal.cli; shoal.cli.main(['--help']); shoal.cli.main(['--version']); shoal.ids()"
    code += "; print(sorted({'jax', 'numpy', 'flax', 'tyro'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "[]"


def test_a_run_in_memory_goes_without_a_folder_and_shows_how_far_it_is(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = shoal.train(GAME, algorithm="a2c", **SMALL | {"progress": True})
    assert run.path is None
    assert not list(tmp_path.iterdir())
    assert run.metrics["update"].max() == run.update == 10
    shown = capsys.readouterr()
    assert shown.out == "", "what a program prints is its own"
    assert "update 10/10 | 400 env steps" in shown.err
    with pytest.raises(OptionError, match="this run is in memory alone"):
        shoal.resume(run)


def test_a_folder_of_ones_own_and_one_below_runs(tmp_path, monkeypatch, pennies):
    monkeypatch.chdir(tmp_path)
    run = shoal.train(GAME, "auto", algorithm="a2c", **SMALL)
    assert run.path.parent == tmp_path / "runs"
    assert run.path.name.startswith("matrix-matching_pennies_a2c_")
    assert weights_sha256(run.policies) == weights_sha256(pennies[0].policies)
    assert {"curves.png", "replay.html"} <= {file.name for file in run.path.iterdir()}, (
        "as the command line leaves them"
    )
    with pytest.raises(RunError, match="already"):
        shoal.train(GAME, run.path, algorithm="a2c", **SMALL)


def test_resume_trains_a_finished_run_further(pennies, tmp_path):
    run = shoal.train(GAME, tmp_path / "run", algorithm="a2c", **SMALL)
    further = shoal.resume(str(run.path), total_env_steps=8e2, devices=1, progress=False)
    assert (further.update, further.env_steps) == (20, 800)
    assert further.experiment.total_env_steps == 800
    assert further.metrics["update"].max() == 20
    with pytest.raises(OptionError, match="and 400 are fewer"):
        shoal.resume(run, total_env_steps=400)
    with pytest.raises(OptionError, match=r"shoal.resume: unknown option 'callback'. Did you mean 'callbacks'"):
        shoal.resume(run, callback=[])


def test_evaluate_takes_runs_folders_experiments_and_names(pennies):
    run = pennies[0]
    wanted = play(run.experiment.setup, run.policies, 32).mean_return
    assert shoal.evaluate(run, episodes=32).mean_return == wanted
    assert shoal.evaluate(str(run.path), episodes=32).mean_return == wanted
    assert shoal.evaluate(run.experiment, run.policies, episodes=32).mean_return == wanted
    random = shoal.evaluate(GAME, episodes=256)
    assert abs(random.mean_return["player_0"]) < 0.3
    with pytest.raises(UnknownNameError, match=r"unknown policy 'player_3'. Did you mean"):
        shoal.evaluate(GAME, {"player_3": run.policies["player_0"]})
    with pytest.raises(OptionError, match="opponents and checkpoint are for runs"):
        shoal.evaluate(GAME, checkpoint="best")
    with pytest.raises(OptionError, match="checkpoint must be left out for a run that is loaded already"):
        shoal.evaluate(pennies[0], checkpoint="best")
    older = dataclasses.replace(pennies[0], update=3)
    with pytest.raises(OptionError, match="as it was after 3 updates, but a run goes on from its newest checkpoint"):
        shoal.resume(older, total_env_steps=800)


def test_runs_of_unlike_algorithms_are_matched(pennies):
    first, second = pennies
    found = shoal.match({"player_0": first.path, "player_1": second}, episodes=1e2)
    assert found.episodes == 100
    total = found.returns["player_0"] + found.returns["player_1"]
    np.testing.assert_array_equal(total, 0)  # a zero-sum game
    lone, _ = second.policy("player_1")(np.zeros(second.policy("player_1").shape))
    other, _ = first.policy("player_0")(np.zeros(first.policy("player_0").shape))
    assert found.returns["player_0"][0] == (1.0 if lone == other else -1.0), "greedy play, worked out from the policies"
    against = shoal.match({"player_0": first, "player_1": "random"}, episodes=400)
    assert abs(against.mean_return["player_0"]) < 0.25


def test_matches_that_cannot_be(pennies, spread):
    first, _ = pennies
    for players, words in [
        ({"player_0": first}, r"nobody plays player_1\[0\]. Name a run, or 'random'"),
        ({"player_0": "random", "player_1": "random"}, "everybody plays at random"),
        ({"player_0": first, "player_1": spread}, "trained in another world"),
        ({"player_0": first, "player_9": first}, "unknown policy, player or seat 'player_9'"),
        ({"player_0": first, "player_0[0]": first, "player_1": first}, "both play"),
        ({}, "players must be a mapping"),
    ]:
        with pytest.raises(OptionError, match=words):
            shoal.match(players)


def test_a_sweep_says_which_value_is_best(tmp_path):
    own = {"algorithm": "a2c", "num_seeds": 2, "gamma": [0.5, 0.9]}
    result = shoal.sweep(GAME, tmp_path / "sweep", learning_rate=shoal.log(1e-4, 1e-2, 3), **own, **SMALL)
    assert [point.values["learning_rate"] for point in result.points] == [1e-4, 1e-4, 1e-3, 1e-3, 1e-2, 1e-2]
    assert result.best in result.points
    assert result.best.mean == max(point.mean for point in result.points)
    assert {"sweep.json", "sweep.png"} <= {file.name for file in (tmp_path / "sweep").iterdir()}
    again = shoal.resume(tmp_path / "sweep", devices=1, progress=False)
    assert again.best.values == result.best.values
    assert shoal.lin(0.0, 1.0, 3).grid() == (0.0, 0.5, 1.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, r"shoal.sweep: over what\? Give an option a range"),
        ({"learning_rat": shoal.log(1e-4, 1e-2, 3)}, "unknown option 'learning_rat'"),
        ({"learning_rate": shoal.log(1e-4, 1e-2)}, "learning_rate must have a count"),
        ({"num_envs": shoal.lin(1.0, 9.0, 3)}, "num_envs cannot be swept"),
        ({"learning_rate": shoal.log(1e-4, 1e-2, 3), "cluster": "auto"}, "a sweep is run on one machine"),
    ],
)
def test_sweeps_that_cannot_be(options, words):
    with pytest.raises(OptionError, match=words):
        shoal.sweep(GAME, "auto", **SMALL | {"devices": None} | options)


def test_the_old_name_of_an_option_is_understood():
    with pytest.warns(UserWarning, match="breadth is now uniform_share"):
        grown = shoal.psro("psro/kuhn", oracle="exact", breadth=0.25, iterations=1, progress=False)
    assert grown.config.psro.uniform_share == 0.25


def test_exact_psro_knows_its_nash_conv(tmp_path):
    told = []

    class Listen(shoal.Callback):
        def on_update(self, event):
            told.append((event.update, event.line["nash_conv"]))

    options = {"oracle": "exact", "progress": False}
    grown = shoal.psro("cards/kuhn", tmp_path / "kuhn", iterations=3, callbacks=[Listen()], **options)
    assert [update for update, _ in told] == [0, 1, 2, 3]
    assert grown.nash_conv == told[-1][1] < told[0][1]
    assert set(grown.mixtures) == {"player_0", "player_1"}
    assert grown.payoffs.shape[0] == 2
    assert len(grown.policies("player_0")) == grown.payoffs.shape[1]
    loaded = shoal.load(tmp_path / "kuhn")
    assert loaded.nash_conv == grown.nash_conv
    assert shoal.resume(loaded, progress=False).history == grown.history
    axes = grown.plot(label="first")
    assert grown.plot(axes=axes, label="second") is axes
    assert axes.get_lines()[0].get_ydata()[-1] == grown.nash_conv
    assert len({line.get_color() for line in axes.get_lines()}) == 2
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["first", "second"]
    with pytest.raises(OptionError, match="is a population, whose policies"):
        shoal.evaluate(tmp_path / "kuhn")


def test_a_callback_stops_a_population():
    class Enough(shoal.Callback):
        def on_update(self, event):
            if event.update == 1:
                event.stop()

    grown = shoal.psro("cards/kuhn", iterations=9, oracle="exact", callbacks=[Enough()], progress=False)
    assert (grown.state.iteration, grown.interrupted) == (1, True)


@pytest.fixture
def asked(monkeypatch):
    """What a call would run, in place of running it."""
    found = []

    class Asked(Exception):
        pass

    def run(config, folder, **more):
        found.append((config, folder, more["on"]))
        raise Asked

    monkeypatch.setattr(runner, "run", run)

    def ask(call, *args, **options):
        with pytest.raises(Asked):
            call(*args, **options)
        return found.pop()

    return ask


def test_populations_are_those_of_the_command_line(asked):
    config, folder, on = asked(shoal.psro, "cards/leduc", iterations=20, meta_solver="nash", greedy=True, num_envs=64)
    assert config.experiment.learners == shoal.presets.get("psro/leduc").learners
    assert (config.experiment.num_envs, config.psro.iterations, config.psro.meta_solver) == (64, 20, "nash")
    assert (config.greedy, config.oracle, folder, on) == (True, "learned", None, runner.Local())
    config, *_ = asked(shoal.league, "pong", iterations=10, exploit_every=2)
    assert (config.psro.meta_solver, dict(config.psro.solver_options)) == ("league", {"exploit_every": 2})
    config, *_ = asked(shoal.pbt, GAME, learning_rate=shoal.log(1e-4, 1e-2), members=4, interval=2)
    words = [GAME, "--over", "learning_rate=1e-4:1e-2:log", "--members", "4", "--interval", "2"]
    assert config == pbt_plan(words)[0]
    config, *_ = asked(
        shoal.evolve, "control/cartpole", strategy="ga", population=64, generations=3, search={"parents": 4}
    )
    words = "control/cartpole --strategy ga --population 64 --generations 3 --parents 4"
    assert config == evolve_plan(words.split())[0]
    assert (
        asked(shoal.evolve, "control/pendulum", strategy="erl")[0]
        == evolve_plan(["control/pendulum", "--strategy", "erl"])[0]
    )


def test_clusters_by_name_or_by_what_they_have(asked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, folder, on = asked(shoal.train, "impala/simple_spread", cluster="auto")
    assert (on.address, on.plan.recipe) == ("auto", "impala")
    assert folder.parent == tmp_path / "runs", "a run on a cluster needs a folder"
    _, _, on = asked(shoal.train, GAME, cluster={"address": "ray://x:1", "actors": 4})
    assert (on.address, on.plan.recipe, on.plan.actors) == ("ray://x:1", "sync", 4)
    _, _, on = asked(shoal.psro, "cards/kuhn", cluster={"workers": 3})
    assert on.pool.workers == 3
    with pytest.raises(OptionError, match=r"cluster: unknown option 'actor'. Did you mean 'actors'"):
        shoal.train(GAME, cluster={"actor": 4})
    with pytest.raises(OptionError, match="devices is for one machine: on a cluster give learner_cpus or learner_gpus"):
        shoal.train(GAME, cluster="auto", devices=2)


@pytest.mark.parametrize(
    ("call", "options", "words"),
    [
        (shoal.psro, {"meta_solvr": "nash"}, "shoal.psro: unknown option 'meta_solvr'"),
        (shoal.psro, {"checkpoint_seconds": 1.0}, "shoal.psro has no checkpoint_seconds"),
        (shoal.league, {"meta_solver": "nash"}, "shoal.league has no meta_solver"),
        (shoal.pbt, {"members": 4}, r"shoal.pbt: over what\?"),
        (shoal.evolve, {"num_envs": 4}, "shoal.evolve has no num_envs"),
        (shoal.evolve, {"strategy": "gaa"}, "gaa"),
        (shoal.train, {"progres": False}, "shoal.train: unknown option 'progres'. Did you mean 'progress'"),
    ],
)
def test_options_that_calls_do_not_have(call, options, words):
    with pytest.raises((OptionError, UnknownNameError), match=words):
        call("pong", **options)


def test_members_that_tune_themselves():
    sizes = {"num_envs": 8, "num_steps": 5, "total_env_steps": 160, "hidden": (4,), "devices": 1, "progress": False}
    run = shoal.pbt(
        GAME,
        algorithm="a2c",
        learning_rate=shoal.log(1e-4, 1e-2),
        members=4,
        interval=2,
        measure="return/player_0",
        **sizes,
    )
    assert len(run.standing["scores"]) == 4
    assert 1e-4 <= run.standing["values"]["learning_rate"][run.standing["member"]] <= 1e-2
    assert set(run.policies) == {"player_0", "player_1"}


def test_worlds_are_vectorised_and_handed_to_others():
    env = shoal.make("mpe/simple_spread")
    envs = shoal.vectorise(env, 4)
    worlds = envs.reset(jax.random.key(0))
    worlds, outcome, ended = jax.jit(envs.step)(worlds, {"agent": np.zeros((4, 3), np.int32)})
    assert outcome.reward["agent"].shape == (4, 3)
    assert not ended.mask.any()
    pytest.importorskip("pettingzoo", reason="PettingZoo is not installed: pip install pettingzoo")
    theirs = env.to_pettingzoo()
    theirs.reset(seed=0)
    assert theirs.agents == ["agent_0", "agent_1", "agent_2"]
    assert shoal.make("cards/kuhn").to_pettingzoo(turns=True).possible_agents == ["player_0", "player_1"]


def test_a_loss_and_a_torso_of_ones_own(asked):
    @shoal.register_algorithm("api_ppo")
    @dataclasses.dataclass(frozen=True)
    class MyPPO(shoal.PPO):
        name: ClassVar[str] = "api_ppo"
        beta: float = 0.1  # weight of the penalty

    @shoal.register_torso("api_sum")
    class Sum(nn.Module):
        heads: int = 1

        @nn.compact
        def __call__(self, view):
            return nn.Dense(self.heads)(view)

    config, *_ = asked(shoal.train, "mpe/simple_spread", algorithm=MyPPO(), beta=0.2, learning_rate=1e-3)
    (learner,) = config.learners.values()
    assert (learner.algorithm.name, learner.algorithm.beta, learner.algorithm.learning_rate) == ("api_ppo", 0.2, 1e-3)
    network = shoal.Network(torso="api_sum", torso_options={"heads": 4})
    config, *_ = asked(shoal.train, "mpe/simple_spread", algorithm=shoal.PPO(network=network))
    by_name, *_ = asked(
        shoal.train, "mpe/simple_spread", algorithm=shoal.PPO, torso_options={"heads": 4}, torso="api_sum"
    )
    assert config == by_name
    assert config.to_dict()["learners"]["agent"]["algorithm"]["network"]["torso"] == "api_sum"
