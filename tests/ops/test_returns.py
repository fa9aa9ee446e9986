import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.core.errors import OptionError
from shoal.ops import returns

GAMMA, LAM = 0.9, 0.8
FIELDS = ("reward", "value", "final_value", "last_value", "terminated", "truncated", "active", "present")


def random_rollout(seed, steps=40, agents=60):
    """Rollouts of several short episodes each, whose agents wait, leave, and are cut off anywhere."""
    random = np.random.default_rng(seed)
    shape = (steps, agents)
    data = {name: random.normal(size=shape).astype(np.float32) for name in ("reward", "value", "final_value")}
    ended, terminated = random.random(shape) < 0.15, random.random(shape) < 0.5
    data["terminated"] = ended & terminated
    data["truncated"] = ended & (~terminated | (random.random(shape) < 0.3))  # sometimes both
    leaves = random.random(shape) < 0.1
    present = np.ones((steps + 1, agents), bool)
    for t in range(steps):
        stays = present[t] & ~leaves[t]
        data["final_value"][t] *= stays
        present[t + 1] = np.where(ended[t], random.random(agents) < 0.9, stays)
    data["present"] = present[:-1]
    data["active"] = data["present"] & (random.random(shape) < 0.5)
    data["last_value"] = (random.normal(size=agents) * present[-1]).astype(np.float32)
    # What lies where an agent is not present must not be read.
    data["reward"][~data["present"]] = data["value"][~data["present"]] = 1e6
    return data


def walk(data, t, agent):
    """From step t to the agent's next own decision: (R, G, V of what follows, the next decision or None)."""
    total, discount = 0.0, 1.0
    for s in range(t, len(data["reward"])):
        total += discount * data["reward"][s, agent]
        discount *= GAMMA
        if data["terminated"][s, agent]:
            return total, 0.0, 0.0, None
        if data["truncated"][s, agent]:
            return total, discount, data["final_value"][s, agent], None
        if s + 1 == len(data["reward"]):
            return total, discount, data["last_value"][agent], None
        if not data["present"][s + 1, agent]:
            return total, 0.0, 0.0, None
        if data["active"][s + 1, agent]:
            return total, discount, data["value"][s + 1, agent], s + 1
    raise AssertionError


def brute_advantage(data, t, agent):
    total, discount, value, following = walk(data, t, agent)
    beyond = brute_advantage(data, following, agent) if following is not None else 0.0
    return total + discount * value - data["value"][t, agent] + LAM * discount * beyond


def brute_n_step(data, t, agent, n):
    total, discount, value, following = walk(data, t, agent)
    if following is None or n == 1:
        return total + discount * value
    return total + discount * brute_n_step(data, following, agent, n - 1)


def brute_vtrace(data, ratio, t, agent, rho_clip, c_clip):
    """V + the sum over later own decisions of (product of G c) rho delta, as in the paper's equation (1)."""
    target, weight, here = data["value"][t, agent], 1.0, t
    while here is not None:
        total, discount, value, following = walk(data, here, agent)
        rho, c = (min(clip, ratio[here, agent]) for clip in (rho_clip, c_clip))
        target += weight * rho * (total + discount * value - data["value"][here, agent])
        weight, here = weight * discount * c, following
    return target


def each_present(data, active_only=False):
    return np.argwhere(data["active"] if active_only else data["present"])


def arguments(data):
    return [data[name] for name in FIELDS]


@pytest.mark.parametrize("seed", [0, 1])
def test_advantages_against_brute_force(seed):
    data = random_rollout(seed)
    advantage, target = jax.jit(returns.advantages)(*arguments(data), GAMMA, LAM)
    for t, agent in each_present(data):
        expected = brute_advantage(data, t, agent)
        assert advantage[t, agent] == pytest.approx(expected, abs=2e-5)
        assert target[t, agent] == pytest.approx(expected + data["value"][t, agent], abs=2e-5)
    np.testing.assert_array_equal(np.asarray(advantage)[~data["present"]], 0)
    np.testing.assert_array_equal(np.asarray(target)[~data["present"]], 0)


# A turn-based game with gamma = lam = 1/2, six steps of three agents.
#
# Agent 0 waits every other step; its first episode is truncated at t=3, the rollout ends while it waits.
#   t=5 waits: 2 + 4/2 = 4          t=4: R = 2 + 2/2 = 3, G = 1/4, A = 3 + 4/4 - 1 = 3, target 4
#   t=3 waits: 4 + 8/2 = 8          t=2: R = 0 + 4/2 = 2, G = 1/4, A = 2 + 8/4 - 2 = 2, target 4
#   t=1 waits: 2 + (2 + 2/2)/2 = 7/2
#   t=0: R = 1 + 2/2 = 2, G = 1/4, A = 2 + 2/4 - 2 + 1/2 1/4 2 = 3/4, target 11/4
# Agent 1 is in the same copy. It has left by t=3, and sits down again at t=4.
#   t=5: A = 3 + 6/2 - 4 = 2        t=4: A = 1 + 4/2 - 2 + 1/2 1/2 2 = 3/2
#   t=2 waits: 4 and nothing after  t=1: R = 2 + 4/2 = 4, G = 0, A = 4 - 3 = 1
#   t=0 waits: 0 + (3 + 1/2)/2 = 7/4
# Agent 2 plays in a copy whose episodes terminate at t=1 (at the time limit too), 3 and 5: the 100s are not read.
#   t=5: A = 4 - 4 = 0              t=4 waits: 2 + 4/2 = 4
#   t=3: A = 8 - 2 = 6              t=2: A = 0 + 2/2 - 3 + 1/2 1/2 6 = -1/2
#   t=1 waits: 2                    t=0: R = 1 + 2/2 = 2, G = 0, A = 2 - 1 = 1
GAME = {
    "reward": [[1, 0, 1], [2, 2, 2], [0, 4, 0], [4, 77, 8], [2, 1, 2], [2, 3, 4]],
    "value": [[2, 9, 1], [9, 3, 0], [2, 9, 3], [9, 77, 2], [1, 2, 0], [9, 4, 4]],
    "final_value": [[0, 0, 0], [0, 0, 100], [0, 0, 0], [8, 0, 100], [0, 0, 0], [0, 0, 100]],
    "last_value": [4, 6, 100],
    "terminated": [[0, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 1]],
    "truncated": [[0, 0, 0], [0, 0, 1], [0, 0, 0], [1, 1, 0], [0, 0, 0], [0, 0, 0]],
    "active": [[1, 0, 1], [0, 1, 0], [1, 0, 1], [0, 0, 1], [1, 1, 0], [0, 1, 1]],
    "present": [[1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 0, 1], [1, 1, 1], [1, 1, 1]],
}
GAME_TARGET = [[2.75, 1.75, 2], [3.5, 4, 2], [4, 4, 2.5], [8, 0, 8], [4, 3.5, 4], [4, 6, 4]]
GAME_ADVANTAGE = {(0, 0): 0.75, (2, 0): 2, (4, 0): 3, (1, 1): 1, (4, 1): 1.5, (5, 1): 2}
GAME_ADVANTAGE |= {(0, 2): 1, (2, 2): -0.5, (3, 2): 6, (5, 2): 0}


def game():
    flags = ("terminated", "truncated", "active", "present")
    return [jnp.array(GAME[name], bool if name in flags else jnp.float32) for name in FIELDS]


def test_turn_based_game_by_hand():
    advantage, target = returns.advantages(*game(), 0.5, 0.5)
    np.testing.assert_allclose(target, GAME_TARGET, atol=1e-6)
    for (t, agent), expected in GAME_ADVANTAGE.items():
        assert advantage[t, agent] == pytest.approx(expected, abs=1e-6)
    np.testing.assert_allclose(returns.lambda_returns(*game(), 0.5, 0.5), GAME_TARGET, atol=1e-6)


def test_one_own_decision_by_hand():
    # Agent 0 of the game: each return is R + G V of the next own decision.
    expected = [1 + 1 + 2 / 4, 2 + 2 / 2, 0 + 2 + 8 / 4, 4 + 8 / 2, 2 + 1 + 4 / 4, 2 + 4 / 2]
    target = returns.n_step_returns(*game(), 0.5, 1)
    np.testing.assert_allclose(target[:, 0], expected, atol=1e-6)


def everybody(steps=30, agents=8, seed=3):
    data = random_rollout(seed, steps, agents)
    data["active"] = data["present"] = np.ones((steps, agents), bool)
    for name in ("reward", "value"):
        data[name] = np.where(np.abs(data[name]) > 1e5, 0.25, data[name]).astype(np.float32)
    return data


@pytest.mark.parametrize("explicit", [True, False])
def test_all_active_is_textbook_gae(explicit):
    data = everybody()
    values_after = np.concatenate([data["value"][1:], data["last_value"][None]])
    values_after = np.where(data["truncated"], data["final_value"], values_after)
    values_after = np.where(data["terminated"], 0, values_after)
    delta = data["reward"] + GAMMA * values_after - data["value"]
    ended = data["terminated"] | data["truncated"]
    expected = np.zeros_like(delta)
    carry = np.zeros(delta.shape[1])
    for t in reversed(range(len(delta))):
        carry = expected[t] = delta[t] + GAMMA * LAM * ~ended[t] * carry
    flags = [data["active"], data["present"]] if explicit else [None, None]
    advantage, target = returns.advantages(*arguments(data)[:6], *flags, GAMMA, LAM)
    np.testing.assert_allclose(advantage, expected, atol=1e-5)
    np.testing.assert_allclose(target, expected + data["value"], atol=1e-5)


def test_lambda_at_its_ends_by_hand():
    # gamma 1/2, rewards 4, 2, values 6, 8, last value 4. lam=0: one step; lam=1: all the way to the edge.
    reward, value = jnp.array([4.0, 2.0]), jnp.array([6.0, 8.0])
    no = jnp.zeros(2, bool)
    args = (reward, value, jnp.zeros(2), jnp.array(4.0), no, no, None, None, 0.5)
    np.testing.assert_allclose(returns.lambda_returns(*args, 0.0), [4 + 8 / 2, 2 + 4 / 2])
    np.testing.assert_allclose(returns.lambda_returns(*args, 1.0), [4 + (2 + 4 / 2) / 2, 2 + 4 / 2])


def test_n_steps_by_hand():
    # Truncated at t=1 with final value 12; last value 6; n = 2, gamma = 1/2.
    reward, value = jnp.array([1.0, 2, 4, 8, 16]), jnp.array([10.0, 20, 30, 40, 50])
    truncated = jnp.array([False, True, False, False, False])
    final_value = jnp.array([0.0, 12, 0, 0, 0])
    expected = [1 + 2 / 2 + 12 / 4, 2 + 12 / 2, 4 + 8 / 2 + 50 / 4, 8 + 16 / 2 + 6 / 4, 16 + 6 / 2]
    got = returns.n_step_returns(
        reward, value, final_value, jnp.array(6.0), jnp.zeros(5, bool), truncated, None, None, 0.5, 2
    )
    np.testing.assert_allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_n_steps_against_brute_force(n):
    data = random_rollout(seed=4, agents=30)
    got = returns.n_step_returns(*arguments(data), GAMMA, n)
    for t, agent in each_present(data):
        assert got[t, agent] == pytest.approx(brute_n_step(data, t, agent, n), abs=2e-5)
    np.testing.assert_array_equal(np.asarray(got)[~data["present"]], 0)


def test_n_must_be_positive():
    with pytest.raises(OptionError, match="n must be greater than 0, got 0"):
        returns.n_step_returns(*game(), 0.5, 0)


@pytest.mark.parametrize(
    ("rho_clip", "target", "advantage"),
    [
        # gamma 1/2, ratios 2 and 1/2, c clipped at 1.
        # t=1: rho = 1/2, v = 4 + (2 + 8/2 - 4)/2 = 5, advantage (2 + 8/2 - 4)/2 = 1.
        # t=0, rho = 1: v = 2 + 1 (1 + 4/2 - 2) + 1/2 (5 - 4) = 7/2, advantage 1 + 5/2 - 2 = 3/2.
        (1.0, [3.5, 5], [1.5, 1]),
        # t=0, rho = 2: v = 2 + 2 (1 + 4/2 - 2) + 1/2 (5 - 4) = 9/2, advantage 2 (1 + 5/2 - 2) = 3.
        (2.0, [4.5, 5], [3, 1]),
    ],
)
def test_vtrace_by_hand(rho_clip, target, advantage):
    no = jnp.zeros(2, bool)
    log_ratio = jnp.log(jnp.array([2.0, 0.5]))
    got_advantage, got_target = returns.vtrace(
        log_ratio,
        jnp.array([1.0, 2]),
        jnp.array([2.0, 4]),
        jnp.zeros(2),
        jnp.array(8.0),
        no,
        no,
        None,
        None,
        0.5,
        rho_clip=rho_clip,
    )
    np.testing.assert_allclose(got_target, target, atol=1e-6)
    np.testing.assert_allclose(got_advantage, advantage, atol=1e-6)


def test_vtrace_against_brute_force():
    data = random_rollout(seed=5)
    ratio = np.exp(np.random.default_rng(6).normal(size=data["reward"].shape)).astype(np.float32)
    ratio[~data["active"]] = np.nan  # must not be read
    advantage, target = returns.vtrace(np.log(ratio), *arguments(data), GAMMA, rho_clip=1.5, c_clip=0.9)
    for t, agent in each_present(data, active_only=True):
        assert target[t, agent] == pytest.approx(brute_vtrace(data, ratio, t, agent, 1.5, 0.9), abs=2e-5)
        total, discount, value, following = walk(data, t, agent)
        if following is not None:
            value = brute_vtrace(data, ratio, following, agent, 1.5, 0.9)
        expected = min(1.5, ratio[t, agent]) * (total + discount * value - data["value"][t, agent])
        assert advantage[t, agent] == pytest.approx(expected, abs=2e-5)
    assert np.isfinite(advantage).all()
    assert np.isfinite(target).all()


def test_on_policy_vtrace_is_gae():
    data = random_rollout(seed=7)
    log_ratio = np.zeros_like(data["reward"])
    expected = returns.advantages(*arguments(data), GAMMA, LAM)
    got = returns.vtrace(log_ratio, *arguments(data), GAMMA, LAM)
    np.testing.assert_allclose(got[0], expected[0], atol=2e-5)
    np.testing.assert_allclose(got[1], expected[1], atol=2e-5)


def test_any_trailing_shape_and_traced_discounts():
    data = random_rollout(seed=8, steps=6, agents=12)
    flat = returns.advantages(*arguments(data), GAMMA, LAM)
    shaped = [x.reshape(*x.shape[:-1], 3, 4) for x in arguments(data)]
    folded = jax.jit(returns.advantages)(*shaped, jnp.float32(GAMMA), jnp.float32(LAM))
    for a, b in zip(flat, folded, strict=True):
        np.testing.assert_allclose(a, np.reshape(b, a.shape), atol=1e-5)
