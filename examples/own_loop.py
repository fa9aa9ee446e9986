"""A training loop of one's own, from Shoal's parts: copies of an environment, and an algorithm's init, act and update.

Three seeds of IPPO side by side. `shoal.train` adds run folders, logs, resuming, evaluation and several devices.
"""

import jax
import jax.numpy as jnp

import shoal
from shoal.core.algorithm import Experience, LearnerSpec, Trajectory

NUM_ENVS, NUM_STEPS, NUM_UPDATES = 64, 25, 60
algorithm = shoal.PPO(learning_rate=3e-3, gamma=0.95, entropy_coef=0.005, anneal=True)
envs = shoal.vectorise("mpe/simple_spread", NUM_ENVS)
shapes = shoal.describe(envs.env)


def each_agent(function):
    """A function of (policy, observation, key) of one agent, for all agents of all copies."""
    return jax.vmap(jax.vmap(function, (None, 0, 0)), (None, 0, 0))


act = each_agent(lambda policy, seen, key: algorithm.act(policy, seen, (), key, explore=True))
value = each_agent(lambda policy, seen, key: algorithm.value(policy, seen, ()))


def train(key):
    """One training: the learner's state, and the mean return of the episodes that ended in each update."""
    first, second, third = jax.random.split(key, 3)

    def update(carry, key):
        learner, worlds = carry
        policy, last = learner.params["agent"], jax.random.fold_in(key, NUM_STEPS)

        def step(worlds, key):
            seen = worlds.observation["agent"]
            keys = jax.random.split(key, seen.view.shape[:2])  # [copies, agents]
            out = act(policy, seen, keys)
            after, outcome, ended = envs.step(worlds, {"agent": out.action})
            final = value(policy, envs.observe(ended.params, ended.state, NUM_ENVS)["agent"], keys)
            cut = outcome.truncated & ~outcome.terminated
            final = jnp.where(cut[:, None], final, 0.0)  # what would have come after a time limit
            row = (seen, out.action, outcome.reward["agent"], out.extras, final)
            return after, (row, (worlds.first, outcome.terminated, outcome.truncated), ended.returns["agent"])

        after, (rows, flags, returns) = jax.lax.scan(step, worlds, jax.random.split(key, NUM_STEPS))
        trajectory = Trajectory(*rows, memory=(), last_observation=after.observation["agent"], last_memory=())
        learner, _ = algorithm.update(learner, Experience({"agent": trajectory}, *flags), last)
        return (learner, after), jnp.mean(returns, where=flags[1] | flags[2])

    learner = algorithm.init(first, LearnerSpec(shapes.groups, shapes.state, NUM_UPDATES))
    (learner, _), returns = jax.lax.scan(update, (learner, envs.reset(second)), jax.random.split(third, NUM_UPDATES))
    return learner, returns


if __name__ == "__main__":
    learners, returns = jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(0), 3))
    print("returns of the three seeds:", returns[:, 0].round(), "at first,", returns[:, -1].round(), "in the end")
    policy = jax.tree.map(lambda leaf: leaf[0], learners.params["agent"])
    print(shoal.evaluate("mpe/simple_spread", {"agent": policy}, episodes=100))
