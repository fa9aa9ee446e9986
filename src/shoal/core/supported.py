"""Whether JAX and Flax are of versions that Shoal was written for: looked up before they are imported."""

import functools
import importlib.metadata
import re

from shoal.core.errors import ShoalError
from shoal.core.version import VERSION

PACKAGES = {"jax": ("0.10.2", "0.13"), "flax": ("0.12.8", "0.13")}
"""The first version of each that is supported, and the first that is not any more; as in `pyproject.toml`."""


class VersionError(ShoalError, ImportError):
    """A package that Shoal is built on is missing, or of another version than it supports."""


@functools.cache
def check_versions() -> None:
    """Refuses versions that are not supported. It reads what is installed, and imports nothing."""
    for package, (first, end) in PACKAGES.items():
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            version = None
        if version is None or not _parts(first) <= _parts(version) < _parts(end):
            found = f"{package} {version} is installed" if version else f"{package} is not installed"
            raise VersionError(
                f"{found}, and Shoal {VERSION} supports {package} {first} and newer, below {end}: "
                f"pip install '{package}>={first},<{end}'"
            )


def _parts(version: str) -> tuple[int, ...]:
    """The numbers of a version; what follows them (`.dev`, `rc1`) does not count."""
    return tuple(map(int, re.findall(r"\d+", re.match(r"[\d.]*", version)[0])))  # pyright: ignore[reportOptionalSubscript]
