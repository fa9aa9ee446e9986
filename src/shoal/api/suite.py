"""The benchmark suite: the work that speed is judged by, in sizes that suit the device at hand.

    from shoal.api.suite import measure, suite_for

    rows = [measure(work, seconds=1.0) for work in suite_for("cpu")]

Each row is timed by `training.bench`, which times what training itself runs; compiling is timed apart, and without the
cache of compiled programs. `shoal bench suite` prints the table, `benchmarks/headline.py` keeps that of one GPU.
"""

import contextlib
import dataclasses
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from shoal import presets
from shoal.core.errors import OptionError, shell_command
from shoal.networks.torsos import ComputeDtype
from shoal.training.bench import bench_env, bench_train, versions
from shoal.training.experiment import Experiment, Learner

PRECISIONS = {"cpu": "float32", "gpu": "float32, products in TF32", "tpu": "float32, products in bfloat16"}
"""What a platform computes products in unless it is told otherwise."""
REPEATS = 3
SECONDS, QUICK_SECONDS = 1.0, 0.25
"""How long each repeat of a row is timed; a call that takes longer is timed once or twice."""


@dataclasses.dataclass(frozen=True)
class Work:
    """A row of the suite: training a preset, or stepping a world with random actions.

    sizes: what differs from the preset, or the copies and steps of a call. dtype: of the networks. peer: who published
    a rate for it, and peer_rate: which, in env steps/s, measured on an H200 as well (WarpDrive 2.7.1, JaxMARL 0.2.0).
    """

    name: str
    target: str
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    trains: bool = False
    dtype: ComputeDtype = "float32"
    peer: str | None = None
    peer_rate: float | None = None
    long: bool = False  # whether a quick look leaves it out

    def run(self, seconds: float, repeats: int) -> dict[str, Any]:
        """Measures it, see `training.bench`."""
        if self.trains:
            return bench_train(self.experiment, seconds=seconds, repeats=repeats)
        sizes: dict[str, Any] = dict(self.sizes)
        return bench_env(self.target, dict(self.options), **sizes, seconds=seconds, repeats=repeats)

    @property
    def experiment(self) -> Experiment:
        """What is trained."""
        experiment = dataclasses.replace(presets.get(self.target), **dict(self.sizes))
        if self.dtype == "float32":
            return experiment
        learners = {name: _with_dtype(learner, self.dtype) for name, learner in experiment.learners.items()}
        return experiment.replace(learners=learners)

    def command(self, seconds: float) -> str:
        """The command that measures this row alone, once."""
        words = ["train" if self.trains else "env", self.target]
        for name, value in self.sizes.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        words += [] if self.dtype == "float32" else ["--algo.network.dtype", self.dtype]
        for name, value in self.options.items():
            option = name.replace("_", "-")
            words += (
                [f"--env.{option}", str(value)]
                if type(value) is not bool
                else [f"--env.{option}" if value else f"--env.no-{option}"]
            )
        return shell_command("bench", *words, "--seconds", f"{seconds:g}")


SPREAD, GRID, CONTINUOUS = "reference/simple_spread_ippo", "reference/tag_grid_a2c", "reference/tag_continuous_a2c"
THOUSAND = {"num_taggers": 100, "num_runners": 900}

HEADLINE = (
    Work("simple_spread PPO reference, 1,024 copies", SPREAD, {}, {}, True, peer="JaxMARL", peer_rate=7.8e6),
    Work(
        "simple_spread PPO reference, 4,096 copies",
        SPREAD,
        {"num_envs": 4096},
        trains=True,
        peer="JaxMARL",
        peer_rate=17e6,
    ),
    Work(
        "simple_spread PPO reference, 16,384 copies",
        SPREAD,
        {"num_envs": 16384},
        trains=True,
        peer="JaxMARL",
        peer_rate=23.6e6,
    ),
    Work("simple_spread PPO, 4,096 copies, bfloat16", SPREAD, {"num_envs": 4096}, trains=True, dtype="bfloat16"),
    Work("simple_spread PPO, 16,384 copies, bfloat16", SPREAD, {"num_envs": 16384}, trains=True, dtype="bfloat16"),
    Work(
        "tag/grid 2000 x 5, random",
        "tag/grid",
        {"num_envs": 2000, "num_steps": 500},
        peer="WarpDrive",
        peer_rate=11.1e6,
    ),
    Work(
        "tag/grid 2000 x 1000, partial view, random",
        "tag/grid",
        {"num_envs": 2000, "num_steps": 200},
        {"num_taggers": 999, "full_view": False},
        peer="WarpDrive",
        peer_rate=3.19e6,
    ),
    Work("tag/grid 2000 x 5, A2C reference", GRID, {}, {}, True, peer="WarpDrive", peer_rate=1.71e6),
    Work(
        "tag/continuous 1000 x 110, random",
        "tag/continuous",
        {"num_envs": 1000, "num_steps": 100},
        peer="WarpDrive",
        peer_rate=1.05e6,
    ),
    Work("tag/continuous 2000 x 1000, random", "tag/continuous", {"num_envs": 2000, "num_steps": 20}, THOUSAND),
    Work("tag/continuous 100 x 110, A2C reference", CONTINUOUS, {}, {}, True, peer="WarpDrive", peer_rate=29.4e3),
    Work(
        "tag/continuous 900 x 110, A2C, batch 54,000",
        CONTINUOUS,
        {"num_envs": 900, "num_steps": 60},
        trains=True,
        peer="WarpDrive",
        peer_rate=123e3,
    ),
    Work(
        "simple_spread random, 262,144 copies",
        "mpe/simple_spread",
        {"num_envs": 262144, "num_steps": 250},
        peer="JaxMARL",
        peer_rate=391e6,
    ),
)
"""The rows that speed is judged by, on one GPU."""

SMALL = (
    Work("simple_spread PPO reference, 128 copies", SPREAD, {"num_envs": 128}, trains=True),
    Work("simple_spread PPO reference, 512 copies", SPREAD, {"num_envs": 512}, trains=True, long=True),
    Work("tag/grid 200 x 5, random", "tag/grid", {"num_envs": 200, "num_steps": 100}),
    Work(
        "tag/grid 20 x 1000, partial view, random",
        "tag/grid",
        {"num_envs": 20, "num_steps": 10},
        {"num_taggers": 999, "full_view": False},
    ),
    Work("tag/grid 200 x 5, A2C reference", GRID, {"num_envs": 200}, trains=True),
    Work("tag/continuous 20 x 110, random", "tag/continuous", {"num_envs": 20, "num_steps": 20}),
    Work(
        "tag/continuous 10 x 110, A2C reference", CONTINUOUS, {"num_envs": 10, "num_steps": 25}, trains=True, long=True
    ),
    Work("simple_spread random, 4,096 copies", "mpe/simple_spread", {"num_envs": 4096, "num_steps": 50}),
)
"""The same work in the sizes of a CPU: the whole table within a few minutes on two cores."""


def suite_for(platform: str) -> tuple[Work, ...]:
    """The rows that make sense on a platform: `cpu`, `gpu` or `tpu`, as JAX calls it."""
    return SMALL if platform == "cpu" else HEADLINE


def measure(work: Work, seconds: float = SECONDS, repeats: int = REPEATS, command: str = "") -> dict[str, Any]:
    """One row as plain data: the median rate, its spread, time to compile, and what it was measured with.

    command: what was typed; by default the command that measures this row alone. Work that does not fit into memory
    gives a row with `refused`, the reason, in place of figures.
    """
    row: dict[str, Any] = {"work": work.name, "command": command or work.command(seconds), "commit": commit()}
    row |= {"date": time.strftime("%Y-%m-%d"), "device": device(), "versions": versions()}
    try:
        with _without_cache():
            found = work.run(seconds, repeats)
    except OptionError as error:
        return row | {"refused": str(error)}
    rates = sorted(found["repeats"])
    rate = statistics.median(rates)
    figures = {"env_steps_per_s": rate, "spread": [rates[0], rates[-1]], "repeats": rates}
    figures |= {"precision": precision(work.dtype)}
    figures |= {"agent_steps_per_s": found["agent_steps_per_s"], "env_steps_per_cpu_s": found["env_steps_per_cpu_s"]}
    figures |= {"compile_s": found["compile_s"], "kernels": found["kernels"]}
    if work.peer_rate is not None:
        figures |= {"peer": work.peer, "peer_env_steps_per_s": work.peer_rate, "ratio": rate / work.peer_rate}
    return row | figures


def _with_dtype(learner: Learner, dtype: ComputeDtype) -> Learner:
    algorithm: Any = learner.algorithm
    network = dataclasses.replace(algorithm.network, dtype=dtype)
    return dataclasses.replace(learner, algorithm=dataclasses.replace(algorithm, network=network))


def device() -> str:
    """The first device, as benchmarks name it."""
    first = jax.local_devices()[0]
    return f"{first.platform}: {first.device_kind}"


def precision(dtype: ComputeDtype = "float32") -> str:
    """What products are computed in on this platform. dtype: that of the networks."""
    if dtype != "float32":
        return f"networks in {dtype}, weights in float32"
    asked = jax.config.values["jax_default_matmul_precision"]
    if asked is not None:
        return f"float32, products as jax_default_matmul_precision={asked}"
    return PRECISIONS.get(jax.local_devices()[0].platform, "float32")


def commit() -> str | None:
    """The commit of the checkout that this package is run from; None for an installed one. `+`: with changes."""
    folder = Path(__file__).resolve().parent

    def git(*words: str) -> str:
        asked = ["git", "-C", str(folder), *words]
        return subprocess.run(asked, check=True, capture_output=True, text=True, timeout=10).stdout.strip()

    try:
        git(
            "ls-files", "--error-unmatch", Path(__file__).name
        )  # a package within somebody else's checkout is not in it
        return git("rev-parse", "--short", "HEAD") + "+" * bool(git("status", "--porcelain", "--", str(folder.parent)))
    except (OSError, subprocess.SubprocessError):
        return None


@contextlib.contextmanager
def _without_cache() -> Iterator[None]:
    """Programs are compiled, not read from the cache: the time that it takes is part of the table."""
    before = jax.config.values["jax_enable_compilation_cache"]
    _use_cache(False)
    try:
        yield
    finally:
        _use_cache(before)


def _use_cache(used: bool) -> None:
    jax.config.update("jax_enable_compilation_cache", used)
    compilation_cache.reset_cache()  # which asks only once whether it is used
