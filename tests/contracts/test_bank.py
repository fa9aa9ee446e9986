"""A bank of 64 policies is one pytree with one more axis; each copy's opponent is drawn for each episode.

Actions of the opponents reveal who they are: policy `i` of the bank always plays action `i % 5`.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal.algorithms import PPO
from shoal.batching.agents import AGENT_AXES
from shoal.batching.policies import ActorOutput, Policies
from shoal.batching.rollout import make_experience, rollout
from shoal.batching.vectorise import Vectorised
from shoal.core.algorithm import LearnerSpec
from shoal.core.env import describe
from shoal.core.keys import Use, agent_keys, use_key
from shoal.networks.torsos import Network

BANK, COPIES, STEPS = 64, 96, 60


@dataclasses.dataclass(frozen=True)
class AgainstBank:
    """Learner in the seats of `learner`; in those of `other`, a policy of the bank per copy and episode."""

    inner: Policies
    learner: str
    other: str

    def initial_memory(self, params, num_envs):
        return {"index": jnp.zeros(num_envs, jnp.int32)}

    def act(self, params, memory, worlds):
        draw = jax.vmap(lambda key: jax.random.categorical(use_key(key, worlds.clock, Use.DRAW), params["mixture"]))
        index = jnp.where(worlds.first, draw(worlds.key), memory["index"])
        algorithm = self.inner.algorithms[self.other]
        keys = jax.vmap(lambda key: use_key(key, worlds.clock, Use.ACT))(worlds.key)
        size = {name: group.size for name, group in self.inner.groups.items()}

        def one_copy(index, observation, keys):
            policy = jax.tree.map(lambda leaf: leaf[index], params["bank"])
            act = lambda obs, key: algorithm.act(policy, obs, (), key, True)  # noqa: E731
            return jax.vmap(act, (AGENT_AXES, 0))(observation, keys)

        others = jax.vmap(lambda key: agent_keys(key, size[self.learner], size[self.other]))(keys)
        out = jax.vmap(one_copy)(index, worlds.observation[self.other], others)
        mine = jax.vmap(lambda key: agent_keys(key, 0, size[self.learner]))(keys)
        own = jax.vmap(jax.vmap(lambda obs, key: algorithm.act(params["learner"], obs, (), key, True), (AGENT_AXES, 0)))
        learner = own(worlds.observation[self.learner], mine)
        extras = {self.learner: learner.extras, self.other: {"index": index}}
        return ActorOutput({self.learner: learner.action, self.other: out.action}, {"index": index}, extras)

    @property
    def recorded_groups(self):
        return ()

    def final_value(self, params, rows):
        observation, _ = rows
        value = lambda obs: self.inner.algorithms[self.learner].value(params["learner"], obs, ())  # noqa: E731
        learner = jax.vmap(jax.vmap(value, (AGENT_AXES,)))(observation[self.learner])
        count = learner.shape[0]
        return {self.learner: learner, self.other: jnp.zeros((count, self.inner.groups[self.other].size))}


def revealing_bank(algorithm, spec):
    """64 policies whose biases force action `i % 5`."""
    bank = jax.vmap(lambda key: algorithm.init(key, spec))(jax.random.split(jax.random.key(1), BANK)).params["runner"]
    forced = 50.0 * jax.nn.one_hot(jnp.arange(BANK) % 5, 5)
    path = ("params", "policy_head", "bias")
    weights = jax.tree_util.tree_map_with_path(
        lambda keys, leaf: leaf + forced if tuple(k.key for k in keys) == path else leaf, bank.weights
    )
    return bank.replace(weights=weights)


@pytest.fixture(scope="module")
def played():
    env = shoal.make("tag/grid", num_taggers=2, grid_length=6, max_steps=20)
    groups = describe(env).groups
    algorithm = PPO(minibatches=1, epochs=1, network=Network(hidden=(8,)))
    learner_spec = LearnerSpec({"tagger": groups["tagger"]}, None)
    state = algorithm.init(jax.random.key(0), learner_spec)
    bank = revealing_bank(algorithm, LearnerSpec({"runner": groups["runner"]}, None))
    mixture = jnp.where(jnp.arange(BANK) < 48, 0.0, -jnp.inf)  # a quarter of the bank is never met
    params = {"learner": state.params["tagger"], "bank": bank, "mixture": mixture}
    actor = AgainstBank(Policies({"tagger": algorithm, "runner": algorithm}, groups), "tagger", "runner")
    vectorised = Vectorised(env, COPIES)
    memory = actor.initial_memory(params, COPIES)
    run = jax.jit(lambda p, w, m: rollout(vectorised, actor, p, w, m, STEPS))
    worlds, after, steps = run(params, vectorised.reset(jax.random.key(5)), memory)
    return algorithm, state, worlds, after, steps


def test_opponents_are_drawn_per_episode_and_copy(played):
    *_, steps = played
    index = np.asarray(steps.extras["runner"]["index"])
    first = np.asarray(steps.first)
    assert first.sum() > 3 * COPIES
    changes = index[1:] != index[:-1]
    assert not (changes & ~first[1:]).any(), "an opponent stays for the whole episode"
    assert changes[first[1:]].mean() > 0.9, "a new episode draws anew"
    assert len(np.unique(index[0])) > 20, "each copy draws its own"
    drawn = np.bincount(index[first], minlength=BANK)
    assert (drawn[48:] == 0).all()
    assert drawn[:48].min() > 0


def test_the_drawn_policy_is_the_one_that_acts(played):
    *_, steps = played
    np.testing.assert_array_equal(steps.action["runner"][..., 0], np.asarray(steps.extras["runner"]["index"]) % 5)


def test_the_learner_learns_from_its_own_seats_only(played):
    algorithm, state, worlds, _, steps = played
    memory = {"tagger": (), "runner": ()}
    whole = make_experience(steps, memory, worlds.observation, memory)
    own = whole.replace(trajectories={"tagger": whole.trajectories["tagger"]})
    updated, metrics = jax.jit(algorithm.update)(state, own, jax.random.key(0))
    assert set(updated.params) == {"tagger"}
    assert np.isfinite(float(metrics["loss/tagger"]))
