"""The shards of a replay as one, for learners. An unavailable shard is left out until it is back.

Windows are requested from each shard in proportion to its mass (the sum of its priorities), so that sampling is as from
one replay; `odds` account for what each shard actually returned.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

import numpy as np

from shoal.cluster.replay.service import ReplayService, WindowSample
from shoal.cluster.transport.service import Answer, Service, ServiceUnavailable

P = ParamSpec("P")
R = TypeVar("R")

Asked = list[Answer[dict[str, WindowSample | None]] | None]
"""Windows that shards were asked for; None for those that are away."""


class WindowBatch(NamedTuple):
    """Windows from all shards in random order: leaves `[W, N, ...]`, odds, age and place of each `[N]`."""

    leaves: list[np.ndarray]
    odds: np.ndarray
    version: np.ndarray
    shard: np.ndarray
    ids: np.ndarray


class Shards:
    """The replay, as a learner uses it."""

    def __init__(self, handles: Sequence[Service[ReplayService]], tables: Sequence[str], seed: int = 0):
        self.handles = list(handles)
        self._known = [(0, 0) for _ in handles]  # life, and env steps that were there at the last look
        self._mass = {table: np.ones(len(self.handles)) for table in tables}
        self._random = np.random.default_rng(seed)
        self._writing: list[Answer[int] | None] = []

    def news(self, room: int, enough: int, timeout: float) -> tuple[int, dict[str, float], int]:
        """Env steps that have come, figures that came with them, and from how many rollouts."""
        share, need = -(-room // len(self.handles)), -(-enough // len(self.handles))
        asked = [
            _submit(h, ReplayService.news, share, self._known[i], need, timeout) for i, h in enumerate(self.handles)
        ]
        came, told, pushes = 0, {}, 0
        for number, answer in enumerate(_answers(asked)):
            if answer is None:
                continue
            life, before = self._known[number]
            came += answer.inserted - (before if answer.life == life else 0)
            self._known[number] = (answer.life, answer.inserted)
            told |= {name: told.get(name, 0.0) + value for name, value in answer.told.items()}
            pushes += answer.pushes
        return came, told, pushes

    def ask(self, counts: Mapping[str, int]) -> Asked:
        """Requests windows of each table, from each shard in proportion to its mass."""
        self.counts = dict(counts)
        each = {table: self._shares(table, count) for table, count in counts.items()}
        wanted = [{table: int(share[number]) for table, share in each.items()} for number in range(len(self.handles))]
        return [_submit(handle, ReplayService.draw, some) for handle, some in zip(self.handles, wanted, strict=True)]

    def _shares(self, table: str, count: int) -> np.ndarray:
        mass = self._mass[table] / self._mass[table].sum()
        return np.maximum(1, np.ceil(mass * count)).astype(int)  # one at least, to hear how much there is now

    def collect(self, asked: Asked) -> dict[str, WindowBatch] | None:
        """The windows that were asked for; None if some table has none in any shard."""
        answers = _answers(asked)
        batches = {}
        for table, count in self.counts.items():
            found = [(number, drawn) for number, answer in enumerate(answers) if answer and (drawn := answer[table])]
            if not found:
                return None
            batches[table] = self._join(table, count, found)
        return batches

    def _join(self, table: str, count: int, found: list[tuple[int, WindowSample]]) -> WindowBatch:
        for number, drawn in found:
            self._mass[table][number] = drawn.mass
        total = sum(len(drawn.ids) for _, drawn in found)
        possible = sum(drawn.possible for _, drawn in found)
        odds = np.concatenate([drawn.chance * (len(drawn.ids) / total * possible) for _, drawn in found])
        shard = np.concatenate([np.full(len(drawn.ids), number) for number, drawn in found])
        order = np.resize(self._random.permutation(total), count)  # while a shard is away, some come twice
        leaves = [np.concatenate(leaf, axis=1)[:, order] for leaf in zip(*(d.leaves for _, d in found), strict=True)]
        version, ids = (np.concatenate([getattr(d, name) for _, d in found])[order] for name in ("version", "ids"))
        return WindowBatch(leaves, odds[order].astype(np.float32), version, shard[order], ids)

    def reprioritise(self, table: str, batch: WindowBatch, priority: np.ndarray) -> None:
        """Writes priorities `[N]` back; does not wait until they are there."""
        _answers(self._writing)
        mine = [(handle, batch.shard == number) for number, handle in enumerate(self.handles)]
        self._writing = [
            _submit(handle, ReplayService.reprioritise, table, batch.ids[which], priority[which])
            for handle, which in mine
            if which.any()
        ]

    def spill(self) -> None:
        """Writes all shards to disk."""
        _answers([_submit(handle, ReplayService.spill) for handle in self.handles])


def _submit(
    shard: Service[ReplayService],
    method: Callable[Concatenate[ReplayService, P], R],
    *args: P.args,
    **options: P.kwargs,
) -> Answer[R] | None:
    """Calls a shard; None if it is unavailable."""
    try:
        return shard.submit(method, *args, **options)
    except ServiceUnavailable:
        return None


def _answers(asked: Sequence[Answer[R] | None]) -> list[R | None]:
    """The shards' answers; None for unavailable ones."""
    answers: list[R | None] = []
    for one in asked:
        try:
            answers.append(None if one is None else one.result())
        except ServiceUnavailable:
            answers.append(None)
    return answers
