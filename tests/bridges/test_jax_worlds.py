"""gymnax, Jumanji and JaxMARL as worlds: step by step against the originals, the contract, and learners on them."""

import functools
import re
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal.algorithms import PPO
from shoal.bridges.incoming._jax_worlds import box_actions, gym_like_actions, silence, some_legal, tidy
from shoal.core.env import describe
from shoal.core.errors import OptionError
from shoal.core.spaces import Box, Discrete, MultiDiscrete
from shoal.networks.torsos import Network
from shoal.testing import check_env
from shoal.training.experiment import Experiment, Learner
from shoal.training.runner import run

IDS = ["gymnax:CartPole-v1", "jumanji:Game2048-v1", "jaxmarl:switch_riddle"]


@functools.cache
def world(id, **options):
    library = id.partition(":")[0]
    pytest.importorskip(library, reason=f"{library} is not installed: pip install {library}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of these libraries use what others call deprecated
        return shoal.make(id, **options)


def players(env):
    """Compiled `reset`, `step` and `observe` with default params."""
    params = env.default_params()
    step = jax.jit(lambda key, state, actions: env.step(key, state, actions, params))
    return jax.jit(lambda key: env.reset(key, params)), step, lambda state: env.observe(state, params)


def keys(count):
    return jax.random.split(jax.random.key(7), count)


def test_gymnax_step_by_step():
    env = world("gymnax:CartPole-v1")
    reset, step, observe = players(env)
    theirs, settings = env.env, env.settings
    their_step = jax.jit(lambda key, state, action: theirs.step_env(key, state, action, settings))
    state, (seen, raw) = reset(jax.random.key(3)), theirs.reset(jax.random.key(3), settings)
    for t, key in enumerate(keys(30)):
        np.testing.assert_allclose(observe(state)["agent"].view[0], seen, atol=1e-6)
        state, outcome = step(key, state, {"agent": jnp.array([t % 2])})
        seen, raw, reward, terminated, _ = their_step(key, raw, t % 2)
        assert (bool(outcome.terminated), bool(outcome.truncated)) == (bool(terminated), False)
        assert outcome.reward["agent"].tolist() == [float(reward)]


def test_gymnax_time_limits_and_parameters():
    env = world("gymnax:CartPole-v1", max_steps_in_episode=3, gravity=5.0)
    reset, step, _ = players(env)
    assert float(env.default_params()["gravity"]) == 5.0
    assert "max_steps_in_episode" not in env.default_params()
    state, ends = reset(jax.random.key(0)), []
    for t, key in enumerate(keys(3)):
        state, outcome = step(key, state, {"agent": jnp.array([t % 2])})
        ends.append((bool(outcome.terminated), bool(outcome.truncated)))
    assert ends == [(False, False), (False, False), (False, True)]


def test_gymnax_spaces():
    lake = world("gymnax:FrozenLake-misc")
    view = lake.observe(lake.reset(jax.random.key(0), {}), {})["agent"].view
    assert view.sum() == 1, "a number out of n is one-hot"
    assert world("gymnax:Pendulum-v1").groups["agent"].action == Box((1,), -2.0, 2.0)


def test_jumanji_step_by_step():
    env = world("jumanji:Game2048-v1")
    reset, step, observe = players(env)
    their_step = jax.jit(env.env.step)
    state, (raw, told) = reset(jax.random.key(3)), jax.jit(env.env.reset)(jax.random.key(3))
    random = np.random.default_rng(0)
    for key in keys(25):
        seen = observe(state)["agent"]
        assert set(seen.view) == {"board"}
        np.testing.assert_array_equal(seen.view["board"][0], told.observation.board)
        np.testing.assert_array_equal(seen.legal[0], told.observation.action_mask)
        action = random.choice(np.flatnonzero(seen.legal[0]))
        state, outcome = step(key, state, {"agent": jnp.array([action])})
        raw, told = their_step(raw, action)
        assert outcome.reward["agent"].tolist() == [float(told.reward)]
        assert bool(outcome.terminated) == bool(told.last() & (told.discount == 0))


def test_jumanji_choices_with_a_mask_over_combinations_become_one():
    env = world("jumanji:Minesweeper-v0")
    assert env.groups["agent"].action == Discrete(100)
    np.testing.assert_array_equal(env.actions.theirs(jnp.int32(37)), [3, 7])
    assert world("jumanji:RubiksCube-v0").groups["agent"].action == MultiDiscrete((6, 1, 3))


def test_jumanji_agents_see_their_own_rows_and_what_is_shared():
    env = world("jumanji:Cleaner-v0")
    spec = describe(env).observations["agent"]
    shapes = {name: leaf.shape for name, leaf in spec.view.items()}
    assert shapes == {"grid": (3, 10, 10), "agents_locations": (3, 2), "step_count": (3, 1), "agent": (3, 3)}
    assert spec.legal.shape == (3, 4)


def check_jaxmarl(env, steps):
    reset, step, observe = players(env)
    their_step = jax.jit(env.env.step_env)
    state, (seen, raw) = reset(jax.random.key(3)), env.env.reset(jax.random.key(3))
    random = np.random.default_rng(0)
    ends = []
    for key in keys(steps):
        actions, chosen, mine = {}, {}, observe(state)
        for group, agents in env.members.items():
            space = env.groups[group].action
            actions[group] = jnp.array(random.integers(space.n, size=len(agents)), jnp.int32)
            for i, agent in enumerate(agents):
                np.testing.assert_allclose(mine[group].view[i], seen[agent], atol=1e-6)
                chosen[agent] = actions[group][i]
        state, outcome = step(key, state, actions)
        seen, raw, rewards, dones, _ = their_step(key, raw, chosen)
        for group, agents in env.members.items():
            np.testing.assert_allclose(outcome.reward[group], [rewards[agent] for agent in agents], atol=1e-6)
            active = np.asarray(observe(state)[group].active)
            np.testing.assert_array_equal(active, [not dones[agent] for agent in agents])
        assert bool(outcome.terminated | outcome.truncated) == bool(dones["__all__"])
        ends.append((bool(outcome.terminated), bool(outcome.truncated)))
        if ends[-1] != (False, False):
            break
    return ends


def test_jaxmarl_step_by_step():
    ends = check_jaxmarl(world("jaxmarl:switch_riddle"), 6)
    assert ends[-1] != (False, False)


def test_jaxmarl_groups_and_time_limit():
    env = world("jaxmarl:MPE_simple_tag_v3", max_steps=2)
    assert {name: len(agents) for name, agents in env.members.items()} == {"adversary": 3, "agent": 1}
    assert env.groups["agent"].action == Discrete(5)
    assert not env.masks
    hanabi = describe(world("jaxmarl:hanabi")).observations["agent"]
    assert hanabi.legal.shape == (2, 21)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MPE_simple_tag_v3", "MPE_simple_spread_v3", "overcooked"])
def test_more_of_jaxmarl_step_by_step(name):
    ends = check_jaxmarl(world(f"jaxmarl:{name}", max_steps=12), 14)
    assert ends[-1] == (False, True), "the end of its time is no end of the game"


@pytest.mark.parametrize(
    ("id", "says"),
    [
        ("gymnax:CartPole-v7", "Did you mean 'CartPole-v1'"),
        ("gymnax:CartPole-v1?", "unknown gymnax environment"),
        ("jumanji:Connector", "Did you mean 'Connector-v3'"),
        ("jaxmarl:ant_4x2", "brax"),
        ("jaxmarl:simple_spread", "MPE_simple_spread_v3"),
        ("jaxmarl:storm", "gives no observation for each of its agents"),
    ],
)
def test_what_cannot_be_made_is_refused(id, says):
    with pytest.raises(OptionError, match=id.partition(":")[0]) as caught:
        world(id)
    assert says in str(caught.value)


def test_an_unknown_option_is_refused():
    with pytest.raises(OptionError, match="gymnax:CartPole-v1: gymnax cannot make it"):
        world("gymnax:CartPole-v1", weight=3)


class Graph:
    pass


def test_actions_are_mapped_or_named():
    apart = box_actions("lib:x", "space", [-2.0, 0.0], [2.0, 1.0], (2,), jnp.float32)
    assert apart.space == Box((2,), -1.0, 1.0)
    np.testing.assert_allclose(apart.theirs(jnp.array([0.5, 3.0])), [1.0, 1.0])
    with pytest.raises(OptionError, match="lib:x: action_space\\('a'\\) is Graph"):
        gym_like_actions("lib:x", "action_space('a')", Graph())
    with pytest.raises(OptionError, match="some of them are infinite"):
        box_actions("lib:x", "space", [-np.inf, 0.0], [np.inf, 1.0], (2,), jnp.float32)
    assert some_legal(jnp.array([[0, 1], [0, 0]])).tolist() == [[False, True], [True, True]]
    assert {k: v.shape for k, v in tidy({"a": {"b": 3}, "c": jnp.ones(2, bool)}).items()} == {"a.b": (1,), "c": (2,)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "id", [*IDS, "jaxmarl:MPE_simple_spread_v3", "jumanji:Connector-v3", "jumanji:RobotWarehouse-v0"]
)
@pytest.mark.filterwarnings("ignore")
def test_they_keep_the_contract(id):
    check_env(world(id), num_steps=10, num_envs=2)


@pytest.mark.slow
def test_the_code_of_the_page(capsys):
    world("gymnax:CartPole-v1")
    text = (Path(__file__).parents[2] / "docs" / "bridges" / "jax-worlds.md").read_text()
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(code, "jax-worlds.md", "exec"), {})
    assert "keeps the environment contract" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.slow
@pytest.mark.parametrize("id", IDS)
def test_a_learner_in_the_fused_runner(id):
    world(id)
    network = Network(hidden=(4,))
    learner = Learner(PPO(network=network, epochs=1, minibatches=1))
    result = run(Experiment(id, learners={"l": learner}, num_envs=4, num_steps=4, total_env_steps=160))
    assert result.update == 10
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.policies))


def test_what_a_library_prints_when_it_is_imported_is_left_out(capsys):
    streams = sys.stdout, sys.stderr, sys.__stdout__
    with silence():
        print("a")
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # as one of them does
        print("b")
    assert (sys.stdout, sys.stderr, sys.__stdout__) == streams
    print("c")
    assert capsys.readouterr().out == "c\n"
