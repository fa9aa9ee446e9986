"""The zoo: trained policies that come with the repository, but not with the package; `zoo/NAME` is one of them.

An entry is a run folder with what playing its policies takes, so whatever takes a run takes it. It is looked for in the
folder that the environment variable `SHOAL_ZOO` names or, where that is not set, in `zoo/` of the current folder, then
of the repository that the package was imported from. Needs no JAX.
"""

import importlib.metadata
import os
from pathlib import Path
from typing import Any

from shoal.core.errors import RunError, unknown_name
from shoal.core.files import read_json
from shoal.core.version import DISTRIBUTION

ZOO, INDEX, VARIABLE = "zoo", "zoo.json", "SHOAL_ZOO"


def find_run(path: str | os.PathLike[str], base: str | os.PathLike[str] = "") -> Path:
    """The folder that is meant by the path of a run, which may be `zoo/NAME`. base: where paths lead from."""
    literal = Path(base, path).absolute()
    if not names_entry(path):
        return literal
    name, places = "/".join(Path(path).parts[1:]), _places(base)
    for place in places:
        if (place / name / "config.json").is_file():
            return place / name
    if literal.exists():
        return literal
    known = next((entries for place in places if (entries := _entries(place))), None)
    if known is None:
        raise RunError(f"{path}: {_absence()}")
    raise RunError(
        f"{path}: {unknown_name('entry of the zoo', name, known, f'There are {len(known)}: see docs/zoo.md.')}"
    )


def names_entry(path: str | os.PathLike[str]) -> bool:
    """Whether a path is `zoo/NAME`."""
    first, *rest = Path(path).parts or ("",)
    return first == ZOO and bool(rest)


def _places(base: str | os.PathLike[str]) -> list[Path]:
    """Folders in which entries are looked for."""
    if named := os.environ.get("SHOAL_ZOO"):
        return [Path(base, named).expanduser().absolute()]
    return [Path(base, ZOO).absolute(), Path(__file__).parents[3] / ZOO]


def _entries(place: Path) -> list[str]:
    """Names of the entries in a folder; none if it is no zoo."""
    try:
        data: Any = read_json(place / INDEX)
        return list(data["entries"])
    except (OSError, ValueError, KeyError, TypeError, RunError):
        return []


def _absence() -> str:
    named = os.environ.get("SHOAL_ZOO")
    where = f"{VARIABLE} names {named}, which is none" if named else "neither here nor where Shoal was imported from"
    address = _address()
    return (
        f"there is no zoo: {where}. It is the folder {ZOO}/ of Shoal's repository{f' ({address})' if address else ''} "
        f"and no part of the package: get the repository, and let {VARIABLE} name that folder."
    )


def _address() -> str | None:
    """The address of the repository, if the installed package has one."""
    try:
        urls = importlib.metadata.metadata(DISTRIBUTION).get_all("Project-URL") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((url.partition(",")[2].strip() for url in urls if url.startswith("Repository,")), None)
