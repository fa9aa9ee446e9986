"""The particle worlds: rules worked out by hand, and what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.core.env import describe
from shoal.core.errors import OptionError
from shoal.core.spaces import Box, Discrete
from shoal.envs.mpe import _actions as acts
from shoal.envs.mpe import _physics as physics
from shoal.envs.mpe import _picture as picture
from shoal.envs.mpe.simple import Simple
from shoal.envs.mpe.simple import State as SimpleState
from shoal.envs.mpe.simple_adversary import SimpleAdversary
from shoal.envs.mpe.simple_adversary import State as AdversaryState
from shoal.envs.mpe.simple_crypto import SimpleCrypto
from shoal.envs.mpe.simple_crypto import State as CryptoState
from shoal.envs.mpe.simple_push import SimplePush
from shoal.envs.mpe.simple_push import State as PushState
from shoal.envs.mpe.simple_reference import SimpleReference
from shoal.envs.mpe.simple_reference import State as ReferenceState
from shoal.envs.mpe.simple_speaker_listener import SimpleSpeakerListener
from shoal.envs.mpe.simple_speaker_listener import State as SpeakerListenerState
from shoal.envs.mpe.simple_spread import SimpleSpread
from shoal.envs.mpe.simple_spread import State as SpreadState
from shoal.envs.mpe.simple_tag import SimpleTag
from shoal.envs.mpe.simple_tag import State as TagState
from shoal.envs.mpe.simple_world_comm import SimpleWorldComm
from shoal.envs.mpe.simple_world_comm import State as WorldCommState

KEY = jax.random.key(7)


def test_spaces_and_sizes():
    spread = describe(SimpleSpread()).groups["agent"]
    assert (spread.size, spread.action, spread.observation.shape) == (3, Discrete(5), (18,))
    tag = describe(SimpleTag(continuous=True)).groups
    assert tag["adversary"].observation.shape == (16,)
    assert tag["agent"].observation.shape == (14,)
    assert tag["agent"].action == Box((5,), low=0.0, high=1.0)
    assert describe(SimpleSpread()).state.shape == (54,)


def test_spread_by_hand():
    """Agents 0 and 1 touch (0.2 apart, radii 0.15), agent 2 is far; landmarks at known distances."""
    env = SimpleSpread()
    state = SpreadState(
        position=jnp.array([[0.0, 0.0], [0.2, 0.0], [5.0, 0.0]]),
        velocity=jnp.array([[0.0, 0.0], [0.0, 0.0], [0.0, 1.0]]),
        landmark=jnp.array([[0.0, 1.0], [0.2, -2.0], [5.0, 0.1]]),
        t=jnp.int32(24),
    )
    params = env.default_params()
    after, outcome = jax.jit(env.step)(KEY, state, {"agent": jnp.array([0, 2, 3])}, params)
    # Overlap 0.1 pushes with 100 * 0.1 = 10, times 0.1 s; the move to the right adds 5 * 0.1.
    np.testing.assert_allclose(after.velocity, [[-1.0, 0.0], [1.5, 0.0], [0.0, 0.75 - 0.5]], atol=1e-5)
    np.testing.assert_allclose(after.position, [[0.0, 0.0], [0.2, 0.0], [5.0, 0.1]], atol=1e-6)
    # Nearest distances: 1 (agent 0), 2 (agent 1), 0 (agent 2, after its move).
    np.testing.assert_allclose(outcome.reward["agent"], [-0.5 - 1.5, -0.5 - 1.5, -1.5], atol=1e-6)
    assert bool(outcome.truncated)
    assert not bool(outcome.terminated)
    view = jax.jit(env.observe)(after, params)["agent"].view
    np.testing.assert_allclose(
        view[1], [1.5, 0, 0.2, 0, -0.2, 1, 0, -2, 4.8, 0.1, -0.2, 0, 4.8, 0.1, 0, 0, 0, 0], atol=1e-5
    )


def test_tag_by_hand():
    """Two adversaries on one agent, the other agent out of the square, speeds limited."""
    env = SimpleTag(num_good=2, num_adversaries=2, num_obstacles=1)
    state = TagState(
        position=jnp.array([[0.0, 0.0], [0.0, 0.1], [0.05, 0.05], [2.5, -0.95]]),
        velocity=jnp.array([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 1.0]]),
        obstacle=jnp.array([[-3.0, -3.0]]),
        t=jnp.int32(0),
    )
    params = env.default_params()
    stay = {"adversary": jnp.zeros(2, int), "agent": jnp.array([0, 2])}
    step = jax.jit(env.step)
    after, outcome = step(KEY, state, stay, params)
    # Agent 1: |x| = 2.5 costs min(e^3, 10) = 10, |y| = 0.95 - 0.1 = 0.85 costs nothing.
    np.testing.assert_allclose(outcome.reward["adversary"], [20.0, 20.0], atol=1e-5)
    np.testing.assert_allclose(outcome.reward["agent"], [-20.0, -10.0], atol=1e-5)
    assert float(outcome.metrics["catches"]) == 2.0
    # Agent 1 had (0, 1), damped to (0, 0.75), plus 4 * 0.1 to the right.
    np.testing.assert_allclose(after.velocity[3], [0.4, 0.75], atol=1e-6)
    fast, _ = step(KEY, after._replace(velocity=20.0 * after.velocity), stay, params)
    np.testing.assert_allclose(jnp.linalg.norm(fast.velocity, axis=1), [1.0, 1.0, 1.3, 1.3], atol=1e-5)
    view = jax.jit(env.observe)(after, params)
    np.testing.assert_allclose(view["adversary"].view[0, -4:], after.velocity[2:].ravel(), atol=1e-6)
    np.testing.assert_allclose(view["agent"].view[1, -2:], after.velocity[2], atol=1e-6)


def test_simple_by_hand():
    """From (1, 0) with velocity (-1, 0) towards a landmark at the origin: 0.9 away after a step."""
    env = Simple()
    state = SimpleState(jnp.array([[1.0, 0.0]]), jnp.array([[-1.0, 0.0]]), jnp.zeros((1, 2)), jnp.int32(0))
    after, outcome, seen = stepped(env, state, {"agent": jnp.array([4])})
    np.testing.assert_allclose(outcome.reward["agent"], [-0.81], atol=1e-6)
    np.testing.assert_allclose(seen["agent"].view, [[-0.75, 0.5, -0.9, 0.0]], atol=1e-6)
    assert int(after.t) == 1


def test_adversary_by_hand():
    """The goal is the second landmark, at the origin: 3 from the adversary, 1 and 2 from the agents."""
    env = SimpleAdversary()
    state = AdversaryState(
        position=jnp.array([[3.0, 0.0], [0.0, 1.0], [0.0, -2.0]]),
        velocity=jnp.zeros((3, 2)),
        landmark=jnp.array([[5.0, 5.0], [0.0, 0.0]]),
        goal=jnp.int32(1),
        t=jnp.int32(0),
    )
    _, outcome, seen = stepped(env, state, {"adversary": jnp.array([1]), "agent": jnp.array([0, 0])})
    np.testing.assert_allclose(outcome.reward["adversary"], [-3.0], atol=1e-6)
    np.testing.assert_allclose(outcome.reward["agent"], [2.0, 2.0], atol=1e-6)
    np.testing.assert_allclose(seen["adversary"].view, [[2, 5, -3, 0, -3, 1, -3, -2]], atol=1e-6)
    np.testing.assert_allclose(seen["agent"].view[1], [0, 2, 5, 7, 0, 2, 3, 2, 0, 3], atol=1e-6)


def test_push_by_hand():
    """Adversary and agent overlap by 0.05 and push each other apart; the goal is the first landmark."""
    env = SimplePush()
    state = PushState(
        position=jnp.array([[0.0, 0.0], [0.05, 0.0]]),
        velocity=jnp.zeros((2, 2)),
        landmark=jnp.array([[1.05, 0.0], [0.0, 1.0]]),
        goal=jnp.int32(0),
        t=jnp.int32(0),
    )
    after, outcome, seen = stepped(env, state, {"adversary": jnp.array([2]), "agent": jnp.array([0])})
    # Overlap 0.05 pushes with 100 * 0.05 = 5, times 0.1 s; the adversary's move is just as strong, the other way.
    np.testing.assert_allclose(after.velocity, [[0.0, 0.0], [0.5, 0.0]], atol=1e-5)
    np.testing.assert_allclose(outcome.reward["agent"], [-1.0], atol=1e-6)
    np.testing.assert_allclose(outcome.reward["adversary"], [1.0 - 1.05], atol=1e-6)
    colours = [0.1, 0.9, 0.1, 0.1, 0.1, 0.9]
    expected = [0.5, 0, 1, 0, 0.25, 0.75, 0.25, 1, 0, -0.05, 1, *colours, -0.05, 0]
    np.testing.assert_allclose(seen["agent"].view[0], expected, atol=1e-5)
    np.testing.assert_allclose(seen["adversary"].view[0], [0, 0, 1.05, 0, 0, 1, 0.05, 0], atol=1e-5)


def test_speaker_listener_by_hand():
    env = SimpleSpeakerListener()
    state = SpeakerListenerState(
        position=jnp.zeros((1, 2)),
        velocity=jnp.zeros((1, 2)),
        landmark=jnp.array([[1.0, 0.0], [0.0, 2.0], [0.0, 0.5]]),
        goal=jnp.int32(1),
        message=jnp.zeros((1, 3)),
        t=jnp.int32(0),
    )
    _, outcome, seen = stepped(env, state, {"speaker": jnp.array([2]), "listener": jnp.array([1])})
    assert outcome.reward == {"speaker": jnp.array([-4.0]), "listener": jnp.array([-4.0])}
    np.testing.assert_allclose(seen["speaker"].view, [[0.15, 0.65, 0.15]], atol=1e-6)
    np.testing.assert_allclose(seen["listener"].view, [[-0.5, 0, 1, 0, 0, 2, 0, 0.5, 0, 0, 1]], atol=1e-6)


def test_reference_by_hand():
    """Agent 0 knows that agent 1 must go to landmark 2; each gets its own share by how far the *other* has to go."""
    env = SimpleReference(local_ratio=0.25)
    state = ReferenceState(
        position=jnp.array([[0.0, 0.0], [0.0, 1.0]]),
        velocity=jnp.zeros((2, 2)),
        landmark=jnp.array([[3.0, 0.0], [0.0, 9.0], [0.0, 2.0]]),
        goal=jnp.array([2, 0]),
        message=jnp.zeros((2, 10)),
        t=jnp.int32(0),
    )
    # Move right and say word 9; move down and say word 0.
    after, outcome, seen = stepped(env, state, {"agent": jnp.array([2 + 5 * 9, 3])})
    np.testing.assert_allclose(after.velocity, [[0.5, 0.0], [0.0, -0.5]], atol=1e-6)
    np.testing.assert_allclose(outcome.reward["agent"], [-0.75 * 2 - 0.25 * 1, -0.75 * 2 - 0.25 * 3], atol=1e-6)
    heard = np.eye(10)
    np.testing.assert_allclose(
        seen["agent"].view[0], [0.5, 0, 3, 0, 0, 9, 0, 2, 0.25, 0.25, 0.75, *heard[0]], atol=1e-6
    )
    np.testing.assert_allclose(
        seen["agent"].view[1], [0, -0.5, 3, -1, 0, 8, 0, 1, 0.75, 0.25, 0.25, *heard[9]], atol=1e-6
    )


@pytest.mark.parametrize(
    ("eve", "bob", "eve_gets", "others_get"), [(1, 1, 0, 0), (0, 1, -2, 2), (1, 0, 0, -2), (3, 2, -2, 0), (9, 1, 0, 0)]
)
def test_crypto_by_hand(eve, bob, eve_gets, others_get):
    """The message is 1, the key 0; a wrong guess costs 2, and saying nothing costs nothing."""
    env = SimpleCrypto()
    state = CryptoState(jnp.int32(1), jnp.int32(0), jnp.zeros((3, 4)), jnp.int32(0))
    said = {"eve": jnp.array([eve]), "bob": jnp.array([bob]), "alice": jnp.array([3])}
    _, outcome, seen = stepped(env, state, said)
    rewards = {name: float(reward[0]) for name, reward in outcome.reward.items()}
    assert rewards == {"eve": eve_gets, "bob": others_get, "alice": others_get}
    np.testing.assert_array_equal(seen["eve"].view, [[0, 0, 0, 1]])
    np.testing.assert_array_equal(seen["bob"].view, [[1, 0, 0, 0, 0, 0, 0, 1]])
    np.testing.assert_array_equal(seen["alice"].view, [[0, 1, 0, 0, 1, 0, 0, 0]])


def test_world_comm_by_hand():
    """One agent feeds in a forest, hidden from the adversary but not from the leader; the other is caught outside."""
    env = SimpleWorldComm(num_adversaries=2, num_obstacles=0, num_food=1, num_forests=1)
    state = WorldCommState(
        position=jnp.array([[0.0, 2.0], [2.0, 0.0], [0.0, 0.0], [2.0, 0.1]]),
        velocity=jnp.zeros((4, 2)),
        landmark=jnp.array([[0.0, 0.05], [0.0, 0.1]]),  # food, forest
        message=jnp.zeros((1, 4)),
        t=jnp.int32(0),
    )
    stay = {"leadadversary": jnp.array([5 * 2]), "adversary": jnp.array([0]), "agent": jnp.array([0, 0])}
    after, outcome, seen = stepped(env, state, stay)
    assert {name: float(value) for name, value in outcome.metrics.items()} == {"catches": 1.0, "meals": 1.0}
    np.testing.assert_allclose(outcome.reward["leadadversary"], [5 - 0.1 * 2.0], atol=1e-5)
    np.testing.assert_allclose(outcome.reward["adversary"], [5 - 0.1 * 0.1], atol=1e-5)
    # Agent 1 is 2 from the origin: x = 2 costs twice min(e^2, 10), y = 0.1 nothing; it touches the adversary.
    far = 0.05 * np.hypot(2.0, 0.05)
    np.testing.assert_allclose(outcome.reward["agent"], [2 - 0.05 * 0.05, -5 - 2 * np.exp(2) - far], atol=1e-5)
    leader, adversary, agents = seen["leadadversary"].view[0], seen["adversary"].view[0], seen["agent"].view
    others = slice(8, 14)  # after velocity, position, food and forest
    np.testing.assert_allclose(leader[others], [2, -2, 0, -2, 2, -1.9], atol=1e-6)
    np.testing.assert_allclose(adversary[others], [-2, 2, 0, 0, 0, 0.1], atol=1e-6)
    np.testing.assert_allclose(agents[0][others], np.zeros(6), atol=1e-6)
    np.testing.assert_allclose(adversary[14:], [0, 0, *after.velocity[3], -1, 0, 0, 1, 0], atol=1e-6)
    np.testing.assert_allclose(leader[18:], [-1, 0, 0, 1, 0], atol=1e-6)
    np.testing.assert_allclose(agents[:, 14:], [[1, 0, 0], [-1, 0, 0]], atol=1e-6)


def test_a_lone_leader_is_the_whole_pack():
    env = SimpleWorldComm(num_adversaries=1)
    assert list(env.groups) == ["leadadversary", "agent"]
    assert env.players == {"adversary": (("leadadversary", 0),), "agent": (("agent", 0), ("agent", 1))}


def test_sides_are_players():
    assert list(SimpleWorldComm().players) == ["adversary", "agent"]
    assert len(SimpleWorldComm().players["adversary"]) == 4
    assert SimpleCrypto().players["alice_and_bob"] == (("alice", 0), ("bob", 0))


def stepped(env, state, actions):
    """A step, compiled, and what is seen after it."""
    params = env.default_params()
    after, outcome = jax.jit(env.step)(KEY, state, actions, params)
    return after, outcome, jax.jit(env.observe)(after, params)


def test_border_penalty():
    x = jnp.array([0.0, 0.89, 0.95, 1.0, 1.5, 3.0])
    np.testing.assert_allclose(physics.border_penalty(x), [0.0, 0.0, 0.5, 1.0, np.e, 10.0], atol=1e-5)


def test_continuous_actions_are_clipped():
    action = jnp.array([[9.0, -1.0, 2.0, 0.25, 0.75]])
    np.testing.assert_allclose(acts.steering(action, continuous=True), [[1.0, 0.5]])


def test_what_is_not_a_move_stays():
    np.testing.assert_array_equal(acts.steering(jnp.array([-1, 5, 99]), continuous=False), np.zeros((3, 2)))


@pytest.mark.parametrize("words", [1, 4, 10])
def test_moves_and_words_are_numbered_together(words):
    action = jnp.arange(5 * words)
    steer, message = jax.jit(lambda action: acts.steering_and_speech(action, words, continuous=False))(action)
    np.testing.assert_array_equal(steer, np.tile(acts.steering(jnp.arange(5), continuous=False), (words, 1)))
    np.testing.assert_array_equal(message, np.repeat(np.eye(words), 5, axis=0))


def test_what_is_no_action_stays_and_says_nothing():
    steer, message = acts.steering_and_speech(jnp.array([-1, -4, 20, 23, 999]), 4, continuous=False)
    assert not jnp.any(steer)
    assert not jnp.any(message)
    assert not jnp.any(acts.speech(jnp.array([-1, 4]), 4, continuous=False))


def test_continuous_messages_are_clipped():
    action = jnp.array([[9.0, 0.0, 1.0, 0.0, 0.5, -1.0, 0.25, 7.0]])
    steer, message = acts.steering_and_speech(action, 3, continuous=True)
    np.testing.assert_allclose(steer, [[1.0, 0.5]])
    np.testing.assert_allclose(message, [[0.0, 0.25, 1.0]])


def test_action_spaces():
    assert acts.action_space(continuous=False) == Discrete(5)
    assert acts.action_space(continuous=False, words=4) == Discrete(20)
    assert acts.action_space(continuous=False, moves=False, words=4) == Discrete(4)
    assert acts.action_space(continuous=True, words=4) == Box((9,), low=0.0, high=1.0)
    assert acts.action_space(continuous=True, moves=False, words=4) == Box((4,), low=0.0, high=1.0)


def test_picking_rows_without_a_gather():
    rows = jnp.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(physics.pick(rows, jnp.int32(2)), rows[2])
    np.testing.assert_array_equal(physics.pick(rows, jnp.array([1, 0])), rows[jnp.array([1, 0])])


def test_places_and_choices_are_even():
    draw = jax.jit(jax.vmap(lambda key: physics.places_and_choices(key, 1, (2, 3))))
    places, (first, second) = draw(jax.random.split(KEY, 6000))
    assert places.shape == (6000, 1, 2)
    assert -1.0 <= float(places.min()) < -0.99
    assert 0.99 < float(places.max()) < 1.0
    np.testing.assert_allclose(jnp.bincount(first, length=2), [3000, 3000], atol=200)
    np.testing.assert_allclose(jnp.bincount(second, length=3), [2000, 2000, 2000], atol=200)


def test_discs_on_the_same_spot_stay_finite():
    env = SimpleSpread()
    state = SpreadState(jnp.zeros((3, 2)), jnp.zeros((3, 2)), jnp.zeros((3, 2)), jnp.int32(0))
    state, outcome = jax.jit(env.step)(KEY, state, {"agent": jnp.zeros(3, int)}, env.default_params())
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves((state, outcome)))


@pytest.mark.parametrize("n", [1, 2, 5, 6])
def test_ring_of_pairs_equals_all_pairs(n, monkeypatch):
    these = physics.discs(jax.random.uniform(KEY, (n, 2)), jnp.linspace(0.1, 0.3, n))

    def sums(these):
        force = physics.sum_over_others(physics.repulsion, these, mirror=-1.0)
        return force, physics.sum_over_others(physics.touching, these, mirror=1.0)

    ring = jax.jit(sums)(these)
    monkeypatch.setattr(physics, "UNROLL", 0)
    matrix = jax.jit(lambda these: sums(these))(these)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5), ring, matrix)


def test_params_are_traced():
    """Randomised parameters are a vmap: a heavier damping slows the same agent more."""
    env = SimpleSpread()
    state = env.reset(KEY, env.default_params())._replace(velocity=jnp.ones((3, 2)))
    many = jax.tree.map(lambda leaf: jnp.full(2, leaf, jnp.float32), env.default_params())
    many = many._replace(damping=jnp.array([0.0, 1.0]), radius=jnp.zeros(2))
    stay = {"agent": jnp.zeros(3, int)}
    after = jax.jit(jax.vmap(lambda params: env.step(KEY, state, stay, params)[0]))(many)
    np.testing.assert_allclose(after.velocity, np.stack([np.ones((3, 2)), np.zeros((3, 2))]), atol=1e-5)


@pytest.mark.parametrize(
    ("world", "options", "said"),
    [
        (SimpleSpread, {"num_agents": 0}, "mpe/simple_spread: num_agents must be a whole number, at least 1, got 0"),
        (SimpleSpread, {"max_steps": 2.5}, "max_steps must be a whole number"),
        (SimpleSpread, {"local_ratio": 1.5}, "local_ratio must be between 0 and 1, got 1.5"),
        (SimpleSpread, {"local_ratio": float("nan")}, "local_ratio must be a finite number"),
        (SimpleSpread, {"continuous": 1}, "continuous must be True or False, got 1"),
        (SimpleTag, {"num_good": -1}, "mpe/simple_tag: num_good must be a whole number, at least 1, got -1"),
        (SimpleTag, {"num_adversaries": True}, "num_adversaries must be a whole number"),
        (SimpleTag, {"num_obstacles": -1}, "num_obstacles must be a whole number, at least 0, got -1"),
        (SimpleTag, {"max_steps": 0}, "max_steps must be a whole number, at least 1, got 0"),
        (SimpleTag, {"continuous": "no"}, "continuous must be True or False, got 'no'"),
        (Simple, {"max_steps": 0}, "mpe/simple: max_steps must be a whole number, at least 1, got 0"),
        (Simple, {"continuous": None}, "mpe/simple: continuous must be True or False, got None"),
        (SimpleAdversary, {"num_agents": 0}, "mpe/simple_adversary: num_agents must be a whole number, at least 1"),
        (SimpleAdversary, {"max_steps": -3}, "mpe/simple_adversary: max_steps must be a whole number, at least 1"),
        (SimpleAdversary, {"continuous": 0}, "mpe/simple_adversary: continuous must be True or False, got 0"),
        (SimplePush, {"max_steps": 1.0}, "mpe/simple_push: max_steps must be a whole number, at least 1, got 1.0"),
        (SimplePush, {"continuous": 1}, "mpe/simple_push: continuous must be True or False, got 1"),
        (SimpleSpeakerListener, {"max_steps": 0}, "mpe/simple_speaker_listener: max_steps must be a whole number"),
        (SimpleSpeakerListener, {"continuous": 1}, "mpe/simple_speaker_listener: continuous must be True or False"),
        (SimpleReference, {"max_steps": 0}, "mpe/simple_reference: max_steps must be a whole number, at least 1"),
        (SimpleReference, {"local_ratio": -0.1}, "mpe/simple_reference: local_ratio must be between 0 and 1, got -0.1"),
        (SimpleReference, {"local_ratio": "half"}, "local_ratio must be a finite number, got 'half'"),
        (SimpleReference, {"continuous": 1}, "mpe/simple_reference: continuous must be True or False, got 1"),
        (SimpleCrypto, {"max_steps": 0}, "mpe/simple_crypto: max_steps must be a whole number, at least 1, got 0"),
        (SimpleCrypto, {"continuous": 1}, "mpe/simple_crypto: continuous must be True or False, got 1"),
        (SimpleWorldComm, {"num_good": 0}, "mpe/simple_world_comm: num_good must be a whole number, at least 1, got 0"),
        (SimpleWorldComm, {"num_adversaries": 0}, "num_adversaries must be a whole number, at least 1, got 0"),
        (SimpleWorldComm, {"num_food": 0}, "num_food must be a whole number, at least 1, got 0"),
        (SimpleWorldComm, {"num_obstacles": -1}, "num_obstacles must be a whole number, at least 0, got -1"),
        (SimpleWorldComm, {"num_forests": 0.5}, "num_forests must be a whole number, at least 0, got 0.5"),
        (SimpleWorldComm, {"max_steps": 0}, "mpe/simple_world_comm: max_steps must be a whole number, at least 1"),
        (SimpleWorldComm, {"continuous": 1}, "mpe/simple_world_comm: continuous must be True or False, got 1"),
    ],
)
def test_bad_options(world, options, said):
    with pytest.raises(OptionError, match=said):
        world(**options)


def test_scenes():
    spread, tag = SimpleSpread(), SimpleTag()
    scene = spread.scene(spread.reset(KEY, spread.default_params()), spread.default_params())
    assert scene.circles.names == ("", "", "", "agent_0", "agent_1", "agent_2")
    np.testing.assert_array_equal(scene.circles.colour, [0, 0, 0, 1, 1, 1])
    scene = tag.scene(tag.reset(KEY, tag.default_params()), tag.default_params())
    assert scene.circles.names == ("", "", "adversary_0", "adversary_1", "adversary_2", "agent_0")
    np.testing.assert_array_equal(scene.circles.colour, [0, 0, 4, 4, 4, 3])
    np.testing.assert_allclose(scene.circles.radius, [0.2, 0.2, 0.075, 0.075, 0.075, 0.05], atol=1e-6)


def test_words_are_shown_where_they_are_said():
    labels = picture.words(jnp.array([[0.0, 1.0], [0.0, 0.0]]), jnp.zeros((2, 2)))
    assert labels.text == ("“A”", "“B”", "“A”", "“B”")
    np.testing.assert_array_equal(labels.visible, [False, True, False, False])


def test_scenes_of_those_who_speak():
    crypto = SimpleCrypto()
    state = CryptoState(jnp.int32(1), jnp.int32(0), jnp.eye(4)[jnp.array([0, 1, 2])], jnp.int32(3))
    scene = crypto.scene(state, ())
    assert scene.circles.names == ("alice_0", "bob_0", "eve_0")
    np.testing.assert_array_equal(scene.circles.colour, [picture.BLUE, picture.GREEN, picture.RED])
    shown = [text for text, visible in zip(scene.labels.text, scene.labels.visible, strict=True) if visible]
    assert shown == ["“A”", "“B”", "“C”", "message B", "key A"]
    world = SimpleWorldComm()
    scene = world.scene(world.reset(KEY, world.default_params()), world.default_params())
    assert scene.circles.names[5:] == ("leadadversary_0", *(f"adversary_{i}" for i in range(3)), "agent_0", "agent_1")
    np.testing.assert_allclose(scene.circles.radius[:5], [0.3, 0.3, 0.2, 0.03, 0.03], atol=1e-6)
    assert not jnp.any(scene.labels.visible)
