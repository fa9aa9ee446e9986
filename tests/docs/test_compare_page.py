"""What the page about comparisons shows is what the commands print, run after run; its Python runs too."""

import importlib.util
import re

import pytest

from shoal.cli import main
from shoal.core.errors import ShoalError
from shoal.training.comparison import compare

from .guides import ROOT, Guide, parse_command

GUIDE = Guide("compare.md")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Run folders as the page has them, made from kept results."""
    location = importlib.util.spec_from_file_location("build_compare", ROOT / "docs" / "build_compare.py")
    module = importlib.util.module_from_spec(location)
    location.loader.exec_module(module)
    place = tmp_path_factory.mktemp("compared")
    module.make_runs(place / "runs")
    return place


@pytest.mark.parametrize("words", GUIDE.commands, ids=" ".join)
def test_every_command_runs(words, folder, monkeypatch, capsys):
    if words[0] != "compare":
        parse_command(words)
        return
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install matplotlib")
    monkeypatch.chdir(folder)
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "note: " not in out
    written = folder / words[words.index("--out") + 1] if "--out" in words else None
    if written and written.is_dir():
        listed = {name for row in GUIDE.table("| file |") for name in re.findall(r"\w+\.\w+", row)}
        files = {path.name for path in written.iterdir()}
        assert listed <= files
        assert {name.partition(".")[0] for name in files} == {name.partition(".")[0] for name in listed}
    elif written:
        assert written.stat().st_size > 100


def test_the_table_that_is_shown(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    main(["compare", "runs/ippo", "runs/mappo", "runs/qmix", "runs/vdn", "--baseline", "ppo"])
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    block = re.search(r"--baseline ppo\n(.*?)```", GUIDE.text, re.DOTALL)[1]
    assert block.splitlines() == printed


def test_the_python_runs(folder, monkeypatch):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install matplotlib")
    monkeypatch.chdir(folder)
    (block,) = GUIDE.blocks
    names = {}
    GUIDE.run(names, block)
    assert names["comparison"].final["qmix"].seeds == 5
    assert names["axes"].get_xlabel() == "final return"
    assert (folder / "curves.pdf").read_bytes().startswith(b"%PDF")
    assert r"\toprule" in names["text"]


def test_shorter_runs_are_refused(folder):
    with pytest.raises(ShoalError, match="cannot be judged at 20,000,000"):
        compare([folder / "runs" / "mappo"], at=20_000_000)
