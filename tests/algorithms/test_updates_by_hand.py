"""Whole updates of the on-policy learners, worked out on paper: clipping, entropy, who counts, what ends mean.

The learners are `blank`: two actions that are as likely as each other, and one value whatever is seen. There are two
agents and two steps of one copy. Where nothing else is said γ = 0, so an advantage is the reward less the value.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import Observation
from shoal.algorithms import A2C, PPO, Impala
from shoal.networks.torsos import Network
from tests.algorithms.playing import blank, by_hand, experience_by_hand

BARE = {"network": Network(hidden=()), "gae_lambda": 1.0}
ONCE = {"epochs": 1, "minibatches": 1}
LEARNERS = {
    "ppo": PPO(normalise_advantages=False, **ONCE, **BARE),
    "a2c": A2C(**BARE),
    "impala": Impala(**BARE),
    "appo": Impala(clipped=True, **BARE),
}
ALL = np.ones((3, 1, 2), bool)


@functools.partial(jax.jit, static_argnums=0)
def updated(algorithm, state, whole):
    return algorithm.update(state, whole, jax.random.key(0))


@functools.partial(jax.jit, static_argnums=0)
def chance_of_0(algorithm, state):
    """How likely action 0 is, by what is recorded of acting."""
    seen = Observation(jnp.zeros(1), active=jnp.bool_(True), present=jnp.bool_(True))
    out = algorithm.act(state.params["a"], seen, (), jax.random.key(0), False)
    chance = jnp.exp(out.extras["log_prob"])
    return jnp.where(out.action == 0, chance, 1.0 - chance)


def learner(algorithm, value=0.0, chance=0.5, hyper=()):
    """chance: of action 0 in the policy."""
    state = blank(algorithm, {"a": 2}, value)
    lean = jnp.array([math.log(chance / (1 - chance)), 0.0])
    weights = state.params["a"].weights
    weights["params"]["policy_head"]["bias"] += lean
    changed = {"gamma": 0.0, "entropy_coef": 0.0} | dict(hyper)
    return state.replace(hyper=state.hyper | {name: jnp.float32(number) for name, number in changed.items()})


def learn(algorithm, reward, value=0.0, chance=0.5, active=ALL, present=ALL, hyper=(), **told):
    """Chances of action 0 before and after an update, and its metrics. chance: of action 0 in the policy."""
    state = learner(algorithm, value, chance, hyper)
    track = by_hand(reward, value=value, active=active, present=present, **told)
    before = chance_of_0(algorithm, state)
    state, metrics = updated(algorithm, state, experience_by_hand(a=track))
    return float(before), float(chance_of_0(algorithm, state)), {name: float(v) for name, v in metrics.items()}


@pytest.mark.parametrize(
    ("paid", "ratio", "loss", "moves"),
    [
        (1.0, 2.0, -1.2, 0),  # good, and likelier than 1.2 times already: nothing is left to gain
        (1.0, 0.5, -0.5, 1),
        (-1.0, 2.0, 2.0, -1),
        (-1.0, 0.5, 0.8, 0),  # bad, and avoided already
        (1.0, 1.1, -1.1, 1),
    ],
)
@pytest.mark.parametrize("name", ["ppo", "appo"])
def test_the_ratio_is_that_of_the_new_policy_to_the_one_that_acted_and_is_clipped(name, paid, ratio, loss, moves):
    acted = math.log(0.5 / ratio)
    before, after, metrics = learn(LEARNERS[name], np.full((2, 1, 2), paid), log_prob=acted)
    assert metrics["policy_loss/a"] == pytest.approx(loss, abs=1e-5)
    assert metrics["approx_kl/a"] == pytest.approx(ratio - 1 - math.log(ratio), abs=1e-5)
    assert before == pytest.approx(0.5)
    assert np.sign(round(after - before, 7)) == moves


def test_how_far_the_policy_has_moved_since_it_acted():
    """The ratio is 2 for the one who acts; what the other would have done does not count."""
    state, turns = learner(LEARNERS["a2c"]), ALL & np.array([True, False])
    track = by_hand(np.ones((2, 1, 2)), [[[math.log(0.25), 0.0]]], active=turns, present=ALL)
    kl = jax.jit(LEARNERS["a2c"].approx_kl)(state, experience_by_hand(a=track))
    assert float(kl) == pytest.approx(2 - 1 - math.log(2), abs=1e-5)


@pytest.mark.parametrize("name", LEARNERS)
def test_the_entropy_bonus_makes_the_policy_less_decided(name):
    """Nothing is paid, and action 0 has a chance of 4/5: its entropy is all there is to gain."""
    chance = 0.8
    before, after, metrics = learn(
        LEARNERS[name], np.zeros((2, 1, 2)), chance=chance, log_prob=math.log(chance), hyper={"entropy_coef": 0.5}
    )
    entropy = -(0.8 * math.log(0.8) + 0.2 * math.log(0.2))
    assert metrics["entropy/a"] == pytest.approx(entropy, abs=1e-5)
    assert metrics["loss/a"] == pytest.approx(-0.5 * entropy, abs=1e-5)
    assert before == pytest.approx(chance)
    assert after < before - 1e-5


@pytest.mark.parametrize("name", LEARNERS)
def test_what_is_paid_for_is_done_more_often(name):
    before, after, _ = learn(LEARNERS[name], np.ones((2, 1, 2)))
    assert after > before + 1e-5


@pytest.mark.parametrize("name", LEARNERS)
def test_who_has_left_counts_neither_in_the_value_loss_nor_in_its_mean(name):
    """Both are said to be worth 1; the one who is there gets 3 and 5, the other is gone."""
    here = ALL & np.array([True, False])
    _, _, metrics = learn(LEARNERS[name], [[[3.0, 0.0]], [[5.0, 0.0]]], value=1.0, active=here, present=here)
    assert metrics["value_loss/a"] == pytest.approx(((1 - 3) ** 2 + (1 - 5) ** 2) / 2, abs=1e-5)
    assert metrics["loss/a"] == pytest.approx(metrics["policy_loss/a"] + 0.25 * metrics["value_loss/a"], abs=1e-5)
    plain = -math.log(0.5) if name in ("a2c", "impala") else -1.0  # -A log π; -A ratio
    assert metrics["policy_loss/a"] == pytest.approx(plain * (2 + 4) / 2, abs=1e-5)


@pytest.mark.parametrize("name", LEARNERS)
def test_who_waits_counts_in_the_value_loss_and_not_in_the_policy_loss(name):
    """One acts, the other waits. A view in which one waits is worth what comes of it, as any other."""
    turns = ALL & np.array([True, False])
    _, _, metrics = learn(LEARNERS[name], [[[3.0, 2.0]], [[5.0, 7.0]]], value=1.0, active=turns)
    assert metrics["value_loss/a"] == pytest.approx((2**2 + 4**2 + 1**2 + 6**2) / 4, abs=1e-5)
    plain = -math.log(0.5) if name in ("a2c", "impala") else -1.0  # -A log π; -A ratio
    assert metrics["policy_loss/a"] == pytest.approx(plain * (2 + 4) / 2, abs=1e-5)


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize(
    ("ends", "target"),
    [({"truncated": True}, 3 + 0.5 * 4), ({"terminated": True}, 3), ({"truncated": True, "terminated": True}, 3)],
)
def test_an_episode_that_was_cut_short_is_worth_what_its_final_view_is(name, ends, target):
    """Each step pays 3 and ends an episode whose final view is worth 4; γ = 1/2."""
    whole = {"value": 1.0, "final_value": 4.0, "hyper": {"gamma": 0.5}, **ends}
    _, _, metrics = learn(LEARNERS[name], np.full((2, 1, 2), 3.0), **whole)
    assert metrics["value_loss/a"] == pytest.approx((1 - target) ** 2, abs=1e-4)


@pytest.mark.parametrize("name", LEARNERS)
def test_the_last_view_is_bootstrapped_from(name):
    """γ = 1/2 and λ = 0: both steps are followed by a view that is worth 1, but for one who leaves in the last."""
    here = np.array([[[True, True]], [[True, True]], [[True, False]]])
    whole = {"active": here, "present": here, "hyper": {"gamma": 0.5, "gae_lambda": 0.0}}
    _, _, metrics = learn(LEARNERS[name], np.full((2, 1, 2), 3.0), value=1.0, **whole)
    assert metrics["value_loss/a"] == pytest.approx((3 * (1 - 3.5) ** 2 + (1 - 3) ** 2) / 4, abs=1e-4)


def test_advantages_are_normalised_over_decisions_alone():
    """Decisions with advantages 1 and 5 become -1 and 1, whatever those who wait get; their ratios are 1.1 and 0.9."""
    algorithm = PPO(normalise_advantages=True, **ONCE, **BARE)
    turns = np.array([[[True, False]], [[False, True]], [[True, False]]])
    acted = np.log(0.5 / np.array([[[1.1, 0.3]], [[0.3, 0.9]]]))
    reward = [[[1.0, 100.0]], [[-70.0, 5.0]]]
    _, _, metrics = learn(algorithm, reward, log_prob=acted, active=turns)
    assert metrics["policy_loss/a"] == pytest.approx(-(-1 * 1.1 + 1 * 0.9) / 2, abs=1e-5)


def test_every_copy_is_in_one_minibatch_of_an_epoch():
    """Nothing moves at a rate of 0, so the value loss is the mean over all copies, however they are dealt."""
    algorithm = PPO(normalise_advantages=False, epochs=2, minibatches=2, **BARE)
    paid = np.arange(1.0, 5.0).reshape(1, 4, 1) * np.ones((2, 4, 2))
    everybody = np.ones((3, 4, 2), bool)
    _, _, metrics = learn(algorithm, paid, active=everybody, present=everybody, hyper={"learning_rate": 0.0})
    assert metrics["value_loss/a"] == pytest.approx((1 + 4 + 9 + 16) / 4, abs=1e-5)


@pytest.mark.parametrize("kind", [PPO, A2C])
def test_the_learning_rate_falls_to_nothing_over_the_updates(kind):
    """Of two updates the second moves half as far, and a third would not move."""
    steps = {"epochs": 2, "minibatches": 1} if kind is PPO else {}
    algorithm = kind(anneal=True, normalise_advantages=False, **steps, **BARE)
    state = learner(algorithm, hyper={"total_updates": 2.0, "learning_rate": 0.01})
    whole = experience_by_hand(a=by_hand(np.ones((2, 1, 2)), active=ALL, present=ALL))
    probabilities = [float(chance_of_0(algorithm, state))]
    for _ in range(3):
        state, _ = updated(algorithm, state, whole)
        probabilities.append(float(chance_of_0(algorithm, state)))
    first, second, third = np.abs(np.diff(probabilities))
    assert first > 1e-3
    assert second == pytest.approx(first / 2, rel=0.2)
    assert third == 0.0


def test_illegal_actions_have_no_part_in_the_losses():
    """Only action 0 may be taken: it is certain, which is worth log 1 and has no entropy."""
    legal = np.broadcast_to([True, False], (3, 1, 2, 2))
    _, _, metrics = learn(LEARNERS["a2c"], np.ones((2, 1, 2)), legal=legal)
    assert metrics["entropy/a"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["policy_loss/a"] == pytest.approx(0.0, abs=1e-6)


def test_views_are_normalised_by_those_of_who_is_there():
    """Views of 2 and 4; the other agent, which is gone, would see 100."""
    algorithm = A2C(normalise_views=True, **BARE)
    state, here = learner(algorithm), ALL & np.array([True, False])
    track, flags = by_hand(np.zeros((2, 1, 2)), active=here, present=here)
    views = jnp.array([[[[2.0], [100.0]]], [[[4.0], [100.0]]]])
    track = track.replace(observation=track.observation.replace(view=views))
    state, _ = updated(algorithm, state, experience_by_hand(a=(track, flags)))
    stats = state.params["a"].view_stats
    assert float(stats.mean[0]) == pytest.approx(3.0)
    assert float(stats.std[0]) == pytest.approx(1.0)
