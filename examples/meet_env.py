"""Agents that must meet: an environment of one's own with PettingZoo's API, in numpy. Shoal trains in it as it is:

PYTHONPATH=examples shoal train pettingzoo:meet_env:Meet --env-option size=3
"""

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

MOVES = 0.1 * np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]])


class Meet(ParallelEnv):
    def __init__(self, size=4, max_steps=25, render_mode=None):
        self.metadata = {"name": "meet", "render_modes": ["rgb_array"]}
        self.possible_agents = [f"agent_{i}" for i in range(size)]  # alike but for the number: one group, `agent`
        self.agents, self.max_steps, self.render_mode = [], max_steps, render_mode
        self.views, self.moves = Box(-np.inf, np.inf, (2,), np.float32), Discrete(len(MOVES))
        self.random = np.random.default_rng()

    def observation_space(self, agent):
        return self.views

    def action_space(self, agent):
        return self.moves

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.agents, self.steps = list(self.possible_agents), 0
        self.place = self.random.uniform(-1.0, 1.0, (len(self.agents), 2))
        return self.observe(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.place = self.place + MOVES[[actions[agent] for agent in self.agents]]
        self.steps += 1
        distance = np.linalg.norm(self.place - self.place.mean(axis=0), axis=1)
        views, rewards = self.observe(), dict(zip(self.agents, -distance, strict=True))
        terminated = dict.fromkeys(self.agents, False)
        truncated = dict.fromkeys(self.agents, self.steps >= self.max_steps)
        infos = {agent: {} for agent in self.agents}
        if self.steps >= self.max_steps:
            self.agents = []
        return views, rewards, terminated, truncated, infos

    def observe(self):
        """For every agent, the way to the middle of all."""
        away = (self.place.mean(axis=0) - self.place).astype(np.float32)
        return dict(zip(self.agents, away, strict=True))

    def render(self):  # only needed to watch it
        picture = np.full((200, 200, 3), 255, np.uint8)
        for x, y in (100 + 80 * self.place).clip(5, 195).astype(int):
            picture[195 - y : 205 - y, x - 5 : x + 5] = (40, 90, 200)
        return picture
