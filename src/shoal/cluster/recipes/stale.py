"""Stale-synchronous: actors may run ahead, but nothing is learnt from that is more than `max_staleness` updates old.

    actors --rollouts--> queue --not too old--> learner --weights--> parameters --> actors

Ho et al. 2013. With `max_divergence`, rollouts whose policy is too far (KL) from the one that learns are left out too.
"""

from shoal.cluster.recipes._recipe import Recipe

HEEDED = ("max_staleness", "max_divergence")
RECIPE = Recipe("stale", "actors run ahead within a bound on versions and divergence", sync="stale", takes=HEEDED)
