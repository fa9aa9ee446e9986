"""Docstrings are written as plain text with `code` between single backquotes; Sphinx reads reStructuredText."""

import re

CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


def plain(app, what, name, thing, options, lines: list[str]) -> None:
    """Turns `code` into literals, and escapes what would be read as markup: stars, trailing underscores."""
    text = "\n".join(lines)
    parts = re.split(r"(`[^`]+`)", text)
    for i, part in enumerate(parts):
        if i % 2:
            parts[i] = "``" + " ".join(part[1:-1].split()) + "``"
        else:
            parts[i] = re.sub(r"(?<=\w)_(?=\W|$)", r"\\_", part.replace("*", r"\*").replace("|", r"\|"))
    lines[:] = "".join(parts).split("\n")


def setup(app) -> dict:
    app.connect("autodoc-process-docstring", plain)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
