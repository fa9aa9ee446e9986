"""Cross-play: line-ups of any policies in any seats, episode by episode, with a policy bank as one more axis.

Those who play (`Contender`s) have a policy for every seat, each with its own algorithm. Seats are divided into units:
agents of one group and one side that every contender plays with one policy. In a unit, policies that act by the same
computation form a bank, so that line-ups differ in numbers, not in programs: all line-ups whose policies act alike are
played by one compiled program, in batches of copies of the world that name a row of the bank for every unit. Policies
that act otherwise, by another algorithm or network, need another program. Random play goes with any of them.

Episode `k` begins in the same state in every line-up, and draws the same numbers. So line-ups can be compared episode
by episode: the error of a difference, or of a mean over line-ups, is that of its values in the episodes.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from shoal.batching.agents import over_agents
from shoal.batching.policies import Policies, Situation, Uniform
from shoal.batching.regroup import dealt_seats, unwrap_regrouped
from shoal.core import trees
from shoal.core.algorithm import Algorithm
from shoal.core.env import Env
from shoal.core.errors import OptionError, WorldError, require
from shoal.core.host import HostEnvProxy
from shoal.core.spaces import ActionSpace, Discrete
from shoal.core.types import Observation, PyTree, Seat
from shoal.populations.behaviour import samples_actions, warn_of_greedy_play
from shoal.populations.matches import batch_size
from shoal.populations.opponents import OpponentBank, Opponents
from shoal.training.devices import AXIS, make_mesh, replicate
from shoal.training.evaluate import MAX_STEPS, play
from shoal.training.experiment import Experiment, Learner, Setup
from shoal.training.memory import Need, largest_count, need_of

CHANCE = -1
"""In place of a row of a bank: random play."""
Sides = Mapping[str, tuple[Seat, ...]]
"""The seats of each side."""


@dataclasses.dataclass(frozen=True, eq=False)
class Contender:
    """Someone who plays: the roles of the run it comes from, and its policies.

    setup: None for random play. policies: by name, `[R, ...]`, a row for each seed or member. mixtures: the probability
    `[R]` of each row by policy, drawn anew for every episode; None: rows take turns, so that all count the same.
    samples: whether actions are drawn from the policies, instead of taking the likeliest.
    """

    name: str
    setup: Setup | None
    policies: dict[str, PyTree] = dataclasses.field(default_factory=dict)
    mixtures: dict[str, np.ndarray] | None = None
    samples: bool = False

    @property
    def rows(self) -> int:
        """Of policies that take turns."""
        return 1 if self.mixtures is not None or self.setup is None else _length(self.policies)

    def policy_of(self, seat: Seat) -> str | None:
        """The policy that plays a seat; None for random play."""
        return None if self.setup is None else self._policies_by_seat[seat]

    @functools.cached_property
    def _policies_by_seat(self) -> dict[Seat, str]:
        assert self.setup is not None
        return {seat: name for name, seats in dealt_seats(self.setup.env).items() for seat in seats}

    def choose_rows(self, policy: str | None, turns: np.ndarray, seed: int) -> np.ndarray:
        """The row of a policy in each episode. turns: `[E]`, whose turn it is, where rows take turns."""
        if policy is None:
            return np.full(len(turns), CHANCE, np.int32)
        if self.mixtures is None:
            return (turns % self.rows).astype(np.int32)
        weights = np.maximum(np.asarray(self.mixtures[policy], np.float64), 0.0)
        draws = np.random.default_rng([seed, list(self.policies).index(policy)]).random(len(turns))
        ends = np.cumsum(weights)
        chosen = np.searchsorted(ends, draws * ends[-1], side="right")
        return np.minimum(chosen, np.flatnonzero(weights)[-1]).astype(np.int32)


@dataclasses.dataclass(frozen=True)
class Unit:
    """Seats of one group and one side that every contender plays with one policy."""

    name: str
    side: int
    seats: tuple[Seat, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Kind:
    """What policies of a unit have in common that act by the same computation."""

    algorithm: Algorithm
    samples: bool
    example: PyTree  # shapes of a policy
    observation: Any  # shapes of what one agent sees


@dataclasses.dataclass(frozen=True)
class OpponentsOrChance(Opponents):
    """Plays as `Opponents` do, and at random in copies whose policy has the number `CHANCE`. action: the space."""

    action: ActionSpace = dataclasses.field(default_factory=lambda: Discrete(1))

    def act_batch(
        self, params: OpponentBank, observation: Observation, memory: Any, keys: jax.Array, worlds: Situation, seat: int
    ) -> tuple[jax.Array, Any]:
        assert params.seated is not None
        seated = params.replace(seated=jnp.maximum(params.seated, 0))
        action, after = super().act_batch(seated, observation, memory, keys, worlds, seat)
        uniform = Uniform(self.action)

        def one(policy: PyTree, seen: Observation, carry: PyTree, key: jax.Array) -> jax.Array:
            return uniform.act(policy, seen, carry, key, True).action

        drawn = over_agents(one)((), observation, (), keys)
        return trees.where(params.seated == CHANCE, drawn, action), after


@dataclasses.dataclass(frozen=True, eq=False)
class CrossPlay:
    """Plays line-ups of contenders. sides: all seats of the world, each once.

    batch: episodes that are played at once. devices: the first so many; None: all.
    """

    contenders: tuple[Contender, ...]
    sides: Sides
    batch: int = dataclasses.field(default_factory=batch_size)
    devices: int | None = None

    def __post_init__(self):
        seats = [(group, i) for group, spec in self.world.groups.items() for i in range(spec.size)]
        dealt = [seat for own in self.sides.values() for seat in own]
        if isinstance(self.world, HostEnvProxy):
            raise OptionError(
                f"{self.experiment.env} runs on the host, one episode after the other; line-ups of many policies are "
                "played in compiled worlds only. `shoal match` plays one line-up of it."
            )
        for seat in {*seats, *dealt}:
            times = dealt.count(seat)
            where = f"{seat[0]}[{seat[1]}]"
            require(times == 1, "sides", where, f"{times} times", "played by exactly one side")
        for one in self.contenders:
            if one.samples and one.setup is not None:
                warn_of_greedy_play(one.name, one.setup.algorithms)

    @functools.cached_property
    def experiment(self) -> Experiment:
        """Of the first contender that has one: all play the same world."""
        setups = [one.setup for one in self.contenders if one.setup is not None]
        if not setups:
            raise OptionError("everybody plays at random: name at least one run")
        return setups[0].experiment

    @property
    def world(self) -> Env:
        return unwrap_regrouped(self.experiment.setup.env)

    @functools.cached_property
    def units(self) -> tuple[Unit, ...]:
        """The largest sets of seats that every contender plays with one policy; in the order of the sides."""
        found: dict[tuple, list[Seat]] = {}
        for number, seats in enumerate(self.sides.values()):
            for seat in sorted(seats, key=lambda seat: (list(self.world.groups).index(seat[0]), seat[1])):
                players = tuple(one.policy_of(seat) for one in self.contenders)
                found.setdefault((number, seat[0], players), []).append(seat)
        return tuple(Unit(f"unit {i}", key[0], tuple(seats)) for i, (key, seats) in enumerate(found.items()))

    @functools.cached_property
    def _kinds(self) -> tuple[list[list[Kind]], list[list[int]]]:
        """The kinds of policies in each unit, and the kind of every contender there: `[units][contenders]`."""
        kinds: list[list[Kind]] = []
        numbers: list[list[int]] = []
        for unit in self.units:
            known: list[Kind] = []
            own = []
            for contender in self.contenders:
                if contender.setup is None:
                    own.append(0)  # random play goes with any
                    continue
                kind = self._kind_of(contender, unit)
                same = [i for i, other in enumerate(known) if acts_alike(kind, other)]
                known += [] if same else [kind]
                own.append(same[0] if same else len(known) - 1)
            kinds.append(known)
            numbers.append(own)
        return kinds, numbers

    def _kind_of(self, contender: Contender, unit: Unit) -> Kind:
        policy, setup = contender.policy_of(unit.seats[0]), contender.setup
        assert policy is not None
        assert setup is not None
        spec = setup.spec
        example = jax.eval_shape(trees.row, contender.policies[policy])
        seen = spec.observations[policy]
        one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), (seen.view, seen.legal))
        return Kind(setup.algorithms[policy], contender.samples, example, Observation(*one, state=spec.state))

    def kind_of(self, contender: int) -> tuple[int, ...]:
        """Numbers of the kinds of a contender's policies, by unit: equal ones share all banks."""
        return tuple(own[contender] for own in self._kinds[1])

    @functools.cached_property
    def _banks(self) -> tuple[list[list[PyTree]], np.ndarray]:
        """Banks `[units][kinds]` of policies, and the first row of each contender in its bank, `[units, contenders]`.

        Contenders of a kind stand one after another.
        """
        kinds, numbers = self._kinds
        starts = np.zeros((len(self.units), len(self.contenders)), np.int32)
        banks = []
        for u, unit in enumerate(self.units):
            rows: list[list[PyTree]] = [[] for _ in kinds[u]]
            sizes = [0] * len(kinds[u])
            for c, contender in enumerate(self.contenders):
                kind, policy = numbers[u][c], contender.policy_of(unit.seats[0])
                if policy is None:
                    continue
                rows[kind].append(contender.policies[policy])
                starts[u, c] = sizes[kind]
                sizes[kind] += _length(contender.policies[policy])
            banks.append([_join(parts) for parts in rows])
        return banks, starts

    @functools.cached_property
    def programs(self) -> dict[tuple[int, ...], "LineupProgram"]:
        """The programs that were needed so far, by the kind of policies in each unit."""
        return {}

    def _key(self, lineup: np.ndarray) -> tuple[int, ...]:
        return tuple(self._kinds[1][u][lineup[unit.side]] for u, unit in enumerate(self.units))

    def _program(self, key: tuple[int, ...], episodes: int) -> "LineupProgram":
        if key not in self.programs:
            kinds = [self._kinds[0][u][number] for u, number in enumerate(key)]
            names = [unit.name for unit in self.units]
            learners = {
                unit.name: Learner(kind.algorithm, {unit.name: _texts(unit.seats)})
                for unit, kind in zip(self.units, kinds, strict=True)
            }
            batch = -(-min(self.batch, episodes) // len(jax.local_devices())) * len(jax.local_devices())
            setup = self.experiment.replace(learners=learners, num_envs=batch, num_seeds=1).setup
            banks = {name: self._banks[0][u][key[u]] for u, name in enumerate(names)}
            sides = tuple(tuple(unit.name for unit in self.units if unit.side == s) for s in range(len(self.sides)))
            chance = any(one.setup is None for one in self.contenders)
            by_name = dict(zip(names, kinds, strict=True))
            self.programs[key] = LineupProgram(setup, by_name, banks, sides, chance, self.devices)
        return self.programs[key]

    def play(self, lineups: np.ndarray, episodes: int, seed: int = 0) -> np.ndarray:
        """Returns `[M, episodes, sides]` of line-ups `[M, sides]`, which name a contender for every side."""
        lineups = np.asarray(lineups, np.int64).reshape(-1, len(self.sides))
        found = np.zeros((len(lineups), episodes, len(self.sides)))
        keys = [self._key(lineup) for lineup in lineups]
        for key in dict.fromkeys(keys):
            which = np.flatnonzero([other == key for other in keys])
            rows = np.concatenate([self._rows(lineups[i], episodes, seed) for i in which])
            ids = np.tile(np.arange(episodes, dtype=np.uint32), len(which))
            returns = self._program(key, len(ids)).play(rows, ids, seed)
            found[which] = returns.reshape(len(which), episodes, -1)
        return found

    def _rows(self, lineup: np.ndarray, episodes: int, seed: int) -> np.ndarray:
        """The row of the bank `[episodes, units]` that plays each unit.

        Rows of different contenders take turns in all combinations; a contender that meets itself plays one row.
        """
        episode, turns, period = np.arange(episodes), {}, 1
        for number in lineup.tolist():
            if number not in turns:
                turns[number] = episode // period
                period *= self.contenders[number].rows
        columns = []
        for u, unit in enumerate(self.units):
            number = int(lineup[unit.side])
            contender = self.contenders[number]
            policy = contender.policy_of(unit.seats[0])
            rows = contender.choose_rows(policy, turns[number], seed)
            columns.append(np.where(rows == CHANCE, CHANCE, self._banks[1][u, number] + rows))
        return np.stack(columns, axis=1).astype(np.int32)


@dataclasses.dataclass(frozen=True, eq=False)
class LineupProgram:
    """Plays line-ups whose policies are of the same kinds. sides: names of the units of each.

    chance: whether some may play at random.
    """

    setup: Setup
    kinds: dict[str, Kind]
    banks: dict[str, PyTree]
    sides: tuple[tuple[str, ...], ...]
    chance: bool = False
    devices: int | None = None

    @functools.cached_property
    def _games(self) -> Any:
        groups, algorithms = self.setup.spec.groups, {}
        for name, kind in self.kinds.items():
            own = kind.algorithm, _length(self.banks[name]), kind.samples
            algorithms[name] = OpponentsOrChance(*own, groups[name].action) if self.chance else Opponents(*own)

        def by_side(env: Env, reward: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
            sums = [[jnp.sum(reward[name], -1) for name in own] for own in self.sides]
            return {str(s): functools.reduce(jnp.add, own) for s, own in enumerate(sums)}

        return play(self.setup, Policies(algorithms, groups), by_side)

    def _seat(self, banks: dict[str, PyTree], rows: jax.Array) -> dict[str, Any]:
        return {name: OpponentBank(banks[name], seated=rows[:, u]) for u, name in enumerate(self.kinds)}

    @functools.cached_property
    def batch(self) -> int:
        """Episodes at once: as many as asked for, or as fit into memory."""
        key, asked = jax.eval_shape(lambda: jax.random.key(0)), self.setup.experiment.num_envs

        @functools.cache
        def need(copies: int) -> Need:
            rows = jax.ShapeDtypeStruct((copies, len(self.kinds)), jnp.int32)
            ids = jax.ShapeDtypeStruct((copies,), jnp.uint32)

            def whole(banks, rows, key, ids):
                return self._games(self._seat(banks, rows), key, ids)

            return need_of(self.banks, jax.make_jaxpr(whole)(self.banks, rows, key, ids))

        return largest_count(f"line-ups of {self.setup.experiment.env}", need, asked)

    @functools.cached_property
    def mesh(self) -> Mesh:
        return make_mesh(self.batch, 1, self.devices)

    @functools.cached_property
    def program(self) -> Any:
        """`program(banks, rows [B, units], ids [B], key) -> returns [B, sides], ended [B]`."""

        def some(banks, rows, ids, key):
            returns, _, ended = self._games(self._seat(banks, rows), key, ids)
            return jnp.stack([returns[str(s)] for s in range(len(self.sides))], axis=-1), ended

        specs = (P(), P(AXIS), P(AXIS), P())
        return jax.jit(jax.shard_map(some, mesh=self.mesh, in_specs=specs, out_specs=P(AXIS), check_vma=False))

    def play(self, rows: np.ndarray, ids: np.ndarray, seed: int) -> np.ndarray:
        """Returns `[n, sides]` of episodes with these rows `[n, units]` and ids `[n]`."""
        banks, key = replicate(self.mesh, (self.banks, jax.random.key(seed)))
        found = []
        for start in range(0, len(ids), self.batch):
            part = slice(start, start + self.batch)
            lacking = self.batch - len(ids[part])
            some = np.pad(rows[part], ((0, lacking), (0, 0)), mode="edge"), np.pad(ids[part], (0, lacking), mode="edge")
            returns, ended = self.program(banks, *some, key)
            if not bool(jnp.all(ended)):
                env = self.setup.experiment.env
                raise WorldError(f"world {env!r}: an episode did not end within {MAX_STEPS} steps")
            found.append(np.asarray(returns, np.float64)[: self.batch - lacking])
        return np.concatenate(found)


def acts_alike(one: Kind, other: Kind) -> bool:
    """Whether two kinds of policies act by the same computation, whatever else their algorithms are told."""
    if _samples(one) != _samples(other) or _shapes(one.example) != _shapes(other.example):
        return False
    if one.algorithm == other.algorithm:
        return True
    (text, constants), (others, theirs) = _act_program(one), _act_program(other)
    return text == others and all(np.array_equal(a, b) for a, b in zip(constants, theirs, strict=True))


def _samples(kind: Kind) -> bool:
    return samples_actions(kind.algorithm, kind.samples)


def _act_program(kind: Kind) -> tuple[str, list[Any]]:
    """The program of an action, as text, and its constants."""
    algorithm = kind.algorithm

    def act(params: PyTree, observation: Observation, key: jax.Array) -> Any:
        out = algorithm.act(params, observation, algorithm.initial_memory(params), key, _samples(kind))
        return out.action, out.memory

    traced = jax.make_jaxpr(act)(kind.example, kind.observation, jax.eval_shape(lambda: jax.random.key(0)))
    return str(traced.jaxpr), list(traced.consts)


def _shapes(tree: PyTree) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]


def _join(parts: Sequence[PyTree]) -> PyTree:
    return jax.tree.map(lambda *leaves: jnp.concatenate([jnp.asarray(leaf) for leaf in leaves]), *parts)


def _length(policies: PyTree) -> int:
    """The number of rows of stacked policies."""
    return jax.tree.leaves(policies)[0].shape[0]


def _texts(seats: Sequence[Seat]) -> tuple[str, ...]:
    return tuple(f"{group}[{i}]" for group, i in seats)
