"""Hand-written GPU kernels, as PTX that ships with the package: the user needs no compiler.

XLA takes PTX in a custom call, compiles it with the rest of the program and launches it like its own kernels, inside
CUDA graphs too. Alternatives: Pallas cannot scatter into shared memory, which sorting into cells needs; CUDA compiled
at run time still needs a launcher in C, or Python at every step; a binary needs a wheel for each platform and a tool
chain to build it. See docs/design.md.

`neighbours.cu`, `mlp.cu` and `mlp_bf16.cu` are the sources, `build.py` turns them into PTX (which needs CUDA's `nvcc`,
for developers only), kept together in `kernels.xz` (`pack.py`). `trust.py` decides whether they are used.
"""

import functools
import hashlib
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shoal.ops.kernels.pack import unpack

SLOTS = (2, 4, 6, 8, 10, 12, 16, 24, 32)
"""How many neighbours a kernel keeps in registers; other numbers are rounded up, more than the last take several
rounds."""
MLP_INPUTS, MLP_OUTPUTS = (32, 64), (16, 32)
"""Widths that the kernels of `ops.mlp` are compiled for; smaller ones are padded."""
MLP_BLOCKS = {
    ("mlp", 32): {"forward1": 3, "forward2": 3, "backward": 2},
    ("mlp", 64): {"forward1": 3, "forward2": 2, "backward": 2},
    ("mlp_bf16", 32): {"forward1": 4, "forward2": 3, "backward": 3},
    ("mlp_bf16", 64): {"forward1": 4, "forward2": 3, "backward": 2},
}
"""The blocks of those of each source and number of inputs that a multiprocessor of an H200 holds at once."""
_FOLDER = Path(__file__).parent
FILE = _FOLDER / "kernels.xz"
"""The kernels that ship with the package."""


def call(
    kernel: str,
    result: Any,
    *operands: jax.Array,
    grid: tuple[int, ...],
    threads: int,
    shared: int = 0,
) -> Any:
    """Launches a kernel on the current CUDA device, as part of the program that is being traced.

    It gets the operands' addresses, then those of the results. shared: bytes of dynamic shared memory.
    """
    launch = jax.ffi.ffi_call("__gpu$xla.gpu.ptx", result)
    blocks = (*grid, 1, 1)
    return launch(
        *operands,
        name=kernel,
        kernel_type="ptx",
        kernel_data=ptx(kernel),
        grid_x=np.int32(blocks[0]),
        grid_y=np.int32(blocks[1]),
        grid_z=np.int32(blocks[2]),
        block_x=np.int32(threads),
        block_y=np.int32(1),
        block_z=np.int32(1),
        shared_mem_bytes=np.int32(shared),
    )


@functools.cache
def ptx(kernel: str) -> str:
    """The code of a kernel that ships with the package."""
    return unpack(FILE.read_bytes(), kernel)


def fingerprint(source: str) -> str:
    """Fingerprint of a source and of what it includes; each file built from it has it in its first line."""
    text = (_FOLDER / f"{source}.cu").read_bytes()
    included = re.findall(rb'^#include "(.+)"', text, flags=re.MULTILINE)
    texts = [text, *((_FOLDER / name.decode()).read_bytes() for name in included)]
    return hashlib.sha256(b"".join(texts)).hexdigest()[:16]
