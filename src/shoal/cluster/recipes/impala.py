"""IMPALA (Espeholt et al. 2018): actors never wait, and V-trace corrects for the versions that they are behind.

    actors --rollouts--> queue --first come--> learner --weights--> parameters --> actors

The queue's end is the only thing that holds actors up: when the learner cannot follow, they wait for room.
"""

from shoal.cluster.recipes._recipe import Recipe

RECIPE = Recipe("impala", "asynchronous actors, V-trace", sync="async", corrects_lag=True)
