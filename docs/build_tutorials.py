"""Executes the tutorials: the cells of docs/tutorials/NAME.md become NAME.ipynb, with what they print and draw.

python docs/build_tutorials.py [NAME...] [--into FOLDER] [--text]

A tutorial is Markdown in MyST's form: code stands in ```{code-cell} blocks, everything else is text. Each is executed
from top to bottom in a fresh process and a fresh folder. As in Jupyter, the value of a cell's last line is shown. What
depends on the day or the machine is kept out: progress, paths, times. A warning is an error, as readers would see it.
"""

import argparse
import ast
import base64
import contextlib
import io
import json
import re
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "tutorials"
MOST_BYTES = 60_000
"""The largest picture."""
CELL = re.compile(
    r"^```\{code-cell\}\n(?::tags: \[(?P<tags>[\w, -]+)\]\n+)?(?P<code>.*?)^```$\n?", re.DOTALL | re.MULTILINE
)
KERNEL = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
          "language_info": {"name": "python"}}  # fmt: skip


class CellError(Exception):
    """A cell that failed, with its traceback."""


def tutorials() -> list[str]:
    """The names of all tutorials; the page that lists them is none."""
    return sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "index")


def read_cells(text: str) -> list[dict[str, Any]]:
    """The cells of a tutorial as a notebook has them, without outputs."""
    cells, end = [], 0
    for found in CELL.finditer(text):
        cells += _text_cell(text[end : found.start()])
        tags = [tag.strip() for tag in (found["tags"] or "").split(",") if tag.strip()]
        metadata = {"tags": tags} if tags else {}
        cells.append({"cell_type": "code", "execution_count": None, "metadata": metadata, "outputs": [],
                      "source": _lines(found["code"].strip("\n"))})  # fmt: skip
        end = found.end()
    cells += _text_cell(text[end:])
    return [{"id": f"cell-{number}", **cell} for number, cell in enumerate(cells)]


def _text_cell(text: str) -> list[dict[str, Any]]:
    return [{"cell_type": "markdown", "metadata": {}, "source": _lines(text.strip("\n"))}] if text.strip() else []


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def execute(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cells with their outputs, executed here and now in a new folder. Raises CellError."""
    names: dict[str, Any] = {"__name__": "__main__"}
    count, done = 0, []
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for cell in cells:
            if cell["cell_type"] == "code":
                count += 1
                outputs = run_cell("".join(cell["source"]), names, count)
                cell = cell | {"execution_count": count, "outputs": outputs}
            done.append(cell)
    return done


def run_cell(code: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """What a cell prints, and the value of its last line."""
    file, printed, aside = f"<cell {count}>", io.StringIO(), io.StringIO()
    tree = ast.parse(code, file)
    last = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
    try:
        aside_too = contextlib.redirect_stderr(aside)
        with contextlib.redirect_stdout(printed), aside_too, warnings.catch_warnings(record=True) as seen:
            exec(compile(tree, file, "exec"), names)
            value = eval(compile(last, file, "eval"), names) if last else None
        if seen:
            raise CellError(f"it warns: {seen[0].category.__name__}: {seen[0].message}")
    except Exception as error:
        raise CellError(f"{code}\n{aside.getvalue()[-2000:]}{traceback.format_exc()}") from error
    outputs = []
    if text := printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": _lines(text)})
    outputs += [
        {"data": as_picture(picture), "metadata": {}, "output_type": "display_data"} for picture in open_figures()
    ]
    if value is not None and not code.rstrip().endswith(";"):
        shown = {"data": shown_as(value), "execution_count": count, "metadata": {}, "output_type": "execute_result"}
        outputs.append(shown)
    return outputs


def shown_as(value: Any) -> dict[str, Any]:
    """A value in the forms in which Jupyter shows it."""
    if picture := getattr(value, "_repr_png_", lambda: None)():
        return as_picture(picture)
    if page := getattr(value, "_repr_html_", lambda: None)():
        return {"text/plain": _lines(repr(value)), "text/html": _lines(page)}
    return {"text/plain": _lines(repr(value))}


def as_picture(picture: bytes) -> dict[str, Any]:
    """A picture with at most 256 colours, which is a third of the size."""
    from PIL import Image

    small = io.BytesIO()
    colours = Image.open(io.BytesIO(picture)).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    colours.save(small, "png", optimize=True)
    picture = min(picture, small.getvalue(), key=len)
    if len(picture) > MOST_BYTES:
        raise CellError(f"a picture of {len(picture):,} bytes; {MOST_BYTES:,} at most")
    return {"text/plain": ["<picture>"], "image/png": base64.b64encode(picture).decode() + "\n"}


def open_figures() -> Iterator[bytes]:
    """The figures of pyplot that a cell has drawn, which are closed, as Jupyter does."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    for number in pyplot.get_fignums() if pyplot else ():
        image = io.BytesIO()
        pyplot.figure(number).savefig(image, format="png", bbox_inches="tight")
        pyplot.close(number)
        yield image.getvalue()


def make_notebook(text: str) -> str:
    """The notebook of a tutorial, executed in a process of its own. Raises CellError."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cells.json"
        file.write_text(json.dumps(read_cells(text)))
        line = [sys.executable, __file__, "--cells", str(file)]
        done = subprocess.run(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise CellError(done.stderr)
        cells = json.loads(file.read_text())
    return write_notebook(cells)


def change_text(text: str, before: str) -> str:
    """A notebook with the text of its source and the outputs that it had. Raises CellError if the code has changed."""
    cells, old = read_cells(text), [cell for cell in json.loads(before)["cells"] if cell["cell_type"] == "code"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    if [cell["source"] for cell in code] != [cell["source"] for cell in old]:
        raise CellError("its code has changed: leave out --text")
    for cell, known in zip(code, old, strict=True):
        cell |= {name: known[name] for name in ("execution_count", "outputs")}
    return write_notebook(cells)


def write_notebook(cells: list[dict[str, Any]]) -> str:
    notebook = {"cells": cells, "metadata": KERNEL, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which tutorials; all, if none is named")
    parser.add_argument("--into", type=Path, default=FOLDER, help="where notebooks are written")
    parser.add_argument("--text", action="store_true", help="execute nothing: only the text has changed")
    parser.add_argument("--cells", type=Path, help=argparse.SUPPRESS)  # the process of one tutorial
    options = parser.parse_args(arguments)
    try:
        if options.cells:
            options.cells.write_text(json.dumps(execute(json.loads(options.cells.read_text()))))
            return 0
        for name in options.names or tutorials():
            began = time.monotonic()
            text, before = (FOLDER / f"{name}.md").read_text(), FOLDER / f"{name}.ipynb"
            notebook = change_text(text, before.read_text()) if options.text else make_notebook(text)
            (options.into / f"{name}.ipynb").write_text(notebook)
            print(f"{name}: {time.monotonic() - began:.0f} s, {len(notebook.encode()) / 1000:.0f} kB", flush=True)
    except CellError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
