"""`shoal play` and `shoal.play`: what is refused, and a game that is really served."""

import http.client
import json
import threading
import time

import pytest

import shoal as package
from shoal.core.errors import OptionError, ShoalError
from shoal.core.registry import import_named
from shoal.human.results import read_episodes, replay_rewards

from .conftest import assert_refused

ME = "person-one"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "which world?"),
        (("pogn",), "pong"),
        (("pong", "--seat", "middle"), "--seat: unknown policy, player or seat 'middle'"),
        (("tag/grid", "--seat", "tagger"), "a person takes one: tagger[0]"),
        (("pong", "--fps", "-1"), "fps must be between 0"),
        (("pong", "--fps", "nan"), "fps must be between 0"),
        (("pong", "--port", "70000"), "port must be between 0 and 65535"),
        (("pong", "--seed", "-1"), "seed must be between 0 and 2^32 - 1"),
        (("pong", "--checkpoint", "best"), "left out"),
        (("pong", "--opponent", "left=random"), "--against RUN"),
        (("pong", "--against", "nowhere"), "nowhere"),
        (("gymnasium:CartPole-v1",), "its own library"),
    ],
)
def test_what_cannot_be_played_is_refused(shoal, words, said):
    assert_refused(shoal("play", *words), said)


def test_a_run_is_played_in_its_own_world(shoal, world, trained):
    assert_refused(
        shoal("play", "pong", "--import", world, "--against", trained), "was trained in test/tiny, not in pong"
    )
    refused = shoal("play", "test/tiny", "--import", world, "--against", trained, "--env.hunters", "3")
    assert_refused(refused, "--env.hunters", "leave it out")
    refused = shoal("play", trained, "--import", world, "--wrap", "agent_ids")
    assert_refused(refused, "--wrap")


def test_a_game_against_a_run_from_python(world, trained, tmp_path, capsys):
    import_named(str(world))
    table = package.play(
        trained, seat="prey", out=tmp_path / "r.jsonl", open=False, wait=False, participant="P1", fps=0
    )
    with table:
        assert table.address in capsys.readouterr().out
        token = table.address.split("/")[3]
        stream = http.client.HTTPConnection("127.0.0.1", table.port, timeout=10)
        stream.request("GET", f"/{token}/events?person={ME}")
        assert stream.getresponse().readline() == b"event: table\n"
        table.session.command(ME, "start")
        done = threading.Event()
        table.session.listen(lambda: done.set() if table.session.phase == "over" else None)
        for step in range(4):
            while len(table.session.game.actions) < step:
                time.sleep(0.005)
            table.session.act(ME, [2], step)
        assert done.wait(10)
        stream.close()
    (episode,) = read_episodes(tmp_path / "r.jsonl")
    assert (episode["env"], episode["seat"], episode["participant"]) == ("test/tiny", "prey[0]", "P1")
    assert episode["opponents"]["run"] == str(trained)
    assert len(episode["opponents"]["weights_sha256"]) == 64
    assert [step[0] for step in episode["actions"]["prey"]] == [2] * 4
    again = replay_rewards(json.loads(json.dumps(episode)))
    assert {name: rows.tolist() for name, rows in again.items()} == episode["rewards"]


def test_errors_of_the_call_name_its_arguments():
    with pytest.raises(ShoalError, match="seat: unknown policy"):
        package.play("pong", seat="middle", open=False, wait=False)
    with pytest.raises(OptionError, match="fps must be"):
        package.play("pong", fps=1e9, open=False, wait=False)
