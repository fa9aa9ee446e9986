"""What a listing says of a run, from its `config.json`: as plain data and without importing what it names.

Algorithms are told by the names that the field knows them by, as `shoal.algorithms.names` has them; that module needs
JAX, so what tells them apart stands here a second time, and a test compares the two.
"""

import dataclasses
import datetime
import itertools
import shlex
from collections.abc import Mapping
from typing import Any

from shoal.core.schema import Maybe, Whole, check
from shoal.training.catalogue.lines import Digest
from shoal.training.run_kinds import EVOLUTION, KINDS, PSRO

MOST_LETTERS = 300
"""The longest id of an environment, or name of an algorithm, that is shown."""
TELLING: dict[str, tuple[str, dict[str, Any]]] = {
    "mappo": ("ppo", {"critic": "global"}),
    "vdac": ("a2c", {"mixer": "sum"}),
    "vdac_mix": ("a2c", {"mixer": "monotonic"}),
    "appo": ("impala", {"clipped": True, "epochs": 2, "minibatches": 4}),
    "vdn": ("dqn", {"mixer": "sum"}),
    "qmix": ("dqn", {"mixer": "monotonic"}),
    "r2d2": (
        "dqn",
        {"sequence": 15, "burn_in": 5, "batch_size": 64, "prioritised": True, "n_step": 3, "network.recurrent": "gru"},
    ),
    "pqn_vdn": ("pqn", {"mixer": "sum"}),
    "pqn_qmix": ("pqn", {"mixer": "monotonic"}),
    "td3": ("ddpg", {"twin": True, "policy_delay": 2, "target_noise": 0.2}),
    "maddpg": ("ddpg", {"critic": "global"}),
    "masac": ("sac", {"critic": "global"}),
    "maac": ("sac", {"critic": "attention"}),
}
"""The class of an algorithm as run folders name it, and those options that differ from the class's defaults."""
ALIASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ippo": ("ppo", {"critic": "own", "mixer": "none"}),
    "iql": ("dqn", {"mixer": "none"}),
}
"""Names whose options are a class's defaults: what was asked for by one of them is called so."""
LEARNERS = {str: {"algorithm?": {"name": str}}}
EXPERIMENT = {
    "env": str,
    "learners?": LEARNERS,
    "num_envs?": Whole(1),
    "num_steps?": Whole(1),
    "total_env_steps?": Whole(1),
    "num_seeds?": Whole(1),
}
EVOLVED = {"generations?": Whole(1), "strategy?": {"name": str}}
POPULATION = {
    "oracle?": str,
    "psro?": {
        "meta_solver?": str,
        "iterations?": Whole(1),
        "target_nash_conv?": Maybe(float),
        "patience?": Maybe(Whole()),
        "improvement?": float,
    },
}
STOPS = ("target_nash_conv", "patience", "improvement")
ROUNDING = 1e-6
"""A gain of at most this is rounding, as `shoal.populations.psro` has it."""


@dataclasses.dataclass(frozen=True)
class Facts:
    """What `config.json` says. num_updates: of a training; generations of an evolution; iterations of a population."""

    kind: str
    env: str
    algorithm: str
    num_seeds: int
    total_env_steps: int
    num_updates: int
    stops: Mapping[str, float | None]  # what ends a population before its last iteration
    started: float | None = None  # when it was made, in seconds since 1970, if it says so


def read_facts(kind: str, data: Mapping[str, Any]) -> Facts:
    """The facts of a run of that kind. Raises `ValueError` if an entry has the wrong type."""
    *shared, own = KINDS[kind].entries
    entry = data.get(own)
    check(entry, {}, own)
    assert isinstance(entry, Mapping)
    experiment = data.get("experiment") if shared or own == "experiment" else entry.get("experiment")
    check(experiment, EXPERIMENT, "experiment")
    assert isinstance(experiment, Mapping)
    total = experiment.get("total_env_steps", 0)
    each = experiment.get("num_envs", 0) * experiment.get("num_steps", 0)
    algorithm = _algorithms(experiment, _asked_for(data.get("provenance")))
    updates, stops = -(-total // each) if each else 0, {}
    if kind == EVOLUTION:
        check(entry, EVOLVED, own)
        updates, total = entry.get("generations", 0), 0  # a generation has as many env steps as its episodes are long
        algorithm = entry.get("strategy", {}).get("name", algorithm)
    elif kind == PSRO:
        check(entry, POPULATION, own)
        plan = entry.get("psro", {})
        updates, total = plan.get("iterations", 0), 0
        stops = {name: plan.get(name) for name in STOPS}
        method = "league" if plan.get("meta_solver") == "league" else "psro"
        algorithm = f"{method} ({'exact' if entry.get('oracle') == 'exact' else algorithm})"
    return Facts(
        kind=kind,
        env=experiment["env"][:MOST_LETTERS],
        algorithm=algorithm[:MOST_LETTERS],
        num_seeds=experiment.get("num_seeds", 1),
        total_env_steps=total,
        num_updates=updates,
        stops=stops,
        started=_date(data.get("provenance")),
    )


def is_finished(facts: Facts, digest: Digest) -> bool:
    """Whether the metrics of a run go to its end: to its last update, or to what ends a population before that."""
    if facts.num_updates and digest.update >= facts.num_updates:
        return True
    target, patience = facts.stops.get("target_nash_conv"), facts.stops.get("patience")
    if target is not None and digest.nash_conv is not None and digest.nash_conv <= target:
        return True
    if not patience or digest.update < patience:
        return False
    last = digest.gains[-int(patience) :]
    return len(last) >= patience and max(last) <= max(facts.stops.get("improvement") or 0.0, ROUNDING)


def _date(provenance: Any) -> float | None:
    """When a run was made, if its provenance says so in the usual form."""
    text = provenance.get("date") if isinstance(provenance, Mapping) else None
    try:
        return datetime.datetime.fromisoformat(text).timestamp() if isinstance(text, str) else None
    except (ValueError, OverflowError, OSError):
        return None


def _asked_for(provenance: Any) -> str:
    """The algorithm that the command of a run names by `--algo`, as it is spelt in this module; empty if none."""
    command = provenance.get("command") if isinstance(provenance, Mapping) else None
    try:
        words = shlex.split(command) if isinstance(command, str) else []
    except ValueError:  # it was cut, within quotes
        return ""
    for word, following in itertools.pairwise([*words, ""]):
        if word == "--algo" or word.startswith("--algo="):
            return (following if word == "--algo" else word[7:]).lower().replace("-", "_")
    return ""


def _algorithms(experiment: Mapping[str, Any], asked_for: str = "") -> str:
    """The names of all its learners' algorithms, joined. asked_for: the name of an alias, used where it fits."""
    learners = experiment.get("learners", {}).values()
    found = (learner["algorithm"] for learner in learners if "algorithm" in learner)
    return "-".join(sorted({algorithm_name(options, asked_for) for options in found}))


def algorithm_name(options: Mapping[str, Any], asked_for: str = "") -> str:
    """The name that the field knows an algorithm by, from its plain data: ppo with a global critic is mappo.

    asked_for: an alias to prefer if it fits: ppo that was asked for as ippo.
    """
    best, most = options["name"], 0
    if asked_for in ALIASES and _fits(options, *ALIASES[asked_for]):
        best = asked_for
    for name, (built_from, telling) in TELLING.items():
        if len(telling) > most and _fits(options, built_from, telling):
            best, most = name, len(telling)
    return best


def _fits(options: Mapping[str, Any], built_from: str, telling: Mapping[str, Any]) -> bool:
    return options["name"] == built_from and all(_option(options, key) == want for key, want in telling.items())


def _option(options: Mapping[str, Any], key: str) -> Any:
    """An option, or one of the network, `network.recurrent`, nested or flat."""
    if key in options:
        return options[key]
    first, _, rest = key.partition(".")
    value = options.get(first)
    if not rest:
        return value
    return value.get(rest) if isinstance(value, Mapping) else None
