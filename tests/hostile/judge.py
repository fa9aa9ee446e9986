"""Runs commands on a hostile folder in this process, and says what they did that they must not do.

What follows a folder that was found to be sound (compiling, playing) is left out: the command is stopped there, and
that it came so far is `ACCEPTED`. An audit hook sees every file that is opened and every program that is started.
"""

import contextlib
import hashlib
import io
import os
import resource
import signal
import sys
import types
import warnings

import matplotlib.font_manager  # noqa: F401, which makes folders of its own when it is first imported
import numpy as np

from shoal.cli import main
from shoal.cluster.plan import ClusterPlan
from shoal.cluster.services.coordinator import Coordinator
from shoal.cluster.tasks.ledger import Ledger
from shoal.core.errors import ShoalError

ACCEPTED = "stopped here: the folder was read"
SECONDS = 60
ROOM = 1 << 30
"""Bytes that a command may take beyond what the process has."""
STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.truncate", "shutil.rmtree", "os.link", "os.symlink")


class HangError(BaseException):
    """The watchdog bit."""


class Watch:
    """What the audit hook sees while a command runs. allowed: folders in which a command may write."""

    def __init__(self):
        self.on, self.allowed, self.outside, self.seen = False, (), "", []
        sys.addaudithook(self)

    def __call__(self, event, args):
        if not self.on:
            return
        if event in STARTS:
            self.seen.append(f"started {event} {args[0]!r}")
        elif event == "open" and isinstance(args[0], str | bytes | os.PathLike):
            flags = args[2] or 0
            self._judge(os.fsdecode(args[0]), bool(flags & WRITES), "opened")
        elif event in CHANGES:
            for path in args[: 2 if event in ("os.rename", "os.link") else 1]:
                made = event == "os.mkdir" and isinstance(path, str | os.PathLike) and os.path.isdir(path)
                if isinstance(path, str | bytes | os.PathLike) and not made:
                    self._judge(os.fsdecode(path), True, event)

    def _judge(self, path, writes, what):
        where = os.path.realpath(path if what == "opened" else os.path.dirname(path) or ".")
        if where.startswith(self.outside):
            self.seen.append(f"{what} {path} outside")
        elif writes and not where.startswith(self.allowed):
            self.seen.append(f"{what} {path} for writing")


_watch = []


def watch():
    if not _watch:  # a hook cannot be taken away again
        _watch.append(Watch())
    return _watch[0]


def stop(*args, **kwargs):
    raise ShoalError(ACCEPTED)


class Board:
    """In place of TensorBoard's writer, which takes long to import: it makes a file in its folder, too."""

    def __init__(self, folder, flush_secs):
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "events.out"), "wb") as file:
            file.write(b"event")

    def close(self):
        pass


def stub(monkeypatch):
    """What follows once a folder was read is left out."""
    monkeypatch.setitem(sys.modules, "tensorboardX", types.SimpleNamespace(SummaryWriter=Board))
    for where in (
        *("shoal.training.program.CompiledProgram.compiled", "shoal.training.host.HostProgram.compiled"),
        *("shoal.training.fused.FusedProgram.init", "shoal.populations.evolution.program.EvolutionProgram.init"),
        *("shoal.populations.pbt.program.PBTProgram.init", "shoal.populations.population.PopulationProgram.compiled"),
        *("shoal.cli.commands.evaluate.evaluate", "shoal.api.replay.record", "shoal.api.lineup_page.record"),
        "shoal.populations.population.beginning",
    ):
        monkeypatch.setattr(where, stop)
    monkeypatch.setattr("shoal.cluster.run.Cluster._join", stop)
    monkeypatch.setattr("shoal.cli.commands.population.behaviours", lambda folder: None)


def commands(kind, folder, out):
    """The commands that may be given a folder of a kind; `resume` first."""
    calls = [("resume", folder)]
    if kind in ("cluster", "team"):
        calls += [("cluster", "status", folder), ("cluster", "advise", folder), ("cluster", "status", folder, "--json")]
        calls += [("cluster", "scale", folder, "--workers", "3"), ("services", folder), ("services", folder)]
    if kind in ("psro", "exact", "league", "team"):
        calls += [("population", folder, "--json"), ("population", folder, "--watch", "0,1"), ("eval", folder)]
        calls += [("psro", "matrix/matching_pennies", "--import-policies", folder, "--run-dir", out / "new")]
        return calls
    if kind == "sweep":
        return [*calls, ("sweep", folder), ("eval", folder), ("watch", folder), ("train", folder, "--help")]
    calls += [
        ("eval", folder),
        ("watch", folder),
        ("export", folder, "--out", out / "exported"),
        ("train", folder, "--help"),
    ]
    calls += [("train", folder, "--weights", f"all={folder}", "--run-dir", out / "new"), ("population", folder)]
    calls += [("eval", folder, "--opponent", f"agent[0]={folder}", "--json"), ("sweep", folder, "--help")]
    return calls


def call(args):
    """The exit code of a command; the services of a cluster, which read too, are begun here and not elsewhere."""
    if args[0] != "services":
        return main([str(arg) for arg in args])
    try:
        Ledger(args[1] / "tasks").close() if (args[1] / "tasks").exists() else None
        Coordinator(str(args[1]), ClusterPlan(), 10).journal.close()
    except ShoalError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def tree(folder):
    """What a folder holds, as one text."""
    found = []
    for path in sorted(folder.rglob("*")):
        mark = os.readlink(path) if path.is_symlink() else ""
        if not mark and path.is_file():
            mark = hashlib.sha256(path.read_bytes()).hexdigest()
        found.append(f"{path.relative_to(folder)} {mark}")
    return "\n".join(found)


def _bite(number, frame):
    raise HangError


def _memory():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def guarded(folder, outside, out):
    """A watchdog, little memory, and the audit hook."""
    seeing = watch()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    cache = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", "..", ".cache"))
    compiled = os.path.expanduser("~/.cache/shoal")  # where programs are kept, unless a test has another place for them
    seeing.allowed = (*map(os.path.realpath, (folder, out)), "/dev/", cache, compiled)
    seeing.outside, seeing.seen = os.path.realpath(outside), []
    before = signal.signal(signal.SIGALRM, _bite)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (_memory() + ROOM, hard))
    seeing.on = True
    try:
        yield seeing
    finally:
        seeing.on = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def judge(args, folder, outside, out):
    """Runs one command; returns what it did wrong, or "", and what it said."""
    before = tree(outside)
    said, complained = io.StringIO(), io.StringIO()
    wrong = []
    with guarded(folder, outside, out) as seeing, np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complained):
                code = call(args)
        except HangError:
            code = wrong.append("it hangs")
        except MemoryError:
            code = wrong.append("it takes gigabytes")
        except BaseException as error:
            code = wrong.append(f"traceback: {type(error).__name__}: {str(error)[:200]}")
        wrong += seeing.seen
    text = complained.getvalue().strip()
    if code == 2 and ACCEPTED not in text:
        if len(text.splitlines()) > 2 or not text.startswith("error: "):
            wrong.append(f"not one line: {text[:300]!r}")
        if len(text) > 2000:
            wrong.append("a line of thousands of letters")
    elif code not in (0, 2, None):
        wrong.append(f"exit code {code}")
    if "Traceback" in text or "RESOURCE_EXHAUSTED" in text or "out of memory" in text:
        wrong.append(text[:200])
    if tree(outside) != before:
        wrong.append("it changed something outside")
    return "; ".join(wrong), text or said.getvalue()[:200]
