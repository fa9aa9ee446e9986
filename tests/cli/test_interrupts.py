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


@pytest.mark.slow
def test_ctrl_c_while_xla_compiles(start, tmp_path):
    """The real thing: a large program, compiled from scratch."""
    fresh = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")}
    command = (sys.executable, "-m", "shoal", "train", "tag/continuous", "--run-dir", str(tmp_path / "run"))
    run = start(*command, env=fresh)
    run.wait_for("compiling ... 10 s", 300)
    run.interrupt()
    time.sleep(2 + 3)  # 3 for a busy machine
    said = "".join(run.lines)
    if run.process.poll() is None:  # it was inside the compiler, and not on its way there
        assert "Ctrl-C again ends it at once" in said
        run.interrupt()
    assert run.process.wait(10) == 130
    assert "Traceback" not in "".join(run.lines)
