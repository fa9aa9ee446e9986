"""PyTorch learns inside a Shoal world, with a Shoal policy in the seat across.

In `mpe/simple_adversary` two agents know where the goal is, and an adversary does not. A PyTorch module plays the
agents and learns by plain policy gradients (REINFORCE); a Shoal policy plays the adversary, inside the world's compiled
step. Tensors share the memory that the world wrote, on whatever device that is.
"""

import jax
import torch

import shoal
from shoal.algorithms import PPO
from shoal.bridges.torch import TorchWorlds, play_match
from shoal.core.algorithm import LearnerSpec
from shoal.core.env import describe

torch.set_num_threads(1)  # networks as small as this gain nothing from more


def train(module: torch.nn.Module, worlds: TorchWorlds, updates: int, steps: int) -> None:
    """Policy gradients over whole episodes: each action is credited with the rewards that came after it."""
    optimiser = torch.optim.Adam(module.parameters(), lr=1e-2)
    for _ in range(updates):
        seen, log_probs, rewards = worlds.reset(), [], []
        for _ in range(steps):
            chances = torch.distributions.Categorical(logits=module(seen["agent"].view))
            action = chances.sample()
            seen, reward, _, _, _ = worlds.step({"agent": action})
            log_probs.append(chances.log_prob(action))
            rewards.append(reward["agent"])
        to_go = torch.stack(rewards).flip(0).cumsum(0).flip(0)
        advantage = (to_go - to_go.mean((1, 2), keepdim=True)) / to_go.std((1, 2), keepdim=True)
        optimiser.zero_grad()
        (-(torch.stack(log_probs) * advantage).mean()).backward()
        optimiser.step()


def main(updates: int = 40, num_envs: int = 128, steps: int = 15) -> dict[str, float]:
    torch.manual_seed(0)
    env = shoal.make("mpe/simple_adversary", max_steps=steps)
    groups = describe(env).groups
    size, choices = groups["agent"].observation.shape[0], groups["agent"].action.n
    module = torch.nn.Sequential(torch.nn.Linear(size, 32), torch.nn.Tanh(), torch.nn.Linear(32, choices))
    algorithm = PPO()
    own = {"adversary": groups["adversary"]}
    adversary = algorithm, algorithm.init(jax.random.key(0), LearnerSpec(own, None)).params["adversary"]
    returns = {}
    for name in ("untrained", "trained"):
        if name == "trained":
            train(module, TorchWorlds(env, num_envs, policies={"adversary": adversary}), updates, steps)
        scores = play_match(env, {"agent": module, "adversary": adversary}, episodes=512, explore=True)
        returns[name] = float(scores["agent"].mean.sum())
        print(f"{name}: {returns[name]:.1f}, each agent ± {scores['agent'].standard_error[0]:.1f}")
    return returns


if __name__ == "__main__":
    main()
