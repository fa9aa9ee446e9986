"""The `shoal` command: finds the subcommand, and turns errors into messages and exit codes.

Exit codes: 0 done; 2 something the user can put right; 130 interrupted. Anything else is a bug and keeps its traceback.
"""

import contextlib
import importlib
import os
import signal
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from shoal.cli.interrupts import watched
from shoal.cli.leaving import INTERRUPTED, leave
from shoal.cli.terminal import begin, complain, console, show_warning, warn
from shoal.core.errors import HostError, RunError, ShoalError, UnknownNameError, unknown_name
from shoal.core.extensions import advise
from shoal.core.supported import check_versions
from shoal.core.version import VERSION

DONE, WRONG, BROKEN_PIPE = 0, 2, 141


class Command(NamedTuple):
    """Where a subcommand lives (imported when it is called) and what it is for."""

    module: str
    function: str
    arguments: str
    what: str


COMMANDS = {
    "train": Command("commands.train", "train", "TARGET", "train a world or a preset; makes a run folder"),
    "resume": Command("stored_runs", "resume", "RUN", "go on with a run that was stopped"),
    "sweep": Command("commands.sweep", "run", "TARGET", "train many values of hyper-parameters in one program"),
    "pbt": Command("commands.pbt", "run", "TARGET", "tune hyper-parameters while training; pbt RUN goes on with a run"),
    "evolve": Command(
        "commands.evolve", "run", "TARGET", "evolve a population of policies; evolve RUN goes on with one"
    ),
    "psro": Command("commands.psro", "run", "GAME", "grow a population by best responses to mixtures of itself"),
    "population": Command("commands.population", "run", "RUN", "what is in a population: figures, a page, replays"),
    "league": Command("commands.psro", "league", "GAME", "grow a league of main agents and exploiters"),
    "eval": Command("commands.evaluate", "run", "RUN", "mean return of a run's policies over many episodes"),
    "compare": Command("commands.compare", "run", "RUN...", "runs side by side: intervals, tables, pictures"),
    "match": Command("commands.match", "run", "WHO=RUN...", "runs and populations in the seats of one world"),
    "tournament": Command("commands.tournament", "run", "RUN...", "everybody with everybody: a table, Elo, a page"),
    "watch": Command("commands.watch", "run", "RUN...", "write a page that plays an episode"),
    "play": Command("commands.play", "run", "WORLD", "take a seat yourself, in the browser, against policies"),
    "ui": Command("commands.ui", "run", "[ROOT]", "look at all runs in the browser: live, compared, replayed"),
    "export": Command("commands.export", "run", "RUN", "policies as files that need no JAX: numpy, ONNX, a page"),
    "envs": Command("commands.listings", "envs", "[PATTERN]", "the worlds there are"),
    "algos": Command("commands.listings", "algos", "[PATTERN]", "the algorithms there are, and what each is for"),
    "presets": Command("commands.listings", "list_presets", "[PATTERN]", "the experiments that are ready to train"),
    "runs": Command("commands.catalogue", "run", "[PATTERN]", "the runs there are: status, return, speed, tags"),
    "runs tag": Command("commands.catalogue", "tag", "RUN TAG...", "give a run tags"),
    "runs untag": Command("commands.catalogue", "untag", "RUN TAG...", "take tags from a run"),
    "runs note": Command("commands.catalogue", "note", "RUN TEXT", "keep a note of a run"),
    "runs remove": Command("commands.catalogue", "remove", "RUN...", "remove runs; asks first"),
    "show": Command("commands.settings", "show", "TARGET", "settings of a preset or a run as TOML"),
    "diff": Command("commands.settings", "diff", "A B", "settings that differ between two runs, presets or files"),
    "bench env": Command("commands.bench", "env", "WORLD", "how fast a world steps here"),
    "bench train": Command("commands.bench", "train", "TARGET", "how fast training runs here"),
    "bench suite": Command("commands.bench", "suite", "", "a table of how fast this machine is"),
    "bench autoscale": Command(
        "commands.bench", "autoscale", "TARGET", "the number of copies that trains fastest here"
    ),
    "cluster status": Command("commands.cluster", "status", "RUN", "what a run on a cluster is doing, and who is slow"),
    "cluster advise": Command("commands.cluster", "advise", "RUN", "how many actors feed its learner"),
    "cluster scale": Command("commands.cluster", "scale", "RUN", "add or remove actors while it runs"),
    "doctor": Command("commands.doctor", "run", "", "devices, versions, cache, and what is missing"),
    "completion": Command("commands.completion", "run", "SHELL", "what makes bash, zsh or fish complete with Tab"),
    "help": Command("app", "show_help", "[COMMAND]", "what a command does, and its options"),
    "version": Command("app", "show_version", "", "the version of this Shoal"),
}

RENAMED = {
    "train": {"--patience": "--task-timeout"},
    "sweep": {"--out": "--run-dir", "--seeds": "--num-seeds"},
    "evolve": {"--own-starts": "--no-common-starts", "--raw-views": "--no-normalise-views"},
    "population": {"--output": "--out"},
    "psro": {"--breadth": "--uniform-share"},
    "watch": {"--output": "--out", "--training": "--seed-index"},
    "export": {"--output": "--out", "--training": "--seed-index"},
}
"""Options by command that were renamed: the old name is understood for one release."""

COMPLETE = "--complete"
"""What shells ask by: see `completion`."""
ASKING = ("-h", "--help", "--help-all")
"""What asks for help."""
FAMILIES = ("bench", "cluster", "runs")
"""Commands of two words, by the first; some are commands of one word too."""

EXAMPLES = (
    ("shoal train demo", "a first run, a few minutes on a laptop"),
    ("shoal train mpe/simple_spread --env.num-agents 4 --seed 1", "a world with options"),
    ("shoal watch runs/... --open", "see what was learnt"),
    ("shoal train my/world --import my_world.py", "a world of your own"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    ours = argv is None
    with watched() if ours else contextlib.nullcontext():
        if ours:  # the whole process
            argv = sys.argv[1:]
            for stream in (sys.stdout, sys.stderr):
                stream.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue]  # not all can show "▁"
            warnings.showwarning = show_warning
        begin()
        try:
            command, args = find_command(list(argv or ()))
            if signal.getsignal(signal.SIGINT) is leave:  # all is imported
                signal.signal(signal.SIGINT, signal.default_int_handler)
            code = command(args)
            sys.stdout.flush()
            return code
        except SystemExit as stop:  # help was printed
            return stop.code if isinstance(stop.code, int) else DONE
        except KeyboardInterrupt:
            complain("interrupted")
            if ours:  # what is saved is saved; to shut down around threads that still compile takes long, or crashes
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(INTERRUPTED)
            return INTERRUPTED
        except BrokenPipeError:  # whoever read the output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return BROKEN_PIPE
        except Exception as error:
            message = _readable(error)
            if message is None or os.environ.get("SHOAL_DEBUG"):
                raise
            with contextlib.suppress(OSError):  # the terminal may be closed
                complain(_as_typed(message, argv or ()) if isinstance(error, ShoalError) else message)
            if ours and isinstance(error, HostError):  # JAX would wait at the end for those that are gone
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(WRONG)
            return WRONG


def find_command(argv: list[str]) -> tuple[Callable[[list[str]], int], list[str]]:
    """The function of a command, and its arguments, with the names that options have today."""
    if not argv or argv[0] in ASKING:
        return show_help, []
    if argv[0] in ("-V", "--version"):
        return show_version, []
    if argv[0] == COMPLETE:
        return importlib.import_module("shoal.cli.commands.completion").answer, argv[1:]
    words = 2 if argv[0] in FAMILIES and (argv[0] not in COMMANDS or " ".join(argv[:2]) in COMMANDS) else 1
    name = " ".join(argv[:words])
    if name not in COMMANDS:
        if argv[0] in FAMILIES and (len(argv) == 1 or argv[1] in ASKING):
            return show_help, argv
        raise ShoalError(f"{unknown_name('command', name, COMMANDS)} All commands: `shoal --help`.")
    command = COMMANDS[name]
    if name not in ("help", "version"):
        check_versions()
    module = importlib.import_module(f"shoal.cli.{command.module}")
    return getattr(module, command.function), rename_options(argv[words:], RENAMED.get(name, {}))


def rename_options(args: Sequence[str], renamed: Mapping[str, str]) -> list[str]:
    """Arguments with today's names in place of old ones, each of which is said once."""
    changed = []
    for argument in args:
        option, equals, value = argument.partition("=")
        if option in renamed:
            warn(f"{option} is now {renamed[option]}; the old name goes in the next release")
            argument = f"{renamed[option]}{equals}{value}"
        changed.append(argument)
    return changed


def show_help(args: Sequence[str]) -> int:
    """`shoal help train demo` is `shoal train demo --help`; without a command, the overview."""
    words = [word for word in args if word not in ASKING]
    if words in ([], ["help"], *([family] for family in FAMILIES if family not in COMMANDS)):
        _overview("" if words in ([], ["help"]) else words[0])
        return DONE
    command, rest = find_command([*words, "--help-all" if "--help-all" in args else "--help"])
    return command(rest)


def show_version(args: Sequence[str]) -> int:
    if unknown := [word for word in args if word not in ASKING]:
        raise ShoalError(f"shoal version takes no arguments, got {unknown[0]!r}")
    sys.stdout.write(f"shoal {VERSION}\n")
    return DONE


def _overview(only: str = "") -> None:
    out = console()
    out.print("Shoal trains many interacting agents, worlds and weights in one compiled program.", style="bold")
    out.print("\nusage: shoal COMMAND ...   (shoal COMMAND --help for its options)\n")
    for name, command in COMMANDS.items():
        if name.startswith(only):
            out.print(f"  {f'{name} {command.arguments}':<20}  {command.what}", soft_wrap=True)
    if not only:
        out.print("\nexamples:")
        for line, what in EXAMPLES:
            out.print(f"  {line:<60}  {what}", soft_wrap=True)
        out.print("\nTARGET is a world (shoal envs) or a preset (shoal presets); RUN is the folder of a run.")
        out.print("--json makes a command print one JSON object. SHOAL_DEBUG=1 shows tracebacks of all errors.")


def _as_typed(message: str, argv: Sequence[str]) -> str:
    """See `arguments.as_typed`, which takes a while to import."""
    return importlib.import_module("shoal.cli.arguments").as_typed(message, argv)


def _readable(error: Exception) -> str | None:
    """What to tell the user, or None if the error is a bug."""
    if isinstance(error, RunError):  # a folder may hold anything, but it is refused in one line
        return " ".join(str(error).splitlines())
    if isinstance(error, UnknownNameError):  # it may be the user's own
        return f"{error}{advise(error, None)}"
    if isinstance(error, ShoalError):
        return str(error)
    if isinstance(error, OSError):  # of the machine: full disk, no permission
        return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
    if type(error).__name__ == "JaxRuntimeError" and "RESOURCE_EXHAUSTED" in str(error):
        return "the device is out of memory. Use fewer copies (--num-envs) or fewer steps (--num-steps)."
    return None
