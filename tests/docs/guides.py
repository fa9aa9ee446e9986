"""What tests of the guides share: their code, their commands, and files to name with `--import`."""

import contextlib
import io
import re
import shlex
from pathlib import Path

from shoal.cli.arguments import parse
from shoal.cli.commands.evaluate import EvalOptions
from shoal.cli.commands.psro import PsroOptions, translate_arguments
from shoal.cli.commands.sweep import SweepOptions
from shoal.cli.commands.train import ResumeOptions, TrainOptions
from shoal.cli.targets import parse_target

ROOT = Path(__file__).parents[2]


class Guide:
    """A page of `docs`, with its blocks of code and the commands that it shows."""

    def __init__(self, name: str):
        self.name = name
        self.text = (ROOT / "docs" / name).read_text()
        self.blocks = re.findall(r"```python\n(.*?)```", self.text, re.DOTALL)
        self.commands = [shlex.split(line) for line in re.findall(r"^\$ shoal (.*)$", self.text, re.MULTILINE)]

    def block(self, word: str) -> str:
        """The first block with that word in it."""
        return next(block for block in self.blocks if word in block)

    def text_block(self, word: str) -> list[str]:
        """The lines of the first block of plain text with that word in it."""
        blocks = re.findall(r"```text\n(.*?)```", self.text, re.DOTALL)
        return next(block for block in blocks if word in block).splitlines()

    def run(self, names: dict, block: str) -> str:
        """What a block prints; its names are added to `names`."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block, f"{self.name}: {block[:40]!r}", "exec"), names)
        return out.getvalue()

    def table(self, heading: str) -> dict[str, str]:
        """The first table after a text: its first column without backquotes, and the rest of each row."""
        lines = self.text.split(heading, 1)[1].splitlines()
        start = next(i for i, line in enumerate(lines) if line.startswith("|"))
        rows = {}
        for line in lines[start + 2 :]:
            if not line.startswith("|"):
                break
            first, _, rest = line.strip("|").partition("|")
            rows[first.strip().replace("`", "")] = rest
        return rows


def parse_command(words: list[str]) -> None:
    """Reads a command as the program would, and runs nothing."""
    match words:
        case ["train", *rest] if not rest[0].startswith("runs/"):
            parse_target(TrainOptions, rest, "shoal train")
        case ["sweep", *rest]:
            parse_target(SweepOptions, rest, "shoal sweep")
        case ["psro", *rest]:
            parse_target(PsroOptions, translate_arguments(rest), "shoal psro")
        case ["eval", *rest]:
            parse(EvalOptions, rest, "shoal eval")
        case ["resume", *rest]:
            parse(ResumeOptions, rest, "shoal resume")
        case _:
            assert words[0] in ("algos", "train"), words
