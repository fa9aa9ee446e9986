"""Rehearsed faults: services of an in-process cluster are shot at random moments while others go on."""

import contextlib
import random
import threading
from collections.abc import Iterator

from shoal.execution.cluster.fabric import Gone, LocalHandle, Threads


@contextlib.contextmanager
def shooting(fabric: Threads, names: list[str], seed: int, shots: int, apart: tuple[int, int]) -> Iterator[list[str]]:
    """Shoots one of `names` every time that so many more tasks have been handed out, `shots` times at most.

    Between two shots there is always something done, so that a slow machine gets on, too. Gives the names of the shot.
    """
    draws, stop, shot = random.Random(seed), threading.Event(), []

    def handed() -> int:
        with contextlib.suppress(Gone):
            return LocalHandle("board", fabric).call("figures")["handed"]
        return 0

    def shoot() -> None:
        since, wait = handed(), draws.randint(*apart)
        while len(shot) < shots and not stop.wait(draws.uniform(0.0, 0.1)):
            since = min(since, handed())  # a board that was made anew counts anew
            if handed() - since >= wait:
                shot.append(draws.choice(names))
                fabric.kill(shot[-1])
                since, wait = handed(), draws.randint(*apart)

    gun = threading.Thread(target=shoot)
    gun.start()
    try:
        yield shot
    finally:
        stop.set()
        gun.join()
