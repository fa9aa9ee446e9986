"""How long does a whole payoff table take? Every pair of policies of a saved population, so many episodes each.

    python benchmarks/payoff_table.py OUT.json RUN --size 40 --episodes 2000

RUN is a folder of `shoal psro`; if it has fewer policies, they repeat, which costs the same. The table is played three
times with different draws after a first call that compiles.
"""

import argparse
import json
import time
from pathlib import Path

import jax
import numpy as np

from shoal.populations.population import load, open_population, oracle_of
from shoal.training.devices import use_all_cores

use_all_cores()

from shoal.core.files import write_atomically  # noqa: E402
from shoal.populations.game import Game  # noqa: E402
from shoal.populations.matches import Matches  # noqa: E402
from shoal.training.bench import versions  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--size", type=int, default=40)
    parser.add_argument("--episodes", type=int, default=2000)
    args = parser.parse_args()
    settings = open_population(args.run)
    oracle = oracle_of(settings)
    state = load(args.run, settings, oracle)
    axes = [np.arange(args.size) % len(bank) for bank in state.banks.values()]
    lineups = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))
    banks = {player: bank.policies for player, bank in state.banks.items()}
    matches, took, means = Matches(Game(settings.experiment)), [], []
    for number in range(4):
        began = time.perf_counter()
        returns, _ = matches.play(banks, lineups, args.episodes, settings.experiment.seed, number * 2**24)
        took.append(round(time.perf_counter() - began, 3))
        means.append(returns / args.episodes)
    record = {
        "policies": [args.size] * len(axes),
        "different": [min(args.size, len(bank)) for bank in state.banks.values()],
        "episodes": args.episodes,
        "first_s": took[0],
        "seconds": took[1:],
        "episodes_per_s": round(len(lineups) * args.episodes / min(took[1:])),
        "largest_difference": float(np.abs(means[1] - means[2]).max()),
        "device": jax.devices()[0].device_kind,
        "devices": len(jax.devices()),
        "versions": versions(),
    }
    print(json.dumps(record))
    write_atomically(args.out, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
