"""An algorithm of one's own: Munchausen-DQN (Vieillard et al. 2020) overrides what DQN's targets are made of."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.algorithms import DQN
from shoal.core.algorithm import Prioritises, supports
from tests.algorithms.tables import ONLINE, SLOW, TABLE, errors, learner, window

# What a user would write.


@dataclasses.dataclass(frozen=True)
class MunchausenDQN(DQN):
    """Adds α max(τ log π(a|s), low) to the reward and bootstraps from the soft value, π = softmax(Q⁻ / τ)."""

    name: ClassVar[str] = "munchausen_dqn"

    temperature: float = 0.03  # τ
    munchausen: float = 0.9  # α
    lowest: float = -1.0  # bound of the bonus

    def backup(self, space, online, target, steps):
        def log_policy(values, observation):
            legal = True if observation.legal is None else observation.legal
            return jax.nn.log_softmax(jnp.where(legal, values / self.temperature, -1e9))

        now = log_policy(target.now, steps.observation)
        taken = jnp.take_along_axis(now, steps.action[..., None], axis=-1)[..., 0]
        bonus = self.munchausen * jnp.clip(self.temperature * taken, self.lowest, 0.0)
        after = log_policy(target.next, steps.next_observation)
        soft = jnp.sum(jnp.exp(after) * (target.next - self.temperature * after), axis=-1)
        reward, waiting = super().backup(space, online, target, steps)  # those who wait choose nothing
        return reward + if_active(steps.observation, bonus, 0.0), if_active(steps.next_observation, soft, waiting)


def if_active(observation, acts, waits):
    return acts if observation.active is None else jnp.where(observation.active, acts, waits)


# The test.

OPTIONS = {"gamma": 0.5, "network": TABLE, "buffer_size": 100}
STEP = {"a": {"view": [[0], [1]], "action": [[1], [0]], "reward": [[3], [9]]}}


def soft(values, temperature):
    """Soft value and log-policy, in float64."""
    scaled = values.astype(np.float64) / temperature
    total = np.log(np.exp(scaled).sum())
    return temperature * total, scaled - total


@pytest.mark.parametrize(
    ("lowest", "active"), [(-100.0, [[1], [1]]), (-0.5, [[1], [1]]), (-100.0, [[1], [0]]), (-100.0, [[0], [1]])]
)
def test_the_target_by_hand(lowest, active):
    """Who waits next is worth the mean; who waits now learns the mean of its values, without a bonus."""
    algorithm = MunchausenDQN(temperature=5.0, munchausen=0.5, lowest=lowest, **OPTIONS)
    _, loss, error = errors(algorithm, learner(algorithm), window({"a": STEP["a"] | {"active": active}}))
    value, bonus = ONLINE[0].mean(), 0.0
    if active[0][0]:
        value, bonus = ONLINE[0, 1], 0.5 * max(5.0 * soft(SLOW[0], 5.0)[1][1], lowest)
    following = soft(SLOW[1], 5.0)[0] if active[1][0] else SLOW[1].mean()
    expected = abs(value - (3 + bonus + 0.5 * following))
    assert error == pytest.approx([expected], rel=1e-5)
    assert loss == pytest.approx(expected**2, rel=1e-5)


def test_mixers_and_priorities_come_with_it():
    algorithm = MunchausenDQN(temperature=5.0, munchausen=0.5, lowest=-100.0, mixer="sum", **OPTIONS)
    state = learner(algorithm)
    assert set(state.hyper) >= {"temperature", "munchausen", "lowest"}  # so they can be swept
    assert supports(algorithm, Prioritises)
    single = algorithm.single_row()
    assert type(single) is MunchausenDQN
    error = jax.jit(single.errors)(state, window(STEP))
    bonus = 0.5 * 5.0 * soft(SLOW[0], 5.0)[1][1]
    np.testing.assert_allclose(error, [[abs(ONLINE[0, 1] - (3 + bonus + 0.5 * soft(SLOW[1], 5.0)[0]))]], rtol=1e-5)
