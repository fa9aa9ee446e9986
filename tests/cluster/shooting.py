"""Rehearsed faults: services of a cluster are shot while others go on."""

import contextlib
import random
import threading
from collections.abc import Iterator

from shoal.cluster import training as runner
from shoal.cluster.transport.launcher import LocalHandle, ThreadLauncher
from shoal.cluster.transport.service import ServiceUnavailable
from shoal.training.run import open_run


class Killer:
    """Kills a service as soon as a training has got to some update, and again at later ones."""

    def __init__(self, name, *updates):
        self.name, self.updates = name, list(updates)
        self.committed = []

    def __call__(self, supervisor):
        learner = supervisor.status.get("learner", {})
        self.committed.append(learner.get("committed", 0))
        if self.updates and learner.get("update", 0) >= self.updates[0]:
            self.updates.pop(0)
            supervisor.launcher.kill(self.name)


def disturbed(tmp_path, experiment, plan, *hooks, launcher=None):
    """A training in `tmp_path/run`, with hooks that its supervisor calls at every look; both it and the result."""
    folder = tmp_path / "run"
    runner.check(experiment, plan)
    entries = {"experiment": experiment.to_dict(), "cluster": runner.to_plain(plan)}
    runner.run_kinds.create(folder, runner.run_kinds.TRAINING, **entries)
    supervisor = runner.TrainingSupervisor(open_run(folder), plan, launcher or ThreadLauncher())
    supervisor.hooks += hooks
    return supervisor, supervisor.run()


@contextlib.contextmanager
def shooting(
    launcher: ThreadLauncher, names: list[str], seed: int, shots: int, apart: tuple[int, int]
) -> Iterator[list[str]]:
    """Shoots one of `names` every time that so many more tasks have been handed out, `shots` times at most.

    Between two shots there is always something done, so that a slow machine gets on, too. Gives the names of the shot.
    """
    draws, stop, shot = random.Random(seed), threading.Event(), []

    def handed() -> int:
        with contextlib.suppress(ServiceUnavailable):
            return LocalHandle("board", launcher).call("figures")["handed"]
        return 0

    def shoot() -> None:
        since, wait = handed(), draws.randint(*apart)
        while len(shot) < shots and not stop.wait(draws.uniform(0.0, 0.1)):
            since = min(since, handed())  # a board that was made anew counts anew
            if handed() - since >= wait:
                shot.append(draws.choice(names))
                launcher.kill(shot[-1])
                since, wait = handed(), draws.randint(*apart)

    gun = threading.Thread(target=shoot)
    gun.start()
    try:
        yield shot
    finally:
        stop.set()
        gun.join()
