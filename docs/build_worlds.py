"""Makes the pages of the worlds from their code: `python docs/build_worlds.py`; `--check` says what is out of date.

A world's page is its module's docstring, a film, its options and its speed. Films are of the first seconds of random
play, from a fixed seed; they are made with `--films` only, since making them again may change a few bytes.
"""

import argparse
import dataclasses
import importlib
import inspect
import json
import re
import sys
from pathlib import Path

import jax

import shoal
import shoal.envs
from shoal.cli.commands.listings import shapes_text
from shoal.cli.inventory import action_text, view_shapes
from shoal.cli.terminal import format_count
from shoal.core.env import Env, describe
from shoal.core.registry import world_class
from shoal.training.evaluate import Recorder
from shoal.training.experiment import Experiment
from shoal.viz import Look, Panel, Take, make_film

FOLDER = Path(__file__).parent / "worlds"
SPEEDS = Path(shoal.envs.__file__).parent / "speeds.json"
FAMILIES = ("shoal.envs.swarm",)  # packages whose docstring is a page of its own
GENERATED = "Generated from the code by `docs/build_worlds.py`."
SHOWN = {"tag/grid": {"grid_length": 20, "num_taggers": 12}}  # options of the film, where the defaults show little

FILMED, EPISODES = 60, 6  # steps of a film, and its episodes, at most
CROWDED = {"battle/open": 30, "tag/continuous": 22}  # steps of films in which very many move
LOOK = Look(size=360, fps=15, bare=True, colours=48)
LARGEST = 300_000  # bytes of a film

FAMILY_TABLE = """
## Families

| family | worlds | checked against |
|---|---|---|
| `mpe/` | `simple`, `simple_adversary`, `simple_crypto`, `simple_push`, `simple_reference`, `simple_speaker_listener`, `simple_spread`, `simple_tag`, `simple_world_comm`: particles that cover, hunt, push, talk; discrete and continuous | `mpe2` 1.1, step by step to 1e-5 |
| `swarm/` | `coverage`, `delivery`, `formation`, `pursuit`, `rendezvous`: any number of planar robots or quadrotors, with limited sight, messages, wind, noise and randomised dynamics | closed-form physics |
| `tag/` | `continuous`, `grid`: taggers and runners, up to thousands | WarpDrive 2.7.1's rules |
| `battle/` | `open`: hundreds against hundreds on a grid, local image views | a plain twin, in the spirit of MAgent2 |
| `cards/` | `kuhn`, `leduc`: poker, with exact best responses and NashConv | OpenSpiel 2.0, in every history |
| `matrix/` | `game`: any payoff tensor, n players, once or repeated; `iterated_prisoners_dilemma`, `matching_pennies`, `prisoners_dilemma`, `rock_paper_scissors`, `stag_hunt` | OpenSpiel's payoffs |
| `pong` | two players, vector or 12×12×3 image view | a plain twin |
| `control/` | `acrobot`, `cartpole`, `mountain_car`, `mountain_car_continuous`, `pendulum` | Gymnasium 1.x, step by step to 1e-5 |

Wrappers work on every environment: time limit, frame stack, reward scale, observation noise, agent ids, padding to one size
(`--wrap frame_stack:count=4`, or `shoal.envs.wrappers` in Python).
"""  # noqa: E501


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--films", nargs="*", default=None, help="film these worlds (none named: all)")
    args = parser.parse_args()
    (FOLDER / "images").mkdir(parents=True, exist_ok=True)
    if args.films is not None:
        for id in args.films or worlds():
            shoot(id)
    pages = all_pages()
    stale = [name for name, text in pages.items() if not same(FOLDER / name, text)]
    stale += [file.name for file in FOLDER.glob("*.md") if file.name not in pages]
    if args.check:
        print(f"out of date: {', '.join(stale)}; run python docs/build_worlds.py" if stale else "up to date")
        return bool(stale)
    for name in stale:
        (FOLDER / name).write_text(pages[name]) if name in pages else (FOLDER / name).unlink()
    print(f"{len(pages)} pages, {len(stale)} changed")
    return 0


def all_pages() -> dict[str, str]:
    """Every page by the name of its file."""
    families = {f"{package.rpartition('.')[2]}_family.md": family(package) for package in FAMILIES}
    return {f"{slug(id)}.md": page(id) for id in worlds()} | families | {"README.md": index()}


def worlds() -> list[str]:
    return [id for id in shoal.ids() if world_class(id).__module__.startswith("shoal.envs.")]


def slug(id: str) -> str:
    return id.replace("/", "_")


def same(file: Path, text: str) -> bool:
    return file.exists() and file.read_text() == text


def page(id: str) -> str:
    """A world's page."""
    world = shoal.make(id)
    module = sys.modules[type(world).__module__]
    head, _, rest = inspect.cleandoc(module.__doc__ or "").partition("\n")
    about = head.partition(": ")[2] or head
    if type(world).__doc__ and f"`{id}`" not in head:  # a module of several worlds: each has its own first line
        about = inspect.cleandoc(type(world).__doc__).partition("\n")[0]
    parts = [
        f"# {id}",
        about[:1].upper() + about[1:],
        f"![The first seconds of random play](images/{slug(id)}.webp)",
        f"`shoal train {id}` trains its default preset, `shoal bench env {id}` measures it.",
        groups_table(world),
        rest.strip(),
        options_table(world),
        GENERATED,
    ]
    return linked("\n\n".join(part for part in parts if part) + "\n")


def family(package: str) -> str:
    """The page of what the worlds of a family share: the docstring of their package."""
    head, _, rest = inspect.cleandoc(importlib.import_module(package).__doc__ or "").partition("\n")
    return f"# {package.rpartition('.')[2]}/\n\n{head}\n\n{rest.strip()}\n\n{GENERATED}\n"


def linked(text: str) -> str:
    """The text, with links to the pages of the families that it names."""
    for package in FAMILIES:
        text = text.replace(f"`{package}`", f"[{package}]({package.rpartition('.')[2]}_family.md)")
    return text


def index() -> str:
    """The page that lists them all."""
    speeds = json.loads(SPEEDS.read_text())
    lines = [
        "# Environments",
        "",
        "The films show random play. The last two columns are env steps per second, an env step being one transition",
        "of one copy of the environment, all its agents together: *CPU* per second of one core's time, on two shared",
        "virtual cores, up to 1,024 copies; *H200* on one NVIDIA H200, up to 65,536 copies. Actions are random,",
        "observations and rewards consumed, options the defaults; `benchmarks/worlds_speed.py` measures them.",
        "",
        "| | environment | kind | agents | observation | action | CPU | H200 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for id in worlds():
        world = shoal.make(id)
        groups = describe(world).groups.items()
        cells = [
            f'<img src="images/{slug(id)}.webp" alt="" height="96">',
            f"[{id}]({slug(id)}.md)",
            world.kind,
            "<br>".join(f"{group.size} {name}" for name, group in groups),
            "<br>".join(shapes_text(view_shapes(group.observation)) for _, group in groups),
            "<br>".join(action_text(group.action) for _, group in groups),
            *(format_count(speeds[id][device]) if speeds.get(id, {}).get(device) else "" for device in ("cpu", "h200")),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n" + FAMILY_TABLE


def groups_table(world: Env) -> str:
    lines = ["| group | agents | each sees | each does |", "|---|---|---|---|"]
    for name, group in describe(world).groups.items():
        lines.append(
            f"| {name} | {group.size} | {shapes_text(view_shapes(group.observation))} | {action_text(group.action)} |"
        )
    return "\n".join(lines)


def options_table(world: Env) -> str:
    """Options with their defaults, and the comments that stand behind them in the code."""
    fields = dataclasses.fields(world)  # pyright: ignore[reportArgumentType]
    if not fields:
        return ""
    notes = {}
    for cls in reversed(type(world).__mro__):
        if dataclasses.is_dataclass(cls):
            notes |= dict(re.findall(r"^    (\w+): [^\n#]*?  # ([^\n]+)$", inspect.getsource(cls), re.MULTILINE))
    lines = ["**Options.**", "", "| option | default | |", "|---|---|---|"]
    lines += [f"| `{f.name}` | `{getattr(world, f.name)!r}` | {notes.get(f.name, '')} |" for f in fields if f.init]
    return "\n".join(lines)


def shoot(id: str) -> None:
    """Films random play, episode after episode, until there are enough steps."""
    setup = Experiment(id, SHOWN.get(id, {}), num_envs=1, num_steps=1).setup
    recorder, takes, left = Recorder(setup), [], CROWDED.get(id, FILMED)
    while left > 0 and len(takes) < EPISODES:
        played = recorder(None, seed=3 + len(takes), max_steps=left)
        length = min(len(next(iter(played.returns.values()))), left + 1)
        takes.append(Take(jax.tree.map(lambda leaf, n=length: leaf[:n], played.frames)))
        left -= length - 1
    path = FOLDER / "images" / f"{slug(id)}.webp"
    make_film(path, [Panel(id, "", takes)], LOOK)
    size = path.stat().st_size
    print(f"{path.name}: {len(takes)} episodes, {size / 1000:.0f} kB")
    if size > LARGEST:
        raise SystemExit(f"{path.name} has more than {LARGEST:,} bytes: choose fewer steps or a smaller size")


if __name__ == "__main__":
    sys.exit(main())
