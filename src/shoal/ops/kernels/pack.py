"""All kernels in one file, which takes a quarter of what they take if each is compressed alone.

Variants of a kernel differ in little, so they are compressed together. Registers are renamed in the order of their
first use (`renumber`), and each number is written as its distance from the largest one of its kind so far: distances
repeat.
"""

import json
import re
from collections.abc import Mapping

_KIND = r"(%[a-z]+|\$L__BB0_)"
_NUMBERED = re.compile(_KIND + r"(\d+)")
"""A register or a label of PTX: its kind, and its number."""
_PACKED = re.compile(_KIND + r"(#?)(\d*)")
"""The same as it is written: how far below the largest number so far, or, after #, how far above the next one."""


def pack(texts: Mapping[str, str]) -> bytes:
    """The file of these kernels, by their names."""
    import lzma

    data = json.dumps({name: _distances(text) for name, text in texts.items()}).encode()
    packed = lzma.compress(data, filters=[{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "pb": 0}])
    if any(unpack(packed, name) != text for name, text in texts.items()):
        raise ValueError("the kernels do not come back as they were: are registers numbered with leading zeros?")
    return packed


def unpack(packed: bytes, name: str) -> str:
    """The text of one kernel of a file."""
    import lzma  # which some Pythons are built without: those that have no GPU do not need it

    return _numbers(json.loads(lzma.decompress(packed))[name])


def renumber(text: str) -> str:
    """The same program, its registers and labels numbered from 1 in the order of their first use."""
    found: dict[str, dict[str, int]] = {}

    def rename(match: re.Match[str]) -> str:
        known = found.setdefault(match[1], {})
        return f"{match[1]}{known.setdefault(match[2], len(known) + 1)}"

    return _NUMBERED.sub(rename, text)


def _distances(text: str) -> str:
    largest: dict[str, int] = {}

    def shorten(match: re.Match[str]) -> str:
        kind, number = match[1], int(match[2])
        before, largest[kind] = largest.get(kind, 0), max(number, largest.get(kind, 0))
        return f"{kind}{before - number}" if number <= before else f"{kind}#{number - before - 1 or ''}"

    return _NUMBERED.sub(shorten, text)


def _numbers(text: str) -> str:
    largest: dict[str, int] = {}

    def restore(match: re.Match[str]) -> str:
        kind, before = match[1], largest.get(match[1], 0)
        if not match[2] and not match[3]:  # a name without a number
            return match[0]
        number = before + 1 + int(match[3] or 0) if match[2] else before - int(match[3])
        largest[kind] = max(number, before)
        return f"{kind}{number}"

    return _PACKED.sub(restore, text)
