"""`tag/continuous`: its rules, worked out by hand, and a plain loop over agents that plays the same game."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.core.env import describe
from shoal.core.errors import OptionError
from shoal.core.spaces import MultiDiscrete
from shoal.envs.tag.continuous import State, TagContinuous, _change

KEY = jax.random.key(0)
NOTHING = (0, 0)


def make_state(position, *, t=0, speed=0.0, heading=0.0, acceleration=0.0, in_game=True):
    position = jnp.array(position, jnp.float32)
    n = position.shape[0]
    fill = lambda value, dtype=jnp.float32: jnp.broadcast_to(jnp.array(value, dtype), (n,))  # noqa: E731
    return State(
        x=position[:, 0],
        y=position[:, 1],
        speed=fill(speed),
        heading=fill(heading),
        acceleration=fill(acceleration),
        in_game=fill(in_game, bool),
        t=jnp.int32(t),
    )


def step(env, state, actions=None):
    """One step; `actions` is one pair an agent, by default all nothing."""
    actions = jnp.array(actions if actions is not None else [NOTHING] * env.num_agents)
    both = {"tagger": actions[: env.num_taggers], "runner": actions[env.num_taggers :]}
    return jax.jit(env.step)(KEY, state, both, env.default_params())


def small(**options):
    """One tagger, two runners, a square of side 10: the tagging radius is 0.2."""
    return TagContinuous(**({"num_taggers": 1, "num_runners": 2, "side": 10.0, "num_neighbours": 2} | options))


def test_defaults():
    env = TagContinuous()
    groups = describe(env).groups
    assert groups["tagger"].size == 10
    assert groups["runner"].size == 100
    assert groups["tagger"].action == MultiDiscrete((21, 21))
    assert groups["tagger"].observation.shape == groups["runner"].observation.shape == (71,)
    assert describe(TagContinuous(full_view=True)).groups["runner"].observation.shape == (7 * 109 + 1,)
    assert describe(env).state.shape == (7 * 110 + 1,)
    assert env.max_steps == 500
    assert env.tagging_distance * env.side == pytest.approx(0.4)


def test_start():
    env = TagContinuous()
    reset = jax.jit(env.reset)
    state = reset(KEY, env.default_params())
    for place in (state.x, state.y):
        assert 0.0 <= float(jnp.min(place)) < 2.0
        assert 18.0 < float(jnp.max(place)) <= 20.0
    quarters = np.asarray(state.heading) / (math.pi / 2)
    np.testing.assert_allclose(quarters, np.round(quarters), atol=1e-6)
    assert set(np.round(quarters)) == {0, 1, 2, 3}
    assert not np.any(state.speed)
    assert not np.any(state.acceleration)
    assert bool(jnp.all(state.in_game))
    assert not np.allclose(state.x, reset(jax.random.key(1), env.default_params()).x)


def test_choices_are_evenly_spaced():
    changes = _change(jnp.arange(21), 20, 0.1)
    np.testing.assert_allclose(changes, [0.0, *np.linspace(-0.1, 0.1, 20)], atol=1e-7)
    np.testing.assert_allclose(_change(jnp.arange(2), 1, 0.1), [0.0, -0.1], atol=1e-7)


def test_motion_by_hand():
    env = small(num_runners=2)
    state = make_state([[5, 5], [1, 1], [9, 9]], speed=[0.5, 0.0, 0.95], heading=[0.0, math.pi, 6.0], acceleration=0.02)
    # The tagger speeds up by the most (0.1); runner 0 brakes though at rest; runner 1 turns by the most, 0.75 pi.
    state, _ = step(env, state, [(20, 0), (1, 0), (20, 20)])
    np.testing.assert_allclose(state.acceleration, [0.12, 0.0, 0.0], atol=1e-6)
    np.testing.assert_allclose(state.speed, [0.62, 0.0, 1.0], atol=1e-6)
    turned = 6.0 + 0.75 * math.pi - 2 * math.pi
    np.testing.assert_allclose(state.heading, [0.0, math.pi, turned], atol=1e-5)
    np.testing.assert_allclose(state.x, [5.62, 1.0, 9.0 + math.cos(turned)], atol=1e-5)
    np.testing.assert_allclose(state.y, [5.0, 1.0, 9.0 + math.sin(turned)], atol=1e-5)
    assert int(state.t) == 1


def test_turning_right_wraps():
    env = small()
    state, _ = step(env, make_state([[5, 5], [1, 1], [9, 9]]), [(0, 1), NOTHING, NOTHING])
    np.testing.assert_allclose(state.heading, [1.25 * math.pi, 0.0, 0.0], atol=1e-5)


def test_opposite_actions_cancel_whatever_the_rounding():
    """Left and right again is a heading of 0, not of 2 pi; the least push forward, taken back twice, is a stop."""
    env = small()
    state = make_state([[5, 5], [1, 1], [9, 9]])
    least = 0.1 / 19
    for action, speed, acceleration in (((11, 1), least, least), ((10, 20), least, 0.0), ((10, 0), 0.0, 0.0)):
        state, _ = step(env, state, [action, NOTHING, NOTHING])
        np.testing.assert_allclose([state.speed[0], state.acceleration[0]], [speed, acceleration], atol=1e-7)
    assert abs(float(state.heading[0])) < 1e-5


def test_skill_limits_speed():
    env = small(tagger_skill=2.0, runner_skill=0.5)
    state, _ = step(env, make_state([[5, 5], [1, 1], [9, 1]], speed=0.45, acceleration=1.0))
    np.testing.assert_allclose(state.speed, [1.45, 0.5, 0.5], atol=1e-6)
    np.testing.assert_allclose(state.acceleration, [1.0, 0.0, 0.0], atol=1e-6)


def test_edge_clips_and_costs_once():
    env = small(edge_penalty=3.0)
    corner = math.pi / 4
    state = make_state([[9.9, 9.9], [10.0, 5.0], [5.0, 5.0]], speed=0.5, heading=[corner, 0.0, 0.0])
    state, outcome = step(env, state)
    np.testing.assert_allclose(state.x, [10.0, 10.0, 5.5], atol=1e-6)
    np.testing.assert_allclose(state.y, [10.0, 5.0, 5.0], atol=1e-6)
    np.testing.assert_allclose(outcome.reward["tagger"], [-3.0], atol=1e-6)
    np.testing.assert_allclose(outcome.reward["runner"], [-3.0, 0.0], atol=1e-6)


def test_two_runners_caught_at_once_pay_twice():
    env = small(step_penalty=0.25, step_reward=0.5)
    state, outcome = step(env, make_state([[5, 5], [5.1, 5], [5, 4.9]]))
    np.testing.assert_allclose(outcome.reward["tagger"], [20.0 - 0.25], atol=1e-5)
    np.testing.assert_allclose(outcome.reward["runner"], [-9.5, -9.5], atol=1e-5)
    assert float(outcome.metrics["tags"]) == 2.0
    np.testing.assert_array_equal(state.in_game, [True, False, False])
    assert bool(outcome.terminated)  # no runner is left
    assert not bool(outcome.truncated)


def test_nearest_tagger_is_paid():
    env = TagContinuous(num_taggers=3, num_runners=2, side=10.0, num_neighbours=2)
    # Runner 0 is 0.1 from tagger 1 and 0.15 from tagger 0; runner 1 is as far from taggers 1 and 2: the first is paid.
    positions = [[5.25, 5.0], [5.0, 5.0], [5.0, 5.25], [5.1, 5.0], [5.0, 5.125]]
    _, outcome = step(env, make_state(positions))
    np.testing.assert_allclose(outcome.reward["tagger"], [0.0, 20.0, 0.0], atol=1e-5)
    np.testing.assert_allclose(outcome.reward["runner"], [-10.0, -10.0], atol=1e-5)


def test_tagging_distance_is_exclusive():
    env = small(tagging_distance=0.025)  # 0.25, exact in binary
    _, outcome = step(env, make_state([[5, 5], [5.25, 5], [5.2, 5]]))
    np.testing.assert_allclose(outcome.reward["runner"], [0.0, -10.0], atol=1e-6)


def test_who_has_left_is_out():
    env = small(step_reward=1.0, edge_penalty=1.0)
    state = make_state([[5, 5], [5, 5], [9, 9]], speed=0.5, acceleration=0.05, in_game=[True, False, True])
    after, outcome = step(env, state, [NOTHING, (7, 9), NOTHING])
    for name in ("x", "y", "speed", "heading", "acceleration"):
        assert float(getattr(after, name)[1]) == float(getattr(state, name)[1]), name
    np.testing.assert_allclose(outcome.reward["runner"], [0.0, 1.0], atol=1e-6)
    np.testing.assert_allclose(outcome.reward["tagger"], [0.0], atol=1e-6)  # nobody to tag where it stands
    seen = env.observe(after, env.default_params())
    np.testing.assert_array_equal(seen["runner"].active, [False, True])
    np.testing.assert_array_equal(seen["runner"].present, [False, True])
    assert seen["tagger"].active is None
    assert not bool(outcome.terminated)


def test_runners_may_stay():
    env = small(runners_leave=False, max_steps=9)
    state, outcome = step(env, make_state([[5, 5], [5.1, 5], [9, 9]]))
    assert bool(jnp.all(state.in_game))
    np.testing.assert_allclose(outcome.reward["runner"], [-10.0, 0.0], atol=1e-6)
    _, outcome = step(env, make_state([[5, 5], [5.1, 5], [9, 9]], t=8))
    np.testing.assert_allclose(outcome.reward["runner"], [-9.0, 1.0], atol=1e-6)


def test_end_reward_goes_to_those_still_in_the_game():
    env = TagContinuous(num_taggers=1, num_runners=3, side=10.0, num_neighbours=1, max_steps=7)
    positions = [[5, 5], [5.1, 5], [9, 9], [1, 1]]
    state = make_state(positions, t=5, in_game=[True, True, True, False])
    state, outcome = step(env, state)
    np.testing.assert_allclose(outcome.reward["runner"], [-10.0, 0.0, 0.0], atol=1e-6)
    assert not bool(outcome.terminated)
    _, outcome = step(env, state)
    np.testing.assert_allclose(outcome.reward["runner"], [0.0, 1.0, 0.0], atol=1e-6)
    np.testing.assert_allclose(outcome.reward["tagger"], [0.0], atol=1e-6)
    assert bool(outcome.terminated)
    assert not bool(outcome.truncated)
    _, outcome = step(env, make_state(positions, t=6, in_game=[True, True, True, False]))
    np.testing.assert_allclose(outcome.reward["runner"], [-10.0, 1.0, 0.0], atol=1e-6)  # tagged in the last step


def test_partial_view_by_hand():
    env = TagContinuous(num_taggers=1, num_runners=3, side=10.0, num_neighbours=3, max_speed=2.0, max_steps=50)
    state = make_state(
        [[1, 1], [4, 5], [1, 2], [9, 9]],
        speed=[1.0, 0.5, 0.0, 0.0],
        heading=[math.pi, 0.0, math.pi / 2, 0.0],
        acceleration=[0.0, 0.1, 0.0, 0.0],
        in_game=[True, True, True, False],
        t=10,
    )
    seen = env.observe(state, env.default_params())
    across = math.sqrt(2.0) * 10.0
    near = [0.0, 1 / across, -0.5, 0.0, -0.25, 0.0, 1.0]
    far = [3 / across, 4 / across, -0.25, 0.05, -0.5, 0.0, 1.0]
    np.testing.assert_allclose(seen["tagger"].view, [[*near, *far, *[0.0] * 7, 0.2]], atol=1e-6)
    tagger = [-3 / across, -4 / across, 0.25, -0.05, 0.5, 1.0, 1.0]
    other = [-3 / across, -3 / across, -0.25, -0.05, 0.25, 0.0, 1.0]
    np.testing.assert_allclose(seen["runner"].view[0], [*other, *tagger, *[0.0] * 7, 0.2], atol=1e-6)


def test_full_view_by_hand():
    env = TagContinuous(num_taggers=1, num_runners=2, side=10.0, full_view=True, max_steps=50)
    state = make_state([[1, 1], [4, 5], [1, 2]], in_game=[True, True, False], t=25)
    seen = env.observe(state, env.default_params())
    across = math.sqrt(2.0) * 10.0
    first = [3 / across, 4 / across, 0, 0, 0, 0, 1]
    second = [0, 1 / across, 0, 0, 0, 0, 0]
    np.testing.assert_allclose(seen["tagger"].view, [[*first, *second, 0.5]], atol=1e-6)
    tagger = [-3 / across, -4 / across, 0, 0, 0, 1, 1]
    second = [-3 / across, -3 / across, 0, 0, 0, 0, 0]
    np.testing.assert_allclose(seen["runner"].view[0], [*tagger, *second, 0.5], atol=1e-6)


def plain_step(env, agents, actions, t):
    """The rules again, agent by agent in plain Python, without a thought for speed. Changes `agents`."""
    levels = [0.0, *np.linspace(-env.max_acceleration, env.max_acceleration, env.num_accelerations)]
    turns = [0.0, *np.linspace(-env.max_turn, env.max_turn, env.num_turns)]
    rewards = [0.0] * env.num_agents
    for i, agent in enumerate(agents):
        if not agent["in"]:
            continue
        agent["a"] += levels[actions[i][0]]
        agent["θ"] = (agent["θ"] + turns[actions[i][1]]) % (2 * math.pi)
        top = env.max_speed * (env.tagger_skill if i < env.num_taggers else env.runner_skill)
        agent["v"] = min(max(agent["v"] + agent["a"], 0.0), top)
        if agent["v"] in (0.0, top):
            agent["a"] = 0.0
        x, y = agent["x"] + agent["v"] * math.cos(agent["θ"]), agent["y"] + agent["v"] * math.sin(agent["θ"])
        agent["x"], agent["y"] = min(max(x, 0.0), env.side), min(max(y, 0.0), env.side)
        rewards[i] -= env.edge_penalty * ((x, y) != (agent["x"], agent["y"]))
        rewards[i] += -env.step_penalty if i < env.num_taggers else env.step_reward
    for i in range(env.num_taggers, env.num_agents):
        agent = agents[i]
        away = [math.dist((agent["x"], agent["y"]), (a["x"], a["y"])) for a in agents[: env.num_taggers]]
        if agent["in"] and min(away) < env.tagging_distance * env.side:
            rewards[i] -= env.tag_penalty
            rewards[away.index(min(away))] += env.tag_reward
            agent["in"] = False
        rewards[i] += env.end_reward * (agent["in"] and t == env.max_steps)
    return rewards, t == env.max_steps or not any(agent["in"] for agent in agents[env.num_taggers :])


def test_agrees_with_a_plain_loop():
    """40 games of 3 against 6 in a small square, where many are tagged; views are checked by hand above.

    Accelerations are multiples of 1/16, exact in any precision, for it matters whether a speed is exactly 0; headings
    are off the axes, for it matters whether one glides along an edge exactly.
    """
    env = TagContinuous(
        num_taggers=3, num_runners=6, side=4.0, max_steps=12, num_neighbours=4, tagging_distance=0.1,
        tagger_skill=1.25, num_accelerations=5, max_acceleration=0.125,
        step_penalty=0.1, step_reward=0.2, edge_penalty=0.3,
    )  # fmt: skip
    params = env.default_params()

    @jax.jit
    def play(key):
        start = env.reset(key, params)
        start = start._replace(heading=start.heading + 0.3)

        def body(state, key):
            actions = jax.random.randint(key, (env.num_agents, 2), 0, jnp.array([6, 21]))
            both = {"tagger": actions[: env.num_taggers], "runner": actions[env.num_taggers :]}
            state, outcome = env.step(key, state, both, params)
            return state, (state, actions, outcome)

        return start, jax.lax.scan(body, start, jax.random.split(key, env.max_steps))[1]

    tagged = 0
    for game in range(40):
        start, steps = jax.tree.map(np.asarray, play(jax.random.key(game)))
        columns = zip(*(map(float, column) for column in start[:5]), strict=True)
        agents = [dict(zip("xyvθa", row, strict=True)) | {"in": True} for row in columns]
        for t in range(env.max_steps):
            state, actions, outcome = jax.tree.map(lambda leaf: leaf[t], steps)  # noqa: B023
            rewards, over = plain_step(env, agents, actions, t + 1)
            ours = np.concatenate([outcome.reward["tagger"], outcome.reward["runner"]])
            np.testing.assert_allclose(ours, rewards, atol=1e-4, err_msg=f"game {game}, step {t}")
            assert bool(outcome.terminated) == over
            for name, letter in zip(("x", "y", "speed", "acceleration"), "xyva", strict=True):
                expected = [agent[letter] for agent in agents]
                np.testing.assert_allclose(getattr(state, name), expected, atol=1e-4, err_msg=f"game {game}, step {t}")
            if over:
                break
        tagged += sum(not agent["in"] for agent in agents)
    assert tagged > 60


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_taggers": 0}, "tag/continuous: num_taggers must be a whole number, at least 1, got 0"),
        ({"num_runners": -3}, "num_runners must be a whole number, at least 1, got -3"),
        ({"max_steps": 0}, "max_steps must be a whole number, at least 1, got 0"),
        ({"num_neighbours": 110}, "num_neighbours must be at most the number of other agents, 109, got 110"),
        ({"num_turns": 0}, "num_turns must be a whole number, at least 1, got 0"),
        ({"side": 0.0}, "side must be greater than 0, got 0.0"),
        ({"max_speed": -1.0}, "max_speed must be greater than 0, got -1.0"),
        ({"runner_skill": -1.0}, "runner_skill must be at least 0, got -1.0"),
        ({"tagging_distance": 2.0}, "tagging_distance must be between 0 and 1, got 2.0"),
        ({"max_turn": float("nan")}, "max_turn must be a finite number, got nan"),
        ({"runners_leave": None}, "runners_leave must be True or False, got None"),
    ],
)
def test_bad_options(options, said):
    with pytest.raises(OptionError, match=said):
        TagContinuous(**options)


def test_scene():
    env = small()
    state = make_state([[1, 2], [3, 4], [5, 6]], in_game=[True, False, True], heading=1.0)
    scene = env.scene(state, env.default_params())
    assert scene.circles.names == ("tagger_0", "runner_0", "runner_1")
    np.testing.assert_array_equal(scene.circles.visible, [True, False, True])
    np.testing.assert_array_equal(scene.circles.colour, [4, 1, 1])
    np.testing.assert_allclose(scene.circles.heading, [1.0, 1.0, 1.0])
