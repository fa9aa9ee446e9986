"""The way from `shoal train` to the loss stays short."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FRAMES, FILES = 14, 57


def test_frames_and_files_from_the_command_to_the_loss(tmp_path):
    script = ROOT / "benchmarks" / "walk.py"
    subprocess.run([sys.executable, script, tmp_path / "walk.json"], check=True, capture_output=True, timeout=120)
    found = json.loads((tmp_path / "walk.json").read_text())
    assert found["frames"] <= FRAMES
    assert found["files"] <= FILES, "a file more is entered: `python benchmarks/walk.py --stack` lists them"
