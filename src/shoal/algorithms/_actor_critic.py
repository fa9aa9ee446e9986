"""What A2C and PPO share: policies with an actor and a critic, advantages, gradient steps.

Shape letters: `T` time, `E` environments, `n` agents of a group. The critic sees the agent's own view (independent
learners, IPPO) or the global state beside it (centralised critic, MAPPO); recurrence is a choice of the network.
"""

import dataclasses
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax import lax

from shoal.core.agents import AGENT_AXES, mover_index, over_agents, pick, pick_observation
from shoal.core.algorithm import ActOutput, Experience, LearnerSpec, Track
from shoal.core.errors import require
from shoal.core.types import Group, Observation, PyTree
from shoal.networks.actor_critic import ActorCritic, init_weights, make_actor_critic
from shoal.networks.torsos import Network
from shoal.ops import normalisation
from shoal.ops.distributions import distribution
from shoal.ops.returns import advantages


class Policy(struct.PyTreeNode):
    """One group's policy: weights, the statistics its inputs and values are normalised by, and its network."""

    weights: PyTree
    view_stats: PyTree
    value_stats: PyTree
    network: ActorCritic = struct.field(pytree_node=False)
    movers: int | None = struct.field(pytree_node=False, default=None)


class LearnerState(struct.PyTreeNode):
    """Everything a learner carries from update to update. `hyper` holds its float hyper-parameters, traced."""

    params: dict[str, Policy]
    optimiser: PyTree
    hyper: dict[str, jax.Array]
    updates: jax.Array


class Batch(struct.PyTreeNode):
    """What one group's loss is computed from; leaves are `[T, E, n, ...]`, memory `[E, n, ...]`."""

    observation: Observation
    action: jax.Array
    log_prob: jax.Array
    advantage: jax.Array
    target: jax.Array
    memory: PyTree
    first: jax.Array  # [T, E]
    actor_weight: jax.Array | None  # None: every decision counts
    critic_weight: jax.Array | None


@dataclasses.dataclass(frozen=True)
class ActorCriticLearner:
    """Options and methods common to A2C and PPO (abstract: the loss and the schedule of steps are theirs)."""

    name: ClassVar[str]

    learning_rate: float = 3e-4  # Adam's step size
    gamma: float = 0.99  # discount per environment step
    gae_lambda: float = 0.95  # trace decay per own decision
    value_coef: float = 0.5  # weight of the value loss
    entropy_coef: float = 0.01  # weight of the entropy bonus
    max_grad_norm: float = 0.5  # gradients are scaled down to this norm
    anneal: bool = False  # learning rate falls linearly to 0
    critic: Literal["own", "global"] = "own"  # what the critic sees: own view, or the global state too
    normalise_views: bool = False  # running mean and variance of the views
    normalise_values: bool = False  # running mean and variance of the value targets
    normalise_advantages: bool = True  # zero mean, unit variance in each minibatch
    chunk_samples: int = 0  # samples whose gradient is computed at once; 0: as many as suits the device
    network: Network = dataclasses.field(default_factory=Network)  # torsos of actor and critic

    def __post_init__(self):
        owner = type(self).__name__
        limits = {"gamma": (0, 1), "gae_lambda": (0, 1), "learning_rate": (0, None), "value_coef": (0, None)}
        limits |= {"entropy_coef": (0, None), "max_grad_norm": (0, None)}
        for option, (low, high) in limits.items():
            got = getattr(self, option)
            if isinstance(got, int | float):  # under vmap it is a tracer and must not be inspected
                fits = low <= got and (high is None or got <= high)
                require(fits, owner, option, got, f"at least {low}" + (f" and at most {high}" if high else ""))
        require(self.critic in ("own", "global"), owner, "critic", self.critic, "'own' or 'global'")
        require(self.chunk_samples >= 0, owner, "chunk_samples", self.chunk_samples, "0 or more")

    @property
    def needs_state(self) -> bool:
        return self.critic == "global"

    def init(self, key: jax.Array, spec: LearnerSpec) -> LearnerState:
        """Fresh policies for the groups of `spec`."""
        keys = jax.random.split(key, len(spec.groups))
        params = {
            name: self._new_policy(k, group, spec) for k, (name, group) in zip(keys, spec.groups.items(), strict=True)
        }
        floats = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.type in (float, "float")}
        hyper = {name: jnp.asarray(value, jnp.float32) for name, value in floats.items()}
        hyper["total_updates"] = jnp.float32(spec.total_updates)
        optimiser = _optimiser(hyper).init(_weights(params))
        return LearnerState(params, optimiser, hyper, jnp.int32(0))

    def initial_memory(self, params: Policy) -> PyTree:
        return params.network.initial_memory()

    def act(self, params: Policy, observation: Observation, memory: PyTree, key: jax.Array, explore: bool) -> ActOutput:
        """One agent's action, with its log-probability and value. Greedy if not `explore`."""
        view = _normalised_view(params, observation.view)
        parameters, value, memory = _apply(params.network, params.weights, view, observation.state, memory)
        dist = distribution(params.network.action, parameters, observation.legal)
        action = dist.sample(key) if explore else dist.mode()
        extras = {"log_prob": dist.log_prob(action), "value": _natural_value(params, value)}
        return ActOutput(action, memory, extras)

    def value(self, params: Policy, observation: Observation, memory: PyTree) -> jax.Array:
        """What one agent can expect from here on."""
        view = _normalised_view(params, observation.view)
        value, _ = _apply(params.network, params.weights, view, observation.state, memory, method="critic")
        return _natural_value(params, value)

    def prepare(
        self, state: LearnerState, experience: Experience, axis: str | None = None
    ) -> tuple[LearnerState, dict[str, Batch]]:
        """Advantages and targets for each group; running statistics are brought up to date."""
        batches = {}
        params = dict(state.params)
        for name, track in experience.tracks.items():
            policy = params[name]
            batch = self._batch(policy, track, experience, state.hyper)
            if self.normalise_values:
                stats = normalisation.update(
                    policy.value_stats, batch.target, batch.critic_weight, axis=axis, decay=VALUE_STATS_DECAY
                )
                policy = policy.replace(value_stats=stats)
                batch = batch.replace(target=normalisation.normalise(stats, batch.target))
            batch = batch.replace(
                observation=batch.observation.replace(view=_normalised_view(policy, batch.observation.view))
            )
            if self.normalise_views:  # the statistics that acted normalise this batch; the new ones act next
                stats = normalisation.update_tree(
                    policy.view_stats, track.observation.view, track.observation.present, axis=axis
                )
                policy = policy.replace(view_stats=stats)
            params[name], batches[name] = policy, batch
        return state.replace(params=params), batches

    def apply(self, state: LearnerState, gradients: PyTree) -> LearnerState:
        """One optimiser step along gradients of the weights, by group."""
        weights = _weights(state.params)
        direction, optimiser = _optimiser(state.hyper).update(gradients, state.optimiser, weights)
        rate = state.hyper["learning_rate"]
        if self.anneal:
            rate = rate * jnp.maximum(0.0, 1.0 - state.updates / state.hyper["total_updates"])
        weights = jax.tree.map(lambda old, step: old - rate * step, weights, direction)
        params = {name: policy.replace(weights=weights[name]) for name, policy in state.params.items()}
        return state.replace(params=params, optimiser=optimiser)

    def _new_policy(self, key: jax.Array, group: Group, spec: LearnerSpec) -> Policy:
        network = make_actor_critic(self.network, group.action, self.needs_state)
        weights = init_weights(network, key, group.observation, spec.state if self.needs_state else None)
        view_stats = normalisation.init_tree(group.observation) if self.normalise_views else None
        value_stats = normalisation.init(()) if self.normalise_values else None
        return Policy(weights, view_stats, value_stats, network, group.movers)

    def _batch(self, policy: Policy, track: Track, experience: Experience, hyper: dict[str, jax.Array]) -> Batch:
        observation, last = track.observation, track.last_observation
        last_value = over_agents(self.value)(policy, last, track.last_memory)
        if last.present is not None:
            last_value = jnp.where(last.present, last_value, 0.0)
        advantage, target = advantages(
            reward=track.reward,
            value=track.extras["value"],
            final_value=track.final_value,
            last_value=last_value,
            terminated=experience.terminated[..., None],
            truncated=experience.truncated[..., None],
            active=observation.active,
            present=observation.present,
            gamma=hyper["gamma"],
            lam=hyper["gae_lambda"],
        )
        batch = Batch(
            observation=observation,
            action=track.action,
            log_prob=track.extras["log_prob"],
            advantage=advantage,
            target=target,
            memory=track.memory,
            first=experience.first,
            actor_weight=_float(observation.active),
            critic_weight=_float(observation.present),
        )
        return _movers_only(batch, policy)


VALUE_STATS_DECAY = 0.99
ADAM_EPS = 1e-5
CPU_CHUNK_SAMPLES = 8192


def _movers_only(batch: Batch, policy: Policy) -> Batch:
    """In turn-based games, drops the rows of those who wait. Recurrent policies keep them: their order matters."""
    observation = batch.observation
    if policy.movers is None or observation.active is None or jax.tree.leaves(batch.memory):
        return batch
    index = mover_index(observation.active, policy.movers)
    fields = ("action", "log_prob", "advantage", "target", "actor_weight", "critic_weight")
    picked = {field: pick(getattr(batch, field), index) for field in fields}
    return batch.replace(
        **picked | {"critic_weight": picked["actor_weight"]}, observation=pick_observation(observation, index)
    )


def evaluate(policy: Policy, weights: PyTree, batch: Batch) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Log-probability of the batch's actions, entropy, and value, each `[T, E, n]`, under `weights`."""
    network = policy.network
    obs = batch.observation

    def unroll(view, state, memory, first, active):
        parameters, values, _ = _apply(network, weights, view, state, memory, first, active, method="unroll")
        return parameters, values

    def single(observation):
        parameters, value, _ = _apply(network, weights, observation.view, observation.state, ())
        return parameters, value

    def judge(parameters, legal, action):
        dist = distribution(network.action, parameters, legal)
        return dist.log_prob(action), dist.entropy()

    if jax.tree.leaves(batch.memory):
        agents = jax.vmap(unroll, (1, None, 0, None, 1), 1)
        args = (obs.view, obs.state, batch.memory, batch.first, obs.active)
        parameters, values = jax.vmap(agents, (1, 1, 0, 1, 1), 1)(*args)
    else:
        parameters, values = _over_samples(single, obs)
    log_prob, entropy = jax.vmap(jax.vmap(jax.vmap(judge)))(parameters, obs.legal, batch.action)
    return log_prob, entropy, values


def _over_samples(single: Any, obs: Observation) -> Any:
    """`single` for every agent of every step. One flat axis, where it can be, makes the best matrix products."""
    shape = jax.tree.leaves(obs.view)[0].shape[:3]
    kept = 3 if obs.state is None else 2
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[kept:]), obs.replace(state=None))
    state = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), obs.state)
    lifted = jax.vmap(single if kept == 3 else jax.vmap(single, (AGENT_AXES,)))
    return jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[4 - kept :]), lifted(flat.replace(state=state)))


def chunked_gradient(loss: Any, weights: PyTree, batches: dict[str, Batch], samples: int) -> tuple[PyTree, PyTree]:
    """Gradient and auxiliary sums of `loss(weights, batches)`, a sum over environments, chunk by chunk.

    On a CPU the activations of a chunk stay in the cache, which makes the gradient 1.8 times as fast as that of a large
    batch at once; elsewhere it saves memory.
    """
    samples = samples or (CPU_CHUNK_SAMPLES if jax.default_backend() == "cpu" else 0)
    gradient = jax.grad(loss, has_aux=True)
    num_envs = next(iter(batches.values())).first.shape[1]
    per_env = sum(batch.advantage.size for batch in batches.values()) // num_envs
    fits = [n for n in range(1, num_envs + 1) if num_envs % n == 0 and n * per_env <= max(samples, per_env)]
    size = max(fits) if samples else num_envs
    if size == num_envs:
        return gradient(weights, batches)

    def add(total, chunk):
        return jax.tree.map(jnp.add, total, gradient(weights, take_envs(batches, chunk))), None

    chunks = jnp.arange(num_envs).reshape(-1, size)
    shapes = jax.eval_shape(gradient, weights, batches)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return lax.scan(add, zeros, chunks)[0]


def take_envs(batches: dict[str, Batch], index: jax.Array) -> dict[str, Batch]:
    """The environments `index` of each group's batch."""

    def one(batch: Batch) -> Batch:
        timed = jax.tree.map(lambda leaf: leaf[:, index], batch.replace(memory=()))
        return timed.replace(memory=jax.tree.map(lambda leaf: leaf[index], batch.memory))

    return {name: one(batch) for name, batch in batches.items()}


def total_weights(batch: Batch, axis: str | None) -> tuple[jax.Array, jax.Array]:
    """Decisions and views that count, over all devices; at least 1, so that an empty batch gives 0 and not NaN."""
    sizes = [
        weighted_sum(jnp.ones_like(batch.advantage), weight) for weight in (batch.actor_weight, batch.critic_weight)
    ]
    actor, critic = lax.psum(sizes, axis) if axis else sizes
    return jnp.maximum(actor, 1.0), jnp.maximum(critic, 1.0)


def weighted_sum(values: jax.Array, weight: jax.Array | None) -> jax.Array:
    return jnp.sum(values if weight is None else values * weight)


def normalise_advantage(batch: Batch, axis: str | None) -> Batch:
    """Advantages with zero mean and unit variance over the decisions of the batch, on all devices."""
    add = (lambda x: lax.psum(x, axis)) if axis else (lambda x: x)
    total, _ = total_weights(batch, axis)
    mean = add(weighted_sum(batch.advantage, batch.actor_weight)) / total
    variance = add(weighted_sum(jnp.square(batch.advantage - mean), batch.actor_weight)) / total
    return batch.replace(advantage=(batch.advantage - mean) / jnp.sqrt(variance + 1e-8))


def combine(gradients: PyTree, metrics: PyTree, axis: str | None) -> tuple[PyTree, PyTree]:
    """Sums over devices: losses are already divided by the weight on all of them."""
    return lax.psum((gradients, metrics), axis) if axis else (gradients, metrics)


def weights_of(state: LearnerState) -> dict[str, PyTree]:
    """The trainable weights, by group."""
    return _weights(state.params)


def _weights(params: dict[str, Policy]) -> dict[str, PyTree]:
    return {name: policy.weights for name, policy in params.items()}


def _optimiser(hyper: dict[str, Any]) -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(hyper["max_grad_norm"]), optax.scale_by_adam(eps=ADAM_EPS))


def _apply(network: ActorCritic, weights: PyTree, *args: PyTree, method: str | None = None) -> Any:
    return network.apply(weights, *args, method=method)


def _normalised_view(policy: Policy, view: PyTree) -> PyTree:
    return view if policy.view_stats is None else normalisation.normalise_tree(policy.view_stats, view)


def _natural_value(policy: Policy, value: jax.Array) -> jax.Array:
    return value if policy.value_stats is None else normalisation.denormalise(policy.value_stats, value)


def _float(mask: jax.Array | None) -> jax.Array | None:
    return None if mask is None else mask.astype(jnp.float32)
