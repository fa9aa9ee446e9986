"""TorchRL's own collector, advantages and loss over a Shoal world: a team learns to cover landmarks."""

import torch
from tensordict.nn import TensorDictModule
from torch.distributions import Categorical
from torchrl.collectors import Collector
from torchrl.modules import MultiAgentMLP, ProbabilisticActor
from torchrl.objectives import ClipPPOLoss, ValueEstimators

from shoal.bridges.outgoing.torchrl import ShoalEnv

GROUP = "agent"


def network(env, outputs):
    *_, agents, width = env.observation_spec[GROUP, "observation"].shape
    return MultiAgentMLP(width, outputs, agents, centralized=False, share_params=True, depth=2, num_cells=64)


def main(iterations=20, num_envs=64):
    torch.set_num_threads(1)  # the networks are small
    torch.manual_seed(0)
    env = ShoalEnv("mpe/simple_spread", num_envs, seed=0)
    choices = env.action_spec[GROUP, "action"].space.n
    thinking = TensorDictModule(network(env, choices), [(GROUP, "observation")], [(GROUP, "logits")])
    chance = (GROUP, "chance")
    actor = ProbabilisticActor(
        thinking,
        in_keys=[(GROUP, "logits")],
        out_keys=[(GROUP, "action")],
        distribution_class=Categorical,
        return_log_prob=True,
        log_prob_key=chance,
    )
    critic = TensorDictModule(network(env, 1), [(GROUP, "observation")], [(GROUP, "state_value")])
    loss_of = ClipPPOLoss(actor, critic, entropy_coeff=0.01)
    keys = {"reward": (GROUP, "reward"), "value": (GROUP, "state_value"), "action": (GROUP, "action")}
    loss_of.set_keys(**keys, sample_log_prob=chance, done=(GROUP, "done"), terminated=(GROUP, "terminated"))
    loss_of.make_value_estimator(ValueEstimators.GAE, gamma=0.95, lmbda=0.9)
    optimizer = torch.optim.Adam(loss_of.parameters(), lr=3e-3)
    rewards = []
    sizes = {"frames_per_batch": num_envs * 25, "total_frames": iterations * num_envs * 25}
    for batch in Collector(env, actor, **sizes, auto_register_policy_transforms=False):
        for flag in ("done", "terminated"):  # the copies' flags, for each agent
            shape = batch["next", GROUP, "reward"].shape
            batch["next", GROUP, flag] = batch["next", flag].unsqueeze(-2).expand(shape)
        with torch.no_grad():
            loss_of.value_estimator(batch, params=loss_of.critic_network_params)
        for index in (i for _ in range(3) for i in torch.randperm(num_envs * 25).split(400)):
            losses = loss_of(batch.reshape(-1)[index])
            optimizer.zero_grad()
            (losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]).backward()
            optimizer.step()
        rewards.append(batch["next", GROUP, "reward"].mean().item())
    print(f"mean reward of a step: {rewards[0]:.2f} at first, {rewards[-1]:.2f} in the end")
    return rewards


if __name__ == "__main__":
    main()
