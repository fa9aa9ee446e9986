"""Two virtual CPU devices, strict types, and no skipping where everything is installed."""

import os
import pathlib
import signal
from importlib.metadata import version

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the time here goes into compiling, so programs are compiled in the quickest way, not into the quickest ones.
# An unknown flag ends the process, and the second goes away together with XLA's old way of writing loops.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0"
    + (" --xla_cpu_use_fusion_emitters=false" if version("jaxlib").startswith("0.10.") else ""),
)

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_numpy_dtype_promotion", "standard")
jax.config.update("jax_compilation_cache_dir", os.path.join(os.path.dirname(__file__), "..", ".cache", "xla"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # many small programs are compiled many times


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """With SHOAL_REQUIRE_ALL, a test that would be skipped fails instead."""
    outcome = yield
    report = outcome.get_result()
    if report.skipped and os.environ.get("SHOAL_REQUIRE_ALL") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped although everything must be installed here: {report.longrepr}"


WELL = {"xla_backend_optimization_level": 2}
"""Options of the compiler that undo the flag above."""
MOST_MEMORY = 3 << 30
"""Bytes of a process of tests beyond which it forgets its compiled programs, which it never does by itself."""


@pytest.fixture(autouse=True, scope="module")
def _programs_are_forgotten():
    yield
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1]) if os.path.exists("/proc/self/statm") else 0
    if pages * os.sysconf("SC_PAGE_SIZE") > MOST_MEMORY:
        jax.clear_caches()


@pytest.fixture
def compiled_well(monkeypatch):
    """For trainings that run for longer than they are compiled: programs are optimised, as they are outside tests."""
    plainly = jax.stages.Lowered.compile
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda self, options=None: plainly(self, options or WELL))


@pytest.fixture
def terminal_signals():
    """Ctrl-C and hang-ups as at a terminal: a suite in the background, or under `nohup`, is started to ignore them."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _no_world_stays_behind():
    """What a test registers is known to that test alone, whichever tests its process runs next."""
    from shoal.core import extensions, registry

    before, files = {one.kind: set(one.table) for one in extensions._registries}, dict(registry._files)
    yield
    registry._files.clear()
    registry._files.update(files)
    for one in extensions._registries:
        for name in set(one.table) - before.get(one.kind, set(one.table)):
            del one.table[name]
