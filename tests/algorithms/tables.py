"""Learners of action values whose networks are plain tables, and experience written down by hand for them.

A view is the one-hot of a number, the network has no hidden layers: the value of action a in view s is `table[s, a]`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from shoal import Discrete, Group, Observation
from shoal.algorithms import replay as stored
from shoal.core.algorithm import LearnerSpec
from shoal.core.spaces import Box
from shoal.networks.torsos import Network

TABLE = Network(hidden=())
ONLINE = np.array([[1.0, 2.0], [5.0, 3.0], [0.0, 7.0], [4.0, -1.0], [6.0, 8.0]], np.float32)
SLOW = np.array([[-1.0, 0.5], [10.0, 20.0], [40.0, 30.0], [-8.0, -4.0], [2.0, 16.0]], np.float32)
"""What the online and the slow network say of five views; they disagree about what is best in views 1, 2 and 3."""


def learner(algorithm, sizes=None, space=None, online=ONLINE, slow=SLOW, state=None, masks=("active", "present")):
    """A learner for groups of some sizes, whose tables are set. state: the shape of the global state."""
    sizes, space = sizes or {"a": 1}, space or Discrete(2)
    views = len(online)
    shape = jax.ShapeDtypeStruct
    groups = {name: Group(size, space, Box((views,))) for name, size in sizes.items()}
    seen = {
        name: Observation(shape((size, views), jnp.float32), **{mask: shape((size,), bool) for mask in masks})
        for name, size in sizes.items()
    }
    spec = LearnerSpec(groups, None if state is None else shape((state,), jnp.float32), 10, seen, 1, 1)
    fresh = _init(algorithm, tuple(sizes), spec)
    weights = {name: _table(policy.weights, online) for name, policy in fresh.params.items()}
    params = {name: policy.replace(weights=weights[name]) for name, policy in fresh.params.items()}
    if not hasattr(fresh, "target"):
        return fresh.replace(params=params)
    slow_weights = {name: _table(policy.weights, slow) for name, policy in fresh.params.items()}
    return fresh.replace(params=params, target=fresh.target | {"agents": slow_weights})


def _init(algorithm, _, spec):
    return jax.jit(lambda key: algorithm.init(key, spec))(jax.random.key(0))


def _table(weights, table):
    head = {"kernel": jnp.asarray(table), "bias": jnp.zeros(table.shape[1])}
    return {"params": weights["params"] | {"head": head}}


def one_hot(numbers, views=len(ONLINE)):
    return jnp.asarray(np.eye(views, dtype=np.float32)[np.asarray(numbers)])


def mask(values, shape):
    return jnp.broadcast_to(True if values is None else jnp.asarray(values, bool), shape)


def window(groups, first=(), terminated=(), truncated=(), state=None, final_state=None):
    """One window of one copy. groups: by name, view, action, reward `[W][n]`, and if need be final, active, present.

    first, terminated, truncated: the rows where they are set. The final views of all rows are given, read where cut.
    """
    rows = len(next(iter(groups.values()))["view"])

    def batched(numbers, dtype):
        return jnp.asarray(numbers, dtype)[:, None]

    def seen(group, view):
        shape = np.asarray(group["view"]).shape
        active, present = (mask(group.get(name), shape)[:, None] for name in ("active", "present"))
        legal = batched(group["legal"], bool) if "legal" in group else None
        return Observation(one_hot(view)[:, None], legal, active, present)

    def flag(where):
        return jnp.asarray([[row in where] for row in range(rows)])

    return stored.Steps(
        observation={name: seen(group, group["view"]) for name, group in groups.items()},
        final_observation={
            name: seen(group, group.get("final", np.zeros_like(group["view"]))) for name, group in groups.items()
        },
        action={name: batched(group["action"], jnp.int32) for name, group in groups.items()},
        reward={name: batched(group["reward"], jnp.float32) for name, group in groups.items()},
        memory=dict.fromkeys(groups, ()),
        state=None if state is None else batched(state, jnp.float32),
        final_state=None if final_state is None else batched(final_state, jnp.float32),
        first=flag(first),
        terminated=flag(terminated),
        truncated=flag(truncated),
    )


@functools.partial(jax.jit, static_argnums=0)
def learnt(algorithm, state, batch, weight):
    return algorithm.gradients(state, batch, weight)


def errors(algorithm, state, batch):
    """Gradients of the tables by group, the loss, and absolute errors `[sequence]`."""
    gradients, (metrics, error) = learnt(algorithm, state, batch, jnp.ones(1))
    tables = {name: np.asarray(one["params"]["head"]["kernel"]) for name, one in gradients["agents"].items()}
    return tables, float(metrics["loss"]), np.asarray(error)[:, 0]
