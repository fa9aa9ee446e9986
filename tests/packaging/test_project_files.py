"""Files that describe the project: they can be parsed, agree about the version, and lead to files that exist."""

import re
import runpy
import tomllib
from pathlib import Path

import pytest

from shoal.core.version import VERSION
from tests.docs.pages import links

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install pyyaml")
ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGES = [
    "SECURITY.md",
    "CODE_OF_CONDUCT.md",
    "RELEASING.md",
    ".github/pull_request_template.md",
    *(f"docs/project/{name}.md" for name in ("roadmap", "versions", "security", "citing")),
]
KINDS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}


def test_the_citation():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited.keys() >= {"cff-version", "message", "title", "authors"}  # what the format requires
    assert cited["cff-version"] == "1.2.0"
    assert cited["version"] == VERSION
    assert cited["license"] == PROJECT["license"]
    assert cited["authors"] == PROJECT["authors"]
    shown = (ROOT / "docs/project/citing.md").read_text()
    assert re.search(r"version = \{(.*)\}", shown)[1] == VERSION
    assert cited["title"] in shown


@pytest.mark.parametrize("name", ["bug", "feature"])
def test_issue_forms(name):
    form = yaml.safe_load((ROOT / f".github/ISSUE_TEMPLATE/{name}.yml").read_text())
    assert form.keys() >= {"name", "description", "body"}
    assert {field["type"] for field in form["body"]} <= KINDS
    asked = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in asked}) == len(asked) >= 2
    assert all(field["attributes"]["label"] for field in asked)
    assert any(field.get("validations", {}).get("required") for field in asked)


@pytest.mark.parametrize("page", PAGES)
def test_links_and_files_that_are_named_exist(page):
    text = (ROOT / page).read_text()
    for target in links(text):
        assert ((ROOT / page).parent / target.partition("#")[0]).exists(), target
    for name in re.findall(r"`((?:src|tests|deploy|docs)/[\w./-]+)`", text):
        assert (ROOT / name).exists(), name


def test_the_address_stands_in_one_place():
    (address,) = PROJECT["urls"].values()
    files = [ROOT / page for page in PAGES] + [ROOT / "CITATION.cff", *(ROOT / ".github").rglob("*.yml")]
    assert not [file for file in files if address in file.read_text()]


def test_bibtex_has_the_address_where_it_is_published():
    """In the repository it has none: there, it would be a second place."""
    pytest.importorskip("hatchling", reason="hatchling is not installed: pip install hatchling")
    (address,) = PROJECT["urls"].values()
    with_address = runpy.run_path(str(ROOT / "docs/_ext/repository.py"))["with_address"]
    lead_to = runpy.run_path(str(ROOT / "hatch_build.py"))["lead_to"]
    for publish, page in ((lead_to, "README.md"), (with_address, "docs/project/citing.md")):
        text = publish((ROOT / page).read_text(), address)
        entry = text.partition("@software{")[2].partition("\n}")[0].splitlines()
        assert entry[-1] == f"  url     = {{{address}}},"
        assert entry[-2].startswith("  version = ")
