"""What errors call the arguments of a call: deeper layers name options as the command line spells them."""

import functools
import inspect
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from shoal.core.errors import ShoalError

P = ParamSpec("P")
R = TypeVar("R")

ARGUMENTS = {"algo": "algorithm", "wrap": "wrappers", "log": "loggers", "opponent": "opponents"}
"""Arguments of calls that are named otherwise than the options of the command line."""
_NOT_REWRITTEN = r"`[^`]*`|with: shoal .*|--import \S+ \(in Python[^)]*\)|\([^()]*command line[^()]*\)"
_OPTION = re.compile(rf"(?P<kept>{_NOT_REWRITTEN})|(?<![\w-])--(?P<name>[a-z][a-z-]*)(?: (?P<value>[A-Z]{{2,}}\b))?")
_IMPORT = re.compile(r"name the file that registers it: --import FILE(?: \(in Python, import it first\))?")


def names_arguments(call: Callable[P, R]) -> Callable[P, R]:
    """A call whose errors name its arguments, `env_workers`, where the command line has options, `--env-workers`."""

    @functools.wraps(call)
    def wrapped(*args: P.args, **options: P.kwargs) -> R:
        try:
            return call(*args, **options)
        except ShoalError as error:
            error.args = tuple(spell(part) if isinstance(part, str) else part for part in error.args)
            raise

    return wrapped


def for_command_line(call: Callable[P, R]) -> Callable[P, R]:
    """The same call with errors that name options as the command line does."""
    return inspect.unwrap(call)


def spell(text: str) -> str:
    """A text with arguments in place of options; commands to be typed into a shell stay as they are."""
    return _OPTION.sub(_argument, _IMPORT.sub("import the file that registers it first", text))


def _argument(found: re.Match[str]) -> str:
    if found["kept"]:
        return found["kept"]
    name = ARGUMENTS.get(found["name"], found["name"].replace("-", "_"))
    return f"{name}={found['value']}" if found["value"] else name
