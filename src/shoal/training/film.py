"""Films an episode of an environment of another library, through its own `render`."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from shoal.batching.regroup import sum_rewards
from shoal.core.errors import OptionError, WorldError
from shoal.core.host import HostEnv, Observations, SerialHostBatch
from shoal.core.interrupts import listening
from shoal.core.types import Outcome, PyTree
from shoal.training.evaluate import assign_policies
from shoal.training.experiment import Setup
from shoal.training.host import HostStepper
from shoal.training.host_stages import SeparateEnvs

RENDERED = {"render_mode": "rgb_array"}
"""The option that makes environments of Gymnasium and PettingZoo render arrays."""
SILENT = {"SDL_AUDIODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
"""Variables of the process by which pygame needs no sound card, and says nothing on stdout."""
UNSEEN = {"SDL_VIDEODRIVER": "dummy"}
"""And no screen."""


@dataclasses.dataclass(frozen=True)
class Film:
    """One episode: frames `[height, width, 3]` uint8, and cumulative returns by return group `[T + 1]`."""

    frames: list[np.ndarray]
    returns: dict[str, np.ndarray]


class FilmedEnv:
    """A `HostEnv` that keeps a rendered frame of every step of its first episode."""

    def __init__(self, env: HostEnv):
        self.env, self.frames, self.over = env, [], False
        self.name, self.groups, self.players = env.name, env.groups, env.players
        self.masked, self.leaving = env.masked, env.leaving

    def reset(self, seed: int | None) -> Observations:
        seen = self.env.reset(seed)
        self._look()
        return seen

    def step(self, actions: Mapping[str, np.ndarray]) -> tuple[Observations, Outcome]:
        seen, outcome = self.env.step(actions)
        self._look()
        self.over |= bool(outcome.terminated or outcome.truncated)
        return seen, outcome

    def close(self) -> None:
        self.env.close()

    def _look(self) -> None:
        if not self.over:
            picture = np.asarray(self.env.env.render())  # pyright: ignore[reportAttributeAccessIssue]
            if picture.ndim != 3 or picture.shape[-1] != 3 or picture.dtype != np.uint8:
                raise WorldError(
                    f"{self.name}: its render returns {picture.dtype} of shape {picture.shape}, not a picture "
                    "[height, width, 3] of uint8"
                )
            self.frames.append(picture.copy())


def film(
    setup: Setup, policies: dict[str, PyTree] | None, seed: int = 0, explore: bool = False, max_steps: int = 2000
) -> Film:
    """Plays one episode, or its first `max_steps` steps, with the policies by name, and films it."""
    return Filmer(setup, explore)(policies, seed, max_steps)


class Filmer:
    """`film` for a sequence of policies: compiled once for all of them, in a new environment each."""

    def __init__(self, setup: Setup, explore: bool = False):
        self.setup, self.explore = setup, explore
        self._shown = setup.experiment.env_options.get("render_mode") == "human"
        self._steppers: dict[tuple[str, ...], HostStepper] = {}

    def __call__(self, policies: dict[str, PyTree] | None, seed: int = 0, max_steps: int = 2000) -> Film:
        with _quiet_pygame(self._shown):
            names = tuple(policies or ())
            if names not in self._steppers:
                setup = _rendering(self.setup)
                self._steppers[names] = HostStepper(setup, assign_policies(setup, policies, self.explore)[0], 1)
            stepper = self._steppers[names]
            given = assign_policies(stepper.setup, policies, self.explore)[1]
            return _shoot(stepper, given, seed, max_steps)


@contextlib.contextmanager
def _quiet_pygame(shown: bool) -> Iterator[None]:
    """Sets what the user has not set otherwise. shown: in a window."""
    added = {name: value for name, value in (SILENT | ({} if shown else UNSEEN)).items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _shoot(host_stepper: HostStepper, given: PyTree, seed: int, max_steps: int) -> Film:
    """Opens an environment, films it, and closes it."""
    batch = host_stepper.proxy.open(1)
    if not isinstance(batch, SerialHostBatch) or not callable(
        getattr(getattr(batch.envs[0], "env", None), "render", None)
    ):
        batch.close()
        raise _no_pictures(host_stepper.setup.experiment.env, "it has no render")
    filmed = FilmedEnv(batch.envs[0])
    seeds = np.random.SeedSequence(seed).generate_state(1).tolist()
    try:
        with listening():
            return _film(
                host_stepper, SeparateEnvs(host_stepper.proxy, [filmed], seeds), filmed, given, seed, max_steps
            )
    finally:
        filmed.close()


def _film(
    host_stepper: HostStepper, stage: SeparateEnvs, filmed: FilmedEnv, given: PyTree, seed: int, max_steps: int
) -> Film:
    worlds = host_stepper.begin(jax.jit(host_stepper.worlds.reset)(jax.random.key(seed)), seed, stage)
    memory = host_stepper.actor.initial_memory(given, 1)
    acts, actions = host_stepper.decide(given, memory, worlds)
    buffer = host_stepper.buffer(given, worlds, memory, 1)
    gained: list[dict[str, float]] = []
    while not filmed.over and len(gained) < max_steps:
        timestep = host_stepper.step(actions)
        worlds, buffer, acts, actions = host_stepper.tick(given, worlds, acts, timestep, buffer, np.int32(0))
        rewards = jax.device_get(sum_rewards(host_stepper.setup.env, jax.tree.map(lambda rows: rows[0], buffer.reward)))
        gained.append({name: float(reward[0]) for name, reward in rewards.items()})
    names = list(gained[0])
    return Film(filmed.frames, {name: np.cumsum([0.0, *(step[name] for step in gained)]) for name in names})


def _rendering(setup: Setup) -> Setup:
    """The same, with environments that render arrays."""
    experiment = setup.experiment
    if "render_mode" in experiment.env_options:
        return setup
    options: dict[str, Any] = {**experiment.env_options, **RENDERED}
    try:
        return dataclasses.replace(experiment, env_options=options).setup
    except (OptionError, WorldError) as error:
        raise _no_pictures(experiment.env, f"making it with render_mode='rgb_array' failed ({error})") from error


def _no_pictures(name: str, why: str) -> OptionError:
    return OptionError(
        f"{name} cannot be filmed: {why}. An environment of Gymnasium or PettingZoo can be filmed if it takes "
        "render_mode='rgb_array' and its render() then returns an array [height, width, 3]."
    )
