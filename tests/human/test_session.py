"""A game in time, with a clock that the test sets: no thread, no waiting."""

import itertools

import pytest

from shoal.core.errors import OptionError
from shoal.human.results import read_episodes
from shoal.human.session import OTHERS_SECONDS, SeatTakenError, Session

ME, ANOTHER = "person-one", "person-two"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def seated(game, fps, tmp_path, **more):
    clock = Clock()
    session = Session(game, fps, seed=3, results=tmp_path / "r.jsonl", clock=clock, **more)
    session.join(ME)
    return session, clock


def test_a_world_in_turns_waits_for_the_person_and_lets_the_others_be_seen(kuhn, tmp_path):
    session, clock = seated(kuhn, 0.0, tmp_path, more={"participant": "P7"})
    session.command(ME, "start")
    assert session.advance(clock.now + 3600) is None, "it waits, however long it takes"
    clock.now += 2.5
    session.act(ME, [1], step=0)
    assert session.advance(clock.now) == pytest.approx(OTHERS_SECONDS)
    assert session.snapshot()["step"] == 1
    with pytest.raises(OptionError, match="not your turn"):
        session.act(ME, [1], step=1)
    assert session.advance(clock.now + 0.1) == pytest.approx(OTHERS_SECONDS - 0.1)
    clock.now += OTHERS_SECONDS
    session.advance(clock.now)
    assert session.phase == "over"
    (episode,) = read_episodes(session.results)
    assert episode["decision_seconds"] == [2.5, None]
    assert episode["times"] == [2.5, pytest.approx(2.5 + OTHERS_SECONDS)]
    assert (episode["participant"], episode["seed"], episode["ended"]) == ("P7", 3, "terminated")
    assert session.snapshot()["scores"] == [episode["return"]]
    session.command(ME, "start")
    assert session.game.seed == 4, "the next episode has the next seed"


def test_a_move_for_an_earlier_position_is_refused(kuhn, tmp_path):
    session, _ = seated(kuhn, 0.0, tmp_path)
    with pytest.raises(OptionError, match="the game is ready"):
        session.act(ME, [0], step=0)
    session.command(ME, "start")
    with pytest.raises(OptionError, match="earlier position"):
        session.act(ME, [0], step=7)
    session.act(ME, [0], step=0)
    with pytest.raises(OptionError, match="earlier position"):
        session.act(ME, [1], step=0)


def test_a_world_with_a_pace_goes_on_with_what_is_held(pong, tmp_path):
    session, clock = seated(pong, 10.0, tmp_path)
    session.command(ME, "start")
    assert session.advance(clock.now) == pytest.approx(0.1)
    for held in ([1], [2]):
        session.act(ME, held)
        for _ in range(3):
            clock.now += 0.1
            session.advance(clock.now)
    assert [int(actions["left"][0]) for actions in pong.actions] == [1, 1, 1, 2, 2, 2]
    session.command(ME, "pause")
    assert session.advance(clock.now + 10) is None
    clock.now += 60
    session.command(ME, "resume")
    assert session.advance(clock.now) == pytest.approx(0.1), "a pause is not made up for"
    clock.now += 5.0  # the machine was busy
    session.advance(clock.now)
    assert session.advance(clock.now) == pytest.approx(0.1)
    assert len(pong.actions) == 7


def test_who_leaves_pauses_the_game_and_what_was_played_is_kept(pong, tmp_path):
    session, clock = seated(pong, 10.0, tmp_path)
    session.command(ME, "start")
    clock.now += 0.1
    session.advance(clock.now)
    session.join(ME)  # the page was reloaded before the old one was gone
    session.leave(ME)
    assert session.phase == "playing"
    session.leave(ME)
    assert session.phase == "paused"
    session.join(ANOTHER)
    session.command(ANOTHER, "restart")
    session.close()
    episodes = list(read_episodes(session.results))
    assert [(e["ended"], e["steps"]) for e in episodes] == [("abandoned", 1)], "nothing was played after the restart"


def test_a_seat_is_one_persons(pong, tmp_path):
    session, _ = seated(pong, 10.0, tmp_path)
    with pytest.raises(SeatTakenError, match=r"somebody plays left\[0\] already"):
        session.join(ANOTHER)
    for call in (lambda: session.act(ANOTHER, [0]), lambda: session.command(ANOTHER, "start")):
        with pytest.raises(SeatTakenError):
            call()
    assert session.phase == "ready"
    with pytest.raises(OptionError, match="start, pause, resume or restart"):
        session.command(ME, "rm -rf")
    with pytest.raises(OptionError, match="cannot resume"):
        session.command(ME, "resume")


def test_results_that_cannot_be_written_are_said_on_the_page(kuhn, tmp_path):
    (tmp_path / "r.jsonl").mkdir()
    session, clock = seated(kuhn, 0.0, tmp_path)
    session.command(ME, "start")
    for _ in itertools.takewhile(lambda _: session.phase == "playing", range(20)):
        if session.game.active:
            session.act(ME, [0], step=len(kuhn.actions))
        clock.now += OTHERS_SECONDS
        session.advance(clock.now)
    assert session.phase == "over"
    assert "r.jsonl" in session.snapshot()["error"]
