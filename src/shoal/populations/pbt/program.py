"""Population-based training as one compiled program: all members learn side by side, are compared, and copied.

Members are an axis of the fused program, each with a seed of its own. Every `interval` updates, inside the same donated
loop, members are compared by the mean returns of the episodes that ended since the last comparison, and the worst
become copies of the best (see `select`). A copy takes the weights, optimiser, statistics and hyper-parameters of its
source. It keeps its own worlds, keys and replay, and begins with an empty memory. A member that failed (NaN) takes its
source's worlds too, with its own keys, and an empty replay: its own may contain the fault.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from jax.sharding import PartitionSpec as P

from shoal.batching.regroup import return_groups
from shoal.core import trees
from shoal.core.errors import OptionError
from shoal.core.types import PyTree
from shoal.ops.replay import is_replay
from shoal.populations.pbt.plan import PBT, as_pbt
from shoal.populations.pbt.select import exploit
from shoal.training import fused, nan_guard, records
from shoal.training.experiment import Experiment, Setup
from shoal.training.fused import Carry, policies_of, with_weights
from shoal.training.program import CompiledProgram, SeparateTally, Tally, Watched
from shoal.training.stored_replays import load_with_replays
from shoal.training.sweep import SweepProgram, build_sweep

SCORE, SOURCE = "pbt/score", "pbt/source"
"""Columns of the metrics table, besides `pbt/OPTION` for each tuned option."""


class Window(struct.PyTreeNode):
    """Returns and episodes that have ended since a comparison, summed; `[M]` each."""

    total: jax.Array
    episodes: jax.Array

    def mean(self, otherwise: jax.Array) -> jax.Array:
        return jnp.where(self.episodes > 0, self.total / jnp.maximum(self.episodes, 1.0), otherwise)


class Record(struct.PyTreeNode):
    """Statistics of the members: their scores in the last comparison (NaN: none), and the returns since.

    A copy has the score and the last window of its source, as these belong to the weights.
    """

    key: jax.Array
    score: jax.Array
    now: Window
    before: Window


class PBTState(struct.PyTreeNode):
    """The whole state of the training, on the device. Every leaf of `members` has a leading axis of members."""

    members: Carry
    record: Record

    @property
    def learners(self) -> dict[str, Any]:
        return self.members.learners


class Best(struct.PyTreeNode):
    """The current best member: its number, and `params` by learner; scores of all."""

    member: jax.Array
    scores: jax.Array
    learners: dict[str, dict[str, PyTree]]

    @property
    def policies(self) -> dict[str, PyTree]:
        return {name: policy for own in self.learners.values() for name, policy in own["params"].items()}


@dataclasses.dataclass(frozen=True)
class _Members(SweepProgram):
    """Points of a sweep, each with its own seed."""

    def _init_all(self) -> Carry:
        count = fused.num_points(self.overrides)
        seeds = jnp.arange(count, dtype=jnp.uint32) + jnp.uint32(self.experiment.seed)
        floats = {name: {k: jnp.asarray(v) for k, v in options.items()} for name, options in self.overrides.items()}
        return trees.map_in_turn(lambda one: self.init_one(*one), (seeds, floats))


@dataclasses.dataclass(frozen=True)
class PBTProgram(CompiledProgram[PBTState]):
    """A population-based training, compiled: `init` makes the state, `advance` makes updates. Built by `build`.

    measure: the columns whose sum is the return that counts.
    """

    plan: PBT
    inner: _Members
    measure: tuple[str, ...]

    @property
    def experiment(self) -> Experiment:
        return self.plan.experiment

    @property
    def setup(self) -> Setup:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inner.setup

    @property
    def mesh(self) -> jax.sharding.Mesh:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inner.mesh

    @property
    def metric_shape(self) -> tuple[int, ...]:
        return (self.plan.members,)

    @property
    def kernels(self) -> str:
        return self.inner.kernels

    @functools.cached_property
    def names(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return (*self.inner.names, SCORE, *(f"pbt/{name}" for name in self.plan.over), SOURCE)

    def init(self) -> PBTState:
        return jax.jit(self._init_all, out_shardings=self.shardings)()

    def begin(self) -> PBTState:
        state = self.init()
        return state.replace(members=with_weights(self.inner, state.members))

    def shapes(self) -> PBTState:
        return jax.eval_shape(self._init_all)

    def tally(self) -> "Lineage":
        return Lineage(self)

    def policies(self, carry: PBTState) -> dict[str, PyTree]:
        """The policies of the best member."""
        return jax.device_get(self.best(carry)).policies

    def watched(self, carry: PBTState, lines: Sequence[dict[str, Any]]) -> Watched:
        """The member that is best by then; before any has a score, the first."""
        del lines
        best = jax.device_get(self.best(carry))
        known = np.isfinite(best.scores[best.member])
        return Watched(best.policies, f"member {best.member}{' (best)' if known else ''}")

    def fault(self, carry: PBTState, tally: Tally) -> str | None:
        """The error if all members have failed; single failed ones are replaced by copies of others."""
        faults = jax.device_get(carry.members.latch)
        failed = faults.kind.any(axis=-1)
        if not failed.all():
            return None
        error = nan_guard.report(faults, self.experiment.env, list(self.setup.spec.groups))
        return f"all {len(failed)} members have failed. The first: {error}"

    def stored(self, carry: PBTState) -> tuple[PyTree, dict[str, Any]]:
        """Stores the policies of the best member where other runs store theirs, so that they can be played."""
        members = carry.members.replace(latch=nan_guard.first_faults(carry.members.latch))
        best = jax.device_get(self.best(carry))
        return {"learners": best.learners, "state": carry.replace(members=members)}, {
            self.plan.kind: self.standing(carry)
        }

    def standing(self, carry: PBTState) -> dict[str, Any]:
        """`member`: the best one, whose policies are the result. `scores`, `values`: of all members.

        A score is the mean return since the last comparison, None if the member has failed or no episode has ended.
        """
        best = jax.device_get(self.best(carry))
        failed = jax.device_get(carry.members.latch).kind.any(axis=-1)
        values = jax.device_get(self.values(carry.members))
        return {
            "member": int(best.member),
            "scores": tuple(_plain(np.where(failed, np.nan, best.scores))),
            "values": {name: _plain(value) for name, value in values.items()},
        }

    def restore(self, path: Path, meta: dict[str, Any]) -> PBTState:
        """Weights may contain NaN: those of failed members, until they are replaced."""
        shapes = self.shapes()
        members = shapes.members.replace(latch=nan_guard.as_stored(shapes.members.latch))
        stored = load_with_replays(path, {"state": shapes.replace(members=members)}, partial=True)["state"]
        known = nan_guard.is_sound(stored.members.latch, self.setup.spec.groups)
        if not known or np.any(np.asarray(stored.members.update) != meta["update"]):
            raise records.forged(path, "its arrays are not from the update that its meta data gives")
        faults = nan_guard.spread(stored.members.latch, self.mesh.size)
        return jax.device_put(stored.replace(members=stored.members.replace(latch=faults)), self.shardings)

    @functools.cached_property
    def best(self):
        """`best(state) -> Best`, by the current window or, while that is short, by it and the previous one together."""
        return jax.jit(self._best)

    def check(self) -> None:
        self.inner.check()

    def values(self, members: Carry) -> dict[str, jax.Array]:
        """The value of each tuned option, `[M]`, by its name in the plan."""
        first = {name: places[0] for name, places in self.plan.start.places.items()}
        return {name: members.learners[learner].hyper[option] for name, (learner, option) in first.items()}

    def _init_all(self) -> PBTState:
        count = self.plan.members
        empty = Window(jnp.zeros(count), jnp.zeros(count))
        key = jax.random.fold_in(jax.random.key(self.experiment.seed), count)
        return PBTState(self.inner._init_all(), Record(key, jnp.full(count, jnp.nan, jnp.float32), empty, empty))

    def specs(self) -> PBTState:
        record = jax.tree.map(lambda _: P(), self.shapes().record)
        return PBTState(self.inner.specs(), record)

    def step(self, carry: PBTState, axis: str | None) -> tuple[PBTState, jax.Array]:
        """One update of every member and, if it is due, a comparison; and a row of metrics, `[M, columns]`."""
        values = self.values(carry.members)
        members, metrics = jax.vmap(functools.partial(self.inner.update, axis=axis))(carry.members)
        record, failed = carry.record, metrics["fault"] > 0
        gained = sum((metrics[name] for name in self.measure), jnp.zeros(self.plan.members))
        now = Window(record.now.total + gained, record.now.episodes + metrics["episodes"])
        record = record.replace(now=now)
        score = jnp.where(failed, jnp.nan, now.mean(record.score))
        members, record, source = self._compared(members, record, failed)
        columns = [metrics[name] for name in self.inner.names] + [score, *values.values(), source]
        return PBTState(members, record), jnp.stack([jnp.asarray(column, jnp.float32) for column in columns], axis=-1)

    def _compared(self, members: Carry, record: Record, failed: jax.Array) -> tuple[Carry, Record, jax.Array]:
        """The members after a comparison, if one is due: not after the last update, as no copy would learn any more."""
        done = members.update[0]
        due = (done % self.plan.interval == 0) & (done < self.experiment.num_updates)
        stores = members.learners
        slim = members.replace(learners=_each_replay(lambda replay: replay.replace(store=()), stores))
        own = jnp.arange(self.plan.members, dtype=jnp.int32)
        # The stores of replays must not pass through the branch: they would be copied.
        slim, record, source = lax.cond(
            due, self._exchange, lambda *held: (held[0], held[1], own), slim, record, failed
        )
        whole = jax.tree.map(
            lambda new, old: new.replace(store=old.store) if is_replay(new) else new,
            slim.learners,
            stores,
            is_leaf=is_replay,
        )
        return slim.replace(learners=whole), record, source

    def _exchange(self, members: Carry, record: Record, failed: jax.Array) -> tuple[Carry, Record, jax.Array]:
        """Compares the members, and makes copies of some of them."""
        plan = self.plan
        known = jnp.where(failed, jnp.nan, record.now.mean(record.score))
        # A member still in its first episode is neither good nor bad.
        scores = jnp.where(failed | ~jnp.isnan(known), known, jnp.nanmedian(known))
        key = jax.random.fold_in(record.key, members.update[0])
        steps = plan.fraction, plan.factor, plan.resample
        source, values = exploit(key, scores, self.values(members), plan.over, *steps)
        copied = source != jnp.arange(plan.members)
        mended = copied & failed

        def learnt(leaf: Any) -> Any:
            if not is_replay(leaf):
                return leaf[source]
            emptied = {"written": trees.where(mended, jnp.zeros_like(leaf.written), leaf.written)}
            if leaf.priority is not None:
                emptied["priority"] = trees.where(mended, jnp.zeros_like(leaf.priority), leaf.priority)
            return leaf.replace(**emptied)

        learners = self._with_values(jax.tree.map(learnt, members.learners, is_leaf=is_replay), values)
        worlds = jax.tree.map(lambda leaf: trees.where(mended, leaf[source], leaf), members.worlds)
        worlds = worlds.replace(key=members.worlds.key)
        copies = members.worlds.first.shape[1]
        fresh = jax.vmap(lambda policies: self.inner._actor.initial_memory(policies, copies))(policies_of(learners))
        memory = jax.tree.map(lambda new, old: trees.where(copied, new, old), fresh, members.memory)
        latch = jax.tree.map(lambda leaf: trees.where(copied, jnp.zeros_like(leaf), leaf), members.latch)
        members = members.replace(learners=learners, worlds=worlds, memory=memory, latch=latch)
        before = jax.tree.map(lambda leaf: leaf[source], record.now)
        record = record.replace(score=known[source], now=jax.tree.map(jnp.zeros_like, before), before=before)
        return members, record, source

    def _with_values(self, learners: dict[str, Any], values: Mapping[str, jax.Array]) -> dict[str, Any]:
        for name, places in self.plan.start.places.items():
            for learner, option in places:
                hyper = learners[learner].hyper | {option: values[name]}
                learners = learners | {learner: learners[learner].replace(hyper=hyper)}
        return learners

    def _best(self, state: PBTState) -> Best:
        record = state.record
        since = state.members.update[0] % self.plan.interval
        short = (since > 0) & (2 * since < self.plan.interval)
        joined = jax.tree.map(lambda now, before: now + jnp.where(short, before, 0.0), record.now, record.before)
        score = joined.mean(record.score)
        failed = jnp.any(state.members.latch.kind > 0, axis=-1)
        member = jnp.argmax(jnp.where(failed | ~jnp.isfinite(score), -jnp.inf, score))
        params = {name: {"params": learner.params} for name, learner in state.learners.items()}
        return Best(member, score, jax.tree.map(lambda leaf: leaf[member], params))


class Lineage(SeparateTally):
    """A tally that tracks the lineage: the member from which each one's weights came since the last line of metrics."""

    def __init__(self, program: PBTProgram):
        super().__init__(program)
        self.lineage = np.arange(program.plan.members)

    def add(self, count: int, table: Any) -> list[dict[str, Any]]:
        """Figures of members are those of the last update of a line, not means."""
        rows, lines = self._rows(count, table), []
        self.update += count
        for row in rows:
            self._compose(row)
            with np.errstate(all="ignore"):  # failed members have NaN
                completed = self.aggregator.add(row[None], self.total)
            for line in completed:
                line |= {n: _plain(row[:, self.names.index(n)]) for n in self.names if n.startswith("pbt/")}
                lines.append(line | {SOURCE: self.lineage.tolist()})
                self.lineage = np.arange(len(row))
        self.failed = bool(rows[-1, :, self.names.index("fault")].all())
        return lines

    def meta(self, progress: dict[str, Any]) -> dict[str, Any]:
        return super().meta({"lineage": self.lineage.tolist()} | progress)

    def restore(self, meta: dict[str, Any]) -> None:
        super().restore(meta)
        lineage = meta.get("lineage", self.lineage.tolist())
        if len(lineage) != len(self.lineage) or max(lineage) >= len(lineage):
            raise ValueError("meta.lineage must be one member for each member")
        self.lineage = np.array(lineage)
        if isinstance(meta["pending"], list):  # an early version: the lineage is in the rows
            for row in np.array(meta["pending"], np.float32):
                self._compose(row)

    def _compose(self, row: np.ndarray) -> None:
        """Composes the lineage with the copy sources of one more update."""
        self.lineage = self.lineage[row[:, self.names.index(SOURCE)].astype(int)]


def _plain(values: np.ndarray) -> list[float | None]:
    """Values with six significant digits; None if not finite."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in np.asarray(values).tolist()]


def make_pbt_program(plan: PBT, devices: int | None = None) -> PBTProgram:
    """The program of a population-based training, over all local devices or the first few."""
    with as_pbt():
        inner = build_sweep(plan.start, devices, _Members)
    assert isinstance(inner, _Members)
    env = inner.setup.env
    if env.kind == "competitive" and len(inner.measure) == len(return_groups(env)) > 1:
        raise OptionError(
            f"pbt: in {plan.experiment.env!r} the players compete, so members cannot be compared by the "
            f"sum of all returns. Name one, --measure NAME, of {', '.join(inner.measure)}."
        )
    return PBTProgram(plan, inner, inner.measure)


def _each_replay(change: Any, tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: change(leaf) if is_replay(leaf) else leaf, tree, is_leaf=is_replay)
