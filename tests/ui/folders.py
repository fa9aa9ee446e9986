"""Run folders as trainings write them, made in a moment and without JAX."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from shoal.cluster import driver
from shoal.training import sealed_archive

_STILL = {"type": "f32", "shape": [1, 1], "data": "AACAPw=="}
_CIRCLE = {
    "points": {"type": "f32", "shape": [1, 1, 1, 2], "data": "AACAPwAAgD8="},
    "visible": {"type": "bits", "shape": [1, 1], "data": "gA=="},
    "colour": {"type": "u8", "shape": [1, 1], "data": "AQ=="},
    "radius": _STILL,
    "heading": None,
    "names": ["agent_0"],
}
_FILM = {
    "title": "a replay",
    "subtitle": "",
    "fps": 15.0,
    "length": 3,
    "bounds": [0.0, 0.0, 2.0, 2.0],
    "circles": _CIRCLE,
}
_FILM |= {"polygons": None, "lines": None, "labels": None, "series": [], "ends": []}
REPLAY = f'<script type="application/json" id="data">{json.dumps(_FILM)}</script>'
"""As much of a `replay.html` as is read: three frames of one agent."""
_PLACE = {"type": "u16", "shape": [1, 1, 1, 2], "offset": 0.0, "scale": 1e-4, "data": "ECcQJw=="}
_SIZE = {"type": "u16", "shape": [1, 1], "offset": 0.0, "scale": 1e-4, "data": "6AM="}
SCENE = _FILM | {"circles": _CIRCLE | {"points": _PLACE, "radius": _SIZE}}
"""What a kept episode plays: the same three frames."""
ALGORITHMS = {"ippo": ("ppo", "own"), "mappo": ("ppo", "global"), "a2c": ("a2c", "own")}


def make_run(
    folder: Path,
    env: str = "mpe/simple_spread",
    algorithm: str = "ippo",
    num_seeds: int = 3,
    lines: int = 60,
    total_lines: int | None = None,
    level: float = -30.0,
    seed: int = 0,
    notes: dict[str, Any] | None = None,
    learning_rate: float = 3e-4,
) -> Path:
    """A run that has written so many lines of `total_lines`; its return goes from -80 towards `level`."""
    total = total_lines or lines
    folder.mkdir(parents=True)
    (folder / "checkpoints").mkdir()
    config = make_config(env, algorithm, num_seeds, total, seed, learning_rate)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    with open(folder / "metrics.jsonl", "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in make_lines(lines, total, num_seeds, level, seed))
    if notes is not None:
        (folder / "notes.json").write_text(json.dumps(notes))
    return folder


def make_config(env: str, algorithm: str, num_seeds: int, total: int, seed: int, rate: float) -> dict[str, Any]:
    name, critic = ALGORITHMS[algorithm]
    chosen = {"name": name, "learning_rate": rate, "gamma": 0.99, "critic": critic, "entropy_coef": 0.01}
    learner = {"algorithm": chosen, "policies": {}, "frozen": False, "weights": None}
    experiment = {
        "env": env,
        "env_options": {"max_steps": 25},
        "wrappers": [],
        "learners": {"learner": learner},
        "num_envs": 64,
        "num_steps": 25,
        "total_env_steps": total * 1600,
        "seed": seed,
        "num_seeds": num_seeds,
        "randomise": False,
    }
    return {"format": 1, "shoal": "0.1.0", "kind": "training", "experiment": experiment}


def make_lines(lines: int, total: int, num_seeds: int, level: float, seed: int, first: int = 1) -> list[dict[str, Any]]:
    noise = np.random.default_rng(seed + first)
    made = []
    for update in range(first, first + lines):
        done = update / total
        mean = level + (-80 - level) * math.exp(-5 * done)
        spread = np.random.default_rng(seed).normal(0, 2, num_seeds)
        returns = mean + spread * done + noise.normal(0, 1.5, num_seeds)
        one = lambda value, size=0.02: (value + noise.normal(0, size, num_seeds)).round(5).tolist()  # noqa: E731
        line = {
            "update": update,
            "env_steps": update * 1600,
            "episodes": [64.0] * num_seeds,
            "return/agent": returns.round(4).tolist(),
            "return": returns.round(4).tolist(),
            "length": [25.0] * num_seeds,
            "approx_kl/agent": one(0.01, 0.002),
            "entropy/agent": one(1.6 * (1 - 0.6 * done)),
            "loss/agent": one(0.4 * math.exp(-3 * done)),
            "policy_loss/agent": one(-0.01, 0.003),
            "value_loss/agent": one(0.8 * math.exp(-3 * done)),
            "world/distance": one(1.8 - done),
            "world/touches": one(0.2 + done),
            "seconds": round(update * 0.21, 3),
        }
        made.append(line if num_seeds > 1 else {key: v[0] if isinstance(v, list) else v for key, v in line.items()})
    return made


def keep_scene(folder: Path, update: int, label: str | None = None, **data: Any) -> Path:
    """Keeps an episode in a run, as a training does; data: of its page, in place of what `SCENE` says.

    label: who plays; None: it is not said, as in early versions.
    """
    head = {"format": 1, "update": update, "env_steps": update * 1600, "page": "replay.html"}
    point = head | {"data": SCENE | data, "returns": {"agent": -80.0 + update}}
    point |= {} if label is None else {"label": label}
    (folder / "scenes").mkdir(exist_ok=True)
    path = folder / "scenes" / f"{update:010d}-{update * 1600}.json"
    path.write_text(json.dumps(point))
    return path


def append_lines(folder: Path, lines: list[dict[str, Any]]) -> None:
    with open(folder / "metrics.jsonl", "a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def make_population(folder: Path, size: int = 6, players: tuple[str, ...] = ("left", "right")) -> Path:
    """A population of `size` policies for each player, the last of which have all the weight."""
    folder.mkdir(parents=True)
    (folder / "checkpoints").mkdir()
    experiment = make_config("pong", "ippo", 1, 10, 0, 3e-4)["experiment"]
    plan = {"meta_solver": "nash", "iterations": size + 3}
    config = {"experiment": experiment, "psro": plan, "oracle": "learned"}
    (folder / "config.json").write_text(json.dumps({"format": 1, "shoal": "0.1.0", "kind": "psro", "psro": config}))
    append_lines(folder, [population_line(i, len(players)) for i in range(size)])
    write_population_checkpoint(folder, size, players)
    return folder


def make_sweep(folder: Path, num_seeds: int = 2, lines: int = 20) -> Path:
    """A sweep of 4 x 3 points whose return is best at a learning rate of 1e-3 and a clip_eps of 0.2."""
    folder.mkdir(parents=True)
    rates = {"start": 1e-4, "stop": 1e-1, "count": 4, "log": True}
    experiment = make_config("mpe/simple_spread", "ippo", num_seeds, lines, 0, 3e-4)["experiment"]
    plan = {"experiment": experiment, "over": {"learning_rate": rates, "clip_eps": [0.1, 0.2, 0.3]}, "random": None}
    config = {"format": 1, "shoal": "0.1.0", "kind": "sweep", "sweep": plan | {"measure": None}}
    (folder / "config.json").write_text(json.dumps(config))
    levels = [-10.0 * abs(rate + 3) - 40 * abs(clip - 0.2) for rate in (-4, -3, -2, -1) for clip in (0.1, 0.2, 0.3)]
    lanes = np.repeat(levels, num_seeds) + np.tile(np.arange(num_seeds), len(levels))
    append_lines(folder, [_sweep_line(update, lanes, lines) for update in range(1, lines + 1)])
    return folder


def _sweep_line(update: int, lanes: np.ndarray, total: int) -> dict[str, Any]:
    returns = (lanes - 20 * (1 - update / total)).round(4).tolist()
    line = {"update": update, "env_steps": update * 1600, "episodes": [4.0] * len(lanes)}
    return line | {"return/agent": returns, "return": returns, "seconds": float(update)}


def make_pbt(folder: Path, members: int = 6, lines: int = 40) -> Path:
    """A population-based training in which every eighth update the worst member becomes a copy of the best."""
    folder.mkdir(parents=True)
    config = make_config("mpe/simple_spread", "ippo", 1, lines, 0, 3e-4)
    over = {"learning_rate": {"start": 1e-5, "stop": 1e-1, "count": None, "log": True}}
    (folder / "config.json").write_text(json.dumps(config | {"kind": "pbt", "pbt": {"over": over, "members": members}}))
    rates, made = np.geomspace(1e-5, 1e-1, members), []
    for update in range(1, lines + 1):
        score = -30 - 6 * np.abs(np.log10(rates) + 2.7) - 10 / update
        source = np.arange(members)
        if update % 8 == 0:
            source[score.argmin()] = score.argmax()
        line = {
            "update": update,
            "env_steps": update * 1600,
            "return": score.round(3).tolist(),
            "seconds": update * 0.5,
        }
        line |= dict.fromkeys(("return", "pbt/score"), score.round(3).tolist()) | {"pbt/source": source.tolist()}
        made.append(line | {"pbt/learning_rate": [float(f"{rate:.6g}") for rate in rates]})
        rates = np.where(source == np.arange(members), rates, rates[source] * 1.2)
    append_lines(folder, made)
    return folder


def make_cluster(folder: Path, lines: int = 60, events: int = 3) -> Path:
    """A run of two actors and a learner that goes on: its driver is this process."""
    make_run(folder, num_seeds=1, lines=lines, total_lines=2 * lines)
    added = [{"staleness": 1 + (i % 3) / 2, "staleness_max": 3.0, **line} for i, line in enumerate(_lines_of(folder))]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in added))
    write_status(folder, 1, events)
    note_history(folder, ({"seconds": 2.0 * i, "queues": {"dataset": i % 5}, "restarts": i // 10} for i in range(30)))
    return folder


def note_history(folder: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Adds lines to what the driver of a run on a cluster noted over time."""
    with (folder / "cluster_history.jsonl").open("a") as file:
        file.writelines(json.dumps({"rate": 120.5} | line) + "\n" for line in lines)


def _lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def write_status(folder: Path, waiting: int, events: int = 3) -> None:
    """The `cluster.json` of a training, with so many rollouts in its queue."""
    worker = {"rounds": 40, "restarts": 0, "env_steps": 1280, "task": "roll", "seconds": {"roll": 0.02, "pull": 0.001}}
    worker |= {"slow": False, "quarantined": [], "nan_resets": 0}
    status = {
        "running": True,
        "driver": driver.identity(),
        "plan": {"recipe": "stale", "actors": 2, "learners": 1, "max_staleness": 2},
        "total": 120,
        "copies": 4,
        "steps": 8,
        "staleness": {"mean": 1.2, "largest": 3.0},
        "learner": {"update": 60, "made": 60, "spent": {"wait": 1.0, "learn": 3.0}},
        "workers": {"actor-0": worker, "actor-1": worker | {"slow": True}},
        "services": {"dataset": {"length": waiting, "capacity": 4, "dropped": 2}, "parameters": {"policies": 7}},
        "restarts": {"actor-0": events, "actor-1": 0},
        "events": [{"seconds": 3.0 * i, "worker": "actor-0", "what": "<b>died</b>"} for i in range(1, events + 1)],
    }
    (folder / "cluster.json").write_text(json.dumps(status))


def population_line(iteration: int, players: int = 2) -> dict[str, Any]:
    """The line of an iteration: the mixture is on the newest two policies."""
    mixture = [0.0] * iteration + [1.0] if iteration == 0 else [0.0] * (iteration - 1) + [0.25, 0.75]
    far = 2.0 * 0.4**iteration
    line = {"iteration": iteration, "population": iteration + 1, "nash_conv": far, "exploitability": far / players}
    return line | {"value": 0.1, "mixtures": [mixture] * players, "seconds": 2.0 * iteration}


def write_population_checkpoint(folder: Path, size: int, players: tuple[str, ...]) -> None:
    """The checkpoint of that many policies for each player, who play a noisy game of rank."""
    shape = (size,) * len(players)
    ranks = np.indices(shape)
    count = np.full(shape, 400.0)
    mean = np.stack([ranks[p] - ranks.mean(axis=0) for p in range(len(players))]) / size
    arrays = {"table/count": count, "table/total": mean * count, "table/squares": (mean**2 + 0.5) * count}
    members = [
        {"name": str(i), "parent": i - 1 if i else None, "born": i, "frozen": False, "info": {}} for i in range(size)
    ]
    mixture = population_line(size - 1)["mixtures"][0]
    meta = {"members": dict.fromkeys(players, members), "mixtures": [mixture] * len(players), "symmetric": False}
    path = folder / "checkpoints" / f"step-{size - 1:010d}.npz"
    text = json.dumps({"format": 1, "shoal": "0.1.0", "leaves": [], "meta": meta}).encode()
    sealed_archive.write(path, "manifest.json", text, arrays)
