"""The algorithm contract: `init`, `act`, `value`, `update`, and everything else that runners need from an algorithm.

An algorithm never steps an environment. `act` and `value` are written for one agent and vmapped by the runner over
`[E, n]`. A learner owns one or more groups: `state.params` and experience are dicts by group, so that a joint critic or
a mixer sees them all. A policy (the params of one group) is a pytree that carries its own network definition as static
metadata, so a bank of policies is the same pytree with one more leading axis.

`Algorithm.traits` declares what a runner must know beforehand. Features that only some runners need are the small
protocols below, which an algorithm implements by deriving from them; `require_protocol` names the one that is missing.
"""

import abc
import copy
import dataclasses
import functools
import typing
from collections.abc import Mapping
from typing import Any, ClassVar, Self, TypeGuard, TypeVar

import jax
import jax.numpy as jnp
from flax import struct

from shoal.core.errors import OptionError
from shoal.core.types import Group, Observation, PyTree


@dataclasses.dataclass(frozen=True)
class LearnerSpec:
    """Everything a learner needs to build its networks.

    groups: the groups it owns, observations filled in. state: spec of the global state. total_updates: number of
    updates of the experiment, for schedules. observations: shapes of what `observe` returns for its groups; num_envs,
    num_steps: copies and steps of the experience of an update; all three are needed by learners with a replay.
    """

    groups: dict[str, Group]
    state: PyTree
    total_updates: int = 1
    observations: dict[str, Observation] = dataclasses.field(default_factory=dict)
    num_envs: int = 1
    num_steps: int = 1


class ActOutput(struct.PyTreeNode):
    """action: one agent's action. memory: its new recurrent carry. extras: arrays to be recorded for `update`."""

    action: jax.Array
    memory: PyTree
    extras: dict[str, jax.Array] = struct.field(default_factory=dict)


class Trajectory(struct.PyTreeNode):
    """Experience of one group; leaves are `[T, E, n, ...]`.

    final_value: the value of an episode's final observation where the step ended an episode, else 0. memory: the carry
    before the first step, `[E, n, ...]`. last_observation, last_memory: after the last step, `[E, n, ...]`.

    Only with `Traits.records_final_observations`: final_observation: an episode's final observation where the step
    truncated one, else zeros; memories: the carry before each step, reset where an episode begins.
    """

    observation: Observation
    action: jax.Array
    reward: jax.Array
    extras: dict[str, jax.Array]
    final_value: jax.Array
    memory: PyTree
    last_observation: Observation
    last_memory: PyTree
    final_observation: Observation | None = None
    memories: PyTree = ()


class Experience(struct.PyTreeNode):
    """What happened in `T` steps of `E` copies. `first`: this step begins an episode. Flags are `[T, E]`."""

    trajectories: dict[str, Trajectory]
    first: jax.Array
    terminated: jax.Array
    truncated: jax.Array


@dataclasses.dataclass(frozen=True)
class ReplayTraits:
    """How a learner draws from its replay.

    window: rows of a sample. batch_size: windows per gradient step. gradient_steps: per update. prioritised: whether
    windows with large errors are drawn more often. sequence: trained rows of a window.
    """

    window: int
    batch_size: int
    gradient_steps: int
    prioritised: bool = False
    sequence: int = 1


@dataclasses.dataclass(frozen=True)
class Traits:
    """What a runner must know about an algorithm before it passes experience to it."""

    needs_global_state: bool = False  # `Observation.state` must be filled in
    records_final_observations: bool = False  # trajectories must have `final_observation` and `memories`
    minibatches: int = 1  # equal parts that an update splits the copies into; must divide `num_envs`
    warm_up: int = 0  # environment steps before learning begins
    corrects_lag: bool = False  # may learn from experience of policies that are some updates old
    running_statistics: tuple[str, ...] = ()  # options that make an update change more than gradients do
    replay: ReplayTraits | None = None  # how it draws from its replay (see `Replays`); None if it has none


@dataclasses.dataclass(frozen=True)
class Algorithm(abc.ABC):
    """A learning algorithm: a frozen dataclass whose fields are its options.

    Options that are annotated `float` are copied into `state.hyper` by `init`, as float32 arrays (`hyper`), and read
    from there (`traced`), so that they can be vmapped over and changed without another compilation. All other options
    are static. A learner's state is a pytree with at least `params`, the policies by group, and `hyper`.
    """

    name: ClassVar[str]
    """Its name in run folders: unique to the class."""
    only_with: ClassVar[Mapping[str, str]] = {}
    """Options that have no effect unless the switch (a boolean option) that they name is on."""

    @property
    def traits(self) -> Traits:
        """What a runner must know about it."""
        return Traits()

    @abc.abstractmethod
    def init(self, key: jax.Array, spec: LearnerSpec) -> Any:
        """The learner's state before the first update: fresh policies for the groups of `spec`."""

    def initial_memory(self, params: PyTree) -> PyTree:
        """One agent's memory at the start of an episode; empty for feed-forward networks."""
        return ()

    @abc.abstractmethod
    def act(self, params: PyTree, observation: Observation, memory: PyTree, key: jax.Array, explore: bool) -> ActOutput:
        """One agent's action; the greedy one unless `explore`."""

    @abc.abstractmethod
    def value(self, params: PyTree, observation: Observation, memory: PyTree) -> jax.Array:
        """One agent's expected return from here on; recorded for the final observations of truncated episodes."""

    @abc.abstractmethod
    def update(
        self, state: Any, experience: Experience, key: jax.Array, axis: str | None = None
    ) -> tuple[Any, dict[str, jax.Array]]:
        """One update from one batch, and metrics. axis: the mesh axis that the copies are spread over, if any."""

    def hyper(self, spec: LearnerSpec) -> dict[str, jax.Array]:
        """The float options as arrays, for `state.hyper`; and `total_updates`, for schedules."""
        floats = {name: jnp.asarray(getattr(self, name), jnp.float32) for name in float_options(type(self))}
        return floats | {"total_updates": jnp.float32(spec.total_updates)}

    def traced(self, hyper: Mapping[str, jax.Array]) -> Self:
        """The algorithm with the float options of `state.hyper`: `self.gamma` is then an array."""
        traced = copy.copy(self)
        for name in float_options(type(self)):
            object.__setattr__(traced, name, hyper[name])
        return traced


@functools.cache
def float_options(cls: type[Algorithm]) -> tuple[str, ...]:
    """The options of an algorithm that are traced: those annotated `float`."""
    try:
        hints = typing.get_type_hints(cls)
    except NameError:  # a class defined inside a function, whose annotations cannot be resolved here
        hints = {field.name: field.type for field in dataclasses.fields(cls)}
    return tuple(field.name for field in dataclasses.fields(cls) if hints[field.name] in (float, "float"))


class SplitsUpdate(abc.ABC):
    """An update of one gradient step that can be split: gradients computed in one process, applied in another.

    `update` equals `prepare`, `gradients`, `apply`, `count_update`, one after the other.
    """

    @abc.abstractmethod
    def prepare(self, state: Any, experience: Experience, axis: str | None = None) -> tuple[Any, Any]:
        """The state with updated running statistics, and the batch for the gradients."""

    @abc.abstractmethod
    def gradients(self, state: Any, batch: Any, /, axis: str | None = None) -> tuple[PyTree, dict[str, jax.Array]]:
        """Gradients of the loss on a batch, and metrics; summed over devices."""

    @abc.abstractmethod
    def apply(self, state: Any, gradients: PyTree) -> Any:
        """The state after one optimiser step."""

    @abc.abstractmethod
    def count_update(self, state: Any) -> Any:
        """The state one update older: schedules move on."""


class Replays(abc.ABC):
    """A learner whose state has a `replay`, as described by `Traits.replay`."""

    @abc.abstractmethod
    def replay_shape(self, spec: LearnerSpec) -> tuple[PyTree, int, int]:
        """The shapes of one stored step; rows; copies: these determine the size of the replay."""


class Prioritises(Replays):
    """A learner whose replay may be in another process: actors provide steps and priorities, the learner gets windows
    and returns gradients and errors. Its state has a `replay` and an `optimiser`, which are None where not needed.
    """

    @abc.abstractmethod
    def make_steps(self, experience: Experience) -> PyTree:
        """The stored part of an experience: leaves `[T, E, ...]`, otherwise shaped as in `replay_shape`."""

    @abc.abstractmethod
    def importance(self, state: Any, odds: jax.Array) -> jax.Array:
        """Weights `[B]` of windows that were drawn `odds` times as often as uniform sampling would."""

    @abc.abstractmethod
    def gradients(self, state: Any, windows: PyTree, weight: jax.Array, /) -> tuple[PyTree, tuple[dict, jax.Array]]:
        """Gradients of the loss on windows `[W, B, ...]` with weights `[B]`; and metrics and errors, see `errors`."""

    @abc.abstractmethod
    def apply(self, state: Any, gradients: PyTree) -> Any:
        """The state after one optimiser step."""

    @abc.abstractmethod
    def count_update(self, state: Any) -> Any:
        """The state one update older: schedules move on."""

    @abc.abstractmethod
    def errors(self, state: Any, windows: PyTree, /) -> jax.Array:
        """Absolute errors `[S, B]` of the trained rows of windows, S being `ReplayTraits.sequence`."""

    @abc.abstractmethod
    def priorities(self, state: Any, errors: jax.Array, /) -> jax.Array:
        """Priorities `[B]` of windows with errors `[S, B]`."""

    # Needed by an actor to set the priorities of its own steps.

    @abc.abstractmethod
    def single_row(self) -> "Prioritises":
        """The same algorithm with windows of one trained row and those that its target needs."""

    @abc.abstractmethod
    def shared_weights(self, state: Any) -> PyTree:
        """What `errors` needs of a learner besides its policies, sent along with them; `()` if nothing."""

    @abc.abstractmethod
    def with_weights(self, state: Any, params: PyTree, shared: PyTree) -> Any:
        """The state with other policies and shared weights; target networks get the same weights."""

    @abc.abstractmethod
    def with_exploration(self, params: PyTree, share: Any) -> PyTree:
        """The policy of one group with that `share` of random actions."""


class Stochastic(abc.ABC):
    """A policy with known action probabilities: opponents sample actions from it, and games are solved with it."""

    @abc.abstractmethod
    def action_probabilities(
        self, params: PyTree, observation: Observation, memory: PyTree
    ) -> tuple[jax.Array, PyTree]:
        """One agent's probabilities of the actions of a discrete space, `[A]`, and its memory after."""


class EstimatesKL(abc.ABC):
    """A learner that can estimate how far its policy has moved since it acted, to skip stale experience."""

    @abc.abstractmethod
    def approx_kl(self, state: Any, experience: Experience) -> jax.Array:
        """KL of the policy that acted from the newest, estimated on experience; the largest over its groups."""


class Evolves(abc.ABC):
    """A policy whose weights can be optimised without gradients."""

    @abc.abstractmethod
    def acting_weights(self, params: PyTree) -> PyTree:
        """The weights that greedy play depends on: an actor's, not a critic's."""

    @abc.abstractmethod
    def with_acting_weights(self, params: PyTree, weights: PyTree) -> PyTree:
        """The policy with other weights of that kind."""


class NormalisesViews(abc.ABC):
    """Policies that may normalise views by running statistics, which others may update.

    If the option `normalise_views` is on, params have `view_stats`: `ops.normalisation.RunningStats`, as the views are.
    """

    normalise_views: bool


P = TypeVar("P")


def supports(algorithm: Any, protocol: type[P]) -> TypeGuard[P]:
    """Whether an algorithm implements an optional protocol."""
    return isinstance(algorithm, protocol)


def require_protocol(algorithm: Algorithm, protocol: type[P], who: str) -> P:
    """The algorithm, typed as the protocol; raises if it does not implement it. who: what needs it, for the error."""
    if isinstance(algorithm, protocol):
        return algorithm
    members = ", ".join(sorted(getattr(protocol, "__abstractmethods__", ())))
    raise OptionError(
        f"{who} needs an algorithm with {protocol.__name__} ({members}), which {type(algorithm).__name__} does not "
        f"have. Choose another algorithm, or derive it from shoal.core.algorithm.{protocol.__name__}."
    )
