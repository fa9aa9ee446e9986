"""What the shell offers when Tab is pressed: commands, targets, run folders, options and their values.

`complete` answers from `index.json` and from the folders that are there, so it takes a moment only. Worlds of one's
own, which `--import` names, are not known to it: their names and options are not offered.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.cli.app import COMMANDS, FAMILIES
from shoal.cli.index import read_index

SHELLS = ("bash", "zsh", "fish")
HELP = ("--help", "--help-all")
ROOTS = ("runs", "sweeps")
"""Folders below which runs are made by default."""
MOST_FOLDERS = 1000
"""Entries of a folder that are looked at."""
COMPILED = ("--env-workers", "--env-timeout")
"""Options that mean nothing to a world that ships with Shoal."""

SCRIPTS = {
    "bash": """_shoal() {
    local line quoted
    COMPREPLY=()
    while IFS= read -r line; do
        printf -v quoted '%q' "$line"
        COMPREPLY+=("$quoted")
    done < <(shoal --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _shoal shoal
""",
    "zsh": """#compdef shoal
_shoal() {
    local -a found
    found=("${(@f)$(shoal --complete "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
    found=(${found:#})
    if (( $#found )); then
        compadd -- $found
    else
        _files
    fi
}
compdef _shoal shoal
""",
    "fish": """function __shoal_complete
    set -l words (commandline -opc)
    set -l found (shoal --complete $words[2..-1] (commandline -ct) 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c shoal -f -a '(__shoal_complete)'
""",
}
"""What each shell is told once; from then on it asks `shoal --complete WORD...`, which completes the last word."""


def complete(words: Sequence[str]) -> list[str]:
    """What may stand in place of the last word, behind the others; nothing where a file is wanted."""
    *before, current = _joined(words) or [""]
    name, rest = _command(before)
    if name is None or (name in FAMILIES and len(before) == 1 and not current.startswith("-")):
        return _starting(current, _first_words(before))
    found = _found(name, rest, current)
    split = "=" in words[-2:]  # by bash, which replaces what stands behind the sign only
    return [word.removeprefix(current[: current.rfind("=") + 1]) for word in found] if split else found


def _found(name: str, rest: Sequence[str], current: str) -> list[str]:
    """Whole words that may stand in place of the current one."""
    option, equals, value = current.partition("=")
    options = _options(name, rest)
    if equals and option.startswith("--"):
        return [f"{option}={found}" for found in _values(option, options.get(option), value)]
    if rest and rest[-1].startswith("--") and options.get(rest[-1]) is not None:
        return _values(rest[-1], options[rest[-1]], current)
    if current.startswith("-"):
        return _starting(current, [*options, *HELP])
    return _arguments(name, rest, current)


def _values(option: str, allowed: Sequence[str] | None, current: str) -> list[str]:
    """What an option may be given: values that are listed, or folders of runs."""
    form = "RUN" if option.endswith(".weights") else read_index()["options"]["runs"].get(option)
    return _runs_as(form, current) if form and allowed is not None else _starting(current, allowed or ())


def _runs_as(form: str, current: str) -> list[str]:
    """Folders of runs, as an option or an argument names them: RUN, WHO=RUN, or several with commas."""
    who, equals, _ = current.partition("=")
    if "=" in form and not equals:
        return []
    start = f"{who}=" if "=" in form else current[: current.rfind(",") + 1] if "," in form else ""
    run = current.removeprefix(start)
    random = _starting(run, ["random"]) if form == "WHO=RUN" else []
    return [f"{start}{found}" for found in (*random, *run_folders(run))]


def _joined(words: Sequence[str]) -> list[str]:
    """The words as a shell splits them at blanks: bash splits `--option=value` and `left=run` at the sign as well."""
    joined: list[str] = []
    for word in words:
        if joined and (word == "=" or joined[-1].endswith("=")):
            joined[-1] += word
        else:
            joined.append(word)
    return joined


def _command(before: Sequence[str]) -> tuple[str | None, list[str]]:
    """The command and the words behind it; None if it is not typed yet."""
    for count in (2, 1):  # `runs tag` is a command, and so is `runs`
        name = " ".join(before[:count])
        if len(before) >= count and name in COMMANDS:
            return name, list(before[count:])
    return None, []


def _first_words(before: Sequence[str]) -> list[str]:
    if before and before[0] in FAMILIES:
        return [name.split()[1] for name in COMMANDS if name.startswith(f"{before[0]} ")] if len(before) == 1 else []
    return [*dict.fromkeys(name.split()[0] for name in COMMANDS), "--help", "--version"] if not before else []


def _options(name: str, rest: Sequence[str]) -> dict[str, list[str] | None]:
    """The options of a command and, if they are known, of its target: allowed values, or None for a switch."""
    index = read_index()
    known, found = index["options"], dict(index["options"]["commands"].get(name, {}))
    target = None if "PATTERN" in COMMANDS[name].arguments else _target(rest)
    if "--algo" in found:
        found["--algo"] = [*index["algorithms"]]
    if "--wrap" in found:
        found["--wrap"] = [*index["wrappers"]]
    if name == "evolve":
        of_any = {flag for own in known["strategies"].values() for flag in own}
        found = {flag: values for flag, values in found.items() if flag not in of_any}
        found["--strategy"] = [*known["strategies"]]
        found |= known["strategies"].get(_typed(rest, "--strategy") or "open_es", {})
    if target is None:
        return found
    found = {flag: values for flag, values in found.items() if flag not in COMPILED}
    found |= known["worlds"][target["env"]]
    return found | _algorithm_options(target, rest) if "--algo" in found else found


def _algorithm_options(target: Mapping[str, Any], rest: Sequence[str]) -> dict[str, list[str] | None]:
    """The options of the algorithm that is typed, or that the target has, and of each learner."""
    index, typed = read_index(), _typed(rest, "--algo")
    named = index["algorithms"].get(typed) if typed else None
    own = index["options"]["algorithms"].get(named["algorithm"] if named else target["algorithm"], {})
    found = dict(own)
    joined = (named and named["together"]) or _typed(rest, "--sharing")  # then there are other learners
    for learner in () if joined else target["learners"]:
        prefix = f"--learners.{learner}."
        found |= {f"{prefix}frozen": None, f"{prefix}weights": []}
        found |= {f"{prefix}algorithm.{flag.removeprefix('--algo.')}": values for flag, values in own.items()}
    return found


def _target(rest: Sequence[str]) -> dict[str, Any] | None:
    targets = read_index()["targets"]
    return next((targets[word] for word in rest if word in targets), None)


def _typed(rest: Sequence[str], option: str) -> str | None:
    """The value of an option, if it is typed."""
    found = None
    for word, following in zip(rest, [*rest, ""][1:], strict=True):
        name, equals, value = word.partition("=")
        if name == option:
            found = value if equals else following
    return found


def _arguments(name: str, rest: Sequence[str], current: str) -> list[str]:
    """What may stand without an option: what the command is about, as often as it takes it."""
    wanted, options = COMMANDS[name].arguments.strip("[]").split(), _options(name, rest)
    typed = [
        word
        for place, word in enumerate(rest)
        if not word.startswith("-") and (place == 0 or options.get(rest[place - 1]) is None)
    ]
    if name == "help":
        return _starting(current, _first_words(rest))
    if not wanted or (len(typed) >= len(wanted) and not wanted[-1].endswith("...")):
        return []
    kind = wanted[min(len(typed), len(wanted) - 1)].removesuffix("...")
    if kind == "WHO=RUN":  # one run may play several seats
        return _runs_as(kind, current) if "=" in current else run_folders(current)
    return [word for word in _of_kind(name, kind, current) if word not in typed]


def _of_kind(name: str, kind: str, current: str) -> list[str]:
    index = read_index()
    match kind:
        case "TARGET" | "GAME" | "A" | "B":
            return [*_starting(current, index["targets"]), *run_folders(current)]
        case "WORLD":
            return _starting(current, index["worlds"])
        case "SHELL":
            return _starting(current, SHELLS)
        case "PATTERN":
            lists = {"envs": "worlds", "presets": "presets", "algos": "algorithms"}
            return _starting(current, index[lists[name]]) if name in lists else []
        case "RUN" | "ROOT":
            return run_folders(current)
        case _:
            return []


def run_folders(current: str) -> list[str]:
    """The run folders whose path begins so: those below `runs/` and `sweeps/`, and those beside what is typed."""
    places = [Path(os.path.dirname(current)), *map(Path, ROOTS)]
    found = {str(path): None for place in dict.fromkeys(places) for path in _folders(place) if _is_run(path)}
    return _starting(current, sorted(found))


def _folders(place: Path) -> Iterator[Path]:
    try:
        with os.scandir(place) as entries:
            for entry, _ in zip(entries, range(MOST_FOLDERS), strict=False):
                if entry.is_dir(follow_symlinks=False) and entry.name.isprintable():
                    yield place / entry.name
    except OSError:  # it is not there, or must not be read
        return


def _is_run(path: Path) -> bool:
    file = path / "config.json"
    return not file.is_symlink() and file.is_file()


def _starting(current: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(current)]
