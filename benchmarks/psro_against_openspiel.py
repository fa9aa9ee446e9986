"""PSRO on Leduc poker with learnt responses: ours against OpenSpiel's `psro_v2` with its DQN, at equal NashConv.

    pip install open_spiel torch chex cvxpy ecos dm-haiku rlax distrax dm-tree     # what their PSRO and its DQN import
    python benchmarks/psro_against_openspiel.py benchmarks/results/psro_against_openspiel.json --minutes 10

Each runs alone, in a process of its own held to one core. Theirs has so many minutes for each of its settings: those of
its own example (`psro_v2_example.py` with DQN), and variants that suit it better. Ours then runs until its NashConv is
at most the lowest that theirs reached. NashConv is exact, of the population's mixture as one policy (weighted by
reach), after every iteration; theirs is worked out by OpenSpiel's own code while their clock stands still, ours counts.
Imports do not count. Compilation does, for both; ours is started once with no compiled programs on disk ("first start")
and once more with those of the first ("next start", what every later run finds). Seconds are of wall time and, for
machines that others use too, of CPU time. Figures of settings measured earlier are kept: measure them one by one.
"""

import argparse
import dataclasses
import importlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LEVELS = (4.5, 4.0, 3.5, 3.0, 2.5, 2.0, 1.5, 1.0)


@dataclasses.dataclass(frozen=True)
class Theirs:
    """Settings of OpenSpiel's PSRO. Defaults are those of its example, with DQN as the oracle."""

    agent: str = "jax"  # their DQN in JAX, which `rl_policy` takes, or that in PyTorch, much faster here
    meta_strategy_method: str = "alpharank"
    number_training_episodes: int = 10_000
    sims_per_entry: int = 1000
    hidden_layer_size: int = 256
    n_hidden_layers: int = 4
    batch_size: int = 32
    learning_rate: float = 1e-2
    update_target_network_every: int = 1000
    learn_every: int = 10
    optimizer_str: str = "adam"
    epsilon_decay_duration: int = 1_000_000
    epsilon_end: float = 0.1
    min_buffer_size_to_learn: int = 1000


_QUICK = Theirs(
    "pytorch",
    "nash",
    number_training_episodes=3000,
    sims_per_entry=300,
    hidden_layer_size=128,
    n_hidden_layers=2,
    learning_rate=1e-3,
    update_target_network_every=200,
    learn_every=4,
    min_buffer_size_to_learn=200,
)
THEIRS = {
    "example": Theirs(),
    "example, pytorch": Theirs("pytorch"),
    "example, pytorch, prd": Theirs("pytorch", "prd"),
    "quick": _QUICK,
    "quick, as shipped": dataclasses.replace(_QUICK, agent="jax"),
}


@dataclasses.dataclass(frozen=True)
class Ours:
    """Settings of ours where they differ from the preset `psro/leduc`."""

    num_envs: int = 4096
    updates: int = 40
    episodes: int = 2000
    meta_solver: str = "fictitious_play"


OURS = {"preset": Ours(), "light": Ours(1024, 40, 1000)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--minutes", type=float, default=10.0, help="for each of their settings")
    parser.add_argument("--theirs", nargs="*", default=list(THEIRS), choices=list(THEIRS), help="settings to run")
    parser.add_argument("--speed", nargs="*", default=list(THEIRS), choices=list(THEIRS), help="settings to time only")
    parser.add_argument("--ours", nargs="*", default=list(OURS), choices=list(OURS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=3, help="of ours, from --seed on, with programs compiled before")
    parser.add_argument("--core", type=int, default=1, help="the one core that each process is held to")
    parser.add_argument("--goal", type=float, help="NashConv where ours stops; by default, the lowest of theirs")
    parser.add_argument("--cache", help=argparse.SUPPRESS)
    parser.add_argument("--phase", nargs=2, help=argparse.SUPPRESS)  # this process is one of those that are measured
    args = parser.parse_args()
    if args.phase:
        hold_to(args.core)
        kind, name = args.phase
        run = {"theirs": run_theirs, "speed": run_speed, "ours": run_ours}[kind]
        run(args, OURS[name] if kind == "ours" else THEIRS[name])
        return
    record = read(args.output)
    for name in args.speed:
        record["speed"][name] = measured(args, "speed", name)
        write(args.output, compared(record))
    for name in args.theirs:
        record["theirs"][name] = measured(args, "theirs", name)
        write(args.output, compared(record))
    if args.ours and args.goal is None and not record["theirs"]:
        parser.error("ours needs a --goal when there is nothing of theirs to compare with")
    goal = args.goal if args.goal is not None or not args.ours else record["compared"][-1]["nash_conv"]
    for name in args.ours:
        with tempfile.TemporaryDirectory() as cache:
            starts = [("first start", args.seed), *(("next start", args.seed + i) for i in range(args.seeds))]
            for start, seed in starts:
                more = ("--goal", str(goal), "--cache", cache, "--seed", str(seed))
                record["ours"][f"{name}, {start}, seed {seed}"] = measured(args, "ours", name, *more)
                write(args.output, compared(record))
    print(json.dumps(record["compared"], indent=1))


def read(path: Path) -> dict[str, Any]:
    """What earlier calls measured."""
    return json.loads(path.read_text()) if path.exists() else {"speed": {}, "theirs": {}, "ours": {}, "compared": []}


def write(path: Path, record: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


def measured(args: argparse.Namespace, kind: str, name: str, *more: str) -> dict[str, Any]:
    """Runs one setting in a new process and reads its figures."""
    part = args.output.with_suffix(".part.json")
    command = [sys.executable, __file__, str(part), "--phase", kind, name, "--minutes", str(args.minutes)]
    subprocess.run([*command, "--seed", str(args.seed), "--core", str(args.core), *more], check=True)
    record = json.loads(part.read_text())
    part.unlink()
    return record


def hold_to(core: int) -> None:
    """One core and one thread each. Before anything that starts threads is imported."""
    os.sched_setaffinity(0, {core})
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["JAX_PLATFORMS"] = "cpu"


class Clock:
    """Seconds that count, of wall time and of this process's CPU time."""

    def __init__(self):
        self.wall = self.cpu = 0.0
        self.go()

    def go(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def stop(self) -> dict[str, float]:
        self.wall += time.perf_counter() - self._wall
        self.cpu += time.process_time() - self._cpu
        return {"seconds": round(self.wall, 2), "cpu_s": round(self.cpu, 2)}


# ---------------------------------------------------------------------------------------------------------------------
# Theirs.


def run_theirs(args: argparse.Namespace, settings: Theirs) -> None:
    from open_spiel.python.algorithms.psro_v2 import psro_v2

    env = environment(args.seed)
    measure, history = Exploitability(env.game), []
    record = {"settings": dataclasses.asdict(settings), "seed": args.seed, "history": history, "versions": versions()}
    agent_class = policy_class(settings, args.seed)  # imports
    clock = Clock()
    oracle, agents = first_of(env, agent_class, settings)
    solver = psro_v2.PSROSolver(
        env.game,
        oracle,
        initial_policies=agents,
        training_strategy_selector="probabilistic",
        sims_per_entry=settings.sims_per_entry,
        meta_strategy_method=settings.meta_strategy_method,
        number_policies_selected=1,
        sample_from_marginals=True,
        prd_iterations=50_000,
        prd_gamma=1e-10,
    )
    while True:
        line = {"iteration": len(history)} | clock.stop() | {"nash_conv": measure(solver)}
        history.append(line)
        print(line, flush=True)
        write(args.output, record)
        if clock.wall > 60 * args.minutes:
            return
        clock.go()
        solver.iteration()


def run_speed(args: argparse.Namespace, settings: Theirs) -> None:
    """CPU seconds of an iteration, from what an episode takes when all is compiled and the DQN learns."""
    from open_spiel.python.algorithms.psro_v2 import abstract_meta_trainer

    env = environment(args.seed)
    oracle, agents = first_of(env, policy_class(settings, args.seed), settings)
    agents[0].unfreeze()

    def train() -> None:
        oracle.sample_episode(None, agents)

    def play() -> None:
        abstract_meta_trainer.sample_episode(env.game.new_initial_state(), agents)

    times = {"train_ms": timed(train, 600, 200), "play_ms": timed(play, 20, 200)}
    trained = 2 * settings.number_training_episodes * times["train_ms"] / 1000
    entry = settings.sims_per_entry * times["play_ms"] / 1000
    record = {"settings": dataclasses.asdict(settings)} | times
    write(args.output, record | {"responses_cpu_s": round(trained, 1), "payoff_entry_cpu_s": round(entry, 2)})


def timed(episode: Callable[[], None], before: int, episodes: int) -> float:
    """CPU milliseconds an episode, after so many that do not count."""
    for _ in range(before):
        episode()
    began = time.process_time()
    for _ in range(episodes):
        episode()
    return round(1000 * (time.process_time() - began) / episodes, 3)


def environment(seed: int) -> Any:
    import numpy as np
    import pyspiel
    from open_spiel.python import rl_environment

    np.random.seed(seed)
    cards = rl_environment.ChanceEventSampler(seed=seed)
    game = pyspiel.load_game_as_turn_based("leduc_poker", {"players": 2})
    return rl_environment.Environment(game, chance_event_sampler=cards)


def first_of(env: Any, agent_class: Any, settings: Theirs) -> tuple[Any, list[Any]]:
    """The oracle and a first policy for each player, as their example makes them."""
    from open_spiel.python.algorithms.psro_v2 import rl_oracle

    kwargs = agent_options(env, settings)
    agents = [agent_class(env, player, **kwargs) for player in range(2)]
    for agent in agents:
        agent.freeze()
    episodes = settings.number_training_episodes
    return rl_oracle.RLOracle(env, agent_class, kwargs, number_training_episodes=episodes, sigma=0.0), agents


def agent_options(env: Any, settings: Theirs) -> dict[str, Any]:
    """What the example gives to its DQN, and the three options that it leaves as they are."""
    return {
        "state_representation_size": env.observation_spec()["info_state"][0],
        "num_actions": env.action_spec()["num_actions"],
        "hidden_layers_sizes": [settings.hidden_layer_size] * settings.n_hidden_layers,
        "batch_size": settings.batch_size,
        "learning_rate": settings.learning_rate,
        "update_target_network_every": settings.update_target_network_every,
        "learn_every": settings.learn_every,
        "optimizer_str": settings.optimizer_str,
        "epsilon_decay_duration": settings.epsilon_decay_duration,
        "epsilon_end": settings.epsilon_end,
        "min_buffer_size_to_learn": settings.min_buffer_size_to_learn,
    }


def policy_class(settings: Theirs, seed: int) -> Any:
    """Their DQN as a policy, each new one with a seed of its own.

    Without that all would begin with the same weights; and their DQN in PyTorch also seeds numpy when it is made, so
    that every response would be trained on the same draws.
    """
    from open_spiel.python.algorithms.psro_v2 import rl_policy

    dqn: Any = importlib.import_module(f"open_spiel.python.{settings.agent}.dqn")
    seeds = itertools.count(1000 * seed)

    class Seeded(dqn.DQN):
        def __init__(self, **options: Any):
            super().__init__(**(options | {"seed": next(seeds)}))

    return rl_policy.rl_policy_factory(Seeded)


class Exploitability:
    """NashConv of their population by OpenSpiel's own code; a policy's table is made once, when it is new."""

    def __init__(self, game: Any):
        self.game = game
        self.tables: dict[int, Any] = {}

    def __call__(self, solver: Any) -> float:
        from open_spiel.python.algorithms import exploitability, policy_aggregator

        policies = [
            [self.table(policy, player) for policy in side] for player, side in enumerate(solver.get_policies())
        ]
        aggregator = policy_aggregator.PolicyAggregator(self.game)
        mixed = aggregator.aggregate(range(2), policies, solver.get_meta_strategies())
        total: Any = exploitability.nash_conv(self.game, mixed)
        return float(total)

    def table(self, policy: Any, player: int) -> Any:
        from open_spiel.python import policy as spiel_policy

        if id(policy) not in self.tables:
            table = spiel_policy.TabularPolicy(self.game, players=(player,))
            for row, state in enumerate(table.states):
                for action, chance in policy.action_probabilities(state).items():
                    table.action_probability_array[row, action] = float(chance)
            self.tables[id(policy)] = table
        return self.tables[id(policy)]


# ---------------------------------------------------------------------------------------------------------------------
# Ours.


def run_ours(args: argparse.Namespace, settings: Ours) -> None:
    os.environ["XDG_CACHE_HOME"] = args.cache
    history = grow(args, settings)
    record = {"settings": dataclasses.asdict(settings), "seed": args.seed, "goal": args.goal, "history": history}
    write(args.output, record | {"versions": versions()})


def grow(args: argparse.Namespace, settings: Ours) -> list[dict[str, float]]:
    from shoal.populations import psro_run
    from shoal.populations.psro import PSRO
    from shoal.presets import resolve
    from shoal.training.devices import use_compilation_cache

    use_compilation_cache()
    experiment = resolve("psro/leduc")
    total = settings.num_envs * experiment.num_steps * settings.updates
    experiment = dataclasses.replace(experiment, seed=args.seed, num_envs=settings.num_envs, total_env_steps=total)
    plan = PSRO(settings.meta_solver, iterations=60, episodes=settings.episodes, target_nash_conv=args.goal)
    history: list[dict[str, float]] = []
    clock = Clock()

    def listen(state: Any) -> None:
        line = {"iteration": state.iteration} | clock.stop() | {"nash_conv": state.history[-1]["nash_conv"]}
        history.append(line)
        print(line, flush=True)
        clock.go()

    psro_run.start(psro_run.PSROSettings(experiment, plan), devices=1, listener=listen)
    return history


# ---------------------------------------------------------------------------------------------------------------------
# Side by side.


def compared(record: dict[str, Any]) -> dict[str, Any]:
    """With, for every level that theirs reached, the seconds of each setting, and the ratio to the best of theirs."""
    best = [min(lowest(run) for run in record["theirs"].values())] if record["theirs"] else []
    levels = [*(level for level in LEVELS if best and level > best[0]), *best]
    record["compared"] = [
        {"nash_conv": level} | {clock: at_level(record, level, clock) for clock in ("seconds", "cpu_s")}
        for level in levels
    ]
    return record


def at_level(record: dict[str, Any], level: float, clock: str) -> dict[str, Any]:
    theirs, ours = (
        {name: reached(run["history"], level, clock) for name, run in record[side].items()}
        for side in ("theirs", "ours")
    )
    best = min(filter(None, theirs.values()), default=None)
    ratio = {name: round(best / seconds, 1) if best and seconds else None for name, seconds in ours.items()}
    return {"theirs": theirs, "ours": ours, "ratio": ratio}


def reached(history: list[dict[str, float]], level: float, clock: str) -> float | None:
    """Seconds until NashConv was first at most `level`."""
    return next((line[clock] for line in history if line["nash_conv"] <= level), None)


def lowest(run: dict[str, Any]) -> float:
    return min(line["nash_conv"] for line in run["history"])


def versions() -> dict[str, str]:
    from importlib import metadata

    names = ("shoal", "open_spiel", "jax", "torch", "flax", "numpy")
    found = {d.metadata["Name"].lower(): d.version for d in metadata.distributions()}
    return {name: found[name] for name in names if name in found}


if __name__ == "__main__":
    main()
