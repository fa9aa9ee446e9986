"""The base of DDPG and SAC: actors, critics of their actions, target networks, and windows of a replay.

An algorithm derives from `OffPolicy` and adds `choose_action` and `loss`. A learner is a set of actors, one per group,
and of critics (see `networks.critics`). An inactive agent does nothing: critics get zeros for its action, and are
trained there as well, so that values propagate through the observations of waiting agents. Agents that are not present
do not count. With a recurrent network, actor and critics each have a memory: it is stored with the steps and refreshed
over the first rows of a window (burn-in), and the observation after a row is evaluated with the memory after it.

Shape letters: those of `replay`, and `K` critics.
"""

import abc
import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from shoal.algorithms.replay import ByGroup, Metrics, Observations, Replayed, Steps, next_observations
from shoal.batching.agents import keep_where, with_state
from shoal.core import trees
from shoal.core.algorithm import ActOutput, Evolves, Experience, LearnerSpec, Traits
from shoal.core.checks import check_floats, check_types
from shoal.core.errors import OptionError
from shoal.core.spaces import ActionSpace, Box, action_vector, action_width
from shoal.core.types import Group, Observation, PyTree
from shoal.networks.actors import ActorNetwork
from shoal.networks.critics import CriticHead, CriticKind, CriticTorso, GroupSpec
from shoal.networks.sequences import unroll_with_slow
from shoal.networks.torsos import Network, initial_carry
from shoal.ops import replay as buffers
from shoal.ops.devices import mean_over_devices
from shoal.ops.distributions import random_action
from shoal.ops.gradients import adam, apply_gradients

Weights = dict[str, PyTree]


class Policy(struct.PyTreeNode):
    """One group's policy. weights: of its `actor`, and of its critics' torsos, which may have memories.

    warm: false while it plays at random, to fill the replay. noise: how much it explores.
    """

    weights: Weights
    warm: jax.Array
    noise: jax.Array
    actor: ActorNetwork = struct.field(pytree_node=False)
    critic: CriticTorso = struct.field(pytree_node=False)
    space: ActionSpace = struct.field(pytree_node=False)


class LearnerState(struct.PyTreeNode):
    """Everything a learner carries.

    join: weights of the critics' heads, and head: their module. extra: other trained weights. target: slow copies of
    weights. steps: gradient steps made.
    """

    params: dict[str, Policy]
    join: PyTree
    extra: PyTree
    target: Weights
    optimiser: dict[str, PyTree]
    hyper: dict[str, jax.Array]
    updates: jax.Array
    steps: jax.Array
    replay: buffers.Replay
    head: CriticHead = struct.field(pytree_node=False)

    @property
    def spaces(self) -> dict[str, ActionSpace]:
        return {name: policy.space for name, policy in self.params.items()}

    @property
    def weights(self) -> Weights:
        """All trained weights."""
        torsos = {name: policy.weights["critic"] for name, policy in self.params.items()}
        actor = {name: policy.weights["actor"] for name, policy in self.params.items()}
        return {"actor": actor, "critic": {"trunk": torsos, "join": self.join}, "extra": self.extra}

    def with_weights(self, weights: Weights) -> "LearnerState":
        """The state with other trained weights."""
        actor, critic = weights["actor"], weights["critic"]
        params = {
            name: policy.replace(weights={"actor": actor[name], "critic": critic["trunk"][name]})
            for name, policy in self.params.items()
        }
        return self.replace(params=params, join=critic["join"], extra=weights["extra"])

    def q_values(self, critic: PyTree, features: ByGroup, seen: Observations, own: ByGroup, others: ByGroup) -> ByGroup:
        """Q(s, a) by each critic, `[K, S, B, n, values]`, of each agent's `own` action, given the `others`' actions."""
        present = {name: observation.present for name, observation in seen.items()}
        each = jax.vmap(lambda weights, features: self.head.apply(weights, features, own, others, present))
        return each(critic["join"], features)  # pyright: ignore[reportReturnType]


@dataclasses.dataclass(frozen=True)
class OffPolicy(Replayed, Evolves):
    """Options and methods common to DDPG and SAC (abstract)."""

    has_target_actor: ClassVar[bool] = False
    """Whether the actions in targets are chosen by slow copies of the actors."""
    values_every_choice: ClassVar[bool] = False
    """Whether critics output a value for each choice of a discrete action, instead of taking it as input."""

    learning_rate: float = 1e-3  # Adam's step size for the critics
    actor_learning_rate: float = 5e-4  # Adam's step size for the actors
    max_grad_norm: float = 10.0  # gradients of the actors, and those of the critics, are scaled down to this norm
    target_rate: float = 0.01  # share of the way that the target networks move per gradient step
    warm_up: int = 2_000  # environment steps with random actions before learning begins
    critic: CriticKind = "own"  # own view and action, global state and all actions too, or attention to the others
    network: Network = dataclasses.field(default_factory=Network)  # torsos of actors and critics

    def __post_init__(self):
        check_types(self)
        unit, positive = (0.0, 1.0), (0.0, None)
        check_floats(self, learning_rate=positive, actor_learning_rate=positive, gamma=unit, max_grad_norm=positive)
        check_floats(self, target_rate=unit)
        self.check_replay()

    @property
    def num_critics(self) -> int:
        """Critics of each action: the lower of two is used, unless an algorithm says otherwise."""
        return 2

    @property
    def noise(self) -> float:
        """How much its policies explore."""
        return 0.0

    @abc.abstractmethod
    def actor_width(self, space: ActionSpace) -> int:
        """The number of outputs of an actor."""

    @abc.abstractmethod
    def choose_action(
        self, policy: Policy, parameters: jax.Array, legal: jax.Array | None, key: jax.Array, explore: bool
    ) -> jax.Array:
        """One agent's action, from its actor's outputs."""

    @abc.abstractmethod
    def loss(self, weights: Weights, state: LearnerState, windows: Steps, key: jax.Array) -> tuple[jax.Array, Metrics]:
        """The whole loss on windows, and metrics. weights: those of the state, which are differentiated."""

    @property
    def traits(self) -> Traits:
        return self.make_traits(self.critic == "global")

    def init_state(self, key: jax.Array, spec: LearnerSpec, extra: PyTree = ()) -> LearnerState:
        """Fresh actors and critics for the groups of `spec`, and an empty replay. extra: other trained weights."""
        for_head, *keys = jax.random.split(key, len(spec.groups) + 1)
        params, groups, features = {}, [], {}
        for k, (name, group) in zip(keys, spec.groups.items(), strict=True):
            space = group.action
            if isinstance(space, Box) and not space.is_bounded:
                raise OptionError(
                    f"{type(self).__name__}: the action space of {name!r}, {space}, must have finite bounds with low < "
                    "high, into which actions are squashed. For one without bounds use PPO, A2C or Impala."
                )
            params[name], features[name] = self.init_policy(k, group, spec)
            width, several = action_width(space), self.values_every_choice and not isinstance(space, Box)
            groups.append(GroupSpec(name, group.size, width, width if several else 1))
        head = CriticHead(self.critic, self.network, tuple(groups))
        zeros = {group.name: jnp.zeros((group.size, group.action_width)) for group in groups}
        inputs = features, zeros, zeros, dict.fromkeys(features)
        join = trees.stack([head.init(k, *inputs) for k in jax.random.split(for_head, self.num_critics)])
        replay, zero = buffers.init(*self.replay_shape(spec)), jnp.int32(0)
        state = LearnerState(params, join, extra, {}, {}, self.hyper(spec), zero, zero, replay, head)
        adams = {part: adam(self.max_grad_norm).init(tree) for part, tree in state.weights.items() if tree}
        return state.replace(target=self.slow_parts(state.weights), optimiser=adams)

    def init_policy(self, key: jax.Array, group: Group, spec: LearnerSpec) -> tuple[Policy, jax.Array]:
        """A fresh policy for one group; and zeros with the shape of one of its critics' features, `[n, f]`."""
        for_actor, *keys = jax.random.split(key, self.num_critics + 1)
        actor, critic = ActorNetwork(self.network, self.actor_width(group.action)), CriticTorso(self.network)
        view, state = trees.zeros((group.observation, spec.state))
        seen, memory = (state, view) if self.critic == "global" else view, initial_carry(self.network)
        # Not `vmap`: see `trees.map_in_turn`.
        torsos = [critic.init(k, seen, memory) for k in keys]
        weights = {"actor": actor.init(for_actor, view, memory), "critic": trees.stack(torsos)}
        shape = jax.eval_shape(lambda: critic.apply(torsos[0], seen, memory)[0]).shape
        policy = Policy(weights, jnp.asarray(False), jnp.float32(self.noise), actor, critic, group.action)
        return policy, jnp.zeros((group.size, *shape))

    def slow_parts(self, weights: Weights) -> Weights:
        """The weights that have target copies."""
        return {part: weights[part] for part in (("actor", "critic") if self.has_target_actor else ("critic",))}

    def fresh_memory(self) -> PyTree:
        one = initial_carry(self.network)
        return {"actor": one, "critic": trees.stack([one] * self.num_critics)} if self.network.has_memory else ()

    def act(self, params: Policy, observation: Observation, memory: PyTree, key: jax.Array, explore: bool) -> ActOutput:
        """One agent's action: any legal one while the replay is filled, then the policy's."""
        for_random, for_policy = jax.random.split(key)
        weights, carry = params.weights, memory["actor"] if memory else ()
        parameters, carry = params.actor.apply(weights["actor"], observation.view, carry)  # pyright: ignore[reportAssignmentType]
        if memory:
            seen = (observation.state, observation.view) if self.critic == "global" else observation.view
            move = jax.vmap(lambda weights, carry: params.critic.apply(weights, seen, carry)[1])
            memory = {"actor": carry, "critic": move(weights["critic"], memory["critic"])}
        action = self.choose_action(params, parameters, observation.legal, for_policy, explore)
        if explore:
            action = jnp.where(params.warm, action, random_action(params.space, observation.legal, for_random))
        return ActOutput(action, memory)

    def value(self, params: Policy, observation: Observation, memory: PyTree) -> jax.Array:
        """Not used: final observations are stored, and valued when windows are drawn."""
        return jnp.float32(0.0)

    def acting_weights(self, params: Policy) -> PyTree:
        return params.weights["actor"]

    def with_acting_weights(self, params: Policy, weights: PyTree) -> Policy:
        return params.replace(weights=params.weights | {"actor": weights})

    def forward(
        self, weights: Weights, state: LearnerState, windows: Steps
    ) -> tuple[ByGroup, ByGroup, ByGroup, ByGroup]:
        """The actors' outputs, `[S, B, n, width]`, and the features of the critics' torsos, `[K, S, B, n, f]`.

        Then both for the observation after each row, by the target networks if there are any: `T` in place of `S`.
        """
        following, out = next_observations(windows), ({}, {}, {}, {})

        def unroll(network, seen, after, weights, slow, memory):
            now, ahead = unroll_with_slow(network, weights, slow, memory, seen, after, windows.first, self.burn_in)
            return now[: self.sequence], ahead

        for name, policy in state.params.items():
            seen, after = windows.observation[name], following.observation[name]
            memory = trees.row(windows.memory[name]) or {"actor": (), "critic": ()}
            both = weights["actor"][name], state.target.get("actor", weights["actor"])[name]
            out[0][name], out[2][name] = unroll(policy.actor, seen, after, *both, memory["actor"])
            shown = with_state(seen, windows.state), with_state(after, following.state)
            both = weights["critic"]["trunk"][name], state.target["critic"]["trunk"][name]
            each = functools.partial(unroll, policy.critic, *shown)
            each = jax.vmap(each, (0, 0, 2), axis_size=self.num_critics)  # memories are stored as [B, n, K, ...]
            out[1][name], out[3][name] = each(*both, memory["critic"])
        return out

    def update(
        self, state: LearnerState, experience: Experience, key: jax.Array, axis: str | None = None
    ) -> tuple[LearnerState, Metrics]:
        """Stores the experience; then every step draws windows and descends the loss, and the slow networks follow."""
        self = self.traced(state.hyper)
        state = self.store(state, experience)

        def step(state, key):
            for_windows, for_actions = jax.random.split(key)
            _, windows = self.sample(state, for_windows, axis)
            gradients, metrics = self.gradients(state, windows, for_actions, axis)
            return self.apply(state, gradients), metrics

        state, metrics = self.repeat_when_warm(step, state, key, axis)
        return self.count_update(state, axis), metrics

    def returns(self, rows: Steps, following: Observations, next_value: ByGroup) -> ByGroup:
        """Targets r + γ r' + ... + γ^n V(s⁽ⁿ⁾) of the trained rows, `[S, B, n]`. next_value: `[T, B, n]`."""
        targets = {}
        for name, value in next_value.items():
            seen, value = rows.observation[name], keep_where(following[name].present, value)
            targets[name] = self.n_step_targets(rows, rows.reward[name], value, seen.active, seen.present)
        return targets

    def gradients(
        self, state: LearnerState, windows: Steps, key: jax.Array, axis: str | None = None
    ) -> tuple[PyTree, Metrics]:
        """Gradients of the loss on windows, and metrics; means over devices."""
        self = self.traced(state.hyper)
        found = jax.grad(self.loss, has_aux=True)(state.weights, state, windows, key)
        return mean_over_devices(found, axis)

    def apply(self, state: LearnerState, gradients: PyTree) -> LearnerState:
        """One step of Adam; the slow networks follow."""
        self = self.traced(state.hyper)
        new, optimiser = dict(state.weights), {}
        for part, old in state.optimiser.items():
            rate = self.actor_learning_rate if part == "actor" else self.learning_rate
            new[part], optimiser[part] = apply_gradients(new[part], gradients[part], old, self.max_grad_norm, rate)
        target = trees.polyak_update(state.target, self.slow_parts(new), self.target_rate)
        return state.with_weights(new).replace(target=target, optimiser=optimiser, steps=state.steps + 1)

    def count_update(self, state: LearnerState, axis: str | None) -> LearnerState:
        """The state after one more update; its policies know whether the replay is warm, and how much to explore."""
        warm, noise = self.is_warm(state.replay, axis), jnp.float32(self.noise)
        params = {name: policy.replace(warm=warm, noise=noise) for name, policy in state.params.items()}
        return state.replace(params=params, updates=state.updates + 1)


def taken_actions(spaces: dict[str, ActionSpace], rows: Steps) -> ByGroup:
    """The actions that were taken, as critics see them."""
    seen = rows.observation
    return {g: keep_where(seen[g].active, action_vector(space, rows.action[g])) for g, space in spaces.items()}
