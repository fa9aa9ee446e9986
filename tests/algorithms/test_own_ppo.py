"""An algorithm from outside the package: PPO with the KL penalty of its paper, by overriding `act` and `loss` alone."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.algorithms import PPO
from shoal.networks.torsos import Network
from tests.algorithms.playing import blank, by_hand, experience_by_hand, fresh, played
from tests.worlds.last_card import LastCard


@dataclasses.dataclass(frozen=True)
class KLPPO(PPO):
    """Schulman et al. 2017, section 4, with a fixed coefficient: -r A + β KL(π_old ‖ π) in place of clipping."""

    name: ClassVar[str] = "kl_ppo"

    kl_coef: float = 1.0  # β

    def act(self, params, observation, memory, key, explore):
        """Records the whole distribution, too."""
        out = super().act(params, observation, memory, key, explore)
        actions, _, _ = params.forward(observation, memory)
        return out.replace(extras=out.extras | {"logits": actions.logits})

    def loss(self, new, batch):
        ratio = jnp.exp(new.log_prob - batch.log_prob)
        old, now = jax.nn.log_softmax(batch.extras["logits"]), jax.nn.log_softmax(new.distribution.logits)
        kl = batch.mean_active(jnp.sum(jnp.exp(old) * (old - now), -1))
        policy_loss = batch.mean_active(-ratio * batch.advantage)
        value_loss = batch.mean_present(jnp.square(new.value - batch.target))
        loss = policy_loss + self.kl_coef * kl + 0.5 * self.value_coef * value_loss
        return loss, {"loss": loss, "policy_loss": policy_loss, "value_loss": value_loss, "kl": kl}


ONCE = {"epochs": 1, "minibatches": 1, "normalise_advantages": False, "network": Network(hidden=(4,))}


def test_the_divergence_is_that_of_the_recorded_distribution():
    """π_old = (0.8, 0.2) acted, π is undecided: KL = 0.8 log 1.6 + 0.2 log 0.4, whichever action was taken."""
    algorithm = KLPPO(**ONCE)
    track, flags = by_hand(np.zeros((2, 1, 2)), terminated=True)
    logits = jnp.broadcast_to(jnp.log(jnp.array([0.8, 0.2])), (2, 1, 2, 2))
    whole = experience_by_hand(a=(track.replace(extras=track.extras | {"logits": logits}), flags))
    for coefficient in (1.0, 0.0):  # the option is traced: one program serves both
        state = blank(algorithm, {"a": 2}, 0.0)
        state = state.replace(hyper=state.hyper | {"kl_coef": jnp.float32(coefficient)})
        _, metrics = _update(algorithm)(state, whole)
        kl = 0.8 * np.log(1.6) + 0.2 * np.log(0.4)
        assert float(metrics["kl/a"]) == pytest.approx(kl, abs=1e-5)
        assert float(metrics["loss/a"]) == pytest.approx(coefficient * kl, abs=1e-5)


@pytest.mark.parametrize("mixer", ["none", "sum"])
def test_what_was_recorded_is_cut_like_the_rest(mixer):
    """Turns, masks, minibatches, chunks and a team: on fresh experience the policy has not moved."""
    algorithm = KLPPO(**ONCE | {"minibatches": 2}, mixer=mixer, learning_rate=0.0, chunk_samples=20)
    env = LastCard()
    state = fresh(algorithm, env)
    whole = played(algorithm, env, state.params, num_steps=6, num_envs=4)
    assert whole.trajectories["player"].extras["logits"].shape == (6, 4, 3, 3)
    _, metrics = _update(algorithm)(state, whole)
    assert float(metrics["kl/player"]) == pytest.approx(0.0, abs=1e-6)
    assert float(metrics["value_loss/player"]) > 0
    assert set(metrics) == {f"{name}/player" for name in ("loss", "policy_loss", "value_loss", "kl")}


def _update(algorithm):
    return jax.jit(lambda state, whole: algorithm.update(state, whole, jax.random.key(0)))
