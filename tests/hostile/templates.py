"""Small folders of every kind of run, as a run stopped in the middle would leave them; nothing is compiled for them."""

import dataclasses
import json

import jax
import numpy as np

from shoal import algorithms
from shoal.cluster.plan import ClusterPlan
from shoal.cluster.tasks.pool import PoolConfig
from shoal.games.payoff import PayoffTable
from shoal.networks.torsos import Network
from shoal.populations.bank import Member, PolicyBank
from shoal.populations.evolution.program import Evolution
from shoal.populations.evolution.program import make_evolution_program as build_evolution
from shoal.populations.pbt.plan import PBT, Range
from shoal.populations.population import PopulationConfig, beginning, oracle_of
from shoal.populations.psro import PSRO, PSROState, psro
from shoal.training import checkpoint, nan_guard
from shoal.training.experiment import Experiment, Learner, to_plain
from shoal.training.fused import make_fused_program as build_training
from shoal.training.metrics import Aggregator
from shoal.training.run import create
from shoal.training.sweep import Sweep
from tests.populations.folders import save

WORLD = "matrix/matching_pennies"
LEARNER = {"all": Learner(algorithms.A2C(network=Network(hidden=(4,))))}
EXPERIMENT = Experiment(WORLD, learners=LEARNER, num_envs=4, num_steps=8, total_env_steps=4 * 8 * 1000)
SIDE = "return/player_0"
UPDATE = 7  # of 1000, a line every five: two rows wait
LINES, EVERY = 2, 5


def zeros(shapes):
    """Arrays of these shapes; keys are keys."""

    def one(leaf):
        if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.split(jax.random.key(0), leaf.shape) if leaf.shape else jax.random.key(0)
        return np.zeros(leaf.shape, leaf.dtype)

    return jax.tree.map(one, shapes)


def meta(names, metric_shape=()):
    aggregator = Aggregator(names, EVERY, 32)
    aggregator.add(np.ones((UPDATE, *metric_shape, len(names)), np.float32), 1000)
    return {"update": UPDATE, "env_steps": UPDATE * 32, "devices": 1, "seconds": 1.5, "pending": aggregator.pending()}


def metrics(path, names, metric_shape=()):
    aggregator = Aggregator(names, 1, 32)
    lines = aggregator.add(np.ones((LINES, *metric_shape, len(names)), np.float32), 1000)
    text = "".join(json.dumps(line | {"update": 2 * line["update"], "seconds": 1.0}) + "\n" for line in lines)
    (path / "metrics.jsonl").write_text(text)


def training(path, **entries):
    create(path, EXPERIMENT)
    program = build_training(EXPERIMENT, 1)
    carry = zeros(program.shapes()).replace(update=np.int32(UPDATE))
    checkpoint.save(path / "checkpoints", UPDATE, carry.replace(latch=None), meta(program.names))
    metrics(path, program.names)
    return path


def evolution(path):
    plan = Evolution(EXPERIMENT, population=8, generations=1000, evolve=("player_0",))
    plan = dataclasses.replace(plan, evolve=(sorted(_policies())[0],))
    create(path, plan)
    program = build_evolution(plan, 1)
    carry = zeros(program.shapes()).replace(generation=np.int32(UPDATE))
    checkpoint.save(path / "checkpoints", UPDATE, carry, meta(program.names))
    metrics(path, program.names)
    return path


def _policies():

    return EXPERIMENT.setup.spec.groups


def pbt(path):
    plan = PBT(EXPERIMENT, {"learning_rate": Range(1e-4, 1e-2, log=True)}, members=4, interval=5, measure=SIDE)
    create(path, plan)
    program = plan.program(1)
    shapes = program.shapes()
    best = zeros(jax.eval_shape(program.best, shapes).learners)
    state = zeros(shapes)
    state = state.replace(members=state.members.replace(update=np.full(4, UPDATE, np.int32)))
    standing = {"member": 1, "scores": [0.5, 1.0, None, 0.25], "values": {"learning_rate": [0.001] * 4}}
    more = {"lineage": [0, 1, 2, 3], "pbt": standing}
    tree = {"learners": best, "state": state}
    checkpoint.save(path / "checkpoints", UPDATE, tree, meta(program.names, (4,)) | more)
    metrics(path, program.names, (4,))
    return path


def sweep(path):
    plan = Sweep(EXPERIMENT, {"learning_rate": (0.001, 0.01)}, measure=SIDE)
    create(path, plan)
    program = plan.program(1)
    shapes = program.shapes()
    carry = zeros(shapes.replace(latch=nan_guard.as_stored(shapes.latch))).replace(update=np.full(2, UPDATE, np.int32))
    checkpoint.save(path / "checkpoints", UPDATE, carry, meta(program.names, (2,)))
    metrics(path, program.names, (2,))
    return path


def population(path, solver="nash", oracle="learned"):
    options = {"exploit_every": 1} if solver == "league" else {}
    settings = PopulationConfig(EXPERIMENT, PSRO(solver, options, iterations=5, episodes=10), oracle)
    create(path, settings)
    made = oracle_of(settings, 1)
    if oracle == "exact":
        for number, state in enumerate(psro(*_exact(settings, made))):
            save(path, state)
            if number == 1:
                return path
    first = zeros(jax.eval_shape(made.first))
    info = [{}, {"role": "main", "age": 1, "earned": 0.5}]
    members = (Member("0"), Member("1", 0, 1, info=info[1]))
    banks = {
        player: PolicyBank(jax.tree.map(lambda leaf: np.stack([leaf] * 4), policy), members)
        for player, policy in first.items()
    }
    table = PayoffTable(np.full((2, 2), 10.0), np.zeros((2, 2, 2)), np.zeros((2, 2, 2)))
    half = np.array([0.5, 0.5])
    line = {"population": 2, "seconds": 1.0, "support": [2, 2], "mixtures": [[0.5, 0.5]] * 2, "value": 0.0}
    history = tuple(line | {"iteration": i, "gain": [0.0, 0.0]} for i in range(2))
    save(path, PSROState(banks, table, (half, half), 1, history))
    return path


def _exact(settings, oracle):
    return beginning(settings, oracle), settings.psro, oracle.respond, oracle.evaluate, oracle.measure, oracle.mix


def cluster(path):
    """A training that was begun on a cluster."""
    training(path)
    config = json.loads((path / "config.json").read_text())
    plan = ClusterPlan()
    (path / "config.json").write_text(json.dumps(config | {"cluster": to_plain(plan)}))
    program = build_training(EXPERIMENT, 1)
    learners = zeros(program.shapes().learners)
    (path / "checkpoints" / f"step-{UPDATE:010d}.npz").unlink()
    names = (*program.names, "staleness", "staleness_max")
    checkpoint.save(path / "checkpoints", UPDATE, {"learners": learners}, meta(names))
    worker = {"rounds": 3, "env_steps": 96, "restarts": 0, "task": "rollout 4", "busy_s": 0.1, "silent_s": 0.1}
    worker |= {"seconds": {"roll": 0.1, "pull": 0.01}, "slow": False, "quarantined": []}
    status = {
        "version": 7,
        "total": 1000,
        "staleness": {"mean": 0.5, "largest": 1.0},
        "learner": {"update": 7, "committed": 7, "made": 5, "seconds": 1.0, "spent": {"wait": 0.1, "learn": 0.2}},
        "workers": {"actor-0": worker, "actor-1": worker},
        "services": {"dataset": {"length": 0, "capacity": 4, "dropped": 0}},
        "restarts": {"actor-0": 0},
        "events": [{"seconds": 1.0, "worker": "actor-0", "what": "died"}],
        "plan": to_plain(plan),
        "env": WORLD,
        "copies": 2,
        "steps": 8,
        "running": False,
        "dashboard": None,
        "absent": [],
    }
    (path / "cluster.json").write_text(json.dumps(status))
    lines = [{"begun": "actor-0", "times": 0}, {"committed": 7}]
    (path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def team(path):
    """A population whose work was done on a cluster, with results that were not safe elsewhere yet."""
    population(path)
    worker = {"done": 3, "restarts": 0, "task": "", "busy_s": 0.0, "hangs": False}
    status = {"team": dataclasses.asdict(PoolConfig()), "running": False, "workers": {"worker-0": worker}}
    (path / "cluster.json").write_text(json.dumps(status | {"services": {"board": {"open": 1}}, "events": []}))
    (path / "wanted.json").write_text('{"workers": 2}\n')
    (path / "tasks").mkdir()
    leaves = [np.zeros((2, 2)), np.ones(3)]
    checkpoint.save(path / "tasks", 5, leaves, {"task": "play/0/x"}, keep=9)
    lines = [{"done": "play/0/x", "figures": {"earned": 0.5}, "file": 5}, {"done": "b", "figures": {}}]
    (path / "tasks" / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


KINDS = {
    "train": training,
    "evolve": evolution,
    "pbt": pbt,
    "sweep": sweep,
    "psro": population,
    "exact": lambda path: population(path, oracle="exact"),
    "league": lambda path: population(path, "league"),
    "cluster": cluster,
    "team": team,
}
