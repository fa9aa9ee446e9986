"""Leagues (Vinyals et al. 2019): matchmaking that makes main agents robust by searching for their weaknesses.

Every player has three roles, each a policy that is trained continuously, with a snapshot after every iteration:

- *main*: plays the other players' newest mains (`SELF_PLAY` of its games), all policies with priority for those it
  loses to (`EVERYBODY`), and past mains (the rest).
- *main exploiter*: plays the newest mains only, or past ones as well while it cannot beat them at all.
- *league exploiter*: plays all policies, with priority for those it loses to.

Exploiters restart once they win clearly, or after `PATIENCE` iterations; their snapshots stay in the league. They
are trained in every `exploit_every`-th iteration only, so that the mains get most of the budget.

Priorities (prioritised fictitious self-play): with the share x of games that are won, `hard` weights an opponent by
(1 - x)², `variance` by x (1 - x). x is the payoff, scaled from 0 for the least in the table to 1 for the most.

Departures: each player has a league of its own, unless all share one bank; one main agent per player; shares of payoffs
between the extremes of the table stand for shares of games won.
"""

import numpy as np

from shoal.games.meta_solvers import priorities
from shoal.populations.bank import Member, PolicyBank

ROLES = ("main", "main_exploiter", "league_exploiter")
SELF_PLAY, EVERYBODY = 0.35, 0.5
WINS, HOPELESS = 0.7, 0.2
"""Share of games won from which an exploiter restarts, and below which it looks for easier opponents."""
PATIENCE = 8
EXPLOIT_EVERY = 4
"""By default, exploiters of a new league are trained in every fourth iteration."""


def trained_roles(iteration: int, exploit_every: int) -> tuple[str, ...]:
    """The roles that are trained in an iteration; the first is number 1."""
    return ROLES if iteration % exploit_every == 0 else ROLES[:1]


def role_of(member: Member) -> str:
    """The role of a snapshot; the first policy is a main's. Frozen policies have none: they are opponents only."""
    return "frozen" if member.frozen else member.info.get("role", ROLES[0])


def newest(bank: PolicyBank, role: str) -> int:
    """The newest snapshot of a role; of the main if there is none yet."""
    found = [i for i, member in enumerate(bank.members) if role_of(member) == role]
    return found[-1] if found else newest(bank, ROLES[0])


def win_rate(payoff: np.ndarray, low: float, high: float) -> np.ndarray:
    """Payoffs on a scale from 0, the least of the table, to 1, the most."""
    return (payoff - low) / max(high - low, 1e-12)


def opponents(role: str, won: np.ndarray, bank: PolicyBank) -> np.ndarray:
    """Probabilities `[m]` with which a role plays another player's policies, given its win rates `[m]`."""
    mains = np.array([role_of(member) == ROLES[0] for member in bank.members])
    target = np.eye(len(bank))[newest(bank, ROLES[0])]
    past = np.where(mains, 1.0, 0.0) / mains.sum()
    if role == "main":
        return SELF_PLAY * target + EVERYBODY * priorities(won) + (1 - SELF_PLAY - EVERYBODY) * past
    if role == "main_exploiter":
        if won @ target >= HOPELESS:
            return target
        easier = np.where(mains, won * (1.0 - won), 0.0)
        return 0.5 * target + 0.5 * (easier / easier.sum() if easier.sum() > 1e-9 else past)
    return priorities(won)


def restarts_from_scratch(role: str, won: float, age: int) -> bool:
    """Whether an exploiter is done: it wins clearly against its opponents, or has been trained for long enough."""
    return role != "main" and (won > WINS or age >= PATIENCE)
