"""A `MultiAgentEnv` of one's own, which JaxMARL does not know, in Shoal:

shoal train jaxmarl:Meet --import examples/from_jaxmarl.py --env-option num_agents=6
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxmarl
from jaxmarl.environments import MultiAgentEnv
from jaxmarl.environments.spaces import Box, Discrete
from jaxmarl.registration import registered_envs

MOVES = ((0.0, 0.0), (0.1, 0.0), (-0.1, 0.0), (0.0, 0.1), (0.0, -0.1))


class State(NamedTuple):
    place: jax.Array
    step: jax.Array  # with `max_steps`, this tells a time limit from an end


class Meet(MultiAgentEnv):
    def __init__(self, num_agents=4, max_steps=25):
        super().__init__(num_agents)
        self.max_steps = max_steps
        self.observation_spaces = {agent: Box(-jnp.inf, jnp.inf, (2,)) for agent in self.agents}
        self.action_spaces = {agent: Discrete(len(MOVES)) for agent in self.agents}

    def reset(self, key):
        place = jax.random.uniform(key, (self.num_agents, 2), minval=-1.0, maxval=1.0)
        state = State(place, jnp.int32(0))
        return self.get_obs(state), state

    def step_env(self, key, state, actions):
        chosen = jnp.stack([actions[agent] for agent in self.agents])
        place = state.place + jnp.array(MOVES)[chosen]
        reward = -jnp.linalg.norm(place - place.mean(axis=0), axis=1)
        state, over = State(place, state.step + 1), state.step + 1 >= self.max_steps
        rewards = dict(zip(self.agents, reward, strict=True))
        return self.get_obs(state), state, rewards, dict.fromkeys([*self.agents, "__all__"], over), {}

    def get_obs(self, state):
        return dict(zip(self.agents, state.place.mean(axis=0) - state.place, strict=True))


# JaxMARL's `make` knows the ids of a list in its source. From here on it knows this one, too.
theirs = jaxmarl.make
jaxmarl.make = lambda env_id, **options: Meet(**options) if env_id == "Meet" else theirs(env_id, **options)
registered_envs.append("Meet")
