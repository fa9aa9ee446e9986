"""The form of a new run: the options of the command of its kind, and the words of the command that it stands for.

It may only say what the index of the package knows: a command that makes runs, a target that ships, options by their
names. Options that run or read other files (`--import`, `--weights`), send metrics elsewhere or need other machines are
left to the terminal.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from shoal.core.errors import OptionError, require, unknown_name
from shoal.ui.inventory import read_index

TRAIN = "train"
"""The kind of runs unless another one is chosen. The texts of its options hold for other kinds too."""
MOST_LETTERS = 400
"""Of a value."""
OF_A_RUN = ("--scenes", "--devices", "--checkpoint-minutes", "--checkpoint-every", "--eval-every", "--eval-episodes")
"""Options of the section Run that the form has."""
WITHHELD = frozenset({"--freeze", "--wrap", "--algo.network.torso", "--algo.network.torso-options"})
"""Options of other sections that it has not, besides those that take runs."""
DECIDING = {"--algo": "algorithm", "--strategy": "strategy"}
"""Options that others follow from, and what they name."""
ORACLES = ("exact",)
"""Who responds in a population, besides an algorithm, which `--algo` names."""
NEEDED = ("--over",)
"""Options without which a command that has them does nothing."""
SECTIONS = ("Common options", "Environment", "Algorithm", "Network", "Run")
"""As `--help` orders them."""
_NUMBERS = re.compile(r"[-+]?[0-9][0-9.eE+-]*( +[-+]?[0-9][0-9.eE+-]*)+")


@dataclasses.dataclass(frozen=True)
class Choice:
    """An option of the form. off: the flag that says no, of a switch. values: those allowed, if few.

    unset: what it means to leave it empty. form: of each of several values, with blanks between them. decides: whether
    other options follow from it.
    """

    flag: str
    section: str
    text: str
    off: str | None = None
    values: tuple[str, ...] = ()
    is_switch: bool = False
    unset: str = "as the target has it"
    form: str = ""
    decides: bool = False


def choices(kind: str, target: str, options: Mapping[str, Any]) -> list[Choice]:
    """The options of a run, as the form shows them: common ones first. options: those that are chosen already."""
    index = read_index()
    kinds, targets = index["texts"]["kinds"], index["targets"]
    require(kind in kinds, "form", "kind", kind, f"one of {', '.join(kinds)}")
    if target not in targets:
        raise unknown_name("target", target, targets, "See `shoal presets`.")
    found = [*_of_command(kind, options), *_of_world(targets[target]["env"])]
    found += _of_algorithm(targets[target]["algorithm"], options)
    allowed = (one for one in found if one.flag not in WITHHELD and one.flag not in index["options"]["runs"])
    return sorted(allowed, key=lambda one: SECTIONS.index(one.section))


def arguments(kind: Any, target: Any, options: Any) -> list[str]:
    """The words of the command for a filled form; options: a text by flag, or True for a switch."""
    if not (isinstance(kind, str) and isinstance(target, str) and isinstance(options, dict)):
        raise OptionError("a run needs a target and a kind, which are texts, and options by their names")
    known: dict[str, Choice] = {}
    for one in choices(kind, target, options):
        known |= {flag: one for flag in (one.flag, one.off) if flag}
    words = [kind, target]
    for flag, value in options.items():
        if flag not in known:
            other = f"{flag} is not an option of shoal {kind} {target} that can be given here"
            raise OptionError(f"{other}: type the command in a terminal instead")
        words += _words(flag, known[flag], value)
    for flag in NEEDED:
        if flag in known and flag not in options:
            raise OptionError(f"shoal {kind} needs {flag} {known[flag].form}: {known[flag].text}")
    return words


def _of_command(kind: str, options: Mapping[str, Any]) -> Iterator[Choice]:
    """The options of a command itself, and those of its strategy if it has one."""
    index = read_index()
    flags, texts = index["options"]["commands"][kind], index["texts"]["commands"]
    told = texts[TRAIN] | texts.get(kind, {})
    algorithms, strategies = index["algorithms"], index["options"]["strategies"]
    values = {"--algo": algorithms, "--strategy": strategies, "--oracle": ORACLES}
    for flag in flags:
        if flag in told and (told[flag]["section"] != "Run" or flag in OF_A_RUN):
            one = _choice(flag, flags, **told[flag])
            yield dataclasses.replace(one, values=tuple(values.get(flag, one.values)), decides=flag in DECIDING)
    if "--strategy" in flags:
        name = _chosen("--strategy", strategies, options) or told["--strategy"]["default"]
        for flag, said in index["texts"]["strategies"][name].items():
            yield _choice(flag, strategies[name], **said)


def _of_world(env: str) -> Iterator[Choice]:
    index = read_index()
    for flag, text in index["texts"]["worlds"][env].items():
        yield _choice(flag, index["options"]["worlds"][env], "Environment", text)


def _of_algorithm(name: str | None, options: Mapping[str, Any]) -> Iterator[Choice]:
    """The options of the algorithm that is chosen, or else of the target's if it has one. name: the target's."""
    index = read_index()
    chosen = _chosen("--algo", index["algorithms"], options)
    name = index["algorithms"][chosen]["algorithm"] if chosen else name
    for flag, text in index["texts"]["algorithms"].get(name, {}).items():
        section = "Network" if flag.startswith("--algo.network.") else "Algorithm"
        yield _choice(flag, index["options"]["algorithms"][name], section, text)


def _chosen(flag: str, known: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """The name that is given for an option that others follow from; empty if none is."""
    name = options.get(flag, "")
    name = name if isinstance(name, str) else "?"
    if name and name not in known:
        raise unknown_name(DECIDING[flag], name, known)
    return name


def _choice(
    flag: str, flags: Mapping[str, Any], section: str, text: str, default: str | None = None, form: str = ""
) -> Choice:
    """An option with what the index says of it. default: None if it follows from the target, empty if there is none."""
    head, dot, last = flag.removeprefix("--").rpartition(".")
    off = f"--{head}{dot}no-{last}"
    is_switch = flags[flag] is None
    unset = Choice.unset
    if default is not None:
        said = {"True": "yes", "False": "no", "": "no" if is_switch else ""}.get(default, default)
        unset = f"default: {said}" if said else "default"
    text = f"{text}; several with blanks between them" if form else text
    return Choice(flag, section, text, off if off in flags else None, tuple(flags[flag] or ()), is_switch, unset, form)


def _words(flag: str, choice: Choice, value: Any) -> list[str]:
    """An option as it is typed. Its value is part of the same word, so that it can never be another option."""
    if choice.is_switch:
        require(value is True, "form", flag, value, "true, as it is a switch")
        return [flag]
    sound = isinstance(value, str) and value.strip() and len(value) <= MOST_LETTERS and value.isprintable()
    require(bool(sound), "form", flag, value, f"a text of at most {MOST_LETTERS} letters")
    require(not choice.values or value in choice.values, "form", flag, value, f"one of {', '.join(choice.values)}")
    if choice.form:
        return [f"{flag}={one}" for one in value.split()]
    return [flag, *value.split()] if _NUMBERS.fullmatch(value) else [f"{flag}={value}"]
