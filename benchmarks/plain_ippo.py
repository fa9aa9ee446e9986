"""IPPO written by hand in the plainest JAX, as a yardstick: no framework, one file, a full shuffle of every sample.

It trains the set-up of the preset `reference/simple_spread_ippo` on the same world; `compare_ippo.py` times both in one
run.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import optax

import shoal

NUM_STEPS, EPOCHS, MINIBATCHES = 128, 4, 4
GAMMA, LAMBDA, CLIP, ENTROPY, VALUE, MAX_NORM, RATE = 0.99, 0.95, 0.2, 0.01, 0.5, 0.5, 2.5e-4


@dataclasses.dataclass(frozen=True)
class Plain:
    """The whole training loop. `shuffle` turns the permutation of the samples off, to see what it costs."""

    num_envs: int = 1024
    shuffle: bool = True

    def __post_init__(self):
        object.__setattr__(self, "env", shoal.make("mpe/simple_spread"))
        object.__setattr__(
            self, "optimiser", optax.chain(optax.clip_by_global_norm(MAX_NORM), optax.adam(RATE, eps=1e-5))
        )

    def init(self, key):
        key, reset_key, actor_key, critic_key = jax.random.split(key, 4)
        state, view = self.reset(jax.random.split(reset_key, self.num_envs))
        weights = {
            "actor": _mlp(actor_key, (view.shape[-1], 64, 64, 5)),
            "critic": _mlp(critic_key, (view.shape[-1], 64, 64, 1)),
        }
        return key, state, view, weights, self.optimiser.init(weights)

    @property
    def params(self):
        return self.env.default_params()

    def observe(self, state):
        return jax.vmap(self.env.observe, (0, None))(state, self.params)["agent"].view

    def reset(self, keys):
        """States and views `[E, A, n]` of all copies."""
        state = jax.vmap(self.env.reset, (0, None))(keys, self.params)
        return state, self.observe(state)

    def transition(self, step_key, reset_key, state, action):
        """The states and views that follow (new ones where an episode ended), rewards, ends, and the last views.

        Without last views, what would have followed the end of an episode counts as nothing.
        """
        keys = jax.random.split(step_key, self.num_envs)
        following, outcome = jax.vmap(self.env.step, (0, 0, 0, None))(keys, state, {"agent": action}, self.params)
        done, last = outcome.terminated | outcome.truncated, self.observe(following)
        fresh = jax.vmap(self.env.reset, (0, None))(jax.random.split(reset_key, self.num_envs), self.params)
        select = lambda new, old: jnp.where(done.reshape(-1, *(1,) * (old.ndim - 1)), new, old)  # noqa: E731
        following = jax.tree.map(select, fresh, following)
        return following, self.observe(following), outcome.reward["agent"], done, last

    def update(self, carry):
        key, state, view, weights, moments = carry
        (key, state, view), steps = jax.lax.scan(
            lambda c, _: self._step(weights, c), (key, state, view), length=NUM_STEPS
        )
        last = _forward(weights["critic"], view)[..., 0]

        def back(following, step):
            advantage, value = following
            delta = step["reward"] + GAMMA * jnp.where(step["done"], step["final"], value) - step["value"]
            advantage = delta + GAMMA * LAMBDA * ~step["done"] * advantage
            return (advantage, step["value"]), advantage

        _, advantages = jax.lax.scan(back, (jnp.zeros_like(last), last), steps, reverse=True)
        batch = {name: steps[name] for name in ("view", "action", "log_prob")}
        batch |= {"advantage": advantages, "target": advantages + steps["value"]}
        batch = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[3:]), batch)

        def minibatch(state, part):
            weights, moments = state
            gradients = jax.grad(_loss)(weights, part)
            step, moments = self.optimiser.update(gradients, moments)
            return (optax.apply_updates(weights, step), moments), None

        def epoch(state, key):
            parts = batch
            if self.shuffle:
                order = jax.random.permutation(key, batch["action"].shape[0])
                parts = jax.tree.map(lambda leaf: leaf[order], batch)
            parts = jax.tree.map(lambda leaf: leaf.reshape(MINIBATCHES, -1, *leaf.shape[1:]), parts)
            return jax.lax.scan(minibatch, state, parts)

        key, shuffle_key = jax.random.split(key)
        (weights, moments), _ = jax.lax.scan(epoch, (weights, moments), jax.random.split(shuffle_key, EPOCHS))
        return key, state, view, weights, moments

    def _step(self, weights, carry):
        key, state, view = carry
        key, act_key, step_key, reset_key = jax.random.split(key, 4)
        logits = _forward(weights["actor"], view)
        action = jax.random.categorical(act_key, logits)
        log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], -1)[..., 0]
        value = _forward(weights["critic"], view)[..., 0]
        following, next_view, reward, done, last = self.transition(step_key, reset_key, state, action)
        final = jnp.zeros_like(value) if last is None else _forward(weights["critic"], last)[..., 0]
        step = {"view": view, "action": action, "log_prob": log_prob, "value": value, "final": final}
        step |= {"reward": reward, "done": done[:, None]}
        return (key, following, next_view), step


def _mlp(key, sizes):
    init = jax.nn.initializers.orthogonal(2**0.5)
    shapes = list(itertools.pairwise(sizes))
    keys = jax.random.split(key, len(shapes))
    return [(init(key, shape), jnp.zeros(shape[1])) for key, shape in zip(keys, shapes, strict=True)]


def _forward(layers, x):
    for weight, bias in layers[:-1]:
        x = jnp.tanh(x @ weight + bias)
    weight, bias = layers[-1]
    return x @ weight + bias


def _loss(weights, part):
    log_probs = jax.nn.log_softmax(_forward(weights["actor"], part["view"]))
    log_prob = jnp.take_along_axis(log_probs, part["action"][:, None], -1)[:, 0]
    advantage = (part["advantage"] - part["advantage"].mean()) / (part["advantage"].std() + 1e-8)
    ratio = jnp.exp(log_prob - part["log_prob"])
    policy = -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage).mean()
    value = jnp.square(_forward(weights["critic"], part["view"])[:, 0] - part["target"]).mean()
    entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
    return policy + 0.5 * VALUE * value - ENTROPY * entropy
