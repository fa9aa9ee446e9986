"""Returns and advantages over an agent's own decisions.

Everything is time-major: `[T, ...]` with any trailing shape, the same for every argument (the caller broadcasts the
flags). The arguments mean the same in every function:

- reward, value: the reward of step `t`, and the value of the view that it started from.
- final_value: where step `t` ended an episode, the value of that episode's final view; elsewhere it is not read.
- last_value: `[...]`, the value of the view after the last step.
- terminated: the episode is over after step `t`. truncated: it was cut short there, so `final_value` estimates the
  rest. Terminated takes precedence where both are set.
- active: the agent decides at step `t`. A step at which it waits only passes on reward and discount.
- present: the agent may still act or get rewards. Its return ends when it leaves; its outputs are then 0.

`active` and `present` may be None: all agents, always. `final_value` and `last_value` of agents that are not
present in that view must be 0.

gamma counts steps of the world, lam and n count own decisions. With own decisions at t_k,

    R_k = sum of gamma^(t - t_k) r_t over t_k <= t < t_{k+1},    G_k = gamma^(t_{k+1} - t_k),
    A_k = R_k + G_k V_{k+1} - V_k + lam G_k A_{k+1},

where G_k = 0 if the episode terminates or the agent leaves before t_{k+1}; at a truncation V_{k+1} is the value of the
final view and at the edge of the rollout that of the next view, discounted up to there, with no A beyond.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from shoal.core.errors import require_positive


@struct.dataclass
class _Steps:
    """Inputs of one scan, time-major."""

    reward: jax.Array
    value: jax.Array
    final_value: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    active: jax.Array | None
    present: jax.Array | None

    def after(self, beyond: jax.Array) -> jax.Array:
        """The value after this step: `beyond` while the episode continues, else the final value or 0."""
        return jnp.where(self.terminated, 0.0, jnp.where(self.truncated, self.final_value, beyond))

    def if_active(self, deciding: jax.Array, waiting: jax.Array) -> jax.Array:
        return deciding if self.active is None else jnp.where(self.active, deciding, waiting)

    def if_present(self, x: jax.Array) -> jax.Array:
        return x if self.present is None else jnp.where(self.present, x, 0.0)


def advantages(
    reward: jax.Array,
    value: jax.Array,
    final_value: jax.Array,
    last_value: jax.Array,
    terminated: jax.Array,
    truncated: jax.Array,
    active: jax.Array | None,
    present: jax.Array | None,
    gamma: jax.Array | float,
    lam: jax.Array | float,
) -> tuple[jax.Array, jax.Array]:
    """Generalised advantages over own decisions, and the targets of the value function.

    With `active` None this is GAE (Schulman et al. 2016) with bootstrapping at truncations. A waiting agent's target is
    the return from its view; its advantage is not meaningful for the policy.
    """

    def back(beyond: jax.Array, step: _Steps) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        target = step.reward + gamma * step.after(beyond)
        advantage = target - step.value
        worth = step.if_active(step.value + lam * advantage, target)
        return step.if_present(worth), (step.if_present(advantage), step.if_present(target))

    steps = _Steps(reward, value, final_value, terminated, truncated, active, present)
    return _scan_back(back, last_value, steps)


def lambda_returns(
    reward: jax.Array,
    value: jax.Array,
    final_value: jax.Array,
    last_value: jax.Array,
    terminated: jax.Array,
    truncated: jax.Array,
    active: jax.Array | None,
    present: jax.Array | None,
    gamma: jax.Array | float,
    lam: jax.Array | float,
) -> jax.Array:
    """TD(lambda) returns: at each step, reward + gamma ((1 - lam) V + lam G) of the next own decision."""
    return advantages(reward, value, final_value, last_value, terminated, truncated, active, present, gamma, lam)[1]


def n_step_returns(
    reward: jax.Array,
    value: jax.Array,
    final_value: jax.Array,
    last_value: jax.Array,
    terminated: jax.Array,
    truncated: jax.Array,
    active: jax.Array | None,
    present: jax.Array | None,
    gamma: jax.Array | float,
    n: int,
) -> jax.Array:
    """The discounted rewards up to the n-th own decision from here, then its value.

    A return that reaches the end of the episode or of the rollout earlier stops there, as in `advantages`.
    """
    require_positive("n_step_returns", n=n)

    # worth[j]: the return from here, bootstrapped after j more own decisions.
    def back(worth: jax.Array, step: _Steps) -> tuple[jax.Array, jax.Array]:
        ahead = step.reward + gamma * step.after(worth)
        deciding = jnp.concatenate([step.value[None], ahead[:-1]])
        return step.if_present(step.if_active(deciding, ahead)), step.if_present(ahead[-1])

    steps = _Steps(reward, value, final_value, terminated, truncated, active, present)
    return _scan_back(back, jnp.broadcast_to(last_value, (n, *last_value.shape)), steps)


def vtrace(
    log_ratio: jax.Array,
    reward: jax.Array,
    value: jax.Array,
    final_value: jax.Array,
    last_value: jax.Array,
    terminated: jax.Array,
    truncated: jax.Array,
    active: jax.Array | None,
    present: jax.Array | None,
    gamma: jax.Array | float,
    lam: jax.Array | float = 1.0,
    rho_clip: jax.Array | float = 1.0,
    c_clip: jax.Array | float = 1.0,
) -> tuple[jax.Array, jax.Array]:
    """V-trace (Espeholt et al. 2018) over own decisions: (policy-gradient advantage, target of the value function).

    log_ratio: log of target over behaviour probability of the action taken; not read while waiting. The target is
    v_k = V_k + rho_k (R_k + G_k V_{k+1} - V_k) + c_k G_k (v_{k+1} - V_{k+1}) with rho = min(rho_clip, ratio) and
    c = lam min(c_clip, ratio). The advantage, rho_k (R_k + G_k ((1 - lam) V_{k+1} + lam v_{k+1}) - V_k), is the paper's
    at lam = 1; for any lam it makes on-policy V-trace the same as `advantages`.
    """

    # value_on and target_on carry V and v of the next own decision back over the steps spent waiting.
    def back(beyond: tuple[jax.Array, jax.Array], x: tuple[_Steps, jax.Array]):
        step, ratio = x
        value_on = step.reward + gamma * step.after(beyond[0])
        target_on = step.reward + gamma * step.after(beyond[1])
        rho, c = jnp.minimum(ratio, rho_clip), lam * jnp.minimum(ratio, c_clip)
        mixed = value_on + lam * (target_on - value_on)
        decided = step.value + rho * (value_on - step.value) + c * (target_on - value_on)
        advantage = step.if_active(rho * (mixed - step.value), mixed - step.value)
        target = step.if_active(decided, mixed)
        passed = step.if_active(step.value, value_on), step.if_active(decided, target_on)
        return jax.tree.map(step.if_present, (passed, (advantage, target)))

    steps = _Steps(reward, value, final_value, terminated, truncated, active, present)
    return _scan_back(back, (last_value, last_value), (steps, jnp.exp(log_ratio)))


UNROLLED = 16
"""Steps of a backward scan that are unrolled on an accelerator, where launching its small kernels is what costs."""


def _scan_back(back: Callable[..., Any], beyond: Any, steps: Any) -> Any:
    """The results of `back` for each step, from the last to the first."""
    return lax.scan(back, beyond, steps, reverse=True, unroll=1 if jax.default_backend() == "cpu" else UNROLLED)[1]
