"""`shoal bench env WORLD`, `train TARGET`, `suite` and `autoscale TARGET`: how fast it goes here."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
from rich.table import Table

from shoal.api.suite import QUICK_SECONDS, REPEATS, SECONDS, Work, measure, suite_for
from shoal.api.targets import OWN_FILE, attributed_to, build_world, check_world, import_files
from shoal.cli.arguments import Count, File, Flag, Imports, parse, scan
from shoal.cli.runs import check_devices, describe_experiment
from shoal.cli.targets import (
    Wraps,
    check_env_options,
    parse_env_options,
    parse_target,
    parse_wrappers,
    split_target,
    typed_env_options,
    world_options,
)
from shoal.cli.terminal import console, display_path, emit, format_count, pluralise, resolve_path, say
from shoal.core.errors import OptionError, UnknownNameError, require_positive, shell_command
from shoal.core.files import write_atomically
from shoal.core.host import HostEnvProxy
from shoal.core.registry import ids, is_foreign
from shoal.training import autoscale as autoscaling
from shoal.training.bench import bench_env, bench_train
from shoal.training.devices import prepare_jax
from shoal.training.experiment import Experiment
from shoal.training.fused import copies_unit


@dataclasses.dataclass(frozen=True)
class BenchEnvOptions:
    """Step a world with random actions, its views and rewards consumed."""

    num_envs: int = 1024  # copies of the world
    num_steps: int = 1000  # steps of each copy in one call of the compiled program
    seconds: float = 5.0  # measure for about this long
    seed: int = 0  # seed of the worlds and the actions
    devices: Count = None  # use only the first N devices (on a CPU, cores); by default all
    wrap: Wraps = ()
    imports: Imports = ()  # a Python file that registers worlds
    json: Flag = False  # one JSON object on stdout


@dataclasses.dataclass(frozen=True)
class BenchTrainOptions:
    """Train without saving anything, and time it."""

    unused: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("eval_every", "eval_episodes", "keep_checkpoints"), "it times training alone, and keeps nothing"
    )

    seconds: float = 10.0  # measure for about this long
    devices: Count = None  # use only the first N devices (on a CPU, cores); by default all
    imports: Imports = ()  # a Python file that registers worlds, algorithms, torsos or presets
    json: Flag = False  # one JSON object on stdout


@dataclasses.dataclass(frozen=True)
class BenchSuiteOptions:
    """Measure the work that speed is judged by, in sizes that suit this machine: three repeats, and their spread.

    Compiling is timed apart, and without the cache of compiled programs. On two CPU cores it takes a few minutes.
    """

    quick: Flag = False  # each repeat a quarter as long, and without the rows that take longest: within a minute
    only: str = ""  # only rows whose name contains this
    repeats: int = REPEATS  # how often each row is timed
    out: File = None  # keep the rows there too, as JSON, after each of them; by default they are shown only
    json: Flag = False  # one JSON object on stdout


@dataclasses.dataclass(frozen=True)
class AutoscaleOptions:
    """Find the number of copies that trains fastest here: sizes double until they no longer gain, or do not fit.

    Each is measured in a process of its own, so that running out of memory ends that process only.
    """

    unused: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("eval_every", "eval_episodes", "keep_checkpoints"), "it times training alone"),
        "num_envs": "it is what is searched for; --least and --most bound it",
    }

    least: int = autoscaling.LEAST  # the fewest copies that are tried
    most: int = autoscaling.MOST  # the most copies that are tried
    seconds: float = 3.0  # measure each size for about this long
    devices: Count = None  # use only the first N devices (on a CPU, cores); by default all
    imports: Imports = ()  # a Python file that registers worlds, algorithms, torsos or presets
    json: Flag = False  # one JSON object on stdout


def env(args: Sequence[str]) -> int:
    """Measures a world."""
    prepare_jax()
    import_files(scan(args, "--import"))
    world, rest = split_target(args, ids())
    prog, typed = f"shoal bench env {world or 'WORLD'}", scan(rest, "--env-option")
    if world is None:
        parse(world_options(BenchEnvOptions, None), rest, prog)
        raise OptionError(f"shoal bench env: which world? Known: {', '.join(ids())}.")
    experiment = Experiment(world, parse_env_options(typed) if is_foreign(world) else {})
    try:
        on_host = isinstance(build_world(experiment), HostEnvProxy)
    except UnknownNameError as error:
        raise UnknownNameError(f"{error} {OWN_FILE}") from error
    check_env_options(world, typed, prog)
    if on_host:
        raise OptionError(
            f"{world} runs on the host, in Python, at its own speed; what is measured here is compiled. "
            f"`{shell_command('train', world)}` prints env steps/s."
        )
    options = parse(world_options(BenchEnvOptions, experiment), rest, prog)
    own = options.run
    check_devices(own.devices)
    require_positive("shoal bench env", num_envs=own.num_envs, num_steps=own.num_steps, seconds=own.seconds)
    wrappers = parse_wrappers(own.wrap)
    experiment = experiment.replace(env_options=typed_env_options(experiment, options), wrappers=wrappers)
    check_world(experiment)
    out = console(own.json)
    say(out, f"{world}: {pluralise(own.num_envs, 'copy', 'copies')}, random actions; compiling ...")
    with attributed_to(world, "stepping it"):
        result = bench_env(
            world,
            dict(experiment.env_options),
            wrappers,
            num_envs=own.num_envs,
            num_steps=own.num_steps,
            devices=own.devices,
            seconds=own.seconds,
            seed=own.seed,
        )
    _finish(result, own.json)
    return 0


def train(args: Sequence[str]) -> int:
    """Measures training."""
    prepare_jax()
    experiment, options, _ = parse_target(BenchTrainOptions, args, "shoal bench train")
    check_devices(options.devices)
    require_positive("shoal bench train", seconds=options.seconds)
    check_world(experiment)
    say(console(options.json), f"{describe_experiment(experiment)}; compiling ...")
    result = bench_train(experiment, devices=options.devices, seconds=options.seconds)
    _finish(result, options.json)
    return 0


def suite(args: Sequence[str]) -> int:
    """Measures the suite, and prints its table."""
    prepare_jax()
    options = parse(BenchSuiteOptions, args, "shoal bench suite")
    require_positive("shoal bench suite", repeats=options.repeats)
    works = _chosen(suite_for(jax.local_devices()[0].platform), options.only)
    works = [work for work in works if not (options.quick and work.long)] or works
    file = resolve_path(options.out) if options.out else None
    if file is not None and not file.parent.is_dir():
        raise OptionError(f"shoal bench suite: --out {options.out} lies in a folder that is not there: make it first")
    seconds, out, rows = QUICK_SECONDS if options.quick else SECONDS, console(options.json), []
    repeats = pluralise(options.repeats, "repeat")
    say(out, f"{pluralise(len(works), 'row')}, {repeats} of about {seconds:g} s each, compiled without the cache ...")
    for work in works:
        rows.append(measure(work, seconds, options.repeats))
        say(out, f"  {_brief(rows[-1])}")
        if file is not None:
            write_atomically(file, json.dumps(rows, indent=1) + "\n")
    out.print(_suite_table(rows))
    say(out, f"{rows[0]['device']}; {', '.join(f'{name} {value}' for name, value in rows[0]['versions'].items())}")
    if file is not None:
        say(out, f"kept in {display_path(file)}")
    if options.json:
        emit({"rows": rows})
    return 0


def autoscale(args: Sequence[str]) -> int:
    """Tries numbers of copies, and recommends the fastest."""
    autoscaling.keep_off_devices()
    prepare_jax()
    prog = "shoal bench autoscale"
    experiment, options, _ = parse_target(AutoscaleOptions, args, prog)
    check_devices(options.devices)
    require_positive(prog, seconds=options.seconds, least=options.least, most=options.most)
    check_world(experiment)
    handed_on = _without(args, ("--least", "--most", "--seconds"), ("--json",))
    candidates = autoscaling.sizes(copies_unit(experiment), options.least, options.most)
    out = console(options.json)
    say(out, f"{experiment.env}: each number of copies in a process of its own ...")
    trials = autoscaling.search(
        candidates,
        lambda size: autoscaling.measure_apart(autoscaling.bench_command(handed_on, size, options.seconds), size),
        lambda trial: say(out, f"  {_trial_line(trial)}"),
    )
    best = autoscaling.fastest(trials)
    if best is None:
        raise OptionError(f"{prog}: no number of copies could be measured. {trials[0].num_envs:,}: {trials[0].problem}")
    out.print(_trial_table(trials, best))
    option = f"--num-envs {best.num_envs}"
    command = shell_command("train", *_without(handed_on, ("--devices",), ()), *option.split())
    say(out, f"fastest here: {option}, as in: {command}", style="bold")
    if options.json:
        rows = [dataclasses.asdict(trial) for trial in trials]
        emit({"num_envs": best.num_envs, "option": option, "command": command, "trials": rows})
    return 0


def _trial_line(trial: autoscaling.Trial) -> str:
    if trial.env_steps_per_s is None:
        return f"{trial.num_envs:,} copies: {trial.problem}"
    return f"{trial.num_envs:,} copies: {format_count(trial.env_steps_per_s)} env steps/s"


def _trial_table(trials: Sequence[autoscaling.Trial], best: autoscaling.Trial) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("copies", "env steps/s", "per CPU second", "compile"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for trial in trials:
        if trial.env_steps_per_s is None or trial.env_steps_per_cpu_s is None:
            table.add_row(f"{trial.num_envs:,}", "-", "-", "-", "not measured")
            continue
        rates = format_count(trial.env_steps_per_s), format_count(trial.env_steps_per_cpu_s)
        mark = "fastest" if trial is best else ""
        table.add_row(f"{trial.num_envs:,}", *rates, f"{trial.compile_s:.1f} s", mark)
    return table


def _without(args: Sequence[str], valued: Sequence[str], switches: Sequence[str]) -> list[str]:
    """Arguments without some options: those with a value, and those without."""
    kept, skip = [], False
    for word in args:
        name, equals, _ = word.partition("=")
        name = name.replace("_", "-")
        if not skip and name not in (*valued, *switches):
            kept.append(word)
        skip = not skip and name in valued and not equals
    return kept


def _chosen(works: Sequence[Work], part: str) -> list[Work]:
    """The rows whose names contain a part; there must be one."""
    found = [work for work in works if part in work.name]
    if not found:
        names = "; ".join(work.name for work in works)
        raise OptionError(f"shoal bench suite: no row's name contains {part!r}. Rows for this device: {names}.")
    return found


def _brief(row: Mapping[str, Any]) -> str:
    if "refused" in row:
        return f"{row['work']}: left out: {row['refused']}"
    kernels = f"; {row['kernels']}" if row["kernels"] else ""
    return f"{row['work']}: {format_count(row['env_steps_per_s'])} env steps/s{kernels}"


def _suite_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The rows for people. The spread is that of the repeats, from the slowest to the quickest."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("work", no_wrap=True)
    for name in ("env steps/s", "spread", "per CPU second", "compile"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("precision")
    for row in rows:
        if "refused" in row:
            table.add_row(row["work"], "does not fit")
            continue
        low, high = (format_count(rate) for rate in row["spread"])
        cpu, compiled = format_count(row["env_steps_per_cpu_s"]), f"{row['compile_s']:.1f} s"
        table.add_row(
            row["work"], format_count(row["env_steps_per_s"]), f"{low} to {high}", cpu, compiled, row["precision"]
        )
    return table


def _finish(result: dict[str, Any], json: bool) -> None:
    if json:
        emit(result)
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right")
    table.add_column()
    table.add_row(f"{format_count(result['env_steps_per_s'])}", "env steps/s")
    table.add_row(f"{format_count(result['agent_steps_per_s'])}", f"agent steps/s ({result['agents']} agents)")
    table.add_row(f"{format_count(result['env_steps_per_cpu_s'])}", "env steps per CPU second")
    table.add_row(f"{result['compile_s']:.2f} s", "to compile")
    table.add_row(str(result["devices"]), f"x {result['device']}")
    if result["kernels"]:
        table.add_row("", result["kernels"])
    console().print(table)
