"""A Python or a JAX that Shoal does not support is refused in one line, before anything else fails."""

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import shoal
from shoal._python import FIRST, check_python
from shoal.cli import main
from shoal.core.supported import PACKAGES, VersionError, check_versions

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OLD = "import sys; sys.version_info = (3, 10, 13, 'final', 0); "


@pytest.fixture
def installed(monkeypatch):
    """Sets the versions that are found; None: not installed."""
    real = importlib.metadata.version

    def install(**versions):
        def look_up(name):
            if name in versions and versions[name] is None:
                raise importlib.metadata.PackageNotFoundError(name)
            return versions.get(name) or real(name)

        monkeypatch.setattr(importlib.metadata, "version", look_up)
        check_versions.cache_clear()

    yield install
    check_versions.cache_clear()


def test_what_is_supported_is_what_pip_is_told():
    assert PROJECT["requires-python"] == f">={'.'.join(map(str, FIRST))}"
    for package, (first, end) in PACKAGES.items():
        assert f"{package}>={first},<{end}" in PROJECT["dependencies"]


@pytest.mark.parametrize("version", ["0.10.2", "0.10.3.dev20260101", "0.11", "0.12.0.1", "0.12.99"])
def test_versions_that_are_supported(installed, version):
    installed(jax=version)
    check_versions()


@pytest.mark.parametrize("version", ["0.4.38", "0.9", "0.10.1", "0.13.0", "0.13", "1.0", None])
def test_others_are_refused(installed, version):
    installed(jax=version)
    found = f"jax {version} is installed" if version else "jax is not installed"
    with pytest.raises(VersionError, match=rf"^{found}, and Shoal .* supports jax 0.10.2 and newer, below 0.13: "):
        shoal.__getattr__("make")  # as `shoal.make` does the first time
    with pytest.raises(VersionError, match=r"pip install 'jax>=0.10.2,<0.13'$"):
        shoal.__getattr__("testing")


def test_the_command_line_says_it_in_one_line(installed, capsys):
    installed(flax="0.10.0")
    assert main(["train", "demo"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: flax 0.10.0 is installed, and Shoal ")
    assert error.count("\n") == 1
    for words in (["--help"], ["help"], ["version"]):
        assert main(words) == 0


@pytest.mark.parametrize("command", ["shoal", "-m"])
def test_an_old_python_on_the_command_line(command):
    code = OLD + f"sys.argv = ['/bin/{command}', 'train'] if {command!r} == 'shoal' else ['-m']; import shoal"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: Shoal needs Python 3.11 or newer, and this is Python 3.10.13: python3.11 -m venv .venv"
    ]


def test_an_old_python_that_imports():
    check_python((3, 11, 0, "final", 0), ["script.py"])
    with pytest.raises(ImportError, match=r"needs Python 3\.11 or newer, and this is Python 3\.9\.1"):
        check_python((3, 9, 1, "final", 0), ["script.py"])
