"""The first Ctrl-C is answered and the second ends the process, whatever its main thread is doing."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from shoal.cli import interrupts
from shoal.core.stopping import saves, stop_requested, stopping

pytestmark = pytest.mark.usefixtures("terminal_signals")

STUCK = """
import ctypes
from shoal.cli import interrupts
interrupts.COMPILING_SECONDS = 1.0
compiler = {"__name__": "jax._src.compiler", "ctypes": ctypes}
exec('''
def stuck():  # as the compiler is: without Python's lock, and no signal wakes it
    lock, library = ctypes.create_string_buffer(128), ctypes.CDLL(None)
    library.pthread_mutex_lock(lock)
    library.pthread_mutex_lock(lock)
''', compiler)
with interrupts.watched():
    print("ready", flush=True)
    compiler["stuck"]()
"""


class Process:
    """A process whose stderr can be waited for."""

    def __init__(self, *command, **options):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, **pipes, **options)
        self.lines = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(f"{time.monotonic()} {line}")

    def wait_for(self, words, seconds):
        """When a line with these words came."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for line in list(self.lines):
                if words in line:
                    return float(line.split()[0])
            time.sleep(0.02)
        raise AssertionError(f"{words!r} did not come within {seconds} s; there is {self.lines}")

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)
        return time.monotonic()


@pytest.fixture
def start():
    started = []

    def begin(*command, **options):
        started.append(Process(*command, **options))
        return started[-1]

    yield begin
    for one in started:
        one.process.kill()
        one.process.wait()
        one.reader.join()
        one.process.stdout.close()
        one.process.stderr.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a lock as Linux lays it out")
def test_a_main_thread_that_hears_nothing(start):
    stuck = start(sys.executable, "-c", STUCK)
    assert stuck.process.stdout.readline() == "ready\n"
    stuck.wait_for("compiling ... 1 s", 20)
    stuck.wait_for("compiling ... 2 s", 20)
    pressed = stuck.interrupt()
    answered = stuck.wait_for("interrupted, but compiling cannot be cut short; Ctrl-C again ends it at once", 20)
    assert answered - pressed < 2 + 3  # 3 for a busy machine
    assert stuck.process.poll() is None
    stuck.interrupt()
    assert stuck.process.wait(20) == 130
    stuck.wait_for("ended at once: what was saved last is what there is", 5)


def test_a_run_that_saves_says_so(capsys):
    watch = interrupts._Watch(-1)
    with stop_requested() as stopped:
        assert saves()
        watch.pressed(now=0.0)
        os.kill(os.getpid(), signal.SIGINT)
        assert stopped.wait(1)
        assert stopping()
    assert "stopping after what runs now, then saving; Ctrl-C again" in capsys.readouterr().err
    assert not saves()


def test_a_command_that_reacts_in_time_is_not_talked_over(capsys, monkeypatch):
    ended = []
    monkeypatch.setattr(interrupts, "end", lambda: ended.append(True))
    watch = interrupts._Watch(-1)
    watch.pressed(now=0.0)
    watch.look(now=0.5)
    assert capsys.readouterr().err == ""
    watch.pressed(now=0.6)
    watch.look(now=2.5)
    assert not ended  # it has two seconds to end by itself
    watch.look(now=2.7)
    assert ended


def test_a_ctrl_c_that_cannot_be_raised_comes_again(monkeypatch):
    """JAX cleans up in the garbage collector, where what is raised is printed and forgotten."""

    class Cleans:
        def __del__(self):
            raise KeyboardInterrupt

    def collect():
        thing = Cleans()
        del thing
        for _ in range(500):
            time.sleep(0.01)

    told = []
    monkeypatch.setattr(interrupts, "tell", told.append)
    with interrupts.watched(), pytest.raises(KeyboardInterrupt):
        collect()
    assert told == []


PRESSED = """
import os, runpy, signal, sys


class Presses:
    def find_spec(self, name, path=None, target=None):
        if name == MODULE:
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:  # as extension modules do
                raise ImportError("Encountered an error while initializing the extension.") from None


sys.meta_path.insert(0, Presses())
sys.argv = ["shoal", "train", "demo"]
runpy.run_module("shoal", run_name="__main__")
"""


@pytest.mark.parametrize("module", ["rich", "jax"])
def test_ctrl_c_while_modules_are_imported(module):
    code = PRESSED.replace("MODULE", repr(module))
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (told.returncode, told.stderr) == (130, "error: interrupted\n")


def test_programs_compiled_one_after_the_other_count_on(capsys, monkeypatch):
    """A run compiles several programs, with moments between them or with work: the seconds told go on."""
    watch, compiling = interrupts._Watch(-1), [True]
    monkeypatch.setattr(interrupts, "is_compiling", lambda: compiling[0])
    for now in range(61):
        compiling[0] = now not in (14, 15) and not 30 < now < 40
        watch.look(float(now))
    counted = [int(line.split()[2]) for line in capsys.readouterr().err.splitlines()]
    assert counted == [10, 20, 30, 40, 50]  # without the ten seconds between two programs


def test_small_programs_between_slow_updates_are_not_spoken_of(capsys, monkeypatch):
    """Each update takes two seconds and is followed by a moment in which something is traced."""
    watch, compiling = interrupts._Watch(-1), [True]
    monkeypatch.setattr(interrupts, "is_compiling", lambda: compiling[0])
    for quarter in range(4 * 80):
        compiling[0] = quarter < 4 * 12 or quarter % 8 == 0
        watch.look(quarter / 4)
    assert capsys.readouterr().err == "compiling ... 10 s\n"


@pytest.mark.slow
def test_ctrl_c_while_xla_compiles(start, tmp_path):
    """The real thing: a large program, compiled from scratch and as thoroughly as for a user, not for a test."""
    fresh = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"), "XLA_FLAGS": ""}
    command = (sys.executable, "-m", "shoal", "train", "tag/continuous", "--run-dir", str(tmp_path / "run"))
    run = start(*command, env=fresh)
    assert any("compiling for" in line for line in run.process.stdout)
    time.sleep(4)  # it traces for two seconds, and compiles for six
    run.interrupt()
    time.sleep(2 + 3)  # 3 for a busy machine
    said = "".join(run.lines)
    if run.process.poll() is None:  # a compiler that does not look for signals
        assert "Ctrl-C again ends it at once" in said
        run.interrupt()
    assert run.process.wait(10) == 130
    assert "Traceback" not in "".join(run.lines)
