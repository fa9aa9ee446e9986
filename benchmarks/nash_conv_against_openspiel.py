"""NashConv against OpenSpiel's, and how long one takes: of random policies, or of the population that a run saved.

    python benchmarks/nash_conv_against_openspiel.py results/nash_conv.json
    python benchmarks/nash_conv_against_openspiel.py results/psro_nash_conv.json --run runs/...

Random: a thousand policies in Kuhn and in Leduc poker, some actions never taken. A run of `shoal psro` with learnt
responses: its last mixtures as one behaviour policy (weighted by reach), valued by OpenSpiel.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import pyspiel

import shoal
from shoal.core.files import write_atomically
from shoal.envs.tabular import TabularGame, tabulate
from shoal.populations.oracles import LearnedOracle
from shoal.populations.population import load, open_population, oracle_of

GAMES = {"cards/kuhn": "kuhn_poker", "cards/leduc": "leduc_poker"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--policies", type=int, default=1000)
    parser.add_argument("--run", type=Path, default=None)
    args = parser.parse_args()
    record = of_run(args.run) if args.run else {env: of_random(env, args.policies) for env in GAMES}
    print(json.dumps(record, indent=1))
    write_atomically(args.output, json.dumps(record, indent=1) + "\n")


def of_random(env: str, count: int) -> dict:
    game, theirs = tabulate(shoal.make(env)), pyspiel.load_game(GAMES[env])
    places = information_sets(game, theirs)
    worst, ours_s, theirs_s = 0.0, 0.0, 0.0
    for seed in range(count):
        policies = random_policies(game, seed)
        plans = [game.plan(player, policies[player]) for player in range(2)]
        began = time.perf_counter()
        ours = game.nash_conv(plans)
        ours_s += time.perf_counter() - began
        policy = as_spiel(places, policies)
        began = time.perf_counter()
        expected = pyspiel.nash_conv(theirs, policy)
        theirs_s += time.perf_counter() - began
        worst = max(worst, abs(ours - expected))
    return {
        "policies": count,
        "largest_difference": worst,
        "ms_each": round(1000 * ours_s / count, 4),
        "openspiel_ms_each": round(1000 * theirs_s / count, 4),
    }


def of_run(folder: Path) -> dict:
    settings = open_population(folder)
    oracle = oracle_of(settings, devices=1)
    assert isinstance(oracle, LearnedOracle), "exact responses are plans already"
    state = load(folder, settings, oracle)
    game, theirs = tabulate(shoal.make(settings.experiment.env)), pyspiel.load_game(GAMES[settings.experiment.env])
    plans = oracle.plans(game, state)
    mixed = [mixture @ bank for mixture, bank in zip(state.mixtures, plans, strict=True)]
    policies = [game.policy(player, plan) for player, plan in enumerate(mixed)]
    expected = pyspiel.nash_conv(theirs, as_spiel(information_sets(game, theirs), policies))
    return {"run": folder.name, "nash_conv": game.nash_conv(mixed), "openspiel": expected, "population": len(plans[0])}


def random_policies(game: TabularGame, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    policies = []
    for sets in game.sets:
        weight = sets.legal * rng.dirichlet(np.full(sets.legal.shape[1], 0.4), len(sets)).round(2)
        weight += (weight.sum(1, keepdims=True) == 0) * sets.legal
        policies.append(weight / weight.sum(1, keepdims=True))
    return policies


def information_sets(game: TabularGame, theirs: pyspiel.Game) -> list[tuple[str, int, int, list[int]]]:
    """OpenSpiel's name of every information set, its player, its row in our tables, and the legal actions."""
    known: dict[str, tuple[str, int, int, list[int]]] = {}
    left = [theirs.new_initial_state()]
    while left:
        state = left.pop()
        if state.is_terminal():
            continue
        if not state.is_chance_node() and state.information_state_string() not in known:
            player = state.current_player()
            same = (np.asarray(game.sets[player].views) == np.array(state.information_state_tensor(player))).all(axis=1)
            place = (state.information_state_string(), player, int(np.flatnonzero(same)[0]), state.legal_actions())
            known[place[0]] = place
        left.extend(state.child(action) for action in state.legal_actions())
    return list(known.values())


def as_spiel(places: list[tuple[str, int, int, list[int]]], policies: list[np.ndarray]) -> pyspiel.TabularPolicy:
    table = {name: [(a, float(policies[player][row, a])) for a in legal] for name, player, row, legal in places}
    return pyspiel.TabularPolicy(table)


if __name__ == "__main__":
    main()
