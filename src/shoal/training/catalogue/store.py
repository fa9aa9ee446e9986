"""What is known of runs, kept in the user's cache folder, so that a new process need not read them again.

The file is plain JSON, checked when it is read; what is missing, damaged or of another version is read from the runs
anew. It is only ever a copy of what the runs themselves say, and may be removed at any time.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.core.errors import RunError
from shoal.core.files import read_json, write_atomically
from shoal.core.schema import Maybe, Whole, check
from shoal.core.version import VERSION
from shoal.training.catalogue.facts import Facts
from shoal.training.catalogue.lines import Digest

FORMAT = 2
MOST_BYTES = 1 << 26
Signature = tuple[int, int, int]
"""Of a file: which one it is, when it was written, and its size."""
ABSENT: Signature = (0, 0, 0)

_SIGNATURE = [Whole(0, 2**64)]
_RECORD = {
    "signatures": [_SIGNATURE],
    "facts": Maybe(
        {
            "kind": str,
            "env": str,
            "algorithm": str,
            "num_seeds": Whole(),
            "total_env_steps": Whole(),
            "num_updates": Whole(),
            "stops": {str: Maybe(float)},
            "started": Maybe(float),
        }
    ),
    "digest": {
        "update": Whole(),
        "env_steps": Whole(),
        "seconds": float,
        "lanes": Whole(1),
        "last_return": Maybe(float),
        "best_return": Maybe(float),
        "curve": [float],
        "nash_conv": Maybe(float),
        "gains": [Maybe(float)],
        "sides": {str: float},
        "searched": Whole(),
        "is_searched": bool,
    },
    "problem": Maybe(str),
    "foreign": bool,
}


@dataclasses.dataclass(frozen=True)
class Record:
    """What was read of a run, and of which files; problem: why it cannot be read. foreign: it is no run at all."""

    signatures: tuple[Signature, ...]
    facts: Facts | None = None
    digest: Digest = dataclasses.field(default_factory=Digest)
    problem: str | None = None
    foreign: bool = False


def cache_folder() -> Path:
    """Where programs of this user keep what can be made again."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(root, "shoal", "catalogue")


class Store:
    """The records of the runs below one root."""

    def __init__(self, root: Path):
        digest = hashlib.sha256(os.fsencode(root)).hexdigest()[:32]
        self.path = cache_folder() / f"{digest}.json"
        self._kept: dict[str, Record] = {}

    def load(self) -> dict[str, Record]:
        """All records by name; none if there is no such file, or a damaged one."""
        self._kept = self._load()
        return dict(self._kept)

    def _load(self) -> dict[str, Record]:
        try:
            data = read_json(self.path, MOST_BYTES)
            check(data, {"format": Whole(), "shoal": str, "records": {str: _RECORD}}, "cache")
            if data["format"] != FORMAT or data["shoal"] != VERSION:
                return {}
            return {name: _record(entry) for name, entry in data["records"].items()}
        except (OSError, ValueError, KeyError, TypeError, LookupError, RunError):  # absent, damaged, or not a file
            return {}

    def save(self, records: Mapping[str, Record]) -> None:
        """Keeps the records, if they have changed; without a cache folder to write to, runs are simply read again."""
        if records == self._kept:
            return
        self._kept = dict(records)
        entries = {name: _plain(record) for name, record in records.items()}
        content = json.dumps({"format": FORMAT, "shoal": VERSION, "records": entries}, separators=(",", ":"))
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomically(self.path, content)


def _plain(record: Record) -> dict[str, Any]:
    plain = dataclasses.asdict(record)
    plain["digest"]["gains"] = [gain if abs(gain) < 1e300 else None for gain in record.digest.gains]
    plain["digest"]["sides"] = dict(record.digest.sides)
    return plain


def _record(data: Mapping[str, Any]) -> Record:
    facts, digest = data["facts"], dict(data["digest"])
    digest["curve"] = tuple(map(float, digest["curve"]))
    digest["gains"] = tuple(float("inf") if gain is None else gain for gain in digest["gains"])
    digest["sides"] = tuple((name, float(value)) for name, value in digest["sides"].items())
    signatures = tuple((entry[0], entry[1], entry[2]) for entry in data["signatures"])
    return Record(signatures, Facts(**facts) if facts else None, Digest(**digest), data["problem"], data["foreign"])
