"""Kill and resume: runs of all kinds are ended by SIGKILL, gone on with, and compared with one that nobody disturbed.

    python benchmarks/kills.py benchmarks/results/kills.json --kills 12
    python benchmarks/kills.py OUT.json --only "train;sweep" --kills 4 --seed 7

Half of the kills come at a random moment after the start of the process: while it starts, compiles, trains or ends. The
other half come while files are written: just as one of those that the run makes, renames or removes is about to be
touched, or up to a millisecond later. Each run is killed up to four times, from its very first file on. In the end, all
arrays of the newest checkpoint, what is stored with them, and all lines of metrics must be the same, times apart. On
`cluster`, updates are not made in the same way again, because actors begin new episodes; there a run must not lose what
was committed, and must end with all of its lines. All experiments are tiny: what is tried is not how they learn. Rows
of a table that exists are kept, but for those that are made again.

Runs are forked from one process that has imported everything and computed nothing, so that a trial takes a moment.
"""

import argparse
import contextlib
import dataclasses
import fcntl
import importlib
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from shoal.algorithms import A2C
from shoal.cluster.plan import ClusterPlan
from shoal.cluster.run import Cluster
from shoal.cluster.tasks import evolution, pbt, populations  # noqa: F401  # before anything is forked
from shoal.cluster.tasks.pool import PoolConfig
from shoal.cluster.transport.launcher import ThreadLauncher
from shoal.core.files import write_atomically
from shoal.networks.torsos import Network
from shoal.populations.evolution.plan import Evolution
from shoal.populations.pbt.plan import PBT, Range
from shoal.populations.population import PopulationConfig
from shoal.populations.psro import PSRO
from shoal.presets import resolve
from shoal.training import checkpoint, loop, run_kinds
from shoal.training.experiment import Config, Experiment, Learner
from shoal.training.runner import Local, Runner, resume, run
from shoal.training.sweep import Sweep

TIMES = ("seconds", "_s")
"""How the names of what may differ between two runs end."""
LATE = 0.001
"""Seconds after which a kill that was to come while a file is written has come."""
CHAIN = 4
"""Kills of one run, at most."""
UPDATES = 24
TOTALS = ("kills", "while_writing", "before_the_first_checkpoint", "runs", "same", "lost")


def _tiny(updates: int = UPDATES, **changes: Any) -> Experiment:
    learner = Learner(A2C(network=Network(hidden=(4,))))
    sizes: dict[str, Any] = {"num_envs": 4, "num_steps": 4, "total_env_steps": 16 * updates}
    return Experiment("matrix/matching_pennies", learners={"l": learner}, **sizes | changes)


def _bank(**changes: Any) -> PopulationConfig:
    plan = PSRO(**{"meta_solver": "uniform", "iterations": 6, "episodes": 16} | changes)
    return PopulationConfig(_tiny(2), plan)


def _exact() -> PopulationConfig:
    return PopulationConfig(resolve("psro/kuhn"), PSRO("nash", iterations=12), oracle="exact")


def _bred() -> Evolution:
    learner = Learner(A2C(network=Network(hidden=(4,))))
    return Evolution(
        Experiment("control/cartpole", learners={"l": learner}), population=8, generations=24, max_steps=20
    )


def _tuned() -> PBT:
    return PBT(
        _tiny(), {"learning_rate": Range(1e-4, 1e-2, log=True)}, members=4, interval=4, measure="return/player_0"
    )


def _swept() -> Sweep:
    return Sweep(_tiny(num_seeds=2), {"learning_rate": (1e-3, 1e-2, 1e38)}, measure="return/player_0")


@dataclasses.dataclass(frozen=True)
class Kind:
    """What is run of one kind, and where; it is saved as often as it can be."""

    config: Callable[[], Config]
    on: Callable[[], Runner] = lambda: Local(devices=1)
    same_bits: bool = True

    def start(self, path: Path) -> None:
        run(self.config(), path, on=self.on(), checkpoint_seconds=0.0)

    def resume(self, path: Path) -> None:
        resume(path, on=self.on(), checkpoint_seconds=0.0)


def _by_tasks() -> Cluster:
    return Cluster(pool=PoolConfig(workers=2), launcher=ThreadLauncher())


def _by_actors() -> Cluster:
    return Cluster(plan=ClusterPlan(actors=2, commit_seconds=0.0), launcher=ThreadLauncher())


KINDS = {
    "train": Kind(_tiny),
    "train, 3 seeds": Kind(lambda: _tiny(num_seeds=3)),
    "sweep": Kind(_swept),
    "pbt": Kind(_tuned),
    "evolve": Kind(_bred),
    "psro": Kind(_bank),
    "psro, exact": Kind(_exact),
    "league": Kind(lambda: _bank(meta_solver="league", iterations=5)),
    "psro, by tasks": Kind(_bank, _by_tasks),
    "pbt, by tasks": Kind(_tuned, _by_tasks),
    "evolve, by tasks": Kind(_bred, _by_tasks),
    "cluster": Kind(_tiny, _by_actors, same_bits=False),
}


@dataclasses.dataclass(frozen=True)
class Death:
    """When a process is killed: seconds after its start, or seconds after so many changes of files."""

    after: float
    changes: int | None = None


def live(kind: Kind, folder: Path, log: Path, death: Death | None) -> tuple[bool, int, float]:
    """Starts a run, or goes on with it; whether it was killed, how often it changed files, how long it took."""
    receive, send = os.pipe()
    began, child = time.monotonic(), os.fork()
    if child == 0:
        os.close(receive)
        _be_a_run(kind, folder, log, death, send)
    os.close(send)
    if death and death.changes is None:
        with contextlib.suppress(ProcessLookupError):
            _wait(child, death.after)
            os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with os.fdopen(receive, "rb") as told:
        changes = int(told.read() or 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL and death:
        return True, changes, time.monotonic() - began
    if status:
        raise RuntimeError(f"a run ended with status {status}:\n{log.read_text()}")
    return False, changes, time.monotonic() - began


def _wait(child: int, seconds: float) -> None:
    """Waits, but not for one that has ended."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            raise ProcessLookupError
        time.sleep(min(0.005, max(0.0, until - time.monotonic())))


def _be_a_run(kind: Kind, folder: Path, log: Path, death: Death | None, send: int) -> None:
    """The child's side: never returns."""
    code = 1
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        counted = _watch_files(folder, death if death and death.changes is not None else None)
        loop.CALL_SECONDS = 0.0  # one update a call, and so a checkpoint after every update
        (kind.resume if run_kinds.kind_of(folder) else kind.start)(folder)
        os.write(send, str(counted[0]).encode())
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _watch_files(folder: Path, death: Death | None) -> list[int]:
    """Counts changes of files beside and in a folder, and kills this process at one of them."""
    counted = [0]

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir") or not arguments:
            return
        path = arguments[0]
        if not isinstance(path, str | os.PathLike) or not os.fspath(path).startswith(f"{folder.parent}{os.sep}"):
            return
        if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
        counted[0] += 1
        if death and counted[0] == death.changes:
            if death.after == 0.0:
                os.kill(os.getpid(), signal.SIGKILL)
            threading.Thread(target=_die_after, args=(death.after,), daemon=True).start()

    sys.addaudithook(look)
    return counted


def _die_after(seconds: float) -> None:
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def content(folder: Path) -> dict[str, Any]:
    """All that a run leaves, times apart."""
    newest = checkpoint.latest(folder / "checkpoints")
    assert newest is not None, f"{folder} has no checkpoint"
    arrays = {
        name: (array.dtype.name, array.shape, array.tobytes()) for name, array in checkpoint.read_arrays(newest).items()
    }
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    config = json.loads((folder / run_kinds.CONFIG).read_text())
    config.pop("provenance", None)  # when and how it was begun
    return _timeless(
        {"file": newest.name, "arrays": arrays, "meta": checkpoint.read_meta(newest), "lines": lines, "config": config}
    )


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(entry) for key, entry in value.items() if not str(key).endswith(TIMES)}
    return [_timeless(entry) for entry in value] if isinstance(value, list) else value


def unlike(kind: Kind, one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """In what two runs differ."""
    if kind.same_bits:
        return [name for name in one if one[name] != other[name]]
    found = [name for name in ("file", "config") if one[name] != other[name]]
    return found + ["lines"] * (
        [line["update"] for line in one["lines"]] != [line["update"] for line in other["lines"]]
    )


def committed(folder: Path) -> int:
    """The number of the newest checkpoint; -1 without one."""
    newest = checkpoint.latest(folder / "checkpoints") if run_kinds.kind_of(folder) else None
    return int(newest.name[5:15]) if newest else -1


def trial(name: str, kills: int, root: Path, draw: random.Random) -> dict[str, Any]:
    """Kills runs of one kind so many times, and compares what they end as."""
    kind, place = KINDS[name], root / "".join(letter for letter in name if letter.isalnum())
    place.mkdir()
    whole = place / "whole"
    _, changes, seconds = live(kind, whole, place / "log", None)
    wanted = content(whole)
    figures: dict[str, Any] = {"kills": 0, "at_random_moments": 0, "while_writing": 0, "before_the_first_checkpoint": 0}
    figures |= {"before_the_folder": 0, "runs": 0, "same": 0, "different": [], "lost": 0}
    while figures["kills"] < kills:
        folder = place / f"run-{figures['runs']}" / "run"
        folder.parent.mkdir()
        for _ in range(min(CHAIN, kills - figures["kills"])):
            late = draw.choice([0.0, draw.uniform(0.0, LATE)])
            writing = draw.random() < 0.5
            moment = draw.uniform(0.0, 0.7 * seconds)  # the undisturbed run has compiled what is found ready now
            death = Death(late, draw.randint(1, max(changes, 1))) if writing else Death(moment)
            before = committed(folder)
            killed, _, _ = live(kind, folder, place / "log", death)
            if not killed:
                break
            figures["kills"] += 1
            figures["while_writing" if writing else "at_random_moments"] += 1
            figures["before_the_folder"] += run_kinds.kind_of(folder) is None
            figures["before_the_first_checkpoint"] += committed(folder) < 0
            figures["lost"] += committed(folder) < before
        live(kind, folder, place / "log", None)
        figures["runs"] += 1
        different = unlike(kind, wanted, content(folder))
        figures["same"] += not different
        figures["different"] += [different] if different else []
        if not different:
            shutil.rmtree(folder.parent)
    return figures | {"compared": "all bits" if kind.same_bits else "updates committed, lines"}


def _commit() -> str:
    """What is tried; a star says that files differ from it."""
    described = ["git", "describe", "--always", "--dirty=*", "--exclude=*"]
    return subprocess.run(
        described, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    ).stdout.strip()


def _make_starts_quick(root: Path) -> None:
    """What a run compiles is kept for the next one, and compiled quickly; what it imports is imported once."""
    os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"
    jax.config.update("jax_compilation_cache_dir", str(root / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    with contextlib.suppress(ImportError):
        importlib.import_module("tensorboardX")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kills", type=int, default=12, help="of each kind")
    parser.add_argument("--only", default=";".join(KINDS), help="kinds, separated by semicolons")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    made = {"command": shlex.join(["python", "benchmarks/kills.py", *sys.argv[1:]]), "commit": _commit()}
    failed = False
    with tempfile.TemporaryDirectory(prefix="kills-") as root:
        _make_starts_quick(Path(root))
        for name in options.only.split(";"):
            found = trial(name, options.kills, Path(root), random.Random(f"{options.seed} {name}"))
            failed |= bool(found["different"]) or bool(found["lost"])
            print(f"{name}: {json.dumps(found)}", flush=True)
            _keep(options.out, name, found | made)
    return int(failed)


def _keep(out: Path, name: str, found: dict[str, Any]) -> None:
    """Puts one row into the table; those of other kinds stay."""
    with open(__file__) as lock:  # others may be at work on the same table
        fcntl.flock(lock, fcntl.LOCK_EX)
        rows = (json.loads(out.read_text())["kinds"] if out.exists() else {}) | {name: found}
        rows = {name: rows[name] for name in KINDS if name in rows}
        table: dict[str, Any] = {total: sum(row[total] for row in rows.values()) for total in TOTALS}
        write_atomically(out, json.dumps(table | {"kinds": rows}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
