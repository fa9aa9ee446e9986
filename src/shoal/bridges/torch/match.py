"""PyTorch policies in the seats of a Shoal match.

`play_match(env, {"tagger": module, "runner": (algorithm, params)}, episodes)` plays one episode in each copy of a
world. A group is played by a PyTorch module, by a Shoal policy, or by anything that has an `act` of its own (see
`Seat`). Seats of one group are given to different players with `shoal.batching.regroup.regroup`.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
import torch

from shoal.bridges.torch._actions import type_name
from shoal.bridges.torch.env import Policy, TorchWorlds
from shoal.core.env import Env
from shoal.core.errors import OptionError, WorldError, require_positive
from shoal.core.spaces import ActionSpace, Box, Discrete, num_logits
from shoal.core.types import Observation

CHECK_EVERY = 16
"""Steps between two looks at whether all episodes are over: on a GPU each look waits for everything before it."""


@runtime_checkable
class Seat(Protocol):
    """What plays a group. Policies with a memory implement this themselves."""

    def act(self, observation: Observation, first: torch.Tensor) -> torch.Tensor:
        """Actions `[E, n, ...]` for what is seen; `first` `[E]` tells where an episode begins."""
        ...


@dataclasses.dataclass(frozen=True)
class TorchSeat:
    """A module from views `[E, n, ...]` to numbers, as a seat.

    Discrete and MultiDiscrete actions: the numbers are logits `[E, n, num_logits]`, part after part; illegal ones are
    never chosen. Box: they are the action itself, and are clamped to the bounds. explore: draw, or take the likeliest.
    """

    module: Callable[[Any], torch.Tensor]
    space: ActionSpace
    explore: bool = False
    generator: torch.Generator | None = None

    def act(self, observation: Observation, first: torch.Tensor) -> torch.Tensor:
        del first
        numbers = self.module(observation.view)
        if not isinstance(numbers, torch.Tensor):
            raise OptionError(f"TorchSeat: the module must put out a torch tensor, got {type_name(numbers)}")
        lead = jax.tree.leaves(observation.view)[0].shape[:2]
        if isinstance(self.space, Box):
            return self._point(numbers, lead)
        if numbers.shape != (*lead, num_logits(self.space)):
            raise OptionError(
                f"TorchSeat: the module must put out {num_logits(self.space)} logits for {self.space}, "
                f"{(*lead, num_logits(self.space))} in all, got {tuple(numbers.shape)}"
            )
        if not bool(numbers.amax() < math.inf):  # also false for NaN
            raise OptionError("TorchSeat: the module put out logits that are NaN or infinite")
        legal: Any = observation.legal
        if legal is not None:
            numbers = numbers.masked_fill(~legal, -math.inf)
        if isinstance(self.space, Discrete):
            return self._choose(numbers)
        return torch.stack([self._choose(part) for part in numbers.split(self.space.sizes, -1)], -1)

    def _point(self, numbers: torch.Tensor, lead: Any) -> torch.Tensor:
        assert isinstance(self.space, Box)
        if numbers.shape[:2] != lead or numbers[0, 0].numel() != math.prod(self.space.shape):
            raise OptionError(
                f"TorchSeat: the module must put out {(*lead, *self.space.shape)} for {self.space}, "
                f"got {tuple(numbers.shape)}"
            )
        if not bool(numbers.isfinite().all()):
            raise OptionError("TorchSeat: the module put out actions that are NaN or infinite")
        return numbers.reshape(*lead, *self.space.shape).clamp(self.space.low, self.space.high)

    def _choose(self, logits: torch.Tensor) -> torch.Tensor:
        if not self.explore:
            return logits.argmax(-1)
        probabilities = logits.softmax(-1).reshape(-1, logits.shape[-1])
        return torch.multinomial(probabilities, 1, generator=self.generator).reshape(logits.shape[:-1])


@dataclasses.dataclass(frozen=True)
class Score:
    """Mean return of each seat of a group `[n]`, its standard error, and over how many episodes."""

    mean: np.ndarray
    standard_error: np.ndarray
    episodes: int


def play_match(
    env: Env | str,
    players: Mapping[str, Any],
    episodes: int = 1024,
    device: torch.device | str | None = None,
    seed: int = 0,
    explore: bool = False,
    max_steps: int = 10_000,
) -> dict[str, Score]:
    """Plays one episode in each of `episodes` copies; scores by group.

    players: for every group a PyTorch module (see `TorchSeat`), a `Seat`, or a Shoal policy `(algorithm, params)`.
    explore: whether modules and Shoal policies draw their actions. Logits that are not numbers and actions outside
    their space are refused, on a GPU too.
    """
    require_positive("play_match", episodes=episodes, max_steps=max_steps)
    if not isinstance(players, Mapping):
        raise OptionError(f"play_match: players must be a dict by group, got {type_name(players)}")
    policies: dict[str, Policy] = {name: player for name, player in players.items() if isinstance(player, tuple)}
    for name, player in players.items():
        _check_player(env if isinstance(env, str) else type(env).__name__, name, player)
    worlds = TorchWorlds(env, episodes, device, seed, policies=policies, explore=explore, check=True)
    if players.keys() != worlds.groups.keys():
        raise OptionError(f"play_match: players must be given for {sorted(worlds.groups)}, got {sorted(players)}")
    generator = torch.Generator(worlds.device).manual_seed(seed)
    seats = {
        name: player if isinstance(player, Seat) else TorchSeat(player, worlds.groups[name].action, explore, generator)
        for name, player in players.items()
        if name not in policies
    }
    with torch.no_grad():
        returns = _play(worlds, seats, max_steps)
    return {name: _score(total.cpu().numpy()) for name, total in returns.items()}


def _play(worlds: TorchWorlds, seats: Mapping[str, Seat], max_steps: int) -> dict[str, torch.Tensor]:
    """Returns `[E, n]` by group, of the first episode of each copy."""
    observation = worlds.reset()
    first = torch.ones(worlds.num_envs, dtype=torch.bool, device=worlds.device)
    playing = first.clone()
    returns = {
        name: torch.zeros(worlds.num_envs, group.size, device=worlds.device) for name, group in worlds.groups.items()
    }
    for count in range(1, max_steps + 1):
        actions = {name: _ask(worlds.name, name, seat, observation[name], first) for name, seat in seats.items()}
        observation, reward, terminated, truncated, _ = worlds.step(actions)
        for name, total in returns.items():
            total += reward[name] * playing[:, None]
        first = terminated | truncated
        playing = playing & ~first
        if (count % CHECK_EVERY == 0 or count == max_steps) and not bool(playing.any()):
            return returns
    raise WorldError(f"play_match: {int(playing.sum())} episodes did not end within {max_steps} steps")


def _check_player(world: str, group: str, player: Any) -> None:
    pair = isinstance(player, tuple)
    if (pair and len(player) == 2 and hasattr(player[0], "act")) or (
        not pair and (hasattr(player, "act") or callable(player))
    ):
        return
    raise OptionError(
        f"play_match: {world}: the player of {group!r} must be a PyTorch module, a Shoal policy (algorithm, params) or "
        f"something with a function `act`, got {type_name(player)} {str(player)[:60]!r}"
    )


def _ask(world: str, group: str, seat: Seat, observation: Observation, first: torch.Tensor) -> torch.Tensor:
    """A player's actions; its errors name the player and its inputs."""
    try:
        return seat.act(observation, first)
    except Exception as error:
        shapes = jax.tree.map(lambda leaf: tuple(leaf.shape), observation.view)
        text = str(error) if isinstance(error, OptionError) else f"{type(error).__name__}: {error}"
        raise OptionError(f"play_match: {world}: the player of {group!r}, shown views of {shapes}: {text}") from error


def _score(returns: np.ndarray) -> Score:
    return Score(returns.mean(0), returns.std(0) / math.sqrt(len(returns)), len(returns))
