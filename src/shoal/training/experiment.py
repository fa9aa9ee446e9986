"""An experiment as plain data: the world, which learner trains which seats, and for how long. Round-trips to JSON."""

import abc
import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from shoal.algorithms import PPO
from shoal.batching.regroup import regroup
from shoal.batching.vectorise import Vectorised
from shoal.core.algorithm import Algorithm, LearnerSpec
from shoal.core.checks import check_types
from shoal.core.env import Env, Spec, describe, groups_of
from shoal.core.errors import OptionError, require, require_positive
from shoal.core.host import HostEnvProxy
from shoal.core.origin import DATA, USER, Origin
from shoal.core.registry import build_env
from shoal.envs.wrappers import NOTHING, WRAPPERS, Wrapper, wrap
from shoal.training import records
from shoal.training.host_stages import TIMEOUT
from shoal.training.serialise import UNSTORED, from_plain, to_plain

if TYPE_CHECKING:
    from shoal.training.program import Program

MOST_WRAPPERS = 64
"""The most wrappers around a world: their calls are nested."""


@dataclasses.dataclass(frozen=True)
class Learner:
    """An algorithm and the policies it trains.

    `policies` maps a policy's name to the seats it plays, written as `group`, `group[2]` or `group[1:3]`; empty means
    one policy for each group. A frozen learner plays but does not learn. `weights` is a run folder to start from.
    """

    algorithm: Algorithm = dataclasses.field(default_factory=PPO)
    policies: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)  # their seats, by name
    frozen: bool = False  # it plays but does not learn
    weights: str | None = None  # a run folder to start from

    def __post_init__(self):
        check_types(self, "learner")


@dataclasses.dataclass(frozen=True)
class Stepping:
    """How environments are stepped. workers: the number of worker processes; 0: in this process.

    timeout: seconds that a step may take. After that a worker is replaced; in this process, a warning is printed.
    """

    workers: int = 0
    timeout: float = TIMEOUT

    def __post_init__(self):
        whole = isinstance(self.workers, int) and not isinstance(self.workers, bool) and self.workers >= 0
        require(whole, "environments", "env_workers", self.workers, "a whole number, 0 (none) or greater")
        require_positive("environments", env_timeout=self.timeout)


IN_THIS_PROCESS = Stepping()


class Config(abc.ABC):
    """The config of a run: a frozen dataclass that round-trips to JSON and builds the program that is run."""

    kind: ClassVar[str]
    """The kind of run, a key of `run_kinds`."""

    @property
    @abc.abstractmethod
    def played(self) -> "Experiment":
        """The experiment whose world the trained policies play."""

    @property
    def trainings(self) -> int:
        """How many trainings run side by side: seeds, points of a sweep times seeds, or members."""
        return self.played.num_seeds

    @abc.abstractmethod
    def at_home(self) -> "Config":
        """The same with absolute paths: a run may be resumed from another working directory."""

    @abc.abstractmethod
    def program(self, devices: int | None = None) -> "Program[Any]":
        """The program for the loop, over all local devices or the first few; refuses what cannot work or fit."""

    def read_meta(self, path: Path) -> dict[str, Any]:
        """The meta data of a checkpoint of such a run: at least `update` and `seconds`."""
        return records.read_progress(path, self.played.num_updates)

    def is_finished(self, meta: Mapping[str, Any]) -> bool:
        """Whether the run is complete at a checkpoint with this meta data."""
        return meta["update"] >= self.played.num_updates


class Extensible(Config):
    """The config of a run that may be continued beyond its end, by a larger total."""

    extent: ClassVar[str]
    """The option with that total."""

    @property
    @abc.abstractmethod
    def total(self) -> int: ...

    @abc.abstractmethod
    def extended(self, total: int) -> Self:
        """The same with another total."""


class Composed(Config):
    """A config built on an experiment, which it varies, tunes or evolves."""

    experiment: "Experiment"

    @property
    def played(self) -> "Experiment":
        return self.experiment

    def at_home(self) -> Self:
        return dataclasses.replace(self, experiment=self.played.at_home())  # pyright: ignore[reportArgumentType]


@dataclasses.dataclass(frozen=True)
class Experiment(Extensible):
    """Everything needed to reproduce a training run."""

    kind: ClassVar[str] = "training"
    extent: ClassVar[str] = "total_env_steps"

    env: str  # id of the world
    env_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # options that differ from the defaults
    wrappers: tuple[Wrapper, ...] = ()  # wrappers around the world, the innermost first
    learners: Mapping[str, Learner] = dataclasses.field(default_factory=lambda: {"learner": Learner()})
    num_envs: int = 1024  # copies of the world, for each seed
    num_steps: int = 128  # steps of each copy between two updates
    total_env_steps: int = 1_000_000  # steps over all copies, of each seed; rounded up to whole updates
    seed: int = 0  # seed of everything random
    num_seeds: int = 1  # independent trainings side by side, with seeds seed, seed + 1, ...
    randomise: bool = False  # each episode draws its parameters from the world's sample_params
    eval_every: int = 0  # env steps between two greedy evaluations, rounded up to whole lines of metrics; 0: none
    eval_episodes: int = 128  # episodes per evaluation
    keep_checkpoints: int = 3  # number of newest checkpoints to keep
    origin: Origin = dataclasses.field(default=USER, compare=False, repr=False, metadata=UNSTORED)  # source of `env`

    def __post_init__(self):
        listed = isinstance(self.wrappers, tuple | list)
        require(listed, "experiment", "wrappers", self.wrappers, "a tuple of wrappers, such as (FrameStack(count=4),)")
        count = len(self.wrappers)
        require(count <= MOST_WRAPPERS, "experiment", "wrappers", count, f"{MOST_WRAPPERS} at most")
        for wrapper in self.wrappers:
            is_plan = isinstance(wrapper, Wrapper) and wrapper.env == NOTHING and wrapper.name in WRAPPERS
            allowed = "known wrappers that are around no world yet, such as FrameStack(count=4)"
            require(is_plan, "experiment", "wrappers", wrapper, allowed)
        check_types(self, "experiment")
        require_positive(
            "experiment",
            num_envs=self.num_envs,
            num_steps=self.num_steps,
            total_env_steps=self.total_env_steps,
            num_seeds=self.num_seeds,
            eval_episodes=self.eval_episodes,
            keep_checkpoints=self.keep_checkpoints,
        )
        require(self.eval_every >= 0, "experiment", "eval_every", self.eval_every, "at least 0")
        for name in ("num_envs", "num_steps", "total_env_steps", "num_seeds"):
            require(getattr(self, name) < 2**63, "experiment", name, getattr(self, name), "less than 2^63")
        require(0 <= self.seed < 2**32, "experiment", "seed", self.seed, "between 0 and 2^32 - 1")
        require(bool(self.learners), "experiment", "learners", self.learners, "at least one learner")

    @property
    def num_updates(self) -> int:
        return -(-self.total_env_steps // (self.num_envs * self.num_steps))

    @functools.cached_property
    def world(self) -> Env:
        """The world with its wrappers; built on first access."""
        world = build_env(self.origin, self.env, self.env_options)
        if self.wrappers and isinstance(world, HostEnvProxy):
            raise OptionError(
                f"{self.env} runs on the host, where Shoal's wrappers do not apply: use its own library's, and leave "
                "out --wrap"
            )
        return wrap(world, self.wrappers) if self.wrappers else world

    def replace(self, **changes: Any) -> "Experiment":
        """The same with some changes. Unlike `dataclasses.replace`, keeps the world if it has been built."""
        changed = dataclasses.replace(self, **changes)
        same = all(vars(self)[name] == vars(changed)[name] for name in ("env", "env_options", "wrappers"))
        if "world" in vars(self) and same and changed.origin is self.origin:
            vars(changed)["world"] = self.world
        return changed

    @functools.cached_property
    def setup(self) -> "Setup":
        """The world with its seats assigned to policies, and the learners; made on first access."""
        return _make_setup(self)

    @property
    def played(self) -> "Experiment":
        return self

    @property
    def total(self) -> int:
        return self.total_env_steps

    def extended(self, total: int) -> "Experiment":
        return self.replace(total_env_steps=total)

    def at_home(self) -> "Experiment":
        learners = dict(self.learners)
        for name, learner in learners.items():
            if learner.weights:
                learners[name] = dataclasses.replace(learner, weights=str(Path(learner.weights).absolute()))
        return self.replace(learners=learners)

    def program(self, devices: int | None = None, stepping: Stepping = IN_THIS_PROCESS) -> "Program[Any]":
        """The fused program, or the host program for an environment on the host. stepping: how that is stepped."""
        from shoal.training import fused, host  # which import this module

        if isinstance(self.world, HostEnvProxy):
            return host.make_host_program(self, devices, stepping)
        check_stepping(self, stepping)
        return fused.make_fused_program(self, devices)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data; refuses algorithms, networks and wrappers that could not be restored from a run folder."""
        return to_plain(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any], origin: Origin = DATA) -> "Experiment":
        """The inverse of `to_dict`; errors name unknown or missing entries. origin: where the data comes from."""
        return from_plain(Experiment, data, "experiment", origin)


@dataclasses.dataclass(frozen=True)
class Setup:
    """A resolved experiment: the world with its seats assigned to policies, and the learners."""

    experiment: Experiment
    env: Env
    spec: Spec
    learners: dict[str, tuple[Algorithm, LearnerSpec]]

    @functools.cached_property
    def algorithms(self) -> dict[str, Algorithm]:
        """The algorithm of each policy, in the order of the world's groups."""
        by_policy = {policy: algorithm for algorithm, spec in self.learners.values() for policy in spec.groups}
        return {name: by_policy[name] for name in self.spec.groups}

    @functools.cached_property
    def recorders(self) -> dict[bool, Any]:
        """What records episodes, by whether policies explore: see `evaluate.recorder_of`, which fills it."""
        return {}

    def vectorised(self, num_envs: int | None = None) -> Vectorised:
        with_state = any(algorithm.traits.needs_global_state for algorithm, _ in self.learners.values())
        return Vectorised(self.env, num_envs or self.experiment.num_envs, self.experiment.randomise, with_state)


def check_stepping(experiment: Experiment, stepping: Stepping) -> None:
    """Refuses workers for a compiled world, which is not stepped in Python."""
    if stepping.workers:
        raise OptionError(
            f"{experiment.env} is compiled: --env-workers is for environments of other libraries, which are stepped in "
            "Python; leave it out"
        )


def make_world(experiment: Experiment) -> Env:
    """Builds the world of an experiment with its wrappers; the only place where that happens."""
    return experiment.world


def _make_setup(experiment: Experiment) -> Setup:
    world = make_world(experiment)
    groups = groups_of(world)
    seats: dict[str, tuple[str, ...]] = {}
    owned: dict[str, list[str]] = {}
    for name, learner in experiment.learners.items():
        policies = learner.policies or {group: (group,) for group in groups}
        for policy, chairs in policies.items():
            if policy in seats:
                raise OptionError(f"the policy name {policy!r} is used twice; give each policy its own name")
            seats[policy] = tuple(chairs)
        owned[name] = list(policies)
    env = regroup(world, seats)
    spec = describe(env)
    learners = {}
    for name, learner in experiment.learners.items():
        groups = {policy: spec.groups[policy] for policy in owned[name]}
        observations = {policy: spec.observations[policy] for policy in owned[name]}
        sizes = experiment.num_updates, observations, experiment.num_envs, experiment.num_steps
        learners[name] = (learner.algorithm, LearnerSpec(groups, spec.state, *sizes))
    return Setup(experiment, env, spec, learners)
