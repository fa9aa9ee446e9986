"""The calls of `shoal`: train, sweep, tune, evolve, grow a population, go on, load, evaluate, match.

All that train take the options of `train`. They use every core, keep compiled programs on disk and show how far they
are, as the command line does; cores are only counted if JAX has not been used before in the process.
"""

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from shoal.api.pictures import keep_pictures, keep_sweep
from shoal.api.places import AUTO, choose_place
from shoal.api.population import Population
from shoal.api.progress import show_progress
from shoal.api.run import Run, read_lines
from shoal.api.seats import RANDOM, Side, seat_sides
from shoal.api.targets import (
    Changes,
    Target,
    as_whole,
    change_options,
    check_known,
    make_experiment,
    open_known,
    open_to_resume,
    take,
)
from shoal.cluster.plan import ClusterPlan
from shoal.cluster.run import Cluster
from shoal.cluster.tasks.pool import PoolConfig
from shoal.core.algorithm import Algorithm
from shoal.core.errors import OptionError, WorldError, require, unknown_name
from shoal.core.origin import trust
from shoal.core.types import PyTree
from shoal.envs.wrappers import Wrapper
from shoal.populations.evolution.plan import Evolution
from shoal.populations.evolution.strategies import STRATEGIES, Evosax, make_strategy
from shoal.populations.league import EXPLOIT_EVERY
from shoal.populations.pbt.plan import PBT
from shoal.populations.population import PopulationConfig, open_population, oracle_of
from shoal.populations.population import load as load_population
from shoal.populations.psro import PSRO, finished
from shoal.presets import Sharing, response_preset, targets
from shoal.training import run_kinds, runner
from shoal.training.callbacks import Callback, Listener, Progress
from shoal.training.checkpoint import steps as checkpoint_steps
from shoal.training.devices import use_all_cores, use_compilation_cache
from shoal.training.evaluate import Evaluation, Evaluator
from shoal.training.experiment import Config, Experiment, Learner, Setup
from shoal.training.host_stages import TIMEOUT
from shoal.training.loggers import Logger, make_loggers
from shoal.training.loop import TrainingResult
from shoal.training.run import RunFolder, default_path, load_policies
from shoal.training.runner import Local
from shoal.training.sweep import SweepResult, summarise
from shoal.training.sweep_plan import Range, Sweep

SMALL = (16,)
"""Widths of the layers of those who evolve, unless given: each member has its own weights; few are found sooner."""
UNUSED = ("num_envs", "num_steps", "total_env_steps", "num_seeds")
"""Options of a training that mean nothing to an evolution."""
OFF_POLICY = "ddpg"
"""The learner that ERL has if none is named."""


@dataclasses.dataclass(frozen=True)
class Work:
    """Where and how a call does its work: see `train`."""

    run_dir: str | Path | None = None
    devices: int | None = None
    cluster: str | Mapping[str, Any] | Cluster | None = None
    callbacks: Sequence[Callback] = ()
    loggers: Sequence[str | Logger] = ()
    progress: bool = True
    listener: Listener | None = None
    checkpoint_seconds: float = 60.0
    env_workers: int = 0
    env_timeout: float = TIMEOUT

    def folder(self, config: Config, by: str | None = None) -> Path | None:
        """The folder that the run is kept in, if any. On a cluster it needs one."""
        if self.run_dir == AUTO or (self.run_dir is None and self.cluster is not None):
            return default_path(config.played, "sweeps" if isinstance(config, Sweep) else "runs", by)
        return None if self.run_dir is None else Path(self.run_dir).absolute()

    def on(self, config: Config, resumed: Path | None = None) -> Local | Cluster:
        """The machine or the cluster. A mapping holds an address and what the plan or the pool of workers takes.

        resumed: the folder of a run that goes on, by default where it was.
        """
        cluster, given = self.cluster, {}
        if isinstance(cluster, Mapping):
            given = dict(cluster)
            cluster = given.pop("address", AUTO)
            kind = ClusterPlan if isinstance(config, Experiment) else PoolConfig
            known = [field.name for field in dataclasses.fields(kind)]
            for name in given:
                if name not in known:
                    raise OptionError(f"cluster: {unknown_name('option', name, [*known, 'address'])}")
        asked = {"env_workers": (self.env_workers, 0), "env_timeout": (self.env_timeout, TIMEOUT)}
        stepping = {name: value for name, (value, usual) in asked.items() if value != usual}
        return choose_place(config, cluster, given, devices=self.devices, stepping=stepping, resumed=resumed)

    @contextlib.contextmanager
    def told(self, config: Config, fresh: bool = True) -> Iterator[dict[str, Any]]:
        """What `run` and `resume` take besides: all who are told how it goes, for as long as it does."""
        with show_progress(config, fresh) if self.progress else contextlib.nullcontext() as shown:
            listeners = [one for one in (shown, self.listener) if one is not None]

            def listen(progress: Progress) -> None:
                for listener in listeners:
                    listener(progress)

            yield {
                "listener": listen,
                "callbacks": self.callbacks,
                "loggers": self.loggers,
                "checkpoint_seconds": self.checkpoint_seconds,
            }


def train(
    target: Target,
    run_dir: str | Path | None = None,
    *,
    algorithm: str | Algorithm | type[Algorithm] | None = None,
    env: Mapping[str, Any] | None = None,
    wrappers: Sequence[Wrapper] = (),
    sharing: Sharing | None = None,
    freeze: Sequence[str] = (),
    weights: Mapping[str, str | Path] | str | Path | None = None,
    devices: int | None = None,
    cluster: str | Mapping[str, Any] | Cluster | None = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[str | Logger] = (),
    progress: bool = True,
    listener: Listener | None = None,
    checkpoint_seconds: float = 60.0,
    env_workers: int = 0,
    env_timeout: float = TIMEOUT,
    **options: Any,
) -> Run:
    """Trains: `shoal.train("mappo/simple_spread", total_env_steps=2e6, num_seeds=5, learning_rate=3e-4)`.

    target: the name of a preset or a world (`shoal envs`, `shoal presets`), an `Experiment`, a registered world or its
    class, or the folder of a run, to begin again with its options.

    run_dir: a new folder that keeps metrics and checkpoints, from which `shoal.load`, `shoal.resume` and the command
    line go on; "auto": one below `runs/`. Left out, the run is in memory alone, and gone with the process.

    algorithm: a name such as "qmix", or an algorithm, `shoal.PPO(epochs=8)`, for all learners. env: options of the
    world. wrappers: around it, the innermost first. sharing: who shares a policy, "group", "all" or "none". freeze:
    learners that play and do not learn. weights: runs that learners start from, by learner.

    options: by name, those of the experiment (`num_envs`, `seed`, `eval_every`, ...), of the algorithm
    (`learning_rate`, ...) and of its network (`hidden`, `recurrent`, ...); `**{"adversary.learning_rate": 1e-3}` is one
    learner's. Whole numbers may be written 2e6.

    cluster: "auto", the address of a Ray cluster, or a mapping with an `address` and what a plan takes: `{"actors": 4,
    "recipe": "impala"}`. devices: how many of this machine's. callbacks, loggers: see `shoal.Callback`, `shoal.Logger`.
    listener: called with a `Progress` after every call of the program. env_workers, env_timeout: processes that step
    environments of other libraries (0: this one), and the seconds after which one counts as hung.
    """
    names = {name: value for name, value in locals().items() if name not in ("target", "options")}
    experiment, work = _read("shoal.train", target, {**names, **options})
    return _run(experiment, work)


def sweep(target: Target, run_dir: str | Path | None = None, **options: Any) -> SweepResult:
    """Trains many values of hyper-parameters in one program; `.best` is the point that did best, `.ranked` all.

    `shoal.sweep("ippo/simple_spread", learning_rate=shoal.log(1e-4, 1e-2, 8), clip_eps=[0.1, 0.2])`: options that are
    ranges or lists are swept, as a grid. random: so many points drawn at random instead. measure: what is compared,
    `return` or `return/GROUP`. All other options are those of `train`; `num_seeds` are trained of every point.
    """
    options["run_dir"] = run_dir
    own = take(Sweep, options)
    experiment, over, work = _read_ranges("shoal.sweep", target, options, own)
    return _run(Sweep(experiment, over, **own), work)


def pbt(target: Target, run_dir: str | Path | None = None, **options: Any) -> Run:
    """Population-based training: options that are ranges are tuned while members train side by side.

    `shoal.pbt("mpe/simple_spread", learning_rate=shoal.log(1e-4, 1e-2), members=16)`. The run has the policies of the
    best member; `run.standing` says which it is, and all scores and values. members, interval, fraction, factor,
    resample, measure: see `shoal.populations.pbt.plan.PBT`. All other options are those of `train`.
    """
    options["run_dir"] = run_dir
    own = take(PBT, options)
    experiment, over, work = _read_ranges("shoal.pbt", target, options, own)
    return _run(PBT(experiment, over, **own), work)


def evolve(target: Target, run_dir: str | Path | None = None, **options: Any) -> Run:
    """Evolves a population of policies: `shoal.evolve("control/cartpole", strategy="ga", population=512)`.

    strategy: open_es, ars, ga, erl, any of evosax, or a strategy; search: options of one that is named. population,
    generations, episodes, evolve, common_starts, normalise_views, max_steps: see
    `shoal.populations.evolution.plan.Evolution`. All other options are those of `train`, but for how much is trained.
    """
    options["run_dir"] = run_dir
    own = take(Evolution, options)
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
    experiment, work = _read("shoal.evolve", target, options, [*own, "search"])
    plan = Evolution(shrink_networks(experiment) if small else experiment, **own)
    return _run(plan, work, plan.strategy.name.replace(":", "-"))


def psro(target: Target, run_dir: str | Path | None = None, **options: Any) -> Population:
    """Grows a population by best responses to mixtures of itself: `shoal.psro("cards/leduc", iterations=20).nash_conv`.

    iterations, meta_solver, breadth, episodes, target_nash_conv, target_error, patience, improvement: see
    `shoal.populations.psro.PSRO`. oracle: who responds, an algorithm, or "exact" for games with exact tables.
    warm_start, greedy, levels, symmetric: see `shoal.populations.population.PopulationConfig`. import_policies: runs
    whose policies are there from the start. All other options are those of `train`, for one best response.
    """
    oracle = options.pop("oracle", None)
    if oracle not in (None, "exact"):
        require("algorithm" not in options, "shoal.psro", "algorithm", options.get("algorithm"), "left out with oracle")
        options["algorithm"] = oracle
    own = take(PSRO, options)
    kind = "exact" if oracle == "exact" else "learned"
    return _population("shoal.psro", target, run_dir, own, options, kind)


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
    if "checkpoint_seconds" in options:
        raise OptionError(f"{owner} has no checkpoint_seconds: a population is saved after every iteration")
    own |= take(PopulationConfig, options, leave=("oracle", "psro", "imports"))
    own["import_policies"] = options.pop("import_policies", ())
    target = (response_preset(target) or target) if isinstance(target, str) else target
    options["run_dir"] = run_dir
    experiment, work = _read(owner, target, options, [*own, "oracle"])
    config = make_population(experiment, own, oracle)
    return _run(config, work, "exact" if config.oracle == "exact" else None)


def make_population(experiment: Experiment, options: Mapping[str, Any], oracle: Any = "learned") -> PopulationConfig:
    """The config of a population, from options by name; import_policies: runs whose policies it begins with."""
    options = dict(options)
    imports = tuple(str(Path(run).absolute()) for run in options.pop("import_policies", ()))
    for run in imports:
        trust(run)
    psro = PSRO(**take(PSRO, options))
    own = take(PopulationConfig, options, leave=("oracle", "psro", "imports"))
    return PopulationConfig(experiment, psro, oracle, imports=imports, **own)


def load(path: str | Path, checkpoint: str | int | None = None) -> Run | Population:
    """A run by its folder; of a population, the `Population`.

    checkpoint: "best" in evaluation, or the one of that update; by default the newest.
    """
    _prepare()
    path = Path(path).absolute()
    if run_kinds.kind_of(path) == run_kinds.PSRO:
        require(checkpoint is None, "shoal.load", "checkpoint", checkpoint, "left out: a population keeps its newest")
        config = open_population(path)
        check_known(path, config.experiment)
        state = load_population(path, config, oracle_of(config))
        return Population(config, state, path, not finished(state.history, config.psro))
    opened = open_known(path)
    _, policies, meta = load_policies(path, None, checkpoint)
    stopped = meta["update"] < opened.experiment.num_updates
    lines, standing = read_lines(path), meta.get(run_kinds.PBT, {})
    return Run(opened.experiment, policies, meta["update"], lines, meta["seconds"], 0.0, stopped, path, standing)


def resume(run: str | Path | Run | Population, total_env_steps: float | None = None, **options: Any) -> Any:
    """Goes on with a run that was stopped, to the same bits as if it had not been; gives what made it gave.

    total_env_steps: a larger total than before, to train a run further, also one that is finished. Other options:
    devices, cluster, callbacks, loggers, progress, listener, checkpoint_seconds, env_workers, env_timeout.
    """
    _prepare()
    path = run if isinstance(run, str | Path) else run.path
    if path is None:
        raise OptionError("shoal.resume: this run is in memory alone. Train it with a run_dir to go on with it later.")
    path = Path(path).absolute()
    work = Work(**take(Work, options, leave=("run_dir",)))
    for name in options:
        known = [field.name for field in dataclasses.fields(Work) if field.name != "run_dir"]
        raise OptionError(f"shoal.resume: {unknown_name('option', name, [*known, 'total_env_steps'])}")
    total = as_whole(int, total_env_steps)
    opened = open_to_resume(path, total)
    if isinstance(run, Run) and run.update != max(checkpoint_steps(opened.checkpoints), default=run.update):
        raise OptionError(
            f"shoal.resume: this run was loaded as it was after {run.update} updates, but a run goes on from its "
            f"newest checkpoint. To do that, give its folder: shoal.resume({str(path)!r})."
        )
    with work.told(opened.config, fresh=False) as told:
        result = runner.resume(path, on=work.on(opened.config, path), total_env_steps=total, **told)
    return _give(opened.config, result, path)


def evaluate(
    what: Run | Setup | Target,
    policies: Mapping[str, PyTree] | None = None,
    episodes: int = 1024,
    seed: int = 0,
    explore: bool = False,
    *,
    checkpoint: str | int | None = None,
    opponents: Mapping[str, str | Path] | None = None,
    env_workers: int = 0,
    env_timeout: float = TIMEOUT,
) -> Evaluation:
    """Mean returns of many episodes: `shoal.evaluate("runs/x", episodes=1000)`.

    what: a run or its folder, with the policies it has, of all seeds, or others; or whatever `train` takes, with
    `policies` by name: those left out play at random. checkpoint: of a folder; see `load`. opponents: as in
    `Run.evaluate`.
    """
    _prepare()
    episodes, stepping = as_whole(int, episodes), {"env_workers": env_workers, "env_timeout": env_timeout}
    if isinstance(what, str | Path) and str(what) not in targets() and (Path(what) / run_kinds.CONFIG).is_file():
        what, checkpoint = _load_run(what, "shoal.evaluate", checkpoint), None
    if isinstance(what, Run):
        allowed = "left out for a run that is loaded already: see shoal.load(path, checkpoint=...)"
        require(checkpoint is None, "shoal.evaluate", "checkpoint", checkpoint, allowed)
        run = what if policies is None else dataclasses.replace(what, policies=dict(policies))
        return run.evaluate(episodes, seed, explore, opponents, **stepping)
    if opponents or checkpoint is not None:
        raise OptionError("shoal.evaluate: opponents and checkpoint are for runs; give the policies of an experiment")
    setup = what if isinstance(what, Setup) else make_experiment(what, Changes(), "shoal.evaluate").setup
    return Evaluator(setup, episodes, seed, explore, **stepping)(dict(policies) if policies is not None else None)


def match(
    players: Mapping[str, str | Path | Run],
    episodes: int = 1024,
    seed: int = 0,
    explore: bool = False,
    training: int = 0,
) -> Evaluation:
    """Plays runs against each other: `shoal.match({"left": "runs/a", "right": "runs/b"}, episodes=4096)`.

    players: by what they play, a player of the world, a policy or seats such as `agent[1:3]`: a run, its folder, or
    "random". Their algorithms and networks may differ, the world may not. training: of which of the seeds of runs that
    have several. Returns are by group of the world, or by player where players share a group.
    """
    _prepare()
    require(isinstance(players, Mapping) and bool(players), "shoal.match", "players", players, "a mapping, who: run")
    sides = {}
    for who, run in players.items():
        if run == RANDOM:
            sides[who] = Side(None, {})
            continue
        found = run if isinstance(run, Run) else _load_run(run, "shoal.match")
        sides[who] = Side(found.experiment.setup, found.of_seed(training))
    setup, policies = seat_sides(sides)
    return Evaluator(setup, as_whole(int, episodes), seed, explore)(policies)


def _load_run(path: str | Path, owner: str, checkpoint: str | int | None = None) -> Run:
    found = load(path, checkpoint)
    if not isinstance(found, Run):
        raise OptionError(f"{owner}: {path} is a population, whose policies are not played as those of one run")
    return found


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


def _prepare() -> None:
    use_all_cores()
    use_compilation_cache()


def _read(owner: str, target: Target, options: dict[str, Any], own: Sequence[str] = ()) -> tuple[Experiment, Work]:
    """The experiment that is meant, and how it is to be worked on, from all options of a call."""
    _prepare()
    work = Work(**take(Work, options))
    changes = take(Changes, options, leave=("options",))
    others = [field.name for cls in (Work, Changes) for field in dataclasses.fields(cls) if field.name != "options"]
    experiment = make_experiment(target, Changes(**changes, options=options), owner, [*others, *own])
    make_loggers(work.loggers)  # what is missing is said before anything else is done
    return experiment, work


def _read_ranges(
    owner: str, target: Target, options: dict[str, Any], own: Mapping[str, Any]
) -> tuple[Experiment, dict[str, Any], Work]:
    """As `_read`, with the options apart that are ranges, or lists where one number is wanted."""
    over: dict[str, Any] = {name: value for name, value in options.items() if isinstance(value, Range)}
    lists = {name: value for name, value in options.items() if isinstance(value, list | tuple | np.ndarray)}
    lists = {name: value for name, value in lists.items() if name not in {"wrappers", "freeze", "callbacks", "loggers"}}
    rest = {name: value for name, value in options.items() if name not in over and name not in lists}
    experiment, work = _read(owner, target, rest, list(own))
    floats = {
        name
        for learner in experiment.learners.values()
        for name, kind in get_type_hints(type(learner.algorithm)).items()
        if kind is float
    }
    over |= {name: tuple(value) for name, value in lists.items() if name.rpartition(".")[2] in floats}
    experiment = change_options(experiment, {n: v for n, v in lists.items() if n not in over}, owner, list(own))
    if not over:
        raise OptionError(
            f"{owner}: over what? Give an option a range, such as learning_rate=shoal.log(1e-4, 1e-2, 8)."
        )
    return experiment, over, work


def _run(config: Config, work: Work, by: str | None = None) -> Any:
    """Runs a config to its end, and shows how far it is. by: what it is trained by, for the name of a folder."""
    path, on = work.folder(config, by), work.on(config)
    with work.told(config) as told:
        result = runner.run(config, path, on=on, **told)
    return _give(config, result, path)


def _give(config: Config, result: TrainingResult, path: Path | None) -> Run | Population | SweepResult:
    """What a call gives of a run that has ended. Its folder gets the pictures that the command line leaves there."""
    if isinstance(config, PopulationConfig):
        return Population(config, result.standing["state"], path, result.interrupted)
    if isinstance(config, Sweep):
        found = summarise(config, result)
        if path is not None:
            keep_sweep(path, found.to_dict())
        return found
    if path is not None and not result.interrupted:
        try:
            keep_pictures(RunFolder(path, config), result.policies, result.update)
        except WorldError as error:  # what was trained is not lost for it
            warnings.warn(str(error), stacklevel=4)
    times = result.seconds, result.compile_seconds, result.interrupted
    return Run(config.played, result.policies, result.update, result.lines, *times, path, result.standing)
