"""Folders of populations that were never grown."""

import json

from shoal.populations.population import stored
from shoal.training import checkpoint


def save(folder, state):
    """What a population leaves in its folder after an iteration."""
    checkpoint.save(folder / "checkpoints", state.iteration, *stored(state))
    lines = "".join(json.dumps(line) + "\n" for line in state.history)
    (folder / "metrics.jsonl").write_text(lines)


class Killed(BaseException):
    """What a test raises where a process could die."""


def kill_in(iteration):
    """A listener that ends a population in an iteration, before its checkpoint is saved."""

    def listen(progress):
        if progress.line and progress.line["iteration"] == iteration:
            raise Killed

    return listen
