"""Value mixing on A2C, PPO and Impala: one reward, one value and one advantage for the team."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.algorithms import A2C, PPO, Impala
from shoal.algorithms.on_policy import make_batch
from shoal.algorithms.vdac import TEAM, TeamValue
from shoal.core.errors import OptionError
from shoal.core.registry import register
from shoal.networks.mixers import init_mixer, mix
from shoal.networks.torsos import Network
from shoal.ops import normalisation
from shoal.testing.probes import Memory
from shoal.training import checkpoint
from shoal.training.evaluate import evaluate
from shoal.training.experiment import Experiment, Learner
from shoal.training.fused import make_fused_program
from tests.algorithms.playing import blank, by_hand, experience_by_hand, fresh, played
from tests.worlds.coordination import Coordination, Endless
from tests.worlds.last_card import LastCard
from tests.worlds.two_teams import TwoTeams

SMALL = Network(hidden=(16,))
MIXED = {"sum": A2C(mixer="sum", network=SMALL), "monotonic": A2C(mixer="monotonic", network=SMALL)}


@pytest.fixture(autouse=True)
def _worlds():
    register("vdac/coordination", Coordination)
    register("vdac/endless", Endless)


def gradients(algorithm, state, whole):
    return jax.jit(lambda state, whole: algorithm.gradients(*algorithm.prepare(state, whole)))(state, whole)


def close(a, b, atol=1e-5):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=atol), a, b)


# Two groups, a pair and a single one, whose critics say 1 each: V_tot = 3. γ = 1/2, one step that pays 1, 3 and 5.
@pytest.mark.parametrize(
    ("ends", "target"),
    [
        ({}, 3 + 0.5 * 3),
        ({"terminated": True}, 3.0),
        ({"truncated": True}, 3 + 0.5 * 2),  # the final views are worth 1/2, 1/2 and 1
    ],
)
@pytest.mark.parametrize("kind", [A2C, PPO, Impala])
def test_the_sum_by_hand(kind, ends, target):
    algorithm = kind(mixer="sum", gamma=0.5, normalise_advantages=False, network=SMALL)
    state = blank(algorithm, {"pair": 2, "one": 1}, 1.0)
    pair = by_hand([[[1.0, 3.0]]], value=1.0, final_value=0.5, **ends)
    one = by_hand([[[5.0]]], value=1.0, final_value=1.0, **ends)
    grads, metrics = gradients(algorithm, state, experience_by_hand(pair=pair, one=one))
    error = 3.0 - target
    assert float(metrics["value_loss/one+pair"]) == pytest.approx(error**2, abs=1e-5)
    for name, size in {"pair": 2, "one": 1}.items():
        # d/db of value_coef / 2 (V - G)² with `size` critics that share the bias b.
        slope = grads[name]["params"]["value_head"]["bias"][0]
        assert float(slope) == pytest.approx(0.5 * size * error, abs=1e-5)
        # Action 0 was taken, half as likely as it could be, with the team's advantage; a group's loss is a mean.
        pull = grads[name]["params"]["policy_head"]["bias"]
        np.testing.assert_allclose(pull, np.array([0.5, -0.5]) * error, atol=1e-5)


@pytest.mark.parametrize("kind", [A2C, Impala])
def test_who_is_gone_counts_for_nothing(kind):
    """Of three the second has left: the team gets (1 + 5) / 2 and is worth 2 before and after."""
    algorithm = kind(mixer="sum", gamma=0.5, network=SMALL)
    state = blank(algorithm, {"a": 3}, 1.0)
    here = np.tile([True, False, True], (2, 1, 1))
    whole = experience_by_hand(a=by_hand([[[1.0, 0.0, 5.0]]], value=[[[1.0, 0.0, 1.0]]], active=here, present=here))
    grads, metrics = gradients(algorithm, state, whole)
    target = 3 + 0.5 * 2
    assert float(metrics["value_loss/a"]) == pytest.approx((2 - target) ** 2, abs=1e-5)
    assert float(metrics["policy_loss/a"]) == pytest.approx(math.log(2) * (target - 2), abs=1e-5)
    assert float(grads["a"]["params"]["value_head"]["bias"][0]) == pytest.approx(0.5 * 2 * (2 - target), abs=1e-5)


def test_who_waits_is_worth_something():
    """One of two moves at a time: the team decides at every step, those who wait have no policy loss."""
    algorithm = A2C(mixer="sum", gamma=1.0, gae_lambda=0.0, network=SMALL)
    state = blank(algorithm, {"a": 2}, 1.0)
    turns = [[[True, False]], [[False, True]], [[True, False]]]
    whole = experience_by_hand(a=by_hand([[[2.0, 0.0]], [[0.0, 4.0]]], value=1.0, active=turns))
    _, metrics = gradients(algorithm, state, whole)
    # Advantages are the mean rewards, 1 and 2, since the value stands at 2.
    assert float(metrics["policy_loss/a"]) == pytest.approx(math.log(2) * (1 + 2) / 2, abs=1e-5)
    assert float(metrics["value_loss/a"]) == pytest.approx((1 + 4) / 2, abs=1e-5)


def test_the_team_decides_whenever_one_of_its_groups_does():
    """As above, but the two are of different groups."""
    algorithm = A2C(mixer="sum", gamma=1.0, gae_lambda=0.0, network=SMALL)
    state = blank(algorithm, {"a": 1, "b": 1}, 1.0)
    first, second = (np.array(turns).reshape(3, 1, 1) for turns in ([True, False, True], [False, True, False]))
    a = by_hand([[[2.0]], [[0.0]]], value=1.0, active=first)
    b = by_hand([[[0.0]], [[4.0]]], value=1.0, active=second)
    _, metrics = gradients(algorithm, state, experience_by_hand(a=a, b=b))
    assert float(metrics["policy_loss/a"]) == pytest.approx(math.log(2) * 1, abs=1e-5)
    assert float(metrics["policy_loss/b"]) == pytest.approx(math.log(2) * 2, abs=1e-5)
    assert float(metrics["value_loss/a+b"]) == pytest.approx((1 + 4) / 2, abs=1e-5)


def test_those_who_wait_are_not_in_the_joint_ratio():
    """μ was 1 for the one who acts, whose ratio is 1/2; what the other would have done was worth anything."""
    algorithm = Impala(mixer="sum", rho_clip=9.0, c_clip=9.0, network=SMALL)
    state = blank(algorithm, {"a": 2}, 1.0)
    turns = np.tile([True, False], (2, 1, 1))
    track = by_hand([[[4.0, 8.0]]], [[[0.0, math.log(1 / 3)]]], terminated=True, active=turns)
    _, metrics = gradients(algorithm, state, experience_by_hand(a=track))
    assert float(metrics["value_loss/a"]) == pytest.approx((0.5 * (6 - 2)) ** 2, abs=1e-5)
    assert float(metrics["policy_loss/a"]) == pytest.approx(math.log(2) * 0.5 * (6 - 2), abs=1e-5)


def test_the_joint_ratio_is_a_product():
    """π is 1/2 for both; μ was 1 and 1/3: the ratios 1/2 and 3/2 make 3/4."""
    algorithm = Impala(mixer="sum", rho_clip=9.0, c_clip=9.0, network=SMALL)
    state = blank(algorithm, {"a": 2}, 1.0)
    whole = experience_by_hand(a=by_hand([[[4.0, 8.0]]], [[[0.0, math.log(1 / 3)]]], terminated=True))
    _, metrics = gradients(algorithm, state, whole)
    assert float(metrics["policy_loss/a"]) == pytest.approx(math.log(2) * 0.75 * (6 - 2), abs=1e-5)
    assert float(metrics["value_loss/a"]) == pytest.approx((0.75 * (6 - 2)) ** 2, abs=1e-5)


@pytest.mark.slow
def test_alone_the_sum_changes_nothing():
    env, network = Memory(), Network(hidden=(16,), recurrent="gru", recurrent_size=8)
    alone = A2C(network=network)
    state = fresh(alone, env)
    whole = played(alone, env, state.params)
    mixed = A2C(mixer="sum", network=network)
    expected, logged = gradients(alone, state, whole)
    got, metrics = gradients(mixed, fresh(mixed, env), whole)
    close(got, expected)
    close(metrics["value_loss/agent"], logged["value_loss/agent"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "kind", "recurrent"),
    [(LastCard(), "monotonic", "none"), (TwoTeams(), "monotonic", "gru"), (TwoTeams(), "sum", "none")],
)
def test_fresh_experience_makes_impala_a2c(env, kind, recurrent):
    options = {"mixer": kind, "network": Network(hidden=(16,), recurrent=recurrent, recurrent_size=8)}
    a2c, impala = A2C(**options), Impala(**options)
    state = fresh(a2c, env)
    whole = played(a2c, env, state.params)
    expected, _ = gradients(a2c, state, whole)
    got, _ = gradients(impala, state.replace(hyper=fresh(impala, env).hyper), whole)
    if kind == "monotonic":
        assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(expected[TEAM])) > 1e-3
    close(got, expected)


def test_nothing_comes_after_everybody_has_left():
    """The monotonic mixer has a value of its own, which must not count where nobody is."""
    env = LastCard()
    learner = fresh(MIXED["monotonic"], env)
    state = jnp.ones((1, 1, *jax.tree.leaves(fresh_state(env))[0].shape))
    gone, here = jnp.zeros((1, 1, 3)), jnp.full((1, 1, 3), 0.5)
    for values, zero in ((gone, True), (here, False)):
        track, flags = by_hand(np.zeros((1, 1, 3)), final_value=values, present=np.ones((2, 1, 3)))
        seen, last = track.observation.replace(state=state), track.last_observation.replace(state=state[0])
        track = track.replace(observation=seen, last_observation=last)
        whole = experience_by_hand(player=(track, flags))
        batch = make_batch(learner.params["player"], track, whole, all_agents=True)
        known = {"player": {"value": here, "last_value": values[0]}}
        inputs = TeamValue("monotonic").inputs(learner.team, {"player": batch}, known)
        assert float(inputs["value"][0, 0]) != 0
        assert (float(inputs["final_value"][0, 0]) == 0) == zero
        assert (float(inputs["last_value"][0]) == 0) == zero


def fresh_state(env):
    return env.global_state(env.reset(jax.random.key(0), env.default_params()), env.default_params())


@pytest.mark.slow
def test_the_monotonic_mixer_never_falls():
    state = jax.random.normal(jax.random.key(0), (64, 5))
    values = 3 * jax.random.normal(jax.random.key(1), (64, 4))
    weights = init_mixer("monotonic", jax.random.key(2), 4, state[0])
    weights = jax.tree.map(lambda leaf: leaf + jax.random.normal(jax.random.key(3), leaf.shape), weights)
    slope = jax.vmap(jax.grad(lambda v, s: mix("monotonic", weights, v, s)))(values, state)
    assert float(slope.min()) >= 0.0
    assert float(slope.max()) > 1.0


LEARNERS = {
    "a2c-sum": A2C(learning_rate=1e-2, normalise_advantages=True, mixer="sum", network=SMALL),
    "ppo-monotonic": PPO(learning_rate=5e-3, minibatches=2, mixer="monotonic", network=SMALL),
    "impala-monotonic": Impala(learning_rate=1e-2, normalise_advantages=True, mixer="monotonic", network=SMALL),
    "ppo-sum": PPO(learning_rate=5e-3, minibatches=2, mixer="sum", normalise_values=True, network=SMALL),
}
FAST = ("a2c-sum",)
NAMES = [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in LEARNERS]


def trained(world, algorithm, steps, num_seeds=5):
    learners = {"l": Learner(algorithm)}
    experiment = Experiment(
        world, learners=learners, num_envs=64, num_steps=16, total_env_steps=steps, num_seeds=num_seeds
    )
    program = make_fused_program(experiment, 1)
    carry, _ = program.advance(program.init(), program.counts[experiment.num_updates])
    seeds = range(num_seeds)
    return experiment.setup, [jax.tree.map(lambda leaf, i=i: leaf[i], carry.learners["l"]) for i in seeds]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_team_coordinates_though_one_is_not_paid(name):
    setup, states = trained("vdac/coordination", LEARNERS[name], 150_000)
    reached = [evaluate(setup, state.params, 256).total_mean_return for state in states]
    assert min(reached) > 0.95, reached


@pytest.mark.slow
def test_without_a_mixer_who_is_not_paid_learns_nothing():
    algorithm = dataclasses.replace(LEARNERS["ppo-sum"], mixer="none", normalise_values=False)
    setup, states = trained("vdac/coordination", algorithm, 150_000)
    assert np.mean([evaluate(setup, state.params, 256).total_mean_return for state in states]) < 0.8


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo-sum", "impala-monotonic"])
def test_the_value_of_the_team(name):
    """A mean of 1 for ever, γ = 0.8, cut short after 5 steps: the team is worth 5, whoever is paid."""
    algorithm, env = dataclasses.replace(LEARNERS[name], gamma=0.8), Endless()
    _, states = trained("vdac/endless", algorithm, 150_000, num_seeds=3)
    for state in states:
        values = algorithm.value  # each agent's part
        part = values(state.params["agent"], env.observe(0, None)["agent"].replace(view=jnp.ones(1)), ())
        mixed = mix(algorithm.mixer, state.team.weights, jnp.full(env.size, part), jnp.ones(env.size))
        value = normalisation.denormalise(state.team.value_stats, mixed)
        assert float(value) == pytest.approx(5.0, rel=0.05)


@pytest.mark.slow
def test_a_checkpoint_holds_the_mixer(tmp_path):
    learner = Learner(PPO(mixer="monotonic", normalise_values=True, minibatches=2, epochs=1, network=SMALL))
    experiment = Experiment("mpe/simple_spread", learners={"l": learner}, num_envs=16, num_steps=10)
    program = make_fused_program(experiment, 1)
    start = jax.device_get(program.init().learners["l"].team)
    carry, _ = program.advance(program.init(), program.counts[2])
    checkpoint.save(tmp_path, 2, carry.replace(latch=None), {})
    kept = program.restore(checkpoint.latest(tmp_path), {"update": 2})
    carry, _ = program.advance(carry, program.counts[1])
    kept, _ = program.advance(kept, program.counts[1])
    close(kept.learners["l"], carry.learners["l"], atol=0)
    after = jax.device_get(kept.learners["l"].team.weights)
    moved = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), start.weights, after)
    assert min(jax.tree.leaves(moved)) > 1e-5, "every part of the mixer is trained"


@pytest.mark.slow
def test_two_devices_agree_with_one():
    learner = Learner(PPO(mixer="monotonic", normalise_values=True, minibatches=2, epochs=1, network=SMALL))
    experiment = Experiment("mpe/simple_spread", learners={"l": learner}, num_envs=16, num_steps=10)
    results = []
    for devices in (1, 2):
        program = make_fused_program(experiment, devices)
        carry, _ = program.advance(program.init(), program.counts[3])
        state = jax.device_get(carry.learners["l"])
        results.append((state.params, state.team.weights))
    close(*results, atol=1e-6)


def test_needs_and_refusals():
    assert not A2C(mixer="sum").traits.needs_global_state
    assert A2C(mixer="monotonic").traits.needs_global_state
    with pytest.raises(OptionError, match="PPO: mixer must be 'none', 'sum' or 'monotonic', got 'qmix'"):
        PPO(mixer="qmix")
    # The critic still sees its own view only, and may share its torso with the actor.
    shared = A2C(mixer="monotonic", network=Network(hidden=(16,), share_torso=True))
    assert not fresh(shared, Memory()).params["agent"].network.uses_state
    experiment = Experiment("mpe/simple_spread", learners={"l": Learner(PPO(mixer="sum"))})
    assert Experiment.from_dict(experiment.to_dict()) == experiment
