"""Files that trained policies are exported to, by the name of the format."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from shoal.bridges.js_policy import save_js
from shoal.bridges.onnx_policy import save_onnx
from shoal.bridges.plain_policy import NumpyPolicy
from shoal.core.errors import OptionError, unknown_name
from shoal.core.files import file_stem

Format = Literal["numpy", "onnx", "js"]


class FileKind(NamedTuple):
    """How a format is written. ending: of its files. hint: how they are run."""

    ending: str
    save: Callable[[NumpyPolicy, Path], Path]
    hint: str


FORMATS: dict[str, FileKind] = {
    "numpy": FileKind(".npz", NumpyPolicy.save, "with plain_policy.py, which needs numpy alone: load(FILE)(view)"),
    "onnx": FileKind(".onnx", save_onnx, "with onnxruntime: InferenceSession(FILE).get_inputs() names what it takes"),
    "js": FileKind(".html", save_js, "in a browser, without a network: open FILE, or call policy.act(observation)"),
}
assert tuple(FORMATS) == get_args(Format)


def save_policies(
    policies: Mapping[str, NumpyPolicy], folder: str | Path, format: str = "numpy", force: bool = False
) -> dict[str, Path]:
    """Writes each policy to a file of its name in a folder, which is made if it is not there; the files by name.

    format: one of `FORMATS`. force: replace files that are there already, which is refused otherwise.
    """
    if format not in FORMATS:
        raise unknown_name("format", format, FORMATS)
    kind = FORMATS[format]
    files = {name: Path(folder) / f"{file_stem(name)}{kind.ending}" for name in policies}
    taken = [str(file) for file in files.values() if file.exists()]
    if taken and not force:
        raise OptionError(f"{', '.join(taken)} is there already: choose another folder, or replace it with --force")
    Path(folder).mkdir(parents=True, exist_ok=True)
    return {name: kind.save(policy, files[name]) for name, policy in policies.items()}
