import dataclasses
import errno
import io

import pytest
from rich.console import Console

from shoal.api.progress import Meter, returns, showing, sparkline, summary
from shoal.cli.terminal import format_count, format_duration, format_size
from shoal.training.callbacks import Progress


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (950, "950"), (1234, "1.23k"), (999_900, "1000k"), (4_560_000, "4.56M"), (2e9, "2G")]
)
def test_counts_are_short(number, text):
    assert format_count(number) == text


def test_durations_and_sizes():
    assert [format_duration(s) for s in (0, 42.4, 723, 10875)] == ["0:00", "0:42", "12:03", "3:01:15"]
    assert [format_size(b) for b in (12e6, 3.44e9)] == ["12 MB", "3.4 GB"]


def test_the_rate_is_that_of_the_last_seconds_and_counts_all_seeds():
    meter = Meter(seeds=2, fresh=True)
    slow = meter.read(Progress(1, 10, 100, 2.0, 0.0))
    assert slow.env_rate == pytest.approx(100)
    assert slow.eta == pytest.approx(18)
    for second in range(3, 40):
        fast = meter.read(Progress(second, 100, 1000 * second, float(second), 0.0))
    assert fast.env_rate == pytest.approx(2000)
    assert fast.eta == pytest.approx(100 - 39)


def test_a_resumed_run_does_not_count_what_was_done_before():
    meter = Meter(seeds=1, fresh=False)
    assert meter.read(Progress(50, 100, 5000, 5.0, 0.0)).env_rate is None
    assert meter.read(Progress(51, 100, 5100, 7.0, 0.0)).env_rate == pytest.approx(50)


def test_a_rate_is_shown_once_it_is_known():
    """Not after a first update whose time is not known yet (a cluster's is, after the second), nor of a short call."""
    meter = Meter(seeds=1, fresh=True)
    assert meter.read(Progress(1, 100, 1000, 1e-3, 0.0)) == (None, None)
    assert meter.read(Progress(2, 100, 2000, 1.5, 0.0)) == (None, None)
    assert meter.read(Progress(3, 100, 3000, 3.0, 0.0)).env_rate == pytest.approx(1000)


def test_steps_of_warming_up_say_nothing_of_those_that_learn():
    meter = Meter(seeds=1, fresh=True, warm_up=10_000)
    assert meter.read(Progress(9, 100, 9000, 4.0, 0.0)) == (None, None)
    assert meter.read(Progress(10, 100, 10_000, 4.5, 0.0)) == (None, None)
    known = meter.read(Progress(12, 100, 12_000, 8.5, 0.0))
    assert known.env_rate == pytest.approx(500)
    assert known.eta == pytest.approx(88_000 / 500)


def test_returns_are_means_over_seeds_that_have_ended_an_episode():
    line = {"return/a": [1.0, None, 3.0], "return/b": None, "return": 9.0, "length": 4.0}
    assert returns(line) == {"return a": 2.0}
    assert summary(line) == {"return a": "2.00", "episode length": "4.0"}
    assert summary(None) == {}


def test_sparkline_rises_with_its_values():
    assert sparkline([0.0, 1.0]) == "▁█"
    assert sparkline([3.0]) == ""
    assert sparkline([2.0, 2.0, 2.0]) == "▁▁▁"
    assert len(sparkline([float(i) for i in range(500)], width=30)) == 30


def progress(update):
    line = {"return/a": -3.5 + update, "length": 25.0}
    return Progress(update, 4, update * 100, 2.0 * update, 1.0, line)


def test_lines_without_an_episode_show_the_newest_returns():
    out = Console(file=io.StringIO(), width=160)
    with showing(out, "a world", seeds=1, agents=3) as listener:
        listener(progress(3))
        listener(dataclasses.replace(progress(4), line={"return/a": None, "length": None}))
    assert "return a -0.50 | episode length 25.0" in out.file.getvalue().splitlines()[-1]


def test_plain_lines_have_no_control_characters():
    out = Console(file=io.StringIO(), width=160)
    with showing(out, "a world", seeds=1, agents=3) as listener:
        for update in range(1, 5):
            listener(progress(update))
    text = out.file.getvalue()
    first, last = text.splitlines()  # those between came too soon
    assert text.isascii()
    assert text.replace("\n", "").isprintable()
    assert first.startswith(
        "update 1/4 | 100 env steps | 50 env steps/s, 150 agent steps/s | 0:06 left | return a -2.50"
    )
    assert last.startswith("update 4/4 | 400 env steps")
    assert "left" not in last


def evaluated(update, *returns):
    line = {"update": update, "return/a": 1.0, "eval/return/a": returns[0], "eval/return/b": returns[1]}
    return Progress(update, 40, update * 100, 2.0 * update, 1.0, line | {"eval/return": 0.0, "eval/length": 7.0})


def test_every_evaluation_is_shown_once():
    out = Console(file=io.StringIO(), width=160)
    with showing(out, "a world", seeds=2, agents=3) as listener:
        for progress in (evaluated(1, -1.0, 2.0), evaluated(2, [-3.0, -4.0], [5.0, None])):
            listener(progress)
            listener(dataclasses.replace(progress, update=progress.update + 10))  # without a newer line
    told = [line for line in out.file.getvalue().splitlines() if "evaluation" in line]
    assert told == [
        "evaluation after update 1: return a -1.00 | return b 2.00 | episode length 7.0",
        "evaluation after update 2: return a -3.50 | return b 5.00 | episode length 7.0",
    ]
    out = Console(file=io.StringIO(), width=100, force_terminal=True)
    with showing(out, "a world", seeds=1, agents=3) as listener:
        listener(evaluated(3, 1.25, 0.0))
        listener(dataclasses.replace(progress, update=5))
        drawn = Console(file=io.StringIO(), width=100)
        drawn.print(listener.render())
    assert "after update 3: return a 1.25 | return b 0.00" in drawn.file.getvalue()


def test_steps_of_each_and_rates_of_all_trainings_are_told_apart():
    out = Console(file=io.StringIO(), width=200)
    with showing(out, "a world", seeds=4, agents=3) as listener:
        listener(progress(1))
    assert "| 100 env steps in each of 4 trainings | 200 env steps/s, 600 agent steps/s in all |" in out.file.getvalue()


def test_a_closed_terminal_does_not_keep_a_run_from_saving():
    class Closed(io.StringIO):
        def write(self, text):
            raise OSError(errno.EIO, "Input/output error")

    with showing(Console(file=Closed(), width=160), "a world", seeds=1, agents=3) as listener:
        listener(progress(1))


def test_the_live_table_shows_everything_and_leaves_nothing_behind():
    out = Console(file=io.StringIO(), width=100, force_terminal=True)
    with showing(out, "a world", seeds=1, agents=3) as listener:
        listener(progress(1))
        listener(progress(2))
        drawn = Console(file=io.StringIO(), width=100)
        drawn.print(listener.render())
    text = drawn.file.getvalue()
    for words in ("a world", "2 of 4", "env steps/s", "agent steps/s", "left", "-1.50", "25.0", "memory", "▁█"):
        assert words in text
