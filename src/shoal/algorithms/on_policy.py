"""The base of A2C, PPO and Impala: policies with an actor and a critic, batches with advantages, gradient steps.

An algorithm derives from `OnPolicy` and adds two methods: `loss`, the whole loss on a batch, and `update`, made of
`prepare` (advantages and value targets), `step` (one gradient step) and `count_update`. The critic sees the agent's own
observation (independent learners, IPPO) or the global state as well (centralised critic, MAPPO). Values are each
agent's own or a team's: see `vdac`. Recurrence is a choice of the network.

Shape letters: `T` time, `E` environments, `n` agents of a group.
"""

import abc
import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import struct

from shoal.algorithms.vdac import TEAM, OwnValues, Team, TeamValue
from shoal.batching.agents import mover_index, over_agents, pick, pick_observation
from shoal.core.algorithm import (
    ActOutput,
    Algorithm,
    EstimatesKL,
    Evolves,
    Experience,
    LearnerSpec,
    NormalisesViews,
    Stochastic,
    Traits,
    Trajectory,
)
from shoal.core.checks import check_floats, check_types, check_whole
from shoal.core.contract import checked_loss
from shoal.core.types import Group, Observation, PyTree
from shoal.networks import Network, init_weights, make_actor_critic
from shoal.networks.actor_critic import ACTING_PARTS, ActorCritic, Evaluation, apply_network, evaluate_actions
from shoal.networks.mixers import MixerKind
from shoal.ops import losses, normalisation
from shoal.ops.devices import after, sum_over_devices
from shoal.ops.distributions import Categorical, Distribution, MultiCategorical, distribution
from shoal.ops.gradients import adam, anneal, apply_gradients, chunked_gradient
from shoal.ops.returns import advantages


class Policy(struct.PyTreeNode):
    """One group's policy: weights, the statistics its inputs and values are normalised by, and its network."""

    weights: PyTree
    view_stats: PyTree
    value_stats: PyTree
    network: ActorCritic = struct.field(pytree_node=False)
    movers: int | None = struct.field(pytree_node=False, default=None)

    def forward(self, observation: Observation, memory: PyTree) -> tuple[Distribution, jax.Array, PyTree]:
        """One agent's distribution over actions, its value in units of reward, and its memory after."""
        view = normalisation.normalise_tree(self.view_stats, observation.view)
        parameters, value, memory = apply_network(self.network, self.weights, view, observation.state, memory)
        actions = distribution(self.network.action, parameters, observation.legal)
        return actions, normalisation.denormalise(self.value_stats, value), memory


class LearnerState(struct.PyTreeNode):
    """Everything a learner carries from update to update."""

    params: dict[str, Policy]
    optimiser: PyTree
    hyper: dict[str, jax.Array]  # the float options, traced
    updates: jax.Array
    team: Team | None = None  # the mixer of the agents' values; None without one

    @property
    def weights(self) -> dict[str, PyTree]:
        """All trained weights: those of the policies, by group, and of a mixer."""
        weights = {name: policy.weights for name, policy in self.params.items()}
        mixer = self.team.weights if self.team else ()
        return weights | {TEAM: mixer} if jax.tree.leaves(mixer) else weights

    @property
    def statistics(self) -> PyTree:
        """All running statistics."""
        return [(policy.view_stats, policy.value_stats) for policy in self.params.values()], (
            self.team and self.team.value_stats
        )

    def with_weights(self, weights: dict[str, PyTree]) -> "LearnerState":
        params = {name: policy.replace(weights=weights[name]) for name, policy in self.params.items()}
        return self.replace(params=params, team=self.team and self.team.replace(weights=weights.get(TEAM, ())))


class Batch(struct.PyTreeNode):
    """The inputs of a group's loss; leaves are `[T, E, n, ...]`.

    In turn-based games feed-forward policies learn from the moving agents only: `n` is then their number.
    """

    observation: Observation  # as the network sees it
    action: jax.Array
    extras: dict[str, jax.Array]  # everything that `act` recorded
    advantage: jax.Array
    target: jax.Array  # of the value, in the units of the network
    active: jax.Array | None  # whose actions count; None: all agents'
    present: jax.Array | None  # whose values count
    first: jax.Array  # [T, E]: an episode begins here
    memory: PyTree  # [E, n, ...], before the first step
    last_observation: Observation  # [E, n, ...], after the last step
    last_memory: PyTree
    inputs: dict[str, Any]  # rewards and ends of the whole group, as the functions of `ops.returns` take them
    movers: jax.Array | None = None  # [T, E, n]: which agents these are; None: the whole group
    num_active: Any = None  # actions that count, in all chunks and on all devices
    num_present: Any = None  # values that count, likewise

    @property
    def log_prob(self) -> jax.Array:
        """Log-probability of the actions under the policy that acted."""
        return self.extras["log_prob"]

    def mean_active(self, values: jax.Array) -> jax.Array:
        """The mean over all decisions; on a chunk or a device, its share of that."""
        return _masked_sum(values, self.active) / self.num_active

    def mean_present(self, values: jax.Array) -> jax.Array:
        """The mean over all agents that are present; on a chunk or a device, its share of that."""
        return _masked_sum(values, self.present) / self.num_present

    def count(self, axis: str | None) -> "Batch":
        """With the divisors of means; at least 1, so that an empty batch gives 0 and not NaN."""
        actions = _masked_sum(jnp.ones_like(self.advantage), self.active)
        values = _masked_sum(jnp.ones_like(self.target), self.present)
        actions, values = sum_over_devices((actions, values), axis)
        return self.replace(num_active=jnp.maximum(actions, 1.0), num_present=jnp.maximum(values, 1.0))

    def normalise_advantage(self, axis: str | None) -> "Batch":
        """With advantages of zero mean and unit variance."""
        mean = sum_over_devices(_masked_sum(self.advantage, self.active), axis) / self.num_active
        squares = _masked_sum(jnp.square(self.advantage - mean), self.active)
        variance = sum_over_devices(squares, axis) / self.num_active
        return self.replace(advantage=(self.advantage - mean) / jnp.sqrt(variance + 1e-8))

    def take(self, envs: jax.Array) -> "Batch":
        """Some of the environments."""
        by_env = {name: getattr(self, name) for name in ("memory", "last_observation", "last_memory")}
        totals = {"num_active": self.num_active, "num_present": self.num_present}
        by_time = self.replace(**dict.fromkeys(by_env | totals))
        by_time, by_env = jax.tree.map(lambda x: x[:, envs], by_time), jax.tree.map(lambda x: x[envs], by_env)
        return by_time.replace(**by_env, **totals)

    def pick(self, index: jax.Array) -> "Batch":
        """Some of the agents, `[T, E, m]`."""
        names = ("action", "extras", "advantage", "target", "active", "present")
        picked = pick({name: getattr(self, name) for name in names}, index)
        return self.replace(**picked, observation=pick_observation(self.observation, index), movers=index)

    def evaluate(self, network: ActorCritic, weights: PyTree) -> Evaluation:
        """The outputs of `weights` for the actions."""
        return evaluate_actions(network, weights, self.observation, self.action, self.memory, self.first)


Batches = dict[str, Batch]  # by group, and the team's if it has one
Evaluations = dict[str, Evaluation]
Metrics = dict[str, jax.Array]


def _masked_sum(values: jax.Array, mask: jax.Array | None) -> jax.Array:
    return jnp.sum(values if mask is None else values * mask)


def take_envs(batches: Batches, envs: jax.Array) -> Batches:
    """The environments `envs` of each batch."""
    return {name: batch.take(envs) for name, batch in batches.items()}


def make_batch(policy: Policy, trajectory: Trajectory, experience: Experience, all_agents: bool) -> Batch:
    """A group's batch, without advantages and targets yet. all_agents: also those waiting in turn-based games."""
    seen, last, zeros = trajectory.observation, trajectory.last_observation, jnp.zeros_like(trajectory.reward)
    last = last.replace(view=normalisation.normalise_tree(policy.view_stats, last.view))
    masks = {"active": seen.active, "present": seen.present}
    ends = {"terminated": experience.terminated[..., None], "truncated": experience.truncated[..., None]}
    batch = Batch(
        observation=seen,
        action=trajectory.action,
        extras=trajectory.extras,
        advantage=zeros,
        target=zeros,
        active=seen.active,
        present=seen.present,
        first=experience.first,
        memory=trajectory.memory,
        last_observation=last,
        last_memory=trajectory.last_memory,
        inputs={"reward": trajectory.reward, "final_value": trajectory.final_value, **ends, **masks},
    )
    recurrent = jax.tree.leaves(trajectory.memory)  # then waiting agents are kept: the order of steps matters
    if not (all_agents or policy.movers is None or seen.active is None or recurrent):
        batch = batch.pick(mover_index(seen.active, policy.movers))
        batch = batch.replace(present=batch.active)
    view = normalisation.normalise_tree(policy.view_stats, batch.observation.view)
    return batch.replace(observation=batch.observation.replace(view=view))


@dataclasses.dataclass(frozen=True)
class OnPolicy(Algorithm, Stochastic, EstimatesKL, Evolves, NormalisesViews):
    """Options and methods common to all (abstract: `loss` and `update` are missing)."""

    learning_rate: float = 3e-4  # Adam's step size
    gamma: float = 0.99  # discount per environment step
    gae_lambda: float = 0.95  # trace decay per own decision
    value_coef: float = 0.5  # weight of the value loss
    entropy_coef: float = 0.01  # weight of the entropy bonus
    max_grad_norm: float = 0.5  # gradients are scaled down to this norm
    anneal: bool = False  # learning rate falls linearly to 0
    critic: Literal["own", "global"] = "own"  # inputs of the critic: own view, or the global state too
    mixer: MixerKind = "none"  # how the agents' values make up the team's (VDAC); none: independent agents
    normalise_views: bool = False  # running mean and variance of the views
    normalise_values: bool = False  # running mean and variance of the value targets
    normalise_advantages: bool = True  # zero mean, unit variance in each minibatch
    chunk_samples: int = 0  # samples per gradient computation; 0: chosen for the device
    network: Network = dataclasses.field(default_factory=Network)  # torsos of actor and critic

    def __post_init__(self):
        check_types(self)
        check_floats(self, gamma=(0, 1), gae_lambda=(0, 1), learning_rate=(0, None), value_coef=(0, None))
        check_floats(self, entropy_coef=(0, None), max_grad_norm=(0, None))
        check_whole(self, chunk_samples=0)

    @property
    def traits(self) -> Traits:
        statistics = tuple(name for name in ("normalise_views", "normalise_values") if getattr(self, name))
        needs_global_state = self.critic == "global" or self.mixer == "monotonic"
        return Traits(needs_global_state=needs_global_state, running_statistics=statistics)

    @property
    def values(self) -> OwnValues | TeamValue:
        """Values per agent, or per team."""
        return OwnValues() if self.mixer == "none" else TeamValue(self.mixer)

    def init(self, key: jax.Array, spec: LearnerSpec) -> LearnerState:
        """Fresh policies for the groups of `spec`."""
        keys = jax.random.split(key, len(spec.groups))
        groups = zip(keys, spec.groups.items(), strict=True)
        params = {name: self.init_policy(own, group, spec) for own, (name, group) in groups}
        team = self.values.init(jax.random.fold_in(key, len(keys)), spec, self.normalise_values)
        state = LearnerState(params, None, self.hyper(spec), jnp.int32(0), team)
        return state.replace(optimiser=adam(self.max_grad_norm).init(state.weights))

    def init_policy(self, key: jax.Array, group: Group, spec: LearnerSpec) -> Policy:
        """A fresh policy for one group."""
        network = make_actor_critic(self.network, group.action, self.critic == "global")
        weights = init_weights(network, key, group.observation, spec.state if network.uses_state else None)
        view_stats = normalisation.init_tree(group.observation) if self.normalise_views else None
        value_stats = normalisation.init(()) if self.normalise_values and self.values.individual else None
        return Policy(weights, view_stats, value_stats, network, group.movers)

    def initial_memory(self, params: Policy) -> PyTree:
        return params.network.initial_memory()

    def act(self, params: Policy, observation: Observation, memory: PyTree, key: jax.Array, explore: bool) -> ActOutput:
        """One agent's action, with its log-probability and value. Greedy if not `explore`."""
        actions, value, memory = params.forward(observation, memory)
        if explore and isinstance(actions, Categorical | MultiCategorical):
            action, log_prob = actions.sample_and_log_prob(key)
        else:  # of a box, as `loss` sees it: computed from the action itself
            action = actions.sample(key) if explore else actions.mode()
            log_prob = actions.log_prob(action)
        return ActOutput(action, memory, {"log_prob": log_prob, "value": value})

    def action_probabilities(
        self, params: Policy, observation: Observation, memory: PyTree
    ) -> tuple[jax.Array, PyTree]:
        """How likely one agent takes each action of a discrete space, and its memory after."""
        actions, _, memory = params.forward(observation, memory)
        return jax.nn.softmax(actions.logits), memory  # pyright: ignore[reportAttributeAccessIssue]

    def value(self, params: Policy, observation: Observation, memory: PyTree) -> jax.Array:
        """One agent's expected return from here on."""
        view = normalisation.normalise_tree(params.view_stats, observation.view)
        value, _ = apply_network(params.network, params.weights, view, observation.state, memory, method="critic")
        return normalisation.denormalise(params.value_stats, value)

    def acting_weights(self, params: Policy) -> PyTree:
        return {name: params.weights["params"][name] for name in ACTING_PARTS if name in params.weights["params"]}

    def with_acting_weights(self, params: Policy, weights: PyTree) -> Policy:
        return params.replace(weights=params.weights | {"params": params.weights["params"] | weights})

    def prepare(
        self, state: LearnerState, experience: Experience, axis: str | None = None
    ) -> tuple[LearnerState, Batches]:
        """Each group's batch, with advantages (GAE) and value targets; running statistics are updated."""
        self = self.traced(state.hyper)
        batches, known = {}, {}
        for name, trajectory in experience.trajectories.items():
            policy = state.params[name]
            batch = batches[name] = make_batch(policy, trajectory, experience, not self.values.individual)
            value = self.values.read_values(policy, trajectory, batch)
            known[name] = {"value": value, "last_value": self.last_value(policy, batch)}

        def gae(inputs):
            return advantages(**inputs, gamma=self.gamma, lam=self.gae_lambda)

        batches = self.values.add_returns(gae, state, batches, known)
        if self.normalise_values:
            state = self.values.update_stats(state, batches, axis)
            batches = self.values.normalise_targets(state, batches)
        if self.normalise_views:  # this batch keeps the statistics used for acting
            params = {}
            for name, policy in state.params.items():
                seen = experience.trajectories[name].observation
                stats = normalisation.update_tree(policy.view_stats, seen.view, seen.present, axis=axis)
                params[name] = policy.replace(view_stats=stats)
            state = state.replace(params=params)
        return state, batches

    def last_value(self, policy: Policy, batch: Batch) -> jax.Array:
        """Values `[E, n]` of the observations after the last step, 0 for agents that have left."""
        seen = batch.last_observation  # normalised already
        value = over_agents(self.value)(policy.replace(view_stats=None), seen, batch.last_memory)
        return value if seen.present is None else jnp.where(seen.present, value, 0.0)

    @abc.abstractmethod
    def loss(self, new: Evaluation, batch: Batch) -> tuple[jax.Array, Metrics]:
        """The whole loss on a batch, and metrics. new: the outputs of the current weights on it.

        Means are taken by `batch.mean_active` and `batch.mean_present`, which account for masks, chunks and devices.
        """

    def evaluate(self, state: LearnerState, weights: PyTree, batches: Batches) -> tuple[Evaluations, Batches]:
        """The outputs of `weights` on each group's batch; and the batches, whose returns may depend on them."""
        groups = {name: batch for name, batch in batches.items() if name in state.params}
        return {n: batch.evaluate(state.params[n].network, weights[n]) for n, batch in groups.items()}, batches

    def gradients(self, state: LearnerState, batches: Batches, axis: str | None = None) -> tuple[PyTree, Metrics]:
        """Gradients of the loss on the batches, and metrics; summed over devices."""
        self = self.traced(state.hyper)
        with after(state.statistics, axis):
            batches = {name: batch.count(axis) for name, batch in batches.items()}
        if self.normalise_advantages:
            batches = {name: batch.normalise_advantage(axis) for name, batch in batches.items()}

        def total_loss(weights, batches):
            new, batches = self.evaluate(state, weights, batches)
            new = self.values.join_values(weights, new, batches)
            losses, metrics = [], {}
            for name, batch in batches.items():
                loss, metrics[name] = checked_loss(self, self.loss(new[name], batch))
                losses.append(loss)
            return jnp.asarray(sum(losses)), self.values.label(metrics)

        num_envs = next(iter(batches.values())).first.shape[1]
        samples = sum(batch.advantage.size for batch in batches.values()) // num_envs
        found = chunked_gradient(total_loss, state.weights, batches, take_envs, num_envs, samples, self.chunk_samples)
        return sum_over_devices(found, axis)

    def apply(self, state: LearnerState, gradients: PyTree) -> LearnerState:
        """The state after one step of Adam along gradients of the weights."""
        self = self.traced(state.hyper)
        rate = self.learning_rate
        if self.anneal:
            rate = anneal(rate, state.updates, state.hyper["total_updates"])
        weights, optimiser = apply_gradients(state.weights, gradients, state.optimiser, self.max_grad_norm, rate)
        return state.with_weights(weights).replace(optimiser=optimiser)

    def step(self, state: LearnerState, batches: Batches, axis: str | None = None) -> tuple[LearnerState, Metrics]:
        """One gradient step on the batches, and metrics."""
        gradients, metrics = self.gradients(state, batches, axis)
        return self.apply(state, gradients), metrics

    def count_update(self, state: LearnerState) -> LearnerState:
        """The state after one more update."""
        return state.replace(updates=state.updates + 1)

    def approx_kl(self, state: LearnerState, experience: Experience) -> jax.Array:
        """KL of the policy that acted from the newest, estimated on experience; the largest over the groups."""
        state, batches = self.prepare(state, experience)
        new, batches = self.evaluate(state, state.weights, batches)
        kl = {name: losses.approx_kl(new[name].log_prob - batches[name].log_prob) for name in new}
        return jnp.max(jnp.stack([batches[name].count(None).mean_active(kl[name]) for name in new]))
