"""What the source of a dataclass says about its fields: the help of options, and comments of files of settings."""

import dataclasses
import inspect
import re


def comments(cls: type) -> dict[str, str]:
    """What the source of a dataclass, and of those it extends, says about each field, behind it or below."""
    source = "\n".join(inspect.getsource(base) for base in reversed(cls.__mro__) if dataclasses.is_dataclass(base))
    below = re.findall(r'^    (\w+): [^\n]*\n    """(.+?)"""$', source, re.MULTILINE | re.DOTALL)
    behind = re.findall(r"^    (\w+): .*  # (?!pyright)(.+)$", source, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in [*below, *behind]}
