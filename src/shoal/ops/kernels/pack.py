"""All kernels in one file, which takes less than half of what they take if each is compressed alone.

Variants of a kernel differ in little, so they are compressed together; and compilers number registers in the order of
their use, so each number is written as the difference from the last one of its kind: differences repeat.
"""

import json
import re
from collections.abc import Mapping

_NUMBERED = re.compile(r"(%[a-z]+|\$L__BB0_)(-?\d+)")
"""A register or a label of PTX: its kind, and its number."""


def pack(texts: Mapping[str, str]) -> bytes:
    """The file of these kernels, by their names."""
    import lzma

    data = json.dumps({name: _differences(text) for name, text in texts.items()}).encode()
    packed = lzma.compress(data, filters=[{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "pb": 0}])
    if any(unpack(packed, name) != text for name, text in texts.items()):
        raise ValueError("the kernels do not come back as they were: are registers numbered with leading zeros?")
    return packed


def unpack(packed: bytes, name: str) -> str:
    """The text of one kernel of a file."""
    import lzma  # which some Pythons are built without: those that have no GPU do not need it

    return _numbers(json.loads(lzma.decompress(packed))[name])


def _differences(text: str) -> str:
    last: dict[str, int] = {}

    def shorten(match: re.Match[str]) -> str:
        kind, number = match[1], int(match[2])
        difference, last[kind] = number - last.get(kind, 0), number
        return f"{kind}{difference}"

    return _NUMBERED.sub(shorten, text)


def _numbers(text: str) -> str:
    last: dict[str, int] = {}

    def restore(match: re.Match[str]) -> str:
        kind = match[1]
        last[kind] = last.get(kind, 0) + int(match[2])
        return f"{kind}{last[kind]}"

    return _NUMBERED.sub(restore, text)
