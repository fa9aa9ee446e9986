"""Every screen works with the network off, and asks nobody but its own server."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chromium import find_browser
from tests.ui.gallery import SCREENS, SPECIAL

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_screen_with_the_network_off(tmp_path):
    find_browser()
    apart = [shutil.which("unshare"), "--map-root-user", "--net"]
    if apart[0] is None or subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("no network can be taken away here: unshare --net is not allowed")
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [*apart, sys.executable, "-m", "tests.ui.offline", str(tmp_path)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=600, cwd=ROOT, env=environment, check=True
    )
    expected = {"offline": True, "screens": len({**SCREENS, **SPECIAL}), "complaints": []}
    assert json.loads(done.stdout.splitlines()[-1]) == expected
