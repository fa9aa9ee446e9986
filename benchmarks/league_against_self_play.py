"""Does a league beat its own past, and a plain self-play agent that was trained with the same budget?

    python benchmarks/league_against_self_play.py FOLDER --iterations 30 --seeds 3

For each seed: a league (main agents in every iteration, exploiters beside them in some) and plain self-play (always
against the newest policy, in each iteration so many more updates that both play as many steps in all). Then the
league's newest main agents meet the self-play agents, and their own past, on both sides. Payoffs are means over
episodes; FOLDER/result.json has them. `margin` is what the first player earns when the league plays it against
self-play, less what it earns when they change sides: above 0 the league wins.
"""

import argparse
import dataclasses
import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from shoal.populations.population import PopulationConfig
from shoal.training.devices import use_all_cores, use_compilation_cache
from shoal.training.runner import run

EPISODES = 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--preset", default="psro/pong")
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--updates", type=int, default=None, help="of a role in an iteration; the preset's by default")
    parser.add_argument("--num-envs", type=int, default=None)
    parser.add_argument("--exploit-every", type=int, default=4)
    parser.add_argument("--episodes", type=int, default=128, help="of an entry of the league's payoff table")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    args = parser.parse_args()
    use_all_cores()
    use_compilation_cache()
    from shoal.core.files import write_atomically
    from shoal.training.bench import versions

    args.folder.mkdir(parents=True, exist_ok=True)
    sizes = {name: value for name, value in vars(args).items() if name != "folder"}
    record: dict = {"settings": sizes, "device": jax.devices()[0].device_kind, "versions": versions(), "seeds": []}
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        record["seeds"].append(compare(args, seed))
        print(record["seeds"][-1], flush=True)
        write_atomically(args.folder / "result.json", json.dumps(record, indent=1) + "\n")


def compare(args: argparse.Namespace, seed: int) -> dict:
    from shoal.populations import league
    from shoal.populations.game import Game
    from shoal.populations.matches import Matches

    leagued = grow(args, seed, "league", 1)
    num_parallel = sum(len(league.trained_roles(i + 1, args.exploit_every)) for i in range(args.iterations))
    plain = grow(args, seed, "last", num_parallel / args.iterations)
    matches = Matches(Game(_experiment(args, seed, 1)), explore=False)
    mains = {
        player: [i for i, member in enumerate(bank.members) if league.role_of(member) == league.ROLES[0]]
        for player, bank in leagued.banks.items()
    }

    def meet(side: int, opponents, indices: list[int], whose: int | None = None) -> list[float]:
        """What the league's newest main in the seat `side`, or who is asked for, earns against others' policies."""
        players = leagued.players
        banks = {players[side]: leagued.banks, players[1 - side]: opponents}
        both = {player: _wide(banks[player][player].policies) for player in players}
        lineups = np.zeros((len(indices), 2), np.int32)
        lineups[:, side], lineups[:, 1 - side] = mains[players[side]][-1], indices
        returns, _ = matches.play(both, lineups, EPISODES, 12345 + seed, 0)
        return (returns[:, side if whose is None else whose] / EPISODES).round(3).tolist()

    size = len(plain.banks[plain.players[0]])
    stretch = sorted({round(share * (size - 1)) for share in (0.0, 0.25, 0.5, 0.75, 1.0)})
    result: dict = {"seed": seed, "mains": len(mains[leagued.players[0]]), "self_play": stretch}
    for side, player in enumerate(leagued.players):
        others = mains[leagued.players[1 - side]]
        past = [others[round(share * (len(others) - 1))] for share in (0.0, 0.25, 0.5, 0.75)]
        result[player] = {
            "against_self_play": meet(side, plain.banks, stretch),
            "against_own_past": meet(side, leagued.banks, past),
            "against_itself": meet(side, leagued.banks, [others[-1]])[0],
        }
    ours, theirs = (meet(side, plain.banks, stretch, whose=0) for side in (0, 1))
    result["margins"] = [round(own - other, 3) for own, other in zip(ours, theirs, strict=True)]
    result["margin"] = result["margins"][-1]
    return result


def grow(args: argparse.Namespace, seed: int, solver: str, times: float):
    from shoal.populations.psro import PSRO

    alone = solver == "last"
    options = {} if alone else {"exploit_every": args.exploit_every}
    plan = PSRO(solver, options, iterations=args.iterations, episodes=0 if alone else args.episodes)
    settings = PopulationConfig(_experiment(args, seed, times), plan, warm_start=alone)
    return run(settings, listener=lambda progress: _tell(solver, seed, progress.update)).standing["state"]


def _tell(solver: str, seed: int, iteration: int) -> None:
    print(f"{time.strftime('%X')} seed {seed}, {solver}: iteration {iteration}", flush=True)


def _experiment(args: argparse.Namespace, seed: int, times: float):
    from shoal.presets import resolve

    experiment = dataclasses.replace(resolve(args.preset), seed=seed)
    num_envs, updates = args.num_envs or experiment.num_envs, round((args.updates or experiment.num_updates) * times)
    return dataclasses.replace(experiment, num_envs=num_envs, total_env_steps=num_envs * experiment.num_steps * updates)


def _wide(policies):
    """Banks of one size, so that the matches are compiled once."""
    room = 256
    return jax.tree.map(
        lambda leaf: jnp.concatenate([leaf, jnp.broadcast_to(leaf[:1], (room - len(leaf), *leaf.shape[1:]))]), policies
    )


if __name__ == "__main__":
    main()
