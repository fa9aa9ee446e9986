"""DQN over time: warm-up, the slow network, exploration, priorities, resuming, several devices, and what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import Box, Discrete, Group, MultiDiscrete, Observation
from shoal.algorithms import DDPG, DQN, PQN
from shoal.core.algorithm import LearnerSpec
from shoal.core.env import describe
from shoal.core.errors import OptionError
from shoal.core.registry import register
from shoal.networks.torsos import Network
from shoal.ops import replay as buffers
from shoal.testing.probes import Memory
from shoal.training import checkpoint, fused
from shoal.training.experiment import Experiment, Learner
from shoal.training.fused import make_fused_program
from tests.algorithms.playing import played
from tests.algorithms.tables import learner
from tests.worlds.bandit import Target, Truncation
from tests.worlds.last_card import LastCard
from tests.worlds.two_teams import TwoTeams

SMALL = Network(hidden=(8,))
TINY = {"network": SMALL, "batch_size": 8, "gradient_steps": 2, "buffer_size": 256}
STEPS, ENVS = 6, 4


@pytest.fixture(autouse=True)
def _worlds():
    register("dqn/memory", Memory)
    register("dqn/last_card", LastCard)
    register("dqn/target", Target)
    register("dqn/two_teams", TwoTeams)


def fresh(algorithm, env, total_updates=10):
    spec = describe(env)
    whole = LearnerSpec(spec.groups, spec.state, total_updates, spec.observations, ENVS, STEPS)
    return jax.jit(lambda key: algorithm.init(key, whole))(jax.random.key(0))


@functools.partial(jax.jit, static_argnums=0)
def updated(algorithm, state, experience, seed):
    return algorithm.update(state, experience, jax.random.key(seed))


def lived(algorithm, env, updates):
    """The learner before and after each update, and the metrics of each; it always sees the same experience."""
    state = fresh(algorithm, env)
    whole = played(algorithm, env, state.params, STEPS, ENVS)
    states, logged = [state], []
    for i in range(updates):
        state, metrics = updated(algorithm, state, whole, i)
        states.append(state)
        logged.append(metrics)
    return states, logged


def weights_of(state):
    return {name: policy.weights for name, policy in state.params.items()}


def bits(tree):
    """All leaves as plain arrays; keys as their data."""
    leaves = jax.tree.leaves(tree)
    plain = [jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in leaves]
    return [np.asarray(leaf) for leaf in plain]


def same(a, b):
    return all(x.tobytes() == y.tobytes() for x, y in zip(bits(a), bits(b), strict=True))


def test_learning_starts_after_warm_up():
    """24 steps an update, 49 to wait for: the first two updates only store, and explore less all the same."""
    states, logged = lived(DQN(warm_up=49, epsilon_fraction=0.5, **TINY), LastCard(), 4)
    assert same(weights_of(states[2]), weights_of(states[0]))
    assert same(states[2].optimiser, states[0].optimiser)
    assert [float(metrics["loss"]) == 0.0 for metrics in logged] == [True, True, False, False]
    assert not same(weights_of(states[3]), weights_of(states[2]))
    assert [int(state.replay.written) for state in states] == [0, 6, 12, 18, 24]
    # From 1 to 0.05 over half of 10 updates.
    epsilon = [float(state.params["player"].epsilon) for state in states]
    np.testing.assert_allclose(epsilon, 1 - 0.95 * np.arange(5) / 5, rtol=1e-5)


def test_epsilon_stays_at_its_end():
    states, _ = lived(DQN(epsilon_fraction=0.2, epsilon_start=0.8, epsilon_end=0.3, **TINY), LastCard(), 4)
    epsilon = [float(state.params["player"].epsilon) for state in states]
    np.testing.assert_allclose(epsilon, [0.8, 0.55, 0.3, 0.3, 0.3], rtol=1e-5)


def test_what_is_stored_is_what_was_played():
    algorithm = DQN(warm_up=10_000, **TINY)
    state = fresh(algorithm, LastCard())
    whole = played(algorithm, LastCard(), state.params, STEPS, ENVS)
    after, _ = updated(algorithm, state, whole, 0)
    kept = jax.tree.map(lambda leaf: leaf[:STEPS], after.replay.store)
    assert same(kept, algorithm.make_steps(whole))
    assert same(kept.reward, {"player": whole.trajectories["player"].reward})
    assert not np.asarray(after.replay.store.reward["player"][STEPS:]).any()


def test_an_episode_that_was_cut_short_is_stored_as_such():
    """Episodes of 5 steps: the fifth row is cut and has a final view, which no other row has."""
    algorithm = DQN(warm_up=10_000, **TINY)
    state = fresh(algorithm, Truncation())
    after, _ = updated(algorithm, state, played(algorithm, Truncation(), state.params, STEPS, ENVS), 0)
    store = jax.tree.map(lambda leaf: np.asarray(leaf[:STEPS, 0]), after.replay.store)
    np.testing.assert_array_equal(store.truncated, [0, 0, 0, 0, 1, 0])
    np.testing.assert_array_equal(store.first, [1, 0, 0, 0, 0, 1])
    assert not store.terminated.any()
    np.testing.assert_array_equal(store.final_observation["agent"].view[:, 0, 0], [0, 0, 0, 0, 1, 0])


def test_the_slow_network_follows():
    """A quarter of the way in each gradient step."""
    algorithm = DQN(target_rate=0.25, **TINY)
    state = fresh(algorithm, Memory())
    ones = jax.tree.map(jnp.ones_like, {"agents": weights_of(state), "mixer": state.mixer})
    after = jax.jit(algorithm.apply)(state, ones)
    moved = jax.tree.map(lambda new, old: np.asarray(new - old), weights_of(after), weights_of(state))
    assert all((leaf < 0).all() for leaf in jax.tree.leaves(moved))
    slow = jax.tree.map(lambda new, old: np.asarray(new - old), after.target["agents"], state.target["agents"])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, 0.25 * b, atol=1e-7), slow, moved)


@pytest.mark.parametrize("algorithm", [DQN, PQN], ids=lambda a: a.name)
def test_exploration_never_picks_what_is_illegal(algorithm):
    """Greedy it takes the best legal action; at random it takes all legal ones alike."""
    config = algorithm(network=Network(hidden=()))
    table = np.array([[0.0, 5.0, 1.0, 9.0, 2.0]], np.float32)
    policy = learner(config, space=Discrete(5), online=table, slow=table).params["a"]
    seen = Observation(jnp.ones(1), legal=jnp.array([True, False, True, False, True]))
    keys = jax.random.split(jax.random.key(0), 3_000)

    def shares(epsilon, explore=True):
        one = policy.replace(epsilon=jnp.float32(epsilon))
        acts = jax.jit(jax.vmap(lambda key: config.act(one, seen, (), key, explore).action))(keys)
        return np.bincount(acts, minlength=5) / len(keys)

    np.testing.assert_array_equal(shares(1.0, explore=False), [0, 0, 0, 0, 1])
    np.testing.assert_array_equal(shares(0.0), [0, 0, 0, 0, 1])
    np.testing.assert_allclose(shares(1.0), [1 / 3, 0, 1 / 3, 0, 1 / 3], atol=0.03)
    np.testing.assert_allclose(shares(0.3), [0.1, 0, 0.1, 0, 0.8], atol=0.03)
    assert shares(0.3)[[1, 3]].sum() == shares(1.0)[[1, 3]].sum() == 0


def test_exploration_of_parts():
    config = DQN(network=Network(hidden=()))
    table = np.array([[0.0, 5.0, 1.0, 9.0, 2.0]], np.float32)
    policy = learner(config, space=MultiDiscrete((2, 3)), online=table, slow=table).params["a"]
    seen = Observation(jnp.ones(1), legal=jnp.array([True, True, True, False, True]))
    keys = jax.random.split(jax.random.key(0), 2_000)
    acts = np.asarray(jax.jit(jax.vmap(lambda key: config.act(policy, seen, (), key, True).action))(keys))
    assert set(map(tuple, acts.tolist())) == {(0, 0), (0, 2), (1, 0), (1, 2)}
    np.testing.assert_array_equal(config.act(policy, seen, (), keys[0], False).action, [1, 2])


def test_play_never_holds_illegal_actions():
    algorithm = DQN(**TINY)
    track = played(algorithm, LastCard(), fresh(algorithm, LastCard()).params, 24, 8).trajectories["player"]
    legal = jnp.take_along_axis(track.observation.legal, track.action[..., None], -1)[..., 0]
    assert bool(jnp.all(legal | ~track.observation.active))


def test_prioritised_learning_updates_priorities():
    """Windows that were drawn get the priority of their error; the others keep theirs."""
    algorithm = DQN(prioritised=True, priority_exponent=0.5, warm_up=10_000, **TINY)
    state = fresh(algorithm, LastCard())
    state, _ = updated(algorithm, state, played(algorithm, LastCard(), state.params, STEPS, ENVS), 0)
    key, before = jax.random.key(3), np.asarray(state.replay.priority)
    assert set(before.ravel().tolist()) == {0.0, 1.0}
    after, _ = jax.jit(algorithm.step)(state, key)
    drawn = buffers.sample(state.replay, key, algorithm.batch_size, algorithm.window)
    batch = buffers.take(state.replay, drawn, algorithm.window)
    _, (_, error) = jax.jit(algorithm.gradients)(state, batch, buffers.importance(drawn.odds, 0.4))
    expected = before.copy()
    expected[drawn.row, drawn.env] = np.sqrt(np.asarray(error[0]) + 1e-6)  # one row: its largest error is its mean
    np.testing.assert_allclose(after.replay.priority, expected, rtol=1e-3, atol=1e-5)
    assert np.abs(expected - before).max() > 0.01


RESUMED = {
    "r2d2": DQN(
        network=Network(hidden=(8,), recurrent="gru", recurrent_size=4),
        sequence=2,
        burn_in=1,
        prioritised=True,
        warm_up=0,
        batch_size=8,
        buffer_size=256,
    ),
    "qmix": DQN(mixer="monotonic", n_step=2, warm_up=0, dueling=True, **TINY),
}


@pytest.mark.parametrize("name", ["r2d2", pytest.param("qmix", marks=pytest.mark.slow)])
def test_resumes_to_the_bit_with_its_replay(name, tmp_path):
    learners = {"l": Learner(RESUMED[name])}
    experiment = Experiment("dqn/last_card", learners=learners, num_envs=8, num_steps=5, total_env_steps=400)
    program = make_fused_program(experiment, 1)
    carry, _ = program.advance(program.init(), program.counts[3])
    checkpoint.save(tmp_path, 3, carry.replace(latch=None), {})
    kept = program.restore(checkpoint.latest(tmp_path), {"update": 3})
    assert int(kept.learners["l"].replay.written) == 15
    assert np.asarray(kept.learners["l"].replay.store.reward["player"]).any()
    assert same(kept, carry)
    carry, table = program.advance(carry, program.counts[3])
    kept, again = program.advance(kept, program.counts[3])
    assert same(kept, carry)
    np.testing.assert_array_equal(table, again)
    assert float(dict(zip(program.names, table[2], strict=True))["loss"]) > 0.0


@pytest.mark.slow
def test_two_devices_share_a_learner():
    """Each stores and draws from its own copies; weights and their slow copies are the same on both."""
    algorithm = DQN(prioritised=True, warm_up=50, **TINY)
    experiment = Experiment(
        "dqn/last_card", learners={"l": Learner(algorithm)}, num_envs=8, num_steps=5, total_env_steps=400
    )
    program = make_fused_program(experiment, 2)
    fresh_weights = jax.device_get(weights_of(program.init().learners["l"]))
    carry, _ = program.advance(program.init(), program.counts[1])  # 40 steps: both together have not warmed up
    assert same(jax.device_get(weights_of(carry.learners["l"])), fresh_weights)
    carry, table = program.advance(carry, program.counts[2])
    state = carry.learners["l"]
    assert float(dict(zip(program.names, table[1], strict=True))["loss"]) > 0.0
    assert not same(jax.device_get(weights_of(state)), fresh_weights)
    for leaf in jax.tree.leaves((weights_of(state), state.target, state.optimiser)):
        one, other = (np.asarray(shard.data) for shard in leaf.addressable_shards)
        np.testing.assert_array_equal(one, other)
    halves = [np.asarray(shard.data) for shard in state.replay.priority.addressable_shards]
    assert [half.shape[1] for half in halves] == [4, 4]
    assert all((half > 0).any() for half in halves)


@pytest.mark.parametrize("algorithm", [DQN, PQN], ids=lambda a: a.name)
def test_boxes_are_refused(algorithm):
    experiment = Experiment("dqn/target", learners={"l": Learner(algorithm())}, num_envs=8, num_steps=4)
    message = f"{algorithm.__name__}: cannot value every action of Box.*, the action space of 'agent'.*PPO, A2C, Impala"
    with pytest.raises(OptionError, match=message):
        make_fused_program(experiment, 1).init()
    assert isinstance(Target().groups["agent"].action, Box)


def test_replays_that_are_too_small_or_too_large_are_refused(monkeypatch):
    def built(**options):
        learners = {"l": Learner(DQN(network=SMALL, **options))}
        return make_fused_program(Experiment("dqn/memory", learners=learners, num_envs=8, num_steps=5, num_seeds=2), 1)

    message = "DQN: buffer_size must be at least 72 for 8 copies, updates of 5 steps and windows of 4, got 40"
    with pytest.raises(OptionError, match=message):
        built(buffer_size=40, n_step=3)
    # 120 steps in 2 seeds, each of two views of 3 floats, an action, a reward and three flags: 35 bytes.
    need = 2 * 120 * (2 * 12 + 4 + 4 + 3)
    monkeypatch.setattr(fused, "device_bytes", lambda: need / 0.8)
    built(buffer_size=113)
    with pytest.raises(OptionError, match=r"'l': 120 steps of 39 bytes; 2 trainings.*Lower buffer_size to 80 or less"):
        built(buffer_size=113, prioritised=True)  # 4 more bytes each; 107 steps would fit, but updates are of 40
    built(buffer_size=80, prioritised=True)
    monkeypatch.setattr(fused, "device_bytes", lambda: need / 0.8 - 2)
    with pytest.raises(OptionError, match=r"'l': 120 steps of 35 bytes.*at most 80% of the 1[0-9] KiB"):
        built(buffer_size=113)


def test_replays_are_counted_together_and_spread_over_devices(monkeypatch):
    learners = {
        "one": Learner(DQN(network=SMALL, buffer_size=160), {"scout": ("scout",)}),
        "other": Learner(DDPG(network=SMALL, buffer_size=80), {"carrier": ("carrier",)}),
    }
    setup = Experiment("dqn/two_teams", learners=learners, num_envs=8, num_steps=5).setup
    # Two scouts and three carriers: two views of 3 or 2 floats, an action and a reward each, and three flags a step.
    need = 160 * (2 * (24 + 4 + 4) + 3) + 80 * (3 * (16 + 4 + 4) + 3)
    monkeypatch.setattr(fused, "device_bytes", lambda: need / 0.8 + 1)
    fused.check_replays(setup)
    monkeypatch.setattr(fused, "device_bytes", lambda: need / 2 / 0.8 + 1)
    with pytest.raises(OptionError, match=r"'one': 160 steps.*'other': 80 steps.*Lower buffer_size to 80 and 40"):
        fused.check_replays(setup)
    fused.check_replays(setup, memories=2)
    with pytest.raises(OptionError, match="spread over 2 devices"):
        fused.check_replays(setup, points=2, memories=2)


def test_a_run_that_would_end_before_it_learns_is_refused():
    def built(total, **options):
        learners = {"l": Learner(DQN(network=SMALL, warm_up=400), **options)}
        return make_fused_program(
            Experiment("dqn/memory", learners=learners, num_envs=8, num_steps=5, total_env_steps=total), 1
        )

    built(401)
    built(400, frozen=True)
    with pytest.raises(OptionError, match=r"never learn: its warm_up, 400 env steps, .* total_env_steps, 400"):
        built(400)


def test_a_group_of_any_size_is_stored():
    """What is stored of a step has the shapes that `replay_shape` announces."""
    algorithm = DQN(**TINY)
    spec = LearnerSpec({"a": Group(3, Discrete(2), Box((2,)))}, None, 1, {"a": Observation(jnp.zeros((3, 2)))}, 4, 6)
    example, rows, copies = algorithm.replay_shape(spec)
    assert (rows, copies) == (66, 4)  # 256 steps, rounded up to whole updates of 24
    assert example.reward["a"].shape == (3,)
    assert buffers.num_bytes(example, rows, copies) == 66 * 4 * (2 * 24 + 12 + 12 + 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mixer": "mean"}, "DQN: mixer must be 'none', 'sum' or 'monotonic', got 'mean'"),
        ({"n_step": 0}, "DQN: n_step must be a whole number, at least 1, got 0"),
        ({"gamma": 1.5}, "DQN: gamma must be at least 0.0 and at most 1.0, got 1.5"),
        ({"importance_exponent": -0.1}, "DQN: importance_exponent must be at least"),
        ({"learning_rate": float("inf")}, "DQN: learning_rate must be at least 0.0 and finite, got inf"),
        ({"learning_rate": float("nan")}, "DQN: learning_rate must be at least 0.0, got nan"),
        ({"burn_in": 2}, "DQN: burn_in must be 0 if the network has no memory .*, got 2"),
        ({"epsilon_start": 0.1, "epsilon_end": 0.2}, "DQN: epsilon_end must be at most epsilon_start, 0.1.*, got 0.2"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(OptionError, match=message):
        DQN(**options)
