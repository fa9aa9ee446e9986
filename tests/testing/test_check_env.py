"""Every kind of fault is planted in a small world and must be found, in the right words and without other findings."""

import dataclasses
import functools
import random
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from tests.worlds.bandit import Bandit, Target, Truncation, TwoStep
from tests.worlds.last_card import LastCard
from tests.worlds.messages import Messages
from tests.worlds.two_teams import TwoTeams

from shoal import Box, Circles, Discrete, Env, Group, MultiDiscrete, Observation, Outcome, Scene
from shoal.core.errors import OptionError, WorldError
from shoal.testing import _agreement, check_env
from shoal.testing._declarations import check_declarations
from shoal.testing.probes import Memory
from shoal.testing.report import Findings, Report
from shoal.testing.structure import check_structure


@struct.dataclass
class State:
    x: jax.Array  # [2]
    time: jax.Array
    note: str = struct.field(pytree_node=False, default="")


@dataclasses.dataclass(frozen=True)
class Line(Env):
    """A sound world: two walkers (the second leaves after 2 steps) and a watcher; cut short after 4 steps."""

    kind: ClassVar[str] = "mixed"

    @property
    def groups(self):
        return {"walker": Group(2, Discrete(3)), "watcher": Group(1, Box((1,), -1.0, 1.0))}

    def default_params(self):
        return {"speed": 0.1}

    def reset(self, key, params):
        bits = jax.random.key_data(key) % 1000  # compiles faster than `jax.random.uniform`
        return State(bits.astype(jnp.float32) / 1000, jnp.zeros((), jnp.int32))

    def step(self, key, state, actions, params):
        moved = jnp.where(self.here(state), params["speed"] * (actions["walker"] - 1), 0.0)
        new = state.replace(x=state.x + moved, time=state.time + 1)
        reward = {"walker": jnp.where(self.here(state), new.x, 0.0), "watcher": jnp.zeros(1)}
        return new, Outcome(reward, jnp.zeros((), bool), new.time >= 4, {"mean": jnp.mean(new.x)})

    def here(self, state):
        return jnp.stack([state.time >= 0, state.time < 2])

    def observe(self, state, params):
        here = self.here(state)
        walker = Observation(state.x[:, None], jnp.ones((2, 3), bool), active=here, present=here)
        return {"walker": walker, "watcher": Observation(jnp.zeros((1, 1)))}


def world(base=Line, **members):
    """A frozen world like `base`, but for some members."""
    return dataclasses.dataclass(frozen=True)(type("Broken", (base,), members))()


def observing(**changes):
    """`Line`, whose walkers' observation has other fields."""

    def observe(self, state, params):
        good = Line.observe(self, state, params)
        new = {name: change(state) if callable(change) else change for name, change in changes.items()}
        return good | {"walker": good["walker"].replace(**new)}

    return world(observe=observe)


def stepping(change):
    """`Line`, whose step's results go through `change(old_state, actions, new_state, outcome)`."""

    def step(self, key, state, actions, params):
        return change(state, actions, *Line.step(self, key, state, actions, params))

    return world(step=step)


def resetting(change):
    return world(reset=lambda self, key, params: change(Line.reset(self, key, params)))


def drawing(scene):
    return world(scene=lambda self, state, params: scene(state))


def with_groups(**groups):
    return world(groups=property(lambda self: {**Line().groups, **groups}))


def check(env, **options):
    return check_env(env, **{"num_steps": 6, "num_envs": 2, "raise_on_problems": False, **options})


def assert_found(env, kinds, *words):
    report = check(env)
    assert {finding.kind for finding in report.problems} == set(kinds), str(report)
    for word in words:
        assert word in str(report)


def test_a_sound_world_has_no_findings():
    report = check_env(Line(), num_steps=10, num_envs=3)
    assert report.findings == ()
    assert report.ok
    assert (report.num_steps, report.num_episodes) == (30, 6)
    assert str(report) == "Line keeps the environment contract (30 steps and 6 whole episodes were played)."


@pytest.mark.parametrize(
    "env",
    [LastCard(), TwoTeams(), Messages(), Memory(), Bandit(), Target(), Truncation(), TwoStep()],
    ids=lambda env: type(env).__name__,
)
def test_the_fixture_worlds_are_sound(env):
    report = check_env(env, num_steps=30, num_envs=4)
    assert report.findings == ()
    assert report.num_episodes >= 4


@dataclasses.dataclass(frozen=True)
class Unusual(Env):
    """Sound, though it does what few worlds do."""

    size: int = 3

    @functools.cached_property
    def table(self):
        return np.arange(3, dtype=np.float32)

    @property
    def groups(self):
        view = {"a": Box((2,), 0.0, 9.0), "b": Box((), 0, 255, dtype="uint8"), "c": Box((1,), dtype="bool")}
        return {"one": Group(self.size, MultiDiscrete((2, 3)), observation=view, movers=1)}

    def default_params(self):
        return (0.5, {"deep": jnp.ones(2)}, np.float32(2.0))

    def sample_params(self, key):
        return (jax.random.uniform(key), {"deep": jnp.zeros(2)}, jnp.float32(1.0))

    def reset(self, key, params):
        return {"key": key, "keys": jax.random.split(key, 2), "none": None, "half": jnp.ones((), jnp.bfloat16)}

    def step(self, key, state, actions, params):
        key, _ = jax.random.split(state["key"])
        reward = {"one": jnp.where(jnp.arange(3) == 0, params[0] * actions["one"][0, 1], 0.0)}
        return state | {"key": key}, Outcome(reward, jax.random.bernoulli(key, 0.3), jnp.zeros((), bool))

    def observe(self, state, params):
        view = {"a": jnp.tile(self.table[:2], (3, 1)), "b": jnp.zeros(3, jnp.uint8), "c": jnp.ones((3, 1), bool)}
        legal = jnp.tile(jnp.array([True, False, False, False, True]), (3, 1))
        first = jnp.arange(3) == 0
        return {"one": Observation(view, legal, active=first, present=jnp.arange(3) < 2)}

    def global_state(self, state, params):
        return {"anything": jnp.zeros((2, 2))}


def test_unusual_worlds_are_not_found_fault_with():
    assert check_env(Unusual(), num_steps=20, num_envs=3).findings == ()


_METHODS = ("groups", "default_params", "reset", "step", "here", "observe")
Thawed = dataclasses.dataclass(type("Thawed", (Env,), {name: Line.__dict__[name] for name in _METHODS}))


@dataclasses.dataclass(frozen=True)
class WithList(Line):
    sizes: Any = dataclasses.field(default_factory=lambda: [1, 2])


@dataclasses.dataclass(frozen=True, eq=False)
class Unequal(Line):
    def __eq__(self, other):
        return self is other

    def __hash__(self):
        return id(self)


def two_players(*seats):
    return world(players=property(lambda self: {"one": (("walker", 0), ("watcher", 0)), "two": seats}))


@pytest.mark.parametrize(
    ("env", "kinds", "words"),
    [
        (Thawed(), ["not frozen", "not hashable"], ["class: it is not a frozen dataclass", "frozen=True"]),
        (WithList(), ["not hashable"], ["class: it cannot be hashed (unhashable type: 'list')", "tuples instead of"]),
        (Unequal(), ["not equal"], ["not equal to a copy with the same fields"]),
        (world(kind="friendly"), ["kind"], ["'friendly'", "cooperative, competitive, mixed"]),
        (world(groups=property(lambda self: {})), ["groups"], ["groups: there are none"]),
        (world(groups=property(lambda self: 1 / 0)), ["raises"], ["ZeroDivisionError"]),
        (with_groups(walker=3), ["groups"], ["groups['walker']: it is 3"]),
        (with_groups(walker=Group(0, Discrete(3))), ["groups"], ["size is 0"]),
        (with_groups(walker=Group(2, 3)), ["groups"], ["action is 3", "Discrete, MultiDiscrete or Box"]),
        (with_groups(walker=Group(2, Discrete(3), movers=3)), ["movers"], ["movers is 3", "None or in 1 to 2"]),
        (two_players(), ["players"], ["the seat ('walker', 1) has no player"]),
        (two_players(("walker", 1), ("walker", 0)), ["players"], ["('walker', 0) has more than one player"]),
        (two_players(("walker", 1), ("ghost", 0)), ["players"], ["there is no seat ('ghost', 0)"]),
    ],
)
def test_faults_in_the_declarations(env, kinds, words):
    findings = Findings()
    check_declarations(env, findings)
    report = Report("Broken", findings.all())
    assert {finding.kind for finding in report.problems} == set(kinds)
    for word in words:
        assert word in str(report)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (world(default_params=lambda self: {"speed": 1}), ["params['speed'] is int, not a float"]),
        (world(default_params=lambda self: {"speed": "x"}), ["params['speed'] is str, not a float"]),
        (
            world(sample_params=lambda self, key: {"pace": jax.random.uniform(key)}),
            ["sample_params: it returns [\"params['pace'][]\"], but default_params returns [\"params['speed'][]\"]"],
        ),
    ],
)
def test_params_that_cannot_be_randomised(env, words):
    assert_found(env, ["params"], *words)


def test_what_is_not_a_world_is_refused():
    with pytest.raises(WorldError, match=r"derived from shoal\.Env, got 'tag/grid'"):
        check_env("tag/grid")  # pyright: ignore[reportArgumentType]
    with pytest.raises(OptionError, match="num_steps must be greater than 0, got 0"):
        check_env(Line(), num_steps=0)


def branch(state, actions, new, outcome):
    if new.time > 3:
        return state, outcome
    return new, outcome


def to_float(state, actions, new, outcome):
    return new.replace(x=new.x + float(state.x[0])), outcome


def to_numpy(state, actions, new, outcome):
    return new.replace(x=np.sin(new.x)), outcome


def to_index(state, actions, new, outcome):
    return new.replace(x=new.x * [1.0, 2.0, 3.0][state.time]), outcome


def to_mask(state, actions, new, outcome):
    return new.replace(x=new.x[new.x > 0]), outcome


def to_shape(state, actions, new, outcome):
    return new.replace(x=jnp.zeros(new.time)), outcome


def fails(*_):
    raise KeyError("the map")


def set_attribute(self, key, params):
    self.count = 1
    return Line.reset(self, key, params)


def host_call(state, actions, new, outcome):
    seen = jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((2,), jnp.float32), new.x, vmap_method="sequential")
    return new.replace(x=seen), outcome


@pytest.mark.parametrize(
    ("env", "kinds", "words"),
    [
        (stepping(branch), ["host value"], ["step (test_check_env.py, line ", "`if new.time > 3:`", "`jnp.where`"]),
        (stepping(to_float), ["host value"], ["into a Python number (`float()`", "Leave it a jax array"]),
        (stepping(to_numpy), ["host value"], ["to numpy", "Use `jax.numpy` instead of `numpy`"]),
        (stepping(to_index), ["host value"], ["as a Python integer", "Index jax arrays"]),
        (stepping(to_mask), ["host value"], ["indexes with a mask", "keeps the shape"]),
        (stepping(to_shape), ["host value"], ["makes a shape out of a value", "the world's fields"]),
        (stepping(fails), ["raises"], ["it raised KeyError: 'the map'", "line "]),
        (world(reset=fails), ["raises"], ["reset (test_check_env.py, line", "KeyError"]),
        (resetting(lambda state: state.replace(x=state.x * bool(state.x[0]))), ["host value"], ["reset (test_check"]),
        (world(observe=fails), ["raises"], ["observe (test_check_env.py, line"]),
        (world(scene=fails), ["raises"], ["scene (test_check_env.py, line"]),
        (world(global_state=fails), ["raises"], ["global_state (test_check_env.py, line"]),
        (world(default_params=fails), ["raises"], ["default_params (test_check_env.py, line"]),
        (world(sample_params=lambda self, key: {"speed": float(key)}), ["host value"], ["sample_params ("]),
        (world(reset=Env.reset), ["missing"], ["reset: Broken must define `reset(key, params)`"]),
        (
            world(reset=set_attribute),
            ["mutation"],
            ["reset (test_check_env.py, line", "cannot assign to field 'count'"],
        ),
        (stepping(host_call), ["callback"], ["step: it calls back to the host", "pure_callback"]),
    ],
)
def test_code_that_cannot_be_compiled_is_explained(env, kinds, words):
    assert_found(env, kinds, *words)


@struct.dataclass
class Longer:
    x: jax.Array
    time: jax.Array
    extra: jax.Array


def declared(box):
    return with_groups(walker=Group(2, Discrete(3), observation=box))


def rewarding(reward):
    return stepping(lambda old, actions, new, outcome: (new, outcome.replace(reward=outcome.reward | reward)))


def ending(**flags):
    return stepping(lambda old, actions, new, outcome: (new, outcome.replace(**flags)))


def storing(change):
    return stepping(lambda old, actions, new, outcome: (change(new), outcome))


@pytest.mark.parametrize(
    ("env", "kinds", "words"),
    [
        (world(observe=lambda self, state, params: {}), ["groups"], ["observe: it returned [], but `groups` declares"]),
        (world(observe=lambda self, state, params: None), ["groups"], ["observe: it returned NoneType"]),
        (
            world(observe=lambda self, state, params: {"walker": state.x, "watcher": state.x}),
            ["groups"],
            ["observe, group 'walker': it returned ", "Return a `shoal.Observation`"],
        ),
        (observing(view=jnp.zeros((3, 1))), ["shape"], ["observe, group 'walker': view has shape (3, 1)", "size, 2"]),
        (observing(view={"a": jnp.zeros(())}), ["shape"], ["view['a'] has shape ()"]),
        (observing(view=None), ["shape"], ["the view is empty"]),
        (observing(legal=jnp.ones((2, 4), bool)), ["shape"], ["legal has shape (2, 4)", "Return bool[2, 3]"]),
        (observing(active=jnp.ones(2)), ["dtype", "active"], ["active is float32[2]", "Return bool[2]"]),
        (observing(present=jnp.ones((2, 1), bool)), ["shape"], ["present has shape (2, 1)"]),
        (observing(present={"a": jnp.ones(2, bool)}), ["shape"], ["present is dict, not one array"]),
        (observing(state=jnp.zeros(2)), ["shape"], ["it filled in `state`"]),
        (declared(Box((2,))), ["spec"], ["view of one agent is float32[1], but float32[2] is declared"]),
        (declared(Box((1,), dtype="uint8")), ["spec"], ["is float32[1], but uint8[1] is declared"]),
        (declared({"a": Box((1,))}), ["spec"], ["the view has the leaves [''], but Group.observation declares"]),
        (declared(Discrete(3)), ["spec"], ["Group.observation is Discrete(n=3)", "Use a `shoal.Box`"]),
        (with_groups(walker=Group(2, Box((), -1, 1))), ["shape"], ["it returned `legal`, but the action is a Box"]),
        (
            stepping(lambda old, actions, new, outcome: new),
            ["shape"],
            ["step: it returned (State)", "new_state, shoal"],
        ),
        (
            rewarding({"ghost": jnp.zeros(1)}),
            ["groups"],
            ["reward is for ['ghost', 'walker', 'watcher'], but `groups`"],
        ),
        (rewarding({"walker": jnp.zeros(3)}), ["shape"], ["step, group 'walker': reward has shape (3,)"]),
        (rewarding({"walker": jnp.zeros(2, jnp.int32)}), ["dtype"], ["reward is int32[2]", "Return float32[2]"]),
        (ending(terminated=jnp.zeros(2, bool)), ["shape"], ["step: terminated has shape (2,)"]),
        (ending(truncated=jnp.ones(())), ["dtype"], ["step: truncated is float32[]", "Return bool[]"]),
        (ending(metrics={"m": jnp.zeros(2)}), ["shape"], ["metrics['m'] is float32[2]", "float scalars"]),
        (
            storing(lambda s: s.replace(x=s.x.astype(int))),
            ["state changes"],
            ["state.x is float32[2] after reset and int32"],
        ),
        (
            storing(lambda s: s.replace(x=jnp.zeros(3))),
            ["state changes"],
            ["state.x is float32[2] after reset and float32[3]"],
        ),
        (
            storing(lambda s: Longer(s.x, s.time, s.x)),
            ["state changes"],
            ["state.extra is returned by step but not by reset"],
        ),
        (storing(lambda s: s.replace(note="other")), ["state changes"], ["a static field (`pytree_node=False`)"]),
        (
            storing(lambda s: s.replace(x=jnp.where(s.x > 0, 1.0, 0.0))),
            ["weak type", "retracing"],
            ["state.x is weakly typed (made from a Python number) after step and not after reset", "traced 2 times"],
        ),
        (world(global_state=lambda self, state, params: ()), ["shape"], ["global_state: it is empty"]),
    ],
)
def test_specs_that_differ_from_reality(env, kinds, words):
    assert_found(env, kinds, *words)


def circles(**changes):
    good = Circles(jnp.zeros((2, 2)), jnp.ones(2), jnp.zeros(2, jnp.int32), jnp.ones(2, bool), names=("a", "b"))
    return lambda state: Scene(circles=good.replace(**changes))


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (drawing(lambda state: None), ["scene: it returned NoneType"]),
        (drawing(lambda state: Scene(bounds=(0.0, 0.0, 0.0, 1.0))), ["bounds are (0.0, 0.0, 0.0, 1.0)"]),
        (drawing(circles(position=jnp.zeros((2, 3)))), ["scene, circles: position is float32[2, 3]", "[k, 2], k = 2"]),
        (drawing(circles(radius=jnp.zeros(3))), ["radius is float32[3]"]),
        (drawing(circles(radius=None)), ["radius is None"]),
        (drawing(circles(colour=jnp.zeros(2))), ["colour is float32[2]", "Return integers of shape [k]"]),
        (drawing(circles(names=("a",))), ["there are 1 names for 2 shapes"]),
        (drawing(circles(colour=jnp.full(2, 9))), ["a colour is 9", "Colours are 0 to 7"]),
    ],
)
def test_scenes_that_cannot_be_drawn(env, words):
    assert_found(env, ["scene"], *words)


def test_a_scene_may_hide_what_has_no_place():
    hidden = circles(position=jnp.full((2, 2), jnp.nan), visible=jnp.zeros(2, bool), heading=jnp.full(2, jnp.nan))
    assert check(drawing(hidden)).findings == ()
    assert_found(
        drawing(circles(position=jnp.full((2, 2), jnp.nan))), ["not finite"], "scene, circles: position is nan"
    )


counter = {"calls": 0}
leaked: list[Any] = []


def random_reset(self, key, params):
    return Line.reset(self, key, params).replace(x=jnp.full(2, random.random(), jnp.float32))


def random_step(old, actions, new, outcome):
    return new.replace(x=new.x + np.random.default_rng().random(dtype=np.float32)), outcome


def count_calls(old, actions, new, outcome):
    counter["calls"] += 1
    return new, outcome.replace(reward=outcome.reward | {"watcher": jnp.full(1, counter["calls"], jnp.float32)})


def leak(old, actions, new, outcome):
    leaked.append(new.x)
    return new.replace(x=new.x + leaked[0]), outcome


@dataclasses.dataclass(frozen=True)
class Counting(Line):
    def reset(self, key, params):
        object.__setattr__(self, "calls", getattr(self, "calls", 0) + 1)
        return Line.reset(self, key, params)


class InPlace(Line):
    def reset(self, key, params):
        return {"inner": Line.reset(self, key, params)}

    def step(self, key, state, actions, params):
        state["inner"], outcome = Line.step(self, key, state["inner"], actions, params)
        return state, outcome

    def observe(self, state, params):
        return Line.observe(self, state["inner"], params)


def ask_whether_traced(old, actions, new, outcome):
    return new.replace(x=new.x + (1.0 if isinstance(new.x, jax.core.Tracer) else 0.0)), outcome


@jax.custom_batching.custom_vmap
def doubled(x):
    return 2 * x


@doubled.def_vmap
def _tripled(axis_size, in_batched, x):
    return 3 * x, in_batched[0]


@pytest.mark.parametrize(
    ("env", "kinds", "words"),
    [
        (
            world(reset=random_reset),
            ["hidden state"],
            ["reset: called twice with the same arguments, reset.x at [0] is"],
        ),
        (stepping(random_step), ["hidden state"], ["step: called twice", "Draw randomness from `key` only"]),
        (stepping(count_calls), ["hidden state"], ["step[1].reward['watcher'] at [0] is"]),
        (stepping(leak), ["host value"], ["an earlier call left behind", "Keep everything that changes in the state"]),
        (Counting(), ["mutation"], ["class: `self.calls` is not what it was"]),
        (world(InPlace), ["mutation"], ["step: it changes the state or the actions that it is given, in place"]),
        (
            stepping(ask_whether_traced),
            ["jit disagrees"],
            ["step: outside of jit and inside it give different results"],
        ),
        (
            storing(lambda s: s.replace(x=doubled(s.x))),
            ["vmap disagrees"],
            ["step: in a batch (vmap) and alone give different results: state.x at [0] is"],
        ),
        (
            resetting(lambda s: s.replace(x=np.zeros(2))),
            ["dtype"],
            ["reset: state.x is float64[2]", "make arrays with `jnp`"],
        ),
        (observing(view=np.zeros((2, 1))), ["dtype"], ["observe, group 'walker': view is float64[2, 1]"]),
    ],
)
def test_methods_that_are_not_functions_of_their_arguments(env, kinds, words):
    leaked.clear()
    report = check(env)
    leaked.clear()
    assert {finding.kind for finding in report.problems} == set(kinds), str(report)
    for word in words:
        assert word in str(report)


def nan_after(time):
    return lambda state: jnp.where(state.time == time, jnp.nan, state.x)[:, None]


def paying(when_left):
    """Pays the second walker after it has left."""
    return stepping(
        lambda old, actions, new, outcome: (
            new,
            outcome.replace(reward=outcome.reward | {"walker": jnp.where(old.time >= 2, when_left, jnp.zeros(2))}),
        )
    )


def any_walker_moves(self, key, state, actions, params):
    new, outcome = Line.step(self, key, state, actions, params)
    return new.replace(x=new.x + 0.1 * actions["walker"]), outcome


def multi(legal):
    def observe(self, state, params):
        here = self.here(state)
        return Line.observe(self, state, params) | {"walker": Observation(state.x[:, None], legal, here, here)}

    def step(self, key, state, actions, params):
        return Line.step(self, key, state, actions | {"walker": actions["walker"][:, 0]}, params)

    groups = {**Line().groups, "walker": Group(2, MultiDiscrete((3, 2)))}
    return world(groups=property(lambda self: groups), observe=observe, step=step)


@pytest.mark.parametrize(
    ("env", "kinds", "words"),
    [
        (
            observing(view=nan_after(2)),
            ["not finite"],
            ["observe, group 'walker': view is nan in step 1 (copy 0, agent 0)"],
        ),
        (observing(view=nan_after(0)), ["not finite"], ["view is nan after reset (copy 0, agent 0)"]),
        (
            rewarding({"watcher": jnp.full(1, jnp.inf)}),
            ["not finite"],
            ["step, group 'watcher': reward is inf in step 0"],
        ),
        (ending(metrics={"m": jnp.float32(jnp.nan)}), ["not finite"], ["step: metrics['m'] is nan in step 0 (copy 0)"]),
        (
            world(global_state=lambda self, state, params: jnp.log(-1.0 - state.x)),
            ["not finite"],
            ["global_state: global_state is nan after reset"],
        ),
        (
            observing(present=lambda s: jnp.zeros(2, bool)),
            ["active", "pay"],
            ["agent 0 is active and not present after reset"],
        ),
        (
            observing(legal=jnp.array([[True] * 3, [False] * 3])),
            ["legal"],
            ["no action of agent 1 is legal after reset"],
        ),
        (
            multi(jnp.array([[True] * 5, [True] * 3 + [False] * 2])),
            ["legal"],
            ["no action of choice 1 of agent 1 is legal"],
        ),
        (
            world(step=any_walker_moves),
            ["inactive"],
            ["agents of 'walker' that are not active have an effect: state.x at ["],
        ),
        (
            observing(**dict.fromkeys(("present", "active"), lambda s: jnp.stack([s.time >= 0, s.time != 2]))),
            ["return"],
            ["observe, group 'walker': agent 1 is present after step 2, though it had left this episode before"],
        ),
        (
            paying(jnp.ones(2)),
            ["pay"],
            ["agent 1 is paid 1.0 in step 2, though it was not present when the step began"],
        ),
        (
            with_groups(walker=Group(2, Discrete(3), movers=1)),
            ["movers"],
            ["2 agents are active at once after reset, but the group declares movers=1"],
        ),
        (declared(Box((1,), 0.0, 0.5)), ["spec"], ["outside of the declared [0.0, 0.5]"]),
    ],
)
def test_faults_that_show_when_played(env, kinds, words):
    assert_found(env, kinds, *words)


@pytest.mark.parametrize(
    ("env", "kind", "words"),
    [
        (ending(truncated=jnp.zeros((), bool)), "never ends", "no episode ended in 6 steps of 2 copies"),
        (observing(view=jnp.zeros((2, 1), jnp.int32)), "dtype", "view is int32[2, 1]"),
        (
            stepping(lambda old, actions, new, outcome: (jax.debug.callback(lambda x: None, new.x), (new, outcome))[1]),
            "callback",
            "debug_callback",
        ),
        (resetting(lambda s: s.replace(time=0)), "weak type", "a restored checkpoint would recompile"),
    ],
)
def test_what_may_be_meant_is_only_warned_of(env, kind, words):
    report = check_env(env, num_steps=6, num_envs=2)
    assert report.ok
    assert [finding.kind for finding in report.warnings] == [kind]
    assert words in str(report)
    assert "Warning: " in str(report)


def numpy_reset(self, key, params):
    return Line.reset(self, key, params).replace(x=jnp.asarray(np.random.normal(size=2).astype(np.float32)))


@pytest.mark.parametrize(
    ("env", "where"),
    [
        (world(reset=random_reset), "reset"),
        (world(reset=numpy_reset), "reset"),
        (stepping(random_step), "step"),
        (stepping(count_calls), "step"),
    ],
)
def test_the_short_check_finds_what_is_drawn_while_tracing(env, where):
    """Else the numbers of one draw are constants of the whole run."""
    found = check_structure(env)
    assert [(one.kind, one.where) for one in found.problems] == [("hidden state", where)]
    assert "traced twice" in found.problems[0].what


def test_the_short_check_finds_no_fault_with_constants_and_keys():
    assert not check_structure(Line()).problems
    drawn = world(reset=lambda self, key, params: Line.reset(self, jax.random.fold_in(jax.random.key(3), 1), params))
    assert not check_structure(drawn).problems
    assert [one.kind for one in check_structure(stepping(leak)).problems] != []


def test_all_problems_are_listed_at_once_with_what_to_do():
    env = world(
        players=property(lambda self: {}),
        scene=lambda self, state, params: Scene(bounds=(1.0, 0.0, 0.0, 1.0)),
        observe=lambda self, state, params: (
            Line.observe(self, state, params) | {"watcher": Observation(jnp.full((1, 1), jnp.nan))}
        ),
    )
    with pytest.raises(WorldError) as caught:
        check_env(env, num_steps=3, num_envs=2)
    text = str(caught.value)
    assert text.startswith("Broken breaks the environment contract, ")
    assert "  1. players: the seat ('walker', 0) has no player.\n     Every seat" in text
    assert "bounds are (1.0, 0.0, 0.0, 1.0)" in text
    assert "observe, group 'watcher': view is nan" in text


def test_the_same_key_plays_the_same_game():
    env = observing(view=lambda state: jnp.where(state.x > 0.9, jnp.inf, state.x)[:, None])
    first, again, other = (check(env, key=jax.random.key(seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_a_world_is_tried_on_other_devices(monkeypatch):
    calls = []

    def second_device():
        calls.append(1)
        return jax.local_devices()[-1:]

    monkeypatch.setattr(_agreement, "other_devices", second_device)
    assert check(Line()).findings == ()
    assert calls


def test_devices_that_disagree_are_noticed(monkeypatch):
    """Without a second kind of device the comparison itself is tested, on two results that differ."""
    assert _agreement.other_devices() == []
    monkeypatch.setattr(_agreement, "other_devices", lambda: jax.local_devices()[-1:])
    zeros = jax.tree.map(jnp.zeros_like, {part: {"x": jnp.ones(2)} for part in _agreement._METHOD_OF})
    for error, kinds in ((1e-4, []), (0.1, ["devices disagree"])):
        elsewhere = zeros | {"state": {"x": jnp.full(2, error)}}
        programs = type("Fake", (), {"single": staticmethod(lambda *args, elsewhere=elsewhere: elsewhere)})
        findings = Findings()
        _agreement._compare_devices(findings, programs, zeros)
        assert [finding.kind for finding in findings.all()] == kinds


class LineReference:
    """`Line`, written again in numpy; `fault` plants an error into it."""

    def __init__(self, fault=None):
        self.fault = fault

    def set_state(self, state, params):
        self.x, self.time, self.speed = np.array(state.x, np.float64), int(state.time), float(params["speed"])

    def step(self, actions):
        here = np.array([True, self.time < 2])
        self.x += np.where(here, self.speed * (actions["walker"] - 1), 0.0)
        reward = np.where(here, self.x, 0.0)
        if self.fault == "reward":
            reward[1] += 0.5 * (self.time == 1)
        view = self.x[:, None] * (2.0 if self.fault == "view" else 1.0)
        if self.fault == "shape":
            view = self.x
        gone = np.where(here[:, None], view, np.nan) if self.time >= 2 else view
        views = {"walker": gone, "watcher": np.zeros((1, 1))}
        end = self.time + 1 >= (3 if self.fault == "end" else 4)
        return views, {"walker": reward, "watcher": np.zeros(1)}, False, end


def test_a_reference_that_agrees():
    report = check_env(Line(), reference=LineReference(), num_steps=12, num_envs=3)
    assert report.findings == ()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("reward", "step, group 'walker', reward: in step 1 agent 1 is "),
        ("view", "observe, group 'walker', view: in step 0 agent 0, entry [0], is "),
        ("shape", "the world gives shape (2, 1), the reference shape (2,)"),
        ("end", "step, truncated: in step 2 the world says False, the reference True"),
    ],
)
def test_a_reference_that_does_not_agree(fault, words):
    report = check(Line(), reference=LineReference(fault))
    assert {finding.kind for finding in report.problems} == {"reference"}
    assert words in str(report)


def test_a_reference_may_be_a_function_and_both_values_are_named():
    def reference(state, actions, params):
        ours = LineReference()
        ours.set_state(state, params)
        views, rewards, terminated, truncated = ours.step(actions)
        return views, rewards | {"watcher": np.full(1, 0.25)}, terminated, truncated

    report = check(Line(), reference=reference)
    assert [finding.where for finding in report.problems] == ["step, group 'watcher', reward"]
    assert "agent 0 is 0.0 in the world and 0.25 in the reference" in str(report)
    assert check(Line(), reference=reference, tolerance=0.3).ok
