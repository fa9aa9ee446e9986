"""Synchronous: every update waits for one rollout of every actor, made with the newest weights.

    actors --rollouts--> queue --all of one round--> learner --weights--> parameters --> actors

It makes the same weights as the fused runner, however many actors there are. With `backups`, as many actors more than
an update waits for: the slowest of each round are left behind (Chen et al. 2016).
"""

from shoal.cluster.recipes._recipe import Recipe

RECIPE = Recipe("sync", "every update waits for all actors; equal to one machine", sync="sync", takes=("backups",))
