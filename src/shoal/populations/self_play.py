"""Self-play and fictitious self-play: populations that need no payoffs, as plans of the same loop as PSRO.

A player's newest policy is trained on, against the others' past:

- self-play: against their newest policies. It may go round in circles: in rock-paper-scissors it does.
- δ-uniform self-play (Bansal et al. 2018): against their policies from the share δ of the past on.
- fictitious self-play (Heinrich et al. 2015): against all of them alike. The mixture of all policies, weighted by how
  likely each reaches a state, is then the average strategy of fictitious play, which is what comes near equilibrium.

They are run with a warm start (`Settings(..., warm_start=True)`, `shoal psro GAME --warm-start`); the mixture that a
plan reports is the one that opponents are drawn from.
"""

from shoal.populations.psro import PSRO


def self_play(iterations: int, delta: float = 1.0) -> PSRO:
    """Against the newest policies, or those from the share `delta` of the past on."""
    if delta == 1.0:
        return PSRO("last", iterations=iterations, episodes=0)
    return PSRO("recent", {"delta": delta}, iterations=iterations, episodes=0)


def fictitious_self_play(iterations: int) -> PSRO:
    """Against the whole past."""
    return PSRO("uniform", iterations=iterations, episodes=0)
