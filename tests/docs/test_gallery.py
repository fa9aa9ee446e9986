"""The buttons above the table of all environments, in a real browser."""

import re

from tests.chromium import Browser, find_browser

from .pages import ROOT


def write_page(folder):
    """The table as the site shows it, with its script."""
    text = (ROOT / "docs/worlds/README.md").read_text().split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    heads = "".join(f"<th>{cell}</th>" for cell in rows[0])
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows[2:])
    body = re.sub(r"<img[^>]*>", "", body)
    script = (ROOT / "docs/_static/gallery.js").read_text()
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    page = folder / "gallery.html"
    page.write_text(f"<script>{script}; window.shoal = true</script>{table}")
    return page


def test_buttons_show_some_environments(tmp_path):
    page = write_page(tmp_path)
    browser = Browser(find_browser(), str(tmp_path / "profile"))
    shown = (
        "[...document.querySelectorAll('tbody tr')].filter((row) => !row.hidden).map((row) => row.cells[1].innerText)"
    )

    def press(value):
        code = f"[...document.querySelectorAll('button')].find((b) => b.textContent === '{value}').click()"
        browser.js(code)
        return " ".join(browser.js(shown))

    try:
        browser.open(page)
        labels = browser.js(
            "[...document.querySelectorAll('.gallery-filter')].map((bar) => bar.getAttribute('aria-label'))"
        )
        assert labels == ["kind", "agents", "action"]
        order = browser.js("[...document.querySelectorAll('[aria-label=agents] button')].map((b) => b.textContent)")
        assert order == ["all", "1 agent", "2 agents", "3 to 9 agents", "10 or more agents"]
        assert len(browser.js(shown)) == 31
        cooperative = press("cooperative")
        assert "mpe/simple_spread" in cooperative
        assert "cards/kuhn" not in cooperative
        single = press("1 agent")
        assert "control/pendulum" in single
        assert "mpe/simple_spread" not in single
        continuous = press("continuous actions")
        assert "control/pendulum" in continuous
        assert "control/cartpole" not in continuous
        assert "tag/continuous" in press("all") + press("10 or more agents") + press("discrete actions")
    finally:
        browser.close()
