"""Builds the kernels: `python -m shoal.ops.kernels.build`. It needs CUDA's compiler `nvcc`; users do not."""

import itertools
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from shoal.ops.kernels import FILE, MLP_BLOCKS, MLP_OUTPUTS, SLOTS, fingerprint
from shoal.ops.kernels.pack import pack, renumber

_PTX_VERSION = "7.5"  # nothing newer is used; the compiler would name its own, which older drivers refuse


def kernels() -> dict[str, tuple[str, str, list[str]]]:
    """Source, architecture and definitions of every kernel, by name."""
    found = {}
    for form in ("brute", "cells"):
        for slots in SLOTS:
            # The oldest architecture that CUDA 13 knows.
            found[f"shoal_nearest_{form}_{slots}"] = "neighbours", "compute_75", [f"SLOTS={slots}", form.upper()]
    forms = {"forward1": ["FORWARD", "MT=1"], "forward2": ["FORWARD", "MT=2"]}
    forms |= {"backward": ["BACKWARD", "MT=1"], "backward_inputs": ["BACKWARD_INPUTS", "MT=1"]}
    for (source, inputs), blocks in MLP_BLOCKS.items():
        for (form, defined), outputs in itertools.product(forms.items(), MLP_OUTPUTS):
            name = f"shoal_{source}_{form}_{inputs}_{outputs}"
            sizes = [f"NAME={name}", f"IN={inputs}", f"OUT={outputs}", f"BLOCKS={blocks[form.removesuffix('_inputs')]}"]
            found[name] = source, "compute_80", defined + sizes  # the first with products in TF32 and bfloat16
    return found


def build(file: Path) -> None:
    """Compiles every kernel, and writes all of them to a file."""
    built = {}
    for name, (source, architecture, defined) in kernels().items():
        built[name] = f"// built from {fingerprint(source)}\n{_compile(source, architecture, defined)}"
    file.write_bytes(pack(built))


def _compile(source: str, architecture: str, defined: list[str]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "kernel.ptx"
        flags = ["-ptx", "-O3", "--std=c++17", f"-arch={architecture}", *(f"-D{name}" for name in defined)]
        flags += ["-diag-suppress", "128,177"]  # a loop that no thread reaches; what only other kernels use
        subprocess.run(["nvcc", *flags, "-o", str(target), Path(__file__).parent / f"{source}.cu"], check=True)
        text = target.read_text()
    text = re.sub(r"^//.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^\.version .*$", f".version {_PTX_VERSION}", text, flags=re.MULTILINE)
    return renumber(text.strip() + "\n")


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
    build(target)
    sys.stdout.write(f"{target} {target.stat().st_size} bytes\n")
