"""`--help` and `--help-all`: the options of a command in sections, the common ones first and the cluster's last.

`--help` fits a screen: it shows what most people change, and says what it leaves out. Where an option belongs follows
from where it is declared (see `arguments.Section`); which options of long sections are common is the table `SHOWN`.
"""

import argparse
import dataclasses
import inspect
import itertools
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from shoal.cli.arguments import Section

LINES = 60
"""The most lines of `--help`, at 80 columns or more."""
WIDTHS = 40, 110
"""The least and the most columns of help: longer lines are hard to read."""
INDENT, GAP, WIDEST = 2, 2, 32
"""Columns before an option, between it and its text, and of an option that has its text beside it."""
OF_A_WORLD = 12
"""Options of a world that `--help` shows."""
OF_AN_ALGORITHM = 6
"""Options of an algorithm, or of a strategy, that `--help` shows where none of them is a common one."""
LEAST = 3
"""Options of a section that are not left out for want of lines while another one has more."""
SHOWN = {
    Section.ALGORITHM: (
        *("sharing", "learning-rate", "actor-learning-rate", "gamma", "gae-lambda", "entropy-coef", "clip-eps"),
        *("epochs", "minibatches", "critic", "mixer", "batch-size", "buffer-size", "temperature", "epsilon-end"),
        *("std", "normalise-views"),
    ),
    Section.NETWORK: ("hidden", "recurrent"),
    Section.RUN: ("run-dir", "dry-run", "imports", "json", "devices"),
    Section.CLUSTER: ("cluster",),
}
"""Options that `--help` shows of each section; it shows all of the common ones."""
PLACES = {
    Section.ENVIRONMENT: ("randomise", "wrap", "env-option"),
    Section.ALGORITHM: ("sharing", "freeze", "weights"),
    Section.RUN: ("eval-every", "eval-episodes", "keep-checkpoints"),
}
"""Where the options of an experiment are shown; those that are not named here are common."""
PREFIXES = {
    "env.": Section.ENVIRONMENT,
    "algorithm.network.": Section.NETWORK,
    "algorithm.": Section.ALGORITHM,
    "search.": Section.ALGORITHM,
    "learners.": Section.LEARNERS,
}
"""Sections of the options of whatever belongs to the target, by how their places begin."""


@dataclasses.dataclass(frozen=True)
class Option:
    """An option as it is shown. name: without prefixes. flags: all ways to type it. values: those allowed, if few.

    is_of_experiment: whether every training has it, whatever the command.
    """

    section: Section
    name: str
    form: str
    text: str
    flags: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    takes_value: bool = True
    is_of_experiment: bool = False

    @property
    def is_argument(self) -> bool:
        """Whether it is typed without a flag."""
        return not self.flags


def show_help(
    options: type[Any],
    parser: argparse.ArgumentParser,
    prog: str,
    about: str | None,
    full: str,
    everything: bool,
    hidden: Sequence[str] = (),
) -> None:
    """Prints the help of a command. full: what to type for it, without `--help`. everything: all but hidden options."""
    width = min(max(shutil.get_terminal_size().columns, WIDTHS[0]), WIDTHS[1])
    found = [option for option in read_options(options, parser) if option.name not in hidden]
    head = _head(options, found, prog, about, width)
    lines = [*head, *_sections(found, width)] if everything else _short(found, head, full, width)
    titles = {f"{section.value}:" for section in Section} if sys.stdout.isatty() else set()
    for line in lines:
        sys.stdout.write(f"\x1b[1m{line}\x1b[0m\n" if line in titles else f"{line}\n")


def read_options(options: type[Any], parser: argparse.ArgumentParser) -> list[Option]:
    """The options of a dataclass, in the order of the sections, from the parser that was made for it."""
    found = [_option(options, action) for action in parser._actions if action.dest != "help"]
    order = list(Section)
    return sorted(found, key=lambda option: (order.index(option.section), _rank(option)))


def _by_section(found: Sequence[Option]) -> dict[Section, list[Option]]:
    return {section: list(group) for section, group in itertools.groupby(found, lambda option: option.section)}


def _rank(option: Option) -> int:
    """Within a section: arguments, then what the command, the world or the algorithm itself has, then the rest."""
    if option.is_argument:
        return 0
    return 2 if option.name in itertools.chain(*PLACES.values()) or option.is_of_experiment else 1


def common_options(found: Sequence[Option]) -> list[Option]:
    """The options that `--help` shows, if there is room for all of them."""
    chosen = []
    for section, own in _by_section(found).items():
        if section is Section.ENVIRONMENT:
            own = [option for option in own if option.name != "wrap"][:OF_A_WORLD]
        elif section is Section.LEARNERS:
            own = []
        elif section in SHOWN:
            picked = [option for option in own if option.name in SHOWN[section]]
            foreign = section is Section.ALGORITHM and not any(option.form.startswith("--algo.") for option in picked)
            own = own[:OF_AN_ALGORITHM] if foreign else picked
        chosen += own
    return chosen


def _option(options: type[Any], action: argparse.Action) -> Option:
    place = action.dest
    name = place.rpartition(".")[2].replace("_", "-")
    switch = action.nargs == 0
    return Option(
        _section(options, place, name),
        name,
        _form(action),
        _text(action),
        tuple(action.option_strings),
        tuple(map(str, action.choices or ())),
        not switch,
        "." not in place and _command(options) is not None,
    )


def _section(options: type[Any], place: str, name: str) -> Section:
    """Where an option is shown. place: of its value, with dots."""
    for prefix, section in PREFIXES.items():
        if place.startswith(prefix):
            return section
    command = _command(options)
    if command is None:
        return _declared(options, place.replace("-", "_"))
    if place.startswith("run."):
        return _declared(command, place.removeprefix("run.").replace("-", "_"))
    return next((section for section, names in PLACES.items() if name in names), Section.COMMON)


def _command(options: type[Any]) -> type[Any] | None:
    """The class of a command's own options, among those of its target; None for a command that takes no target."""
    own = [field.default for field in dataclasses.fields(options) if field.name == "run"]
    return type(own[0]) if own and dataclasses.is_dataclass(own[0]) else None


def _declared(cls: type[Any], name: str) -> Section:
    """The section of the class that declares an option first."""
    holders = [base for base in cls.__mro__ if name in vars(base).get("__annotations__", {})]
    return vars(holders[-1]).get("section", Section.COMMON) if holders else Section.COMMON


def _form(action: argparse.Action) -> str:
    """An option as it is typed: `--seed INT`, `--[no-]randomise`."""
    shown = "" if action.nargs == 0 else _metavar(action)
    if not action.option_strings:
        return shown
    flag, *others = action.option_strings
    if others and others[0].replace("no-", "", 1) == flag:
        prefix, _, last = flag.rpartition(".")
        flag = f"{prefix}.[no-]{last}" if prefix else f"--[no-]{flag.removeprefix('--')}"
    if action.choices and len(flag) + len(shown) >= WIDEST:  # the text lists them
        shown = "NAME"
    return f"{flag} {shown}" if shown else flag


def _metavar(action: argparse.Action) -> str:
    metavar = action.metavar if action.metavar is not None else action.dest.upper()
    text = metavar if isinstance(metavar, str) else " ".join(metavar)
    return re.sub(r"\[(\S+) \[\1 \.\.\.\]\]", r"[\1 ...]", text.replace("{None}|", ""))


def _text(action: argparse.Action) -> str:
    """What an option is for and its default; a switch is off, and None stands for what the text says."""
    text = action.help or ""
    switch = action.nargs == 0 and len(action.option_strings) == 1
    text = re.sub(r"\s*\(default: \w+\)" if switch else r"\s*\(default: (None)?\)", "", text).strip()
    if action.choices and _form(action).endswith(" NAME"):
        said, mark, default = text.rpartition("(default: ")
        text = f"{said.strip()} ({'|'.join(map(str, action.choices))}) {mark}{default}"
    return text


def _head(options: type[Any], found: Sequence[Option], prog: str, about: str | None, width: int) -> list[str]:
    arguments = " ".join(option.form for option in found if option.is_argument)
    usage = " ".join(part for part in ("usage:", prog, arguments, "[OPTIONS]") if part)
    lines = textwrap.wrap(usage, width, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
    said = about or inspect.getdoc(options) or ""
    if said.startswith(f"{options.__name__}("):  # made up, as there is none
        said = ""
    for paragraph in said.split("\n\n") if said else ():
        lines += ["", *textwrap.wrap(" ".join(paragraph.split()), width)]
    return lines


def _sections(found: Sequence[Option], width: int) -> list[str]:
    """All sections, each with its title and its options."""
    lines = []
    for section, own in _by_section(found).items():
        beside = min(WIDEST, max(len(option.form) for option in own))
        lines += ["", f"{section.value}:", *(line for option in own for line in _lines(option, beside, width))]
    return lines


def _lines(option: Option, beside: int, width: int) -> list[str]:
    """An option and its text beside it, or below if the option is long."""
    start = INDENT + beside + GAP
    wrapped = textwrap.wrap(option.text, max(width - start, 20), break_on_hyphens=False)
    if len(option.form) > beside:
        return [f"{'':{INDENT}}{option.form}", *(f"{'':{start}}{line}" for line in wrapped)]
    first = f"{'':{INDENT}}{option.form:<{beside}}{'':{GAP}}{wrapped[0] if wrapped else ''}".rstrip()
    return [first, *(f"{'':{start}}{line}" for line in wrapped[1:])]


def _short(found: Sequence[Option], head: list[str], full: str, width: int) -> list[str]:
    """The common options, as many as fit, and what is left out."""
    chosen = common_options(found)
    while True:
        brief = [dataclasses.replace(option, text=_brief(option.text)) for option in chosen]
        lines = [*head, *_sections(brief, width), *_left_out(found, chosen, full, width)]
        if len(lines) <= LINES or not chosen:
            return lines
        chosen.remove(_least_needed(chosen))


def _brief(text: str) -> str:
    """The first statement of a text, and its default."""
    said, mark, default = text.rpartition(" (default: ")
    if not mark:
        said = text
    first, semicolon, rest = said.partition("; ")
    if semicolon and "by default" in rest:
        first = f"{first}; {rest[rest.index('by default') :]}"
    return f"{first}{mark}{default}" if mark else first


def _least_needed(chosen: Sequence[Option]) -> Option:
    """The last option of the longest section, the common ones being needed most."""
    sections = _by_section(chosen)
    others = [own for section, own in sections.items() if section is not Section.COMMON and len(own) > LEAST]
    longest = max(others or sections.values(), key=len)
    return next((option for option in reversed(longest) if not option.is_of_experiment), longest[-1])


def _left_out(found: Sequence[Option], chosen: Sequence[Option], full: str, width: int) -> list[str]:
    """How many options are not shown, of what, and how to see them."""
    left = [option.section for option in found if option not in chosen]
    if not left:
        return []
    counts = [f"{left.count(section)} {section.of}" for section in Section if section in left]
    many = f"{len(left)} more options: {', '.join(counts)}." if len(left) > 1 else f"One more option: {counts[0]}."
    # The command stands on a line of its own, to be copied.
    return ["", *textwrap.wrap(many, width), f"All of them: {full} --help-all"]
