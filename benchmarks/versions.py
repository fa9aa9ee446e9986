"""Which versions of Python and of JAX it works with: `python benchmarks/versions.py PYTHON... [--only PART]`.

For each interpreter, and for the lowest and the highest JAX and Flax that `pyproject.toml` allows and pip finds for it,
it makes a clean environment, installs the wheel of this commit, runs `TESTS` against what is installed (the sources are
not on the path) and a short training from the command line. Verdicts are written as they come, and others stay. The
table of `docs/project/versions.md` is made from them.
"""

import argparse
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "versions.json"
TESTS = (
    "tests/core",
    *(f"tests/ops/test_{part}.py" for part in ("buffers", "distributions", "kernel_pack", "normalisation", "returns")),
    "tests/algorithms/test_updates_by_hand.py",
    "tests/packaging/test_metadata.py",
)
DEMO = ("train", "demo", "--total-env-steps", "2k", "--num-envs", "8", "--num-steps", "16", "--run-dir", "run")
FOR_TESTS = ("pytest>=8.3,<10", "hypothesis>=6.100,<7", "pyyaml>=6,<7")
SHOWN = ("jax", "jaxlib", "flax", "optax", "numpy", "scipy")
PINNED = ("jax", "flax")
"""Packages whose lowest versions are tried."""
SECONDS = 3600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pythons", nargs="+", help="interpreters")
    parser.add_argument("--only", default="", help="a part of the names of those to try: 3.12, lowest")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    found = json.loads(args.out.read_text())["rows"] if args.out.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        tree, wheel = unpack_commit(Path(folder)), build_wheel(Path(folder))
        for python in args.pythons:
            minor = call([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], tree)[1].strip()
            for end in ("lowest", "highest"):
                name = f"{minor}/{end}"
                if args.only not in name:
                    continue
                found[name] = try_versions(python, end, wheel, tree, Path(folder) / name.replace("/", "-"))
                print(name, json.dumps(found[name]), flush=True)
                result = {"tests": TESTS, "rows": dict(sorted(found.items()))}
                args.out.write_text(json.dumps(result, indent=1) + "\n")


def try_versions(python: str, end: str, wheel: Path, tree: Path, folder: Path) -> dict[str, Any]:
    """One clean environment: its versions, how the tests ended, and whether the command line trains."""
    begin = time.monotonic()
    folder.mkdir()
    subprocess.run([python, "-m", "venv", folder / "env"], check=True)
    scripts = folder / "env" / "bin"
    pins = lowest_pins() if end == "lowest" else []
    code, text = call(
        [scripts / "python", "-m", "pip", "install", "-q", f"{wheel}[plot,tensorboard]", *FOR_TESTS, *pins], folder
    )
    if code:
        return {"problem": f"pip: {text.strip().splitlines()[-1]:.300}"}
    versions = f"import importlib.metadata as m, json; print(json.dumps({{p: m.version(p) for p in {SHOWN}}}))"
    row: dict[str, Any] = {
        "commit": commit(),
        "versions": json.loads(call([scripts / "python", "-c", versions], folder)[1]),
    }
    row["python"] = call([scripts / "python", "-c", "import platform; print(platform.python_version())"], folder)[
        1
    ].strip()
    options = ["-q", "-m", "not slow", "-p", "no:cacheprovider"]
    code, text = call([scripts / "python", "-m", "pytest", *options, *TESTS], tree)
    row["tests"] = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", text)}
    row["tests_pass"] = code == 0
    if code:
        row["failed"] = re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)[:20]
    code, text = call([scripts / "shoal", *DEMO], folder)
    row["demo_trains"] = code == 0 and (folder / "run" / "checkpoints").is_dir()
    if code:
        row["problem"] = text.strip().splitlines()[-1][:300]
    row["minutes"] = round((time.monotonic() - begin) / 60, 1)
    return row


def lowest_pins() -> list[str]:
    """`jax==0.10.2`, as `jax>=0.10.2,<0.13` among the dependencies says."""
    texts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    lowest = dict(re.match(r"([\w-]+)>=([\d.]+)", text).groups() for text in texts)  # pyright: ignore
    return [f"{package}=={lowest[package]}" for package in PINNED]


def unpack_commit(folder: Path) -> Path:
    """The committed tree without its package, so that tests find what is installed."""
    tree = folder / "tree"
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as file:
        file.extractall(tree, filter="data")
    return tree


def build_wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / "dist"]
    subprocess.run(command, cwd=folder / "tree", check=True, capture_output=True)
    return next((folder / "dist").glob("*.whl"))


def call(words: list[Any], cwd: Path) -> tuple[int, str]:
    """The exit code and what was printed."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "XLA_FLAGS")}
    try:
        done = subprocess.run(
            list(map(str, words)),
            cwd=cwd,
            env=kept | {"JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 124, f"took longer than {SECONDS} s"
    return done.returncode, done.stdout


def commit() -> str:
    return subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True)[:12]


if __name__ == "__main__":
    main()
