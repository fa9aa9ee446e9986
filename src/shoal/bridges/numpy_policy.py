"""Trained policies as plain numpy: arrays in one `.npz` file, and a function that needs neither JAX nor Shoal.

`export(policy, observation)` takes the actor out of a policy: normalisation of views, convolutions, the MLP, a
recurrent cell, the head. The `NumpyPolicy` (see `plain_policy`) computes what the JAX policy does, to 1e-5; networks
that compute in bfloat16 are computed in float32 there, so they differ by bfloat16's rounding.

    policy = export(params["agent"], shoal.describe(env).groups["agent"].observation)
    policy.save("agent.npz")
    action, logits, memory = load("agent.npz")(view)
"""

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from shoal.bridges.plain_policy import Actions, NumpyPolicy, flat
from shoal.bridges.plain_policy import PolicyOutput as PolicyOutput
from shoal.bridges.plain_policy import load as load
from shoal.core.errors import OptionError
from shoal.core.spaces import ActionSpace, Box, Discrete, MultiDiscrete, num_logits
from shoal.core.types import Observation, PyTree
from shoal.networks.actor_critic import ActorCritic
from shoal.networks.actors import ActorNetwork
from shoal.networks.own_torsos import MLP
from shoal.networks.q_network import QNetwork
from shoal.ops.normalisation import RunningStats


def export(policy: Any, observation: Observation | PyTree) -> NumpyPolicy:
    """The actor of a trained policy (the params of one group) as plain numpy.

    observation: what one agent sees, or its view, as arrays, shapes or boxes. Only names, shapes and dtypes are read; a
    group's `observation` (`shoal.describe(env).groups[name].observation`) will do.
    """
    network, weights, space, sampled = _actor(policy)
    if network.torso != MLP:
        raise OptionError(
            f"export: the policy's network has the torso {network.torso!r}, which is not one of Shoal's, and only its "
            f"own code can compute it: networks with the torso {MLP!r} can be exported"
        )
    torso = weights.get("torso", {})  # there are no weights where there are no layers
    view = observation.view if isinstance(observation, Observation) else observation
    leaves = tuple((name, tuple(leaf.shape)) for name, leaf in flat(view).items())
    dtypes = tuple(np.dtype(leaf.dtype).name for leaf in flat(view).values())
    arrays: dict[str, Any] = {"head": weights["head"]}
    for name in ("base", "log_std"):
        arrays |= {name: weights[name]} if name in weights else {}
    arrays |= {f"layer{i}": torso[f"layers_{i}"] for i in range(len(network.hidden))}
    arrays |= {f"norm{i}": torso[f"norms_{i}"] for i in range(len(network.hidden) if network.layer_norm else 0)}
    arrays |= {"cell": torso["cell"]} if network.recurrent != "none" else {}
    arrays |= _convolutions(torso, leaves, len(network.filters)) | _statistics(policy, leaves)
    plain = {name: np.asarray(leaf, np.float32) for name, leaf in flat(arrays, "/").items()}
    kind = network.activation, network.recurrent, network.layer_norm
    return NumpyPolicy(plain, _describe(space), leaves, *kind, sampled, dtypes)


def _actor(policy: Any) -> tuple[Any, dict[str, Any], ActionSpace, bool]:
    """(network, weights of torso and head, action space, whether actions may be drawn) of a policy."""
    match policy:
        case object(network=ActorCritic() as module, weights={"params": own}):
            torso = own.get("shared_torso" if module.config.share_torso else "actor_torso", {})
            rest = {"log_std": own["log_std"]} if "log_std" in own else {}
            return module.config, {"torso": torso, "head": own["policy_head"]} | rest, module.action, True
        case object(network=QNetwork() as module, weights={"params": own}):
            return module.config, own, module.action, False
        case object(actor=ActorNetwork() as module, weights={"actor": {"params": own}}, space=space):
            width = 2 * math.prod(space.shape) if isinstance(space, Box) else num_logits(space)
            return module.config, own, space, module.width == width
    raise OptionError(f"export: a policy of {type(policy).__name__} has no actor that can be exported")


def _describe(space: ActionSpace) -> Actions:
    match space:
        case Discrete(n):
            return Actions("discrete", (n,))
        case MultiDiscrete(sizes):
            return Actions("multi_discrete", sizes)
        case Box():
            return Actions("box", (), space.shape, float(space.low), float(space.high), space.dtype)


def _convolutions(torso: Mapping[str, Any], leaves: tuple, filters: int) -> dict[str, Any]:
    """Kernels and biases; the encoder numbers them through all images of a view."""
    images = [i for i, (_, shape) in enumerate(leaves) if len(shape) == 3]
    places = [(leaf, layer) for leaf in images for layer in range(filters)]
    return {f"conv{leaf}.{layer}": torso["encoder"][f"Conv_{n}"] for n, (leaf, layer) in enumerate(places)}


def _statistics(policy: Any, leaves: tuple) -> dict[str, Any]:
    """Mean and standard deviation of each part of a view, where the policy normalises them."""
    match policy:
        case object(view_stats=stats) if stats is not None:
            found = jax.tree.leaves(stats, is_leaf=lambda node: isinstance(node, RunningStats))
            numbered = zip(range(len(leaves)), found, strict=True)
            return {f"{kind}{i}": getattr(one, kind) for i, one in numbered for kind in ("mean", "std")}
    return {}
