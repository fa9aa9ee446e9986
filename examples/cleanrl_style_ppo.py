"""PPO for PyTorch in one file, in the manner of CleanRL, on a Shoal world as a Gymnasium vector environment."""

import torch
from torch import nn
from torch.distributions import Categorical

from shoal.bridges.outgoing.gymnasium import make_vec

NUM_ENVS, NUM_STEPS, EPOCHS, MINIBATCH = 64, 32, 4, 512
GAMMA, LAMBDA, CLIP, ENTROPY, LEARNING_RATE = 0.99, 0.95, 0.2, 0.01, 2.5e-3


def mlp(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


def main(total_steps=60_000, seed=0):
    torch.set_num_threads(1)  # the networks are small
    torch.manual_seed(seed)
    envs = make_vec("control/cartpole", NUM_ENVS)
    width, actions = envs.single_observation_space.shape[0], int(envs.single_action_space.n)
    actor, critic = mlp(width, actions), mlp(width, 1)
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=LEARNING_RATE, eps=1e-5)
    seen, returns = torch.as_tensor(envs.reset(seed=seed)[0]), [0.0]
    for _ in range(total_steps // (NUM_ENVS * NUM_STEPS)):
        steps = []
        for _ in range(NUM_STEPS):
            with torch.no_grad():
                policy, value = Categorical(logits=actor(seen)), critic(seen)[:, 0]
            action = policy.sample()
            view, reward, terminated, truncated, infos = envs.step(action.numpy())
            reward, over = torch.as_tensor(reward), torch.as_tensor(terminated | truncated)
            if "final_obs" in infos:
                returns = [*returns, *infos["final_info"]["episode"]["r"][over.numpy()]][-50:]
            for i in (truncated & ~terminated).nonzero()[0]:  # cut short: what would have come is worth something
                reward[i] += GAMMA * critic(torch.as_tensor(infos["final_obs"][i])).item()
            steps.append((seen, action, policy.log_prob(action), value, reward, over))
            seen = torch.as_tensor(view)
        views, chosen, chances, values, rewards, overs = map(torch.stack, zip(*steps, strict=True))
        advantages, after, following = torch.zeros_like(rewards), 0.0, critic(seen)[:, 0].detach()
        for t in reversed(range(NUM_STEPS)):
            goes_on = GAMMA * ~overs[t]
            after = rewards[t] + goes_on * following - values[t] + LAMBDA * goes_on * after
            advantages[t], following = after, values[t]
        batch = [part.flatten(0, 1) for part in (views, chosen, chances, advantages, advantages + values)]
        for index in (i for _ in range(EPOCHS) for i in torch.randperm(NUM_ENVS * NUM_STEPS).split(MINIBATCH)):
            view, action, chance, gain, target = (part[index] for part in batch)
            policy, gain = Categorical(logits=actor(view)), (gain - gain.mean()) / (gain.std() + 1e-8)
            ratio = (policy.log_prob(action) - chance).exp()
            loss = -torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()
            loss = loss - ENTROPY * policy.entropy().mean() + 0.5 * (critic(view)[:, 0] - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"mean return of the last {len(returns)} episodes: {sum(returns) / len(returns):.0f} of 500")
    return returns


if __name__ == "__main__":
    main()
