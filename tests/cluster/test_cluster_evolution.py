"""Evolution by seeds and returns: copies stay equal, no weights travel, whoever dies comes back by listening."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from shooting import shooting

from shoal.cluster.tasks import evolution
from shoal.cluster.tasks.ledger import Ledger
from shoal.cluster.tasks.pool import PoolConfig
from shoal.cluster.transport.launcher import ThreadLauncher
from shoal.core.errors import OptionError, RunError
from shoal.populations.evolution import run as one_machine
from shoal.populations.evolution.program import Evolution
from shoal.populations.evolution.strategies import ERL, OpenES
from shoal.presets import resolve


def plan(**changes) -> Evolution:
    sizes = {"population": 16, "generations": 4, "max_steps": 60}
    return Evolution(resolve("control/cartpole"), OpenES(), **sizes | changes)


def leaves(result):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(result.policies)]


def same(one, other, atol=1e-6):
    for ours, theirs in zip(leaves(one), leaves(other), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=atol, rtol=1e-5)


def told(path):
    return json.loads((path / "cluster.json").read_text())


class Scale(ThreadLauncher):
    """Counts what is put into the store, where weights would have to pass."""

    def __init__(self):
        super().__init__()
        self.put = 0
        whole = self.store.put

        def counted(value):
            self.put += 1
            return whole(value)

        self.store.put = counted


def test_only_seeds_and_returns_travel(tmp_path):
    launcher = Scale()
    result = evolution.evolve_on_cluster(plan(), tmp_path / "run", PoolConfig(workers=2), launcher)
    assert result.update == 4
    same(result, one_machine.evolve(plan(), devices=1))
    weights = sum(leaf.size for leaf in leaves(result))
    counts = told(tmp_path / "run")["messages"]["board"]
    asked = {name.split(">")[1] for name in counts if name.startswith("worker>")}
    assert asked == {"hello", "report_and_fetch", "results"}
    assert launcher.put == 0
    ledger = Ledger(tmp_path / "run" / "tasks")
    results = [ledger.read(f"generation/{g}/{i}") for g in range(4) for i in range(16)]
    for found in results:
        assert found.leaves is None
        numbers = jax.tree.leaves({name: found.figures[name] for name in ("returns", "centre", "sums", "views")})
        assert len(numbers) < 20 < weights / 100
        assert len(found.figures["returns"]) == 1
    for g in range(4):  # all who played in a generation had the same weights, and others than before
        assert len({found.figures["copy"] for found in results[16 * g : 16 * g + 16]}) == 1
    assert len({found.figures["copy"] for found in results}) == 4


def test_a_copy_that_differs_is_found_out(tmp_path, monkeypatch):
    honest, calls = evolution.fingerprint, []

    def sometimes(carry):
        calls.append(1)
        return honest(carry) if len(calls) % 20 else "another"

    monkeypatch.setattr(evolution, "fingerprint", sometimes)
    with pytest.raises(RunError, match="other weights than the driver"):
        evolution.evolve_on_cluster(plan(), tmp_path / "run", PoolConfig(workers=1), ThreadLauncher())


def test_erl_is_refused(tmp_path):
    chosen = dataclasses.replace(plan(), experiment=resolve("control/pendulum"), strategy=ERL())
    with pytest.raises(OptionError, match="erl"):
        evolution.evolve_on_cluster(chosen, tmp_path / "run", PoolConfig(), ThreadLauncher())
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_here_and_there(tmp_path):
    whole = one_machine.evolve(plan(), devices=1)
    half = plan(generations=2)
    one_machine.evolve(half, tmp_path / "run", devices=1)
    config = tmp_path / "run" / "config.json"
    data = json.loads(config.read_text())
    data["evolution"]["generations"] = 4
    config.write_text(json.dumps(data))
    result = evolution.resume_evolution_on_cluster(tmp_path / "run", PoolConfig(workers=1), ThreadLauncher())
    assert result.update == 4
    same(result, whole)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_whoever_dies_comes_back_by_listening(tmp_path, seed):
    chosen = plan(generations=40)
    calm = evolution.evolve_on_cluster(chosen, tmp_path / "calm", PoolConfig(workers=2), ThreadLauncher())
    launcher = ThreadLauncher()
    with shooting(launcher, ["board", "worker-0", "worker-1"], seed, shots=4, apart=(20, 120)) as killed:
        shot = evolution.evolve_on_cluster(chosen, tmp_path / "shot", PoolConfig(workers=2), launcher)
    assert killed
    assert all((one == other).all() for one, other in zip(leaves(calm), leaves(shot), strict=True))


@pytest.mark.slow
def test_processes_solve_cartpole(tmp_path):
    pytest.importorskip("ray")
    from shoal.cluster.transport.ray_launcher import RayLauncher

    team = PoolConfig(workers=2)
    chosen = plan(population=128, generations=30, max_steps=500)
    result = evolution.evolve_on_cluster(chosen, tmp_path / "run", team, RayLauncher("local", team.needs))
    assert max(line["fitness/policy"] for line in result.lines[-10:]) == 500.0
    asked = {name for name in told(tmp_path / "run")["messages"]["board"] if name.startswith("worker>")}
    assert asked == {"worker>hello", "worker>report_and_fetch", "worker>results"}
