"""Lists at 80 columns: names stay whole; and without JAX, as the index agrees with the code."""

import json
import subprocess
import sys

import pytest

from shoal.cli import terminal
from shoal.cli.commands import listings
from shoal.cli.index import read_index
from shoal.cli.terminal import Column, list_table

from .conftest import assert_refused

COLUMNS = 80


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setattr(terminal, "PIPE_WIDTH", COLUMNS)


@pytest.mark.parametrize(("command", "kind"), [("envs", "worlds"), ("presets", "presets"), ("algos", "algorithms")])
def test_no_name_is_cut(shoal, narrow, command, kind):
    out = shoal(command).out
    words = {word for line in out.splitlines() for word in line.split()[:1]}
    assert set(read_index()[kind]) <= words
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= COLUMNS


def test_presets_stand_below_their_world(shoal, narrow):
    lines = [line.rstrip() for line in shoal("presets", "--env", "pong").out.splitlines()]
    worlds = [line for line in lines if line in ("pong", "pong/image")]
    assert worlds == ["pong"]
    below = [line.split()[0] for line in lines[lines.index("pong") + 1 :] if line.startswith("  ") and "/" in line[:30]]
    assert {"appo/pong", "dqn/pong"} <= set(below)


def test_filters(shoal):
    def names(*args):
        (found, *_) = shoal(*args, "--json").json.values()
        return [entry.get("name", entry.get("id")) for entry in found]

    index = read_index()
    kinds = {id: entry["kind"] for id, entry in index["worlds"].items()}
    assert set(names("envs", "mpe", "--kind", "cooperative")) == {
        id for id, kind in kinds.items() if kind == "cooperative" and id.startswith("mpe")
    }
    assert names("presets", "--env", "simple_spread", "--algo", "qmix") == [
        "pqn_qmix/simple_spread",
        "qmix/simple_spread",
    ]
    assert "appo/pong" in names("presets", "--algo", "appo")
    assert {"dqn", "pqn"}.isdisjoint(names("algos", "--actions", "continuous"))
    assert "sac" in names("algos", "--actions", "continuous", "--replay")
    assert "sac" not in names("algos", "--no-replay")
    assert_refused(shoal("presets", "--env", "pong", "--algo", "qmix"), "no preset fits --env pong --algo qmix")
    assert_refused(shoal("envs", "tag", "--kind", "cooperative"), "no world fits --kind cooperative", "'tag'")


def test_a_list_leaves_out_and_wraps_columns_before_it_cuts_a_name():
    columns = (Column("name"), Column("text", rank=1, least=10), Column("number", rank=2))
    rows = [("a" * 30, "some words that go on", "12345")]
    assert [column.header for column in list_table(columns, rows, 80).columns] == ["name", "text", "number"]
    assert [column.header for column in list_table(columns, rows, 45).columns] == ["name", "text"]
    assert [column.header for column in list_table(columns, rows, 31).columns] == ["name"]


def test_listing_and_completing_need_no_jax():
    code = (
        "import sys, io, contextlib\n"
        "from shoal.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    for line in ('--help', 'envs', 'envs --json', 'presets tag', 'algos', 'envs --help',\n"
        "                 'completion bash', '--complete train mpe/simple_tag --env.'):\n"
        "        assert main(line.split()) == 0\n"
        "print([name for name in ('jax', 'numpy', 'flax') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_world_that_was_replaced_is_described_by_its_own_code(shoal, world):
    """Only what the index was made from is taken from it."""
    listed = {entry["id"]: entry for entry in shoal("envs", "tiny", "--import", world, "--json").json["envs"]}
    assert listed["test/tiny"]["groups"]["hunter"]["size"] == 2
    assert "test/tiny" not in read_index()["worlds"]


def test_json_is_that_of_the_code(shoal):
    """In a process that has imported presets, lists come from the code: they say the same as the index."""
    assert "shoal.presets" in sys.modules
    found = {entry["name"]: entry for entry in shoal("presets", "--json").json["presets"]}
    shipped = read_index()["presets"]
    assert {name: found[name] for name in shipped} == shipped
    algorithms = {entry["name"]: entry for entry in shoal("algos", "--json").json["algorithms"]}
    shipped = read_index()["algorithms"]
    assert {name: algorithms[name] for name in shipped} == shipped
    assert json.loads(json.dumps(shipped)) == shipped


def test_shapes_in_few_words():
    assert listings.shapes_text({"": [3, 4]}) == "3x4"
    assert listings.shapes_text({"own": [], "map": [5]}) == "own 1, map 5"
