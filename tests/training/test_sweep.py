"""Sweeps: every point is the training it would be alone, in one program; a point that fails fails alone."""

import dataclasses
import json
import typing

import jax
import numpy as np
import pytest
from tests.worlds.bandit import Bandit, Target
from tests.worlds.two_teams import TwoTeams

from shoal.algorithms import A2C, ALGORITHMS, DQN, PPO, SAC, Impala
from shoal.core.errors import AlgorithmError, OptionError, RunError, ShoalError
from shoal.core.registry import register
from shoal.networks.torsos import Network
from shoal.training import checkpoint
from shoal.training import sweep as sweeping
from shoal.training.experiment import Experiment, Learner
from shoal.training.fused import make_fused_program, policies_of
from shoal.training.loop import Loop, TrainingResult
from shoal.training.runner import Local, resume, run
from shoal.training.sweep import Point, Range, Sweep, SweepResult, summarise

TINY = Network(hidden=(8,))
PPO_TINY, A2C_TINY = PPO(minibatches=2, epochs=2, network=TINY), A2C(network=TINY)


@pytest.fixture(autouse=True)
def _worlds():
    register("test/bandit", Bandit)
    register("test/target", Target)
    register("test/two_teams", TwoTeams)


def bandit(updates=5, algorithm=A2C_TINY, **changes):
    sizes = {"num_envs": 16, "num_steps": 4, "total_env_steps": 64 * updates}
    return Experiment("test/bandit", learners={"l": Learner(algorithm)}, **sizes | changes)


def teams(**changes):
    """PPO for discrete actions and A2C for continuous ones, in one world."""
    learners = {
        "scout": Learner(PPO_TINY, {"scout": ("scout",)}),
        "carrier": Learner(A2C_TINY, {"carrier": ("carrier",)}),
    }
    sizes = {"num_envs": 16, "num_steps": 10, "total_env_steps": 160 * 8, "learners": learners}
    return Experiment("test/two_teams", **sizes | changes)


def floats_of(algorithm):
    hints = typing.get_type_hints(type(algorithm))
    return {f.name: getattr(algorithm, f.name) for f in dataclasses.fields(algorithm) if hints[f.name] is float}


def other_values(algorithm, factor):
    """Each float of an algorithm, changed by a factor that keeps it in its range."""
    return {name: factor * value if value else 0.01 * factor for name, value in floats_of(algorithm).items()}


def with_values(experiment, values, **changes):
    learners = {
        name: dataclasses.replace(learner, algorithm=dataclasses.replace(learner.algorithm, **values[name]))
        for name, learner in experiment.learners.items()
    }
    return dataclasses.replace(experiment, learners=learners, **changes)


def advanced(program, updates=3):
    carry, _ = program.advance(program.init(), program.counts[updates])
    return jax.device_get(policies_of(carry.learners))


def greatest_difference(one, other):
    return max(jax.tree.leaves(jax.tree.map(lambda a, b: float(np.abs(1.0 * a - b).max()), one, other)))


@pytest.mark.parametrize(
    ("make", "devices"),
    [
        pytest.param(lambda: bandit(algorithm=PPO_TINY, num_seeds=2), 2, id="ppo, two devices", marks=pytest.mark.slow),
        pytest.param(lambda: teams(num_seeds=2), 1, id="ppo and a2c", marks=pytest.mark.slow),
        pytest.param(lambda: teams(num_seeds=2), 2, id="ppo and a2c, two devices", marks=pytest.mark.slow),
    ],
)
def test_a_point_is_the_training_it_would_be_alone(make, devices):
    """All floats changed at once: one that is not read from `state.hyper` would show."""
    experiment = make()
    points = [
        {name: other_values(learner.algorithm, factor) for name, learner in experiment.learners.items()}
        for factor in (0.9, 0.5)
    ]
    overrides = {
        name: {option: np.array([point[name][option] for point in points]) for option in points[0][name]}
        for name in experiment.learners
    }
    swept = advanced(make_fused_program(experiment, devices, overrides))
    for point, seed in ((0, 1), (1, 0)):
        lane = jax.tree.map(lambda leaf, i=2 * point + seed: leaf[i], swept)
        alone = advanced(make_fused_program(with_values(experiment, points[point], seed=seed, num_seeds=1), devices))
        assert greatest_difference(lane, alone) < 1e-6
    assert (
        greatest_difference(jax.tree.map(lambda leaf: leaf[0], swept), jax.tree.map(lambda leaf: leaf[2], swept)) > 1e-4
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_float_of_every_algorithm_can_be_swept(name):
    quick = {"warm_up": 0, "buffer_size": 640, "batch_size": 16}  # learns from the first update on
    quick |= {"prioritised": True, "clipped": True}  # all floats matter
    fields = {field.name for field in dataclasses.fields(ALGORITHMS[name])}
    algorithm = ALGORITHMS[name](network=TINY, **{key: value for key, value in quick.items() if key in fields})
    for world in ("test/bandit", "test/target"):
        experiment = dataclasses.replace(bandit(algorithm=algorithm), env=world)
        try:
            make_fused_program(experiment, 1).shapes()
        except ShoalError:  # not for such actions
            continue
        values = other_values(algorithm, 0.9)
        plan = Sweep(experiment, {option: (value,) for option, value in values.items()})
        swept = advanced(make_fused_program(experiment, 1, plan.overrides), updates=5)
        program = make_fused_program(with_values(experiment, {"l": values}), 1)
        alone = advanced(program, updates=5)
        assert greatest_difference(jax.device_get(policies_of(program.init().learners)), alone) > 1e-4
        assert greatest_difference(jax.tree.map(lambda leaf: leaf[0], swept), alone) < 1e-6
        return
    pytest.fail(f"{name} plays neither world")


def test_one_program_whatever_the_values_and_a_donated_carry():
    program = make_fused_program(bandit(), 1, {"l": {"learning_rate": np.array([1e-3, 1e-2])}})
    other = make_fused_program(bandit(), 1, {"l": {"learning_rate": np.array([1e-1, 1.0])}})
    carry = program.init()
    held = jax.tree.leaves(carry.learners)[0]
    for first in (carry, other.init()):
        carry, _ = program.advance(first, program.counts[2])
        program.advance(carry, program.counts[1])
    assert held.is_deleted()
    assert program.advance._cache_size() == 1


@pytest.mark.slow
def test_a_point_that_fails_leaves_the_others_alone():
    plan = Sweep(bandit(), {"learning_rate": (1e-2, 1e38)})
    result = summarise(plan, run(plan, on=Local(devices=1)))
    good, bad = result.points
    assert bad.mean is None
    assert "NaN or infinite" in bad.failures[0]
    alone = run(with_values(bandit(), {"l": {"learning_rate": 1e-2}}), on=Local(devices=1))
    assert good.curves[0] == pytest.approx([line["return"] for line in alone.lines], abs=1e-5)
    assert good.failures == (None,)
    assert result.best is good
    assert result.ranked == [good, bad]
    table = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert table["points"][1]["returns"] == [None]
    assert table["best"]["values"] == {"learning_rate": 1e-2}


def test_it_ends_early_when_all_have_failed():
    plan = Sweep(bandit(updates=2000), {"learning_rate": (1e38, 2e38)})
    result = summarise(plan, run(plan, on=Local(devices=1)))
    assert result.best is None
    assert result.updates < 2000
    assert not result.interrupted


@pytest.mark.slow
def test_a_sweep_finds_the_rate_that_learns():
    """A bandit whose best arm pays 0.9: nothing is learnt without a step size. Uniform play earns 0.5."""
    plan = Sweep(bandit(updates=150), {"learning_rate": (0.0, 3e-2)})
    result = summarise(plan, run(plan, on=Local(devices=1)))
    assert result.best.values == {"learning_rate": 3e-2}
    assert result.best.mean > 0.85
    assert 0.3 < result.points[0].mean < 0.7
    assert len(result.env_steps) == len(result.best.curves[0]) == 150
    assert result.env_steps[-1] == 64 * 150


def test_the_score_is_the_mean_of_the_episodes_of_the_last_tenth():
    lines = [
        {"update": i + 1, "return/a": [float(i), None], "return/b": [1.0, None], "episodes": [1, 0]} for i in range(20)
    ]
    lines[-1]["episodes"] = [3, 0]
    columns = ("return/a", "return/b")
    assert sweeping._score(lines, columns, 0) == pytest.approx((19 * 1 + 20 * 3) / 4)
    assert sweeping._score(lines, columns, 1) is None
    lines[4]["return/a"][1], lines[4]["return/b"][1], lines[4]["episodes"] = 7.0, 1.0, [1, 2]
    assert sweeping._score(lines, columns, 1) == 8.0  # the last that there are


def test_results_are_shown_in_a_line():
    point = Point({"learning_rate": 1e-3, "gamma": 0.9}, (1.0, 2.0), (None, None), ([1.0] * 1000, [2.0] * 1000))
    failed = dataclasses.replace(point, returns=(1.0, None), failures=(None, "weights are not finite"))
    assert repr(point) == "Point(learning_rate=0.001, gamma=0.9: 1.5)"
    assert repr(failed) == "Point(learning_rate=0.001, gamma=0.9: weights are not finite)"
    sweep = Sweep(Experiment("mpe/simple_spread"), {"learning_rate": (1e-3, 1e-2)})
    result = SweepResult(sweep, (failed, point), ("agent",), [1] * 1000, 3, 1.0, 1.0, "cpu")
    assert repr(result) == f"SweepResult(mpe/simple_spread; 2 points; best: {point!r})"
    ended = TrainingResult({"agent": np.zeros(1000)}, 3, [{"update": 3}] * 1000, 1.0, 1.0, interrupted=True)
    assert repr(ended) == "TrainingResult(agent: 3 updates in 1.0 s, stopped early)"


def test_ranges():
    assert Range(1e-4, 1e-2, 3, log=True).grid() == (1e-4, 1e-3, 1e-2)
    assert Range(0.0, 1.0, 5).grid() == (0.0, 0.25, 0.5, 0.75, 1.0)
    drawn = np.array(Range(1e-4, 1e-2, log=True).draw(400, np.random.default_rng(0)))
    assert drawn.min() >= 1e-4
    assert drawn.max() <= 1e-2
    assert 0.4 < np.mean(drawn < 1e-3) < 0.6  # half of the logarithms


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Range(1.0, 0.5), "stop must be greater than its start"),
        (lambda: Range(0.0, 0.5, log=True), "start must be greater than 0"),
        (lambda: Range(0.0, 0.5, 1), "count must be at least 2"),
        (lambda: Range(0.0, float("nan"), 2), "stop must be a finite number"),
        (lambda: Range(0.0, 0.5).grid(), "count must be given"),
        (lambda: Sweep(bandit(), {"gamma": Range(0.0, 0.5)}), "gamma must have a count for a grid"),
    ],
)
def test_impossible_ranges(make, words):
    with pytest.raises(OptionError, match=words):
        make()


def test_points_are_a_product_or_drawn_with_the_seed():
    over = {"learning_rate": (1e-3, 1e-2), "gamma": Range(0.9, 1.0, 2)}
    grid = Sweep(bandit(), over).points
    assert grid == tuple({"learning_rate": rate, "gamma": gamma} for rate in (1e-3, 1e-2) for gamma in (0.9, 1.0))
    drawn = [Sweep(bandit(seed=seed), over, random=5).points for seed in (0, 0, 1)]
    assert len(drawn[0]) == 5
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(point["learning_rate"] in (1e-3, 1e-2) and 0.9 <= point["gamma"] <= 1.0 for point in drawn[0])


def test_points_of_lists_are_drawn_once_each():
    plan = Sweep(bandit(), {"learning_rate": (1e-3, 1e-2), "gamma": (0.8, 0.9)}, random=4)
    assert plan.points == Sweep(bandit(), plan.over).points
    with pytest.raises(OptionError, match="random must be at most 4, all combinations that there are, got 5"):
        dataclasses.replace(plan, random=5)


@pytest.mark.parametrize(
    ("without", "option", "switch"),
    [
        (Impala(network=TINY), "clip_eps", "clipped"),
        (DQN(network=TINY), "importance_exponent", "prioritised"),
        (SAC(network=TINY, learn_temperature=False), "target_entropy_share", "learn_temperature"),
    ],
)
def test_options_without_an_effect_are_not_swept(without, option, switch):
    with pytest.raises(OptionError, match=f"{option} has no effect on learner 'l', as its {switch} is off"):
        Sweep(bandit(algorithm=without), {option: (0.1, 0.2)})
    assert Sweep(bandit(algorithm=dataclasses.replace(without, **{switch: True})), {option: (0.1, 0.2)}).points


def test_a_name_stands_for_the_learners_that_have_it():
    assert Sweep(teams(), {"gamma": (0.9,)}).places == {"gamma": [("scout", "gamma"), ("carrier", "gamma")]}
    assert Sweep(teams(), {"algo.clip-eps": (0.1,)}).places == {"algo.clip-eps": [("scout", "clip_eps")]}
    plan = Sweep(teams(), {"scout.gamma": (0.9, 0.8), "carrier.gamma": (0.7,)})
    assert {name: list(options) for name, options in plan.overrides.items()} == {
        "scout": ["gamma"],
        "carrier": ["gamma"],
    }
    np.testing.assert_allclose(plan.overrides["carrier"]["gamma"], [0.7, 0.7])
    learners = dict(teams().learners)
    learners["carrier"] = dataclasses.replace(learners["carrier"], frozen=True)
    assert Sweep(teams(learners=learners), {"gamma": (0.9,)}).places == {"gamma": [("scout", "gamma")]}
    with pytest.raises(OptionError, match="frozen"):
        Sweep(teams(learners=learners), {"carrier.gamma": (0.9,)})


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({}, "at least one option"),
        ({"learning_rat": (1e-3,)}, "Did you mean 'learning_rate'"),
        ({"scot.gamma": (0.9,)}, "Did you mean 'scout'"),
        ({"epochs": (1.0,)}, "epochs cannot be swept: it is of type int.*These can be swept: .*clip_eps"),
        ({"anneal": (1.0,)}, "of type bool"),
        ({"network.hidden": (8.0,)}, "a part of 'network'"),
        ({"num_envs": (8.0,)}, "an option of the experiment"),
        ({"gamma": (0.9, 1.5)}, "gamma must be at least 0 and at most 1, got 1.5"),
        ({"gamma": (0.9, 0.9)}, "finite numbers that differ"),
        ({"gamma": ()}, "finite numbers that differ"),
        ({"gamma": (float("inf"),)}, "finite numbers that differ"),
        ({"gamma": (0.9,), "scout.gamma": (0.8,)}, "both set scout.gamma"),
    ],
)
def test_what_cannot_be_swept_is_explained(over, words):
    with pytest.raises(OptionError, match=words):
        Sweep(teams(), over)


def test_the_return_that_counts_is_that_of_the_swept_side():
    def measured(over, measure=None):
        plan = Sweep(teams(), over, measure=measure)
        return sweeping._measure(plan, make_fused_program(plan.experiment, 1, plan.overrides))

    assert measured({"scout.gamma": (0.9,)}) == ("return/scout",)
    assert measured({"gamma": (0.9,)}) == ("return/scout", "return/carrier")
    assert measured({"scout.gamma": (0.9,)}, "return") == ("return/scout", "return/carrier")
    assert measured({"scout.gamma": (0.9,)}, "return/carrier") == ("return/carrier",)
    with pytest.raises(OptionError, match="Did you mean 'return/scout'"):
        measured({"gamma": (0.9,)}, "return/scot")


def test_an_algorithm_that_keeps_its_floats_to_itself_is_refused():
    @dataclasses.dataclass(frozen=True)
    class Secretive(A2C):
        def init(self, key, spec):
            state = super().init(key, spec)
            return state.replace(hyper={name: value for name, value in state.hyper.items() if name != "gamma"})

    with pytest.raises(AlgorithmError, match=r"Secretive: init: `state\.hyper` lacks gamma"):
        Sweep(bandit(algorithm=Secretive(network=TINY)), {"gamma": (0.9, 0.8)}).program(1)


def killed(loop, after):
    """The loop, which dies as by SIGKILL once so many updates are read: nothing is saved then."""

    class Killed(BaseException):
        pass

    def read(self, count, table, original=loop._read):
        original(self, count, table)
        if self.tally.update >= after:
            raise Killed

    return Killed, read


def plain(result):
    """All that a sweep says, but for times."""
    return {name: value for name, value in result.to_dict().items() if name not in ("wall_s", "compile_s")}


def arrays(folder):
    newest = checkpoint.latest(folder / "checkpoints")
    return {name: value.tobytes() for name, value in checkpoint.read_arrays(newest).items()}


def test_a_killed_sweep_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    """With a point that fails before the kill, and fails no more than once."""
    plan = Sweep(bandit(updates=12, num_seeds=2), {"learning_rate": (1e-2, 1e38)}, measure="return")
    whole = summarise(plan, run(plan, tmp_path / "whole", on=Local(devices=1), checkpoint_seconds=0.0))
    died, read = killed(Loop, after=5)
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_read", read)
        with pytest.raises(died):
            run(plan, tmp_path / "parts", on=Local(devices=1), checkpoint_seconds=0.0)
    monkeypatch.chdir(tmp_path)
    parts = summarise(plan, resume("parts", on=Local(devices=1)))
    assert plain(parts) == plain(whole)
    assert parts.points[1].fault
    assert parts.best is parts.points[0]
    assert arrays(tmp_path / "parts") == arrays(tmp_path / "whole")
    again = summarise(plan, resume(tmp_path / "parts", listener=pytest.fail))
    assert plain(again) == plain(whole)
    (tmp_path / "parts" / "metrics.jsonl").write_text("")
    with pytest.raises(RunError, match=r"metrics\.jsonl is damaged or cut short: the returns of this sweep"):
        resume(tmp_path / "parts")
