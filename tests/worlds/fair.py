"""A world of two kinds of agents whose actions are several choices at once, masked, and who leave one after the other.

In no part of its action may an agent choose again what it chose in the last step. Agent i of a kind leaves after i + 2
steps. The metric `broken` counts the choices that the masks forbade.
"""

import dataclasses

import jax.numpy as jnp

import shoal

KINDS = {"buyer": (2, 3), "seller": (3, 2, 4)}


@dataclasses.dataclass(frozen=True)
class Fair(shoal.Env):
    buyers: int = 2
    sellers: int = 2

    @property
    def sizes(self):
        return {name: size for name, size in (("buyer", self.buyers), ("seller", self.sellers)) if size}

    @property
    def groups(self):
        return {name: shoal.Group(size, shoal.MultiDiscrete(KINDS[name])) for name, size in self.sizes.items()}

    def reset(self, key, params):
        return {name: jnp.full((size, len(KINDS[name])), -1) for name, size in self.sizes.items()} | {"t": jnp.int32(0)}

    def step(self, key, state, actions, params):
        t, broken, reward = state["t"], jnp.float32(0), {}
        for name, size in self.sizes.items():
            there = jnp.arange(size) + 2 > t
            broken += jnp.sum((actions[name] == state[name]) & there[:, None])
            reward[name] = there * 1.0
        over = t + 1 >= max(self.sizes.values()) + 1
        return {**actions, "t": t + 1}, shoal.Outcome(reward, over, jnp.bool_(False), {"broken": broken})

    def observe(self, state, params):
        seen = {}
        for name, size in self.sizes.items():
            there = jnp.arange(size) + 2 > state["t"]
            parts = [jnp.arange(n) != state[name][:, i, None] for i, n in enumerate(KINDS[name])]
            view = jnp.stack([jnp.arange(size) + 1.0, jnp.full(size, state["t"] * 1.0)], 1)
            seen[name] = shoal.Observation(view, jnp.concatenate(parts, 1), there, there)
        return seen
