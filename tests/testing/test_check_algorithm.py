"""`check_algorithm` passes what is right and says what is wrong: by a small algorithm, and mistakes in it."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import struct
from jax import lax

import shoal
from shoal.algorithms import DQN, PPO
from shoal.core.algorithm import ActOutput, Algorithm, LearnerSpec
from shoal.core.errors import AlgorithmError
from shoal.networks.torsos import Network
from shoal.testing import check_algorithm


class State(struct.PyTreeNode):
    params: dict[str, jax.Array]
    hyper: dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Linear(Algorithm):
    """REINFORCE with a matrix for a policy, that looks no further than the next reward."""

    learning_rate: float = 0.2

    def init(self, key, spec: LearnerSpec) -> Any:
        sizes = {name: spec.observations[name].view.shape[-1] for name in spec.groups}
        if not all(isinstance(group.action, shoal.Discrete) for group in spec.groups.values()):
            raise shoal.ShoalError("Linear: actions must be Discrete")
        params = {name: jnp.zeros((size, spec.groups[name].action.n)) for name, size in sizes.items()}
        return State(params, self.hyper(spec))

    def logits(self, params, view, legal):
        logits = view @ params
        return logits if legal is None else jnp.where(legal, logits, -1e9)

    def act(self, params, observation, memory, key, explore):
        logits = self.logits(params, observation.view, observation.legal)
        action = jax.random.categorical(key, logits) if explore else jnp.argmax(logits)
        return ActOutput(action.astype(jnp.int32), memory)

    def value(self, params, observation, memory):
        return jnp.float32(0.0)

    def update(self, state, experience, key, axis=None):
        self = self.traced(state.hyper)

        def loss(params):
            total = 0.0
            for name, track in experience.trajectories.items():
                seen = track.observation
                log_policy = jax.nn.log_softmax(self.logits(params[name], seen.view, seen.legal))
                taken = jnp.take_along_axis(log_policy, track.action[..., None], -1)[..., 0]
                total += self.objective(taken * (track.reward - 0.4), seen)
            return total

        gradient = self.summed(jax.grad(loss)(state.params), axis)
        params = jax.tree.map(lambda p, g: p - self.learning_rate * g, state.params, gradient)
        return state.replace(params=params), {"size": sum(jnp.sum(p**2) for p in params.values())}

    def objective(self, gained, seen):
        return -jnp.mean(gained if seen.active is None else jnp.where(seen.active, gained, 0.0))

    def summed(self, gradient, axis):
        return gradient if axis is None else lax.pmean(gradient, axis)


class Unmasked(Linear):
    def logits(self, params, view, legal):
        return view @ params


class CountsEverybody(Linear):
    def objective(self, gained, seen):
        return -jnp.mean(gained)


class Alone(Linear):
    def summed(self, gradient, axis):
        return gradient


class Uphill(Linear):
    def objective(self, gained, seen):
        return -super().objective(gained, seen)


class Untraced(Linear):
    def traced(self, hyper):
        return self


class Idle(Linear):
    def update(self, state, experience, key, axis=None):
        return state, super().update(state, experience, key, axis)[1]


class Explodes(Linear):
    def objective(self, gained, seen):
        return super().objective(gained, seen) / 0.0


def problems(algorithm, **options):
    report = check_algorithm(algorithm, raise_on_problems=False, **options)
    return {(finding.kind, finding.where): str(finding) for finding in report.problems}, str(report)


def test_what_is_right_passes_and_what_it_cannot_learn_is_said():
    """It learns what pays at once; what pays a step later needs returns, which it has not."""
    found, text = problems(Linear(), total_env_steps=20_000, num_seeds=1)
    assert found.keys() == {("probe", "training in the probe two_step")}, text
    assert "look at returns and targets" in text
    for tried in ("shapes for Discrete actions", "resumed to the bit", "vmap over seeds", "2 devices", "bandit 0.90"):
        assert tried in text
    assert "turns 2.00 of 2" in text
    assert "Warning: class: it is of the class Linear, which is not registered" in text


@pytest.mark.parametrize(
    ("cls", "kinds", "words"),
    [
        pytest.param(Unmasked, {"legal"}, "Mask the logits", marks=pytest.mark.slow),
        pytest.param(CountsEverybody, {"inactive"}, "by `active`", marks=pytest.mark.slow),
        pytest.param(Alone, {"devices"}, "sum_over_devices", marks=pytest.mark.slow),
        pytest.param(Untraced, {"traced"}, "learning_rate is read from the algorithm", marks=pytest.mark.slow),
        pytest.param(Idle, {"idle"}, "four updates leave the policies as they were", marks=pytest.mark.slow),
        pytest.param(Explodes, {"not finite"}, "after 4 updates", marks=pytest.mark.slow),
    ],
)
def test_mistakes_are_found(cls, kinds, words):
    found, text = problems(cls(), learns=False)
    assert {kind for kind, _ in found} == kinds, text
    assert words in text


@pytest.mark.slow
def test_who_walks_uphill_is_found():
    found, text = problems(Uphill(), total_env_steps=10_000, num_seeds=1)
    assert ("probe", "training in the probe bandit") in found
    assert "look at the sign of the loss" in text


class Wide(Linear):
    def value(self, params, observation, memory):
        return jnp.zeros(3)


@pytest.mark.parametrize(
    ("algorithm", "why"),
    [(Wide(), "1 problem .*value .Discrete.: it returns float32.3."), (7, "must be a class derived from")],
)
def test_shapes_are_looked_at_first(algorithm, why):
    with pytest.raises(AlgorithmError, match=rf"(?s)breaks the algorithm contract, .*{why}"):
        check_algorithm(algorithm)


class Needy(Linear):
    def __init__(self, width):
        super().__init__()


def test_a_class_stands_for_its_default_options():
    with pytest.raises(AlgorithmError, match=r"(?s)Wide breaks the algorithm contract, .*value .Discrete."):
        check_algorithm(Wide)
    why = r"Needy is a class, and Needy\(\) fails: TypeError: .*'width'. Give an algorithm, with its options"
    with pytest.raises(AlgorithmError, match=why):
        check_algorithm(Needy)


SMALL = {"learning_rate": 5e-3, "network": Network(hidden=(32,), activation="relu")}
REPLAY = {"batch_size": 128, "gradient_steps": 8, "buffer_size": 20_000, "warm_up": 512, "target_rate": 0.05}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "ppo with memory", "dqn"])
def test_our_own_pass(name):
    recurrent = Network(hidden=(32,), recurrent="gru", recurrent_size=32)
    algorithm = {
        "ppo": PPO(minibatches=2, entropy_coef=0.02, **SMALL),
        "ppo with memory": PPO(minibatches=2, entropy_coef=0.05, **SMALL | {"network": recurrent}),
        "dqn": DQN(**SMALL | REPLAY),
    }[name]
    report = check_algorithm(algorithm)
    assert ("memory" in str(report).partition("turns,")[2]) == (name == "ppo with memory")
