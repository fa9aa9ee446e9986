"""Copies end and begin on their own, keys are their own chains, and nothing depends on how copies are spread."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal.batching.vectorise import Vectorised
from shoal.core.errors import OptionError
from shoal.core.keys import Use, copy_keys, use_key


@dataclasses.dataclass(frozen=True)
class Countdown(shoal.Env):
    """Starts at a random number and counts down; terminates at 0, or is truncated after `limit` steps."""

    limit: int = 100

    @property
    def groups(self):
        return {"a": shoal.Group(2, shoal.Discrete(2))}

    def default_params(self):
        return {"bonus": 1.0}

    def sample_params(self, key):
        return {"bonus": jax.random.uniform(key)}

    def reset(self, key, params):
        return {"left": jax.random.randint(key, (), 1, 6), "t": jnp.int32(0)}

    def step(self, key, state, actions, params):
        state = {"left": state["left"] - 1, "t": state["t"] + 1}
        reward = {"a": actions["a"].astype(jnp.float32) + params["bonus"]}
        return state, shoal.Outcome(reward, state["left"] <= 0, state["t"] >= self.limit)

    def observe(self, state, params):
        view = jnp.stack([state["left"], state["t"]]).astype(jnp.float32)
        return {"a": shoal.Observation(jnp.broadcast_to(view, (2, 2)))}


ONES = {"a": jnp.ones((64, 2), jnp.int32)}


def plain_copy(env, copy_id, num_steps):
    """One copy stepped by hand, unjitted: what the vectorised world must do."""
    key = jax.random.fold_in(jax.random.key(3), copy_id)
    params = env.default_params()
    state = env.reset(use_key(key, jnp.uint32(0), Use.RESET), params)
    rows, episode = [], 0.0
    for clock in range(1, num_steps + 1):
        state, outcome = env.step(
            use_key(key, jnp.uint32(clock), Use.STEP), state, {"a": jnp.ones(2, jnp.int32)}, params
        )
        episode += float(outcome.reward["a"].sum())
        ended = bool(outcome.terminated | outcome.truncated)
        final = env.observe(state, params)["a"].view
        if ended:
            state = env.reset(use_key(key, jnp.uint32(clock), Use.RESET), params)
        rows.append((ended, bool(outcome.truncated), episode, final, env.observe(state, params)["a"].view))
        episode = 0.0 if ended else episode
    return rows


def test_equals_one_copy_at_a_time():
    env = Countdown(limit=4)
    vectorised = Vectorised(env, 64)
    worlds = vectorised.reset(jax.random.key(3))
    step = jax.jit(vectorised.step)
    history = []
    for _ in range(12):
        worlds, outcome, ended = step(worlds, ONES)
        history.append((ended, outcome, worlds))
    for copy in (0, 1, 17, 63):
        for t, (ended, truncated, returns, final, view) in enumerate(plain_copy(env, copy, 12)):
            got, outcome, worlds = history[t]
            assert bool(got.mask[copy]) == ended
            assert bool(worlds.first[copy]) == ended
            assert bool(outcome.truncated[copy]) == truncated
            seen = vectorised.observe(got.params, got.state, 64)
            np.testing.assert_array_equal(seen["a"].view[copy], final)
            np.testing.assert_array_equal(worlds.observation["a"].view[copy], view)
            if ended:
                assert float(got.returns["a"][copy]) == returns
    assert any(ended for ended, *_ in plain_copy(env, 0, 12))


def test_copies_do_not_depend_on_their_neighbours():
    whole = Vectorised(Countdown(), 64).reset(jax.random.key(3))
    part = Vectorised(Countdown(), 16).reset(jax.random.key(3), copy_ids=jnp.arange(16, 32, dtype=jnp.uint32))
    np.testing.assert_array_equal(whole.state["left"][16:32], part.state["left"])
    whole, *_ = Vectorised(Countdown(), 64).step(whole, ONES)
    part, *_ = Vectorised(Countdown(), 16).step(part, {"a": jnp.ones((16, 2), jnp.int32)})
    np.testing.assert_array_equal(whole.state["left"][16:32], part.state["left"])


@pytest.mark.parametrize("seeds", [None, 3])
def test_the_way_of_accelerators_gives_the_same(monkeypatch, seeds):
    """Where a branch is dear, every copy is reset and selected from: the same worlds come out."""

    def play():
        vectorised = Vectorised(Countdown(limit=4), 64, randomise=True)
        keys = jax.random.key(3) if seeds is None else jax.random.split(jax.random.key(3), seeds)
        lift = (lambda f, axes: f) if seeds is None else jax.vmap
        worlds = lift(vectorised.reset, 0)(keys)
        step = jax.jit(lift(vectorised.step, (0, None)))
        text = str(jax.make_jaxpr(step)(worlds, ONES))
        for _ in range(7):
            worlds, _, ended = step(worlds, ONES)
        return text, (worlds.state, worlds.params, worlds.observation, ended.state, ended.params)

    branches, expected = play()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    selects, got = play()
    assert "cond[" in branches
    assert "cond[" not in selects
    jax.tree.map(np.testing.assert_array_equal, got, expected)


def test_every_episode_is_an_independent_draw():
    vectorised = Vectorised(Countdown(), 512)
    worlds = vectorised.reset(jax.random.key(0))
    starts = [np.asarray(worlds.state["left"])]
    step = jax.jit(vectorised.step)
    for _ in range(30):
        worlds, _, ended = step(worlds, {"a": jnp.ones((512, 2), jnp.int32)})
        starts.append(np.asarray(worlds.state["left"])[np.asarray(ended.mask)])
    counts = np.bincount(np.concatenate(starts), minlength=6)[1:]
    assert counts.min() > 0.9 * counts.mean()


def test_randomised_params_are_drawn_for_each_episode():
    vectorised = Vectorised(Countdown(), 64, randomise=True)
    worlds = vectorised.reset(jax.random.key(3))
    before = np.asarray(worlds.params["bonus"])
    assert len(np.unique(before)) == 64
    following, outcome, ended = vectorised.step(worlds, ONES)
    np.testing.assert_allclose(outcome.reward["a"][:, 0], 1.0 + before, rtol=1e-6)
    changed = np.asarray(following.params["bonus"]) != before
    np.testing.assert_array_equal(changed, ended.mask)


def test_given_params_stay_with_their_copy():
    vectorised = Vectorised(Countdown(), 64)
    bonus = {"bonus": jnp.arange(64.0)}
    worlds = vectorised.reset(jax.random.key(3), params=bonus)
    for _ in range(6):
        worlds, outcome, _ = vectorised.step(worlds, ONES)
    np.testing.assert_array_equal(outcome.reward["a"][:, 1], 1.0 + np.arange(64))


def test_unused_keys_are_not_derived():
    """A world that uses no randomness in `step` must not pay for keys: threefry runs in the reset branch only."""
    vectorised = Vectorised(Countdown(), 64)
    worlds = vectorised.reset(jax.random.key(3))
    text = jax.jit(vectorised.step).lower(worlds, ONES).compile().as_text()
    entry = text[text.index("ENTRY") :]
    assert "xor" not in entry


def test_uses_of_one_step_have_different_keys():
    key = copy_keys(jax.random.key(0), jnp.arange(2, dtype=jnp.uint32))[0]
    drawn = {tuple(jax.random.key_data(use_key(key, jnp.uint32(t), use)).tolist()) for t in range(50) for use in Use}
    assert len(drawn) == 50 * len(Use)


def test_sizes_must_be_positive():
    with pytest.raises(OptionError, match="num_envs must be greater than 0, got 0"):
        Vectorised(Countdown(), 0)


class Car(Countdown):
    """As `Countdown`, with numbers for actions."""

    @property
    def groups(self):
        return {"a": shoal.Group(1, shoal.Box((2,)))}

    def step(self, key, state, actions, params):
        return super().step(key, state, {"a": actions["a"].sum(-1)}, params)


@pytest.mark.parametrize(
    ("env", "actions", "said"),
    [
        (
            Countdown(),
            jnp.ones((3, 2), jnp.int32),
            r"dict with an array for each group: 'a': int32 \[3, 2\]; got int32",
        ),
        (Countdown(), {}, "got the groups none"),
        (Countdown(), {"b": jnp.ones((3, 2), jnp.int32)}, r"'a': int32 \[3, 2\]; got the groups 'b'"),
        (Countdown(), {"a": [[1, 1]] * 3}, r"'a' must be int32 \[3, 2\], by copy and agent; got a list"),
        (Countdown(), {"a": jnp.ones(2, jnp.int32)}, r"got int32 \[2\]. These are the actions of one copy"),
        (Countdown(), {"a": jnp.ones((2, 3), jnp.int32)}, "first axis is of the 3 copies, the second of the 2 agents"),
        (Countdown(), {"a": jnp.ones((3, 2))}, r"for Discrete\(n=2\); got float32 \[3, 2\]. Convert it with .astype"),
        (Car(), {"a": jnp.ones((3, 1, 2), jnp.int32)}, r"must be float32 \[3, 1, 2\].*got int32"),
        (Car(), {"a": jnp.ones((3, 2))}, r"Its one agent has an axis, too"),
    ],
)
def test_actions_that_do_not_fit_are_refused_in_words(env, actions, said):
    envs = Vectorised(env, 3)
    worlds = jax.eval_shape(envs.reset, jax.random.key(0))
    with pytest.raises(OptionError, match=said):
        jax.eval_shape(lambda worlds: envs.step(worlds, actions), worlds)


def test_what_is_no_worlds_is_refused():
    with pytest.raises(OptionError, match="worlds must be what reset or the last step returned"):
        Vectorised(Countdown(), 3).step(jax.random.key(0), ONES)


def test_other_integers_and_floats_of_actions_are_taken():
    envs, key = Vectorised(Countdown(), 3), jax.random.key(0)
    envs.step(envs.reset(key), {"a": np.ones((3, 2), np.int64)})
    envs, worlds = Vectorised(Car(), 3), Vectorised(Car(), 3).reset(key)
    envs.step(worlds, {"a": jnp.ones((3, 1, 2), jnp.bfloat16)})
