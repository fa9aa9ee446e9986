"""Populations and evolution by the command line on a cluster: runs like any other, and mistakes that are explained."""

import dataclasses
import json

import pytest

from shoal.cluster.plan import ClusterPlan
from shoal.cluster.run import Cluster, pool_of
from shoal.cluster.services.scaling import check_request, request_workers, requested_workers
from shoal.cluster.tasks.pool import PoolConfig, WorkerPool
from shoal.cluster.transport.launcher import ThreadLauncher
from shoal.core.errors import OptionError, RunError
from shoal.populations.evolution.plan import Evolution
from shoal.training.experiment import Experiment

from .conftest import SMALL, assert_refused

KUHN = ["psro", "cards/kuhn", "--num-envs", "16", "--total-env-steps", "1280", "--iterations", "1", "--episodes", "50"]


class TestRefused:
    def test_options_of_a_team_without_a_cluster(self, shoal):
        for command in ("psro", "league"):
            outcome = shoal(command, "cards/kuhn", "--workers", "2", "--worker-cpus", "1")
            assert_refused(outcome, "--workers, --worker-cpus is for work on a cluster: add --cluster auto")
        outcome = shoal("evolve", "control/cartpole", "--workers", "2")
        assert_refused(outcome, "shoal evolve: --workers is for work on a cluster")

    def test_devices_are_of_one_machine(self, shoal):
        outcome = shoal("psro", "cards/kuhn", "--cluster", "auto", "--devices", "1")
        assert_refused(outcome, "--devices is for one machine")

    def test_exact_responses(self, shoal):
        outcome = shoal("psro", "cards/kuhn", "--oracle", "exact", "--cluster", "auto")
        assert_refused(outcome, "exact responses take a moment on one machine: leave out --cluster")

    def test_erl(self, shoal):
        outcome = shoal("evolve", "mpe/simple_spread", "--strategy", "erl", "--cluster", "auto")
        assert_refused(outcome, "leave out --cluster")

    def test_nobody_works(self, shoal):
        assert_refused(shoal("psro", "cards/kuhn", "--cluster", "auto", "--workers", "0"), "workers must be")

    @pytest.mark.parametrize("command", ["train mpe/simple_spread", "psro cards/kuhn", "evolve control/cartpole"])
    def test_nobody_answers(self, shoal, command, tmp_path):
        outcome = shoal(*command.split(), "--cluster", "127.0.0.1:1", "--run-dir", tmp_path / "run")
        assert_refused(outcome, "nobody answers at 127.0.0.1:1")
        assert not (tmp_path / "run").exists()

    def test_scaling_needs_the_right_word(self, shoal, tmp_path):
        (tmp_path / "cluster.json").write_text(json.dumps({"team": {"workers": 2}, "running": True}))
        assert_refused(shoal("cluster", "scale", tmp_path, "--actors", "3"), "has workers: say how many")
        assert_refused(shoal("cluster", "scale", tmp_path, "--workers", "0"), "workers must be")
        assert_refused(shoal("cluster", "advise", tmp_path), "advice is for trainings")
        assert_refused(shoal("cluster", "scale", tmp_path, "--workers", "4097"), "workers must be 4096 at most")
        assert shoal("cluster", "scale", tmp_path, "--workers", "3").code == 0
        assert requested_workers(tmp_path) == 3


def test_word_that_makes_no_sense_is_not_heard(tmp_path):
    assert requested_workers(tmp_path) is None
    request_workers(tmp_path, 0)
    assert requested_workers(tmp_path) is None
    request_workers(tmp_path, 4097)
    assert requested_workers(tmp_path) is None
    (tmp_path / "wanted.json").write_text("{")
    assert requested_workers(tmp_path) is None


def test_a_pool_that_was_scaled_goes_on_so(tmp_path):
    assert pool_of(tmp_path) is None
    (tmp_path / "cluster.json").write_text(json.dumps({"team": {"workers": 2, "cpus": 0.5}}))
    assert pool_of(tmp_path) == PoolConfig(workers=2, cpus=0.5)
    request_workers(tmp_path, 5)
    assert pool_of(tmp_path) == PoolConfig(workers=5, cpus=0.5)


class TestCrowds:
    """Numbers of processes that a folder may ask for."""

    @pytest.fixture(autouse=True)
    def _two_cores(self, monkeypatch):
        monkeypatch.setattr("os.cpu_count", lambda: 2)

    def test_nobody_has_so_many(self):
        with pytest.raises(OptionError, match="learners and shards together must be 4096 at most, got 1020001"):
            ClusterPlan(actors=20_000, actor_cpus=0.0, shards=1_000_000)
        with pytest.raises(OptionError, match="workers must be 4096 at most"):
            PoolConfig(workers=1_000_000, cpus=0.0)

    def test_a_folder_gets_few_on_this_machine_and_any_on_a_cluster(self, tmp_path):
        check_request(tmp_path, 48, private=True)
        check_request(tmp_path, 4096, private=False)
        with pytest.raises(RunError, match="asks for 49 processes, and a folder gets at most 48 on this machine"):
            check_request(tmp_path, 49, private=True)

    def test_a_training_that_goes_on(self, tmp_path):
        experiment = Experiment("control/cartpole")
        on = Cluster(launcher=ThreadLauncher())
        (tmp_path / "config.json").write_text(json.dumps({"cluster": {"actors": 100, "actor_cpus": 0.0}}))
        with pytest.raises(RunError, match="asks for 102 processes"):
            on.prepare(dataclasses.replace(experiment, num_envs=100), tmp_path)
        (tmp_path / "config.json").write_text(json.dumps({"cluster": {"shards": 1_000_000}}))
        with pytest.raises(OptionError, match=r"config\.json: cluster: actors, .* must be 4096 at most"):
            on.prepare(experiment, tmp_path)
        request_workers(tmp_path, 200)
        with pytest.raises(RunError, match="asks for 200 processes"):
            dataclasses.replace(on, plan=ClusterPlan()).prepare(experiment, tmp_path)

    def test_a_pool_that_goes_on(self, tmp_path):
        (tmp_path / "cluster.json").write_text(json.dumps({"team": {"workers": 100, "cpus": 0}}))
        plan = Evolution(Experiment("control/cartpole"), population=8)
        with pytest.raises(RunError, match="asks for 100 processes"):
            Cluster(launcher=ThreadLauncher()).prepare(plan, tmp_path)
        request_workers(tmp_path, 200)
        with pytest.raises(RunError, match="asks for 200 processes"):
            WorkerPool(tmp_path, ThreadLauncher(), PoolConfig(), pytest.fail)


@pytest.mark.slow
def test_a_population_grows_and_goes_on(shoal, tmp_path):
    outcome = shoal(*KUHN, "--cluster", "auto", "--workers", "2", "--run-dir", tmp_path / "run", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["population"] == 2
    alone = shoal(*KUHN, "--run-dir", tmp_path / "alone", "--json")
    assert outcome.json["nash_conv"] == pytest.approx(alone.json["nash_conv"], abs=1e-4)
    told = shoal("cluster", "status", tmp_path / "run")
    assert told.code == 0
    assert "worker-1" in told.out + told.err
    newest = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1]
    newest.unlink()  # as if it had been killed before
    outcome = shoal("resume", tmp_path / "run", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["nash_conv"] == pytest.approx(alone.json["nash_conv"], abs=1e-4)
    status = json.loads((tmp_path / "run" / "cluster.json").read_text())
    assert status["messages"]["board"]["worker>report_and_fetch"] > 0


@pytest.mark.slow
def test_members_learn_elsewhere(shoal, world, tmp_path):
    more = ["--total-env-steps", "96", "--over", "learning-rate=1e-4:1e-2:log", "--members", "2", "--interval", "2"]
    args = ["pbt", "test/tiny", "--import", world, *SMALL, *more, "--measure", "return/hunter"]
    outcome = shoal(*args, "--cluster", "auto", "--run-dir", tmp_path / "run", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["updates"] == 3


@pytest.mark.slow
def test_members_play_elsewhere(shoal, tmp_path):
    args = ["evolve", "control/cartpole", "--population", "16", "--generations", "3", "--max-steps", "50", "--json"]
    outcome = shoal(*args, "--cluster", "auto", "--workers", "2", "--run-dir", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    alone = shoal(*args, "--run-dir", tmp_path / "alone", "--devices", "1")
    assert outcome.json["fitness"] == alone.json["fitness"]
