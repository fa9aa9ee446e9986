"""The game itself, without a clock and without a network."""

import json

import jax
import numpy as np
import pytest

import shoal
from shoal.algorithms import PPO
from shoal.core.errors import OptionError, WorldError
from shoal.human.game import Game
from shoal.human.picture import plain_scene
from shoal.human.results import append_line, describe_episode, read_episodes, replay_rewards
from shoal.networks import Network
from shoal.training.evaluate import record
from shoal.training.experiment import Experiment, Learner

TIMING = {"started": "", "fps": 0.0, "seconds": 0.0, "times": [], "decision_seconds": []}


def hand(game: Game) -> list[str]:
    """The faces that lie open on a card table."""
    return [text for *_, text in plain_scene(game.view.scene)["labels"] if text in ("J", "Q", "K")]


def test_a_hand_of_kuhn_poker_in_turns(kuhn):
    kuhn.begin(3)
    assert kuhn.active
    assert len(hand(kuhn)) == 1, "the other's card lies face down"
    own = hand(kuhn)
    kuhn.step([1])
    assert not kuhn.active, "the other moves"
    assert kuhn.said == [("player[0]", "bet")]
    assert hand(kuhn) == own
    result = kuhn.step()
    assert result.terminated
    (who, answer), *_ = kuhn.said
    assert who == "player[1]"
    assert len(hand(kuhn)) == (2 if answer == "bet" else 1), "cards are shown after a call, and not after a fold"
    assert kuhn.own_return == (1.0 if answer == "pass" else 2.0 * (1 if "JQK".index(own[0]) > _other(kuhn) else -1))
    assert sum(kuhn.returns()["player"]) == 0
    with pytest.raises(OptionError, match="over"):
        kuhn.step([0])


def _other(game: Game) -> int:
    return next(
        "JQK".index(face) for x, face in [(x, t) for _, x, _, t in plain_scene(game.view.scene)["labels"]] if x > 3
    )


def test_a_refused_action_changes_nothing(kuhn):
    kuhn.begin(3)
    with pytest.raises(OptionError, match="a choice from 0 to 1"):
        kuhn.step([2])
    assert kuhn.active
    assert not kuhn.actions


def test_an_episode_is_replayed_to_the_bit(pong, tmp_path):
    pong.begin(5)
    for t in range(400):
        if pong.step([t % 3]).over:
            break
    assert pong.over
    append_line(tmp_path / "a.jsonl", describe_episode(pong, "terminated", TIMING, {}))
    (episode,) = read_episodes(tmp_path / "a.jsonl")
    assert episode["steps"] == len(pong.actions)
    assert [a[0] for a in episode["actions"]["left"]] == [t % 3 for t in range(episode["steps"])]
    again = replay_rewards(episode)
    for name, rewards in episode["rewards"].items():
        np.testing.assert_array_equal(again[name], np.array(rewards, np.float32))
    assert abs(episode["return"]) == 1.0


def test_a_continuous_world_is_replayed_to_the_bit():
    game = Game(Experiment("swarm/rendezvous", {"num_agents": 2, "max_steps": 6}).setup, {}, ("agent", 1))
    game.begin(2)
    while not game.over:
        game.step([0.25, -1.0])
    episode = json.loads(json.dumps(describe_episode(game, "truncated", TIMING, {})))
    assert episode["actions"]["agent"][0][1] == [0.25, -1.0]
    again = replay_rewards(episode)
    np.testing.assert_array_equal(again["agent"], np.array(episode["rewards"]["agent"], np.float32))
    assert np.abs(again["agent"]).sum() > 0


@pytest.mark.slow
def test_recurrent_policies_play_as_in_evaluation():
    """The person does what the policy in that seat would do: the episode is the one that `record` plays."""
    learner = Learner(PPO(network=Network(hidden=(8,), recurrent="gru", recurrent_size=8)))
    experiment = Experiment("cards/kuhn", learners={"learner": learner})
    setup = experiment.setup
    algorithm, spec = setup.learners["learner"]
    policies = algorithm.init(jax.random.key(1), spec).params
    game = Game(setup, policies, ("player", 0))
    for seed in range(4):
        game.begin(seed)
        while not game.over:
            mine = game.view.proposed["player"][0]
            game.step([int(mine)])
        wanted = record(setup, policies, seed).returns
        assert game.returns()["player"].tolist() == [wanted["player_0"][-1], wanted["player_1"][-1]]
        assert len(game.actions) == len(wanted["player_0"]) - 1


def test_a_half_written_line_stays_apart(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n{"b"')
    append_line(path, {"c": 3})
    assert path.read_bytes() == b'{"a": 1}\n{"b"\n{"c":3}\n'


def test_results_do_not_follow_links(tmp_path):
    (tmp_path / "b").write_text("")
    (tmp_path / "a").symlink_to(tmp_path / "b")
    with pytest.raises((OSError, shoal.ShoalError)):
        append_line(tmp_path / "a", {"c": 3})
    assert (tmp_path / "b").read_text() == ""


def test_worlds_without_a_picture_are_refused():
    class Dark(type(shoal.make("pong"))):
        def scene(self, state, params):
            return shoal.Scene()

    experiment = Experiment("pong")
    vars(experiment)["world"] = Dark()
    with pytest.raises(WorldError, match="does not define `scene`"):
        Game(experiment.setup, {}, ("left", 0))


@pytest.mark.parametrize(
    ("id", "seat", "hidden"),
    [
        ("mpe/simple_adversary", ("adversary", 0), True),
        ("mpe/simple_adversary", ("agent", 0), False),
        ("mpe/simple_push", ("adversary", 0), True),
        ("mpe/simple_speaker_listener", ("listener", 0), True),
        ("mpe/simple_speaker_listener", ("speaker", 0), False),
    ],
)
def test_a_seat_is_not_shown_what_its_policy_does_not_know(id, seat, hidden):
    """The picture for those who are not told the goal is the same, whichever it is."""
    env = shoal.make(id)
    params = env.default_params()
    state = env.reset(jax.random.key(0), params)
    pictures = [env.scene_for(state._replace(goal=np.int32(goal)), params, seat).circles.colour for goal in (0, 1)]
    assert bool(np.array_equal(*pictures)) == hidden


def test_who_is_in_a_forest_is_not_drawn_for_those_outside():
    env = shoal.make("mpe/simple_world_comm")
    params = env.default_params()
    state = env.reset(jax.random.key(0), params)
    forest = env._landmarks(state)[2][0]
    far = np.array([[0.9, 0.9]] * len(state.position), np.float32) - 4.0
    position = jax.numpy.asarray(far).at[-1].set(forest)
    state = state._replace(position=position)
    shown = {seat: env.scene_for(state, params, seat).circles.visible[-1] for seat in (("adversary", 0), ("agent", 1))}
    assert not shown[("adversary", 0)]
    assert shown[("agent", 1)], "one sees oneself"
