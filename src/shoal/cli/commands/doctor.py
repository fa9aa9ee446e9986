"""`shoal doctor`: what this machine offers, and what is missing."""

import dataclasses
import importlib.metadata
import os
import re
import shutil
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from rich.table import Table

from shoal.cli.arguments import Flag, parse
from shoal.cli.terminal import console, emit, format_size, say
from shoal.core.errors import install_command
from shoal.core.extensions import problems
from shoal.core.version import DISTRIBUTION
from shoal.networks.own_torsos import TORSOS as TORSOS  # what packages declare is looked at too
from shoal.ops import mlp, neighbours
from shoal.ops.kernels import trust
from shoal.training.bench import versions
from shoal.training.devices import num_cores, prepare_jax, use_compilation_cache

PURPOSES = {
    "ale-py": "Atari games of one player",
    "dm-env": "environments with DeepMind's interface: dm_env:my.module:make",
    "evosax": "more strategies for shoal evolve",
    "fsspec": "runs in shared or object storage: --mirror file:///shared/runs",
    "gymnasium": "Gymnasium's environments: gymnasium:CartPole-v1",
    "gymnax": "gymnax's environments: gymnax:CartPole-v1",
    "imageio-ffmpeg": "films as MP4: shoal watch RUN --mp4",
    "jaxmarl": "JaxMARL's environments: jaxmarl:MPE_simple_spread_v3",
    "jumanji": "Jumanji's environments: jumanji:Game2048-v1",
    "matplotlib": "learning curves (curves.png)",
    "mpe2": "PettingZoo's particle worlds: pettingzoo:mpe2.simple_spread_v3",
    "multi-agent-ale-py": "Atari games of several players",
    "onnx": "policies as ONNX: shoal export RUN --format onnx",
    "open-spiel": "OpenSpiel's games: openspiel:leduc_poker",
    "pettingzoo": "PettingZoo's environments: pettingzoo:...",
    "pillow": "films, and pictures of worlds: shoal watch RUN --webp",
    "ray": "training on a cluster: --cluster auto",
    "stable-baselines3": "its learners in our worlds",
    "starlette": "the page of shoal ui",
    "tensorboardx": "TensorBoard events in every run folder",
    "torch": "worlds and policies as tensors of PyTorch",
    "torchrl": "our worlds in TorchRL",
    "uvicorn": "the server of shoal ui",
    "vmas": "VMAS scenarios: vmas:balance",
    "wandb": "Weights & Biases: --log wandb",
}
"""What Shoal can do with packages that it can do without."""
KERNELS = {
    "small networks": mlp.make_trial([(32, 64, 64, 16)], "tanh"),
    "small networks in bfloat16": mlp.make_trial([(32, 64, 64, 16)], "tanh", "bfloat16"),
    "the neighbour search": neighbours.make_trial("brute", 10),
}
"""What is tried here for each of those that there are kernels for; others are tried when a program needs them."""
FOR_OTHERS = ("all", "viz", "cuda", "cuda12", "cuda13")
"""Extras that are not looked for: sums of others, and GPUs, with their own advice."""


@dataclasses.dataclass(frozen=True)
class DoctorOptions:
    """Show devices, versions, the compilation cache, and what is missing."""

    json: Flag = False  # one JSON object on stdout


def run(args: Sequence[str]) -> int:
    """Looks around and reports; nothing is changed."""
    options = parse(DoctorOptions, args, "shoal doctor")
    prepare_jax()
    report = _examine()
    if options.json:
        emit(report)
    else:
        _show(report)
    return 0


def _examine() -> dict[str, Any]:
    packages = [_package(name, extra) for name, extra in optional_packages()]
    browser = _browser()
    report = {
        "devices": [_device(device) for device in jax.local_devices()],
        "cores": num_cores(),
        "versions": versions(),
        **{f"{trial.source}_kernels": trust.find_problem(trial) or "used" for trial in KERNELS.values()},
        "distrusted_kernels": trust.find_kept_problems(),
        "cache": _cache(Path(use_compilation_cache())),
        "packages": packages,
        "browser": browser,
    }
    lacking: dict[str, list[str]] = {}
    for package in packages:
        if package["version"] is None:
            lacking.setdefault(package["extra"], []).append(f"{package['name']} ({package['for']})")
    advice = [f"{'; '.join(names)}. To have it: {install_command(extra)}" for extra, names in lacking.items()]
    if Path("/dev/nvidiactl").exists() and jax.default_backend() == "cpu":
        advice.append(f"there is a GPU, but JAX cannot use it: {_cuda_command()}")
    if browser is None:
        advice.append("no browser was found to watch replays with: copy replay.html to a machine that has one")
    if not report["cache"]["writable"]:
        advice.append("the compilation cache cannot be written: set JAX_COMPILATION_CACHE_DIR to a folder that can")
    return report | {"missing": advice, "broken": problems()}


def optional_packages() -> list[tuple[str, str]]:
    """Packages that are not needed but useful, and the extra that installs each, as this distribution declares them."""
    try:
        declared = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:  # run from its source: nothing is declared
        return []
    found: dict[str, str] = {}
    for text in declared:
        name, extra = re.match(r"[\w.-]+", text), re.search(r"extra\s*==\s*['\"]([\w.-]+)['\"]", text)
        if name and extra and name[0] != DISTRIBUTION and extra[1] not in FOR_OTHERS:
            found[re.sub(r"[-_.]+", "-", name[0]).lower()] = extra[1]
    return sorted(found.items(), key=lambda entry: (entry[1], entry[0]))


def _package(name: str, extra: str) -> dict[str, Any]:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        version = None
    return {"name": name, "extra": extra, "version": version, "for": PURPOSES.get(name, f"the extra {extra}")}


def _cuda_command() -> str:
    return f"{install_command('cuda13')}, or, where the driver is older than 580, {install_command('cuda12')}"


def _device(device: Any) -> dict[str, Any]:
    memory = (device.memory_stats() or {}).get("bytes_limit")
    return {"id": device.id, "platform": device.platform, "kind": device.device_kind, "memory_bytes": memory}


def _cache(folder: Path) -> dict[str, Any]:
    files = [file for file in folder.rglob("*") if file.is_file()] if folder.is_dir() else []
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    writable = nearest.is_dir() and os.access(nearest, os.W_OK)
    return {
        "folder": str(folder),
        "programs": len(files),
        "bytes": sum(file.stat().st_size for file in files),
        "writable": writable,
    }


def _browser() -> str | None:
    try:
        return getattr(webbrowser.get(), "name", "default browser")
    except webbrowser.Error:
        names = ("chromium", "chromium-browser", "google-chrome", "firefox")
        return next((name for name in names if shutil.which(name)), None)


def _show(report: dict[str, Any]) -> None:
    out = console()
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    kinds = [f"{device['platform']}: {device['kind']}" for device in report["devices"]]
    for kind in dict.fromkeys(kinds):
        memory = next(d["memory_bytes"] for d in report["devices"] if f"{d['platform']}: {d['kind']}" == kind)
        table.add_row("devices", f"{kinds.count(kind)} x {kind}" + (f", {format_size(memory)} each" if memory else ""))
    table.add_row("CPU cores", str(report["cores"]))
    table.add_row("versions", ", ".join(f"{name} {version}" for name, version in report["versions"].items()))
    cache = report["cache"]
    table.add_row("compilation cache", f"{cache['folder']} ({cache['programs']} files, {format_size(cache['bytes'])})")
    for name, trial in KERNELS.items():
        verdict = report[f"{trial.source}_kernels"]
        table.add_row(f"kernels of {name}", verdict if verdict == "used" else f"not used: {verdict}")
    for name, problem in report["distrusted_kernels"].items():
        table.add_row(f"not used: {name}", problem)
    table.add_row("browser", report["browser"] or "none found")
    for extra in dict.fromkeys(package["extra"] for package in report["packages"]):
        own = [package for package in report["packages"] if package["extra"] == extra]
        shown = [f"{package['name']} {package['version'] or '(missing)'}" for package in own]
        table.add_row(f"{DISTRIBUTION}[{extra}]", ", ".join(shown))
    out.print(table)
    for advice in report["missing"]:
        say(out, f"missing: {advice}", style="yellow")
    for text in report["broken"]:
        say(out, f"broken: {text}", style="yellow")
    if not (report["missing"] or report["broken"]):
        say(out, "all is well", style="green")
