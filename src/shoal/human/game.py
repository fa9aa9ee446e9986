"""A game in which one seat is a person's: no clock, no network. Policies act as they do in evaluation.

The world is stepped by a program of its own, apart from the policies', so that an episode can be replayed to the bit
from its seed and everybody's actions, without the policies.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from shoal.api.seats import dealt_seats
from shoal.batching.regroup import to_env_actions, unwrap_regrouped
from shoal.batching.vectorise import Vectorised, Worlds
from shoal.core import trees
from shoal.core.env import Env
from shoal.core.errors import OptionError, WorldError
from shoal.core.host import HostEnvProxy
from shoal.core.keys import Use, use_key
from shoal.core.types import PyTree, Scene, Seat
from shoal.human.controls import Controls, controls_of
from shoal.training.evaluate import assign_policies
from shoal.training.experiment import Setup


class Place(NamedTuple):
    """Where an episode stands: the copy's key, the clock, its params (None: the default ones) and its state, `[1]`."""

    key: jax.Array
    clock: jax.Array
    params: PyTree
    state: PyTree


class Result(NamedTuple):
    """The result of a step: rewards `[n]` by group of the world, and whether the episode is over."""

    reward: dict[str, np.ndarray]
    terminated: bool
    truncated: bool

    @property
    def over(self) -> bool:
        return self.terminated or self.truncated


class View(NamedTuple):
    """What there is to see in a place, by the person and by the policies.

    scene: as the person may see it. legal: of the person's actions, None: all. active: `[n]` by group of the world,
    who acts now. present: whether the person is still in the game. proposed: the policies' actions `[n, ...]` by group
    of the world, with one for the person's seat too, which nobody uses. memory: of the policies, after these actions.
    """

    scene: Scene
    legal: Any
    active: dict[str, Any]
    present: Any
    proposed: dict[str, Any]
    memory: PyTree


@functools.partial(jax.jit, static_argnames=("env", "randomise"))
def begin_episode(env: Env, seed: jax.Array, randomise: bool) -> Place:
    """The start of the episode with that seed, as `shoal watch` and `shoal eval` begin it."""
    worlds = Vectorised(env, 1, randomise).reset(jax.random.key(seed))
    return Place(worlds.key, worlds.clock, worlds.params, worlds.state)


@functools.partial(jax.jit, static_argnames="env")
def step_episode(env: Env, place: Place, actions: dict[str, jax.Array]) -> tuple[Place, tuple[Any, ...]]:
    """One step with actions `[n, ...]` by group of the world: the next place, rewards, terminated, truncated."""
    key = use_key(place.key[0], place.clock, Use.STEP)
    params = env.default_params() if place.params is None else trees.row(place.params)
    state, outcome = env.step(key, trees.row(place.state), actions, params)
    state = jax.tree.map(lambda leaf: leaf[None], state)
    following = place._replace(clock=place.clock + 1, state=state)
    return following, (outcome.reward, outcome.terminated, outcome.truncated)


class Game:
    """Episodes with a person in one seat: `begin(seed)`, then `step(action)` until `result.over`.

    policies: by name; whoever has none plays at random. seat: a group of the world and an index. `actions` and
    `rewards` hold all steps of the episode so far, `[n, ...]` by group of the world.
    """

    def __init__(self, setup: Setup, policies: Mapping[str, PyTree], seat: Seat, explore: bool = False):
        self.setup, self.seat, self.explore = setup, seat, explore
        self.world = unwrap_regrouped(setup.env)
        check_playable(setup)
        self.controls: Controls = controls_of(self.world, seat[0])
        self._others = {name: controls_of(self.world, name) for name in self.world.groups}
        self._view, self._memory = _make_view(setup, dict(policies), seat, explore)
        self.begin(0)
        self.step()  # everything is compiled before anybody waits for it
        self.begin(0)

    def begin(self, seed: int) -> None:
        """Begins the episode with that seed."""
        self.seed = seed
        self._place = begin_episode(self.world, np.uint32(seed), self.setup.experiment.randomise)
        self.actions: list[dict[str, np.ndarray]] = []
        self.rewards: list[dict[str, np.ndarray]] = []
        self.result: Result | None = None
        self.said: list[tuple[str, str]] = []
        self._look(self._memory, first=True)

    @property
    def over(self) -> bool:
        return self.result is not None and self.result.over

    @property
    def active(self) -> bool:
        """Whether the person acts now."""
        return not self.over and bool(self.view.active[self.seat[0]][self.seat[1]])

    @property
    def present(self) -> bool:
        """Whether the person may still act or get rewards in this episode."""
        return bool(self.view.present)

    @property
    def legal(self) -> np.ndarray | None:
        return self.view.legal

    def step(self, given: list[Any] | None = None) -> Result:
        """One step: the person's action, as `Controls` has it, and the policies'. None: nothing, or no turn.

        Raises an `OptionError`, and nothing has happened, if it is no legal action.
        """
        if self.over:
            raise OptionError("the episode is over: begin another one")
        if given is None or not self.active:
            given = self.controls.neutral(legal=self.legal)
        action = self.controls.read(given, self.legal)
        group, index = self.seat
        actions = {name: np.array(values) for name, values in self.view.proposed.items()}
        actions[group][index] = action
        said = self._words(actions)
        self._place, found = step_episode(self.world, self._place, actions)
        reward, terminated, truncated = jax.tree.map(np.asarray, found)
        self.actions.append(actions)
        self.rewards.append(reward)
        self.result, self.said = Result(reward, bool(terminated), bool(truncated)), said
        self._look(self.view.memory, first=False)
        return self.result

    def returns(self) -> dict[str, np.ndarray]:
        """The sum of rewards so far, `[n]` by group of the world."""
        sizes = {name: group.size for name, group in self.world.groups.items()}
        return {
            name: np.sum([np.zeros(size), *(r[name] for r in self.rewards)], axis=0) for name, size in sizes.items()
        }

    @property
    def own_return(self) -> float:
        return float(self.returns()[self.seat[0]][self.seat[1]])

    def _look(self, memory: PyTree, first: bool) -> None:
        view = self._view(self._place, memory, np.array([first]))
        memory = view.memory  # it may stay on the device
        self.view = View(*jax.tree.map(np.asarray, view._replace(memory=None)))._replace(memory=memory)

    def _words(self, actions: Mapping[str, np.ndarray]) -> list[tuple[str, str]]:
        """What those who acted did, in words; of large groups, nobody."""
        said = []
        for name, rows in actions.items():
            acting = np.flatnonzero(self.view.active[name])
            for i in acting if len(acting) <= 4 else ():
                said.append((f"{name}[{i}]", self._others[name].words(self._others[name].split(rows[i]))))
        return said


def check_playable(setup: Setup) -> None:
    """Refuses worlds that a person cannot play here."""
    world = unwrap_regrouped(setup.env)
    if isinstance(world, HostEnvProxy):
        raise OptionError(
            f"{setup.experiment.env} is stepped by its own library, on the host: people play the worlds of `shoal envs`"
        )
    place = jax.eval_shape(lambda: world.reset(jax.random.key(0), world.default_params()))
    scene = jax.eval_shape(lambda: world.scene(trees.zeros(place), world.default_params()))
    if not jax.tree.leaves(scene):
        raise WorldError(f"the world {setup.experiment.env!r} does not define `scene`, so there is nothing to see")


def _make_view(setup: Setup, policies: dict[str, PyTree], seat: Seat, explore: bool) -> tuple[Any, PyTree]:
    """The compiled program `(place, memory, first) -> View`, and the memory to begin with."""
    actor, given = assign_policies(setup, policies, explore)
    vectorised, world = setup.vectorised(1), unwrap_regrouped(setup.env)
    policy, index = next((name, own.index(seat)) for name, own in dealt_seats(setup.env).items() if seat in own)

    @jax.jit
    def view(given: dict[str, PyTree], place: Place, memory: PyTree, first: jax.Array) -> View:
        observation = vectorised.observe(place.params, place.state, 1)
        own = observation[policy]
        worlds = Worlds(place.key, place.clock, place.params, place.state, observation, first, {}, first)
        acts = actor.act(given, memory, worlds)
        params = world.default_params() if place.params is None else trees.row(place.params)
        sizes = {name: group.size for name, group in setup.env.groups.items()}
        active = {name: _flags(observation[name].active, size) for name, size in sizes.items()}
        return View(
            scene=world.scene_for(trees.row(place.state), params, seat),
            legal=None if own.legal is None else own.legal[0, index],
            active=trees.row(to_env_actions(setup.env, active)),
            present=_flags(own.present, sizes[policy])[0, index],
            proposed=trees.row(to_env_actions(setup.env, acts.action)),
            memory=acts.memory,
        )

    return functools.partial(view, given), actor.initial_memory(given, 1)


def _flags(mask: jax.Array | None, size: int) -> jax.Array:
    return jax.numpy.ones((1, size), bool) if mask is None else mask
