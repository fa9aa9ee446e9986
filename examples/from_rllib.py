"""An environment with RLlib's API, a `MultiAgentEnv`, as a `ParallelEnv` of PettingZoo's, in which Shoal trains.

PYTHONPATH=examples shoal train pettingzoo:from_rllib:make --env-option num_agents=3
"""

from pettingzoo import ParallelEnv


class FromRLlib(ParallelEnv):
    """`agents` are those that have been seen and are not done.

    One that RLlib does not ask in a step stays among them: it keeps its last observation, and its action is dropped.
    """

    def __init__(self, env):
        self.env, self.render_mode = env, getattr(env, "render_mode", None)
        self.metadata = {"name": type(env).__name__, "render_modes": ["rgb_array"]}
        self.possible_agents, self.agents = list(env.possible_agents), []
        self.views, self.asked = {}, set()

    def observation_space(self, agent):
        return self.env.get_observation_space(agent)

    def action_space(self, agent):
        return self.env.get_action_space(agent)

    def reset(self, seed=None, options=None):
        seen, infos = self.env.reset(seed=seed, options=options)
        self.views, self.asked = dict(seen), set(seen)
        self.agents = [agent for agent in self.possible_agents if agent in seen]
        return dict(seen), {agent: infos.get(agent, {}) for agent in self.agents}

    def step(self, actions):
        chosen = {agent: actions[agent] for agent in self.agents if agent in self.asked}
        seen, rewards, terminateds, truncateds, infos = self.env.step(chosen)
        views, self.asked = self.views | seen, set(seen)
        there = [agent for agent in self.possible_agents if agent in views]
        terminated = {agent: bool(terminateds.get(agent)) for agent in there}
        truncated = {agent: bool(truncateds.get(agent)) for agent in there}
        for agent in there:  # `__all__` ends those that have no flag of their own
            if not (terminated[agent] or truncated[agent]):
                terminated[agent] = bool(terminateds.get("__all__"))
                truncated[agent] = bool(truncateds.get("__all__"))
        self.agents = [agent for agent in there if not (terminated[agent] or truncated[agent])]
        self.views = {agent: views[agent] for agent in self.agents}
        rewards = {agent: rewards.get(agent, 0.0) for agent in there}
        return views, rewards, terminated, truncated, {agent: infos.get(agent, {}) for agent in there}

    def render(self):
        return self.env.render()


def make(num_agents=2) -> ParallelEnv:
    """Put your own environment here; options of `make` are set by `--env-option`."""
    from ray.rllib.env.multi_agent_env import make_multi_agent

    return FromRLlib(make_multi_agent("CartPole-v1")({"num_agents": int(num_agents)}))
