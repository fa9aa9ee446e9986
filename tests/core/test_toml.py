"""What the writer of TOML writes is what the standard library reads."""

import math
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.toml import Item, write_key, write_toml, write_value

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
PLAIN = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), TEXT)
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(TEXT, VALUES, max_size=5), TEXT)
def test_values_come_back(data, comment):
    text = write_toml([Item(name, value, comment) for name, value in data.items()], [comment, "second"])
    assert tomllib.loads(text) == data
    assert all(letter.isprintable() or letter == "\n" for letter in text)


def test_tables_come_after_values():
    items = [
        Item("a", [Item("x", 1), Item("deep", [Item("y", 2.5, "what\nit is")], "a table")]),
        Item("b", True, "a switch"),
        Item("c.d", [Item("only", [Item("z", [])])]),
        Item("none", None, "may be set"),
    ]
    text = write_toml(items, ["head"])
    assert tomllib.loads(text) == {"a": {"x": 1, "deep": {"y": 2.5}}, "b": True, "c.d": {"only": {"z": []}}}
    assert text.startswith("# head\n\nb = true  # a switch\n# none is not set: may be set\n\n[a]\nx = 1\n")
    assert '["c.d".only]' in text
    assert "y = 2.5  # what it is" in text


@pytest.mark.parametrize("value", [math.inf, -math.inf, 1e-05, 1e22, 5.0, -0.0, 2**62, 0.1])
def test_numbers(value):
    read = tomllib.loads(f"x = {write_value(value)}")["x"]
    assert (read, type(read), math.copysign(1, read)) == (value, type(value), math.copysign(1, value))


def test_what_it_cannot_express():
    assert math.isnan(tomllib.loads(f"x = {write_value(math.nan)}")["x"])
    assert (write_key("num_envs-2"), write_key("a b"), write_key("")) == ("num_envs-2", '"a b"', '""')
    for value in (None, [None], "\ud800", object()):
        with pytest.raises(ValueError, match=r"TOML has no|half a character"):
            write_value(value)
    with pytest.raises(ValueError, match="x: TOML has no null"):
        write_toml([Item("x", [1, None])])
