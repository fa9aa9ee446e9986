"""Every episode that a person played, as a line of JSON: who played what, when, how fast, and what came of it.

A line is all that is needed to replay the episode to the bit: the world and its options, the seed, and everybody's
actions. Lines are appended whole and kept on disk before the person is told that the episode is over.
"""

import contextlib
import datetime
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shoal.core.errors import RunError
from shoal.core.files import open_descriptor, read_lines
from shoal.core.origin import Origin
from shoal.core.spaces import action_dtype
from shoal.core.version import VERSION
from shoal.human.game import Game, begin_episode, step_episode
from shoal.training.experiment import Experiment, make_world
from shoal.training.serialise import from_plain, to_plain

FORMAT = 1
WORLD = ("env", "env_options", "wrappers", "randomise")
"""Fields of an experiment that say which world is played."""


def describe_episode(game: Game, ended: str, timing: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """One episode as plain data. ended: terminated, truncated or abandoned. timing: see `session`."""
    groups = list(game.world.groups)
    return {
        "format": FORMAT,
        "shoal": VERSION,
        **world_of(game.setup.experiment),
        "seed": game.seed,
        "seat": f"{game.seat[0]}[{game.seat[1]}]",
        **more,
        "policies": "explore" if game.explore else "greedy",
        "ended": ended,
        "steps": len(game.actions),
        "return": game.own_return,
        "returns": {name: values.tolist() for name, values in game.returns().items()},
        **timing,
        "actions": {name: [step[name].tolist() for step in game.actions] for name in groups},
        "rewards": {name: [step[name].tolist() for step in game.rewards] for name in groups},
    }


def world_of(experiment: Experiment) -> dict[str, Any]:
    """Which world is played, as plain data."""
    plain = to_plain(experiment.replace(learners={"learner": next(iter(experiment.learners.values()))}))
    return {name: plain[name] for name in WORLD}


def check_writable(path: Path) -> None:
    """Refuses a file that lines cannot be appended to; makes it if there is none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(open_descriptor(path, "ab"))
    except OSError as error:
        raise RunError(f"cannot write the results to {path}: {error.strerror or error}") from error


def append_line(path: Path, entry: Mapping[str, Any]) -> None:
    """Appends one line, all of it or nothing, and waits until it is on disk. One that was cut short stays apart."""
    text = json.dumps(entry, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = open_descriptor(path, "ab")
    except OSError as error:
        raise RunError(f"cannot write the results to {path}: {error.strerror or error}") from error
    try:
        size = os.fstat(descriptor).st_size
        text = text if _ends_whole(path, size) else b"\n" + text
        try:
            if os.write(descriptor, text) != len(text):
                raise RunError(f"cannot write the results to {path}: the disk is full")
            os.fsync(descriptor)
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, size)  # half a line is none
            raise
    except OSError as error:
        raise RunError(f"cannot write the results to {path}: {error.strerror or error}") from error
    finally:
        os.close(descriptor)


def _ends_whole(path: Path, size: int) -> bool:
    if size == 0:
        return True
    with path.open("rb") as file:
        file.seek(size - 1)
        return file.read(1) == b"\n"


def read_episodes(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """The episodes in a file of results, up to the first line that is damaged."""
    return read_lines(path)


def replay_rewards(episode: Mapping[str, Any], origin: str = "these results") -> dict[str, np.ndarray]:
    """Plays the actions of an episode again, from its seed: the rewards `[T, n]` by group of the world.

    On the same machine and versions they equal the episode's own `rewards` to the bit. origin: where it comes from.
    """
    data = {name: episode[name] for name in WORLD}
    experiment = from_plain(Experiment, data, "episode", Origin(origin))
    experiment.origin.admit(experiment.env, experiment.env_options)
    world = make_world(experiment)
    place = begin_episode(world, np.uint32(episode["seed"]), experiment.randomise)
    rewards: dict[str, list[np.ndarray]] = {name: [] for name in world.groups}
    for t in range(episode["steps"]):
        actions = {
            name: np.asarray(episode["actions"][name][t], action_dtype(group.action))
            for name, group in world.groups.items()
        }
        place, (reward, _, _) = step_episode(world, place, actions)
        for name, values in jax.tree.map(np.asarray, reward).items():
            rewards[name].append(values)
    return {name: np.array(values) for name, values in rewards.items()}


def now_in_words() -> str:
    """The time, as it stands in results."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
