"""`shoal bench env WORLD` and `shoal bench train TARGET`: how fast it goes here."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

from rich.table import Table
from tyro.conf import OmitArgPrefixes

from shoal.api.targets import OWN_FILE, attributed_to, build_world, check_world, import_files
from shoal.cli.arguments import Count, Flag, Imports, parse, scan
from shoal.cli.runs import check_devices, describe_experiment, prepare
from shoal.cli.targets import (
    Wraps,
    check_env_options,
    env_fields,
    parse_env_options,
    parse_target,
    parse_wrappers,
    split_target,
    typed_env_options,
)
from shoal.cli.terminal import console, emit, format_count, pluralise, say
from shoal.core.errors import OptionError, UnknownNameError, require_positive, shell_command
from shoal.core.host import HostEnvProxy
from shoal.core.registry import ids, is_foreign
from shoal.training.bench import bench_env, bench_train
from shoal.training.experiment import Experiment


@dataclasses.dataclass(frozen=True)
class BenchEnvOptions:
    """Step a world with random actions, its views and rewards consumed."""

    num_envs: int = 1024  # copies of the world
    num_steps: int = 1000  # steps of each copy in one call of the compiled program
    seconds: float = 5.0  # measure for about this long
    seed: int = 0  # seed of the worlds and the actions
    devices: Count = None  # use only the first N devices (on a CPU, cores)
    wrap: Wraps = ()
    imports: Imports = ()  # a Python file that registers worlds
    json: Flag = False  # one JSON object on stdout


@dataclasses.dataclass(frozen=True)
class BenchTrainOptions:
    """Train without saving anything, and time it."""

    unused: ClassVar[tuple[str, ...]] = ()  # options of a training that mean nothing here

    seconds: float = 10.0  # measure for about this long
    devices: Count = None  # use only the first N devices (on a CPU, cores)
    imports: Imports = ()  # a Python file that registers worlds, algorithms, torsos or presets
    json: Flag = False  # one JSON object on stdout


def env(args: Sequence[str]) -> int:
    """Measures a world."""
    prepare()
    import_files(scan(args, "--import"))
    world, rest = split_target(args, ids())
    prog, typed = f"shoal bench env {world or 'WORLD'}", scan(rest, "--env-option")
    if world is None:
        parse(_options_class(None), rest, prog)
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
    options = parse(_options_class(experiment), rest, prog)
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
    prepare()
    experiment, options, _ = parse_target(BenchTrainOptions, args, "shoal bench train")
    check_devices(options.devices)
    require_positive("shoal bench train", seconds=options.seconds)
    check_world(experiment)
    say(console(options.json), f"{describe_experiment(experiment)}; compiling ...")
    result = bench_train(experiment, devices=options.devices, seconds=options.seconds)
    _finish(result, options.json)
    return 0


def _options_class(experiment: Experiment | None) -> type[Any]:
    fields: list[Any] = [("run", OmitArgPrefixes[BenchEnvOptions], BenchEnvOptions())]
    fields += env_fields(experiment) if experiment else []
    return dataclasses.make_dataclass("Options", fields, frozen=True)


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
    console().print(table)
