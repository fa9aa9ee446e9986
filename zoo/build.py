"""Builds entries of the zoo: `python zoo/build.py NAME...`; without names, all that are not there yet.

An entry is trained from its preset and seed, cut down to what playing its policies takes, evaluated in that form, and
put into the folder of the zoo under its name, with a page that plays an episode. `zoo.json` lists all entries of the
folder: it is made anew from their `config.json` after each. A run that was stopped goes on where it was, unless the
code is of another commit now; processes that build other entries into the same folder do not disturb. It needs JAX,
Flax, Optax, NumPy, SciPy and Rich alone.
"""

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

import shoal  # noqa: E402
from shoal import presets  # noqa: E402
from shoal.algorithms.names import name_of  # noqa: E402
from shoal.core import registry  # noqa: E402
from shoal.core.errors import RunError  # noqa: E402
from shoal.populations.population import stored  # noqa: E402
from shoal.training import checkpoint  # noqa: E402
from shoal.training.evaluate import record  # noqa: E402
from shoal.training.folder_lock import is_locked  # noqa: E402
from shoal.training.provenance import git_commit  # noqa: E402
from shoal.training.run import find_checkpoint, open_run, policy_shapes  # noqa: E402
from shoal.training.run_kinds import CONFIG, PSRO, SLIM  # noqa: E402
from shoal.viz import replay_page  # noqa: E402

POPULATIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "league/pong": ("league", "pong", {"iterations": 12}),
    "psro/kuhn": ("psro", "cards/kuhn", {"iterations": 10}),
}
"""By the name of the entry: what grows it, the game, and options."""
MOST_PAGE = 300_000
MOST_LINES = 40
"""Lines of metrics of a training that are kept."""
DIGITS = 6
EPISODES, SEED = 1000, 0
INDEX = "zoo.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="entries to build")
    parser.add_argument("--out", type=Path, default=ROOT / "zoo", help="folder of the zoo")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "zoo", help="where runs are trained")
    parser.add_argument("--commit", help="the commit of the code, where git does not say")
    parser.add_argument("--force", action="store_true", help="train anew what is there already")
    parser.add_argument("--list", action="store_true", help="print the names of all entries")
    parser.add_argument("--index", action="store_true", help="write zoo.json alone")
    args = parser.parse_args()
    if args.list or args.index:
        print("\n".join(entry_names()) if args.list else f"{write_index(args.out)} entries in {args.out / INDEX}")
        return 0
    unknown = [name for name in args.names if name not in entry_names()]
    if unknown:
        parser.error(f"there is no entry {', '.join(unknown)}; there are {', '.join(entry_names())}")
    commit = args.commit or clean_commit()
    if commit is None:
        parser.error("which commit is this? Git does not say, or src/ has changes: commit them, or add --commit HASH")
    failed = [name for name in args.names or entry_names() if not attempt(name, args, commit)]
    print(f"failed: {', '.join(failed)}" if failed else f"{write_index(args.out)} entries in {args.out / INDEX}")
    return bool(failed)


def entry_names() -> list[str]:
    """The default preset of every world, and the populations."""
    return sorted([*(name for name in presets.names() if name in registry.ids()), *POPULATIONS])


def clean_commit() -> str | None:
    """The commit that is checked out; None if the code is not the one that was committed."""
    asked = ["git", "-C", str(ROOT), "diff", "--quiet", "HEAD", "--", "src", "zoo/build.py"]
    try:
        clean = subprocess.run(asked, capture_output=True, check=False).returncode == 0
    except OSError:  # no git
        return None
    return git_commit(ROOT) if clean else None


def attempt(name: str, args: argparse.Namespace, commit: str) -> bool:
    """Builds an entry, and says how it went."""
    if (args.out / name / CONFIG).is_file() and not args.force:
        print(f"{name}: is there already", flush=True)
        return True
    began = time.perf_counter()
    try:
        if args.force:
            forget(args.work / name)
        facts = build(name, args.out, args.work, commit)
    except RunError as error:  # such as: another process trains it
        print(f"{name}: {error}", flush=True)
        return False
    write_index(args.out)
    told = ", ".join(f"{who} {mean:.4g}" for who, mean in facts["return"].items())
    size = folder_size(args.out / name)
    print(f"{name}: return {told}; {size / 1000:.0f} kB; {time.perf_counter() - began:.0f} s in all", flush=True)
    return True


def build(name: str, out: Path, work: Path, commit: str) -> dict[str, Any]:
    """Trains, slims and evaluates an entry, and puts it in its place; what is known of it."""
    trained = work / name
    note = trained.with_name(f"{trained.name}.commit")
    if trained.exists() and (not note.is_file() or note.read_text() != commit):
        forget(trained)
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(commit)
    if (trained / CONFIG).is_file():
        found = shoal.resume(trained, progress=False)
    elif name in POPULATIONS:
        how, game, options = POPULATIONS[name]
        found = getattr(shoal, how)(game, trained, progress=False, **options)
    else:
        found = shoal.train(name, trained, progress=False, scenes=0)
    if found.interrupted:
        raise RunError(f"{trained} was stopped early; the same command goes on with it")
    place = out / name
    place.parent.mkdir(parents=True, exist_ok=True)
    with fresh_folder(place) as new:
        slim_population(trained, new) if name in POPULATIONS else slim_training(trained, new)
        write_config(trained, new, {})
        facts = describe(name, trained, commit) | (measure_population if name in POPULATIONS else measure_training)(new)
        write_config(trained, new, facts)
    return facts


def forget(trained: Path) -> None:
    """Removes a run that is to be trained anew."""
    if is_locked(trained):
        raise RunError(f"another process is training in {trained}")
    shutil.rmtree(trained, ignore_errors=True)


@contextlib.contextmanager
def fresh_folder(place: Path) -> Iterator[Path]:
    """A folder that takes its place only when it is complete."""
    new = place.with_name(f".{place.name}.{os.getpid()}.partial")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    try:
        yield new
        shutil.rmtree(place, ignore_errors=True)
        new.rename(place)
    finally:
        shutil.rmtree(new, ignore_errors=True)


# What is kept of a run.


def slim_training(trained: Path, new: Path) -> None:
    """The weights of the newest checkpoint and some of the metrics: without optimisers, worlds and unwritten rows."""
    run = open_run(trained)
    newest = find_checkpoint(run)
    like = {"learners": policy_shapes(run.experiment.setup)}
    meta = {**checkpoint.read_meta(newest), "pending": []}
    (new / "checkpoints").mkdir()
    checkpoint.save(new / "checkpoints", meta["update"], checkpoint.load(newest, like, partial=True), meta)
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    kept = sorted({round(i) for i in np.linspace(0, len(lines) - 1, min(MOST_LINES, len(lines)))})
    (new / "metrics.jsonl").write_text("".join(json.dumps(rounded(lines[i])) + "\n" for i in kept))


def slim_population(trained: Path, new: Path) -> None:
    """All policies and payoffs; the room for further policies goes."""
    population: Any = shoal.load(trained)
    newest = find_checkpoint(open_run(trained, PSRO))
    tree, _ = stored(population.state)
    sizes = {player: len(bank) for player, bank in population.state.banks.items()}
    banks = {
        player: jax.tree.map(lambda leaf, size=sizes[player]: np.asarray(leaf)[:size], bank)
        for player, bank in tree["banks"].items()
    }
    meta = {**checkpoint.read_meta(newest), "capacities": sizes}
    (new / "checkpoints").mkdir()
    step = max(checkpoint.steps(trained / "checkpoints"))
    checkpoint.save(new / "checkpoints", step, tree | {"banks": banks}, meta)
    shutil.copy(trained / "metrics.jsonl", new / "metrics.jsonl")


def rounded(value: Any) -> Any:
    """Plain data with numbers of a few digits."""
    if isinstance(value, dict):
        return {key: rounded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [rounded(entry) for entry in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def write_config(trained: Path, new: Path, facts: dict[str, Any]) -> None:
    """The run's own config; what it was called with on the machine that trained it is left out."""
    config = json.loads((trained / CONFIG).read_text())
    config.get("provenance", {}).pop("command", None)
    (new / CONFIG).write_text(json.dumps(config | {SLIM: facts}, indent=1) + "\n")


# What is said of an entry.


def describe(name: str, trained: Path, commit: str) -> dict[str, Any]:
    """Where it comes from."""
    config = json.loads((trained / CONFIG).read_text())
    experiment = open_run(trained, None).experiment
    command = f"shoal train {name} --seed {experiment.seed}"
    if name in POPULATIONS:
        how, game, options = POPULATIONS[name]
        words = [f"--{option.replace('_', '-')} {value}" for option, value in options.items()]
        command = " ".join(["shoal", how, game, *words, f"--seed {experiment.seed}"])
    algorithms = sorted({name_of(learner.algorithm) for learner in experiment.learners.values()})
    return {
        "name": name,
        "env": experiment.env,
        "algorithm": ", ".join(algorithms),
        "command": command,
        "seed": experiment.seed,
        "commit": commit,
        "device": config.get("provenance", {}).get("device", {}).get("kind", ""),
    }


def measure_training(new: Path) -> dict[str, Any]:
    """Returns of greedy play and of random play, and the page of an episode."""
    run: Any = shoal.load(new)
    found = run.evaluate(EPISODES, SEED)
    chance = shoal.evaluate(run.experiment, episodes=EPISODES, seed=SEED)
    about = f"after {run.update:,} updates, {run.env_steps:,} environment steps"
    write_page(new / "replay.html", run.experiment.setup, run.policies, run.experiment.env, about)
    return {
        "env_steps": run.env_steps,
        "seconds": round(run.seconds, 1),
        "episodes": EPISODES,
        "return": plain(found.mean_return),
        "standard_error": plain(found.standard_error),
        "random": plain(chance.mean_return),
    }


def measure_population(new: Path) -> dict[str, Any]:
    """Returns of the mixtures against each other, and of each against random play; NashConv where it is known."""
    population: Any = shoal.load(new)
    players = list(population.mixtures)
    found = shoal.match(dict.fromkeys(players, population), episodes=EPISODES, seed=SEED).by_side
    chance = {}
    for player in players:
        sides = {other: population if other == player else "random" for other in players}
        chance[player] = shoal.match(sides, episodes=EPISODES, seed=SEED).by_side.mean_return[player]
    side, line = population.side(), population.history[-1]
    write_page(new / "replay.html", side.setup, side.policies, population.config.experiment.env, "mixtures")
    known = {"nash_conv": rounded(population.nash_conv)} if population.nash_conv is not None else {}
    return {
        "iterations": line["iteration"],
        "seconds": round(line["seconds"], 1),
        "episodes": EPISODES,
        "return": plain(found.mean_return),
        "standard_error": plain(found.standard_error),
        "against_random": plain(chance),
    } | known


def write_page(path: Path, setup: Any, policies: Any, title: str, about: str) -> None:
    """An episode, or as much of its beginning as fits."""
    shown = record(setup, policies, SEED)
    whole = length = len(next(iter(shown.returns.values())))
    while True:
        frames = jax.tree.map(lambda leaf, end=length: leaf[:end], shown.frames)
        series = {f"return of {who}": values[:length] for who, values in shown.returns.items()}
        told = about if length == whole else f"{about}; the first {length - 1:,} of {whole - 1:,} steps"
        page = replay_page(frames, title=title, subtitle=told, series=series)
        if len(page) <= MOST_PAGE:
            path.write_bytes(page)
            return
        length = min(length - 1, int(length * MOST_PAGE / len(page)))


def plain(values: dict[str, Any]) -> dict[str, float]:
    return {who: float(f"{value:.{DIGITS}g}") for who, value in values.items()}


# The list of all entries.


def write_index(out: Path) -> int:
    """Writes `zoo.json` from the entries that are there; one process at a time. Returns how many there are."""
    out.mkdir(parents=True, exist_ok=True)
    folder = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        entries = {}
        for config in sorted(out.rglob(CONFIG)):
            if not any(part.startswith(".") for part in config.relative_to(out).parts):
                facts = json.loads(config.read_text())[SLIM]
                page = (config.parent / "replay.html").stat().st_size
                entries[facts["name"]] = facts | {"bytes": folder_size(config.parent), "page_bytes": page}
        content = {"episodes": EPISODES, "evaluation_seed": SEED, "entries": dict(sorted(entries.items()))}
        partial = out / f".{INDEX}.{os.getpid()}.partial"
        partial.write_text(json.dumps(content, indent=1) + "\n")
        partial.replace(out / INDEX)
    finally:
        os.close(folder)
    return len(entries)


def folder_size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


if __name__ == "__main__":
    sys.exit(main())
