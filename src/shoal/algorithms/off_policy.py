"""What DDPG and SAC share: actors, critics of their actions, and gradient steps on windows of a replay.

A learner is a set of actors, one a group, and of critics (see `networks.critics`), with slow copies of the critics and
perhaps of the actors. On every window that is drawn,

    target = r + γ r' + ... + γ^n worth(s⁽ⁿ⁾, a⁽ⁿ⁾),  a⁽ⁿ⁾ chosen by the policy,  by the slow critics,
    critic loss = Σ over critics of (Q(s, a) - target)²,    actor loss = - worth(s, a), a chosen by the policy,

where the subclass says how an action is chosen and what it is worth. Both losses are taken at the same weights, in one
pass. n counts own decisions. An agent that may not act does nothing: critics are shown zeros for its action, and are
trained there as well, so that values flow back through the views of those who wait. Agents who are not present count
for nothing.

Shape letters: `W` rows of a window, `B` windows of a batch, `n` agents of a group, `K` critics, `S` rows learnt from.
"""

import abc
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from shoal.algorithms import _judged as judged
from shoal.algorithms import q_learning as q
from shoal.algorithms import replay as stored
from shoal.algorithms._judged import Choice, Policy, Read
from shoal.algorithms._learner import adam, descend, towards
from shoal.algorithms.replay import Replayed, Steps
from shoal.core.algorithm import ActOutput, Experience, LearnerSpec, Traits
from shoal.core.checks import check_floats
from shoal.core.options import check_types
from shoal.core.spaces import ActionSpace
from shoal.core.types import Observation, PyTree
from shoal.networks.critics import CriticKind, Join
from shoal.networks.torsos import Network
from shoal.ops import replay as buffers
from shoal.ops.returns import n_step_returns


class LearnerState(struct.PyTreeNode):
    """Everything a learner carries.

    join: weights of the critics beyond their trunks, and judge: what these are weights of. extra: what else is learnt.
    target: slow copies. steps: gradient steps made.
    """

    params: dict[str, Policy]
    join: PyTree
    extra: PyTree
    target: dict[str, PyTree]
    optimiser: dict[str, PyTree]
    hyper: dict[str, jax.Array]
    updates: jax.Array
    steps: jax.Array
    replay: buffers.Replay
    judge: Join = struct.field(pytree_node=False)


@dataclasses.dataclass(frozen=True)
class OffPolicyLearner(Replayed):
    """Options and methods common to both (abstract: how actions are chosen and what they are worth is not)."""

    learning_rate: float = 1e-3  # Adam's step size for the critics
    actor_learning_rate: float = 5e-4  # and for the actors
    gamma: float = 0.99  # discount per environment step
    max_grad_norm: float = 10.0  # gradients of the actors, and those of the critics, are scaled down to this norm
    target_rate: float = 0.01  # share of the way that the slow networks follow in each gradient step
    warm_up: int = 2_000  # environment steps at random before learning begins
    network: Network = dataclasses.field(default_factory=Network)  # of the actors, and of the critics

    def __post_init__(self):
        check_types(self)
        unit, positive = (0.0, 1.0), (0.0, None)
        check_floats(self, learning_rate=positive, actor_learning_rate=positive, gamma=unit, max_grad_norm=positive)
        check_floats(self, target_rate=unit)
        self.check_replay()

    # What subclasses say.

    @property
    @abc.abstractmethod
    def kind(self) -> CriticKind:
        """What critics see beside the own view."""

    @property
    @abc.abstractmethod
    def num_critics(self) -> int: ...

    @property
    @abc.abstractmethod
    def slow_actors(self) -> bool:
        """Whether the actions in targets are chosen by slow copies of the actors."""

    @abc.abstractmethod
    def actor_width(self, space: ActionSpace) -> int:
        """How many numbers an actor puts out."""

    def values_every_choice(self, space: ActionSpace) -> bool:
        """Whether critics put out a value for each choice, instead of being shown the own action."""
        return False

    def initial_extra(self, hyper: dict[str, jax.Array], spec: LearnerSpec) -> PyTree:
        """What is learnt beside actors and critics."""
        return ()

    @abc.abstractmethod
    def own_action(self, policy: Policy, parameters: jax.Array, legal: Any, key: jax.Array, explore: bool) -> jax.Array:
        """One agent's action."""

    @abc.abstractmethod
    def choose(
        self, state: LearnerState, name: str, parameters: jax.Array, seen: Observation, key: jax.Array, ahead: bool
    ) -> Choice:
        """What the policy of a group would do; differentiable. ahead: for a target."""

    @abc.abstractmethod
    def worth(
        self, state: LearnerState, name: str, values: jax.Array, choice: Choice, seen: Observation, ahead: bool
    ) -> jax.Array:
        """What choices are worth, `[S, B, n]`, by the values `[K, S, B, n, out]` of the critics. ahead: in targets."""

    def taken_value(
        self, name: str, values: jax.Array, action: jax.Array, choice: Choice, seen: Observation, space: ActionSpace
    ) -> jax.Array:
        """Values `[K, S, B, n]` of the actions that were taken."""
        return values[..., 0]

    def others_now(self) -> bool:
        """Whether the actor loss supposes that the others play as they do now, instead of as they did."""
        return False

    def extra_loss(
        self, state: LearnerState, extra: PyTree, choices: dict[str, Choice], seen: dict[str, Observation]
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Further terms of the loss, and metrics."""
        return jnp.float32(0.0), {}

    def actor_due(self, state: LearnerState) -> jax.Array | bool:
        """Whether actors and slow networks move in this gradient step."""
        return True

    # The learner.

    @property
    def traits(self) -> Traits:
        return Traits(
            needs_global_state=self.kind == "global",
            records_final_observations=True,
            warm_up=self.warm_up,
            replay=self.replay_traits(),
        )

    def init(self, key: jax.Array, spec: LearnerSpec) -> LearnerState:
        """Fresh actors and critics for the groups of `spec`, and an empty replay."""
        hyper = self.hyper(spec)
        for_join, *keys = jax.random.split(key, len(spec.groups) + 1)
        noise = _noise(hyper)
        shown = spec.state if self.traits.needs_global_state else None
        params, features = {}, {}
        for k, (name, group) in zip(keys, spec.groups.items(), strict=True):
            judged.check_action(type(self).__name__, name, group.action)
            width = self.actor_width(group.action)
            params[name] = judged.new_policy(k, group, shown, self.network, width, self.num_critics, noise)
            features[name] = judged.example_features(params[name], group, shown)
        members = judged.members_of(spec.groups, self.values_every_choice)
        module, join = judged.new_join(for_join, self.kind, self.network, members, features, self.num_critics)
        extra = self.initial_extra(hyper, spec)
        learnt = _weights(params, join, extra)
        optimiser = {part: adam(hyper).init(tree) for part, tree in learnt.items() if jax.tree.leaves(tree)}
        target = {part: learnt[part] for part in self._slow_parts}
        replay = buffers.init(*self.replay_shape(spec))
        zero = jnp.int32(0)
        return LearnerState(params, join, extra, target, optimiser, hyper, zero, zero, replay, module)

    def fresh_memory(self) -> PyTree:
        return judged.fresh_memory(self.network, self.num_critics)

    def initial_memory(self, params: Policy) -> PyTree:
        return judged.fresh_memory(self.network, self.num_critics)

    def act(self, params: Policy, observation: Observation, memory: PyTree, key: jax.Array, explore: bool) -> ActOutput:
        """One agent's action: any legal one while the replay is being filled, else the policy's."""
        for_random, for_policy = jax.random.split(key)
        numbers, memory = judged.step_actor(params, observation, memory, self.traits.needs_global_state)
        action = self.own_action(params, numbers, observation.legal, for_policy, explore)
        if explore:
            anything = judged.any_action(params.space, observation.legal, for_random)
            action = jnp.where(params.warm, action, anything)
        return ActOutput(action, memory)

    def value(self, params: Policy, observation: Observation, memory: PyTree) -> jax.Array:
        """Nothing reads it: final views are stored as they are, and valued when they are learnt from."""
        return jnp.float32(0.0)

    def update(
        self, state: LearnerState, experience: Experience, key: jax.Array, axis: str | None = None
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """Stores the experience, then makes gradient steps on windows of the replay."""
        state = self.store(state, experience)
        state, metrics = self.repeat_when_warm(lambda state, key: self.learn_once(state, key, axis), state, key, axis)
        state = state.replace(updates=state.updates + 1)
        warm = stored.warm(state.replay, self.window, self.warm_up, axis)
        noise = _noise(state.hyper)  # which may have been changed since
        params = {name: policy.replace(warm=warm, noise=noise) for name, policy in state.params.items()}
        return state.replace(params=params), metrics

    def learn_once(
        self, state: LearnerState, key: jax.Array, axis: str | None = None
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """One gradient step on windows drawn from the replay."""
        for_draw, for_choices = jax.random.split(key)
        _, batch = self.sample(state, for_draw, axis)
        gradients, metrics = self.gradients(state, batch, for_choices)
        if axis:
            gradients, metrics = lax.pmean((gradients, metrics), axis)
        return self.apply(state, gradients), metrics

    def gradients(self, state: LearnerState, batch: Steps, key: jax.Array) -> tuple[PyTree, dict[str, jax.Array]]:
        """Gradients of all losses on windows, and metrics."""
        learnt = _weights(state.params, state.join, state.extra)
        return jax.grad(lambda weights: self._loss(state, weights, batch, key), has_aux=True)(learnt)

    def apply(self, state: LearnerState, gradients: PyTree) -> LearnerState:
        """One optimiser step; the slow networks follow."""
        hyper, due = state.hyper, self.actor_due(state)
        new, optimiser = _weights(state.params, state.join, state.extra), dict(state.optimiser)
        for part, held in state.optimiser.items():
            rate = hyper["actor_learning_rate" if part == "actor" else "learning_rate"]
            moved = descend(new[part], gradients[part], held, hyper, rate)
            stays = (new[part], held)
            new[part], optimiser[part] = jax.tree.map(
                lambda a, b, go=due if part == "actor" else True: jnp.where(go, a, b), moved, stays
            )
        share = jnp.where(due, hyper["target_rate"], 0.0)
        target = towards(state.target, {part: new[part] for part in self._slow_parts}, share)
        params = {
            name: policy.replace(weights={"actor": new["actor"][name], "critic": new["critic"]["trunk"][name]})
            for name, policy in state.params.items()
        }
        return state.replace(
            params=params,
            join=new["critic"]["join"],
            extra=new["extra"],
            target=target,
            optimiser=optimiser,
            steps=state.steps + 1,
        )

    def _loss(
        self, state: LearnerState, weights: dict[str, PyTree], batch: Steps, key: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        for_target, for_actor = jax.random.split(key)
        read = judged.read(state.params, weights, state.target, batch, self.burn_in)
        target = lax.stop_gradient(self.targets(state, read, batch, for_target))
        rows = stored.rows(batch, self.burn_in, self.burn_in + self.sequence)
        seen = rows.observation
        choices = self._choices(state, _head(read.parameters, self.sequence), seen, for_actor, False)
        critic_loss, level = self._critic_loss(state, weights["critic"]["join"], read, rows, choices, target)
        actor_loss = self._actor_loss(state, read, rows, choices)
        extra_loss, metrics = self.extra_loss(state, weights["extra"], choices, seen)
        metrics |= {"critic_loss": critic_loss, "actor_loss": actor_loss, "q": level}
        return critic_loss + actor_loss + extra_loss, metrics

    def _critic_loss(
        self, state: LearnerState, join: PyTree, read: Read, rows: Steps, choices: dict[str, Choice], target: dict
    ) -> tuple[jax.Array, jax.Array]:
        """Squared errors of all critics on what was done, and the mean value."""
        done = judged.done(state.params, rows)
        features = jax.tree.map(lambda leaf: leaf[:, : self.sequence], read.features)
        values = judged.judge(state.judge, join, features, done, done, rows.observation)
        loss, count, level = jnp.float32(0.0), jnp.float32(0.0), []
        for name, policy in state.params.items():
            seen = rows.observation[name]
            taken = self.taken_value(name, values[name], rows.action[name], choices[name], seen, policy.space)
            weight = judged.weight_of(seen.present, target[name])
            loss += jnp.sum(weight * jnp.sum((taken - target[name]) ** 2, axis=0))
            count += jnp.sum(weight)
            level.append(jnp.mean(taken))
        return loss / jnp.maximum(count, 1.0), jnp.mean(jnp.stack(level))

    def _actor_loss(self, state: LearnerState, read: Read, rows: Steps, choices: dict[str, Choice]) -> jax.Array:
        """Minus what the policies' own choices are worth to those who may act."""
        own = {name: choice.vector for name, choice in choices.items()}
        others = lax.stop_gradient(own) if self.others_now() else judged.done(state.params, rows)
        features = jax.tree.map(lambda leaf: lax.stop_gradient(leaf[:, : self.sequence]), read.features)
        values = judged.judge(state.judge, state.join, features, own, others, rows.observation)
        loss, count = jnp.float32(0.0), jnp.float32(0.0)
        for name, choice in choices.items():
            seen = rows.observation[name]
            worth = self.worth(state, name, values[name], choice, seen, False)
            weight = judged.weight_of(seen.active, worth)
            loss, count = loss - jnp.sum(weight * worth), count + jnp.sum(weight)
        return loss / jnp.maximum(count, 1.0)

    def targets(self, state: LearnerState, read: Read, batch: Steps, key: jax.Array) -> dict[str, jax.Array]:
        """What the critics are to say of each row that is learnt from, `[S, B, n]` by group."""
        after = stored.rows(stored.after(batch).observation, self.burn_in, self.window - 1)
        learnt = stored.rows(batch, self.burn_in, self.window - 1)
        choices = self._choices(state, read.parameters_after, after, key, True)
        vectors = {name: choice.vector for name, choice in choices.items()}
        values = judged.judge(state.judge, state.target["critic"]["join"], read.features_after, vectors, vectors, after)
        targets = {}
        for name, choice in choices.items():
            worth = self.worth(state, name, values[name], choice, after[name], True)
            following = q.present_only(worth, after[name])
            seen = learnt.observation[name]
            flags = learnt.terminated[..., None], learnt.truncated[..., None], seen.active, seen.present
            rewards = learnt.reward[name], stored.shifted(following), following, following[-1]
            returns = n_step_returns(*rewards, *flags, gamma=state.hyper["gamma"], n=self.n_step)
            targets[name] = returns[: self.sequence]
        return targets

    def _choices(self, state, parameters, seen: dict[str, Observation], key, ahead: bool) -> dict[str, Choice]:
        """What all policies would do; those who may not act do nothing."""
        choices = {}
        for i, name in enumerate(state.params):
            choice = self.choose(state, name, parameters[name], seen[name], jax.random.fold_in(key, i), ahead)
            choices[name] = choice.replace(vector=judged.if_active(choice.vector, seen[name]))
        return choices

    @property
    def _slow_parts(self) -> tuple[str, ...]:
        return ("actor", "critic") if self.slow_actors else ("critic",)


def _weights(params: dict[str, Policy], join: PyTree, extra: PyTree) -> dict[str, PyTree]:
    """All that is learnt."""
    trunk = {name: policy.weights["critic"] for name, policy in params.items()}
    actor = {name: policy.weights["actor"] for name, policy in params.items()}
    return {"actor": actor, "critic": {"trunk": trunk, "join": join}, "extra": extra}


def _noise(hyper: dict[str, jax.Array]) -> jax.Array:
    return hyper["exploration_noise"] if "exploration_noise" in hyper else jnp.float32(0.0)


def _head(tree: PyTree, rows: int) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[:rows], tree)
