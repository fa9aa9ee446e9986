"""What the form of a new training may say, and the words of the command that it stands for.

It may only say what the index of the package knows: a target that ships, options by their names, one value each.
Options that run or read other files (`--import`, `--weights`), send metrics elsewhere or need other machines are left
to the terminal.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from shoal.core.errors import OptionError, require, unknown_name
from shoal.ui.inventory import read_index

MOST_LETTERS = 400
"""Of a value."""
OF_A_RUN = ("--scenes", "--devices", "--checkpoint-minutes", "--checkpoint-every", "--eval-every", "--eval-episodes")
"""Options of the section Run that the form has."""
WITHHELD = frozenset({"--weights", "--freeze", "--wrap", "--algo.network.torso", "--algo.network.torso-options"})
"""Options of other sections that it has not."""
SECTIONS = ("Common options", "Environment", "Algorithm", "Network", "Run")
"""As `--help` orders them."""
_NUMBERS = re.compile(r"[-+]?[0-9][0-9.eE+-]*( +[-+]?[0-9][0-9.eE+-]*)+")


@dataclasses.dataclass(frozen=True)
class Choice:
    """An option of the form. off: the flag that says no, of a switch. values: those allowed, if few."""

    flag: str
    section: str
    text: str
    off: str | None = None
    values: tuple[str, ...] = ()
    is_switch: bool = False


def choices(target: str, algorithm: str = "") -> list[Choice]:
    """The options of a training, as the form shows them: common ones first. algorithm: if another one is chosen."""
    index = read_index()
    facts = index["targets"].get(target)
    if facts is None:
        raise unknown_name("target", target, index["targets"], "See `shoal presets`.")
    if algorithm and algorithm not in index["algorithms"]:
        raise unknown_name("algorithm", algorithm, index["algorithms"])
    kind = index["algorithms"][algorithm]["algorithm"] if algorithm else facts["algorithm"]
    options, texts = index["options"], index["texts"]
    train = {flag: said for flag, said in texts["train"].items() if said["section"] not in ("Run", "Cluster")}
    found = [_choice(flag, options["commands"]["train"], **said) for flag, said in train.items()]
    world = texts["worlds"][facts["env"]]
    found += [_choice(flag, options["worlds"][facts["env"]], "Environment", text) for flag, text in world.items()]
    for flag, text in texts["algorithms"].get(kind, {}).items():
        section = "Network" if flag.startswith("--algo.network.") else "Algorithm"
        found.append(_choice(flag, options["algorithms"][kind], section, text))
    found += [_choice(flag, options["commands"]["train"], **texts["train"][flag]) for flag in OF_A_RUN]
    names = tuple(index["algorithms"])
    found = [dataclasses.replace(one, values=names) if one.flag == "--algo" else one for one in found]
    return sorted((one for one in found if one.flag not in WITHHELD), key=lambda one: SECTIONS.index(one.section))


def _choice(flag: str, flags: Mapping[str, Any], section: str, text: str) -> Choice:
    head, dot, last = flag.removeprefix("--").rpartition(".")
    off = f"--{head}{dot}no-{last}"
    return Choice(flag, section, text, off if off in flags else None, tuple(flags[flag] or ()), flags[flag] is None)


def arguments(target: Any, options: Any) -> list[str]:
    """The words of `shoal train` for a filled form; options: a text by flag, or True for a switch."""
    if not isinstance(target, str) or not isinstance(options, dict):
        raise OptionError("a training needs a target, which is a text, and options by their names")
    algorithm = options.get("--algo", "")
    known: dict[str, Choice] = {}
    for one in choices(target, algorithm if isinstance(algorithm, str) else "?"):
        known |= {flag: one for flag in (one.flag, one.off) if flag}
    words = ["train", target]
    for flag, value in options.items():
        if flag not in known:
            raise OptionError(f"{flag} is not an option that can be given here: type the command in a terminal instead")
        words += _words(flag, known[flag], value)
    return words


def _words(flag: str, choice: Choice, value: Any) -> list[str]:
    """An option as it is typed. Its value is part of the same word, so that it can never be another option."""
    if choice.is_switch:
        require(value is True, "form", flag, value, "true, as it is a switch")
        return [flag]
    sound = isinstance(value, str) and 0 < len(value) <= MOST_LETTERS and value.isprintable()
    require(sound, "form", flag, value, f"a text of at most {MOST_LETTERS} letters")
    require(not choice.values or value in choice.values, "form", flag, value, f"one of {', '.join(choice.values)}")
    return [flag, *value.split()] if _NUMBERS.fullmatch(value) else [f"{flag}={value}"]
