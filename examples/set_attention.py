"""A torso of one's own: an agent attends to the things around it, in whatever order they are listed.

    shoal train mpe/simple_spread --import examples/set_attention.py --algo.network.torso set_attention

The view of `mpe/simple_spread` is 4 numbers about the agent itself, then 2 for each of 3 landmarks and 2 others.
"""

import flax.linen as nn
import jax.numpy as jnp

import shoal


@shoal.register_torso("set_attention")
class SetAttention(nn.Module):
    """Attention over sets of things: within a set, their order does not matter."""

    own: int = 4  # numbers about the agent itself; they come first
    sets: tuple[int, ...] = (3, 2)  # how many things of each kind follow; what is left after them is not looked at
    size: int = 2  # numbers about each thing
    width: int = 64
    heads: int = 4

    @nn.compact
    def __call__(self, seen):
        state, view = seen if isinstance(seen, tuple) else ((), seen)  # critics that see the global state see both
        me = nn.Dense(self.width, name="me")(view[: self.own])
        tokens, start = [me[None]], self.own
        for kind, count in enumerate(self.sets):
            things = view[start : start + count * self.size].reshape(count, self.size)
            tokens.append(nn.Dense(self.width, name=f"kind_{kind}")(things))
            start += count * self.size
        tokens = nn.relu(jnp.concatenate(tokens))
        attended = nn.MultiHeadDotProductAttention(self.heads, name="attention")(tokens[:1], tokens)[0]
        return jnp.concatenate([tokens[0], attended, *([jnp.ravel(state)] if isinstance(seen, tuple) else [])])


if __name__ == "__main__":
    network = shoal.Network(torso="set_attention", torso_options={"heads": 2}, hidden=(64,))
    learner = shoal.Learner(shoal.PPO(learning_rate=1e-3, network=network))
    sizes = {"num_envs": 64, "num_steps": 25, "total_env_steps": 160_000}
    result = shoal.train(shoal.Experiment("mpe/simple_spread", learners={"learner": learner}, **sizes))
    returns = [line["return/agent"] for line in result.lines]
    print(f"return of an episode: {returns[0]:.1f} at first, {returns[-1]:.1f} in the end")
