"""Tags and a note of a run: `notes.json` in its folder, the only file there that is written by looking at runs."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from shoal.core.errors import OptionError, RunError, require
from shoal.core.files import read_json, write_atomically
from shoal.core.schema import check

FILE = "notes.json"
NOTES = {"tags?": [str], "note?": str}
MOST_BYTES = 1 << 20
MOST_TAGS, MOST_TAG_LETTERS, MOST_NOTE_LETTERS = 64, 64, 20_000


def read_notes(folder: Path) -> tuple[tuple[str, ...], str]:
    """The tags and the note of a run; none if there is no such file. Raises `RunError` if it is damaged."""
    path = folder / FILE
    if not os.path.lexists(path):
        return (), ""
    try:
        data = read_json(path, MOST_BYTES)
        check(data, NOTES, "notes")
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error!s:.200}): remove it, and write the notes again") from error
    tags = dict.fromkeys(tag[:MOST_TAG_LETTERS] for tag in data.get("tags", [])[:MOST_TAGS])
    return tuple(tags), data.get("note", "")[:MOST_NOTE_LETTERS]


def write_notes(folder: Path, tags: Sequence[str] | None, note: str | None) -> None:
    """Replaces the tags, the note, or both; None: as before."""
    before = read_notes(folder)
    new_tags = before[0] if tags is None else check_tags(tags)
    new_note = before[1] if note is None else note
    count = len(new_note)
    require(count <= MOST_NOTE_LETTERS, "notes", "note", f"{count:,} letters", f"at most {MOST_NOTE_LETTERS:,} letters")
    content = json.dumps({"tags": list(new_tags), "note": new_note}, indent=2) + "\n"
    try:
        write_atomically(folder / FILE, content)
    except OSError as error:
        raise RunError(f"cannot write {folder / FILE}: {error.strerror or error}") from error


def check_tags(tags: Sequence[str]) -> tuple[str, ...]:
    """The tags, each once; refuses those that could not be typed as one word."""
    if isinstance(tags, str) or not all(isinstance(tag, str) for tag in tags):
        raise OptionError(f"notes: tags must be a list of words, got {tags!r:.80}")
    for tag in tags:
        word = tag.isprintable() and len(tag.split()) == 1 and tag == tag.strip() and "," not in tag
        allowed = f"one word of at most {MOST_TAG_LETTERS} letters, without a comma"
        require(word and len(tag) <= MOST_TAG_LETTERS, "notes", "tag", tag, allowed)
    found = tuple(dict.fromkeys(tags))
    require(len(found) <= MOST_TAGS, "notes", "tags", f"{len(found)} of them", f"at most {MOST_TAGS}")
    return found
