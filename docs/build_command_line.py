"""Writes `docs/command-line.md` and `src/shoal/cli/index.json` from the code: `python docs/build_command_line.py`.

A test checks that it was run.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from shoal.cli import inventory
from shoal.cli.app import COMMANDS
from shoal.cli.arguments import Section
from shoal.cli.help import Option, common_options
from shoal.cli.index import FILE

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "command-line.md"
INDEX = ROOT / "src" / "shoal" / "cli" / FILE
MOST = 8
"""Options of a command that the table names."""
TEXT = """# The command line

`shoal COMMAND --help` shows the common options first, on one screen; `--help-all` shows all of them: those of the
environment, the algorithm, its network, each learner, the run and the cluster. The options of `shoal train TARGET`
follow from the target: `--env.NAME` are its environment's, `--algo.NAME` its algorithm's, with its values as defaults.

| command | what it does | common options |
|---|---|---|
{rows}

Every command that prints results takes `--json`. `shoal envs`, `shoal presets` and `shoal algos` take a part of a name
or a pattern: `shoal presets simple_spread --algo qmix`, `shoal envs 'mpe/*' --kind competitive`. `shoal train TARGET
--dry-run` says what would be trained, in how many updates and in how much memory, and writes nothing. Options that are
spelt with `-ise` may be typed with `-ize`: `--algo.normalize-views`.

## Completion

Tab completes commands, environments, presets, run folders, and the options of the target that is typed, with their
values:

```console
$ eval "$(shoal completion bash)"                 # in ~/.bashrc
$ eval "$(shoal completion zsh)"                  # in ~/.zshrc, below compinit
$ shoal completion fish > ~/.config/fish/completions/shoal.fish
```

Environments of your own, which `--import` names, are not completed: that would mean running the file at every Tab.

## Every option

What a preset says takes the place of the defaults of a training below; `shoal train TARGET --help` shows its own.
Options `--env.NAME` are on the page of each [environment](worlds/README.md), `--algo.NAME` on those of the
[algorithms](algorithms/index.md), and `--algo.network.NAME` are [options of the
network](algorithms/index.md#options-of-the-network).

{options}
"""
SHARED = "train"
"""The command whose options are not repeated for others."""


def page() -> str:
    """The whole page."""
    options = inventory.command_options()
    rows = []
    for name, command in COMMANDS.items():
        shown = [option for option in common_options(options.get(name, [])) if option.flags]
        first = [option for option in shown if option.section is Section.COMMON] or shown
        flags = ", ".join(f"`{option.flags[0]}`" for option in first[:MOST])
        rows.append(f"| `shoal {f'{name} {command.arguments}'.strip()}` | {command.what} | {flags} |")
    return TEXT.replace("{rows}", "\n".join(rows)).replace("{options}", "\n\n".join(all_options(options)))


def all_options(options: dict[str, list[Option]]) -> list[str]:
    """A section for each command, with every option that is typed with a flag."""
    shared = {(option.flags, option.text) for option in options[SHARED]}
    sections = []
    for name, found in options.items():
        flagged = [option for option in found if option.flags]
        repeated = [o for o in flagged if name != SHARED and (o.flags, o.text) in shared]
        own = [option for option in flagged if option not in repeated]
        parts = [f"### shoal {name}"] + [options_table(own)] * bool(own)
        if repeated:
            names = ", ".join(f"`{option.flags[0]}`" for option in repeated)
            parts.append(f"As for [`shoal {SHARED}`](#shoal-{SHARED}): {names}.")
        sections += parts if len(parts) > 1 else []
    return sections


def options_table(options: Sequence[Option]) -> str:
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for option in options:
        text, _, default = option.text.removesuffix(")").rpartition(" (default: ")
        text, default = (text, f"`{default}`") if text else (option.text, "")
        others = "".join(f", `{flag}`" for flag in option.flags[1:] if "[no-]" not in option.form)
        cells = (f"`{option.form}`{others}", default, " ".join(text.split()))
        rows.append(f"| {' | '.join(re.sub(r'[|]', chr(92) + '|', cell) for cell in cells)} |")
    return "\n".join(rows)


def index() -> str:
    """The index of what ships, one entry a line."""
    return json.dumps(inventory.make_index(), indent=1, sort_keys=False) + "\n"


if __name__ == "__main__":
    INDEX.write_text(index())
    PAGE.write_text(page())
