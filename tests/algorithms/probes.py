"""The probe worlds and what is right in each, and how every algorithm is set up for them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from shoal.algorithms import A2C, DDPG, DQN, PPO, PQN, SAC, Impala
from shoal.batching.policies import Policies
from shoal.core.registry import register
from shoal.networks.torsos import Network
from shoal.testing.probes import Memory
from shoal.training.evaluate import play
from shoal.training.experiment import Experiment, Learner
from shoal.training.fused import make_fused_program
from shoal.training.program import MAX_UPDATES
from tests.conftest import WELL
from tests.worlds.bandit import Bandit, Target, Truncation, TwoStep
from tests.worlds.messages import Messages
from tests.worlds.teams import Coordination, Credit, Masked, Parts, Rooms, Seen

WORLDS = {
    "bandit": Bandit,
    "coordination": Coordination,
    "credit": Credit,
    "delayed": TwoStep,
    "masked": Masked,
    "memory": Memory,
    "messages": Messages,
    "parts": Parts,
    "rooms": Rooms,
    "seen": Seen,
    "target": Target,
    "truncation": Truncation,
}
for name, world in WORLDS.items():
    register(f"test/probe_{name}", world)

AT_LEAST = {
    "bandit": 0.899,
    "coordination": 0.599,  # the better of the two equilibria pays 1; who learns alone may settle for the other
    "credit": 0.99,
    "delayed": 0.99,
    "masked": 0.499,
    "memory": 0.95,
    "parts": 0.99,
    "rooms": 1.98,
    "seen": 0.99,
    "target": -0.02,
}
"""What a trained policy must reach, greedy, by probe; the best possible is 1 (bandit 0.9, masked 0.5, rooms 2)."""

SMALL = Network(hidden=(32,), activation="relu")
NORMALISED = dataclasses.replace(SMALL, layer_norm=True)
QUICK = {"learning_rate": 5e-3, "network": SMALL}
REPLAY = {"batch_size": 128, "gradient_steps": 8, "buffer_size": 20_000, "warm_up": 512, "target_rate": 0.05}
A2C_SET = {"normalise_advantages": True, "entropy_coef": 0.02} | QUICK
PPO_SET = {"minibatches": 2, "entropy_coef": 0.02} | QUICK
IMPALA_SET = {"entropy_coef": 0.02} | QUICK
DQN_SET = REPLAY | QUICK
PQN_SET = {"minibatches": 2, "learning_rate": 5e-3, "network": NORMALISED}
ACTOR_SET = REPLAY | QUICK | {"actor_learning_rate": 2e-3}
DDPG_SET = ACTOR_SET | {"logit_penalty": 1e-2}
SAC_SET = ACTOR_SET | {"target_entropy_share": 0.2}
POLICY_GRADIENT = {"a2c": A2C(**A2C_SET), "ppo": PPO(**PPO_SET), "impala": Impala(**IMPALA_SET)}
VALUES = {"dqn": DQN(**DQN_SET), "pqn": PQN(**PQN_SET)}
ACTOR_CRITIC = {"ddpg": DDPG(**DDPG_SET), "sac": SAC(**SAC_SET)}
ALGORITHMS = POLICY_GRADIENT | VALUES | ACTOR_CRITIC
CERTAIN = {"learning_rate": 1e-2, "entropy_coef": 0.0}  # for one pass over each batch: noise must go, and soon
CONTINUOUS = {
    "a2c": A2C(**A2C_SET | CERTAIN),
    "ppo": PPO(**PPO_SET),
    "impala": Impala(**IMPALA_SET | CERTAIN),
    "ddpg": DDPG(**ACTOR_SET),
    "td3": DDPG(twin=True, policy_delay=2, target_noise=0.2, **ACTOR_SET),
    "sac": SAC(**ACTOR_SET | {"target_entropy_share": 3.0}),
}
VARIANTS = {
    "a2c-sum": A2C(mixer="sum", **A2C_SET),
    "ppo-global": PPO(critic="global", **PPO_SET),
    "ppo-monotonic": PPO(mixer="monotonic", **PPO_SET),
    "impala-clipped": Impala(clipped=True, epochs=2, minibatches=2, **IMPALA_SET),
    "dqn-sum": DQN(mixer="sum", **DQN_SET),
    "dqn-monotonic": DQN(mixer="monotonic", **DQN_SET),
    "dqn-prioritised": DQN(prioritised=True, **DQN_SET),
    "dqn-dueling": DQN(dueling=True, double=False, **DQN_SET),
    "dqn-3-steps": DQN(n_step=3, **DQN_SET),
    "pqn-sum": PQN(mixer="sum", **PQN_SET),
    "pqn-monotonic": PQN(mixer="monotonic", **PQN_SET),
    "ddpg-global": DDPG(critic="global", **DDPG_SET),
    "sac-global": SAC(critic="global", **SAC_SET),
    "sac-attention": SAC(critic="attention", **SAC_SET),
}


def with_network(algorithm, **changes):
    """The algorithm with another network; those with a replay learn from sequences if it is recurrent."""
    more = {"network": dataclasses.replace(algorithm.network, **changes)}
    if changes.get("recurrent", "none") == "none":
        return dataclasses.replace(algorithm, **more)
    if hasattr(algorithm, "burn_in"):
        more |= {"sequence": 6, "burn_in": 2, "batch_size": 64}
    # What is to be kept in mind is found out by chance: a policy that is sure too soon stops trying.
    more |= {"target_entropy_share": 0.5} if isinstance(algorithm, SAC) else {}
    more |= {"entropy_coef": 0.05} if isinstance(algorithm, PPO | A2C) else {}
    # At 5e-3 one LSTM in ten ends on one answer to every cue, and stays there for twice the steps; at 2e-3 none does.
    more |= {"learning_rate": 2e-3} if isinstance(algorithm, PPO) and changes["recurrent"] == "lstm" else {}
    return dataclasses.replace(algorithm, **more)


def trained(probe, algorithm, total=60_000, num_seeds=5, num_envs=64, num_steps=8):
    """The cast, the learner states of all seeds, and the metrics of the last update, `[seeds]` each."""
    experiment = Experiment(
        f"test/probe_{probe}",
        learners={"l": Learner(algorithm)},
        num_envs=num_envs,
        num_steps=num_steps,
        total_env_steps=total,
        num_seeds=num_seeds,
    )
    program = make_fused_program(experiment, 1)
    carry, left, count, table = program.init(), experiment.num_updates, 0, np.zeros(())
    advance = program.advance.lower(carry, program.counts[0]).compile(WELL)  # it runs for longer than that takes
    while left:
        count = min(left, MAX_UPDATES)
        carry, table = advance(carry, program.counts[count])
        left -= count
    last = np.asarray(table)[:, count - 1]
    states = [jax.tree.map(lambda leaf, i=i: leaf[i], carry.learners["l"]) for i in range(num_seeds)]
    return experiment.setup, states, dict(zip(program.names, last.T, strict=True))


def scores(probe, algorithm, total=60_000, episodes=256, **sizes):
    """Greedy mean returns after training, of each seed."""
    setup, states, _ = trained(probe, algorithm, total, **sizes)
    program = play(setup, Policies(setup.algorithms, setup.spec.groups, explore=False))  # compiled once for all seeds
    ids = jnp.arange(episodes)
    returns = [program(state.params, jax.random.key(0), ids)[0] for state in states]
    return [sum(float(jnp.mean(value)) for value in one.values()) for one in returns]


def values_of_truncation(algorithm, total=60_000, **changes):
    """What the view of `Truncation` is worth after training, by seed; its discount is 0.8."""
    algorithm = dataclasses.replace(algorithm, gamma=0.8, **changes)
    setup, states, metrics = trained("truncation", algorithm, total)
    if isinstance(algorithm, DDPG | SAC):  # their critics are not part of the policies: the mean over the last batches
        return metrics["q"].tolist()
    params = setup.env.default_params()
    seen = setup.env.observe(setup.env.reset(jax.random.key(0), params), params)["agent"]
    one = seen.replace(view=seen.view[0])
    return [float(algorithm.value(state.params["agent"], one, ())) for state in states]
