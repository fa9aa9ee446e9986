"""Evaluation: exactly one episode per copy, so that short episodes do not count more often than long ones."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.errors import FlaxError
from jax import lax

from shoal.batching.policies import Actor, Policies, Uniform
from shoal.batching.regroup import return_groups, sum_rewards, unwrap_regrouped
from shoal.batching.rollout import step
from shoal.core import trees
from shoal.core.checks import require_counts
from shoal.core.env import Env
from shoal.core.errors import OptionError, ShoalError, WorldError, require, require_positive, require_type, unknown_name
from shoal.core.host import HostEnvProxy
from shoal.core.types import PyTree, Scene
from shoal.training.experiment import Setup, Stepping, check_stepping
from shoal.training.host_stages import TIMEOUT
from shoal.training.memory import SMALLER, Need, largest_count, need_of, require_room
from shoal.training.statistics import interval

BATCH = 4096
"""The most episodes played at once."""
MAX_STEPS = 100_000
CHUNK = 50
"""Steps that are recorded at once."""


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Returns of many episodes, one entry each, by group of the world, whichever policies its agents share.

    A group's return is the sum over its agents. A group whose seats belong to several players, as in card games, is
    split by player instead. For policies of several seeds, arrays have a leading axis of seeds before that of episodes,
    and derived figures have one number per seed.
    """

    returns: dict[str, np.ndarray]
    lengths: np.ndarray

    @property
    def episodes(self) -> int:
        return self.lengths.shape[-1]

    @property
    def mean_return(self) -> dict[str, Any]:
        return {name: np.mean(values, axis=-1).tolist() for name, values in self.returns.items()}

    @property
    def standard_error(self) -> dict[str, Any]:
        root = math.sqrt(self.episodes)
        return {name: (np.std(values, axis=-1) / root).tolist() for name, values in self.returns.items()}

    @property
    def interval(self) -> dict[str, tuple[float, float]]:
        """The 95 % interval of each mean return: by bootstrap over the seeds, or over the episodes of a single one."""
        found = {}
        for name, values in self.returns.items():
            mean, spread = np.mean(values), 1.96 * np.std(values) / math.sqrt(self.episodes)
            low, high = (
                interval(np.mean(values, axis=-1), np.mean) if self.seeds > 1 else (mean - spread, mean + spread)
            )
            found[name] = float(low), float(high)
        return found

    @property
    def seeds(self) -> int:
        return self.lengths.shape[0] if self.lengths.ndim > 1 else 1

    def __repr__(self) -> str:
        played = f"{self.seeds} seeds x {self.episodes} episodes" if self.seeds > 1 else f"{self.episodes} episodes"
        means = {name: float(np.mean(values)) for name, values in self.returns.items()}
        told = [f"{name} {means[name]:.4g} ({low:.4g} to {high:.4g})" for name, (low, high) in self.interval.items()]
        return f"mean return (95 % interval): {', '.join(told)}; {played}"

    @property
    def total_mean_return(self) -> Any:
        return np.mean(np.sum(list(self.returns.values()), axis=0), axis=-1).tolist()

    def metrics(self) -> dict[str, Any]:
        """Its entries in a line of metrics."""
        means = {f"eval/return/{group}": value for group, value in self.mean_return.items()}
        length = np.mean(self.lengths, axis=-1).tolist()
        return means | {"eval/return": self.total_mean_return, "eval/length": length}

    def better_return(self, best: float | None, env: Env) -> float | None:
        """The mean return, if it is greater than the best so far (None: of none).

        Never where `have_one_aim` is False, as the sum of all returns means nothing there.
        """
        mean = float(np.mean(self.total_mean_return))
        better = have_one_aim(env) and math.isfinite(mean) and (best is None or mean > best)
        return mean if better else None


def have_one_aim(env: Env) -> bool:
    """Whether the sum of all returns is what everybody wants: in a cooperative world, or one of a single side.

    In a mixed world of several sides, as in a competitive one, what one side gains may be what another loses.
    """
    return env.kind == "cooperative" or (env.kind == "mixed" and len(return_groups(env)) == 1)


def evaluate(
    setup: Setup,
    policies: dict[str, PyTree] | None,
    episodes: int = 1024,
    seed: int = 0,
    explore: bool = False,
    env_workers: int = 0,
    env_timeout: float = TIMEOUT,
) -> Evaluation:
    """Plays `episodes` episodes with the policies by name; groups without one (None: all) play at random.

    Policies of several seeds, as `train` gives them, are played one seed after the other, each in the same episodes.
    env_workers, env_timeout: how environments of other libraries are stepped, as in `train`.
    """
    require_type("evaluate", "setup", setup, Setup, "experiment.setup gives one")
    return Evaluator(setup, episodes, seed, explore, env_workers, env_timeout)(policies)


Gains = Callable[[Env, Mapping[str, jax.Array]], dict[str, jax.Array]]
"""Maps the rewards of a step, `[E, n]` by policy, to those that are summed over an episode, `[E]` by name."""


class Evaluator:
    """`evaluate` for a sequence of policies: compiled once for all of them. gains: what returns are counted by."""

    def __init__(
        self,
        setup: Setup,
        episodes: int = 1024,
        seed: int = 0,
        explore: bool = False,
        env_workers: int = 0,
        env_timeout: float = TIMEOUT,
        gains: Gains = sum_rewards,
    ):

        require(isinstance(episodes, int | np.integer), "evaluate", "episodes", episodes, "a whole number")
        require(isinstance(seed, int | np.integer), "evaluate", "seed", seed, "a whole number")
        require_positive("evaluate", episodes=episodes)
        require_counts("evaluate", episodes=episodes)
        self.setup, self.episodes, self.seed, self.explore, self.gains = setup, episodes, seed, explore, gains
        self.stepping = Stepping(env_workers, env_timeout)
        self.hosted = isinstance(unwrap_regrouped(setup.env), HostEnvProxy)
        if not self.hosted:
            check_stepping(setup.experiment, self.stepping)
        self._programs: dict[tuple[str, ...], tuple[Callable, int]] = {}

    def __call__(self, policies: dict[str, PyTree] | None) -> Evaluation:
        from shoal.training import host

        seeds = num_seeds(self.setup, policies)
        if seeds is not None:
            return stack_evaluations([self(jax.tree.map(lambda leaf, i=i: leaf[i], policies)) for i in range(seeds)])
        if self.hosted:
            played = self.episodes, self.seed, self.explore, self.stepping, self.gains
            return host.evaluate(self.setup, policies, *played)
        return self._compiled(policies)

    def _compiled(self, policies: dict[str, PyTree] | None) -> Evaluation:
        actor, given = assign_policies(self.setup, policies, self.explore)
        env, played = self.setup.experiment.env, []
        program, batch = self._program(tuple(policies or ()), actor, given)
        for start in range(0, self.episodes, batch):
            ids = jnp.arange(start, min(start + batch, self.episodes), dtype=jnp.uint32)
            returns, lengths, ended = program(given, jax.random.key(self.seed), ids)
            if not bool(jnp.all(ended)):
                raise WorldError(f"world {env!r}: an episode did not end within {MAX_STEPS} steps")
            played.append((jax.tree.map(np.asarray, returns), np.asarray(lengths)))
        return Evaluation(
            returns={name: np.concatenate([returns[name] for returns, _ in played]) for name in played[0][0]},
            lengths=np.concatenate([lengths for _, lengths in played]),
        )

    def _program(self, names: tuple[str, ...], actor: Actor, given: dict[str, PyTree]) -> tuple[Callable, int]:
        """The program for policies of these names, and how many episodes it plays at once."""
        if names not in self._programs:
            program = play(self.setup, actor, self.gains)
            try:
                batch = _batch(self.setup, program, given, min(BATCH, self.episodes))
            except FlaxError as error:
                env, reason = self.setup.experiment.env, str(error).partition(". (")[0]
                raise OptionError(f"a policy does not fit {env!r} as it is here: {reason}") from error
            self._programs[names] = program, batch
        return self._programs[names]


def stack_evaluations(results: list[Evaluation]) -> Evaluation:
    """The evaluations of several seeds as one."""
    returns = {name: np.stack([result.returns[name] for result in results]) for name in results[0].returns}
    return Evaluation(returns, np.stack([result.lengths for result in results]))


def _batch(setup: Setup, program: Callable, policies: PyTree, asked: int) -> int:
    """How many episodes are played at once: as many as asked for, or as fit into memory."""
    key = jax.eval_shape(lambda: jax.random.key(0))

    @functools.cache
    def need(copies: int) -> Need:
        ids = jax.ShapeDtypeStruct((copies,), jnp.uint32)
        return need_of(policies, jax.make_jaxpr(program)(policies, key, ids))

    return largest_count(f"an episode of {setup.experiment.env}", need, asked)


def play(setup: Setup, actor: Actor, gains: Gains = sum_rewards):
    """The compiled program `(policies, key, copy ids) -> returns by return group [E], lengths [E], ended [E]`."""

    @jax.jit
    def program(policies, key, ids):
        vectorised = setup.vectorised(ids.shape[0])
        worlds = vectorised.reset(key, ids)
        memory = actor.initial_memory(policies, ids.shape[0])

        def unfinished(state):
            return ~jnp.all(state[3]) & (state[0].clock < MAX_STEPS)

        def body(state):
            worlds, memory, returns, ended, lengths = state
            worlds, memory, record = step(vectorised, actor, policies, worlds, memory)
            gained = gains(setup.env, record.reward)
            returns = {name: value + jnp.where(ended, 0.0, gained[name]) for name, value in returns.items()}
            lengths = lengths + ~ended
            return worlds, memory, returns, ended | record.terminated | record.truncated, lengths

        rewards = {name: jnp.zeros((ids.shape[0], group.size)) for name, group in setup.spec.groups.items()}
        zeros = jax.tree.map(jnp.zeros_like, gains(setup.env, rewards))
        start = (worlds, memory, zeros, jnp.zeros(ids.shape[0], bool), jnp.zeros(ids.shape[0], jnp.int32))
        _, _, returns, ended, lengths = lax.while_loop(unfinished, body, start)
        return returns, lengths, ended

    return program


@dataclasses.dataclass(frozen=True)
class Recording:
    """One episode to watch: scenes `[T + 1]` and cumulative returns by group `[T + 1]`."""

    frames: Scene
    returns: dict[str, np.ndarray]


def record(
    setup: Setup, policies: dict[str, PyTree] | None, seed: int = 0, explore: bool = False, max_steps: int = 2000
) -> Recording:
    """Plays one episode and keeps a scene of every step."""
    return recorder_of(setup, explore)(policies, seed, max_steps)


def recorder_of(setup: Setup, explore: bool = False) -> "Recorder":
    """The recorder of a setup: one for all who record its episodes, so that they compile one program."""
    return setup.recorders.setdefault(explore, Recorder(setup, explore))


class Recorder:
    """`record` for a sequence of policies and episodes: compiled once for all of them."""

    def __init__(self, setup: Setup, explore: bool = False):
        self.setup, self.explore = setup, explore
        self._vectorised = setup.vectorised(1)
        self._programs: dict[tuple[str, ...], tuple[Actor, Callable]] = {}
        self._reset, self._picture = jax.jit(self._vectorised.reset), jax.jit(self._scene)

    def __call__(self, policies: dict[str, PyTree] | None, seed: int = 0, max_steps: int = 2000) -> Recording:
        setup = self.setup
        seeds = num_seeds(setup, policies)
        if seeds is not None:
            raise OptionError(
                f"these are the policies of {seeds} seeds, but an episode is recorded with those of one: take them by "
                "jax.tree.map(lambda leaf: leaf[0], policies)"
            )
        actor, some, given = self._program(policies)
        worlds, memory = self._reset(jax.random.key(seed)), actor.initial_memory(given, 1)
        frames = [jax.tree.map(lambda leaf: np.asarray(leaf)[None], self._picture(worlds.state, worlds.params))]
        rewards = [{name: np.zeros(1) for name in return_groups(setup.env)}]
        over, played = False, 0
        while not over and played < max_steps:
            (worlds, memory), chunk = some(given, worlds, memory)
            scenes, gained, ended = jax.tree.map(np.asarray, chunk)
            over = bool(ended.any())
            length = int(np.argmax(ended)) + 1 if over else CHUNK
            played += length
            frames.append(jax.tree.map(lambda leaf, n=length: leaf[:n], scenes))
            rewards.append({name: value[:length] for name, value in gained.items()})
        joined = jax.tree.map(lambda *parts: np.concatenate(parts), *frames)
        returns = {name: np.cumsum(np.concatenate([part[name] for part in rewards])) for name in rewards[0]}
        return Recording(joined, returns)

    def _program(self, policies: dict[str, PyTree] | None) -> tuple[Actor, Callable, dict[str, PyTree]]:
        """Who acts, the program that plays some steps, and the policies of all groups."""
        actor, given = assign_policies(self.setup, policies, self.explore)
        names = tuple(policies or ())
        if names not in self._programs:
            some = self._some(actor)
            shapes = jax.eval_shape(self._vectorised.reset, jax.random.key(0))
            traced = jax.make_jaxpr(some)(given, shapes, actor.initial_memory(given, 1))
            what = f"an episode of {self.setup.experiment.env}"
            require_room(what, need_of((given, shapes), traced), lambda: SMALLER)
            self._programs[names] = actor, some
        return *self._programs[names], given

    def _some(self, actor: Actor) -> Callable:
        """`(policies, worlds, memory) -> (worlds, memory), (scenes, rewards, ended)`, of `CHUNK` steps."""

        @jax.jit
        def some(policies, worlds, memory):
            def body(carry, _):
                worlds, memory = carry
                acts = actor.act(policies, memory, worlds)
                following, outcome, ended = self._vectorised.step(worlds, acts.action)
                rewards = {name: value[0] for name, value in sum_rewards(self.setup.env, outcome.reward).items()}
                return (following, acts.memory), (self._scene(ended.state, worlds.params), rewards, ended.mask[0])

            return lax.scan(body, (worlds, memory), length=CHUNK)

        return some

    def _scene(self, state: PyTree, params: PyTree) -> Scene:
        params = self.setup.env.default_params() if params is None else trees.row(params)
        return self.setup.env.scene(trees.row(state), params)


def assign_policies(setup: Setup, policies: dict[str, PyTree] | None, explore: bool) -> tuple[Actor, dict[str, PyTree]]:
    """The given policies, and uniformly random ones for the groups that have none."""
    given = policies or {}
    groups = setup.spec.groups
    for name in given:
        if name not in groups:
            raise unknown_name("policy", name, groups)
    algorithms = {name: setup.algorithms[name] if name in given else Uniform(groups[name].action) for name in groups}
    return Policies(algorithms, groups, explore), {name: given.get(name, ()) for name in groups}


def num_seeds(setup: Setup, policies: dict[str, PyTree] | None) -> int | None:
    """The number of seeds that the policies are stacked over, as `train` returns them; None if they are not stacked."""
    found = {name: _leading(name, policy, setup) for name, policy in (policies or {}).items()}
    if len(set(found.values())) > 1:
        told = ", ".join(f"{name} of {count or 'one'}" for name, count in found.items())
        raise OptionError(f"the policies must all be of one seed, or all of the same number of seeds: {told}")
    return next(iter(found.values()), None)


def _leading(name: str, policy: PyTree, setup: Setup) -> int | None:
    """The size of the axis that all leaves have before those of the experiment's own network; None without one.

    A policy that brings its own network is taken to be of one seed.
    """
    if name not in setup.spec.groups:
        raise unknown_name("policy", name, setup.spec.groups)
    algorithm, spec = next(learner for learner in setup.learners.values() if name in learner[1].groups)
    try:
        own = jax.eval_shape(lambda: algorithm.init(jax.random.key(0), spec).params)[name]
    except ShoalError:  # the experiment could not be trained, but its policies can be played
        return None
    if jax.tree.structure(policy) != jax.tree.structure(own):
        return None
    pairs = [(np.shape(leaf), wanted.shape) for leaf, wanted in zip(*map(jax.tree.leaves, (policy, own)), strict=True)]
    sizes = {shape[0] if shape[1:] == wanted else None for shape, wanted in pairs if shape}
    return sizes.pop() if len(sizes) == 1 else None
