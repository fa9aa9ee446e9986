"""Pages of run folders, shown without running anything that lies there: the data is theirs, the program is ours.

A run folder may come from anyone, and so may its `replay.html`. Only the JSON in it is taken; it is put into the page
that ships with Shoal, together with a small script through which the page around it can play two replays in step. The
policy names the hashes of these two scripts, so that nothing else in the page can run, and the page has no origin: it
cannot ask this server for anything.
"""

import base64
import functools
import hashlib
import html
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from shoal.core.errors import RunError
from shoal.core.files import parse_json, read_file

MOST_BYTES = 1 << 26
"""The largest page that is read."""
_DATA = re.compile(rb'<script [^>]*\bid="data"[^>]*>(.*?)</script>', re.S)
_SCRIPT = re.compile(r"<script>(.*?)</script>", re.S)
_EXPORT = re.compile(r"^export ", re.M)
_META_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>', re.S)
_INCLUDE = re.compile(r"^@include ([\w.]+)@\n", re.M)
"""Another file of the templates, as `shoal.viz.replay` puts it in: importing that would import JAX."""
_TEMPLATES = Path(__file__).parent.parent / "viz"
_REMOTE = Path(__file__).parent / "static" / "remote.js"


class Shown(NamedTuple):
    """A page, and the policy that goes with it."""

    content: str
    policy: str


def shown_page(path: Path) -> Shown:
    """The page of a run folder, made anew around its data."""
    found = _DATA.search(read_file(path, MOST_BYTES))
    if found is None:
        raise RunError(f"{path.name} is not a page that Shoal wrote: it has no data. Write it anew with `shoal watch`.")
    try:
        data = parse_json(found[1], finite=True)
    except ValueError as error:
        raise RunError(f"{path.name} is damaged: {error}. Write it anew with `shoal watch`.") from error
    if not isinstance(data, dict):
        raise RunError(f"{path.name} is damaged: its data is not an object. Write it anew with `shoal watch`.")
    return fill(_template_of(path.name, data), data)


def fill(name: str, data: dict[str, Any]) -> Shown:
    """A template of `shoal.viz` with this data."""
    template, policy = _template(name)
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for mark, code in (("<", r"\u003c"), (">", r"\u003e"), ("&", r"\u0026")):  # no text can end the script element
        text = text.replace(mark, code)
    slots = {"@title@": html.escape(str(data.get("title", ""))), "@data@": text}
    return Shown(re.sub("|".join(slots), lambda slot: slots[slot[0]], template), policy)


def _template_of(file: str, data: dict[str, Any]) -> str:
    if file == "population.html":
        return "population.html"
    return "film.html" if "frames" in data else "replay.html"


@functools.cache
def _template(name: str) -> tuple[str, str]:
    """A template with the remote control in it, and the policy that admits its two scripts."""
    text = _INCLUDE.sub(lambda found: _EXPORT.sub("", _read(found[1])), _read(name))
    own, remote = _SCRIPT.search(text), _REMOTE.read_text("utf-8")
    assert own is not None
    hashes = " ".join(f"'sha256-{digest(script)}'" for script in (own[1], remote))
    text = _META_POLICY.sub("", text)  # which knows of one script
    text = text.replace("</body>", f"<script>{remote}</script>\n</body>")
    policy = f"sandbox allow-scripts; default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {hashes}"
    return text, policy


def _read(name: str) -> str:
    return (_TEMPLATES / name).read_text("utf-8")


def digest(script: str) -> str:
    """The hash by which a page's policy admits a script."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
