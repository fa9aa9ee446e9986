"""A comparison as files: one by its suffix, or a folder with all of them."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.core.errors import OptionError, RunError
from shoal.core.files import write_file
from shoal.training.comparison_tables import TABLES

if TYPE_CHECKING:
    from shoal.training.comparison import Comparison, Kind

PICTURES = ("png", "svg", "pdf")
SUFFIXES = (*PICTURES, "csv", "tex", "md", "json")


def save(comparison: "Comparison", path: Path, kind: "Kind | None" = None, digits: int | None = None) -> list[Path]:
    """Writes one file or, if the path has no suffix or is a folder, all of them; returns what was written.

    digits: behind the point, in tables to be read.
    """
    suffix = check_suffix(path)
    if suffix is None:
        return _save_all(comparison, path, digits)
    write_file(path, _content(comparison, suffix, kind or _kind_of(path.stem), digits))
    return [path]


def check_suffix(path: Path) -> str | None:
    """The suffix of a file that a comparison can be written to; None for a folder, refuses any other."""
    suffix = path.suffix.lower().removeprefix(".")
    if path.is_dir() or not suffix:
        return None
    if suffix not in SUFFIXES:
        known = ", ".join(f".{known}" for known in SUFFIXES)
        raise OptionError(f"compare: {path} must end in one of {known}, or be a folder, got .{suffix}")
    return suffix


def _kind_of(stem: str) -> "Kind":
    """The picture that a file is named after, else curves."""
    from shoal.training.comparison import KINDS

    for kind in KINDS:
        if kind == stem:
            return kind
    return "curves"


def _content(comparison: "Comparison", suffix: str, kind: "Kind", digits: int | None) -> bytes:
    if suffix in PICTURES:
        return comparison.pictures(kind, suffix)[suffix]
    if suffix == "json":
        return (json.dumps(comparison.to_marl_eval(), allow_nan=False) + "\n").encode()
    if suffix == "csv":
        return comparison.to_csv().encode()
    return (comparison.to_latex(digits) if suffix == "tex" else comparison.to_markdown(digits)).encode()


def _save_all(comparison: "Comparison", folder: Path, digits: int | None) -> list[Path]:
    """Every table, and every picture as PNG, SVG and PDF; marl-eval's file if the runs have what it needs."""
    from shoal.training.comparison import KINDS

    files = {f"{table}.csv": comparison.to_csv(table).encode() for table in TABLES}
    files |= {f"final.{suffix}": _content(comparison, suffix, "final", digits) for suffix in ("md", "tex")}
    for kind in KINDS:
        files |= {f"{kind}.{suffix}": made for suffix, made in comparison.pictures(kind, *PICTURES).items()}
    if comparison.without_marl_eval is None:
        files["marl_eval.json"] = _content(comparison, "json", "curves", digits)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {folder}: {error.strerror or error}") from error
    for name, content in files.items():
        write_file(folder / name, content)
    return [folder / name for name in files]
