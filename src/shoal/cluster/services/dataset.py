"""The dataset service's queue: bounded, between the actors that fill it and the learners that empty it.

A push into a full queue is refused and retried: that is the back-pressure. Items carry the number of their round
and the version of the weights that acted, so that a learner can ask for one round, or refuse what is too old.
"""

import threading
import time
from collections import deque
from typing import Any, NamedTuple


class Item(NamedTuple):
    """One rollout of one actor. ref: where it is stored. round: its number; version: of the weights that acted."""

    maker: str
    share: int
    round: int
    version: int
    ref: Any
    kind: str = "rollout"
    size: int = 0
    env_steps: int = 0
    epoch: int = 0  # how often the learner had restarted


class Queue:
    """First in, first out, at most `capacity` items. Of one (maker, share, round) there is never more than one.

    What was taken out, or dropped for its age, is not remembered: a worker is asked for it again only if it was lost.
    """

    def __init__(self, capacity: int):
        self.capacity = capacity
        self._items: deque[Item] = deque()
        self._epoch = 0
        self._changed = threading.Condition()
        self.pushed = self.refused = self.dropped = 0

    def push(self, item: Item, timeout: float = 0.0) -> bool:
        """Adds an item; False if there was no room within the time-out. Duplicates are ignored."""
        with self._changed:
            if self._there(item) or item.epoch < self._epoch:
                return True
            if not self._changed.wait_for(lambda: len(self._items) < self.capacity, timeout):
                self.refused += 1
                return False
            self._items.append(item)
            self.pushed += 1
            self._changed.notify_all()
            return True

    def take(self, count: int, least: int = 0, round: int | None = None, timeout: float = 0.0) -> list[Item]:
        """`count` items, the oldest first; an empty list if there are fewer within `timeout`.

        least: items whose weights are older than that version are dropped. round: items of that round only, those of
        earlier ones are dropped.
        """
        end = time.monotonic() + timeout
        with self._changed:
            while True:
                self._drop(least, round)
                fitting = [item for item in self._items if round is None or item.round == round][:count]
                if len(fitting) == count:
                    for item in fitting:
                        self._items.remove(item)
                    self._changed.notify_all()
                    return fitting
                left = end - time.monotonic()
                if left <= 0:
                    return []
                self._changed.wait(left)

    def _drop(self, least: int, round: int | None) -> None:
        kept = [item for item in self._items if item.version >= least and (round is None or item.round >= round)]
        if len(kept) < len(self._items):
            self.dropped += len(self._items) - len(kept)
            self._items = deque(kept)
            self._changed.notify_all()

    def makers(self) -> list[str]:
        """Whose items are waiting."""
        with self._changed:
            return sorted({item.maker for item in self._items})

    def back(self, item: Item) -> None:
        """An item that was taken but not used is put back, first in the queue, unless it was made again meanwhile."""
        with self._changed:
            if not self._there(item) and item.epoch >= self._epoch:
                self._items.appendleft(item)
                self._changed.notify_all()

    def _there(self, item: Item) -> bool:
        return any(one[:3] == item[:3] for one in self._items)

    def clear(self, epoch: int = 0) -> None:
        """Drops all items, and those of earlier epochs that are still on their way."""
        with self._changed:
            self._items.clear()
            self._epoch = epoch
            self._changed.notify_all()

    def figures(self) -> dict[str, int]:
        """Its length, and how many items have passed through it."""
        return {
            "length": len(self._items),
            "capacity": self.capacity,
            "pushed": self.pushed,
            "refused": self.refused,
            "dropped": self.dropped,
        }
