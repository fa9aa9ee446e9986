"""`shoal export RUN`: trained policies as files that need neither JAX nor Shoal, one each."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from tyro.conf import DisallowNone, Positional, arg

from shoal.api.targets import attributed_to
from shoal.bridges import plain_policy
from shoal.bridges.export_formats import FORMATS, Format, save_policies
from shoal.bridges.numpy_policy import export
from shoal.cli.arguments import Checkpoint, Flag, Folder
from shoal.cli.run_options import StoredRunOptions
from shoal.cli.stored_runs import open_stored, parse_stored, results_path
from shoal.cli.terminal import console, emit, say, warn
from shoal.training.run import load_policies

LOADER = "/".join([*plain_policy.__name__.split(".")[:-1], Path(plain_policy.__file__).name])
"""The file that reads what is written here, from where the package is."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportOptions(StoredRunOptions):
    """Write the policies of a run's checkpoint as files that need no JAX: DIR/<policy>.npz, .onnx or .html.

    In names of files, `/` and the like are written as %2F.
    """

    folder: Positional[Annotated[DisallowNone[str | None], arg(metavar="FOLDER")]] = None  # old, for --out FOLDER
    out: Folder = None  # where to write, made if it is not there; by default policies in the run folder
    format: Annotated[Format, arg(metavar="|".join(FORMATS))] = "numpy"
    """a file for numpy alone, for onnxruntime and its like, or a page that computes the policy in a browser"""
    seed_index: int = 0  # whose policies, of a run of several seeds, counted from 0
    checkpoint: Checkpoint = None  # of which update, or the best in evaluation; by default the newest
    force: Flag = False  # replace files that are there already


def run(args: Sequence[str]) -> int:
    """Exports every policy of a run."""
    options = parse_stored(ExportOptions, args, "shoal export")
    found = open_stored(options.run, "shoal export", options.seed_index)
    with attributed_to(found.experiment.env, "export"):
        setup, policies, meta = load_policies(found.path, options.seed_index, options.checkpoint)
        plain = {name: export(policy, setup.spec.groups[name].observation) for name, policy in policies.items()}
    if options.folder is not None:
        warn("FOLDER is now --out FOLDER; the old form goes in the next release")
    folder = Path(options.out or options.folder or results_path(found, "policies"))
    files = save_policies(plain, folder, options.format, options.force)
    if options.json:
        written = {name: str(file) for name, file in files.items()}
        emit({"files": written, "updates": meta["update"], "loader": plain_policy.__file__})
    else:
        out = console()
        for name, file in files.items():
            say(out, f"{name}: {file}")
        say(out, f"run them anywhere {FORMATS[options.format].hint}")
        if options.format == "numpy":
            say(out, f"plain_policy.py is {LOADER} of this package")
    return 0
