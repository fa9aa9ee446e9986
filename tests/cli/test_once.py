"""On the way from a command line to a program nothing is done twice; and each default and each help stands once."""

import dataclasses

import pytest
import tyro

from shoal.cli.arguments import comments
from shoal.cli.commands.evolve import EvolveOptions
from shoal.cli.commands.pbt import PbtOptions
from shoal.cli.commands.psro import LeagueOptions, PsroOptions
from shoal.cli.commands.sweep import SweepOptions
from shoal.cli.run_options import POOL, PoolOptions, TrainOptions
from shoal.cluster.plan import ClusterPlan
from shoal.cluster.tasks.pool import PoolConfig
from shoal.envs.tag.grid import TagGrid
from shoal.populations.evolution.plan import Evolution
from shoal.populations.pbt.plan import PBT
from shoal.populations.population import PopulationConfig
from shoal.populations.psro import PSRO
from shoal.training.runner import Job
from shoal.training.sweep_plan import Sweep

from .conftest import assert_refused

SMALL = ("--num-envs", "8", "--num-steps", "4", "--algo.minibatches", "1", "--devices", "1")


@pytest.fixture
def counted(shoal, monkeypatch, tmp_path):
    """Runs a command to where its program would be run; how often a line was parsed and a world was built."""
    counts = {"parsed": 0, "built": 0}
    cli, check = tyro.cli, TagGrid.__post_init__

    def parse(*args, **kwargs):
        counts["parsed"] += 1
        return cli(*args, **kwargs)

    def build(self):
        counts["built"] += 1
        check(self)

    def stop(*args):
        raise SystemExit(0)

    monkeypatch.setattr(tyro, "cli", parse)
    monkeypatch.setattr(TagGrid, "__post_init__", build)
    monkeypatch.setattr(Job, "drive", stop)

    def count(*args):
        counts.update(parsed=0, built=0)
        assert shoal(*args, *SMALL, "--run-dir", tmp_path / "run").code == 0
        return counts["parsed"], counts["built"]

    return count


def test_a_line_is_parsed_once_and_its_world_is_built_once(counted):
    assert counted("train", "tag/grid") == (1, 1)  # with two learners, which `--algo.` is for
    assert counted("train", "tag/grid", "--sharing", "none", "--algo", "mappo") == (1, 1)
    assert counted("train", "tag/grid", "--env.num-taggers", "3") == (1, 2)  # whose options are known by the first
    assert counted("sweep", "tag/grid", "--over", "gamma=0.9,0.8") == (1, 1)


@pytest.mark.parametrize(
    ("options", "config", "left"),
    [
        (PbtOptions, PBT, {"experiment", "over"}),
        (EvolveOptions, Evolution, {"experiment", "strategy"}),
        (SweepOptions, Sweep, {"experiment", "over"}),
        (PsroOptions, PSRO, {"solver_options"}),
        (PsroOptions, PopulationConfig, {"experiment", "psro", "oracle", "imports"}),
        (LeagueOptions, PopulationConfig, {"experiment", "psro", "oracle", "imports", "warm_start", "levels"}),
    ],
)
def test_options_are_the_fields_of_configs(options, config, left):
    made, said = {field.name: field for field in dataclasses.fields(options)}, comments(config)
    fields = [field for field in dataclasses.fields(config) if field.name not in left]
    for field in fields:
        assert made[field.name].default == field.default
        assert made[field.name].metadata["help"] == said[field.name]
    assert fields


@pytest.mark.parametrize(
    ("options", "config", "names"),
    [
        (TrainOptions, ClusterPlan, {field.name: field.name for field in dataclasses.fields(ClusterPlan)}),
        (PoolOptions, PoolConfig, POOL),
    ],
)
def test_options_of_a_cluster_are_those_of_its_configs(options, config, names):
    made = {field.name: field for field in dataclasses.fields(options)}
    for name, option in names.items():
        assert made[option].default is None
        assert made[option].metadata["help"] == comments(config)[name]


def test_help_shows_the_defaults_of_configs(shoal):
    shown = " ".join(shoal("train", "tag/grid", "--help-all").out.split())
    assert f"processes that step worlds (default: {ClusterPlan().actors})" in shown
    shown = " ".join(shoal("pbt", "tag/grid", "--help-all").out.split())
    assert f"trainings side by side (default: {PBT.members})" in shown
    assert f"CPU cores of each worker (default: {PoolConfig().cpus})" in shown


def test_old_names_of_options_are_understood_and_said(shoal, tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    (there / "file").touch()
    old = shoal("sweep", "demo", "--over", "gamma=0.9,0.8", "--seeds", "0", f"--out={there}")
    note, *others = old.err.splitlines()
    assert note == "note: --seeds is now --num-seeds; the old name goes in the next release"
    assert others[0] == "note: --out is now --run-dir; the old name goes in the next release"
    assert "num_seeds must be greater than 0" in others[1]
    assert_refused(shoal("sweep", "demo", "--over", "gamma=0.9,0.8", "--num-seeds", "0"), "--num-seeds must be greater")
    for command in ("population", "watch", "export"):
        assert "--output is now --out;" in shoal(command, tmp_path, "--output", there).err
    assert "--training is now --seed-index;" in shoal("watch", tmp_path, "--training", "1").err
    assert "--patience is now --task-timeout;" in shoal("train", "demo", "--patience", "9").err
    assert "--own-starts is now --no-common-starts" in shoal("evolve", "nothing", "--own-starts").err
