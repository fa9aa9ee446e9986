"""A world of one's own: an owl hunts mice around a pond. It is checked, then the owl learns for a few seconds.

Two groups see different things, caught mice leave the game, the owl's speed is drawn anew for every episode.
"""

import dataclasses

import jax
import jax.numpy as jnp

import shoal
from shoal.algorithms import PPO
from shoal.execution.experiment import Experiment, Learner
from shoal.execution.train import train
from shoal.testing import check_env


@shoal.register("example/owl")
@dataclasses.dataclass(frozen=True)
class Owl(shoal.Env):
    num_mice: int = 3  # who are hunted

    @property
    def groups(self):
        return {"owl": shoal.Group(1, shoal.Discrete(3)), "mouse": shoal.Group(self.num_mice, shoal.Discrete(3))}

    def default_params(self):
        return {"owl_speed": 0.3}

    def sample_params(self, key):
        return {"owl_speed": jax.random.uniform(key, minval=0.2, maxval=0.4)}

    def reset(self, key, params):
        angle = jax.random.uniform(key, (1 + self.num_mice,), maxval=2 * jnp.pi)
        return {"angle": angle, "free": jnp.ones(self.num_mice, bool), "t": jnp.int32(0)}

    def step(self, key, state, actions, params):
        owl = state["angle"][:1] + params["owl_speed"] * (actions["owl"] - 1)
        mice = state["angle"][1:] + jnp.where(state["free"], 0.2 * (actions["mouse"] - 1), 0.0)
        caught = state["free"] & (jnp.cos(mice - owl) > 0.98)
        state = {"angle": jnp.concatenate([owl, mice]), "free": state["free"] & ~caught, "t": state["t"] + 1}
        reward = {"owl": 1.0 * jnp.sum(caught, keepdims=True), "mouse": -1.0 * caught}
        return state, shoal.Outcome(reward, terminated=~jnp.any(state["free"]), truncated=state["t"] >= 30)

    def observe(self, state, params):
        away, free = state["angle"][1:] - state["angle"][0], state["free"]
        seen = jnp.stack([jnp.sin(away), jnp.cos(away), free], axis=1)
        mice = shoal.Observation(seen, active=free, present=free)
        return {"owl": shoal.Observation(seen.reshape(1, -1)), "mouse": mice}


if __name__ == "__main__":
    print(check_env(Owl()))
    owl = Learner(PPO(learning_rate=2e-3), {"owl": ("owl",)})
    mice = Learner(PPO(), {"mouse": ("mouse",)}, frozen=True)  # they play as they were made: about at random
    sizes = {"num_envs": 64, "num_steps": 32, "total_env_steps": 100_000}
    result = train(Experiment("example/owl", learners={"owl": owl, "mouse": mice}, randomise=True, **sizes))
    caught = [line["return/owl"] for line in result.lines]
    print(f"mice caught in an episode: {caught[0]:.2f} at first, {caught[-1]:.2f} in the end")
