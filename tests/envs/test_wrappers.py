"""Wrappers: what each changes, that it changes nothing else, and that they fit into one another."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.worlds.last_card import LastCard
from tests.worlds.two_teams import TwoTeams

from shoal.batching.regroup import regroup
from shoal.core.env import Env, describe
from shoal.core.errors import OptionError, UnknownNameError, WorldError
from shoal.core.spaces import Box, Discrete, MultiDiscrete
from shoal.core.types import Group, Observation, Outcome
from shoal.envs.mpe.simple_tag import SimpleTag
from shoal.envs.wrappers import (
    WRAPPERS,
    AgentIds,
    FrameStack,
    ObservationNoise,
    Pad,
    RewardScale,
    TimeLimit,
    wrap,
    wrapper_class,
)
from shoal.testing import check_env

KEY = jax.random.key(3)


@dataclasses.dataclass(frozen=True)
class Rooms(Env):
    """Two groups that differ in every size; one has an image in bytes and a number, and a mask."""

    mask: bool = True
    paired: bool = False  # two choices at once instead of one

    @property
    def groups(self):
        few, many = (MultiDiscrete((2, 3)), MultiDiscrete((4,))) if self.paired else (Discrete(2), Discrete(4))
        return {"big": Group(1, few), "small": Group(2, many, movers=1)}

    @property
    def players(self):
        return {"all": (("big", 0), ("small", 0), ("small", 1))}

    def default_params(self):
        return {"pay": 1.0}

    def sample_params(self, key):
        return {"pay": jax.random.uniform(key)}

    def reset(self, key, params):
        return jnp.int32(0)

    def step(self, key, state, actions, params):
        paid = {name: params["pay"] * jnp.sum(act.reshape(len(act), -1), axis=1) for name, act in actions.items()}
        paid["small"] = paid["small"] * (jnp.arange(2) == state % 2)
        return state + 1, Outcome(paid, state >= 4, jnp.bool_(False), {"sum": jnp.float32(1)})

    def observe(self, state, params):
        def view(count, side):
            image = jnp.full((count, side, side, 1), state, jnp.uint8)
            return {"image": image, "time": jnp.full(count, state, jnp.float32)}

        legal = jnp.array([[False, True, True, False]] * 2) if self.mask else None
        turn = jnp.arange(2) == state % 2
        return {"big": Observation(view(1, 3)), "small": Observation(view(2, 2), legal, active=turn)}


PLANS = [TimeLimit(max_steps=3), FrameStack(count=2), RewardScale(scale=0.5), ObservationNoise(scale=0.1), AgentIds()]


def play(env, actions, seed=0):
    """States, observations and outcomes of one copy."""
    params = env.default_params()
    step, observe = jax.jit(env.step), jax.jit(env.observe)
    state = jax.jit(env.reset)(jax.random.fold_in(KEY, seed), params)
    seen, outcomes = [observe(state, params)], []
    for t, act in enumerate(actions):
        state, outcome = step(jax.random.fold_in(KEY, 100 + t), state, act, params)
        seen.append(observe(state, params))
        outcomes.append(outcome)
    return seen, outcomes


def moves(steps, **groups):
    return [{name: jnp.array(action, jnp.int32) for name, action in groups.items()}] * steps


@pytest.mark.parametrize(("inner", "plans"), [(Rooms(), [*PLANS, Pad()]), (LastCard(), PLANS[::-1])])
def test_wrappers_keep_the_contract_in_any_order(inner, plans):
    env = wrap(inner, plans)
    report = check_env(env, num_steps=12, num_envs=2)
    assert report.num_episodes > 0
    assert env.players == inner.players
    assert env.kind == inner.kind
    assert {name: group.movers for name, group in env.groups.items()} == {
        name: group.movers for name, group in inner.groups.items()
    }


@pytest.mark.parametrize("plan", [*PLANS, Pad()], ids=lambda plan: plan.name)
def test_all_else_is_left_alone(plan):
    inner = Rooms(mask=False) if isinstance(plan, Pad) else Rooms()
    env = plan.around(inner)
    assert hash(env) == hash(plan.around(inner))
    assert env == plan.around(inner)
    params = env.default_params()
    assert params == inner.default_params()
    assert env.sample_params(KEY) == inner.sample_params(KEY)
    (seen, *_), (outcome, *_) = play(env, moves(1, big=[1], small=[1, 1]))
    (bare, *_), (expected, *_) = play(inner, moves(1, big=[1], small=[1, 1]))
    np.testing.assert_array_equal(seen["small"].active, bare["small"].active)
    assert seen["big"].active is None
    assert (seen["small"].present is None) == (bare["small"].present is None)
    assert dict(outcome.metrics) == dict(expected.metrics)
    if not isinstance(plan, RewardScale):
        np.testing.assert_allclose(outcome.reward["small"], expected.reward["small"])
    if not isinstance(plan, Pad):
        np.testing.assert_array_equal(seen["small"].legal, bare["small"].legal)


def test_global_state_and_scene_are_those_of_the_world():
    inner = TwoTeams()
    env = wrap(inner, PLANS)
    params = inner.default_params()
    state = env.reset(KEY, params)
    core = state.state.state.state  # time limit, frames and noise are around it
    np.testing.assert_allclose(env.global_state(state, params), inner.global_state(core, params))
    assert env.scene(state, params).circles.names == ("load", "goal")


def test_time_limit():
    _, outcomes = play(TimeLimit(Rooms(), max_steps=3), moves(4, big=[0], small=[1, 1]))
    assert [bool(outcome.truncated) for outcome in outcomes] == [False, False, True, True]
    assert not any(bool(outcome.terminated) for outcome in outcomes)
    _, outcomes = play(TimeLimit(Rooms(), max_steps=5), moves(5, big=[0], small=[1, 1]))
    last = outcomes[-1]
    assert (bool(last.terminated), bool(last.truncated)) == (True, False)  # an end is not cut short


def test_reward_scale():
    _, (outcome,) = play(RewardScale(Rooms(), scale=-2.5), moves(1, big=[1], small=[2, 1]))
    np.testing.assert_allclose(outcome.reward["big"], [-2.5])
    np.testing.assert_allclose(outcome.reward["small"], [-5.0, 0])


def test_frame_stack():
    seen, _ = play(FrameStack(Rooms(), count=3), moves(3, big=[0], small=[1, 1]))
    times = [obs["small"].view["time"][1].tolist() for obs in seen]
    assert times == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3]]  # oldest first
    image = seen[3]["big"].view["image"]
    assert image.shape == (1, 3, 3, 3)
    assert image.dtype == jnp.uint8
    assert image[0, 2, 1].tolist() == [1, 2, 3]  # channels of an image
    vectors, _ = play(FrameStack(TwoTeams(), count=2), [])
    (bare,), _ = play(TwoTeams(), [])
    np.testing.assert_allclose(vectors[0]["scout"].view, np.tile(bare["scout"].view, 2))


def test_observation_noise():
    env = ObservationNoise(TwoTeams(), scale=0.5)
    params = env.default_params()
    states = jax.vmap(lambda key: env.reset(key, params))(jax.random.split(KEY, 4000))
    noisy = jax.vmap(lambda state: env.observe(state, params)["carrier"].view)(states)
    clean = jax.vmap(lambda state: env.env.observe(state.state, params)["carrier"].view)(states)
    noise = np.asarray(noisy - clean)
    np.testing.assert_allclose(noise.mean(axis=0), 0, atol=0.04)
    np.testing.assert_allclose(noise.std(axis=0), 0.5, atol=0.03)
    np.testing.assert_allclose(np.corrcoef(noise.reshape(4000, -1).T), np.eye(6), atol=0.08)
    seen, _ = play(ObservationNoise(Rooms(), scale=0.5), moves(2, big=[0], small=[1, 1]))
    noise = [float(obs["big"].view["time"][0]) - t for t, obs in enumerate(seen)]
    assert len({round(value, 4) for value in noise}) == 3  # drawn in every step
    assert (seen[1]["big"].view["image"] == 1).all()  # bytes are left alone


def test_noise_that_nobody_would_see_is_refused():
    @dataclasses.dataclass(frozen=True)
    class Images(Rooms):
        def observe(self, state, params):
            return {name: obs.replace(view=obs.view["image"]) for name, obs in super().observe(state, params).items()}

    with pytest.raises(OptionError, match=r"observation_noise: no view of this world is made of floats \(uint8\)"):
        describe(ObservationNoise(Images(), scale=0.5))


def test_agent_ids():
    (seen,), _ = play(AgentIds(TwoTeams()), [])
    (bare,), _ = play(TwoTeams(), [])
    ids = np.eye(5)
    np.testing.assert_allclose(seen["scout"].view, np.hstack([bare["scout"].view, ids[:2]]))
    np.testing.assert_allclose(seen["carrier"].view, np.hstack([bare["carrier"].view, ids[2:]]))
    (seen,), _ = play(AgentIds(Rooms()), [])
    np.testing.assert_array_equal(seen["small"].view["agent_id"], np.eye(3)[1:])
    assert set(seen["small"].view) == {"agent_id", "image", "time"}
    with pytest.raises(OptionError, match=r"agent_ids: .* an entry 'agent_id' already"):
        describe(AgentIds(AgentIds(Rooms())))


def test_pad_discrete():
    env = Pad(Rooms())
    seen, outcomes = play(env, moves(1, big=[3], small=[2, 1]))
    assert {group.action for group in env.groups.values()} == {Discrete(4)}
    assert seen[1]["small"].view["image"].shape == (2, 3, 3, 1)
    assert seen[1]["small"].view["image"][0, :, :, 0].tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]
    np.testing.assert_array_equal(seen[0]["big"].legal, [[True, True, False, False]])
    np.testing.assert_array_equal(seen[0]["small"].legal, [[False, True, True, False]] * 2)
    assert float(outcomes[0].reward["big"][0]) == 0  # what it does not have counts as its first action
    assert float(outcomes[0].reward["small"][0]) == 2


def test_pad_several_choices():
    env = Pad(Rooms(paired=True))
    assert {group.action for group in env.groups.values()} == {MultiDiscrete((4, 3))}
    (seen, _), (outcome,) = play(env, moves(1, big=[[3, 2]], small=[[2, 2], [1, 0]]))
    np.testing.assert_array_equal(seen["big"].legal, [[True, True, False, False, True, True, True]])
    np.testing.assert_array_equal(seen["small"].legal, [[False, True, True, False, True, False, False]] * 2)
    assert float(outcome.reward["big"][0]) == 2
    assert float(outcome.reward["small"][0]) == 2


def test_one_policy_can_play_padded_groups():
    everybody = {"all": ["adversary", "agent"]}
    with pytest.raises(OptionError, match="their views or actions differ"):
        regroup(SimpleTag(), everybody)
    env = regroup(AgentIds(Pad(SimpleTag())), everybody)
    assert describe(env).groups["all"] == Group(4, Discrete(5), observation=Box((20,)))
    assert describe(regroup(Pad(SimpleTag(continuous=True)), everybody)).groups["all"].size == 4
    report = check_env(regroup(Pad(Rooms()), {"all": ["big", "small"]}), num_steps=12, num_envs=2)
    assert report.num_episodes > 0


def test_pad_numbers():
    @dataclasses.dataclass(frozen=True)
    class Boxes(Rooms):
        @property
        def groups(self):
            return {"big": Group(1, Box((3,), -1, 1)), "small": Group(2, Box((2,), -1, 1))}

        def observe(self, state, params):
            return {name: obs.replace(legal=None) for name, obs in super().observe(state, params).items()}

    env = Pad(Boxes())
    assert {group.action for group in env.groups.values()} == {Box((3,), -1, 1)}
    (seen, _), (outcome,) = play(env, [{"big": jnp.ones((1, 3)), "small": jnp.ones((2, 3))}])
    assert seen["small"].legal is None
    np.testing.assert_allclose(outcome.reward["small"], [2, 0])  # the third number has no effect


def test_pad_refuses_what_differs_in_more_than_size():
    with pytest.raises(OptionError, match="pad: the actions of 'scout' and 'carrier' differ in more than size"):
        Pad(TwoTeams())

    @dataclasses.dataclass(frozen=True)
    class Odd(Rooms):
        def observe(self, state, params):
            seen = super().observe(state, params)
            return seen | {"big": seen["big"].replace(view=jnp.zeros((1, 2)))}

    with pytest.raises(OptionError, match="pad: the views of 'big' and 'small' differ in more than size"):
        describe(Pad(Odd()))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: TimeLimit(max_steps=0), "time_limit: max_steps must be a whole number, at least 1, got 0"),
        (lambda: FrameStack(count=1.5), "frame_stack: count must be a whole number, got 1.5"),
        (lambda: RewardScale(scale=float("nan")), "reward_scale: scale must be a finite number, got nan"),
        (lambda: ObservationNoise(scale=-1), "observation_noise: scale must be at least 0, got -1"),
        (lambda: RewardScale(scale=0), "reward_scale: scale must be other than 0, which leaves nothing .*, got 0"),
        (lambda: TimeLimit(max_steps=2**31), "time_limit: max_steps must be at most 2147483647, got 2147483648"),
        (lambda: FrameStack(count=10**9), "frame_stack: count must be at most 1000, got 1000000000"),
        (lambda: FrameStack("pong", count=2), r"frame_stack: the first argument must be a world, .* got 'pong'"),
        (lambda: FrameStack(3), r"a world, as made by shoal.make, got 3. Or leave it out: FrameStack\(count=3\)"),
        (lambda: Pad(Rooms), r"pad: the first argument must be a world, .* Or leave it out: Pad\(\)"),
        (lambda: AgentIds().around(None), "agent_ids: the first argument must be a world, .* got None"),
    ],
)
def test_bad_options(make, said):
    with pytest.raises(OptionError, match=said):
        make()


def test_names():
    assert [wrapper_class(name).name for name in WRAPPERS] == list(WRAPPERS)
    with pytest.raises(UnknownNameError, match=r"unknown wrapper .framestack.. Did you mean .frame_stack."):
        wrapper_class("framestack")


def test_a_wrapper_around_nothing():
    env = FrameStack(count=2)
    for use in (describe, lambda env: env.reset(KEY, ()), lambda env: AgentIds(env).observe(None, ()), check_env):
        with pytest.raises(WorldError, match="around no world yet"):
            use(env)
    with pytest.raises(WorldError, match="around no world yet"):
        RewardScale(scale=2.0).step(KEY, None, {}, ())
