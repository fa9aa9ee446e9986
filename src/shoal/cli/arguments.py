"""Command-line arguments into dataclasses, by `tyro`; wrong ones become one-line errors with the nearest name."""

import contextlib
import dataclasses
import difflib
import enum
import io
import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import tyro
from tyro.conf import DisallowNone, FlagCreatePairsOff, Positional, UseAppendAction, arg
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from shoal.api.synonyms import meant_by
from shoal.core.comments import comments as comments
from shoal.core.errors import OptionError, ShoalError

Options = TypeVar("Options")
Class = TypeVar("Class", bound=type)

Flag = FlagCreatePairsOff[bool]
"""A switch of a command: it is there or not."""
Imports = Annotated[UseAppendAction[tuple[str, ...]], arg(name="import", metavar="FILE|ID")]
"""Python files that register worlds, algorithms or torsos, and ids that a run folder may name; may be repeated."""
Checkpoint = Annotated[DisallowNone[str | None], arg(metavar="N|best")]
"""Which checkpoint of a run: of an update, or the best in evaluation; by default the newest."""
Logs = Annotated[UseAppendAction[tuple[str, ...]], arg(name="log", metavar="NAME[:OPTION=VALUE,...]")]
"""Loggers beside `metrics.jsonl`; may be repeated."""
RunArgument = Annotated[Positional[str], arg(metavar="RUN")]
Count = Annotated[DisallowNone[int | None], arg(metavar="N")]
Folder = Annotated[DisallowNone[str | None], arg(metavar="DIR")]
"""A folder to be made. Its path goes through `resolve_path`."""
File = Annotated[DisallowNone[str | None], arg(metavar="FILE")]
"""A file to be written. Its path goes through `resolve_path`."""
Url = Annotated[DisallowNone[str | None], arg(metavar="URL")]
ClusterAddress = Annotated[DisallowNone[str | None], arg(metavar="auto|ADDRESS")]

HELP, HELP_ALL, DESCRIBE = ("-h", "--help"), "--help-all", "--describe-options"
"""What asks for the common options, for all, and for the class of options, by `Described`."""
LIMIT = 10**30
"""No count is as large."""
LONGEST = 600
"""Letters of a message about an argument."""
_registry = ConstructorRegistry()


class Described(SystemExit):
    """The class of a command's options, instead of what the command does; for those who index commands."""

    def __init__(self, options: type[Any]):
        super().__init__(0)
        self.options = options


class Section(enum.Enum):
    """The sections of help, in their order. A class of options says by `section` where what it declares belongs."""

    COMMON = "Common options"
    ENVIRONMENT = "Environment"
    ALGORITHM = "Algorithm"
    NETWORK = "Network"
    LEARNERS = "Each learner's own"
    RUN = "Run"
    CLUSTER = "Cluster"

    @property
    def of(self) -> str:
        """Whose options are meant, behind their number."""
        own = {Section.COMMON: "of the command", Section.LEARNERS: "of single learners (--learners.NAME...)"}
        return own.get(self, f"of the {self.value.lower()}")


@_registry.primitive_rule
def _whole_numbers(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
    """Whole numbers as people type them: 1000000, 1_000_000, 1e6, 1M or 500k."""
    if info.type is not int:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda text: whole_number(text[0]),
        is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    )


@_registry.primitive_rule
def _nested_tuples(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[tuple] | None:
    """Tuples of tuples, such as a tensor of payoffs, as JSON: [[1, -1], [-1, 1]]."""
    nested = any(get_origin(part) is tuple for part in get_args(info.type))
    if get_origin(info.type) is not tuple or not nested:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="JSON",
        instance_from_str=lambda text: _from_json(text[0]),
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda value: [json.dumps(value)],
    )


@_registry.primitive_rule
def _named_values(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Mapping[str, Any]] | None:
    """Options of something that the user chose by name, such as a torso: heads=4 width=64."""
    origin = get_origin(info.type)
    if not (isinstance(origin, type) and issubclass(origin, Mapping) and get_args(info.type) == (str, Any)):
        return None
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="NAME=VALUE",
        instance_from_str=named_values,
        is_instance=lambda value: isinstance(value, Mapping),
        str_from_instance=lambda value: [f"{name}={json.dumps(part)}" for name, part in value.items()],
    )


def named_values(texts: Sequence[str]) -> dict[str, Any]:
    """`heads=4 causal=true norm=layer`: values in JSON, or else text.

    Several numbers may be written `[3, 2]`, `3,2`, `(3,2)` or, as other options have them, `3 2`.
    """
    found, name = {}, ""
    for text in texts:
        if name and _is_number(text):
            before = found[name]
            found[name] = [*(before if isinstance(before, list) else [before]), json.loads(text)]
            continue
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ValueError(f"{text!r} is not NAME=VALUE, such as heads=4")
        found[name] = _plain_value(value)
    return found


def _plain_value(text: str) -> Any:
    """A value in JSON, numbers with commas between them, or else the text."""
    with contextlib.suppress(ValueError):
        return json.loads(text)
    inner = text[1:-1] if text.startswith("(") and text.endswith(")") else text
    parts = [part.strip() for part in inner.removesuffix(",").split(",")]
    several = "," in inner and all(map(_is_number, parts))
    return [json.loads(part) for part in parts] if several else text


def _is_number(text: str) -> bool:
    with contextlib.suppress(ValueError):
        return isinstance(json.loads(text), int | float)
    return False


def _from_json(text: str) -> Any:
    def frozen(value: Any) -> Any:
        return tuple(map(frozen, value)) if isinstance(value, list) else value

    try:
        return frozen(json.loads(text))
    except json.JSONDecodeError as error:
        raise ValueError(f"{text!r} is not JSON such as [[1, -1], [-1, 1]]: {error}") from None


LETTERS = {"k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}
"""What letters behind a number stand for, large or small: 500k, 1.5M, 2B."""


def whole_number(text: str) -> int:
    """The whole number that a text stands for; 1e6, 2.5e3, 500k and 1.5M are whole numbers too."""
    try:
        return int(text)
    except ValueError:
        pass
    shown = text if len(text) <= 40 else f"{text[:40]}..."
    times = LETTERS.get(text[-1:].lower(), 1)
    try:
        value = Decimal(text[:-1] if times > 1 else text) * times  # exact, unlike a float: 1.1M, 1e17
        if abs(value) < LIMIT and value == int(value):
            return int(value)
    except ArithmeticError:  # not a number, or NaN
        pass
    raise ValueError(f"{shown!r} is not a whole number")


def parse(
    options: type[Options],
    args: Sequence[str],
    prog: str,
    description: str | None = None,
    full: str | None = None,
    hidden: Sequence[str] = (),
) -> Options:
    """Reads `args` into the dataclass `options`. Prints help and exits if asked to; raises `ShoalError`s.

    full: `prog` and what else it takes to be shown these options, where `prog --help` would show others.
    hidden: names of options that help does not show, as they would be refused.
    """
    if DESCRIBE in args:
        raise Described(options)
    if asks_for_help(args):
        from shoal.cli.help import show_help

        show_help(options, make_parser(options), prog, description, full or prog, HELP_ALL in args, hidden)
        raise SystemExit(0)
    args = respell(options, args)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about fields of a world that cannot be options: they stay fixed
            parsed, unknown = tyro.cli(
                options, args=args, prog=prog, description=description, registry=_registry, return_unknown_args=True
            )
    except SystemExit as stop:
        if stop.code in (None, 0):  # one of tyro's own options
            raise
        headline = _headline(said.getvalue()).replace(f"Missing from {prog}:", "missing")
        headline = re.sub(r"^missing (\S+) (.*) \(required\)$", r"missing \1, \2", headline)
        raise _own_error(stop) or OptionError(f"{prog}: {_in_words(headline)}") from None
    if unknown:
        raise OptionError(_unknown_option(options, unknown, prog, full or prog))
    return parsed


def asks_for_help(args: Sequence[str]) -> bool:
    """Whether help is wanted instead of what a command does."""
    return any(word in args for word in (*HELP, HELP_ALL, DESCRIBE))


def respell(options: type[Any], args: Sequence[str]) -> list[str]:
    """Arguments with our spelling of options: `--randomize` is `--randomise`, unless there is such an option."""
    if not any(word.startswith("--") and "ize" in word.partition("=")[0] for word in args):
        return list(args)
    known, changed = set(_flags(options)), []
    for word in args:
        name, equals, value = word.partition("=")
        ours = name.replace("_", "-").replace("ize", "ise")
        meant = name.startswith("--") and name.replace("_", "-") not in known and ours in known
        changed.append(f"{ours}{equals}{value}" if meant else word)
    return changed


def scan(args: Sequence[str], option: str) -> list[str]:
    """The values given for `option`, before the full set of options is known."""
    values = []
    for i, argument in enumerate(args):
        name, equals, value = argument.partition("=")
        if name.replace("_", "-") != option:
            continue
        if equals:
            values.append(value)
        elif i + 1 < len(args):
            values.append(args[i + 1])
    return values


def parse_pairs(texts: Sequence[str], option: str, meaning: str) -> dict[str, str]:
    """`NAME=VALUE` arguments as a dict."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise OptionError(f"{option} must be {meaning}, got {text!r}")
        found[name] = value
    return found


def options_from(
    config: type, names: Mapping[str, str] | None = None, leave: Sequence[str] = (), optional: bool = False
) -> Callable[[Class], Class]:
    """Makes the fields of a config options of a command: a decorator below `dataclass`, so that each stands once.

    names: only these fields, and what the options are called. leave: all but these. optional: an option that is not
    typed is None, as its default may follow from something else; the help shows the config's.
    """
    names = names or {field.name: field.name for field in dataclasses.fields(config) if field.name not in leave}
    fields = {field.name: field for field in dataclasses.fields(config)}

    def add(cls: Class) -> Class:
        said, kinds = comments(config), get_type_hints(config)
        for name, option in names.items():
            default, help, kind = fields[name].default, said[name], kinds[name]
            shown = arg(help_behavior_hint=f"(default: {default})")
            if optional:
                default, kind = None, Annotated[DisallowNone[kind | None], shown]
            cls.__annotations__[option] = kind if optional else _option_kind(kind, default)
            setattr(cls, option, option_field(default, help))
        return cls

    return add


def _option_kind(kind: Any, default: Any) -> Any:
    """A type as it is typed: switches without a value, texts that may be repeated, and never the word None."""
    if kind is bool and default is False:
        return Flag
    if kind == tuple[str, ...]:
        return UseAppendAction[kind]
    return DisallowNone[kind] if type(None) in get_args(kind) else kind


def repeated(metavar: str) -> Any:
    """Texts of an option that may be repeated."""
    return Annotated[UseAppendAction[tuple[str, ...]], arg(metavar=metavar)]


def option_field(default: Any, help: str) -> Any:
    """A field of a dataclass that is made up, with its help."""
    return dataclasses.field(default=default, metadata={"help": help} if help else {})


def _own_error(stop: BaseException) -> ShoalError | None:
    """The `ShoalError` behind tyro's exit: raised by a dataclass that checks its fields."""
    cause: BaseException | None = stop
    while cause is not None:
        if isinstance(cause, ShoalError):
            return cause
        cause = cause.__cause__ or cause.__context__
    return None


def _headline(box: str) -> str:
    """The first section below the title of tyro's box, which is drawn with lines or, in plain ASCII, with dashes."""
    sections: list[list[str]] = [[]]
    for line in re.sub(r"\x1b\[[0-9;]*m", "", box).splitlines():
        text = line.strip("│| ")
        if text.startswith(("╭", "╰")) or not text.strip("─-"):
            sections.append([])
        else:
            sections[-1].append(text)
    filled = [" ".join(section) for section in sections if section]
    titled = bool(sections[0]) and len(filled) > 1
    found = filled[1 if titled else 0] if filled else box.strip()
    return found if len(found) <= LONGEST else f"{found[: LONGEST - 160]} ... {found[-150:]}"  # what was typed was long


def _in_words(headline: str) -> str:
    """What tyro says of a value, in the words of our other refusals."""
    headline = re.sub(r"^Error parsing (\S+: )", r"\1", headline)
    headline = re.sub(r"could not convert string to float: (.*)$", r"\1 is not a number", headline)
    found = re.fullmatch(r"invalid choice (.*) for argument '(.*)'\. Expected one of \((.*)\)\.", headline, re.DOTALL)
    return f"{found[2]} must be one of {found[3].rstrip(',')}, got {found[1]}" if found else headline


def as_typed(message: str, args: Sequence[str]) -> str:
    """A refusal in the words of the command line: options as they are typed there, and no values as Python writes them.

    An option that was typed is called so; those of every experiment are, also if a preset has them.
    """
    flags = {"num_envs": "--num-envs", "num_steps": "--num-steps", "total_env_steps": "--total-env-steps"}
    for word in args:
        flag = word.partition("=")[0]
        if flag.startswith("--"):
            flags[flag[2:].rpartition(".")[2].replace("-", "_")] = flag.replace("_", "-")
    for name, flag in flags.items():
        follows = "" if "_" in name else r"(?= must be)"
        message = re.sub(rf"(?<![-\w.`'/]){re.escape(name)}(?![\w=/.'`]){follows}", flag, message)
    message = re.sub(r"\bgot \(([^()]*?),?\)", r"got \1", message)
    words = {"None": "none", "True": "true", "False": "false"}
    return re.sub(r"\bgot (None|True|False)\b", lambda found: f"got {words[found[1]]}", message)


def _unknown_option(options: type[Any], unknown: Sequence[str], prog: str, full: str) -> str:
    flag = next((argument for argument in unknown if argument.startswith("-")), None)
    if flag is None:
        return f"{prog}: unexpected argument {unknown[0]!r}. All options: `{full} --help`."
    name = flag.partition("=")[0]
    near = _nearest(name, _flags(options))
    hint = f"Did you mean {' or '.join(near)}? " if near else ""
    return f"{prog}: unknown option {name}. {hint}All options: `{full} --help`."


def make_parser(options: type[Any]) -> Any:
    """A parser like those of `argparse` that has the same options: help and hints are made from it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tyro.extras.get_parser(options, registry=_registry)


def _flags(options: type[Any]) -> list[str]:
    actions = make_parser(options)._actions
    return [flag for action in actions for flag in action.option_strings if flag.startswith("--")]


def _nearest(name: str, flags: Sequence[str]) -> list[str]:
    """Flags that others call so, or that look alike as a whole or, as prefixes are forgotten, in their last word."""
    word = name.lstrip("-").replace("_", "-").lower()[:80]
    whole = {flag.removeprefix("--"): flag for flag in flags}
    if typo := difflib.get_close_matches(word, whole, n=1, cutoff=0.92):
        return [whole[typo[0]]]
    if meant := meant_by(word, whole):
        return meant[:3]
    close = difflib.get_close_matches(word, whole, n=3, cutoff=0.7)
    if close:
        return [whole[name] for name in close]
    last = word.rpartition(".")[2]
    scored = [(difflib.SequenceMatcher(None, last, name.rpartition(".")[2]).ratio(), name) for name in whole]
    return [whole[name] for ratio, name in sorted(scored, key=lambda entry: -entry[0])[:2] if ratio >= 0.6]
