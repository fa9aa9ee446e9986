"""Flax modules: torsos, and the actor-critic built from them."""

from shoal.networks.actor_critic import ActorCritic as ActorCritic
from shoal.networks.actor_critic import init_weights as init_weights
from shoal.networks.actor_critic import make_actor_critic as make_actor_critic
from shoal.networks.own_torsos import MemoryTorso as MemoryTorso
from shoal.networks.own_torsos import register_torso as register_torso
from shoal.networks.torsos import Network as Network
