"""The calls of `shoal` that train: train, sweep, tune, evolve, grow a population.

All take the options of `train`. They use every core, keep compiled programs on disk and show how far they are, as the
command line does; cores are only counted if JAX has not been used before in the process.
"""

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.api.changes import take
from shoal.api.population import Population
from shoal.api.run import Run
from shoal.api.targets import Target
from shoal.api.words import names_arguments
from shoal.api.work import read_call, read_ranges, run_to_end
from shoal.cluster.run import Cluster
from shoal.core.algorithm import Algorithm
from shoal.core.errors import OptionError, require
from shoal.core.origin import trust
from shoal.core.zoo import find_run
from shoal.envs.wrappers import Wrapper
from shoal.populations.evolution.plan import Evolution
from shoal.populations.evolution.strategies import STRATEGIES, Evosax, make_strategy
from shoal.populations.league import EXPLOIT_EVERY
from shoal.populations.pbt.plan import PBT
from shoal.populations.population import PopulationConfig
from shoal.populations.psro import PSRO
from shoal.presets import Sharing, response_preset
from shoal.training.callbacks import Callback, Listener
from shoal.training.experiment import Experiment, Learner
from shoal.training.host_stages import TIMEOUT
from shoal.training.loggers import Loggers
from shoal.training.loop import Saving
from shoal.training.roll import Hosts
from shoal.training.sweep import SweepResult
from shoal.training.sweep_plan import Sweep

SMALL = (16,)
"""Widths of the layers of those who evolve, unless given: each member has its own weights; few are found sooner."""
UNUSED = ("num_envs", "num_steps", "total_env_steps", "num_seeds")
"""Options of a training that mean nothing to an evolution."""
NOT_EVALUATED = ("eval_every", "eval_episodes")
PAYOFFS = "a population is judged by the payoffs of its matches, after every iteration"
"""Options of a training that mean nothing to a population, and why."""
OFF_POLICY = "ddpg"
"""The learner that ERL has if none is named."""


@names_arguments
def train(
    target: Target,
    run_dir: str | Path | None = None,
    *,
    algorithm: str | Algorithm | type[Algorithm] | None = None,
    env: Mapping[str, Any] | None = None,
    wrappers: Sequence[Wrapper] = (),
    sharing: Sharing | None = None,
    freeze: Sequence[str] = (),
    weights: Mapping[str, str | Path | Run] | str | Path | Run | None = None,
    devices: int | None = None,
    cluster: str | Mapping[str, Any] | Cluster | None = None,
    hosts: Hosts | None = None,
    callbacks: Callback | Sequence[Callback] = (),
    loggers: Loggers | None = None,
    progress: bool = True,
    listener: Listener | None = None,
    checkpoint_seconds: float = Saving.seconds,
    checkpoint_every: int = Saving.every,
    env_workers: int = 0,
    env_timeout: float = TIMEOUT,
    scenes: int | None = None,
    mirror: str | None = None,
    **options: Any,
) -> Run:
    """Trains: `shoal.train("mappo/simple_spread", total_env_steps=2e6, num_seeds=5, learning_rate=3e-4)`.

    target: the name of a preset or a world (`shoal envs`, `shoal presets`), an `Experiment`, a registered world or its
    class, a file of settings as `shoal show` writes it (`exp.toml`), or the folder of a run, to begin again with its
    options.

    run_dir: a new folder that keeps metrics and checkpoints, from which `shoal.load`, `shoal.resume` and the command
    line go on; "auto": one below `runs/`. Left out, the run is in memory alone, and gone with the process.

    algorithm: a name such as "qmix", or an algorithm, `shoal.PPO(epochs=8)`, for all learners. env: options of the
    world. wrappers: around it, the innermost first. sharing: who shares a policy, "group", "all" or "none". freeze:
    learners that play and do not learn. weights: runs that learners start from, by learner.

    options: by name, those of the experiment (`num_envs`, `seed`, `eval_every`, ...), of the algorithm
    (`learning_rate`, ...) and of its network (`hidden`, `recurrent`, ...); `**{"adversary.learning_rate": 1e-3}` is one
    learner's. Whole numbers may be written 2e6.

    cluster: "auto", the address of a Ray cluster, or a mapping with an `address` and what a plan takes: `{"actors": 4,
    "recipe": "impala"}`. hosts: `shoal.Hosts(2, index, "10.0.0.1:4321")`, in a process on each of several machines that
    train together; host 0 keeps the run (docs/several-devices.md). devices: how many of this machine's. callbacks,
    loggers: see `shoal.Callback`, `shoal.Logger`. listener: called with a `Progress` after every call of the program.
    checkpoint_seconds, checkpoint_every: time and env steps between two checkpoints (0 env steps: by time alone);
    `keep_checkpoints` of them are kept. env_workers, env_timeout: processes that step environments of other libraries
    (0: this one), and the seconds after which one counts as hung. scenes: points along the learning curve at which an
    episode is kept in the folder, to be watched by `shoal watch RUN --history`; by default 20 in runs that take longer
    than 20 s, 0: none. mirror: a URL such as "s3://bucket/runs", to which the run folder is copied while it is trained;
    `shoal.load` and `shoal.resume` take that of the run, "s3://bucket/runs/NAME".
    """
    names = {name: value for name, value in locals().items() if name not in ("target", "options")}
    experiment, work = read_call("shoal.train", target, {**names, **options})
    return run_to_end(experiment, work)


@names_arguments
def sweep(target: Target, run_dir: str | Path | None = None, **options: Any) -> SweepResult:
    """Trains many values of hyper-parameters in one program; `.best` is the point that did best, `.ranked` all.

    `shoal.sweep("ippo/simple_spread", learning_rate=shoal.log(1e-4, 1e-2, 8), clip_eps=[0.1, 0.2])`: options that are
    ranges or lists are swept, as a grid. random: so many points drawn at random instead. measure: what is compared,
    `return` or `return/GROUP`. All other options are those of `train`; `num_seeds` are trained of every point.
    """
    options["run_dir"] = run_dir
    own = take(Sweep, options)
    experiment, over, work = read_ranges("shoal.sweep", target, options, own)
    return run_to_end(Sweep(experiment, over, **own), work)


@names_arguments
def pbt(target: Target, run_dir: str | Path | None = None, **options: Any) -> Run:
    """Population-based training: options that are ranges are tuned while members train side by side.

    `shoal.pbt("mpe/simple_spread", learning_rate=shoal.log(1e-4, 1e-2), members=16)`. The run has the policies of the
    best member; `run.standing` says which it is, and all scores and values. members, interval, fraction, factor,
    resample, measure: see `shoal.populations.pbt.plan.PBT`. All other options are those of `train`.
    """
    options["run_dir"] = run_dir
    own = take(PBT, options)
    experiment, over, work = read_ranges("shoal.pbt", target, options, own)
    return run_to_end(PBT(experiment, over, **own), work)


@names_arguments
def evolve(target: Target, run_dir: str | Path | None = None, **options: Any) -> Run:
    """Evolves a population of policies: `shoal.evolve("control/cartpole", strategy="ga", population=512)`.

    strategy: open_es, ars, ga, erl, any of evosax, or a strategy; search: options of one that is named. population,
    generations, episodes, evolve, common_starts, normalise_views, max_steps: see
    `shoal.populations.evolution.plan.Evolution`. All other options are those of `train`, but for how much is trained.
    """
    options["run_dir"] = run_dir
    own = take(Evolution, options)
    names = own.get("evolve", ())
    own["evolve"] = (names,) if isinstance(names, str) else tuple(names) if isinstance(names, list) else names
    search = options.pop("search", {})
    if isinstance(own.get("strategy", "open_es"), str):
        name = own.get("strategy", "open_es")
        own["strategy"] = make_strategy(name, **search) if name in STRATEGIES else Evosax(name, search)
    elif search:
        raise OptionError("shoal.evolve: search has the options of a strategy that is named; give them to the strategy")
    hybrid = own["strategy"].name == "erl"
    if hybrid:
        options.setdefault("algorithm", OFF_POLICY)
    small = not hybrid and not {"hidden", "network.hidden", "network"} & options.keys()
    unused = [name for name in UNUSED if name in options]
    if unused:
        raise OptionError(
            f"shoal.evolve has no {unused[0]}: the copies of the world are population times episodes, and a run lasts "
            "for generations"
        )
    experiment, work = read_call("shoal.evolve", target, options, [*own, "search"])
    plan = Evolution(shrink_networks(experiment) if small else experiment, **own)
    return run_to_end(plan, work, plan.strategy.name.replace(":", "-"))


@names_arguments
def psro(target: Target, run_dir: str | Path | None = None, **options: Any) -> Population:
    """Grows a population by best responses to mixtures of itself: `shoal.psro("cards/leduc", iterations=20).nash_conv`.

    iterations, meta_solver, uniform_share, episodes, target_nash_conv, target_error, patience, improvement: see
    `shoal.populations.psro.PSRO`. oracle: who responds, an algorithm, or "exact" for games with exact tables.
    warm_start, greedy, levels, symmetric: see `shoal.populations.population.PopulationConfig`. import_policies: runs
    whose policies are there from the start. All other options are those of `train`, for one best response.
    """
    oracle = options.pop("oracle", None)
    if oracle not in (None, "exact"):
        require("algorithm" not in options, "shoal.psro", "algorithm", options.get("algorithm"), "left out with oracle")
        options["algorithm"] = oracle
    if "breadth" in options:
        warnings.warn("breadth is now uniform_share; the old name goes in the next release", stacklevel=3)
        options["uniform_share"] = options.pop("breadth")
    own = take(PSRO, options)
    kind = "exact" if oracle == "exact" else "learned"
    return _population("shoal.psro", target, run_dir, own, options, kind)


@names_arguments
def league(
    target: Target, run_dir: str | Path | None = None, *, exploit_every: int = EXPLOIT_EVERY, **options: Any
) -> Population:
    """Grows a league of main agents and exploiters: `shoal.league("pong", iterations=10)`; options as in `psro`."""
    for name in ("meta_solver", "oracle"):
        if name in options:
            raise OptionError(f"shoal.league has no {name}: who meets whom follows from the roles. See shoal.psro.")
    own = take(PSRO, options) | {"meta_solver": "league", "solver_options": {"exploit_every": exploit_every}}
    return _population("shoal.league", target, run_dir, own, options)


def _population(
    owner: str, target: Target, run_dir: str | Path | None, own: dict, options: dict, oracle: str = "learned"
) -> Population:
    for name in ("checkpoint_seconds", "checkpoint_every"):
        if name in options:
            raise OptionError(f"{owner} has no {name}: a population is saved after every iteration")
    for name in NOT_EVALUATED:
        if name in options:
            raise OptionError(f"{owner} has no {name}: {PAYOFFS}")
    own |= take(PopulationConfig, options, leave=("oracle", "psro", "imports"))
    own["import_policies"] = options.pop("import_policies", ())
    target = (response_preset(target) or target) if isinstance(target, str) else target
    options["run_dir"] = run_dir
    experiment, work = read_call(owner, target, options, [*own, "oracle"])
    config = make_population(experiment, own, oracle)
    return run_to_end(config, work, "exact" if config.oracle == "exact" else None)


def make_population(experiment: Experiment, options: Mapping[str, Any], oracle: Any = "learned") -> PopulationConfig:
    """The config of a population, from options by name; import_policies: runs whose policies it begins with."""
    options = dict(options)
    runs = options.pop("import_policies", ())
    runs = [runs] if isinstance(runs, str | Path) else runs
    folders = isinstance(runs, list | tuple) and all(isinstance(run, str | Path) for run in runs)
    require(folders, "psro", "import_policies", runs, "folders of runs")
    imports = tuple(str(find_run(run)) for run in runs)
    for run in imports:
        trust(run)
    psro = PSRO(**take(PSRO, options))
    own = take(PopulationConfig, options, leave=("oracle", "psro", "imports"))
    return PopulationConfig(experiment, psro, oracle, imports=imports, **own)


def shrink_networks(experiment: Experiment) -> Experiment:
    """The experiment with small networks for those who evolve from scratch."""

    def changed(learner: Learner) -> Learner:
        algorithm: Any = learner.algorithm
        if learner.frozen or learner.weights or "network" not in [f.name for f in dataclasses.fields(algorithm)]:
            return learner
        network = dataclasses.replace(algorithm.network, hidden=SMALL)
        return dataclasses.replace(learner, algorithm=dataclasses.replace(algorithm, network=network))

    learners = {name: changed(learner) for name, learner in experiment.learners.items()}
    return experiment.replace(learners=learners)
