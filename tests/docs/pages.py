"""Pages whose code and commands are run in the order in which they stand, in sizes that take seconds.

Of a page, `python` blocks are executed in one namespace, and lines of `console` blocks that begin with `$ shoal` are
called; other commands (`pip`, `srun`) and blocks of other languages are for reading. A comment `<!-- not run: REASON
-->` above a block leaves it out, `<!-- needs: PACKAGE -->` too where that package is not installed, and
`<!-- refused -->` says that its command ends with exit code 2. Numbers that make something long are replaced: see
`SMALL`.
"""

import contextlib
import importlib.util
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.cli import main
from shoal.cli.app import COMMANDS

ROOT = Path(__file__).parents[2]
FOLDERS = ("get-started", "concepts", "how-to", "coming-from", "reference")
PAGES = sorted(
    path.relative_to(ROOT / "docs").as_posix() for name in FOLDERS for path in (ROOT / "docs" / name).glob("*.md")
)
BLOCK = re.compile(
    r"(?:<!-- (?P<mark>refused|needs: \w+|not run: [^>]+?) -->\n\n?)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
SMALL = {"total_env_steps": 2048, "total_timesteps": 512, "num_envs": 16, "num_steps": 8, "num_seeds": 2,
         "episodes": 16, "eval_every": 1024, "iterations": 1, "generations": 2, "population": 16, "members": 2,
         "interval": 1, "seconds": 0.2}  # fmt: skip
"""The most of each that is run, on the command line and in Python."""
TRAINS = ("train", "sweep", "pbt")
MOST_WORDS = 900
MOST_WORDS_WITH_A_PICTURE = 1500


@dataclass(frozen=True)
class Block:
    """A block of a page: `python` or `console`, its text, and how it is to be taken."""

    kind: str
    text: str
    mark: str = ""

    @property
    def commands(self) -> list[list[str]]:
        """The `shoal` commands of a block, without comments; a line that ends in a backslash goes on."""
        lines = re.sub(r"\\\n\s*", " ", self.text).splitlines() if self.kind == "console" else []
        return [shlex.split(line[8:], comments=True) for line in lines if line.startswith("$ shoal ")]


def blocks(text: str) -> list[Block]:
    """All that a page could run, in its order."""
    found = [Block(m["kind"], m["text"], m["mark"] or "") for m in BLOCK.finditer(text)]
    return [block for block in found if block.kind in ("python", "console") and not left_out(block.mark)]


def left_out(mark: str) -> bool:
    """Whether a block is for reading only, or needs what is not installed."""
    return mark.startswith("not run") or (
        mark.startswith("needs: ") and importlib.util.find_spec(mark.removeprefix("needs: ")) is None
    )


def read(page: str) -> str:
    return (ROOT / "docs" / page).read_text()


def number(text: str) -> float:
    """A number as options are written: 1_000, 1e6, 1M, 500k."""
    factor = {"k": 1e3, "M": 1e6, "G": 1e9}.get(text[-1], 1)
    return float(text.rstrip("kMG").replace("_", "")) * factor


def shrink_python(code: str) -> str:
    """Code with smaller numbers."""
    for name, most in SMALL.items():
        code = re.sub(rf"\b{name}=([\d_.e]+)", lambda m, n=name, most=most: f"{n}={min(number(m[1]), most):g}", code)
    return code


def shrink_command(words: list[str]) -> list[str]:
    """A command with smaller numbers; a training that names no sizes gets them."""
    words = list(words)
    for name, most in SMALL.items():
        option = f"--{name.replace('_', '-')}"
        if option in words:
            place = words.index(option) + 1
            words[place] = f"{min(number(words[place]), most):g}"
        elif words[0] in TRAINS and name in ("total_env_steps", "num_envs", "num_steps") and "--help" not in words:
            words += [option, str(most)]
    return words


def known(words: list[str]) -> bool:
    """Whether the program has such a command."""
    return words[0] in COMMANDS or " ".join(words[:2]) in COMMANDS or words[0] in ("--help", "--version")


def call(words: list[str], wanted: int) -> None:
    """Calls a command, small unless it shall be refused; `> FILE` keeps what it prints."""
    target = None
    if ">" in words:
        words, target = words[: words.index(">")], words[-1]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words if wanted else shrink_command(words))
    assert code == wanted, f"{words}: {code}\n{err.getvalue()[-2000:]}"
    if target:
        Path(target).write_text(out.getvalue())


def run(page: str) -> dict:
    """Runs a page in the current folder; the names that its code leaves behind."""
    names: dict = {"__name__": "__main__"}
    for count, block in enumerate(blocks(read(page))):
        if block.kind == "python":
            exec(compile(shrink_python(block.text), f"{page}, block {count}", "exec"), names)
        for words in block.commands:
            call(words, 2 if block.mark == "refused" else 0)
    return names


def links(text: str) -> Iterator[str]:
    """Where a page leads to in this repository."""
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        if not target.startswith(("http:", "https:", "mailto:")):
            yield target


def anchors(text: str) -> list[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", head).lower().replace(" ", "-") for head in heads]
