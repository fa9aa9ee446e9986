"""A tiny Gymnasium environment in numpy that can be told to go wrong. To be imported with `--import`, and by workers.

A point drifts in space; a step moves it, pays minus its distance from 0, and episodes last `length` steps. In its step
number `at` it does what `fault` says, if the file `marker` can be made: once, whichever process is first. Without a
marker it does so in every environment; where `at` is negative, while it is made.
"""

import os
import time

import gymnasium
import numpy as np
from gymnasium import spaces

FAULTS = {
    "exit": lambda: os._exit(3),
    "hang": lambda: time.sleep(600),
    "abort": os.abort,
}
RAISED = {"raise": ValueError, "interrupt": KeyboardInterrupt, "system": SystemExit, "generator": GeneratorExit}


class Drift(gymnasium.Env):
    observation_space = spaces.Box(-100.0, 100.0, (3,), np.float32)
    action_space = spaces.Discrete(3)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, fault="", at=20, marker="", length=7, render_mode=None):
        self.fault, self.at, self.marker, self.length, self.render_mode = fault, at, marker, length, render_mode
        self.total = 0
        if at < 0 and fault:
            raise RAISED[fault]("no road")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.point, self.steps = self.np_random.normal(size=3).astype(np.float32), 0
        return self.point.copy(), {}

    def step(self, action):
        self.total, self.steps = self.total + 1, self.steps + 1
        self.point = self.point + np.float32(0.1) * (int(action) - 1)
        seen = self.point.copy()
        if self.fault and self.total == self.at and self._first():
            if self.fault in RAISED:
                raise RAISED[self.fault]("a wheel came off")
            if self.fault == "nan":
                seen[0] = np.nan
            else:
                FAULTS[self.fault]()
        return seen, -float(np.abs(self.point).sum()), False, self.steps >= self.length, {}

    def render(self):
        picture = np.zeros((24, 32, 3), np.uint8)
        picture[:, : 1 + self.steps] = (30 * self.steps, 90, 200)
        return picture

    def _first(self):
        if not self.marker:
            return True
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


if "Drift-v0" not in gymnasium.registry:
    gymnasium.register("Drift-v0", Drift)
