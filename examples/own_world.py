"""An owl hunts mice around a pond. Two groups see different things, caught mice leave the game, and the owl's speed is
drawn for every episode. The world is checked, then the owl learns for a few seconds.
"""

import dataclasses

import jax
import jax.numpy as jnp

import shoal.testing


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
        see = jnp.stack([jnp.sin(away), jnp.cos(away), free], axis=1)
        return {"owl": shoal.Observation(see.ravel()[None]), "mouse": shoal.Observation(see, active=free, present=free)}

    def scene(self, state, params):
        x, y = jnp.cos(state["angle"]), jnp.sin(state["angle"])
        is_mouse = jnp.arange(1 + self.num_mice) > 0
        radius, colour = jnp.where(is_mouse, 0.06, 0.12), jnp.where(is_mouse, 2, 1)
        circles = shoal.Circles(jnp.stack([x, y], axis=1), radius, colour, visible=jnp.append(True, state["free"]))
        return shoal.Scene(bounds=(-1.2, -1.2, 1.2, 1.2), circles=circles)


if __name__ == "__main__":
    print(shoal.testing.check_env(Owl()))
    owl = shoal.Learner(shoal.PPO(learning_rate=2e-3), {"owl": ("owl",)})
    mice = shoal.Learner(shoal.PPO(), {"mouse": ("mouse",)}, frozen=True)  # they play as they were made: at random
    sizes = {"num_envs": 64, "num_steps": 32, "total_env_steps": 100_000}
    result = shoal.train(shoal.Experiment("example/owl", learners={"owl": owl, "mouse": mice}, randomise=True, **sizes))
    caught = [line["return/owl"] for line in result.lines]
    print(f"mice caught in an episode: {caught[0]:.2f} at first, {caught[-1]:.2f} in the end")
