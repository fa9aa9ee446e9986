"""The files that are published: built from the tree, small, and enough in an environment that has nothing else."""

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import urllib.request
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_BYTES = {"sdist": 1_500_000, "wheel": 1_770_000}
"""Of the wheel three fifths are Python, an eighth films of worlds and a twelfth GPU kernels; see RELEASING.md."""


def clean(**more: str) -> dict[str, str]:
    """The environment without what would lead to this tree's package."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "XLA_FLAGS")}
    return kept | {"JAX_PLATFORMS": "cpu"} | more


def call(*words: object, cwd: Path, timeout: float = 900) -> str:
    done = subprocess.run(
        list(map(str, words)), cwd=cwd, env=clean(), capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def check_published_readme(metadata: str) -> None:
    """An index shows it without the files beside it: all that it links to and shows is in the repository."""
    _, text = metadata.split("\n\n", 1)
    address = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
    shown = re.findall(r"\b(?:src|srcset)=\"([^\"]+)\"", text)
    linked = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE))
    assert {link.rpartition(".")[2] for link in shown} == {"webp"}
    assert len(linked) > 10
    for link in shown + linked:
        place, _, _ = link.removeprefix(f"{address}/{'raw' if link in shown else 'blob'}/main/").partition("#")
        assert (ROOT / place).exists(), link


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The source distribution and the wheel."""
    pytest.importorskip("hatchling", reason="hatchling is not installed: pip install hatchling")
    folder = tmp_path_factory.mktemp("dist")
    # `-m build` would make an environment of its own; its backend is the same.
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", folder], cwd=ROOT, check=True, timeout=300)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module", params=["sdist", "wheel"])
def installed(built, tmp_path_factory, request):
    """A folder with a virtual environment that has one of the two, and what it asks for."""
    folder, file = tmp_path_factory.mktemp("clean"), built[request.param == "wheel"]
    call(sys.executable, "-m", "venv", folder / "env", cwd=folder)
    python = folder / "env" / "bin" / "python"
    call(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{file}[ui]", cwd=folder)
    return folder


def test_what_is_in_them(built):
    sdist, wheel = built
    assert re.fullmatch(r"shoal_rl-[\d.]+\.tar\.gz", sdist.name)
    assert sdist.stat().st_size <= MOST_BYTES["sdist"]
    assert wheel.stat().st_size <= MOST_BYTES["wheel"]
    with tarfile.open(sdist) as file:
        sources = [name.split("/", 1)[1] for name in file.getnames()]
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "src/shoal/py.typed"} <= set(sources)
    assert not [name for name in sources if name.startswith(("benchmarks/results", "docs", "tests"))]
    with zipfile.ZipFile(wheel) as file:
        packed = file.namelist()
        metadata = file.read(next(name for name in packed if name.endswith(".dist-info/METADATA"))).decode()
    check_published_readme(metadata)
    assert {name.split("/")[0] for name in packed if ".dist-info" not in name} == {"shoal"}
    own = {name.removeprefix("src/") for name in sources if name.startswith("src/shoal/")}
    assert own == {name for name in packed if name.startswith("shoal/")}


@pytest.mark.slow
def test_a_clean_environment_trains(installed):
    shoal = installed / "env" / "bin" / "shoal"
    where = call(installed / "env" / "bin" / "python", "-c", "import shoal; print(shoal.__file__)", cwd=installed)
    assert Path(where.strip()).is_relative_to(installed)
    assert re.search(r"\d+\.\d+\.\d+", call(shoal, "--version", cwd=installed))
    short = ("--total-env-steps", "2k", "--num-envs", "8", "--num-steps", "16")
    trained = call(shoal, "train", "demo", *short, "--run-dir", "run", "--json", cwd=installed)
    assert json.loads(trained)["env_steps"] == 2048
    assert (installed / "run" / "config.json").exists()
    missing = call(shoal, "doctor", cwd=installed)
    assert "pip install 'shoal-rl[plot]'" in missing.replace("\n", " ")


@pytest.mark.slow
def test_a_clean_environment_serves_pages(installed):
    shoal = installed / "env" / "bin" / "shoal"
    words = [str(shoal), "ui"]
    server = subprocess.Popen(
        words, cwd=installed, env=clean(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert server.stdout
        address = next(found[0] for line in server.stdout if (found := re.search(r"http://[^\s]+", line)))
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())  # the token becomes a cookie
        with browser.open(address, timeout=60) as page:
            assert "<html" in page.read().decode()
    finally:
        server.terminate()
        server.communicate(timeout=60)
