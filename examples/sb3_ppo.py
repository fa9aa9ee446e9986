"""Stable-Baselines3 trains on a Shoal world.

One copy needs nothing: `PPO("MlpPolicy", make_env("control/cartpole"))`. `Copies` steps many in one call, as SB3 likes.
"""

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv

from shoal.bridges.outgoing.gymnasium import make_env, make_vec


class Copies(VecEnv):
    def __init__(self, envs, seed):
        self.envs, self.first_seed, self.actions = envs, seed, None
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    def reset(self):
        return self.envs.reset(seed=self.first_seed)[0]

    def step_async(self, actions):
        self.actions = actions

    def step_wait(self):
        seen, rewards, terminated, truncated, told = self.envs.step(self.actions)
        infos = [{"TimeLimit.truncated": bool(cut and not end)} for end, cut in zip(terminated, truncated, strict=True)]
        for i in (terminated | truncated).nonzero()[0]:
            episode = {name: told["final_info"]["episode"][name][i] for name in ("r", "l")}
            infos[i] |= {"terminal_observation": told["final_obs"][i], "episode": episode}
        return seen, rewards, terminated | truncated, infos

    def close(self):
        self.envs.close()

    def get_attr(self, name, indices=None):
        return [getattr(self.envs, name)] * self.num_envs

    def env_is_wrapped(self, wrapper_class, indices=None):
        return [False] * self.num_envs

    def set_attr(self, name, *args, **kwargs):
        raise AttributeError("the copies are one program: they cannot be changed or called one by one")

    env_method = set_attr


def main(total_timesteps=35_000):
    torch.set_num_threads(1)  # the networks are small
    envs = Copies(make_vec("control/cartpole", 64), seed=0)
    learner = PPO("MlpPolicy", envs, n_steps=32, batch_size=512, n_epochs=8, learning_rate=2e-3, seed=0, device="cpu")
    learner.learn(total_timesteps)
    mean, _ = evaluate_policy(learner, Monitor(make_env("control/cartpole")), n_eval_episodes=3)
    print(f"mean return over 3 episodes: {mean:.0f} of 500")
    return mean


if __name__ == "__main__":
    main()
