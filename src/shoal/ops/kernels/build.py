"""Builds the kernels: `python -m shoal.ops.kernels.build`. It needs CUDA's compiler `nvcc`; users do not."""

import gzip
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from shoal.ops.kernels import SLOTS, fingerprint

_ARCHITECTURE = "compute_75"  # the oldest that CUDA 13 knows
_PTX_VERSION = "7.5"  # nothing newer is used; the compiler would name its own, which older drivers refuse


def build(folder: Path) -> list[Path]:
    """Writes `shoal_nearest_{brute,cells}_{slots}.ptx.gz` into a folder."""
    source = Path(__file__).parent / "neighbours.cu"
    written = []
    for form in ("brute", "cells"):
        for slots in SLOTS:
            file = folder / f"shoal_nearest_{form}_{slots}.ptx.gz"
            text = f"// built from {fingerprint()}\n{_compile(source, form, slots)}"
            file.write_bytes(gzip.compress(text.encode(), mtime=0))
            written.append(file)
    return written


def _compile(source: Path, form: str, slots: int) -> str:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "kernel.ptx"
        flags = ["-ptx", "-O3", "--std=c++17", f"-arch={_ARCHITECTURE}", f"-DSLOTS={slots}", f"-D{form.upper()}"]
        flags += ["-diag-suppress", "128"]  # a loop that no thread reaches: the most slots need no bound
        subprocess.run(["nvcc", *flags, "-o", str(target), str(source)], check=True)
        text = target.read_text()
    text = re.sub(r"^//.*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"^\.version .*$", f".version {_PTX_VERSION}", text, flags=re.MULTILINE).strip() + "\n"


if __name__ == "__main__":
    for file in build(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent):
        sys.stdout.write(f"{file} {file.stat().st_size} bytes\n")
