"""Records what runs of today give, so that tomorrow's code can be held to it.

    python tests/golden/record.py --check [--only NAME ...]     # compare; exit code 1 if something differs
    python tests/golden/record.py [--only NAME ...]             # write results.json
    python tests/golden/record.py --digests                     # write digests.json, for the model of this CPU

Of every case it keeps the greedy mean returns to 7 digits and, of all float leaves of all policies (weights and running
statistics, not the optimiser's), sorted by value so that names and order do not matter: their number, a SHA-256 of
their bytes, their root mean square and 17 quantiles.

XLA's flags decide bits. They are set by `tests/conftest.py`, which pytest loads before anything else and which this
script imports before anything else, so both compute the same.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import tests.conftest  # noqa: F401  (before anything is computed: XLA's flags, two devices)

# isort: split
import jax
import numpy as np

from tests.golden.cases import CASES, Case

RESULTS, DIGESTS = (Path(__file__).with_name(name) for name in ("results.json", "digests.json"))
QUANTILES, DIGITS = 17, 7
EPISODES = 32
ROUNDING, OTHER_MODEL, ELSEWHERE = 1e-6, 1e-5, 1e-3
"""How far values may be from those recorded: after another order of operations, on another model of CPU with the same
instructions (the compiler arranges loops by the model, and sums come in another order), with another compiler or CPU.
"""
DRAWN_BEFORE = ("mappo", "ppo_randomised", "pbt", "pbt_two_devices")
A_PROGRAM_EACH = ("psro", "psro_alpha_rank_greedy", "psro_anytime", "psro_pipeline")
RECORDED_AGAIN = (
    dict.fromkeys(DRAWN_BEFORE, "the minibatches of all epochs are drawn before the first step")
    | dict.fromkeys(A_PROGRAM_EACH, "the training of each player is compiled by itself, and arranged otherwise")
    | {"cluster_psro": "as the first, and the masks of a batch are flags, no longer weights; either rounds otherwise"}
)
"""Cases whose floating-point operations now come in another order, each with the reason: equal up to ROUNDING only."""

Returns = dict[str, Any]
Outcome = tuple[Returns, Any]
"""What is kept of a run: numbers by name, and its policies, any pytree."""


# ---- The one place that knows where things are in the package --------------------------------------------------------


def _experiment(data: dict[str, Any]) -> Any:
    from shoal.core.origin import USER
    from shoal.training.experiment import Experiment

    return Experiment.from_dict(data, USER)


def _greedy(experiment: Any, policies: Any) -> Returns:
    import shoal

    return shoal.evaluate(experiment.setup, policies, episodes=EPISODES, seed=1).mean_return


def _run(config: Any, case: Case) -> Any:
    from shoal.training.runner import Local, run

    return run(config, on=Local(devices=case.devices))


def _config(case: Case) -> Any:
    """The config of a population of any kind."""
    from shoal.training.run_kinds import KINDS, config_class
    from shoal.training.serialise import from_plain

    kind = case.kind.removeprefix("cluster_")
    data = dict(case.config[kind])
    if "experiment" in KINDS[kind].entries:
        data["experiment"] = case.config["experiment"]
    return from_plain(config_class(kind), data, kind)


def run_training(case: Case) -> Outcome:
    experiment = _experiment(case.config["experiment"])
    policies = _run(experiment, case).policies
    return _greedy(experiment, policies), policies


def _pbt_outcome(plan: Any, result: Any) -> Outcome:
    found = result.standing
    figures = {"member": found["member"], "scores": list(found["scores"]), **found["values"]}
    return _greedy(plan.experiment, result.policies) | figures, result.policies


def run_pbt(case: Case) -> Outcome:
    return _pbt_outcome(_config(case), _run(_config(case), case))


def run_evolution(case: Case) -> Outcome:
    policies = _run(_config(case), case).policies
    return _greedy(_config(case).played, policies), policies


def run_sweep(case: Case) -> Outcome:
    """The weights of a sweep are read from its checkpoint."""
    from shoal.training.runner import Local, run
    from shoal.training.sweep import summarise

    with tempfile.TemporaryDirectory() as folder:
        plan = _config(case)
        result = summarise(plan, run(plan, Path(folder) / "sweep", on=Local(devices=case.devices)))
        newest = max((Path(folder) / "sweep" / "checkpoints").glob("step-*.npz"))
        with np.load(newest) as stored:
            policies = {name: stored[name] for name in stored.files if "/params/" in name}
    return {"returns": [list(point.returns) for point in result.points]}, policies


def _psro_outcome(result: Any) -> Outcome:
    state = result.standing["state"]
    banks = state.banks.values()
    policies = [jax.tree.map(lambda leaf, count=len(bank): leaf[:count], bank.policies) for bank in banks]
    returns = {"values": state.values.tolist(), "mixtures": [mixture.tolist() for mixture in state.mixtures]}
    return returns | {"nash_conv": [line["nash_conv"] for line in state.history]}, policies


def run_psro(case: Case) -> Outcome:
    return _psro_outcome(_run(_config(case), case))


def run_cluster(case: Case, on_ray: bool = False) -> Outcome:
    from shoal.cluster.plan import ClusterPlan
    from shoal.cluster.run import Cluster
    from shoal.cluster.transport.launcher import ThreadLauncher
    from shoal.training.runner import run
    from shoal.training.serialise import from_plain

    experiment, plan = (
        _experiment(case.config["experiment"]),
        from_plain(ClusterPlan, case.config["cluster"], "cluster"),
    )
    on = Cluster("local", plan) if on_ray else Cluster(plan=plan, launcher=ThreadLauncher())
    with tempfile.TemporaryDirectory() as folder:
        policies = run(experiment, Path(folder) / "run", on=on).policies
    return _greedy(experiment, policies), policies


def run_cluster_population(case: Case) -> Outcome:
    from shoal.cluster.run import Cluster
    from shoal.cluster.transport.launcher import ThreadLauncher
    from shoal.training.runner import run

    plan = _config(case)
    with tempfile.TemporaryDirectory() as parent:
        result = run(plan, Path(parent) / "run", on=Cluster(launcher=ThreadLauncher()))
    if case.kind == "cluster_psro":
        return _psro_outcome(result)
    if case.kind == "cluster_pbt":
        return _pbt_outcome(plan, result)
    return _greedy(plan.played, result.policies), result.policies


def resume_with_threads(folder: Path) -> None:
    """Goes on with a run that was begun on a cluster, to its end."""
    from shoal.cluster.run import Cluster
    from shoal.cluster.transport.launcher import ThreadLauncher
    from shoal.training.runner import resume

    resume(folder, on=Cluster(launcher=ThreadLauncher()))


RUN: dict[str, Callable[[Case], Outcome]] = {
    "training": run_training,
    "pbt": run_pbt,
    "evolution": run_evolution,
    "sweep": run_sweep,
    "psro": run_psro,
    "cluster": run_cluster,
    "cluster_ray": lambda case: run_cluster(case, on_ray=True),
    "cluster_pbt": run_cluster_population,
    "cluster_evolution": run_cluster_population,
    "cluster_psro": run_cluster_population,
}


# ---- What is kept of a run, and what may differ ----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Summary:
    """What is kept of one case."""

    returns: Returns
    count: int
    sha256: str
    rms: float
    quantiles: list[float]


def summarise(returns: Returns, policies: Any) -> Summary:
    """Numbers to 7 digits, and the values of all float leaves in order."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(policies) if jax.dtypes.issubdtype(leaf.dtype, np.floating)]
    values = np.sort(np.concatenate([leaf.astype(np.float32).ravel() for leaf in leaves])) + np.float32(0)  # no -0
    if not np.isfinite(values).all():
        raise ValueError("a policy holds NaN or infinity")
    places = np.linspace(0, len(values) - 1, QUANTILES).round().astype(int)
    return Summary(
        returns=rounded(returns),
        count=len(values),
        sha256=hashlib.sha256(values.tobytes()).hexdigest(),
        rms=float(np.sqrt(np.mean(values.astype(np.float64) ** 2))),
        quantiles=[float(str(values[place])) for place in places],
    )


def rounded(value: Any) -> Any:
    """Numbers to so many digits, wherever they are."""
    if isinstance(value, dict):
        return {str(key): rounded(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(entry) for entry in value]
    return None if value is None else float(f"{value:.{DIGITS}g}")


def differences(name: str, recorded: Summary, found: Summary, may: float) -> list[str]:
    """What differs by more than it may; nothing if the case holds. may: see `tolerance`; 0 means to the bit."""
    if recorded.count != found.count:
        return [f"{name}: the policies held {recorded.count} numbers, now {found.count}"]
    may = max(may, ROUNDING) if name in RECORDED_AGAIN else may
    if not may:
        wrong = [] if recorded.sha256 == found.sha256 else [f"{name}: other weights; {_furthest(recorded, found)}"]
        return wrong + ([] if recorded.returns == found.returns else [f"{name}: {_other_returns(recorded, found)}"])
    wrong = [f"{name}: {_furthest(recorded, found)}, may be {may:g}"] if _distance(recorded, found) > may else []
    numbers = _flat(recorded.returns), _flat(found.returns)
    near = len(numbers[0]) == len(numbers[1]) and np.allclose(
        *numbers, rtol=0.05 if may == ELSEWHERE else may, atol=may, equal_nan=True
    )
    return wrong + ([] if near else [f"{name}: {_other_returns(recorded, found)}"])


def _distance(recorded: Summary, found: Summary) -> float:
    """The largest difference of a quantile or of the root mean square, as a share of the latter."""
    numbers = [np.array([one.rms, *one.quantiles]) for one in (recorded, found)]
    return float(np.max(np.abs(numbers[0] - numbers[1]))) / max(recorded.rms, 1e-30)


def _furthest(recorded: Summary, found: Summary) -> str:
    return f"quantiles differ by {_distance(recorded, found):.2g} of their root mean square"


def _other_returns(recorded: Summary, found: Summary) -> str:
    return f"returns were {json.dumps(recorded.returns)}, now {json.dumps(found.returns)}"


def _flat(value: Any) -> list[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for entry in value for number in _flat(entry)]
    return [np.nan if value is None else value]


def place() -> dict[str, str]:
    """What decides bits besides the code and the CPU's model: compiler, its flags, instructions of the CPU."""
    vectors = [word for word in sorted(set(_cpu("flags").split())) if re.match(r"avx|fma|sse|amx", word)]
    return {
        "jaxlib": jax.lib.__version__,
        "xla_flags": os.environ["XLA_FLAGS"],
        "cpu": " ".join([platform.machine(), *vectors]),
    }


def model() -> str:
    """The model of the CPU: maker, family, number. Nothing where the system does not say."""
    return " ".join([_cpu("vendor_id"), _cpu("cpu family"), _cpu("model")]).strip()


def _cpu(key: str) -> str:
    try:
        found = re.search(rf"^{key}\s*: *(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        return ""
    return found[1] if found else ""


def tolerance(where: dict[str, str], recorded: Summary, found: Summary) -> float:
    """How far `found` may be from what was recorded in that place, on a model of CPU that was not kept."""
    if where != place():
        return ELSEWHERE
    return 0.0 if recorded.sha256 == found.sha256 else OTHER_MODEL


def run(name: str) -> Outcome:
    """Runs a case."""
    return RUN[CASES[name].kind](CASES[name])


def read(path: Path = RESULTS) -> tuple[dict[str, str], dict[str, Summary]]:
    """Where the results were recorded, and the results."""
    data = json.loads(path.read_text())
    return data["place"], {name: Summary(**entry) for name, entry in data["results"].items()}


def read_digests(path: Path = DIGESTS) -> dict[str, str]:
    """Digests by case that were recorded here: by this compiler, on this model of CPU; none if it is not known."""
    entry = json.loads(path.read_text()).get(model(), {})
    return entry["sha256"] if entry and entry["place"] == place() else {}


def compare(name: str, recorded: Summary, found: Summary, where: dict[str, str], digests: dict[str, str]) -> list[str]:
    """What of a case is not as recorded: to the bit where digests are known, near to it elsewhere."""
    if name in digests and name not in RECORDED_AGAIN and digests[name] != found.sha256:
        return [f"{name}: other weights than before on this model of CPU; {_furthest(recorded, found)}"]
    return differences(name, recorded, found, tolerance(where, recorded, found))


def write(path: Path, results: dict[str, Summary]) -> None:
    """One line per case."""
    lines = [
        f"{json.dumps(name)}: {json.dumps(dataclasses.asdict(results[name]))}" for name in CASES if name in results
    ]
    body = ",\n    ".join(lines)
    path.write_text(f'{{\n  "place": {json.dumps(place())},\n  "results": {{\n    {body}\n  }}\n}}\n')


def write_digests(digests: dict[str, str], path: Path = DIGESTS) -> None:
    """Adds those of this model of CPU, or replaces them."""
    entry = {"place": place(), "sha256": digests}
    path.write_text(json.dumps(json.loads(path.read_text()) | {model(): entry}, indent=1) + "\n")


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Record golden results, or check against them.")
    parser.add_argument("--only", nargs="+", choices=list(CASES), metavar="NAME", help=f"of {', '.join(CASES)}")
    parser.add_argument("--check", action="store_true", help="compare with what is recorded instead of writing it")
    parser.add_argument("--digests", action="store_true", help="compare, and write the digests of this model of CPU")
    parser.add_argument("--results", type=Path, default=RESULTS, help="another file of results")
    options = parser.parse_args(None if arguments is None else list(arguments))
    wanted, checking = options.only or list(CASES), options.check or options.digests
    recorded_at, results = read(options.results) if options.results.exists() else (place(), {})
    if recorded_at != place():
        print(f"recorded elsewhere, so compared loosely: {recorded_at}; here: {place()}")
        if not checking and options.only:
            parser.error("results of two machines do not go into one file: record all, or give another --results")
    known = read_digests() if options.results == RESULTS else {name: one.sha256 for name, one in results.items()}
    known, wrong, digests = {} if options.digests or recorded_at != place() else known, [], {}
    for name in wanted:
        began = time.perf_counter()
        found = summarise(*run(name))
        digests[name] = found.sha256
        if checking:
            wrong += compare(name, results[name], found, recorded_at, known)
        else:
            results[name] = found
            write(options.results, results)
        print(f"{name}: {found.returns} {found.sha256[:12]} {time.perf_counter() - began:.1f} s", flush=True)
    if options.digests and not wrong:
        write_digests(read_digests() | digests)
    print("\n".join(wrong) or f"{len(wanted)} cases {'as recorded' if checking else 'recorded'}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
