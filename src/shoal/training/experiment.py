"""An experiment as plain data: which world, who learns for which seats, how much. Round-trips to JSON."""

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any

from shoal.algorithms import PPO, algorithm_class
from shoal.algorithms.registry import check_registered
from shoal.batching.regroup import regroup
from shoal.batching.vectorise import Vectorised
from shoal.core.algorithm import Algorithm, LearnerSpec
from shoal.core.env import Env, Spec, describe, groups_of
from shoal.core.errors import OptionError, require, require_positive, unknown_name
from shoal.core.host import HostEnvProxy
from shoal.core.options import check_types
from shoal.core.origin import DATA, USER, Origin
from shoal.core.registry import build_env
from shoal.envs.wrappers import NOTHING, WRAPPERS, Wrapper, wrap, wrapper_class

UNSTORED = {"stored": False}
"""Marks a field that does not go into JSON."""
MOST_WRAPPERS = 64
"""Wrappers around a world: each is a call inside the next."""


@dataclasses.dataclass(frozen=True)
class Learner:
    """An algorithm and the policies it trains.

    `policies` maps a policy's name to the seats it plays, written as `group`, `group[2]` or `group[1:3]`; empty means
    one policy for each group. A frozen learner plays but does not learn. `weights` is a run folder to start from.
    """

    algorithm: Algorithm = dataclasses.field(default_factory=PPO)
    policies: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    frozen: bool = False
    weights: str | None = None

    def __post_init__(self):
        check_types(self, "learner")


@dataclasses.dataclass(frozen=True)
class Experiment:
    """All that is needed to reproduce a run."""

    env: str  # id of the world
    env_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # options that differ from its defaults
    wrappers: tuple[Wrapper, ...] = ()  # what is put around the world, the innermost first
    learners: Mapping[str, Learner] = dataclasses.field(default_factory=lambda: {"learner": Learner()})
    num_envs: int = 1024  # copies of the world
    num_steps: int = 128  # steps of each copy between two updates
    total_env_steps: int = 1_000_000  # steps over all copies, however many agents; rounded up to whole updates
    seed: int = 0  # seed of everything random
    num_seeds: int = 1  # independent trainings side by side, with seeds seed, seed + 1, ...
    randomise: bool = False  # each episode draws its parameters from the world's sample_params
    eval_every: int = 0  # env steps between two greedy evaluations, rounded up to lines of metrics; 0: none
    eval_episodes: int = 128  # episodes of each of them
    keep_checkpoints: int = 3  # how many of the newest checkpoints are kept
    origin: Origin = dataclasses.field(default=USER, compare=False, repr=False, metadata=UNSTORED)  # who named `env`

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
        """The world, its wrappers included; built when first asked for."""
        world = build_env(self.origin, self.env, self.env_options)
        if self.wrappers and isinstance(world, HostEnvProxy):
            raise OptionError(
                f"{self.env} runs on the host, where wrappers of ours cannot reach: use its own library's, and leave "
                "out --wrap"
            )
        return wrap(world, self.wrappers)

    @functools.cached_property
    def setup(self) -> "Setup":
        """The world with its seats dealt to the policies, and who learns what; made when first asked for."""
        return _make_setup(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return _plain(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any], origin: Origin = DATA) -> "Experiment":
        """The inverse of `to_dict`; unknown or missing entries are named. origin: where the data comes from."""
        return dataclasses.replace(_build(Experiment, data, "experiment"), origin=origin)


@dataclasses.dataclass(frozen=True)
class Setup:
    """An experiment's parts made real: the world with its seats dealt to policies, and who learns what."""

    experiment: Experiment
    env: Env
    spec: Spec
    learners: dict[str, tuple[Algorithm, LearnerSpec]]

    @functools.cached_property
    def algorithms(self) -> dict[str, Algorithm]:
        """The algorithm of each policy, in the order of the world's groups."""
        by_policy = {policy: algorithm for algorithm, spec in self.learners.values() for policy in spec.groups}
        return {name: by_policy[name] for name in self.spec.groups}

    def vectorised(self, num_envs: int | None = None) -> Vectorised:
        with_state = any(algorithm.traits.needs_global_state for algorithm, _ in self.learners.values())
        return Vectorised(self.env, num_envs or self.experiment.num_envs, self.experiment.randomise, with_state)


def make_world(experiment: Experiment) -> Env:
    """The world of an experiment, its wrappers included: whoever plays an experiment gets its world from here."""
    return experiment.world


def make_wrapper(data: Mapping[str, Any], where: str) -> Wrapper:
    """A wrapper from plain data, `{"name": "frame_stack", "count": 4}`; `where` begins what is said if it is wrong."""
    return _build(Wrapper, data, where)


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


def check_storable(experiment: Experiment) -> None:
    """Refuses what a run folder could not give back: algorithms, networks and wrappers of other classes."""
    experiment.to_dict()


def to_plain(value: Any) -> Any:
    """A dataclass of settings as plain JSON data."""
    return _plain(value)


def from_plain(cls: Any, data: Any, where: str) -> Any:
    """The inverse of `to_plain`; `where` begins what is said of entries that are unknown or of the wrong kind."""
    return _build(cls, data, where)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = typing.get_type_hints(type(value))
        for field in _entries(type(value)):
            _check_kept(hints[field.name], getattr(value, field.name), f"{type(value).__name__}.{field.name}")
        fields = {field.name: _plain(getattr(value, field.name)) for field in _entries(type(value))}
        return {"name": value.name, **fields} if isinstance(value, Algorithm | Wrapper) else fields
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        for entry in value:
            _check_kept(Any, entry, "wrappers")
        return [_plain(entry) for entry in value]
    return value


def _check_kept(hint: Any, value: Any, where: str) -> None:
    """Refuses an object that would be read back as one of another class: a run must go on as it began."""
    if hint is Algorithm:
        check_registered(value, where)
        kept = True
    elif isinstance(value, Wrapper):
        kept = WRAPPERS.get(str(getattr(type(value), "name", None))) is type(value)
    else:
        kept = not dataclasses.is_dataclass(hint) or type(value) is hint
    if not kept:
        raise OptionError(
            f"{where} is of the class {type(value).__qualname__}, which a run folder cannot name: it would go on as "
            "another. Train it without a run folder (shoal.train without run_dir), or use one of Shoal's own classes"
        )


def _entries(cls: Any) -> list[dataclasses.Field]:
    """The fields of a dataclass that are stored: all, but for those marked, and the world that a wrapper is around."""
    is_wrapper = isinstance(cls, type) and issubclass(cls, Wrapper)
    stored = [field for field in dataclasses.fields(cls) if field.metadata.get("stored", True)]
    return [field for field in stored if not (is_wrapper and field.name == "env")]


def _build(cls: Any, data: Any, where: str) -> Any:
    if cls in (Algorithm, Wrapper):
        data = dict(_expect(data, Mapping, where))
        find = algorithm_class if cls is Algorithm else wrapper_class
        cls = find(str(data.pop("name", None)))
    hints = typing.get_type_hints(cls)
    fields = [field.name for field in _entries(cls)]
    for key in _expect(data, Mapping, where):
        if key not in fields:
            raise OptionError(f"{where}: {unknown_name('entry', key, fields)}")
    values = {key: _convert(hints[key], entry, f"{where}.{key}") for key, entry in data.items()}
    return cls(**values, **({"origin": DATA} if cls is Experiment else {}))


def _convert(hint: Any, data: Any, where: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Algorithm or dataclasses.is_dataclass(hint):
        return _build(hint, data, where)
    if origin in (typing.Union, types.UnionType):
        return None if data is None else _convert(args[0], data, where)
    if hint is Any:
        return data
    if origin is typing.Literal:
        require(data in args, where, "value", data, " or ".join(repr(arg) for arg in args))
        return data
    if origin is tuple:
        return tuple(_convert(args[0], entry, f"{where}[{i}]") for i, entry in enumerate(_expect(data, list, where)))
    if origin is Mapping or (isinstance(origin, type) and issubclass(origin, Mapping)):
        entries = _expect(data, Mapping, where).items()
        return {str(key): _convert(args[1], entry, f"{where}.{key}") for key, entry in entries}
    if hint is float and isinstance(data, int) and not isinstance(data, bool):
        require(-1e300 < data < 1e300, where, "value", f"one of {data.bit_length()} bits", "a number of usual size")
        return float(data)
    return _expect(data, hint, where)


def _expect(data: Any, kind: type, where: str) -> Any:
    if not isinstance(data, kind) or (kind is int and isinstance(data, bool)):
        raise OptionError(f"{where}: expected {kind.__name__}, got {data!r}")
    return data
