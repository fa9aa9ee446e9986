"""What the page about Python shows runs, block after block."""

import dataclasses
import re
from pathlib import Path

import pytest

from shoal.training.callbacks import Callback, Event

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.slow
def test_every_block_runs(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install matplotlib")
    pytest.importorskip("pettingzoo", reason="PettingZoo is not installed: pip install pettingzoo")
    monkeypatch.chdir(tmp_path)
    names = {}
    for number, code in enumerate(BLOCKS):
        exec(compile(code, f"python.md, block {number}", "exec"), names)
    assert len(BLOCKS) == 16
    assert (tmp_path / "episode.html").stat().st_size > 10_000
    assert (tmp_path / "runs" / "short" / "metrics.csv").exists()
    assert names["run"].experiment.env == "mpe/simple_spread"
    assert "mean return (95 % interval): agent" in capsys.readouterr().out


def test_every_hook_and_all_that_events_have_is_listed():
    rows = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    hooks = {name for name in vars(Callback) if name.startswith("on_")}
    known = {field.name for field in dataclasses.fields(Event)} | {"mean_return"}
    assert hooks | known == listed
