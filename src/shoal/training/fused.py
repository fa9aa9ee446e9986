"""The fused runner: everything from `reset` to the updated weights is one compiled program.

The carry (worlds, memory, learners, counters) is donated, so it stays on the device and is updated in place; the host
only passes the number of updates, and later reads a small table of metrics. The copies are sharded over the devices;
gradients and statistics are summed over them. Several seeds, and several values of float hyper-parameters, are a vmap
over the whole program.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from jax.extend.core import jaxpr_as_fun
from jax.sharding import PartitionSpec as P

from shoal.batching.policies import Policies
from shoal.batching.regroup import unwrap_regrouped
from shoal.batching.rollout import Episodes, Rollout, make_experience, rollout
from shoal.batching.vectorise import Worlds
from shoal.core import trees
from shoal.core.algorithm import Replays, require_protocol
from shoal.core.checks import require_counts
from shoal.core.contract import check_contract, checked_update
from shoal.core.errors import OptionError
from shoal.core.extensions import is_own
from shoal.core.host import HostEnvProxy
from shoal.core.keys import run_keys
from shoal.core.types import PyTree
from shoal.ops.devices import after, largest_over_devices, sum_over_devices
from shoal.ops.kernels.choices import record_choices
from shoal.ops.replay import is_replay, num_bytes
from shoal.training import nan_guard, records
from shoal.training.devices import AXIS, make_mesh, make_mesh_of_hosts, place
from shoal.training.experiment import Experiment, Setup
from shoal.training.kernel_use import describe_kernels
from shoal.training.local_program import LocalProgram
from shoal.training.memory import Need, device_bytes, largest, need_of, on_host, require_room, size
from shoal.training.program import MAX_UPDATES, CompiledProgram, Tally, Watched
from shoal.training.run import check_weights, weights_from
from shoal.training.side_by_side import compile_together, lay_out
from shoal.training.stored_replays import load_with_replays

REPLAY_SHARE = 0.8
"""Share of a device's memory that replays may take: worlds, weights and batches need some too."""
PRIORITY_BYTES = 4
"""Bytes per step of a prioritised replay, besides the step itself."""

Overrides = Mapping[str, Mapping[str, np.ndarray]]
"""Values `[points]` of float hyper-parameters, by learner and by name; every point is trained with every seed."""


class Carry(struct.PyTreeNode):
    """The whole state of a run, on the device. In a stacked program, leaves have a leading axis, points x seeds."""

    worlds: Worlds
    memory: PyTree
    learners: dict[str, Any]
    key: jax.Array
    update: jax.Array
    latch: nan_guard.Latch


class Traced(NamedTuple):
    """One update, traced. metrics: their shapes. kernels: the parts of it that run as kernels, see `kernel_use`."""

    local: LocalProgram
    metrics: dict[str, Any]
    kernels: str


@dataclasses.dataclass(frozen=True)
class FusedProgram(CompiledProgram[Carry]):
    """An experiment, compiled: `init` makes the carry, `advance` makes updates. Built by `build`.

    It is stacked if it has several trainings side by side: `points` of overridden hyper-parameters, the seeds of one
    point adjacent. The values are data: the same number of other points is the same program.
    """

    setup: Setup
    mesh: jax.sharding.Mesh
    overrides: Overrides = dataclasses.field(default_factory=dict)

    @property
    def experiment(self) -> Experiment:
        return self.setup.experiment

    @functools.cached_property
    def names(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return tuple(self.traced.metrics)

    @functools.cached_property
    def traced(self) -> Traced:
        """One update as every device makes it; nothing is computed.

        The code of worlds and learners is traced here alone: what is compiled repeats the operations found.
        """
        update = functools.partial(self.update, axis=self.axis)
        spread = self.spread(jax.vmap(update) if self.stacked else update, self.specs())
        with record_choices() as choices:
            whole, (_, metrics) = jax.make_jaxpr(spread, return_shape=True)(self.shapes())
        local = LocalProgram.of(whole)
        return Traced(local, metrics, describe_kernels(local.jaxpr, choices))

    @property
    def kernels(self) -> str:
        return self.traced.kernels

    @property
    def trainings(self) -> int:
        """The number of trainings side by side."""
        return self.experiment.num_seeds * num_points(self.overrides)

    @functools.cached_property
    def need(self) -> Need:
        """The memory it needs, from its trace."""
        carry, (local, metrics, _) = self.shapes(), self.traced
        whole = () if on_host() else carry.learners  # without replays, which are split
        whole = jax.tree.map(lambda leaf: () if is_replay(leaf) else leaf, whole, is_leaf=is_replay)
        table = 2 * 4 * MAX_UPDATES * len(metrics) * self.trainings  # of the running call and of the one being read
        one = need_of(carry, local.jaxpr, whole)
        return dataclasses.replace(one, made=one.made * self.mesh.size + table)

    def check(self) -> None:
        """Refuses an update that cannot be traced, and then one that does not fit into memory."""
        _ = self.traced
        check_memory(self, self.need)

    def init(self) -> Carry:
        """Fresh worlds and learners. Each device makes its share: a large replay would not fit on one."""
        return self._make()

    @functools.cached_property
    def _make(self) -> Any:
        initial, shapes = self._initial

        def _init_all() -> Carry:
            return jax.tree.unflatten(jax.tree.structure(shapes), jaxpr_as_fun(initial)())

        return jax.jit(_init_all, out_shardings=self.shardings)

    def shapes(self) -> Carry:
        return self._initial[1]

    @functools.cached_property
    def _initial(self) -> tuple[Any, Carry]:
        """What makes the carry, as a jaxpr, and the carry's shapes; nothing is computed."""
        return jax.make_jaxpr(self._init_all, return_shape=True)()

    def begin(self) -> Carry:
        compile_together((self._make, ()), (self.advance, (lay_out(self.shapes(), self.shardings), self.counts[0])))
        return with_weights(self, self.init())

    @property
    def stacked(self) -> bool:
        """Whether every leaf of the carry has a leading axis of trainings."""
        return bool(self.overrides) or self.experiment.num_seeds > 1

    @property
    def metric_shape(self) -> tuple[int, ...]:
        return (self.trainings,) if self.stacked else ()

    def step(self, carry: Carry, axis: str | None) -> tuple[Carry, jax.Array]:
        del axis  # the program was traced with it
        local, metrics, _ = self.traced
        carry, made = jax.tree.unflatten(jax.tree.structure((carry, metrics)), local(*jax.tree.leaves(carry)))
        return carry, self.row(made, axis=-1)

    def policies(self, carry: Carry) -> dict[str, PyTree]:
        return jax.device_get(policies_of(carry.learners))

    def policies_of_one(self, carry: Carry, training: int) -> dict[str, PyTree]:
        """The policies of one of the trainings side by side: copies, which do not keep those of all others alive."""
        return jax.tree.map(np.array, trees.row(self.policies(carry), training))

    def watched(self, carry: Carry, lines: Sequence[dict[str, Any]]) -> Watched:
        """Of several seeds, the first."""
        del lines
        return Watched(self.policies_of_one(carry, 0) if self.stacked else self.policies(carry))

    def fault(self, carry: Carry, tally: Tally) -> str | None:
        error = nan_guard.report(jax.device_get(carry.latch), self.experiment.env, list(self.setup.spec.groups))
        return error and str(error)

    def stored(self, carry: Carry) -> tuple[PyTree, dict[str, Any]]:
        return carry.replace(latch=None), {}

    def restore(self, path: Path, meta: dict[str, Any]) -> Carry:
        shapes = self.shapes()
        stored = load_with_replays(path, shapes.replace(latch=None))
        if np.any(np.asarray(stored.update) != meta["update"]):
            raise records.forged(path, "its arrays are not from the update that its meta data gives")
        records.check_finite(path, {name: learner.params for name, learner in stored.learners.items()})
        untripped = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes.latch)
        return place(stored.replace(latch=untripped, learners=self.stretch_schedules(stored.learners)), self.shardings)

    def stretch_schedules(self, learners: dict[str, Any]) -> dict[str, Any]:
        """Stored learners with schedules that end at the run's current total, which may have been raised."""

        def stretched(state: Any) -> Any:
            if "total_updates" not in state.hyper:
                return state
            total = np.full_like(state.hyper["total_updates"], self.num_updates)
            return state.replace(hyper=state.hyper | {"total_updates": total})

        return {name: stretched(state) for name, state in learners.items()}

    def specs(self) -> Carry:
        """Which leaves are split over the devices: those with an axis of copies."""
        carry = self.shapes()
        lead = (None,) if self.stacked else ()
        split, whole = P(*lead, AXIS), P()

        def fill(spec, tree):
            return jax.tree.map(lambda _: spec, tree)

        def replay_specs(leaf):
            if not is_replay(leaf):
                return whole
            split = P(*lead, None, AXIS)  # rows of time come first
            priority = None if leaf.priority is None else split
            return leaf.replace(store=fill(split, leaf.store), priority=priority, written=whole)

        return fill(whole, carry).replace(
            worlds=fill(split, carry.worlds).replace(clock=whole),
            memory=fill(split, carry.memory),
            latch=fill(split, carry.latch),
            learners=jax.tree.map(replay_specs, carry.learners, is_leaf=is_replay),
        )

    def _init_all(self) -> Carry:
        seed = self.experiment.seed
        if not self.stacked:
            return self.init_one(jnp.uint32(seed), {})
        seeds = jnp.arange(self.experiment.num_seeds, dtype=jnp.uint32) + jnp.uint32(seed)
        points = num_points(self.overrides)
        floats = jax.tree.map(
            lambda values: jnp.repeat(jnp.asarray(values, jnp.float32), len(seeds)),
            {name: dict(options) for name, options in self.overrides.items()},
        )
        return trees.map_in_turn(lambda one: self.init_one(*one), (jnp.tile(seeds, points), floats))

    def init_one(self, seed: jax.Array, floats: dict[str, dict[str, jax.Array]]) -> Carry:
        """The carry of one training. floats: overridden options, by learner."""
        keys = run_keys(seed)
        learners = self.init_learners(keys.learner, floats)
        worlds = self.setup.vectorised().reset(keys.world)
        memory = self._actor.initial_memory(policies_of(learners), self.experiment.num_envs)
        return Carry(worlds, memory, learners, keys.update, jnp.int32(0), nan_guard.clear(self.mesh.size))

    def init_learners(self, key: jax.Array, floats: dict[str, dict[str, jax.Array]]) -> dict[str, Any]:
        """Learners before the first update. floats: overridden options, by learner."""
        learners = {}
        for i, (name, (algorithm, spec)) in enumerate(self.setup.learners.items()):
            if name in floats:  # before `init`, which may derive more from them than `hyper`
                algorithm = dataclasses.replace(algorithm, **floats[name])  # pyright: ignore[reportArgumentType]
            learners[name] = algorithm.init(jax.random.fold_in(key, i), spec)
            if self.experiment.learners[name].frozen and algorithm.traits.replay:
                learners[name] = learners[name].replace(replay=None)  # a frozen learner needs none
        return learners

    @functools.cached_property
    def _actor(self) -> Policies:
        return Policies(self.setup.algorithms, self.setup.spec.groups)

    def update(self, carry: Carry, axis: str | None) -> tuple[Carry, dict[str, jax.Array]]:
        """One rollout of all copies, then one update of every learner that learns."""
        share = carry.worlds.first.shape[0]
        vectorised = self.setup.vectorised(share)
        policies = policies_of(carry.learners)
        worlds, memory, steps = rollout(
            vectorised, self._actor, policies, carry.worlds, carry.memory, self.experiment.num_steps
        )
        made = Rollout(steps, carry.memory, worlds.observation, memory, carry.worlds.clock)
        learners, latch, metrics = self.learn(carry.learners, carry.latch, carry.key, carry.update, made, axis)
        return Carry(worlds, memory, learners, carry.key, carry.update + 1, latch), metrics

    def learn(
        self,
        learners: dict[str, Any],
        latch: nan_guard.Latch,
        key: jax.Array,
        update: jax.Array,
        made: Rollout,
        axis: str | None = None,
    ) -> tuple[dict[str, Any], nan_guard.Latch, dict[str, jax.Array]]:
        """One update of every learner that learns, from a rollout of all copies: learners, latch and metrics.

        key: of all updates of the run (`run_keys`); update: which one it is.
        """
        whole = make_experience(made.steps, made.memory, made.last_observation, made.last_memory)
        learners, metrics, key = dict(learners), {}, jax.random.fold_in(key, update)
        for i, (name, (algorithm, spec)) in enumerate(self.setup.learners.items()):
            if self.experiment.learners[name].frozen:
                continue
            step = algorithm.update if is_own(algorithm) else functools.partial(checked_update, algorithm)
            own = whole.replace(trajectories={group: whole.trajectories[group] for group in spec.groups})
            with after(policies_of(learners), axis):
                learners[name], results = step(learners[name], own, jax.random.fold_in(key, i), axis)
            metrics |= results
        share = made.steps.first.shape[1]
        latch = nan_guard.check(
            latch, update, made.steps, made.clock, made.last_observation, learners, metrics, share, axis
        )
        with after(policies_of(learners), axis):
            metrics |= step_metrics(made.steps.metrics, made.steps.episodes, axis)
        with after((metrics, policies_of(learners)), axis):
            metrics["fault"] = largest_over_devices(jnp.max(latch.kind), axis)
        return learners, latch, metrics


def check_compiled(setup: Setup) -> None:
    """Refuses environments that are stepped in Python: only their proxies, which do nothing, would be stepped."""
    if isinstance(unwrap_regrouped(setup.env), HostEnvProxy):
        raise OptionError(
            f"{setup.experiment.env} runs on the host, in Python: it cannot be part of a compiled program. "
            "`shoal train` and `shoal.train` train in it, one training at a time."
        )


Built = TypeVar("Built", bound=FusedProgram)


def make_fused_program(
    experiment: Experiment,
    devices: int | None = None,
    overrides: Overrides | None = None,
    kind: Callable[[Setup, jax.sharding.Mesh, Overrides], Built] = FusedProgram,
    all_hosts: bool = False,
) -> Built:
    """The program of an experiment, over all local devices or the first few; `overrides` make it a sweep.

    Refuses options that do not go together; whether its updates can be made, and fit into memory, `check` says.
    all_hosts: over those of all hosts that this process has joined (`training.hosts`).
    """
    require_counts("experiment", num_envs=experiment.num_envs, num_steps=experiment.num_steps)
    setup = experiment.setup
    check_compiled(setup)
    check_contracts(setup)
    mesh = mesh_of(experiment, devices, all_hosts)
    check_warm_up(experiment)
    # Cores are devices of their own here, but they share the memory of the machine.
    memories = 1 if mesh.devices.flat[0].platform == "cpu" else mesh.size
    check_replays(setup, num_points(overrides or {}), memories)
    return kind(setup, mesh, overrides or {})


def mesh_of(experiment: Experiment, devices: int | None = None, all_hosts: bool = False) -> jax.sharding.Mesh:
    """The devices that an experiment runs on: those of all local ones, or of the first few, that speed it up."""
    parts = copies_unit(experiment)
    if experiment.num_envs % parts:
        raise OptionError(
            f"num_envs must be a multiple of the number of minibatches, {parts}, got {experiment.num_envs}. "
            f"Try {math.ceil(experiment.num_envs / parts) * parts}."
        )
    return (make_mesh_of_hosts if all_hosts else make_mesh)(experiment.num_envs, parts, devices)


def check_contracts(setup: Setup) -> None:
    """Refuses a third-party algorithm that breaks the contract, with a clear message, before anything is compiled."""
    for algorithm, spec in setup.learners.values():
        if not is_own(algorithm):
            check_contract(algorithm, spec)


def check_warm_up(experiment: Experiment) -> None:
    """Refuses a run that would end before one of its learners starts to learn."""
    total = experiment.total_env_steps
    for name, learner in experiment.learners.items():
        warm_up = learner.algorithm.traits.warm_up
        if warm_up >= total and not learner.frozen:
            raise OptionError(
                f"learner {name!r} would never learn: its warm_up, {warm_up:,} env steps, must be less than "
                f"total_env_steps, {total:,}. Raise total_env_steps or lower warm_up."
            )


def check_memory(program: FusedProgram, whole: Need) -> None:
    """Refuses a program that does not fit into memory, before it is compiled; the error gives what would fit.

    whole: the memory it needs.
    """
    experiment, devices = program.experiment, program.mesh.size

    @functools.cache
    def need(num_envs: int, num_steps: int = experiment.num_steps) -> Need:
        if (num_envs, num_steps) == (experiment.num_envs, experiment.num_steps):
            return whole
        smaller = experiment.replace(num_envs=num_envs, num_steps=num_steps).setup
        return dataclasses.replace(program, setup=smaller).need

    def advice() -> str:
        one = dataclasses.replace(whole, **_divide(whole, program.trainings))
        most = largest(one.times, program.trainings, devices=devices)
        if most is not None:
            return f"At most {most:,} trainings side by side fit (num_seeds x points)."
        most = largest(need, experiment.num_envs, copies_unit(experiment) * devices, devices)
        fewer = largest(functools.partial(need, experiment.num_envs), experiment.num_steps, devices=devices)
        alone = "" if program.trainings == 1 else " in one training"
        steps = "" if fewer is None else f"With all copies, the largest num_steps that fits{alone} is {fewer:,}."
        if most is not None:
            return f"The largest num_envs that fits{alone} is {most:,}. {steps}".rstrip()
        if steps:
            return steps
        least = copies_unit(experiment) * devices
        few = f"Not even {least} cop{'ies' if least > 1 else 'y'} would" if experiment.num_envs > least else "It cannot"
        return f"{few} fit: use a smaller world (fewer agents), fewer steps (num_steps) or a smaller network."

    copies = f"{experiment.num_envs:,} copies x {experiment.num_steps:,} steps"
    many = f", {program.trainings:,} trainings side by side" if program.trainings > 1 else ""
    require_room(f"{experiment.env} with {copies}{many}", whole, advice, devices)


def _divide(need: Need, count: int) -> dict[str, int]:
    return {name: value // count for name, value in dataclasses.asdict(need).items()}


def copies_unit(experiment: Experiment) -> int:
    """The number that `num_envs` must be a multiple of: common to the minibatches of all learners."""
    return math.lcm(*(learner.algorithm.traits.minibatches for learner in experiment.learners.values()))


def check_replays(setup: Setup, points: int = 1, memories: int = 1) -> None:
    """Refuses replays that together take more than their share of memory.

    memories: number of devices that the copies, and so their stored steps, are spread over.
    """
    sizes = {}
    for name, (algorithm, spec) in setup.learners.items():
        traits = algorithm.traits.replay
        if traits and not setup.experiment.learners[name].frozen:
            example, rows, num_envs = require_protocol(algorithm, Replays, f"learner {name!r}").replay_shape(spec)
            priority = PRIORITY_BYTES if traits.prioritised else 0
            sizes[name] = num_bytes(example, 1, 1) + priority, rows * num_envs
    if not sizes:
        return
    trainings, room = setup.experiment.num_seeds * points, device_bytes()
    total = sum(step * steps for step, steps in sizes.values()) * trainings / memories
    if total <= REPLAY_SHARE * room:
        return
    each = ", ".join(f"{name!r}: {steps:,} steps of {step:,} bytes" for name, (step, steps) in sizes.items())
    many = f"; {trainings} trainings side by side" if trainings > 1 else ""
    spread = f"; spread over {memories} devices" if memories > 1 else ""
    update = setup.experiment.num_envs * setup.experiment.num_steps  # sizes are rounded up to whole ones
    fits = [int(REPLAY_SHARE * room / total * steps) // update * update for _, steps in sizes.values()]
    lower = f"Lower buffer_size to {' and '.join(f'{most:,}' for most in fits)} or less."
    raise OptionError(
        f"replays take {size(total)} of a device ({each}{many}{spread}), but may take at most {REPLAY_SHARE:.0%} of "
        f"the {size(room)} that are free there. {lower if all(fits) else 'Use fewer copies (num_envs).'}"
    )


def num_points(overrides: Overrides) -> int:
    """The number of points; 1 without overrides, the experiment itself."""
    sizes = (len(values) for options in overrides.values() for values in options.values())
    return next(sizes, 1)


def with_weights(program: FusedProgram, carry: Carry) -> Carry:
    """Replaces fresh policies by those of other runs, for learners with `weights`."""
    check_weights(program.experiment)
    learners = dict(carry.learners)
    for name, learner in program.experiment.learners.items():
        if learner.weights is None:
            continue
        fresh = learners[name].params
        one = jax.tree.map(lambda leaf: leaf[0], fresh) if program.stacked else fresh
        found = weights_from(learner.weights, one)
        params = jax.tree.map(lambda leaf, old: place(np.broadcast_to(leaf, old.shape), old.sharding), found, fresh)
        learners[name] = learners[name].replace(params=params)
    return carry.replace(learners=learners)


def policies_of(learners: dict[str, Any]) -> dict[str, PyTree]:
    """The policies of all learners, by name."""
    return {name: policy for state in learners.values() for name, policy in state.params.items()}


def step_metrics(metrics: Mapping[str, jax.Array], episodes: Episodes, axis: str | None = None) -> dict[str, jax.Array]:
    """Sums over the episodes that ended in a rollout (means are taken later, over many rows), and means of the
    environment's own metrics.
    """
    sums = {"episodes": episodes.count, "length": episodes.length}
    sums |= {f"return/{name}": value for name, value in episodes.returns.items()}
    sums = {name: jnp.sum(value) for name, value in sums.items()}
    means = {f"world/{name}": jnp.mean(value.astype(jnp.float32)) for name, value in metrics.items()}
    sums, means = sum_over_devices((sums, means), axis)
    return sums | {name: value / (lax.axis_size(axis) if axis else 1) for name, value in means.items()}
