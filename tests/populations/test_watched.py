"""Scenes of many that train side by side: the best is shown and named, and no bit of the run is changed by it."""

import pytest

from shoal import A2C, Network
from shoal.core import trees
from shoal.core.errors import OptionError
from shoal.populations.evolution.plan import Evolution
from shoal.populations.pbt.plan import PBT, Range
from shoal.populations.population import PopulationConfig
from shoal.populations.psro import PSRO
from shoal.presets import resolve
from shoal.training import checkpoint
from shoal.training.evaluate import recorder_of
from shoal.training.experiment import Experiment, Learner
from shoal.training.runner import Local, resume, run
from shoal.training.scene_files import read_plan, read_scene, read_scenes
from shoal.training.scenes import sample_points
from shoal.training.sweep import Sweep, summarise

LEARNERS = {"agent": Learner(A2C(network=Network(hidden=(4,))), {"agent": ("agent",)})}
WORLD = {"env": "mpe/simple", "env_options": {"max_steps": 5}, "learners": LEARNERS}
SMALL = Experiment(**WORLD, num_envs=4, num_steps=5, total_env_steps=20 * 6)
PLANS = {
    "pbt": PBT(SMALL, {"learning_rate": Range(1e-3, 1e-1, log=True)}, members=3, interval=2),
    "sweep": Sweep(SMALL.replace(num_seeds=2), {"learning_rate": (1e-2, 1e-3, 1e-1), "gamma": (0.9,)}),
    "evolution": Evolution(Experiment(**WORLD), population=4, generations=6, episodes=2),
}
ONE = Local(devices=1)


@pytest.fixture(scope="module", params=[pytest.param(p, marks=[pytest.mark.slow] * (p == "evolution")) for p in PLANS])
def watched(request, tmp_path_factory):
    """A run of six updates with four points: its plan, its folder and its result."""
    folder = tmp_path_factory.mktemp("watched") / request.param
    return PLANS[request.param], folder, run(PLANS[request.param], folder, on=ONE, scenes=4)


def played(plan, policies, training=None):
    """The return of the episode that all points show."""
    own = policies if training is None else trees.row(policies, training)
    setup = plan.played.setup
    return float(recorder_of(setup)(own, plan.played.seed, 200).returns["agent"][-1])


def arrays(folder):
    newest = checkpoint.latest(folder / "checkpoints")
    return {name: value.tobytes() for name, value in checkpoint.read_arrays(newest).items()}


def untimed(lines):
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def points_of(folder):
    return [read_scene(point.path) for point in read_scenes(folder)]


def test_the_run_has_the_same_bits_without(watched, tmp_path):
    plan, folder, result = watched
    other = run(plan, tmp_path / "run", on=ONE, scenes=0)
    assert arrays(tmp_path / "run") == arrays(folder)
    assert untimed(other.lines) == untimed(result.lines)
    assert other.standing == result.standing
    assert not (tmp_path / "run" / "scenes").exists()


def test_every_point_has_its_file(watched):
    """An evolution counts the env steps that its episodes took."""
    _, folder, result = watched
    steps = {line["update"]: line["env_steps"] for line in result.lines}
    wanted = [(update, steps.get(update, 0)) for update in sample_points(6, 4)]
    assert [point[:2] for point in read_scenes(folder)] == wanted
    assert [point["data"]["length"] for point in points_of(folder)] == [6] * 4
    assert read_plan(folder) == 4


def test_the_best_is_shown_and_named(watched):
    plan, folder, result = watched
    first, *_, last = points_of(folder)
    shown, label = result.policies, ""
    if plan.kind == "pbt":
        assert first["label"] == "member 0", "nobody has a score yet"
        label = f"member {result.standing['member']} (best)"
        returns = played(plan, shown)
    elif plan.kind == "sweep":
        assert first["label"] == "point 0: learning_rate=0.01, gamma=0.9"
        found = summarise(plan, result)
        best = found.points.index(found.best)
        label = f"point {best} (best): learning_rate={found.best.values['learning_rate']:g}, gamma=0.9"
        returns = played(plan, shown, 2 * best)
    else:
        returns = played(plan, shown)
    assert last["label"] == label
    assert last["data"]["subtitle"].endswith(f" env steps · {label}" if label else " env steps")
    assert last["returns"] == {"agent": pytest.approx(returns, abs=1e-3)}


def test_a_stopped_run_goes_on_with_its_points(watched, tmp_path):
    plan, folder, result = watched

    class Killed(BaseException):
        pass

    def kill(progress):
        if progress.update >= 3:
            raise Killed

    with pytest.raises(Killed):
        run(plan, tmp_path / "run", on=ONE, scenes=4, listener=kill, checkpoint_seconds=0.0)
    kept = [point.update for point in read_scenes(tmp_path / "run")]
    assert kept
    assert 6 not in kept
    again = resume(tmp_path / "run")
    assert arrays(tmp_path / "run") == arrays(folder)
    assert again.standing == result.standing
    assert [point.update for point in read_scenes(tmp_path / "run")] == sample_points(6, 4)
    assert points_of(tmp_path / "run") == points_of(folder)


def test_a_point_that_failed_is_not_the_best():
    program = PLANS["sweep"].program(1)
    carry = program.init()
    lines = [
        {"update": update, "env_steps": 20 * update, "episodes": [4.0] * 6, "return/agent": returns}
        for update, returns in ((1, [0.0, 0.0, 9.0, 9.0, 1.0, 1.0]), (20, [-3.0, -3.0, -2.0, -2.0, -1.0, None]))
    ]
    assert program.watched(carry, lines).label == "point 1 (best): learning_rate=0.001, gamma=0.9"
    latch = carry.latch.replace(kind=carry.latch.kind.at[3].set(1))
    assert program.watched(carry.replace(latch=latch), lines).label == "point 0 (best): learning_rate=0.01, gamma=0.9"


def test_what_cannot_be_watched_is_refused(tmp_path):
    population = PopulationConfig(resolve("psro/kuhn"), PSRO("nash", iterations=1), oracle="exact")
    with pytest.raises(OptionError, match="psro: scenes are of trainings, sweeps, population-based trainings and"):
        run(population, tmp_path / "run", scenes=2)
    with pytest.raises(OptionError, match="scenes are kept in a run folder"):
        run(PLANS["pbt"], scenes=2)
    assert not list(tmp_path.iterdir())
