"""What the pages of the bridges say can be imported is there."""

import ast
import re

from .pages import ROOT

SOURCE = ROOT / "src/shoal/bridges"


def defined(module: str) -> set[str]:
    """The functions and classes of a module of `shoal.bridges`, read and not imported: it may need other packages."""
    tree = ast.parse((SOURCE / f"{module.replace('.', '/')}.py").read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def test_what_leads_out_is_where_the_table_says():
    text = (ROOT / "docs/bridges/ours-in-theirs.md").read_text()
    rows = [line.split("|")[2] for line in text.splitlines() if line.startswith("| ") and "`shoal.bridges" not in line]
    named = [name for cell in rows for name in re.findall(r"`(\w+)\.(\w+)`", cell)]
    assert {module for module, _ in named} == {file.stem for file in (SOURCE / "outgoing").glob("[a-z]*.py")}
    for module, name in named:
        assert name in defined(f"outgoing.{module}"), (module, name)


def test_the_package_names_modules_that_exist():
    text = ast.get_docstring(ast.parse((SOURCE / "__init__.py").read_text())) or ""
    outgoing = text.split("the modules of `outgoing`:")[1].split(".")[0]
    assert set(re.findall(r"`(\w+)`", outgoing)) == {file.stem for file in (SOURCE / "outgoing").glob("[a-z]*.py")}
    for name in ("numpy_policy", "onnx_policy", "js_policy"):
        assert f"`{name}`" in text
        assert (SOURCE / f"{name}.py").exists()
