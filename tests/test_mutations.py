"""The table of deliberate mistakes stays alive: each edit still fits its place, and is known to be caught."""

import ast
import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def _load():
    spec = importlib.util.spec_from_file_location("mutations", ROOT / "benchmarks" / "mutations.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutations"] = module
    spec.loader.exec_module(module)
    return module


mutations = _load()
EDITS = mutations.edits()


def test_every_edit_fits_exactly_one_place_and_leaves_code():
    for edit in EDITS:
        ast.parse(edit.applied(ROOT))
        for test in edit.tests:
            assert (ROOT / test.split("::")[0]).exists(), f"{edit.name}: there is no {test}"


def test_names_are_distinct_and_there_are_enough():
    assert len({edit.name for edit in EDITS}) == len(EDITS) >= 80


def test_none_survives():
    """By the table that is kept; after a change of an edit: `python benchmarks/mutations.py THAT_FILE --only NAME`."""
    stored = json.loads((ROOT / "benchmarks" / "results" / "mutations.json").read_text())
    caught = {row["name"] for row in stored["edits"] if row["caught_by"]}
    assert {edit.name for edit in EDITS} == caught
    assert stored["survivors"] == []


def test_an_edit_that_no_longer_fits_is_refused(tmp_path):
    edit = mutations.Edit("one", "a.py", "x = 1", "x = 2", ())
    (tmp_path / "a.py").write_text("x = 1\n")
    assert edit.applied(tmp_path) == "x = 2\n"
    for text in ("x = 3\n", "x = 1\nx = 1\n"):
        (tmp_path / "a.py").write_text(text)
        with pytest.raises(ValueError, match=r"'one' must fit one place of a\.py, but fits"):
            edit.applied(tmp_path)
