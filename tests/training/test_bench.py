"""The benchmark times the rollout that training uses, and that rollout does what a plain loop does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal.batching.rollout import rollout
from shoal.batching.vectorise import Vectorised
from shoal.core.keys import Use, use_key
from shoal.training import bench, fused

COPIES, STEPS = 3, 12


def plain_checksums(env, key):
    """Every copy, step, agent and key by hand; no jit, no vmap."""
    params = env.default_params()
    sums = np.zeros((COPIES, 3))
    for copy in range(COPIES):
        chain = jax.random.fold_in(key, copy)
        state = env.reset(use_key(chain, jnp.uint32(0), Use.RESET), params)
        for t in range(STEPS):
            clock = jnp.uint32(t + 1)
            act_key = use_key(chain, clock, Use.ACT)
            observation = env.observe(state, params)
            sums[copy, 0] += sum(float(jnp.sum(obs.view)) for obs in observation.values())
            actions, number = {}, 0
            for name, group in env.groups.items():
                keys = [jax.random.fold_in(act_key, number + i) for i in range(group.size)]
                actions[name] = jnp.stack([group.action.sample(k) for k in keys])
                number += group.size
            state, outcome = env.step(use_key(chain, clock, Use.STEP), state, actions, params)
            sums[copy, 1] += sum(float(jnp.sum(reward)) for reward in outcome.reward.values())
            ended = bool(outcome.terminated | outcome.truncated)
            sums[copy, 2] += ended
            if ended:
                state = env.reset(use_key(chain, clock, Use.RESET), params)
    return sums


@pytest.mark.parametrize(
    ("id", "options"),
    [("mpe/simple_spread", {"max_steps": 5}), ("tag/grid", {"grid_length": 2, "num_taggers": 2, "max_steps": 5})],
)
def test_checksums_equal_a_plain_loop(id, options):
    env = shoal.make(id, **options)
    vectorised = Vectorised(env, COPIES)
    worlds = vectorised.reset(jax.random.key(11))
    _, sums = jax.jit(lambda worlds: bench.random_rollout(vectorised, worlds, STEPS))(worlds)
    got = np.stack([sums.views, sums.rewards, sums.ends], axis=1)
    expected = plain_checksums(env, jax.random.key(11))
    assert expected[:, 2].sum() >= COPIES * 2
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_one_rollout_function():
    assert bench.rollout is rollout
    assert fused.rollout is rollout


def test_results_are_complete():
    result = bench.bench_env("tag/grid", num_envs=8, num_steps=4, seconds=0.01)
    wanted = {"env_steps_per_s", "agent_steps_per_s", "env_steps_per_cpu_s", "compile_s", "steps", "device", "versions"}
    assert wanted <= set(result)
    assert result["steps"] % 32 == 0
    assert result["agent_steps_per_s"] == pytest.approx(5 * result["env_steps_per_s"])
