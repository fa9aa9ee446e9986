"""Parallel Q-learning without a replay or a target network: λ-returns over fresh experience of many copies.

    G_t = r_t + γ ((1 - λ) max_a Q(s_{t+1}, a) + λ G_{t+1}),    loss = (Q(s_t, a_t) - G_t)²

Layer normalisation keeps it stable in place of target networks, and thousands of copies in place of a replay: the most
sample- and time-efficient choice for discrete team games here. Paper: Gallici et al. 2025; a mixer makes it VDN
(Sunehag et al. 2018) or QMIX (Rashid et al. 2018). Departures: minibatches are made of whole environments; Adam instead
of RAdam; λ counts own decisions; episodes that were cut short bootstrap from their real final view; a team is paid the
mean of its agents' rewards. Shape letters: `T` time, `E` environments, `n` agents of a group.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from shoal.algorithms import q_learning as q
from shoal.algorithms._learner import (
    adam,
    annealed,
    check_exploration,
    descend,
)
from shoal.algorithms.ppo import env_minibatches
from shoal.algorithms.replay import team_reward
from shoal.batching.agents import over_agents
from shoal.core.algorithm import ActOutput, Algorithm, Experience, LearnerSpec, Traits
from shoal.core.checks import check_floats, check_whole
from shoal.core.options import check_types
from shoal.core.types import Observation, PyTree
from shoal.networks.mixers import MixerKind, init_mixer
from shoal.networks.torsos import Network
from shoal.ops.returns import lambda_returns

TEAM = "team"
CPU_CHUNK_SAMPLES = 8192


NORMED = Network(hidden=(128, 128), activation="relu", layer_norm=True)


class LearnerState(struct.PyTreeNode):
    """Everything a learner carries from update to update. `mixer`: its weights."""

    params: dict[str, q.QPolicy]
    mixer: PyTree
    optimiser: PyTree
    hyper: dict[str, jax.Array]
    updates: jax.Array


class Lessons(struct.PyTreeNode):
    """What the loss is computed from, by group; leaves are `[T, E, n, ...]`, memory `[E, n, ...]`.

    target: what actions turned out to be worth; with a mixer there is one for the whole team, `[T, E]`.
    """

    observation: dict[str, Observation]
    action: dict[str, jax.Array]
    target: dict[str, jax.Array]
    memory: dict[str, PyTree]
    state: PyTree
    first: jax.Array  # [T, E]

    def of(self, envs: jax.Array) -> "Lessons":
        """Those of some environments."""
        timed = jax.tree.map(lambda leaf: leaf[:, envs], self.replace(memory=()))
        return timed.replace(memory=jax.tree.map(lambda leaf: leaf[envs], self.memory))


@dataclasses.dataclass(frozen=True)
class PQN(Algorithm):
    """Action values from fresh experience."""

    name: ClassVar[str] = "pqn"

    learning_rate: float = 1e-3  # Adam's step size
    gamma: float = 0.99  # discount per environment step
    trace_lambda: float = 0.65  # trace decay per own decision
    max_grad_norm: float = 10.0  # gradients are scaled down to this norm
    epsilon_start: float = 1.0  # share of random actions at the beginning
    epsilon_end: float = 0.05  # and later
    epsilon_fraction: float = 0.3  # share of the run over which it falls
    anneal: bool = True  # learning rate falls linearly to 0
    epochs: int = 2  # passes over the batch
    minibatches: int = 4  # parts each pass is cut into; must divide the number of copies
    dueling: bool = False  # value and advantages have heads of their own
    mixer: MixerKind = "none"  # of the team's values: none (independent), sum (VDN), monotonic (QMIX)
    mixer_hidden: int = 64  # width of the network that makes the weights of a monotonic mixer
    chunk_samples: int = 0  # samples whose gradient is computed at once; 0: as many as suits the device
    network: Network = dataclasses.field(default_factory=lambda: NORMED)  # of the action values

    def __post_init__(self):
        check_types(self)
        unit, positive = (0.0, 1.0), (0.0, None)
        check_floats(self, gamma=unit, trace_lambda=unit, epsilon_start=unit, epsilon_end=unit, epsilon_fraction=unit)
        check_floats(self, learning_rate=positive, max_grad_norm=positive)
        check_exploration(self)
        check_whole(self, epochs=1, minibatches=1, chunk_samples=0, mixer_hidden=1)

    @property
    def traits(self) -> Traits:
        with_state = self.mixer == "monotonic"  # which must know the global state of final observations, too
        return Traits(with_state, records_final_observations=with_state, minibatches=self.minibatches)

    def init(self, key: jax.Array, spec: LearnerSpec) -> LearnerState:
        """Fresh policies for the groups of `spec`."""
        for_agents, for_mixer = jax.random.split(key)
        hyper = self.hyper(spec)
        owner = type(self).__name__
        params = q.new_policies(owner, for_agents, spec, self.network, self.dueling, hyper["epsilon_start"])
        agents = sum(group.size for group in spec.groups.values())
        mixer = init_mixer(self.mixer, for_mixer, agents, spec.state, self.mixer_hidden)
        return LearnerState(params, mixer, adam(hyper).init(q.weights_of(params, mixer)), hyper, jnp.int32(0))

    def initial_memory(self, params: q.QPolicy) -> PyTree:
        return params.network.initial_memory()

    def act(
        self, params: q.QPolicy, observation: Observation, memory: PyTree, key: jax.Array, explore: bool
    ) -> ActOutput:
        """One agent's best action; if it is to `explore`, sometimes any legal one. Records what its view is worth."""
        return q.act(params, observation, memory, key, explore, with_value=True)

    def value(self, params: q.QPolicy, observation: Observation, memory: PyTree) -> jax.Array:
        """What one agent can expect from here on."""
        values, _ = q.apply(params.network, params.weights, observation.view, memory)
        return q.best_value(params.network.action, values, values, observation)

    def update(
        self, state: LearnerState, experience: Experience, key: jax.Array, axis: str | None = None
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """λ-returns, then epochs of minibatches; metrics are means over all steps."""
        lessons = self.lessons(state, experience)
        num_envs = experience.first.shape[1]

        def step(state, index):
            gradients, metrics = self.gradients(state, lessons.of(index), axis)
            return self.apply(state, gradients), metrics

        def epoch(state, key):
            return lax.scan(step, state, env_minibatches(key, num_envs, self.minibatches, axis))

        state, metrics = lax.scan(epoch, state, jax.random.split(key, self.epochs))
        return q.explored(state.replace(updates=state.updates + 1)), jax.tree.map(jnp.mean, metrics)

    def lessons(self, state: LearnerState, experience: Experience) -> Lessons:
        """What each action turned out to be worth."""
        tracks = experience.trajectories
        last = {
            name: q.present_only(
                over_agents(self.value)(state.params[name], track.last_observation, track.last_memory),
                track.last_observation,
            )
            for name, track in tracks.items()
        }
        if self.mixer == "none":
            target = {name: self._own_target(state, track, last[name], experience) for name, track in tracks.items()}
        else:
            target = {TEAM: self._team_target(state, last, experience)}
        return Lessons(
            observation={name: track.observation.replace(state=None) for name, track in tracks.items()},
            action={name: track.action for name, track in tracks.items()},
            target=target,
            memory={name: track.memory for name, track in tracks.items()},
            state=next(iter(tracks.values())).observation.state if self.traits.needs_global_state else None,
            first=experience.first,
        )

    def gradients(
        self, state: LearnerState, lessons: Lessons, axis: str | None = None
    ) -> tuple[PyTree, dict[str, jax.Array]]:
        """Gradients of the loss on some environments, and metrics; summed over devices."""
        total = sum(jnp.sum(_counts(lessons, name)) for name in lessons.target)
        total = jnp.maximum(lax.psum(total, axis) if axis else total, 1.0)

        def loss(weights, lessons):
            return self._loss(state, weights, lessons, total)

        gradients, metrics = _chunked(loss, q.weights_of(state.params, state.mixer), lessons, self.chunk_samples)
        return lax.psum((gradients, metrics), axis) if axis else (gradients, metrics)

    def apply(self, state: LearnerState, gradients: PyTree) -> LearnerState:
        """One optimiser step."""
        rate = state.hyper["learning_rate"]
        rate = annealed(rate, state.updates, state.hyper) if self.anneal else rate
        old = q.weights_of(state.params, state.mixer)
        weights, optimiser = descend(old, gradients, state.optimiser, state.hyper, rate)
        params = {name: policy.replace(weights=weights["agents"][name]) for name, policy in state.params.items()}
        return state.replace(params=params, mixer=weights["mixer"], optimiser=optimiser)

    def _own_target(self, state: LearnerState, track, last: jax.Array, experience: Experience) -> jax.Array:
        seen = track.observation
        ends = experience.terminated[..., None], experience.truncated[..., None]
        value, final = q.present_only(track.extras["value"], seen), track.final_value
        return self._returns(state, track.reward, value, final, last, *ends, seen.active, seen.present)

    def _team_target(self, state: LearnerState, last: dict[str, jax.Array], experience: Experience) -> jax.Array:
        tracks = experience.trajectories
        one = next(iter(tracks.values()))
        seen = {name: track.observation for name, track in tracks.items()}
        value = self._mixed(state, q.joined({n: t.extras["value"] for n, t in tracks.items()}, seen), one.observation)
        finals = jnp.concatenate([track.final_value for track in tracks.values()], axis=-1)
        final = self._mixed(state, finals, one.final_observation)
        beyond = jnp.concatenate(list(last.values()), axis=-1)[None]
        follows = jax.tree.map(lambda leaf: leaf[None], one.last_observation)
        after = self._mixed(state, beyond, follows)[0]
        reward = team_reward({name: track.reward for name, track in tracks.items()}, seen)
        ends = experience.terminated, experience.truncated
        return self._returns(state, reward, value, final, after, *ends, None, None)

    def _mixed(self, state: LearnerState, values: jax.Array, seen: Observation | None) -> jax.Array:
        return q.mixed(
            self.mixer, state.mixer, values, seen.state if self.traits.needs_global_state and seen is not None else None
        )

    def _returns(self, state: LearnerState, *parts: Any) -> jax.Array:
        return lambda_returns(*parts, gamma=state.hyper["gamma"], lam=state.hyper["trace_lambda"])

    def _loss(self, state: LearnerState, weights: dict[str, PyTree], lessons: Lessons, total: jax.Array) -> Any:
        chosen = {}
        for name, policy in state.params.items():
            network, space, seen = policy.network, policy.network.action, lessons.observation[name]
            values, _ = q.unroll(network, weights["agents"][name], seen, lessons.memory[name], lessons.first)
            value = q.over(lambda v, a, o, s=space: q.chosen_value(s, v, a, o), 3)
            chosen[name] = value(values, lessons.action[name], seen)
        level = sum(jnp.sum(value * _present(value, lessons.observation[name])) for name, value in chosen.items())
        if self.mixer != "none":
            together = q.joined(chosen, lessons.observation)
            chosen = {TEAM: q.mixed(self.mixer, weights["mixer"], together, lessons.state)}
        errors = {name: chosen[name] - target for name, target in lessons.target.items()}
        loss = sum(jnp.sum(_counts(lessons, name) * error**2) for name, error in errors.items()) / total
        agents = sum(value.shape[2] for value in lessons.action.values()) if self.mixer != "none" else 1
        return loss, {"loss": loss, "q": level / total / agents}


def _present(value: jax.Array, seen: Observation) -> jax.Array:
    return jnp.ones_like(value) if seen.present is None else seen.present.astype(value.dtype)


def _counts(lessons: Lessons, name: str) -> jax.Array:
    """Which targets count."""
    target = lessons.target[name]
    return jnp.ones_like(target) if name == TEAM else _present(target, lessons.observation[name])


def _chunked(loss: Any, weights: PyTree, lessons: Lessons, samples: int) -> tuple[PyTree, PyTree]:
    """Gradient and auxiliary sums of a loss that is a sum over environments, chunk by chunk."""
    samples = samples or (CPU_CHUNK_SAMPLES if jax.default_backend() == "cpu" else 0)
    gradient = jax.grad(loss, has_aux=True)
    num_envs = lessons.first.shape[1]
    per_env = sum(action.shape[0] * action.shape[2] for action in lessons.action.values())
    fits = [n for n in range(1, num_envs + 1) if num_envs % n == 0 and n * per_env <= max(samples, per_env)]
    size = max(fits) if samples else num_envs
    if size == num_envs:
        return gradient(weights, lessons)

    def add(total, chunk):
        return jax.tree.map(jnp.add, total, gradient(weights, lessons.of(chunk))), None

    shapes = jax.eval_shape(gradient, weights, lessons)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return lax.scan(add, zeros, jnp.arange(num_envs).reshape(-1, size))[0]
