"""How far a call is, as a notebook shows it: one line, written again and again."""

import sys

from shoal.api.progress import show_progress
from shoal.presets import get
from shoal.training.callbacks import Progress


def test_a_notebook_shows_a_bar_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("shoal.api.progress._OneLine.seconds", 0.0)
    with show_progress(get("mpe/simple_spread"), 1) as listener:
        for update in (1, 5, 10):
            line = {"update": update, "return/agent": -3.0 * update}
            listener(Progress(update, 10, 100 * update, 1.0, 0.0, line))
    shown = capsys.readouterr()
    assert shown.err == ""
    first, *others, last = shown.out.split("\r")[1:]
    assert first.startswith("██░░░░░░░░░░░░░░░░░░ update 1/10 | 100 env steps | return agent -3.00")
    assert last.startswith("████████████████████ update 10/10 | 1k env steps | return agent -30.00")
    assert len(others) == 1
    assert shown.out.count("\n") == 1, "after the last update"
    assert last.rstrip("\n") == last[:-1]


def test_elsewhere_lines_go_beside_what_a_program_prints(capsys):
    assert not sys.stderr.isatty()
    with show_progress(get("mpe/simple_spread"), 1) as listener:
        listener(Progress(10, 10, 1000, 1.0, 0.0))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("update 10/10 | 1k env steps")
