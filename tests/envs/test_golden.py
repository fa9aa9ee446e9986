"""Golden playthroughs: each world played from a fixed key with fixed actions, as it was when its rules were agreed.

A change here means that a world has changed: raise the version in its docstring and say so in the changelog. To write
the files anew, run the tests with SHOAL_REGENERATE_GOLDEN=1 and look at the difference.
"""

import json
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.core.registry import make
from shoal.core.spaces import Box, Discrete, MultiDiscrete

FOLDER = Path(__file__).parent / "golden"
REGENERATE = bool(os.environ.get("SHOAL_REGENERATE_GOLDEN"))
NUM_STEPS = 12

PLAYS = {
    "battle_open": (
        "battle/open",
        {"num_agents": 3, "map_size": 4, "view_radius": 1, "damage": 6.0, "recovery": 0.5, "max_steps": 11},
    ),
    "kuhn": ("cards/kuhn", {}),
    "leduc": ("cards/leduc", {}),
    "leduc_by_rank": ("cards/leduc", {"suit_isomorphism": True}),
    "matrix_game": ("matrix/game", {"payoffs": [[0.0, -1.0, 2.5], [1.0, 0.0, -1.0]]}),
    "matrix_game_repeated": ("matrix/game", {"num_rounds": 5}),
    "matrix_iterated_prisoners_dilemma": ("matrix/iterated_prisoners_dilemma", {"num_rounds": 6}),
    "matrix_matching_pennies": ("matrix/matching_pennies", {}),
    "matrix_prisoners_dilemma": ("matrix/prisoners_dilemma", {}),
    "matrix_rock_paper_scissors": ("matrix/rock_paper_scissors", {}),
    "matrix_stag_hunt": ("matrix/stag_hunt", {}),
    "acrobot": ("control/acrobot", {"max_steps": 7}),
    "cartpole": ("control/cartpole", {"max_steps": 7}),
    "mountain_car": ("control/mountain_car", {"max_steps": 7}),
    "mountain_car_continuous": ("control/mountain_car_continuous", {"max_steps": 7}),
    "pendulum": ("control/pendulum", {"max_steps": 7}),
    "pong": ("pong", {"points": 2, "serve_speed": 0.7, "max_speed": 1.0, "paddle_speed": 0.3}),
    "simple_spread": ("mpe/simple_spread", {}),
    "simple_spread_continuous": ("mpe/simple_spread", {"num_agents": 2, "continuous": True, "max_steps": 12}),
    "simple_tag": ("mpe/simple_tag", {"num_good": 2}),
    "simple": ("mpe/simple", {}),
    "simple_adversary": ("mpe/simple_adversary", {}),
    "simple_crypto": ("mpe/simple_crypto", {}),
    "simple_crypto_continuous": ("mpe/simple_crypto", {"continuous": True, "max_steps": 5}),
    "simple_push": ("mpe/simple_push", {}),
    "simple_reference": ("mpe/simple_reference", {}),
    "simple_speaker_listener": ("mpe/simple_speaker_listener", {}),
    "simple_world_comm": ("mpe/simple_world_comm", {"num_adversaries": 2, "num_good": 3, "num_food": 4}),
    "swarm_coverage": (
        "swarm/coverage",
        {"num_agents": 2, "side": 4.0, "patch": 3, "num_neighbours": 1, "dynamics": "quadrotor", "gusts": 1.0},
    ),
    "swarm_delivery": (
        "swarm/delivery",
        {"num_agents": 3, "side": 8.0, "num_pickups": 2, "num_drops": 1, "num_obstacles": 1, "station_radius": 1.2}
        | {"radius": 0.5, "max_speed": 5.0, "max_force": 40.0, "delay": 0.0, "pushes": 0.5, "num_neighbours": 1},
    ),
    "swarm_formation": ("swarm/formation", {"num_agents": 3, "num_obstacles": 1, "side": 5.0, "tolerance": 1.0}),
    "swarm_pursuit": (
        "swarm/pursuit",
        {"num_pursuers": 2, "num_evaders": 2, "side": 4.0, "num_obstacles": 1, "num_neighbours": 2, "max_steps": 11},
    ),
    "swarm_rendezvous": (
        "swarm/rendezvous",
        {
            "num_agents": 3,
            "side": 4.0,
            "meeting_radius": 1.75,
            "field_of_view": 200.0,
            "sensor_noise": 0.1,
            "message_size": 2,
            "message_loss": 0.3,
        },
    ),
    "tag_grid": ("tag/grid", {"num_taggers": 2, "grid_length": 2, "max_steps": 7}),
    "tag_grid_partial": ("tag/grid", {"num_taggers": 3, "grid_length": 2, "full_view": False}),
    "tag_continuous": (
        "tag/continuous",
        {"num_taggers": 1, "num_runners": 3, "num_neighbours": 2, "side": 3.0, "tagging_distance": 0.2},
    ),
    "tag_continuous_full": ("tag/continuous", {"num_taggers": 1, "num_runners": 2, "full_view": True, "side": 3.0}),
}


def fixed_action(space, agent, t):
    """An action that depends on nothing but the agent's number and the time; no random numbers are involved."""
    number = (7 * agent + 5 * t + agent * t * t) % 97
    match space:
        case Discrete(n):
            return number % n
        case MultiDiscrete(sizes):
            return [(number + 3 * i) % size for i, size in enumerate(sizes)]
        case Box(shape):
            return [(number + 3 * i) % 11 / 10 for i in range(shape[0])]


def playthrough(id, options):
    """Everything that is handed out in `NUM_STEPS` steps, one episode after another."""
    env = make(id, **options)
    params = env.default_params()
    key = jax.random.key(2024)
    reset, step, observe = jax.jit(env.reset), jax.jit(env.step), jax.jit(env.observe)
    state = reset(key, params)
    lines = [{"views": views(observe(state, params))}]
    for t in range(NUM_STEPS):
        actions = {}
        for name, group in env.groups.items():
            rows = [fixed_action(group.action, 10 * len(actions) + i, t) for i in range(group.size)]
            actions[name] = jnp.array(rows, jnp.float32 if isinstance(group.action, Box) else jnp.int32)
        state, outcome = step(jax.random.fold_in(key, t), state, actions, params)
        lines.append(
            {
                "rewards": {name: plain(reward) for name, reward in outcome.reward.items()},
                "terminated": bool(outcome.terminated),
                "truncated": bool(outcome.truncated),
                "views": views(observe(state, params)),
            }
        )
        if outcome.terminated | outcome.truncated:
            state = reset(jax.random.fold_in(key, t), params)
    return lines


def views(observation):
    """Views, and who is active where that is said."""
    shown = {name: plain(seen.view) for name, seen in observation.items()}
    active = {f"{name} active": plain(seen.active) for name, seen in observation.items() if seen.active is not None}
    return shown | active


def plain(array):
    """An array, or a dict of arrays, as lists of numbers, rounded as far as a float32 is meaningful."""
    if isinstance(array, dict):
        return {name: plain(part) for name, part in array.items()}
    return np.round(np.asarray(array, np.float64), 6).tolist()


def assert_same(ours, golden, where):
    """Compares trees of plain data: numbers to 1e-5, all else exactly."""
    if isinstance(golden, dict):
        assert set(ours) == set(golden), where
        for name, value in golden.items():
            assert_same(ours[name], value, f"{where}, {name}")
    elif isinstance(golden, list):
        np.testing.assert_allclose(ours, golden, atol=1e-5, rtol=1e-5, err_msg=where)
    else:
        assert ours == golden, where


@pytest.mark.parametrize("name", PLAYS)
def test_golden(name):
    id, options = PLAYS[name]
    file = FOLDER / f"{name}.json"
    steps = playthrough(id, options)
    if REGENERATE:
        lines = ",\n".join(json.dumps(step) for step in steps)
        file.write_text(f'{{"world": {json.dumps(id)}, "options": {json.dumps(options)}, "steps": [\n{lines}\n]}}\n')
    golden = json.loads(file.read_text())
    assert (golden["world"], golden["options"]) == (id, options)
    assert len(golden["steps"]) == len(steps)
    for t, (step, expected) in enumerate(zip(steps, golden["steps"], strict=True)):
        assert_same(step, expected, f"{name}, step {t}")


def test_every_golden_file_is_played():
    assert {file.stem for file in FOLDER.glob("*.json")} == set(PLAYS)


def test_golden_playthroughs_are_eventful():
    """They would notice little if nothing happened in them."""
    tags = json.loads((FOLDER / "tag_continuous.json").read_text())["steps"][1:]
    assert any(-10 in step["rewards"]["runner"] for step in tags)
    for name in ("tag_grid", "tag_grid_partial"):
        steps = json.loads((FOLDER / f"{name}.json").read_text())["steps"][1:]
        assert any(max(step["rewards"]["tagger"]) > 9 for step in steps), name
        assert any(min(step["rewards"]["tagger"]) < -0.05 for step in steps), name


def test_golden_battle_is_eventful():
    steps = json.loads((FOLDER / "battle_open.json").read_text())["steps"][1:]
    rewards = np.array([[step["rewards"]["red"], step["rewards"]["blue"]] for step in steps])
    assert (rewards > 4).any(), "a kill"
    assert np.isclose(rewards, 0.095).any(), "a hit"
    assert np.isclose(rewards, -0.105).any(), "a miss or a death"
    assert not all(all(step["views"]["blue active"]) for step in steps), "somebody leaves"


def test_golden_card_games_are_eventful():
    steps = json.loads((FOLDER / "leduc.json").read_text())["steps"][1:]
    assert {1.0, -1.0} <= {step["rewards"]["player"][0] for step in steps if step["terminated"]}
    bets = np.array([step["views"]["player"][0] for step in steps])[:, 8:]
    assert bets[:, :6].any(), "a public card"
    assert bets[:, 6::2].any(), "a call"
    assert bets[:, 7::2].any(), "a raise"


def test_golden_pong_is_eventful():
    steps = json.loads((FOLDER / "pong.json").read_text())["steps"][1:]
    assert {step["rewards"]["left"][0] for step in steps} == {-1, 0, 1}, "points of both"
    assert any(step["terminated"] for step in steps)
    speeds = [abs(step["views"]["left"][0][2]) for step in steps]
    assert max(speeds) > 7.5, "a hit"


def test_golden_swarms_are_eventful():
    steps = {file.stem: json.loads(file.read_text())["steps"][1:] for file in FOLDER.glob("swarm_*.json")}
    assert any(step["terminated"] for step in steps["swarm_rendezvous"]), "a meeting"
    assert any(-10 in step["rewards"]["evader"] for step in steps["swarm_pursuit"]), "a catch"
    assert any(max(step["rewards"]["agent"]) > 0.8 for step in steps["swarm_formation"]), "an agent in its place"
    rewards = np.array([step["rewards"]["agent"] for step in steps["swarm_delivery"]])
    assert (np.abs(rewards - 1) < 0.2).any(), "a parcel taken"
    assert (rewards > 4).any(), "a parcel delivered"
    assert any(max(step["rewards"]["agent"]) > 0.5 for step in steps["swarm_coverage"]), "cells seen"
