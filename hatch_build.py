"""Makes the README that is published: links and pictures lead to the repository, as an index has no files beside it.

Its BibTeX entry has the address, too.

The address is `project.urls.Repository` of `pyproject.toml`, the one setting; hatchling calls this when it builds.
"""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = r"(?!https?:|#)([^)\s\"]+)"
LINK = re.compile(rf"(?<!!)(\]\(){RELATIVE}")
ENTRY = re.compile(r"^(@software\{.*?)^\}$", re.DOTALL | re.MULTILINE)
PICTURE = re.compile(rf"(!\[[^\]]*\]\(|\b(?:src|srcset)=\"){RELATIVE}")


class PublishedReadme(MetadataHookInterface):
    """Sets `readme`, which `pyproject.toml` names as dynamic."""

    def update(self, metadata: dict) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        readme = lead_to(text, metadata["urls"]["Repository"])
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}


def lead_to(text: str, repository: str) -> str:
    """A README with absolute links in place of relative ones, outside of its blocks of code."""
    parts = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    for i in range(0, len(parts), 2):
        shown = PICTURE.sub(rf"\1{repository}/raw/main/\2", parts[i])
        parts[i] = LINK.sub(rf"\1{repository}/blob/main/\2", shown)
    return ENTRY.sub(rf"\1  url     = {{{repository}}},\n}}", "".join(parts))
