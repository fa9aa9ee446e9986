"""APPO (asynchronous PPO, as known from RLlib): IMPALA's set-up with PPO's clipped objective on V-trace's advantages.

    actors --rollouts--> queue --first come--> learner --weights--> parameters --> actors

It is `Impala(clipped=True)`, with some epochs of minibatches on each batch if wanted.
"""

from shoal.cluster.recipes._recipe import Recipe

RECIPE = Recipe("appo", "asynchronous actors, V-trace, PPO's clipped objective", sync="async", corrects_lag=True)
