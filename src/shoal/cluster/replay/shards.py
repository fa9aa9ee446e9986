"""The shards of a replay as one, for those who learn from it. A shard that is away is left out until it is back.

Windows are asked of each shard in proportion to what it weighs (the sum of its priorities), so that all windows of all
shards are drawn as if they were in one place; `odds` take account of what each shard really gave.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from shoal.cluster.replay.service import Drawn, News
from shoal.cluster.transport.launcher import Gone, Handle


def shards_of(handles: Mapping[str, Handle]) -> list[Handle]:
    """The shards of the replay, in order."""
    names = [name for name in handles if name.startswith("replay-")]
    return [handles[name] for name in sorted(names, key=lambda name: int(name.split("-")[1]))]


class Batch(NamedTuple):
    """Windows from all shards in random order: leaves `[W, N, ...]`, odds, age and place of each `[N]`."""

    leaves: list[np.ndarray]
    odds: np.ndarray
    version: np.ndarray
    shard: np.ndarray
    ids: np.ndarray


class Shards:
    """The replay, as a learner has it in hand."""

    def __init__(self, handles: Sequence[Handle], tables: Sequence[str], seed: int = 0):
        self.handles = list(handles)
        self._known = [(0, 0) for _ in handles]  # life, and env steps that were there at the last look
        self._mass = {table: np.ones(len(self.handles)) for table in tables}
        self._random = np.random.default_rng(seed)
        self._writing: list[Any] = []

    def news(self, room: int, enough: int, timeout: float) -> tuple[int, dict[str, float], int]:
        """Env steps that have come, figures that came with them, and from how many rollouts."""
        share, need = -(-room // len(self.handles)), -(-enough // len(self.handles))
        asked = [self._ask(h, "news", share, self._known[i], need, timeout) for i, h in enumerate(self.handles)]
        came, told, pushes = 0, {}, 0
        for number, answer in enumerate(self._answers(asked)):
            if answer is None:
                continue
            news: News = answer
            life, before = self._known[number]
            came += news.inserted - (before if news.life == life else 0)
            self._known[number] = (news.life, news.inserted)
            told |= {name: told.get(name, 0.0) + value for name, value in news.told.items()}
            pushes += news.pushes
        return came, told, pushes

    def ask(self, counts: Mapping[str, int]) -> list[Any]:
        """Asks for so many windows of each table, of each shard in proportion to what it weighs."""
        self.counts = dict(counts)
        each = {table: self._shares(table, count) for table, count in counts.items()}
        wanted = [{table: int(share[number]) for table, share in each.items()} for number in range(len(self.handles))]
        return [self._ask(handle, "draw", some) for handle, some in zip(self.handles, wanted, strict=True)]

    def _shares(self, table: str, count: int) -> np.ndarray:
        mass = self._mass[table] / self._mass[table].sum()
        return np.maximum(1, np.ceil(mass * count)).astype(int)  # one at least, to hear how much there is now

    def answered(self, asked: list[Any]) -> dict[str, Batch] | None:
        """The windows that were asked for; None if some table has none in any shard."""
        answers = self._answers(asked)
        batches = {}
        for table, count in self.counts.items():
            found = [(number, answer[table]) for number, answer in enumerate(answers) if answer and answer[table]]
            if not found:
                return None
            batches[table] = self._joined(table, count, found)
        return batches

    def _joined(self, table: str, count: int, found: list[tuple[int, Drawn]]) -> Batch:
        for number, drawn in found:
            self._mass[table][number] = drawn.mass
        total = sum(len(drawn.ids) for _, drawn in found)
        possible = sum(drawn.possible for _, drawn in found)
        odds = np.concatenate([drawn.chance * (len(drawn.ids) / total * possible) for _, drawn in found])
        shard = np.concatenate([np.full(len(drawn.ids), number) for number, drawn in found])
        order = np.resize(self._random.permutation(total), count)  # while a shard is away, some come twice
        leaves = [np.concatenate(leaf, axis=1)[:, order] for leaf in zip(*(d.leaves for _, d in found), strict=True)]
        version, ids = (np.concatenate([getattr(d, name) for _, d in found])[order] for name in ("version", "ids"))
        return Batch(leaves, odds[order].astype(np.float32), version, shard[order], ids)

    def reprioritise(self, table: str, batch: Batch, priority: np.ndarray) -> None:
        """Writes priorities `[N]` back; does not wait until they are there."""
        self._answers(self._writing)
        mine = [(handle, batch.shard == number) for number, handle in enumerate(self.handles)]
        self._writing = [
            self._ask(handle, "reprioritise", table, batch.ids[which], priority[which])
            for handle, which in mine
            if which.any()
        ]

    def spill(self) -> None:
        """All that is there is written to disk."""
        self._answers([self._ask(handle, "spill") for handle in self.handles])

    def _ask(self, handle: Handle, method: str, *args: Any) -> Any:
        try:
            return handle.ask(method, *args)
        except Gone:
            return None

    def _answers(self, asked: list[Any]) -> list[Any]:
        answers = []
        for one in asked:
            try:
                answers.append(None if one is None else one.result())
            except Gone:
                answers.append(None)
        return answers
