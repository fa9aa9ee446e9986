"""A Shoal world as a PettingZoo environment.

    env = parallel_env("mpe/simple_spread", num_agents=5)  # all act at once
    env = aec_env("cards/leduc")                           # one after the other

Agents are called `<group>_<i>`. An agent that is no longer present is terminated and leaves `agents`. Where the world
says which actions are legal, an observation is `{"observation": ..., "action_mask": ...}`, the mask in int8, and of
actions that are several choices a tuple of masks: what `action_space(agent).sample(mask)` takes. In worlds where agents
wait for others, `infos[agent]["active"]` says who may act; beside it are the world's metrics.

In the parallel form an agent that waits needs no action, and the one it gives has no effect. In the AEC form only
active agents are selected; the world moves when all of them have chosen, so that in a turn-based game every choice is a
step. There an action that the mask forbids is an error; PettingZoo's `TerminateIllegalWrapper`, which knows actions of
one choice only, makes it a lost game. In the parallel form the world's own rule for such actions applies.

With `render_mode="rgb_array"`, `render()` gives pictures (`[height, width, 3]`, uint8) in the looks of the replay page.
`draw`, a function from a `shoal.Scene` to such a picture, draws otherwise.
"""

from typing import Any

import numpy as np

from shoal.bridges.outgoing._single import ResetNeeded, SingleEnv, SingleStep
from shoal.bridges.outgoing._worlds import (
    FPS,
    RGB_ARRAY,
    Draw,
    check_action,
    choice,
    choose_draw,
    illegal,
    make_env_of,
    missing_package_error,
    own_part,
    seat_names,
    their_mask,
)
from shoal.core.env import Env, action_shapes
from shoal.core.errors import OptionError
from shoal.core.spaces import Box, Discrete

try:
    from pettingzoo import AECEnv, ParallelEnv
except ImportError as error:
    raise missing_package_error("pettingzoo") from error

from shoal.bridges.outgoing._gymnasium_spaces import action_space, masked_space


def parallel_env(
    world: str | Env, *, render_mode: str | None = None, draw: Draw | None = None, **options: Any
) -> "ShoalParallelEnv":
    """A world in which all agents act at once; `options` are the world's own."""
    env, name = make_env_of("parallel_env", world, options)
    return ShoalParallelEnv(env, name, choose_draw("parallel_env", render_mode, draw))


def aec_env(
    world: str | Env, *, render_mode: str | None = None, draw: Draw | None = None, **options: Any
) -> "ShoalAECEnv":
    """A world in which agents act one after the other; `options` are the world's own."""
    env, name = make_env_of("aec_env", world, options)
    return ShoalAECEnv(env, name, choose_draw("aec_env", render_mode, draw))


class _Table:
    """What both forms share: the world, the agents' names and spaces, how actions are put together."""

    def __init__(self, env: Env, name: str, draw: Draw | None):
        self._one = SingleEnv(env, name)
        self._seats = seat_names(self._one.spec)
        self._space_of = {name: group.action for name, group in self._one.spec.groups.items()}
        self._draw = draw
        self.possible_agents = list(self._seats)
        self.agents: list[str] = []
        self.render_mode = None if draw is None else RGB_ARRAY
        self.metadata = {"name": name, "render_modes": [RGB_ARRAY], "render_fps": FPS, "is_parallelizable": True}
        spec = self._one.spec
        self.observation_spaces = {
            agent: masked_space(spec.groups[group], spec.observations[group])
            for agent, (group, _) in self._seats.items()
        }
        self.action_spaces = {agent: action_space(self._space_of[group]) for agent, (group, _) in self._seats.items()}

    def observation_space(self, agent: str) -> Any:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        return self.action_spaces[agent]

    def state(self) -> np.ndarray:
        """The world's global state, for centralised critics."""
        return self._one.state()

    def render(self) -> np.ndarray | None:
        """A picture `[height, width, 3]` of uint8; None without a render mode."""
        return None if self._draw is None else self._draw(self._one.scene())

    def close(self) -> None:
        """There is nothing to close."""

    def _sees(self, seen: SingleStep, agent: str) -> Any:
        group, i = self._seats[agent]
        view, legal = own_part(seen.observation[group], i)
        return view if legal is None else {"observation": view, "action_mask": their_mask(self._space_of[group], legal)}

    def _flags(self, seen: SingleStep, part: str) -> dict[str, bool]:
        """Who is active, or present."""
        flags = {name: getattr(obs, part) for name, obs in seen.observation.items()}
        return {agent: flags[group] is None or bool(flags[group][i]) for agent, (group, i) in self._seats.items()}

    def _infos(self, seen: SingleStep, agents: list[str]) -> dict[str, dict[str, Any]]:
        metrics = {name: value.item() for name, value in seen.outcome.metrics.items()}
        infos = {}
        for agent in agents:
            group, i = self._seats[agent]
            active = seen.observation[group].active
            infos[agent] = {**metrics} if active is None else {**metrics, "active": bool(active[i])}
        return infos

    def _choice(self, agent: str, action: Any) -> Any:
        space = self._space_of[self._seats[agent][0]]
        if isinstance(space, Discrete):
            return choice(self._one.name, agent, space, action)
        return check_action(self._one.name, agent, space, action)

    def _ends(self, seen: SingleStep, agents: list[str]) -> tuple[dict[str, bool], dict[str, bool]]:
        """Terminations and truncations of the agents that took part in a step."""
        terminated, truncated = bool(seen.outcome.terminated), bool(seen.outcome.truncated)
        present = self._flags(seen, "present")
        return {a: terminated or not present[a] for a in agents}, {a: truncated and present[a] for a in agents}

    def _play(self, chosen: dict[str, Any]) -> tuple[SingleStep, dict[str, float]]:
        """Steps the world and says what each agent got."""
        shapes = action_shapes(self._one.spec.groups)
        actions = {name: np.zeros(shape.shape, shape.dtype) for name, shape in shapes.items()}
        for agent, action in chosen.items():
            group, i = self._seats[agent]
            actions[group][i] = action
        seen = self._one.step(actions)
        rewards = {name: reward.tolist() for name, reward in seen.outcome.reward.items()}
        return seen, {agent: rewards[group][i] for agent, (group, i) in self._seats.items()}


class ShoalParallelEnv(_Table, ParallelEnv):
    """All agents act at once; see the module."""

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begins an episode; worlds take no options here."""
        seen = self._one.reset(seed)
        present = self._flags(seen, "present")
        self._active = self._flags(seen, "active")
        self.agents = [agent for agent in self.possible_agents if present[agent]]
        return {agent: self._sees(seen, agent) for agent in self.agents}, self._infos(seen, self.agents)

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        """One step of the world. Every active agent must act."""
        self._one.require_episode()
        agents = self.agents
        seen, rewards = self._play(self._chosen(actions))
        terminations, truncations = self._ends(seen, agents)
        self._active = self._flags(seen, "active")
        self.agents = [agent for agent in agents if not (terminations[agent] or truncations[agent])]
        observations = {agent: self._sees(seen, agent) for agent in agents}
        rewards = {agent: rewards[agent] for agent in agents}
        return observations, rewards, terminations, truncations, self._infos(seen, agents)

    def _chosen(self, actions: dict[str, Any]) -> dict[str, Any]:
        agents = self.agents
        unknown = [agent for agent in actions if agent not in agents]
        if unknown:
            raise OptionError(
                f"{self._one.name}: actions for {', '.join(map(str, unknown))}, but the agents are {', '.join(agents)}"
            )
        acting = [agent for agent in agents if self._active[agent]]
        silent = [agent for agent in acting if actions.get(agent) is None]
        if silent:
            raise OptionError(f"{self._one.name}: no action for {', '.join(silent)}; every active agent must act")
        return {agent: self._choice(agent, actions[agent]) for agent in acting}


class ShoalAECEnv(_Table, AECEnv):
    """Agents act one after the other; see the module."""

    def reset(self, seed: int | None = None, options: dict | None = None) -> None:
        """Begins an episode; worlds take no options here."""
        self._seen = self._one.reset(seed)
        present = self._flags(self._seen, "present")
        self.agents = [agent for agent in self.possible_agents if present[agent]]
        self.rewards: dict[str, float] = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards: dict[str, float] = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = self._infos(self._seen, self.agents)
        self.agent_selection = self.agents[0]
        self._skip_agent_selection = None
        self._chosen: dict[str, Any] = {}
        self._new_round()

    def step(self, action: Any) -> None:
        """The choice of the selected agent; None for one that is terminated or truncated."""
        if not self.agents:
            raise ResetNeeded(f"{self._one.name}: there is no agent to act: call reset() before step()")
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._chosen[agent] = self._legal(agent, self._choice(agent, action))
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        if self._waiting:
            self.agent_selection = self._waiting.pop(0)
        else:
            self._move()
            self._new_round()
        self._accumulate_rewards()
        self._deads_step_first()

    def observe(self, agent: str) -> Any:
        """What an agent sees now; it does not see what others chose in this round."""
        return self._sees(self._seen, agent)

    def _legal(self, agent: str, action: Any) -> Any:
        """The action, if the mask that the agent was shown allows it."""
        group, i = self._seats[agent]
        space, mask = self._space_of[group], self._seen.observation[group].legal
        if mask is None or isinstance(space, Box) or not illegal(space, action, mask[i]):
            return action
        one = isinstance(space, Discrete)
        shown = mask[i].tolist() if one else [part.tolist() for part in their_mask(space, mask[i])]
        hint = " To end a game at such an action, wrap it in PettingZoo's TerminateIllegalWrapper." if one else ""
        raise OptionError(
            f"{self._one.name}: {agent} may not take the action {np.array2string(np.asarray(action))}: its action_mask "
            f"is {shown}.{hint}"
        )

    def _new_round(self) -> None:
        """Queues the active agents; the world is stepped without actions while there are none."""
        while True:
            active = self._flags(self._seen, "active")
            self._waiting = [a for a in self.agents if active[a] and not (self.terminations[a] or self.truncations[a])]
            if self._waiting or self._one.over:
                break
            self._move()
        if self._waiting:
            self.agent_selection = self._waiting.pop(0)

    def _move(self) -> None:
        self._seen, rewards = self._play(self._chosen)
        self._chosen = {}
        self.terminations, self.truncations = self._ends(self._seen, self.agents)
        for agent in self.agents:
            self.rewards[agent] += rewards[agent]
        self.infos = self._infos(self._seen, self.agents)
