"""Deliberate mistakes: are they seen by the fast tests? Each edit of `mutations.toml` is made in a copy of the tree.

    python benchmarks/mutations.py benchmarks/results/mutations.json
    python benchmarks/mutations.py benchmarks/results/mutations.json --only ppo --jobs 2
    python benchmarks/mutations.py /tmp/new.json --only "dqn: importance" --again

For every edit the tests that it names are run (`-x`, without the slow ones). An edit is caught if one of them fails,
and survives if all pass. One that takes longer than `--limit` seconds counts as caught by the clock. What caught an
edit must pass without it, or the edit is not judged. Rows are written as they come, and those of edits whose source and
test have not changed since are kept, so a run that was stopped goes on where it was. `--only` takes a part of a name.
Exit code 1 unless all are caught.
"""

import argparse
import ast
import compileall
import concurrent.futures
import dataclasses
import hashlib
import json
import os
import platform
import py_compile
import queue
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from pathlib import Path
from typing import Any

from shoal.core.files import write_atomically

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_suffix(".toml")
LIMIT = 300.0
"""Seconds that the tests of one edit may take."""
CLOCK = "the clock"
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Edit:
    """A mistake. file: where it is made. old, new: text that occurs there once, and what takes its place.

    tests: files, folders or single tests, those most likely to see it first.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied(self, root: Path) -> str:
        """The text of the file with the mistake in it; refuses an edit that does not fit exactly one place."""
        text = (root / self.file).read_text()
        found = text.count(self.old)
        if found != 1 or self.old == self.new:
            raise ValueError(
                f"the edit {self.name!r} must fit one place of {self.file}, but fits {found}: {self.old!r}"
            )
        return text.replace(self.old, self.new)

    def digest(self, root: Path, caught_by: str) -> str:
        """Of what a verdict rests on: the edit, the file that it is made in, and the test that caught it."""
        parts = [self.file, self.old, self.new, (root / self.file).read_text(), _source(root, caught_by)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _source(root: Path, test: str) -> str:
    """The text of a test, by its id; nothing if there is none of that name any more."""
    file, *names = test.split("[")[0].split("::")
    if not names or not (root / file).exists():
        return ""
    text = (root / file).read_text()
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    return next((ast.get_source_segment(text, node) or "" for node in functions if node.name == names[-1]), "")


def edits() -> list[Edit]:
    """The table."""
    rows = tomllib.loads(TABLE.read_text())["edit"]
    return [Edit(**row | {"tests": tuple(row["tests"])}) for row in rows]


class Copy:
    """A copy of the tree, in which one edit at a time is made."""

    def __init__(self, folder: Path):
        self.folder = folder
        tracked = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for name in filter(None, tracked.split("\0")):
            if (ROOT / name).is_file() and not name.startswith("benchmarks/results/"):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, folder / name)
        (ROOT / ".cache").mkdir(exist_ok=True)
        (folder / ".cache").symlink_to((ROOT / ".cache").resolve())  # programs that are compiled already
        # By hash: an edit of the same length within a second would not be seen by time and size.
        mode = py_compile.PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(folder / "src", quiet=1, invalidation_mode=mode)

    def with_edit(self, edit: Edit, limit: float) -> dict[str, Any]:
        """Verdict on an edit: which test fails, if any."""
        path = self.folder / edit.file
        before = path.read_text()
        path.write_text(edit.applied(self.folder))
        try:
            return self.run(edit.tests, limit)
        finally:
            path.write_text(before)

    def run(self, tests: tuple[str, ...], limit: float) -> dict[str, Any]:
        """What comes of tests: `caught_by` is the one that failed, None if all passed."""
        options = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "--tb=no", "--no-header"]
        environment = os.environ | {"PYTHONPATH": str(self.folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return {"caught_by": CLOCK, "seconds": round(limit, 1)}
        return {"caught_by": _first_failure(process.returncode, said), "seconds": round(time.monotonic() - began, 1)}


def _first_failure(code: int, said: str) -> str | None:
    if code == 0:
        return None
    failed = _FAILED.search(said)
    if code < 0 or failed is None:
        raise RuntimeError(f"pytest ended with code {code} without a test that failed:\n{said[-2000:]}")
    return failed[1]


class Report:
    """The table of verdicts, on disk after every one."""

    def __init__(self, path: Path):
        self.path, self.lock = path, threading.Lock()
        stored = json.loads(path.read_text()) if path.exists() else {}
        self.rows: dict[str, dict[str, Any]] = {row["name"]: row for row in stored.get("edits", [])}

    def holds(self, edit: Edit) -> bool:
        """Whether it is known that the edit is caught, by code and a test that are still the same."""
        row = self.rows.get(edit.name, {"caught_by": None})
        return row["caught_by"] is not None and row["digest"] == edit.digest(ROOT, row["caught_by"])

    def add(self, row: dict[str, Any]) -> None:
        with self.lock:
            self.rows[row["name"]] = row
            self.write()

    def write(self) -> None:
        """Rows of edits that are not in the table any more are left out."""
        rows = [self.rows[edit.name] for edit in edits() if edit.name in self.rows]
        survivors = [row["name"] for row in rows if row["caught_by"] is None]
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
        about = {
            "command": shlex.join(["python", "benchmarks/mutations.py", *sys.argv[1:]]),
            "commit": commit.stdout.strip(),
            "python": platform.python_version(),
            "edits_made": len(rows),
            "caught": len(rows) - len(survivors),
            "survivors": survivors,
            "seconds": round(sum(row["seconds"] for row in rows), 1),
        }
        write_atomically(self.path, json.dumps(about | {"edits": rows}, indent=1) + "\n")


class Harness:
    """Makes edits in several copies at once."""

    def __init__(self, folder: Path, jobs: int, limit: float, report: Report):
        self.limit, self.report = limit, report
        self.copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for number in range(jobs):
            self.copies.put(Copy(folder / str(number)))
        self.sound: set[tuple[str, ...]] = set()

    def judge(self, edit: Edit) -> None:
        """Makes one edit. The test that catches it must pass without it."""
        copy = self.copies.get()
        try:
            found = copy.with_edit(edit, self.limit)
            by = found["caught_by"]
            if by and (broken := self._broken(copy, edit.tests if by == CLOCK else (by,))):
                print(f"not judged  {edit.name}: {broken} fails without any edit", flush=True)
                return
        finally:
            self.copies.put(copy)
        self.report.add({"name": edit.name, "file": edit.file, **found, "digest": edit.digest(copy.folder, by or "")})
        print(f"{found['seconds']:6.1f} s  {edit.name}: {found['caught_by'] or 'SURVIVES'}", flush=True)

    def _broken(self, copy: Copy, tests: tuple[str, ...]) -> str | None:
        """Which of the tests fails, though nothing was edited."""
        if tests in self.sound:
            return None
        if (found := copy.run(tests, self.limit)["caught_by"]) is None:
            self.sound.add(tests)
        return found


def main() -> int:
    """Judges the edits that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="JSON file for the verdicts")
    parser.add_argument("--only", action="append", default=[], metavar="PART", help="edits with this in their name")
    parser.add_argument("--jobs", type=int, default=1, help="edits at once")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for the tests of one edit")
    parser.add_argument("--again", action="store_true", help="also those whose verdict is known")
    options = parser.parse_args()
    asked = [edit for edit in edits() if not options.only or any(part in edit.name for part in options.only)]
    if not asked:
        parser.error(f"no edit has {' or '.join(map(repr, options.only))} in its name")
    for edit in asked:
        edit.applied(ROOT)
    report = Report(options.out)
    due = [edit for edit in asked if options.again or not report.holds(edit)]
    print(f"{len(asked)} edits, {len(due)} to be judged", flush=True)
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        harness = Harness(Path(folder), options.jobs, options.limit, report)
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(harness.judge, due))
    report.write()
    rows = [report.rows.get(edit.name) for edit in asked]
    caught = sum(row is not None and row["caught_by"] is not None for row in rows)
    survivors = [row["name"] for row in rows if row is not None and row["caught_by"] is None]
    print(f"{caught} of {len(asked)} caught" + "".join(f"\nsurvives: {name}" for name in survivors))
    return 0 if caught == len(asked) else 1


if __name__ == "__main__":
    sys.exit(main())
