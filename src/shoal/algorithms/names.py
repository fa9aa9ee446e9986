"""The names that the field knows algorithms by: each is a class with some options set.

`named("mappo")` is `PPO(critic="global")`, and `shoal train WORLD --algo mappo` trains with it. Run folders store the
class and its options, as if these had been given one by one.
"""

import dataclasses
import inspect
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Literal

from shoal.algorithms.a2c import A2C
from shoal.algorithms.ddpg import DDPG
from shoal.algorithms.dqn import DQN
from shoal.algorithms.impala import Impala
from shoal.algorithms.ppo import PPO
from shoal.algorithms.pqn import PQN
from shoal.algorithms.registry import ALGORITHMS
from shoal.algorithms.sac import SAC
from shoal.core.errors import OptionError, unknown_name

for _cls in (A2C, DDPG, DQN, Impala, PPO, PQN, SAC):
    ALGORITHMS.register(_cls.name, _cls)

Together = Literal["", "team", "all"]
"""The groups that one learner must own: any, all groups of a team, or all groups."""

ACTIONS = {"dqn": "D M", "pqn": "D M", "ddpg": "D M C*", "sac": "D M C*"}
"""Actions that algorithms can take: discrete, multi-discrete, continuous (with finite bounds); others take any."""

FRESH, EPOCHS, REPLAY = "fresh", "fresh, several epochs", "replay"
OWN, SUMMED = "own view", "own views; values are summed"
MIXED = "own views; the mixer sees the global state"
ALL_ACTIONS = "own view, global state, all agents' actions"
PAID_TOGETHER = "for a team with a common reward"


@dataclasses.dataclass(frozen=True)
class Named:
    """An algorithm of the literature. options: by name, with dots for those of the network."""

    title: str
    cls: type[Any]
    options: Mapping[str, Any]
    experience: str
    sees: str  # inputs of the critic or the mixer during training
    use: str  # what it is for
    together: Together = ""

    @property
    def actions(self) -> str:
        known = (ACTIONS.get(vars(base).get("name", "")) for base in self.cls.__mro__)
        return next((actions for actions in known if actions), "D M C")


_TD3 = {"twin": True, "policy_delay": 2, "target_noise": 0.2}
_R2D2 = {"sequence": 15, "burn_in": 5, "batch_size": 64, "prioritised": True, "n_step": 3, "network.recurrent": "gru"}
_APPO = {"clipped": True, "epochs": 2, "minibatches": 4}
_LAG = "if actors lag behind the learner"
_SUM_FAILS = "as VDN, if a sum cannot express the team's value"

NAMES: dict[str, Named] = {
    "a2c": Named("A2C", A2C, {}, FRESH, OWN, "with very many copies; the cheapest update"),
    "ppo": Named("PPO", PPO, {}, EPOCHS, OWN, "first, for any world"),
    "ippo": Named("IPPO", PPO, {"critic": "own", "mixer": "none"}, EPOCHS, OWN, "first, for any world"),
    "mappo": Named(
        "MAPPO",
        PPO,
        {"critic": "global"},
        EPOCHS,
        "own view and global state",
        "for teams under partial observability",
    ),
    "vdac": Named("VDAC-sum", A2C, {"mixer": "sum"}, FRESH, SUMMED, PAID_TOGETHER, "team"),
    "vdac_mix": Named(
        "VDAC-mix", A2C, {"mixer": "monotonic"}, FRESH, MIXED, _SUM_FAILS.replace("VDN", "VDAC-sum"), "team"
    ),
    "impala": Named("IMPALA", Impala, {}, "fresh, or some updates old", OWN, _LAG),
    "appo": Named(
        "APPO", Impala, _APPO, "fresh, or some updates old; several epochs", OWN, "as IMPALA, for larger steps"
    ),
    "dqn": Named("DQN", DQN, {}, REPLAY, OWN, "if env steps are expensive"),
    "iql": Named("IQL", DQN, {"mixer": "none"}, REPLAY, OWN, "as DQN, for agents with different rewards"),
    "vdn": Named("VDN", DQN, {"mixer": "sum"}, REPLAY, SUMMED, PAID_TOGETHER, "team"),
    "qmix": Named("QMIX", DQN, {"mixer": "monotonic"}, REPLAY, MIXED, _SUM_FAILS, "team"),
    "r2d2": Named("R2D2", DQN, _R2D2, "replay of sequences", "own view and memory", "for partial views, with a replay"),
    "pqn": Named("PQN", PQN, {}, EPOCHS, OWN, "for discrete actions and many copies"),
    "pqn_vdn": Named("PQN-VDN", PQN, {"mixer": "sum"}, EPOCHS, SUMMED, "first, for discrete teams", "team"),
    "pqn_qmix": Named("PQN-QMIX", PQN, {"mixer": "monotonic"}, EPOCHS, MIXED, "as QMIX", "team"),
    "ddpg": Named("DDPG", DDPG, {}, REPLAY, "own view and action", "as the base of TD3 and MADDPG"),
    "td3": Named(
        "TD3", DDPG, _TD3, REPLAY, "own view and action", "for continuous actions, if env steps are expensive"
    ),
    "maddpg": Named(
        "MADDPG",
        DDPG,
        {"critic": "global"},
        REPLAY,
        ALL_ACTIONS,
        "for mixed and competitive worlds with few agents",
        "all",
    ),
    "sac": Named(
        "SAC",
        SAC,
        {},
        REPLAY,
        "own view and action",
        "for continuous actions, if env steps are expensive and TD3 explores too little",
    ),
    "masac": Named("MASAC", SAC, {"critic": "global"}, REPLAY, ALL_ACTIONS, "as MADDPG", "all"),
    "maac": Named(
        "MAAC",
        SAC,
        {"critic": "attention"},
        REPLAY,
        "own view, and attention to the others' views and actions",
        "as MASAC with more agents",
        "all",
    ),
}
ALGORITHMS.reserved.update(NAMES)


def find_name(name: str) -> Named:
    """The entry of a name, in any spelling: MAPPO, pqn-vdn. Every class is known by its own name."""
    written = name.lower().replace("-", "_")
    if written in NAMES:
        return NAMES[written]
    if written not in ALGORITHMS:
        raise unknown_name("algorithm", name, {*NAMES, *ALGORITHMS})
    cls = ALGORITHMS[written]
    return Named(written, cls, {}, "", "", (inspect.getdoc(cls) or "").partition("\n")[0])


def name_of(algorithm: Any) -> str:
    """The name that the field knows an algorithm by, from its class and options: PPO(critic="global") is mappo."""
    best, most = algorithm.name, 0
    for name, known in NAMES.items():
        if type(algorithm) is not known.cls:
            continue
        telling = {key: value for key, value in known.options.items() if attrgetter(key)(known.cls()) != value}
        fits = all(attrgetter(key)(algorithm) == value for key, value in telling.items())
        if fits and len(telling) > most:
            best, most = name, len(telling)
    return best


def algorithm_class(name: str) -> type[Any]:
    """The class of that name, as run folders store it."""
    return ALGORITHMS[name]


def named(name: str, **options: Any) -> Any:
    """The algorithm of that name, with further options: `named("qmix", learning_rate=1e-3)`."""
    found = find_name(name)
    known = [field.name for field in dataclasses.fields(found.cls)]
    for option in options:
        if option not in known:
            raise OptionError(f"{found.title}: {unknown_name('option', option, known)}")
    preset = {key: value for key, value in found.options.items() if key.partition(".")[0] not in options}
    return with_options(found.cls(), preset | options)


def with_options(algorithm: Any, options: Mapping[str, Any]) -> Any:
    """The algorithm with other options; those of its network are written as `network.recurrent`."""
    inner = {key.partition(".")[2]: value for key, value in options.items() if "." in key}
    own = {key: value for key, value in options.items() if "." not in key}
    if inner:
        own["network"] = dataclasses.replace(algorithm.network, **inner)
    return dataclasses.replace(algorithm, **own)
