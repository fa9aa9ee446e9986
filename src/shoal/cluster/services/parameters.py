"""The parameter service: the newest weights of every policy, with versions. Learners push, actors pull."""

import threading
import time
from typing import Any, NamedTuple

from shoal.cluster.transport.service import Store


class PublishedWeights(NamedTuple):
    """A version and where its weights are (see `launcher.Store`). epoch: how often the learner had restarted."""

    version: int
    ref: Any
    epoch: int = 0


class ParameterService:
    """Keeps only the newest version of each name, which is what slow workers want, too.

    Values are put into the store by the service itself, so that they outlive the learner that made them.
    """

    def __init__(self, store: Store):
        self._store = store
        self._newest: dict[str, PublishedWeights] = {}
        self._changed = threading.Condition()

    def push(self, name: str, version: int, value: Any, epoch: int = 0) -> None:
        """Replaces what is older. A later epoch is newer, though a learner that restarted is at an earlier version."""
        known = self._newest.get(name)
        if known is not None and (known.epoch, known.version) >= (epoch, version):
            return
        weights = PublishedWeights(version, self._store.put(value), epoch)
        with self._changed:
            self._newest[name] = weights
            self._changed.notify_all()

    def pull(
        self, name: str, known: int, least: int = 0, timeout: float = 0.0, epoch: int = 0
    ) -> PublishedWeights | None:
        """The newest weights if they are newer than those `known` (of an epoch), and of version `least` or later.

        Waits for them up to `timeout` seconds; None if there are none by then.
        """
        end = time.monotonic() + timeout
        with self._changed:
            while True:
                newest = self._newest.get(name)
                newer = newest is not None and (newest.epoch, newest.version) > (epoch, known)
                if newest is not None and newer and newest.version >= least:
                    return newest
                left = end - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(left)

    def figures(self) -> dict[str, int]:
        """The newest version of each name."""
        return {name: weights.version for name, weights in self._newest.items()}
