"""Links that work on GitHub work on the site: pages are borrowed from the repository's root, files are downloads.

A page named in `BORROWED` has one line in this folder, which links to a file of the root; the site shows that file in
its place. Links from any page to a borrowed file lead to that page. Other files of the repository are linked to
`project.urls.Repository` of `pyproject.toml` if that is set; otherwise files are offered as downloads, and folders,
which cannot be, lead to the page about benchmarks. BibTeX entries get that address as their `url`. Notebooks offer
themselves as downloads, too. Pages that play an episode of the zoo are copied into the site.
"""

import json
import os
import re
import shutil
import tomllib
from pathlib import Path

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
BORROWED = {
    "project/changelog": "CHANGELOG.md",
    "project/contributing": "CONTRIBUTING.md",
    "project/security": "SECURITY.md",
    "benchmarks/algorithms": "benchmarks/results/algorithms/table.md",
}
INSTEAD = {"README.md": "index.md"}
REPLAYS = sorted((ROOT / "zoo").rglob("replay.html"))
LINK = re.compile(r"(!?\[(?:[^\]\[]|\[[^\]]*\])*\]\()([^)\s#]+)(#[^)\s]*)?(\))")
ENTRY = re.compile(r"^(@software\{.*?)^\}$", re.DOTALL | re.MULTILINE)
FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)


def repository_url() -> str | None:
    """The address of the repository, if it has one."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("urls", {})
    return urls.get("Repository")


def rewrite_links(text: str, base: Path, page: Path, url: str | None) -> str:
    """The text of a file in the folder `base`, with links as the site needs them on `page`."""

    def rewrite(link: re.Match) -> str:
        before, target, anchor, after = link[1], link[2], link[3] or "", link[4]
        if re.match(r"[a-z]+:", target):
            return link[0]
        found = Path(os.path.normpath(base / target))
        homes = {ROOT / source: DOCS / f"{name}.md" for name, source in BORROWED.items()}
        homes |= {ROOT / source: DOCS / name for source, name in INSTEAD.items()}
        found = homes.get(found, found)
        if not found.is_relative_to(DOCS):
            inside = found.relative_to(ROOT)
            if found in REPLAYS:
                return f'<a href="{os.path.relpath(DOCS / inside, page.parent)}">{before[1:-2]}</a>'
            if url and not before.startswith("!"):  # pictures come along
                return f"{before}{url}/{'tree' if found.is_dir() else 'blob'}/main/{inside}{after}"
            if found.is_dir():
                found = DOCS / "benchmarks" / "index.md"
        return f"{before}{os.path.relpath(found, page.parent)}{anchor}{after}"

    parts, end = [], 0
    for fence in FENCE.finditer(text):  # code is left as it is
        parts += [LINK.sub(rewrite, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, LINK.sub(rewrite, text[end:])])


def with_address(text: str, url: str | None) -> str:
    """The text with the address of the repository in its BibTeX entries."""
    return ENTRY.sub(rf"\1  url     = {{{url}}},\n}}", text) if url else text


def read_source(app, name: str, source: list[str]) -> None:
    """Called by Sphinx with every page before it is parsed."""
    page = Path(app.env.doc2path(name))
    if page.suffix == ".ipynb":
        source[0] = rewrite_notebook(source[0], page, app.config.repository_url)
    elif page.exists():
        borrowed = ROOT / BORROWED[name] if name in BORROWED else page
        text = borrowed.read_text() if borrowed.exists() else page.read_text()
        if not text.startswith("# "):
            text = page.read_text().partition("\n")[0] + "\n\n" + text  # a table alone: the page's own title
        url = app.config.repository_url
        source[0] = with_address(rewrite_links(text, borrowed.parent, page, url), url)


def rewrite_notebook(text: str, page: Path, url: str | None) -> str:
    """A notebook with links as the site needs them, and one to its own file below the title."""
    notebook = json.loads(text)
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "markdown":
            written = rewrite_links("".join(cell["source"]), page.parent, page, url)
            if number == 0:
                title, _, rest = written.partition("\n")
                written = f"{title}\n\n{{download}}`This page as a notebook <{page.name}>`\n{rest}"
            cell["source"] = written
    return json.dumps(notebook)


def note_dependency(app, env, names) -> list[str]:
    """Pages that show files of the root are read again each time: Sphinx does not watch those files."""
    return [name for name in BORROWED if name in env.found_docs]


def copy_replays(app, error) -> None:
    """Called by Sphinx at the end: the pages of the zoo that play an episode, at the places that links lead to."""
    if error is None and app.builder.format == "html":
        for replay in REPLAYS:
            target = Path(app.outdir) / replay.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(replay, target)


def setup(app) -> dict:
    app.add_config_value("repository_url", repository_url(), "env")
    app.connect("source-read", read_source)
    app.connect("build-finished", copy_replays)
    app.connect("env-get-outdated", lambda app, env, added, changed, removed: note_dependency(app, env, changed))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
