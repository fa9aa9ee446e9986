"""A turn-based game with players who drop out: who acts, who is paid, and what the update sees."""

import jax
import numpy as np
import pytest

from shoal import Observation
from shoal.algorithms import PPO
from shoal.batching.policies import Policies
from shoal.batching.rollout import make_experience, rollout
from shoal.batching.vectorise import Vectorised
from shoal.core.algorithm import LearnerSpec
from shoal.core.env import describe
from shoal.core.registry import register
from shoal.networks.torsos import Network
from shoal.training.evaluate import evaluate
from shoal.training.experiment import Experiment, Learner
from shoal.training.runner import Local, run
from tests.worlds.last_card import FOLD, LastCard

register("test/last_card", LastCard)


def play(recurrent, steps=24, copies=32):
    env = LastCard()
    groups = describe(env).groups
    algorithm = PPO(minibatches=2, epochs=1, network=Network(hidden=(16,), recurrent=recurrent, recurrent_size=8))
    state = algorithm.init(jax.random.key(0), LearnerSpec(groups, None))
    actor = Policies({"player": algorithm}, groups)
    vectorised = Vectorised(env, copies)
    worlds = vectorised.reset(jax.random.key(1))
    memory = actor.initial_memory(state.params, copies)
    unroll = jax.jit(lambda params, worlds, memory: rollout(vectorised, actor, params, worlds, memory, steps))
    after, last, kept = unroll(state.params, worlds, memory)
    return algorithm, state, make_experience(kept, memory, after.observation, last)


@pytest.fixture(scope="module", params=["none", "gru", "lstm", pytest.param("min_gru", marks=pytest.mark.slow)])
def played(request):
    return play(request.param)


def test_one_moves_others_wait_or_are_gone(played):
    _, _, whole = played
    obs = whole.trajectories["player"].observation
    assert (np.asarray(obs.active).sum(-1) == 1).all()
    assert (np.asarray(obs.present) >= np.asarray(obs.active)).all()
    assert 0 < (~np.asarray(obs.present)).mean() < 1, "somebody drops out"
    chosen = np.take_along_axis(np.asarray(obs.legal), np.asarray(whole.trajectories["player"].action)[..., None], -1)[
        ..., 0
    ]
    assert chosen[np.asarray(obs.active)].all(), "only legal actions are played"


def test_the_update_recomputes_what_acting_recorded(played):
    """Log-probabilities in the update equal those of acting: memory resets, waits and is stored at the same places."""
    algorithm, state, whole = played
    _, batches = algorithm.prepare(state, whole)
    batch, policy = batches["player"], state.params["player"]
    new = jax.jit(lambda weights, batch: batch.evaluate(policy.network, weights))(policy.weights, batch)
    decides = np.asarray(batch.active)
    np.testing.assert_allclose(np.asarray(new.log_prob)[decides], np.asarray(batch.log_prob)[decides], atol=1e-5)
    assert decides.sum() == whole.first.size, "one decision a step"


def test_feed_forward_updates_work_on_movers_only():
    algorithm, state, whole = play("none")
    _, batches = algorithm.prepare(state, whole)
    batch, track = batches["player"], whole.trajectories["player"]
    assert batch.action.shape == (24, 32, 1)
    active = np.asarray(track.observation.active)
    np.testing.assert_array_equal(np.asarray(batch.action)[..., 0], np.asarray(track.action)[active].reshape(24, 32))
    view = np.asarray(track.observation.view)[active].reshape(24, 32, -1)
    np.testing.assert_array_equal(np.asarray(batch.observation.view)[:, :, 0], view)


def test_winners_are_paid_for_their_last_decision(played):
    """With λ = γ = 1 a target is the rest of one's own payoff, whoever moved in between, up to the rollout's edge."""
    _, _, whole = played
    track = whole.trajectories["player"]
    algorithm = PPO(gamma=1.0, gae_lambda=1.0, network=Network(hidden=(16,)))
    state = algorithm.init(jax.random.key(0), LearnerSpec(describe(LastCard()).groups, None))
    everybody = state.replace(params={"player": state.params["player"].replace(movers=None)})
    without_memory = whole.replace(trajectories={"player": track.replace(memory=(), last_memory=())})
    batch = algorithm.prepare(everybody, without_memory)[1]["player"]
    reward, ended = np.asarray(track.reward), np.asarray(whole.terminated)
    active, present = np.asarray(track.observation.active), np.asarray(track.observation.present)
    checked = 0
    for copy in range(8):
        for player in range(3):
            for t in range(24):
                ends = [s for s in range(t, 24) if ended[s, copy] or not present[s, copy, player]]
                if not active[t, copy, player] or not ends:
                    continue
                rest = reward[t : ends[0] + 1, copy, player].sum()
                np.testing.assert_allclose(batch.target[t, copy, player], rest, atol=1e-5)
                checked += 1
    assert checked > 30


@pytest.mark.slow
def test_it_learns_what_cards_are_worth():
    """Who cannot win folds at once and loses the ante, 1; the highest card stays in and wins what others paid."""
    experiment = Experiment(
        "test/last_card",
        learners={
            "l": Learner(
                PPO(learning_rate=3e-3, gamma=1.0, anneal=True, normalise_values=True, network=Network(hidden=(64, 64)))
            )
        },
        num_envs=256,
        num_steps=32,
        total_env_steps=800_000,
    )
    result = run(experiment, on=Local(devices=1))
    setup = experiment.setup
    params = setup.env.default_params()
    keys = jax.random.split(jax.random.key(0), 256)
    view = jax.vmap(lambda key: setup.env.observe(setup.env.reset(key, params), params)["player"].view[0])(keys)
    policy = result.policies["player"]
    algorithm = experiment.learners["l"].algorithm
    logits, _ = jax.vmap(lambda view: policy.network.apply(policy.weights, view, (), method="actor"))(view)
    value = jax.vmap(lambda view: algorithm.value(policy, Observation(view), ()))(view)
    fold, card = np.asarray(jax.nn.softmax(logits)[:, FOLD]), np.asarray(view[:, 0])
    lowest, highest = card == card.min(), card == card.max()
    assert fold[lowest].min() > 0.9
    assert fold[highest].max() < 0.1
    np.testing.assert_allclose(np.asarray(value)[lowest], -1.0, atol=0.3)
    assert np.asarray(value)[highest].min() > 1.0
    assert abs(evaluate(setup, result.policies, 512).total_mean_return) < 1e-3, "the game is zero-sum"
