"""What a run can do once it is made, and when it is loaded again."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal import presets
from shoal.api.changes import change_algorithm
from shoal.core.errors import OptionError, RunError, UnknownNameError
from shoal.training.metrics import read_metrics
from shoal.training.run import weights_sha256
from shoal.training.statistics import interval, iqm


def test_metrics_are_a_tidy_table(spread):
    columns = spread.metrics
    assert list(columns) == ["update", "env_steps", "seed", "name", "value"]
    assert set(columns["seed"].tolist()) == {3, 4}
    lines = read_metrics(spread.path / "metrics.jsonl")
    chosen = (columns["name"] == "entropy/agent") & (columns["seed"] == 4)
    assert columns["value"][chosen].tolist() == [line["entropy/agent"][1] for line in lines]
    assert columns["env_steps"][chosen].tolist() == [line["env_steps"] for line in lines]
    assert not np.isnan(columns["value"]).any()


def test_pandas_takes_metrics_as_they_are(spread):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: pip install pandas")
    table = pandas.DataFrame(spread.metrics)
    assert len(table) == len(spread.metrics["value"])
    assert set(table[table.name == "seconds"].seed) == {3, 4}  # what all seeds have in common


def test_plots_are_axes_that_show_themselves(spread):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install matplotlib")
    axes = spread.plot("return")
    assert axes._repr_png_().startswith(b"\x89PNG")
    (line,) = axes.get_lines()
    assert line.get_xdata()[-1] == spread.env_steps
    assert len(axes.collections) == 1, "an interval over seeds"
    assert spread.plot("entropy/agent", axes=axes) is axes
    assert len(axes.get_lines()) == 2
    with pytest.raises(UnknownNameError, match=r"unknown metric 'entropy'. Did you mean 'entropy/agent'"):
        spread.plot("entropy")


def test_evaluation_is_of_all_seeds_with_intervals(spread):
    found = spread.evaluate(episodes=16)
    assert found.returns["agent"].shape == (2, 16)
    low, high = found.interval["agent"]
    assert min(found.mean_return["agent"]) - 1e-4 <= low < high <= max(found.mean_return["agent"]) + 1e-4
    assert "2 seeds x 16 episodes" in repr(found)
    random = spread.evaluate(episodes=16, opponents={"agent": "random"})
    assert random.returns["agent"].shape == (2, 16)
    with pytest.raises(OptionError, match=r"opponents: unknown policy, player or seat 'agnet'. Did you mean 'agent'"):
        spread.evaluate(opponents={"agnet": "random"})


def test_the_interval_of_one_seed_is_over_its_episodes(pennies):
    found = pennies[0].evaluate(episodes=64, explore=True)
    low, high = found.interval["player_0"]
    assert high - low == pytest.approx(2 * 1.96 * found.standard_error["player_0"])


def test_a_policy_is_called_for_one_agent_or_many(spread):
    policy = spread.policy("agent", seed_index=1)
    views = np.random.default_rng(0).normal(size=(5, 3, 18)).astype(np.float32)
    actions, memory = policy(views)
    assert actions.shape == (5, 3)
    assert memory == ()
    alone, _ = policy(views[2, 1])
    assert alone == actions[2, 1]
    other, _ = spread.policy()(views)
    assert (other != actions).any(), "of another seed"
    drawn, _ = policy(np.zeros((500, 18)), key=jax.random.key(0))
    assert len(set(drawn.tolist())) == 5, "as in training"
    bound, _ = jax.jit(policy)(views)
    np.testing.assert_array_equal(bound, actions)
    allowed, _ = policy(views, legal=np.eye(5, dtype=bool)[np.full((5, 3), 2)])
    assert set(np.ravel(allowed).tolist()) == {2}


def test_a_policy_goes_through_jit_and_vmap(spread):
    policies = [spread.policy("agent", seed_index=seed) for seed in range(2)]
    views = np.random.default_rng(0).normal(size=(3, 18)).astype(np.float32)
    wanted = [policy(views)[0] for policy in policies]
    traces = []

    @jax.jit
    def act(policy, views):
        traces.append(policy.name)
        return policy(views)[0]

    for policy, actions in zip(policies, wanted, strict=True):
        np.testing.assert_array_equal(act(policy, views), actions)
    assert traces == ["agent"], "other weights are no other program"
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), *policies)
    np.testing.assert_array_equal(jax.vmap(act, in_axes=(0, None))(both, views), wanted)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(policies[0])]
    assert all(path.startswith(".params") for path in paths)


def test_views_and_names_that_do_not_fit(spread):
    with pytest.raises(UnknownNameError, match=r"unknown policy 'agnet'. Did you mean 'agent'"):
        spread.policy("agnet")
    with pytest.raises(OptionError, match=r"one agent's view has the shape \(18,\).*got \(17,\)"):
        spread.policy()(np.zeros(17))
    with pytest.raises(OptionError, match=r"seed_index must be between 0 and 1, got 2"):
        spread.policy(seed_index=2)


def test_a_policy_remembers():
    experiment = presets.get("matrix/iterated_prisoners_dilemma")
    algorithm = shoal.A2C(network=shoal.Network(hidden=(4,), recurrent="gru", recurrent_size=4))
    experiment = change_algorithm(experiment, algorithm)
    policies = {}
    for own, spec in experiment.setup.learners.values():
        policies |= own.init(jax.random.key(0), spec).params
    policy = shoal.Run(experiment, policies, 0, [], 0.0).policy("player_0")
    view = np.ones((2, *policy.shape), np.float32)
    _, memory = policy(view)
    _, later = policy(view, memory)
    assert {leaf.shape for leaf in jax.tree.leaves(memory)} == {(2, 4)}
    assert any((a != b).any() for a, b in zip(jax.tree.leaves(memory), jax.tree.leaves(later), strict=True))


def test_a_replay_shows_itself_and_can_be_saved(spread, tmp_path):
    replay = spread.replay(seed=2)
    assert replay._repr_html_().startswith("<iframe srcdoc=")
    page = replay.save(tmp_path / "replay.html").read_text()
    assert "mpe/simple_spread" in page
    assert "after 10 updates" in page


def test_a_run_is_loaded_as_it_was(spread):
    loaded = shoal.load(str(spread.path))
    assert loaded.experiment == spread.experiment
    assert weights_sha256(loaded.policies) == weights_sha256(spread.policies)
    assert loaded.metrics["value"].tolist() == spread.metrics["value"].tolist()
    assert (loaded.update, loaded.interrupted) == (10, False)
    lines = [line for line in read_metrics(spread.path / "metrics.jsonl") if "eval/return" in line]
    best = max(lines, key=lambda line: np.mean(line["eval/return"]))
    assert shoal.load(spread.path, checkpoint="best").update == best["update"]


def test_folders_that_cannot_be_loaded(pennies, tmp_path):
    with pytest.raises(RunError, match="is not a run folder"):
        shoal.load(tmp_path / "nothing")
    with pytest.raises(RunError, match="has no best checkpoint"):
        shoal.load(pennies[0].path, checkpoint="best")
    with pytest.raises(RunError, match="has no checkpoint 7: it keeps those"):
        shoal.load(pennies[0].path, checkpoint=7)


def test_figures_over_seeds_worked_out_by_hand():
    assert iqm(np.array([0.0, 1.0, 2.0, 100.0])) == 1.5
    assert iqm(np.array([0.0, 1.0, 5.0])) == pytest.approx((0.25 * 0 + 1.0 + 0.25 * 5) / 1.5)
    np.testing.assert_allclose(interval(np.array([[2.0, 2.0, 2.0]])), [[2.0], [2.0]])
    low, high = interval(np.array([0.0, 1.0]), np.mean)
    assert (low, high) == (0.0, 1.0)


def test_a_run_in_memory_and_its_folder_compare_alike(spread):
    found = shoal.compare([spread])
    again = shoal.compare([spread.path])
    assert found.final == again.final
    assert list(found.final) == ["mappo"]
    assert found.table["run"].tolist() == [spread.path.name] * 2
    alone = shoal.compare([dataclasses.replace(spread, path=None)], by="run")
    assert list(alone.final) == ["mpe/simple_spread in memory"]


def test_what_a_run_is_called(spread):
    assert repr(spread) == f"Run(mpe/simple_spread by mappo; 400 env steps; 2 seeds; {spread.path})"
    assert json.loads((spread.path / "config.json").read_text())["kind"] == "training"


def test_films_of_runs(spread, pennies, tmp_path):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'shoal-rl[video]'")
    assert spread.film(tmp_path / "x.webp", size=64, fps=15, seed_index=1) == tmp_path / "x.webp"
    with image.open(tmp_path / "x.webp") as film:
        assert film.n_frames >= 6
    first, second = pennies
    both = first.film(tmp_path / "both.png", beside=second, episodes=2, size=64, opponents={"player_1": "random"})
    with image.open(both) as film:
        assert film.width > 2 * 64
    with pytest.raises(shoal.ShoalError, match=r"unknown argument of film 'sise'\. Did you mean 'size'"):
        spread.film(tmp_path / "y.webp", sise=3)
    with pytest.raises(shoal.ShoalError, match="beside must be a run"):
        spread.film(tmp_path / "y.webp", beside=["x"])
