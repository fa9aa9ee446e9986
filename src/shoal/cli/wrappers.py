"""Wrappers as they are typed: `--wrap agent_ids --wrap frame_stack:count=4`."""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

from tyro.conf import UseAppendAction, arg

from shoal.cli.arguments import whole_number
from shoal.core.errors import OptionError, require
from shoal.envs.wrappers import WRAPPERS, Wrapper, wrapper_class
from shoal.training.serialise import from_plain

HELP = f"put a wrapper around the world ({', '.join(WRAPPERS)}); may be repeated, the innermost first"
_SHOWN = arg(name="wrap", metavar="NAME[:OPTION=VALUE,...]", help=HELP, help_behavior_hint="")
Wraps = Annotated[UseAppendAction[tuple[str, ...]], _SHOWN]


def parse_wrappers(texts: Sequence[str]) -> tuple[Wrapper, ...]:
    """The wrappers that these texts stand for."""
    return tuple(_parse(text) for text in texts)


def _parse(text: str) -> Wrapper:
    name, colon, rest = text.partition(":")
    data: dict[str, Any] = {"name": name}
    kinds = {field.name: field.type for field in dataclasses.fields(wrapper_class(name))}
    for part in rest.split(",") if colon else ():
        option, equals, value = part.partition("=")
        if not (option and equals and value):
            raise OptionError(f"--wrap must be NAME or NAME:OPTION=VALUE,OPTION=VALUE, got {text!r}")
        option = option.replace("-", "_")
        data[option] = _number(value)
        if kinds.get(option) in (int, float):
            allowed, wanted = (int, "a whole number") if kinds[option] is int else (int | float, "a number")
            require(isinstance(data[option], allowed), f"--wrap {name}", option, data[option], wanted)
    return from_plain(Wrapper, data, f"--wrap {name}")


def _number(text: str) -> Any:
    """A number if it is one; wrappers have no other options."""
    for kind in (whole_number, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text
