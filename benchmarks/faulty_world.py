"""An environment in Python that can be told to fail: for `benchmarks/cluster_faults.py`, by `--import`.

`where` is a folder. What goes wrong is the name of a file in it: `raise`, `hang` or `nan` happen once, to whichever
copy finds the file first (it is renamed, so that everybody knows when); `always` happens to everybody, as long as it is
there.
"""

import contextlib
import time
from pathlib import Path

import gymnasium
import numpy as np

LENGTH = 20


class Walk(gymnasium.Env):
    """One agent on a line that is paid for standing near 0."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, where: str):
        self.where, self.at, self.t = Path(where), 0.0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.t = float(self.np_random.normal()), 0
        return self._seen(), {}

    def step(self, action):
        self.at, self.t = self.at + 0.1 * (int(action) - 1), self.t + 1
        seen = self._seen()
        if (self.where / "always").exists():
            raise ValueError("the road is gone")
        if self._hit("raise"):
            raise ValueError("a wheel came off")
        if self._hit("hang"):
            time.sleep(3600)
        if self._hit("nan"):
            seen[0] = np.nan
        return seen, -abs(self.at), False, self.t >= LENGTH, {}

    def _seen(self):
        return np.array([self.at, self.t / LENGTH], np.float32)

    def _hit(self, what: str) -> bool:
        with contextlib.suppress(OSError):
            (self.where / what).rename(self.where / f"{what}.done")
            return True
        return False


if "FaultyWalk-v0" not in gymnasium.registry:
    gymnasium.register("FaultyWalk-v0", entry_point=Walk, disable_env_checker=True, order_enforce=False)
