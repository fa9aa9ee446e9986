"""Pages of the site: what they show runs, their links lead somewhere, and none is long."""

import pytest

from shoal.cli.app import find_command

from .pages import (
    FOLDERS,
    MOST_WORDS,
    MOST_WORDS_WITH_A_PICTURE,
    PAGES,
    ROOT,
    anchors,
    blocks,
    known,
    links,
    read,
    run,
    shrink_command,
)

QUICK = (
    "concepts/one-program.md",
    "concepts/population-is-an-axis.md",
    "concepts/who-is-there.md",
    "concepts/ends-and-truncation.md",
    "reference/errors.md",
    "reference/run-folder.md",
)
"""Pages that run in a few seconds, so that `make test` runs them whole; `make test-all` runs all."""


def test_pages_are_found():
    assert {page.split("/")[0] for page in PAGES} <= set(FOLDERS)
    assert set(QUICK) <= set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_short_and_its_code_can_be_read(page):
    text = read(page)
    assert "<svg" not in text, "GitHub shows no drawings in a page's own text: make it a file in docs/images"
    assert len(text.split()) <= (MOST_WORDS_WITH_A_PICTURE if "<img" in text else MOST_WORDS)
    prose = [line for line in text.splitlines() if line[:1] != "|"]
    assert max(map(len, prose)) <= 130
    for block in blocks(text):
        if block.kind == "python":
            compile(block.text, page, "exec")
        for words in block.commands:
            assert known(words), words
            find_command(words)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    place = (ROOT / "docs" / page).parent
    for target in links(read(page)):
        path, _, anchor = target.partition("#")
        file = place / path if path else ROOT / "docs" / page
        assert file.exists(), target
        assert not anchor or file.suffix != ".md" or anchor in anchors(file.read_text()), target


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=() if page in QUICK else pytest.mark.slow) for page in PAGES if blocks(read(page))],
)
@pytest.mark.filterwarnings("default")  # of the libraries that some pages use
def test_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # others test the pictures, and they take long
    monkeypatch.setattr("shoal.cli.run_results.report_pictures", lambda *args: {})
    run(page)


def test_commands_are_made_small():
    assert shrink_command(["train", "demo"])[2:] == [
        "--total-env-steps", "2048", "--num-envs", "16", "--num-steps", "8",
    ]  # fmt: skip
    assert shrink_command(["eval", "runs/a", "--episodes", "1k"]) == ["eval", "runs/a", "--episodes", "16"]
