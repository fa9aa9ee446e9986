"""The calls of `shoal`: train, sweep, tune, evolve, grow a population, go on, load, evaluate.

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

from shoal.api.changes import as_whole, change_options, take
from shoal.api.pictures import keep_pictures, keep_sweep
from shoal.api.places import AUTO, among_hosts, choose_place
from shoal.api.population import Population
from shoal.api.progress import show_progress
from shoal.api.run import Policy, Run, read_lines, weights_of
from shoal.api.targets import Changes, Target, check_known, is_run, make_experiment, open_known, open_to_resume
from shoal.api.words import names_arguments
from shoal.cluster.plan import ClusterPlan
from shoal.cluster.run import Cluster
from shoal.cluster.tasks.pool import PoolConfig
from shoal.core.algorithm import Algorithm
from shoal.core.errors import OptionError, WorldError, require, unknown_name
from shoal.core.origin import trust
from shoal.core.types import PyTree
from shoal.core.zoo import find_run
from shoal.envs.wrappers import Wrapper
from shoal.populations.evolution.plan import Evolution
from shoal.populations.evolution.strategies import STRATEGIES, Evosax, make_strategy
from shoal.populations.league import EXPLOIT_EVERY
from shoal.populations.pbt.plan import PBT
from shoal.populations.population import PopulationConfig, open_population, oracle_of
from shoal.populations.population import load as load_population
from shoal.populations.psro import PSRO, finished
from shoal.presets import Sharing, response_preset
from shoal.training import run_kinds, runner
from shoal.training.callbacks import Callback, Listener, Observers, Progress
from shoal.training.checkpoint import steps as checkpoint_steps
from shoal.training.devices import use_all_cores, use_compilation_cache
from shoal.training.evaluate import Evaluation, Evaluator
from shoal.training.experiment import Config, Experiment, Learner, Setup
from shoal.training.host_stages import TIMEOUT
from shoal.training.loggers import Loggers
from shoal.training.loop import Saving, TrainingResult
from shoal.training.mirror import check_url, is_url, locate_run, mirroring
from shoal.training.roll import Hosts
from shoal.training.run import RunFolder, default_path, load_policies
from shoal.training.runner import Local
from shoal.training.sweep import SweepResult, summarise
from shoal.training.sweep_plan import Range, Sweep

SMALL = (16,)
"""Widths of the layers of those who evolve, unless given: each member has its own weights; few are found sooner."""
UNUSED = ("num_envs", "num_steps", "total_env_steps", "num_seeds")
"""Options of a training that mean nothing to an evolution."""
NOT_EVALUATED = ("eval_every", "eval_episodes")
PAYOFFS = "a population is judged by the payoffs of its matches, after every iteration"
"""Options of a training that mean nothing to a population, and why."""
OFF_POLICY = "ddpg"
"""The learner that ERL has if none is named."""


@dataclasses.dataclass(frozen=True)
class Work:
    """Where and how a call does its work: see `train`."""

    run_dir: str | Path | None = None
    devices: int | None = None
    cluster: str | Mapping[str, Any] | Cluster | None = None
    hosts: Hosts | None = None
    callbacks: Callback | Sequence[Callback] = ()
    loggers: Loggers | None = None
    progress: bool = True
    listener: Listener | None = None
    checkpoint_seconds: float = Saving.seconds
    checkpoint_every: int = Saving.every
    env_workers: int = 0
    env_timeout: float = TIMEOUT
    scenes: int | None = None
    mirror: str | None = None

    def __post_init__(self):
        places = "a folder, or 'auto' for one below runs/"
        require(self.run_dir is None or isinstance(self.run_dir, str | Path), "shoal", "run_dir", self.run_dir, places)
        numbered = self.devices is None or (type(self.devices) is int and self.devices > 0)
        require(numbered, "shoal", "devices", self.devices, "a number of devices, at least 1")
        clusters = "'auto', an address, or a mapping such as {'actors': 4}"
        named = self.cluster is None or isinstance(self.cluster, str | Mapping | Cluster)
        require(named, "shoal", "cluster", self.cluster, clusters)
        placed = self.hosts is None or isinstance(self.hosts, Hosts)
        require(placed, "shoal", "hosts", self.hosts, "shoal.Hosts(count, index, 'ADDRESS:PORT')")
        require(self.listener is None or callable(self.listener), "shoal", "listener", self.listener, "a function")
        seconds = isinstance(self.checkpoint_seconds, int | float) and self.checkpoint_seconds > 0
        require(seconds, "shoal", "checkpoint_seconds", self.checkpoint_seconds, "a number greater than 0")
        if self.mirror is not None:
            check_url(self.mirror)
        Observers((), self.callbacks, self.loggers or ())  # what is missing is said before anything else is done

    def folder(self, config: Config, by: str | None = None) -> Path | None:
        """The folder that the run is kept in, if any. On a cluster it needs one."""
        if self.hosts is not None and not self.hosts.leads:
            return None  # host 0 keeps it
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

        def asked(*names: str) -> dict[str, Any]:
            return {name: value for name in names if (value := getattr(self, name)) != getattr(Work, name)}

        stepping, saving = asked("env_workers", "env_timeout"), asked("checkpoint_seconds", "checkpoint_every")
        place = choose_place(
            config, cluster, given, devices=self.devices, stepping=stepping, saving=list(saving), resumed=resumed
        )
        return among_hosts(place, self.hosts)

    @contextlib.contextmanager
    def told(self, config: Config, fresh: bool = True) -> Iterator[dict[str, Any]]:
        """What `run` and `resume` take besides: all who are told how it goes, for as long as it does."""
        shows = self.progress and (self.hosts is None or self.hosts.leads)
        with show_progress(config, fresh) if shows else contextlib.nullcontext() as shown:
            listeners = [one for one in (shown, self.listener) if one is not None]

            def listen(progress: Progress) -> None:
                for listener in listeners:
                    listener(progress)

            yield {
                "listener": listen,
                "callbacks": self.callbacks,
                "loggers": () if fresh and self.loggers is None else self.loggers,
                "checkpoint_seconds": self.checkpoint_seconds,
                "checkpoint_every": self.checkpoint_every,
                "scenes": self.scenes,
            }


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
    experiment, work = _read("shoal.train", target, {**names, **options})
    return _run(experiment, work)


@names_arguments
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


@names_arguments
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
    experiment, work = _read("shoal.evolve", target, options, [*own, "search"])
    plan = Evolution(shrink_networks(experiment) if small else experiment, **own)
    return _run(plan, work, plan.strategy.name.replace(":", "-"))


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
    experiment, work = _read(owner, target, options, [*own, "oracle"])
    config = make_population(experiment, own, oracle)
    return _run(config, work, "exact" if config.oracle == "exact" else None)


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


@names_arguments
def load(path: str | Path, checkpoint: str | int | None = None) -> Run | Population:
    """A run by its folder; of a population, the `Population`.

    path: also the URL of a run that is mirrored, which is fetched to `runs/`. checkpoint: "best" in evaluation, or the
    one of that update; by default the newest.
    """
    return load_folder(path, checkpoint)


def load_folder(path: str | Path, checkpoint: str | int | None = None) -> Run | Population:
    """As `load`; errors name options as the command line does."""
    prepare()
    require(isinstance(path, str | Path), "shoal.load", "path", path, "the folder of a run")
    path = locate_run(path)
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


@names_arguments
def resume(
    run: str | Path | Run | Population,
    total_env_steps: float | None = None,
    iterations: int | None = None,
    **options: Any,
) -> Any:
    """Goes on with a run that was stopped, to the same bits as if it had not been; gives what made it gave.

    total_env_steps: a larger total than before, to train a run further, also one that is finished; iterations: the same
    of a population. loggers: by default those that it had by name. Other options: devices, cluster, hosts, callbacks,
    progress, listener, checkpoint_seconds, checkpoint_every, env_workers, env_timeout, scenes, mirror.
    """
    prepare()
    kinds = "a run, a population, or the folder of one"
    require(isinstance(run, str | Path | Run | Population), "shoal.resume", "run", run, kinds)
    path = run if isinstance(run, str | Path) else run.path
    if path is None:
        raise OptionError("shoal.resume: this run is in memory alone. Train it with a run_dir to go on with it later.")
    path = locate_run(path)
    work = Work(**take(Work, options, leave=("run_dir",)))
    for name in options:
        known = [field.name for field in dataclasses.fields(Work) if field.name != "run_dir"]
        known += ["total_env_steps", "iterations"]
        raise OptionError(f"shoal.resume: {unknown_name('option', name, known)}")
    longer = {"total_env_steps": as_whole(int, total_env_steps), "iterations": as_whole(int, iterations)}
    opened = open_to_resume(path, **longer)
    if isinstance(run, Run) and run.update != max(checkpoint_steps(opened.checkpoints), default=run.update):
        raise OptionError(
            f"shoal.resume: this run was loaded as it was after {run.update} updates, but a run goes on from its "
            f"newest checkpoint. To do that, give its folder: shoal.resume({str(path)!r})."
        )
    kept = None if work.hosts and not work.hosts.leads else path
    with mirroring(path, work.mirror if kept else None, resumed=True):
        with work.told(opened.config, fresh=False) as told:
            result = runner.resume(path, on=work.on(opened.config, path), **longer, **told)
        return _give(opened.config, result, kept)


@names_arguments
def evaluate(
    what: Run | Setup | Target,
    policies: Mapping[str, PyTree | Policy | Run] | None = None,
    episodes: int = 1024,
    seed: int = 0,
    explore: bool = False,
    *,
    checkpoint: str | int | None = None,
    opponents: Mapping[str, str | Path | Run | Policy] | None = None,
    env_workers: int = 0,
    env_timeout: float = TIMEOUT,
) -> Evaluation:
    """Mean returns of many episodes: `shoal.evaluate("runs/x", episodes=1000)`.

    what: a run or its folder, with the policies it has, of all seeds, or others; or whatever `train` takes, with
    `policies` by name, as weights, policies or runs: those left out play at random. checkpoint: of a folder; see
    `load`. opponents: as in `Run.evaluate`.
    """
    prepare()
    episodes, stepping = as_whole(int, episodes), {"env_workers": env_workers, "env_timeout": env_timeout}
    if isinstance(what, str | Path) and (is_url(what) or is_run(what)):
        what, checkpoint = _load_run(what, "shoal.evaluate", checkpoint), None
    if isinstance(what, Run):
        allowed = "left out for a run that is loaded already: see shoal.load(path, checkpoint=...)"
        require(checkpoint is None, "shoal.evaluate", "checkpoint", checkpoint, allowed)
        given = weights_of(policies, what.experiment.setup, "shoal.evaluate")
        run = what if given is None else dataclasses.replace(what, policies=given)
        return run.evaluate(episodes, seed, explore, opponents, **stepping)
    if opponents or checkpoint is not None:
        raise OptionError("shoal.evaluate: opponents and checkpoint are for runs; give the policies of an experiment")
    setup = what if isinstance(what, Setup) else make_experiment(what, Changes(), "shoal.evaluate").setup
    return Evaluator(setup, episodes, seed, explore, **stepping)(weights_of(policies, setup, "shoal.evaluate"))


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


def prepare() -> None:
    """Every core becomes a device, and compiled programs are kept: has an effect before JAX is used."""
    use_all_cores()
    use_compilation_cache()


def _read(owner: str, target: Target, options: dict[str, Any], own: Sequence[str] = ()) -> tuple[Experiment, Work]:
    """The experiment that is meant, and how it is to be worked on, from all options of a call."""
    prepare()
    work = Work(**take(Work, options))
    changes = take(Changes, options, leave=("options",))
    changes["weights"] = _folders_of(owner, changes.get("weights"))
    others = [field.name for cls in (Work, Changes) for field in dataclasses.fields(cls) if field.name != "options"]
    experiment = make_experiment(target, Changes(**changes, options=options), owner, [*others, *own])
    return experiment, work


def _folders_of(owner: str, weights: Any) -> Any:
    """Weights to start from, by learner or for the only one, as folders: a run starts from files, not from memory."""
    if isinstance(weights, Mapping):
        return {learner: _folders_of(owner, run) for learner, run in weights.items()}
    if weights is None or isinstance(weights, str | Path):
        return weights
    require(isinstance(weights, Run), owner, "weights", weights, "a run, its folder, or a mapping of learners to these")
    if weights.path is None:
        raise OptionError(f"{owner}: weights are of a run in memory alone. Train it with a run_dir to start from it.")
    if weights.update != max(checkpoint_steps(weights.path / "checkpoints"), default=weights.update):
        raise OptionError(
            f"{owner}: weights are of a run as it was after {weights.update} updates, but learners start from a run's "
            f"newest checkpoint. To do that, give its folder: {str(weights.path)!r}."
        )
    return weights.path


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
    leads = work.hosts is None or work.hosts.leads
    with mirroring(path, work.mirror if leads else None):
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
