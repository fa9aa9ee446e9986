"""`shoal evolve TARGET --strategy NAME`: a population of policies, bred by returns. `shoal evolve RUN` goes on."""

import dataclasses
import itertools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from tyro.conf import UseAppendAction, arg

from shoal.cli.arguments import Flag, Imports, RunFolder, comments, parse, scan
from shoal.cli.pictures import draw, replay
from shoal.cli.progress import returns, showing, summary
from shoal.cli.start import Devices, Folder, Hints, agents_of, check_devices, opened, pairs, prepare
from shoal.cli.targets import parse_target
from shoal.cli.terminal import console, count, duration, emit, say
from shoal.cli.train import INTERRUPTED
from shoal.cli.worlds import blame, check_world, import_files
from shoal.core.errors import OptionError, require_positive
from shoal.execution import checkpoint
from shoal.execution.evolution import Evolution, build
from shoal.execution.evolve import evolve, is_evolution, open_evolution, resume
from shoal.execution.experiment import Experiment, Learner, cast
from shoal.execution.logging import read_metrics
from shoal.execution.run import Run, check_new, load_policies
from shoal.execution.train import Listener, Result
from shoal.population.strategies import STRATEGIES, Evosax, Strategy

UNUSED = ("--num-envs", "--num-steps", "--total-env-steps", "--num-seeds")
"""Options of training that have no meaning here."""
OFF_POLICY = "ddpg"
"""The learner that ERL has if none is named."""
HIDDEN = (16,)
"""Widths of the layers if none are given: every member has weights of its own, and few are found sooner than many."""


@dataclasses.dataclass(frozen=True)
class EvolveOptions:
    """Options of `shoal evolve` itself."""

    strategy: Annotated[str, arg(metavar="NAME")] = "open_es"  # open_es, ars, ga, erl, or any strategy of evosax
    population: int = 4096  # members of a generation
    generations: int = 100  # how many are bred
    episodes: int = 1  # that each member plays in each generation
    evolve: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="POLICY")] = ()
    """a policy that evolves, while the others play at random; by default all evolve"""
    own_starts: Flag = False  # members draw their own start states, instead of all meeting the same
    raw_views: Flag = False  # views are not normalised by running statistics
    max_steps: int = 10_000  # episodes are cut off after so many
    run_dir: Folder = None  # new folder for the run; by default one below runs/
    devices: Devices = None  # use only the first N devices (on a CPU, cores)
    checkpoint_minutes: float = 1.0  # time between two checkpoints
    imports: Imports = ()  # a Python file that registers worlds or presets
    json: Flag = False  # one JSON object on stdout, everything else on stderr


@dataclasses.dataclass(frozen=True)
class GoOnOptions:
    """Go on with an evolution that was stopped, to the same bits as if it had not been."""

    run: RunFolder  # folder of the run
    checkpoint_minutes: float = 1.0  # time between two checkpoints
    imports: Imports = ()  # a Python file that registers worlds or presets
    json: Flag = False  # one JSON object on stdout, everything else on stderr


def run(args: Sequence[str]) -> int:
    """Evolves the policies of a world or a preset in a new run folder, or goes on with a run."""
    prepare()
    folders = [argument for argument in args if not argument.startswith("-") and is_evolution(Path(argument))]
    if folders:
        return go_on(args)
    plan, options = parse_plan(args)
    check_devices(options.devices)
    require_positive("shoal evolve", checkpoint_minutes=options.checkpoint_minutes)
    folder = Path(options.run_dir) if options.run_dir else _new_path(plan)
    check_new(folder)
    check_world(plan.played)
    build(plan, options.devices)  # refuses what does not fit before there is a folder

    def start(listener: Listener) -> Result:
        seconds = 60 * options.checkpoint_minutes
        return evolve(plan, folder, devices=options.devices, listener=listener, checkpoint_seconds=seconds)

    return _run(Run(folder, plan.played), plan, start, options, fresh=True)


def go_on(args: Sequence[str]) -> int:
    """Continues an evolution from its newest checkpoint."""
    options = parse(GoOnOptions, args, "shoal evolve")
    require_positive("shoal evolve", checkpoint_minutes=options.checkpoint_minutes)
    import_files(options.imports)
    opened(options.run)
    run, plan = open_evolution(Path(options.run))
    newest = checkpoint.latest(run.checkpoints)
    if newest and checkpoint.read_meta(newest)["update"] >= plan.generations:
        out = console(options.json)
        say(out, f"{run.path} is finished already: all of its {plan.generations} generations are bred.", style="bold")
        if options.json:
            _, policies, meta = load_policies(run.path)
            emit(_summary(run, plan, Result(policies, meta["update"], [], meta["seconds"], 0.0)))
        return 0

    def start(listener: Listener) -> Result:
        return resume(run.path, listener=listener, checkpoint_seconds=60 * options.checkpoint_minutes)

    return _run(run, plan, start, options, fresh=False)


def parse_plan(args: Sequence[str]) -> tuple[Evolution, Any]:
    """The plan of an evolution, and the command's options. Those of the strategy follow from its name."""
    names = scan(args, "--strategy")
    name = names[-1] if names else EvolveOptions.strategy
    for option in UNUSED:
        if scan(args, option):
            raise OptionError(
                f"shoal evolve has no {option}: the copies of the world are --population times --episodes, and a run "
                "lasts for --generations"
            )
    if name == "erl" and not scan(args, "--algo"):
        args = [*args, "--algo", OFF_POLICY]
    experiment, options = parse_target(_options_class(name), args, "shoal evolve")
    given = name == "erl" or any("network.hidden" in argument for argument in args)
    plan = Evolution(
        experiment if given else _with_small_networks(experiment),
        _strategy(name, options),
        population=options.population,
        generations=options.generations,
        episodes=options.episodes,
        evolve=options.evolve,
        common_starts=not options.own_starts,
        normalise_views=not options.raw_views,
        max_steps=options.max_steps,
    )
    return plan, options


def _with_small_networks(experiment: Experiment) -> Experiment:
    """The experiment with small networks for those who evolve from scratch."""

    def changed(learner: Learner) -> Learner:
        algorithm: Any = learner.algorithm
        if learner.frozen or learner.weights or not hasattr(algorithm, "network"):
            return learner
        network = dataclasses.replace(algorithm.network, hidden=HIDDEN)
        return dataclasses.replace(learner, algorithm=dataclasses.replace(algorithm, network=network))

    learners = {name: changed(learner) for name, learner in experiment.learners.items()}
    return dataclasses.replace(experiment, learners=learners)


def _options_class(name: str) -> type:
    """The options of the command and of the strategy of that name, in one dataclass."""
    if name in STRATEGIES:
        cls = STRATEGIES[name]
        kind = Annotated[cls, arg(help="Options of the strategy.")]
        fields: list[Any] = [("search", kind, cls())]
    else:
        Evosax(name)  # is there one?
        kind = Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="NAME=VALUE")]
        fields = [
            ("option", kind, _field((), "a parameter of the strategy, by evosax's name, or learning_rate or std"))
        ]
    # Declared once more, as what the source says of them is not looked for in the classes below.
    known, said = {field.name: field for field in dataclasses.fields(EvolveOptions)}, comments(EvolveOptions)
    own = [(name, known[name].type, _field(known[name].default, help)) for name, help in said.items()]
    return dataclasses.make_dataclass("EvolveOptions", [*own, *fields], bases=(EvolveOptions,), frozen=True)


def _field(default: Any, help: str) -> Any:
    return dataclasses.field(default=default, metadata={"help": help})


def _strategy(name: str, options: Any) -> Strategy:
    if name in STRATEGIES:
        return options.search
    given = pairs(options.option, "--option", "NAME=VALUE, such as std=0.1")
    return Evosax(name, {key: _value(key, text) for key, text in given.items()})


def _value(key: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise OptionError(f"--option {key}={text}: {text!r} is not a number") from None


def _new_path(plan: Evolution) -> Path:
    """A new folder's name: world, strategy, time."""
    name = plan.strategy.name.replace(":", "-")
    stem = f"{plan.experiment.env.replace('/', '-')}_{name}_{time.strftime('%Y%m%d-%H%M%S')}"
    paths = (Path("runs") / (stem if number == 0 else f"{stem}-{number}") for number in itertools.count())
    return next(path for path in paths if not path.exists())


def _run(run: Run, plan: Evolution, start: Callable[[Listener], Result], options: Any, fresh: bool) -> int:
    out = console(options.json)
    program = build(plan)
    who = f"{', '.join(program.evolving)} by {plan.strategy.name}, {program.genome.size:,} weights"
    size = f"{plan.population} members x {plan.episodes} episode{'s' * (plan.episodes > 1)}"
    seed = f"{plan.generations} generations; seed {plan.experiment.seed}"
    say(out, f"{plan.experiment.env}: {who}; {size}, {seed}", style="bold")
    say(out, f"run folder: {run.path}; compiling ...")
    files = "".join(f" --import {file}" for file in options.imports)
    try:
        with showing(out, plan.experiment.env, 1, agents_of(plan.experiment), fresh) as listener:
            result = start(listener)
    except KeyboardInterrupt:  # while compiling, or twice: what was saved last is what there is
        if (run.path / "config.json").exists():
            say(out, f"stopped. Go on with: shoal evolve {run.path}{files}", style="bold yellow")
        raise
    _report(out, run, result)
    pictures: dict[str, str | None] = {}
    if result.interrupted:
        say(out, f"stopped and saved. Go on with: shoal evolve {run.path}{files}", style="bold yellow")
    else:
        pictures = _pictures(out, run, result)
        hints = Hints(run.path, options.imports)
        say(out, f"next: {hints('watch', ' --open')}")
        say(out, f"      {hints('eval')}")
    if options.json:
        emit(_summary(run, plan, result) | pictures)
    return INTERRUPTED if result.interrupted else 0


def _last_line(run: Run) -> dict[str, Any] | None:
    lines = read_metrics(run.metrics)
    return lines[-1] if lines else None


def _report(out: Console, run: Run, result: Result) -> None:
    last = _last_line(run) or {}
    steps = last.get("env_steps", 0)
    rate = f", {count(steps / result.seconds)} env steps/s" if result.seconds > 0 else ""
    took = duration(result.seconds)
    say(out, f"{count(steps)} env steps in {took}{rate}; compiled in {result.compile_seconds:.1f} s")
    figures = [f"{name} {text}" for name, text in summary(last).items()]
    figures += [f"{name} {last[name]:.2f}" for name in ("fitness/best", "fitness/policy") if name in last]
    say(out, "last generation: " + " | ".join(figures))


def _pictures(out: Console, run: Run, result: Result) -> dict[str, str | None]:
    """Writes `curves.png` and `replay.html` into the run folder, as far as it can be done, and says so."""
    curves, why = draw(run)
    say(out, f"curves: {curves}" if curves else f"no curves.png: {why}")
    with blame(run.experiment.env, "scene"):
        page, why = replay(run.path / "replay.html", cast(run.experiment), result.policies, update=result.update)
    say(out, f"replay: {page}" if page else f"no replay.html: {why}")
    return {"curves": curves and str(curves), "replay": page and str(page)}


def _summary(run: Run, plan: Evolution, result: Result) -> dict[str, Any]:
    last = _last_line(run) or {}
    return {
        "run_dir": str(run.path),
        "strategy": plan.strategy.name,
        "population": plan.population,
        "interrupted": result.interrupted,
        "generations": result.update,
        "env_steps": last.get("env_steps", 0),
        "seconds": result.seconds,
        "compile_s": result.compile_seconds,
        "training_return": {name.removeprefix("return "): value for name, value in returns(last).items()},
        "fitness": {name.removeprefix("fitness/"): last[name] for name in last if name.startswith("fitness/")},
    }
