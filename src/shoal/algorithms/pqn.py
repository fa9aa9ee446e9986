"""Parallel Q-learning without a replay or a target network: λ-returns over fresh experience of many copies.

    G_t = r_t + γ ((1 - λ) max_a Q(s_{t+1}, a) + λ G_{t+1}),    loss = (Q(s_t, a_t) - G_t)²

Layer normalisation keeps it stable in place of target networks, and thousands of copies in place of a replay: the most
sample- and time-efficient choice for discrete team games here. Paper: Gallici et al. 2025; a mixer makes it VDN
(Sunehag et al. 2018) or QMIX (Rashid et al. 2018). Departures: minibatches are made of whole environments; Adam instead
of RAdam; λ counts own decisions; truncated episodes bootstrap from their real final observation; a team's reward is the
mean of its agents'. Shape letters: `T` time, `E` environments, `n` agents of a group.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from shoal.algorithms import q_learning as q
from shoal.algorithms.q_learning import QLearning, QPolicy
from shoal.batching.agents import as_weight, keep_where, over_agents
from shoal.core.algorithm import ActOutput, Experience, LearnerSpec, Traits
from shoal.core.checks import check_floats, check_whole
from shoal.core.types import Observation, PyTree
from shoal.networks.sequences import unroll
from shoal.networks.torsos import Network
from shoal.ops.devices import sum_over_devices
from shoal.ops.gradients import adam, chunked_gradient, shuffle_envs
from shoal.ops.returns import lambda_returns
from shoal.ops.scan_metrics import pack_metrics

TEAM = "team"
"""The key of the whole team's targets in a batch."""
NORMED = Network(hidden=(128, 128), activation="relu", layer_norm=True)


class LearnerState(struct.PyTreeNode):
    """Everything a learner carries from update to update. `mixer`: its weights."""

    params: dict[str, QPolicy]
    mixer: PyTree
    optimiser: PyTree
    hyper: dict[str, jax.Array]
    updates: jax.Array


class Batch(struct.PyTreeNode):
    """The inputs of the loss, by group; leaves are `[T, E, n, ...]`, memory `[E, n, ...]`.

    target: the λ-returns of actions; with a mixer there is one for the whole team, `[T, E]`. extras: everything that
    `act` recorded.
    """

    observation: dict[str, Observation]
    action: dict[str, jax.Array]
    target: dict[str, jax.Array]
    extras: dict[str, dict[str, jax.Array]]
    memory: dict[str, PyTree]
    state: PyTree
    first: jax.Array  # [T, E]

    def take(self, envs: jax.Array) -> "Batch":
        """The part of some environments."""
        timed = jax.tree.map(lambda leaf: leaf[:, envs], self.replace(memory=()))
        return timed.replace(memory=jax.tree.map(lambda leaf: leaf[envs], self.memory))

    def weight(self, name: str) -> jax.Array:
        """Which targets count: those of agents that are present, and of teams."""
        target = self.target[name]
        return as_weight(None if name == TEAM else self.observation[name].present, target)


@dataclasses.dataclass(frozen=True)
class PQN(QLearning):
    """Action values from fresh experience."""

    name: ClassVar[str] = "pqn"

    learning_rate: float = 1e-3  # Adam's step size
    trace_lambda: float = 0.65  # trace decay per own decision
    anneal: bool = True  # learning rate falls linearly to 0
    epochs: int = 2  # passes over the batch
    minibatches: int = 4  # parts each pass is cut into; must divide the number of copies
    chunk_samples: int = 0  # samples per gradient computation; 0: chosen for the device
    network: Network = dataclasses.field(default_factory=lambda: NORMED)  # torso of the action values

    def __post_init__(self):
        super().__post_init__()
        check_floats(self, trace_lambda=(0.0, 1.0))
        check_whole(self, epochs=1, minibatches=1, chunk_samples=0)

    @property
    def traits(self) -> Traits:
        with_state = self.mixer == "monotonic"  # which needs the global state of final observations, too
        return Traits(with_state, records_final_observations=with_state, minibatches=self.minibatches)

    def init(self, key: jax.Array, spec: LearnerSpec) -> LearnerState:
        """Fresh policies for the groups of `spec`."""
        params, mixer = self.init_weights(key, spec)
        optimiser = adam(self.max_grad_norm).init(q.join_weights(params, mixer))
        return LearnerState(params, mixer, optimiser, self.hyper(spec), jnp.int32(0))

    def act(
        self, params: QPolicy, observation: Observation, memory: PyTree, key: jax.Array, explore: bool
    ) -> ActOutput:
        """One agent's ε-greedy action; records the value of its best one."""
        action, memory, values = q.choose_action(params, observation, memory, key, explore)
        return ActOutput(action, memory, {"value": q.greedy_value(params.network.action, values, values, observation)})

    def update(
        self, state: LearnerState, experience: Experience, key: jax.Array, axis: str | None = None
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """λ-returns, then epochs of minibatches; metrics are means over all steps."""
        self = self.traced(state.hyper)
        batch = self.prepare(state, experience)

        def minibatch(state, envs):
            gradients, metrics = self.gradients(state, batch.take(envs), axis)
            return self.apply(state, gradients), pack_metrics(metrics)

        envs = shuffle_envs(key, experience.first.shape[1], self.epochs, self.minibatches, axis)
        state, metrics = lax.scan(minibatch, state, envs)
        return self.count_update(state), metrics.means()

    def prepare(self, state: LearnerState, experience: Experience) -> Batch:
        """The batch with its λ-returns, from the values that `act` recorded."""
        self = self.traced(state.hyper)
        tracks = experience.trajectories
        return Batch(
            observation={name: track.observation.replace(state=None) for name, track in tracks.items()},
            action={name: track.action for name, track in tracks.items()},
            target=self.returns(state, experience),
            extras={name: track.extras for name, track in tracks.items()},
            memory={name: track.memory for name, track in tracks.items()},
            state=next(iter(tracks.values())).observation.state if self.traits.needs_global_state else None,
            first=experience.first,
        )

    def returns(self, state: LearnerState, experience: Experience) -> dict[str, jax.Array]:
        """G_t by group, `[T, E, n]`; with a mixer that of the team, `[T, E]`."""
        tracks = experience.trajectories
        last = {
            name: over_agents(self.value)(state.params[name], track.last_observation, track.last_memory)
            for name, track in tracks.items()
        }
        last = {name: keep_where(tracks[name].last_observation.present, value) for name, value in last.items()}
        if self.mixer != "none":
            return {TEAM: self.team_returns(state, experience, last)}
        ends = experience.terminated[..., None], experience.truncated[..., None]
        target = {}
        for name, track in tracks.items():
            seen = track.observation
            values = keep_where(seen.present, track.extras["value"]), track.final_value, last[name]
            masks = *ends, seen.active, seen.present
            target[name] = lambda_returns(track.reward, *values, *masks, gamma=self.gamma, lam=self.trace_lambda)
        return target

    def team_returns(self, state: LearnerState, experience: Experience, last: dict[str, jax.Array]) -> jax.Array:
        """G_t of the team as one agent. last: values of the observations after the last step, by group."""
        tracks = experience.trajectories
        one = next(iter(tracks.values()))  # the global state is the same for all groups
        seen = {name: track.observation for name, track in tracks.items()}
        value = q.concatenate_agents({name: track.extras["value"] for name, track in tracks.items()}, seen)
        value = self.mix(state.mixer, value, one.observation.state)
        final = jnp.concatenate([track.final_value for track in tracks.values()], axis=-1)
        final = self.mix(state.mixer, final, None if one.final_observation is None else one.final_observation.state)
        after, after_state = jnp.concatenate(list(last.values()), axis=-1), one.last_observation.state
        after = self.mix(state.mixer, *jax.tree.map(lambda leaf: leaf[None], (after, after_state)))[0]
        reward = q.team_reward({name: track.reward for name, track in tracks.items()}, seen)
        ends = experience.terminated, experience.truncated
        return lambda_returns(reward, value, final, after, *ends, None, None, gamma=self.gamma, lam=self.trace_lambda)

    def gradients(
        self, state: LearnerState, batch: Batch, axis: str | None = None
    ) -> tuple[PyTree, dict[str, jax.Array]]:
        """Gradients of the loss on some environments, and metrics; summed over devices."""
        self = self.traced(state.hyper)
        total = sum_over_devices(sum(jnp.sum(batch.weight(name)) for name in batch.target), axis)
        total = jnp.maximum(total, 1.0)
        steps, num_envs = batch.first.shape
        per_env = sum(steps * action.shape[2] for action in batch.action.values())
        found = chunked_gradient(
            lambda weights, part: self.loss(weights, state, part, total),
            *(q.join_weights(state.params, state.mixer), batch, Batch.take),
            *(num_envs, per_env, self.chunk_samples),
        )
        return sum_over_devices(found, axis)

    def loss(
        self, weights: dict[str, PyTree], state: LearnerState, batch: Batch, total: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """(Q(s, a) - G)², summed over a part of a batch; and metrics. total: the number of targets that count."""
        chosen = {}
        for name, policy in state.params.items():
            network, seen = policy.network, batch.observation[name]
            values, _ = unroll(network, weights["agents"][name], seen, batch.first, batch.memory[name])
            chosen[name] = q.action_value(network.action, values, batch.action[name], seen)
        level = sum(
            jnp.sum(value * as_weight(batch.observation[name].present, value)) for name, value in chosen.items()
        )
        agents = 1
        if self.mixer != "none":  # the team as one agent
            joined = q.concatenate_agents(chosen, batch.observation)
            chosen, agents = {TEAM: self.mix(weights["mixer"], joined, batch.state)}, joined.shape[-1]
        errors = {name: chosen[name] - target for name, target in batch.target.items()}
        loss = sum(jnp.sum(batch.weight(name) * error**2) for name, error in errors.items()) / total
        return loss, {"loss": loss, "q": level / total / agents}
