"""`shoal doctor`: what this machine offers, and what is missing."""

import dataclasses
import importlib.util
import os
import shutil
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from rich.table import Table

from shoal.cli.arguments import Flag, parse
from shoal.cli.start import prepare
from shoal.cli.terminal import console, emit, say, size
from shoal.execution.bench import versions
from shoal.execution.devices import num_cores, use_compilation_cache

OPTIONAL = {
    "matplotlib": ("learning curves (curves.png)", "pip install 'shoal[viz]'"),
    "tensorboardX": ("TensorBoard events in every run folder", "pip install 'shoal[viz]'"),
}
"""Packages that Shoal can do without: what for, and how to get them."""


@dataclasses.dataclass(frozen=True)
class DoctorOptions:
    """Show devices, versions, the compilation cache, and what is missing."""

    json: Flag = False  # one JSON object on stdout


def run(args: Sequence[str]) -> int:
    """Looks around and reports; nothing is changed."""
    options = parse(DoctorOptions, args, "shoal doctor")
    prepare()
    report = _examine()
    if options.json:
        emit(report)
    else:
        _show(report)
    return 0


def _examine() -> dict[str, Any]:
    packages = {name: importlib.util.find_spec(name) is not None for name in OPTIONAL}
    browser = _browser()
    report = {
        "devices": [_device(device) for device in jax.local_devices()],
        "cores": num_cores(),
        "versions": versions(),
        "cache": _cache(Path(use_compilation_cache())),
        "packages": packages,
        "browser": browser,
    }
    advice = [f"{name}, for {what}: {how}" for name, (what, how) in OPTIONAL.items() if not packages[name]]
    if Path("/dev/nvidiactl").exists() and jax.default_backend() == "cpu":
        advice.append("there is a GPU, but JAX cannot use it: pip install 'shoal[cuda]'")
    if browser is None:
        advice.append("no browser was found to watch replays with: copy replay.html to a machine that has one")
    if not report["cache"]["writable"]:
        advice.append("the compilation cache cannot be written: set JAX_COMPILATION_CACHE_DIR to a folder that can")
    return report | {"missing": advice}


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
        table.add_row("devices", f"{kinds.count(kind)} x {kind}" + (f", {size(memory)} each" if memory else ""))
    table.add_row("CPU cores", str(report["cores"]))
    table.add_row("versions", ", ".join(f"{name} {version}" for name, version in report["versions"].items()))
    cache = report["cache"]
    table.add_row("compilation cache", f"{cache['folder']} ({cache['programs']} files, {size(cache['bytes'])})")
    table.add_row("browser", report["browser"] or "none found")
    for name, found in report["packages"].items():
        table.add_row(name, "installed" if found else "missing")
    out.print(table)
    for advice in report["missing"]:
        say(out, f"missing: {advice}", style="yellow")
    if not report["missing"]:
        say(out, "all is well", style="green")
