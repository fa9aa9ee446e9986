"""`shoal completion SHELL` prints what makes a shell complete `shoal` lines; it then calls `shoal --complete`."""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from shoal.cli.arguments import parse
from shoal.cli.completion import SCRIPTS, complete

Shell = Annotated[Positional[Literal["bash", "zsh", "fish"]], arg(metavar="SHELL")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompletionOptions:
    """Print a script that makes Tab complete commands, targets, run folders and options.

    bash: add `eval "$(shoal completion bash)"` to ~/.bashrc. zsh: add `eval "$(shoal completion zsh)"` to ~/.zshrc,
    below `compinit`. fish: `shoal completion fish > ~/.config/fish/completions/shoal.fish`.
    """

    shell: Shell  # bash, zsh or fish


def run(args: Sequence[str]) -> int:
    """Prints the script of a shell."""
    options = parse(CompletionOptions, args, "shoal completion")
    sys.stdout.write(SCRIPTS[options.shell])
    return 0


def answer(args: Sequence[str]) -> int:
    """Prints what may stand in place of the last word, one word a line."""
    sys.stdout.writelines(f"{word}\n" for word in complete(args))
    return 0
