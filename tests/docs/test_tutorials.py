"""The tutorials: notebooks hold what their sources say, their cells run, and what they claim is asserted in them."""

import base64
import importlib.util
import json
import re
from pathlib import Path

import pytest

from .pages import anchors, links

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "tutorials"
QUICK = ()
"""Tutorials that run in a few seconds, so that `make test` runs them; `make test-all` runs all."""
NEEDS = {"pytorch-in-the-loop": "torch"}
MOST_WORDS = 1200
ONE_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="


def load_builder():
    spec = importlib.util.spec_from_file_location("build_tutorials", ROOT / "docs" / "build_tutorials.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


builder = load_builder()
NAMES = builder.tutorials()


def source(name):
    return (FOLDER / f"{name}.md").read_text()


def notebook(name):
    return json.loads((FOLDER / f"{name}.ipynb").read_text())


def without_outputs(cells):
    return [{**cell, "outputs": [], "execution_count": None} if "outputs" in cell else cell for cell in cells]


def pictures(cells):
    outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
    return [base64.b64decode(data["image/png"]) for data in outputs if "image/png" in data]


def test_every_tutorial_has_a_notebook_and_no_notebook_is_left_over():
    assert set(QUICK) <= set(NAMES)
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == NAMES
    shown = re.findall(r"^tutorials/([\w-]+)$", (ROOT / "docs" / "index.md").read_text(), re.MULTILINE)
    assert sorted(shown) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_that_of_its_source(name):
    assert without_outputs(notebook(name)["cells"]) == builder.read_cells(source(name)), (
        f"run python docs/build_tutorials.py {name}"
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_tutorial_is_short_and_has_pictures_that_are_small(name):
    text = re.sub(r"^```.*?^```$", "", source(name), flags=re.DOTALL | re.MULTILINE)
    assert len(text.split()) <= MOST_WORDS
    assert max(map(len, source(name).splitlines())) <= 130
    found = pictures(notebook(name)["cells"])
    assert found
    assert max(map(len, found)) <= builder.MOST_BYTES
    assert "## Where to go next" in text


@pytest.mark.parametrize("name", NAMES)
def test_what_is_claimed_is_asserted_where_readers_of_the_site_need_not_look(name):
    cells = builder.read_cells(source(name))
    hidden = ["".join(cell["source"]) for cell in cells if cell["metadata"].get("tags") == ["remove-cell"]]
    assert any(code.startswith("assert ") or "\nassert " in code for code in hidden)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_the_machine_is_in_a_notebook(name):
    written = (FOLDER / f"{name}.ipynb").read_text()
    assert not re.search(r"/tmp/|/home/|/root/|/work/|object at 0x", written)
    assert [cell["execution_count"] for cell in notebook(name)["cells"] if cell["cell_type"] == "code"] == list(
        range(1, 1 + sum(cell["cell_type"] == "code" for cell in notebook(name)["cells"]))
    )


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name):
    for target in links(source(name)):
        path, _, anchor = target.partition("#")
        file = FOLDER / path
        assert file.is_file(), target
        assert not anchor or anchor in anchors(file.read_text()), target


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in NAMES])
def test_cells_run_from_top_to_bottom(name, monkeypatch):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"{NEEDS[name]} is not installed: pip install {NEEDS[name]}")
    monkeypatch.delenv("XLA_FLAGS", raising=False)  # those of tests compile quickly, and then train slowly
    made = json.loads(builder.make_notebook(source(name)))
    assert len(pictures(made["cells"])) == len(pictures(notebook(name)["cells"]))


def test_cells_are_read_as_they_stand():
    text = "# Title\n\n```python\nnot = a cell\n```\n\n```{code-cell}\n:tags: [remove-cell]\n\na = 1\n```\nafter\n"
    title, code, after = builder.read_cells(text)
    assert "".join(title["source"]) == "# Title\n\n```python\nnot = a cell\n```"
    assert (code["source"], code["metadata"]) == (["a = 1"], {"tags": ["remove-cell"]})
    assert "".join(after["source"]) == "after"


class Picture:
    def _repr_png_(self):
        return base64.b64decode(ONE_PIXEL)


def test_a_cell_shows_what_it_prints_and_its_last_value():
    names = {"Picture": Picture}
    printed, value = builder.run_cell("a = 1\nprint('one')\na + 1", names, 1)
    assert printed == {"name": "stdout", "output_type": "stream", "text": ["one\n"]}
    assert value["data"] == {"text/plain": ["2"]}
    assert builder.run_cell("a + 1;", names, 2) == []
    assert builder.run_cell("a = None\na", names, 3) == []
    (shown,) = builder.run_cell("Picture()", names, 4)
    assert base64.b64decode(shown["data"]["image/png"]).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("code", "said"),
    [("1 / 0", "ZeroDivisionError"), ("import warnings\nwarnings.warn('careful')", "it warns: UserWarning: careful")],
)
@pytest.mark.filterwarnings("default")
def test_a_cell_that_fails_or_warns_is_an_error(code, said):
    with pytest.raises(builder.CellError, match=said):
        builder.run_cell(code, {}, 1)


def test_a_picture_that_is_too_large_is_an_error(monkeypatch):
    monkeypatch.setattr(builder, "MOST_BYTES", 2)
    with pytest.raises(builder.CellError, match=r"a picture of \d+ bytes; 2 at most"):
        builder.run_cell("Picture()", {"Picture": Picture}, 1)


def test_text_is_changed_without_executing_anything():
    source = "old\n\n```{code-cell}\n1\n```\n"
    cells = builder.read_cells(source)
    cells[1] |= {"execution_count": 1, "outputs": [{"kept": True}]}
    before = builder.write_notebook(cells)
    text, code = json.loads(builder.change_text(source.replace("old", "new"), before))["cells"]
    assert text["source"] == ["new"]
    assert (code["execution_count"], code["outputs"]) == (1, [{"kept": True}])
    with pytest.raises(builder.CellError, match="its code has changed"):
        builder.change_text(source.replace("1", "2"), before)
