"""How far it is from `shoal train` to the loss: own frames on the stack, and own files entered on the way.

    python benchmarks/walk.py [OUT.json] [--target tag/grid] [--stack]

A profile hook follows the command until the loss of PPO is first entered (which is when it is traced). What runs while
a module is imported is not part of the way.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

import shoal
from shoal.cli import main

ROOT = Path(shoal.__file__).parent
LOSS = (str(ROOT / "algorithms" / "ppo.py"), ("loss", "decision_losses"))


class Arrived(BaseException):
    """The loss was entered."""


class Walk:
    """Follows calls until the loss."""

    def __init__(self):
        self.files: dict[str, None] = {}
        self.stack: list[str] = []
        self.importing = 0

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if code.co_name == "<module>" and event in ("call", "return"):
            self.importing += 1 if event == "call" else -1
        if event != "call" or self.importing or not code.co_filename.startswith(str(ROOT)):
            return
        self.files.setdefault(str(Path(code.co_filename).relative_to(ROOT)))
        if code.co_filename == LOSS[0] and code.co_name in LOSS[1]:
            self.stack = own_frames(frame)
            sys.setprofile(None)
            raise Arrived


def own_frames(frame: FrameType | None) -> list[str]:
    """The frames of the package on the stack, the outermost first."""
    found = []
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(str(ROOT)):
            found.append(f"{Path(code.co_filename).relative_to(ROOT)}:{frame.f_lineno} {code.co_qualname}")
        frame = frame.f_back
    return found[::-1]


def walk(target: str) -> Walk:
    """Follows `shoal train TARGET` in this process."""
    follower = Walk()
    with tempfile.TemporaryDirectory() as folder:
        sys.setprofile(follower)
        try:
            main(["train", target, "--run-dir", f"{folder}/run", "--devices", "1"])
        except Arrived:
            pass
        finally:
            sys.setprofile(None)
    return follower


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", help="write the figures there, too")
    parser.add_argument("--target", default="tag/grid")
    parser.add_argument("--stack", action="store_true", help="print the frames and the files")
    args = parser.parse_args()
    found = walk(args.target)
    if not found.stack:
        sys.exit("the loss was never entered")
    if args.stack:
        print(*found.stack, "", *found.files, sep="\n")
    figures = {"target": args.target, "frames": len(found.stack), "files": len(found.files)}
    print(f"own frames from the command to the loss: {figures['frames']}; files entered: {figures['files']}")
    if args.out:
        Path(args.out).write_text(json.dumps(figures | {"stack": found.stack}, indent=1) + "\n")
