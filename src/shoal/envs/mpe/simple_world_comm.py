"""`mpe/simple_world_comm`: a pack with a leader who sees all and speaks hunts agents who feed and hide in forests.

**Rules.** `num_adversaries` adversaries (radius 0.075, speed at most 1.0, acceleration 3), the first of whom leads, and
`num_good` agents (radius 0.045, speed at most 1.3, acceleration 4) start at random in the square [-1, 1]². Obstacles
(radius 0.2), food (radius 0.03) and forests (radius 0.3) lie at random in [-0.9, 0.9]². Each is steered in one of four
directions or left to glide. Adversaries, agents and obstacles that overlap push each other apart, obstacles without
moving; food and forests are no hindrance. The plane has no walls, but agents pay for leaving the square.

Who touches a forest is in it. Two who are in the same forest see each other, and so do two who are in none; otherwise
neither sees the other, but the leader sees everybody.

**Actions.** One of five moves (stay, left, right, down, up); the leader also says one of four words, all adversaries
hear it a step later, and its action is `move + 5 * word`. With `continuous=True`, five numbers from 0 to 1: the first
has no effect, the others pull left, right, down and up; four more are the leader's message.

**Observation**, with *others* in the order leader, adversaries, agents; who is not seen has zeros for place and
velocity. The views of leader and adversaries are alike:

| values | what |
|---|---|
| 2 | own velocity |
| 2 | own position |
| 2 × (num_obstacles + num_food + num_forests) | where each of these is, seen from here |
| 2 × (num_adversaries + num_good - 1) | where each other is, seen from here |
| 2 × num_good, adversaries only | velocities of the agents |
| num_forests | 1 for each forest that one is in, else -1 |
| 4, adversaries only | what the leader said; one-hot if actions are discrete, 0 at the start |
| 2 × (num_good - 1), agents only | velocities of the other agents |

**Reward.** Every adversary gets 5 for each pair of an adversary and an agent that touch, less 0.1 times its own
distance to the nearest agent. An agent gets 2 for each food it touches. It pays 5 for each adversary that touches it,
0.05 times its distance to the nearest food and, for each coordinate c with x = abs(c), twice a border penalty: nothing
below 0.9, `10 (x - 0.9)` up to 1, `min(exp(2x - 2), 10)` beyond.

**End.** Truncated after exactly `max_steps` steps; it never terminates.

**Source.** `simple_world_comm_v3` of the Multi-Particle Environments (Lowe et al. 2017, arXiv:1706.02275), as the
package `mpe2` 1.1 has it: the same views, rewards and ends from the same state and actions, to 1e-5. Version 1. One
departure: two discs on exactly the same spot do not push each other, where the original divides 0 by 0.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from shoal.core.checks import MAX_COUNT, require_flag, require_whole
from shoal.core.env import Env
from shoal.core.spaces import ActionNames
from shoal.core.types import Actions, Group, Observation, Outcome, Scene, Seat
from shoal.envs.mpe import _actions as acts
from shoal.envs.mpe import _physics as physics
from shoal.envs.mpe import _picture as picture

_WORDS = 4
_CATCH, _MEAL = 5.0, 2.0
_AGENT_TO_FOOD, _ADVERSARY_TO_AGENT, _BORDER = 0.05, 0.1, 2.0


class Params(NamedTuple):
    """The first of each pair is for adversaries, the second for agents."""

    acceleration: tuple[float | jax.Array, float | jax.Array] = (3.0, 4.0)
    max_speed: tuple[float | jax.Array, float | jax.Array] = (1.0, 1.3)
    radius: tuple[float | jax.Array, float | jax.Array] = (0.075, 0.045)
    obstacle_radius: float | jax.Array = 0.2
    food_radius: float | jax.Array = 0.03
    forest_radius: float | jax.Array = 0.3
    damping: float | jax.Array = 0.25
    """Share of the velocity that is lost in a step."""


class State(NamedTuple):
    """The leader comes first, then the other adversaries, then agents."""

    position: jax.Array  # [n, 2]
    velocity: jax.Array  # [n, 2]
    landmark: jax.Array  # [obstacles + food + forests, 2], in this order
    message: jax.Array  # [1, 4], what the leader said last
    t: jax.Array


@dataclasses.dataclass(frozen=True)
class SimpleWorldComm(Env):
    """Adversaries hunt by their leader's word; agents feed, hide and run."""

    num_good: int = 2  # agents, who are hunted
    num_adversaries: int = 4  # who hunt, the leader included
    num_obstacles: int = 1
    num_food: int = 2
    num_forests: int = 2
    max_steps: int = 25  # length of an episode
    continuous: bool = False  # numbers from 0 to 1 instead of moves and words

    kind: ClassVar[str] = "competitive"

    def __post_init__(self):
        owner = "mpe/simple_world_comm"
        agents = {"num_good": self.num_good, "num_adversaries": self.num_adversaries}
        require_whole(owner, 1, at_most=MAX_COUNT, **agents, num_food=self.num_food)
        require_whole(owner, 0, at_most=MAX_COUNT, num_obstacles=self.num_obstacles, num_forests=self.num_forests)
        require_whole(owner, 1, max_steps=self.max_steps)
        require_flag(owner, continuous=self.continuous)

    @property
    def groups(self) -> dict[str, Group]:
        """With a single adversary there is only the leader."""
        moves = acts.action_space(self.continuous)
        leader = {"leadadversary": Group(1, acts.action_space(self.continuous, words=_WORDS))}
        pack = {"adversary": Group(self.num_adversaries - 1, moves)} if self.num_adversaries > 1 else {}
        return leader | pack | {"agent": Group(self.num_good, moves)}

    @property
    def players(self) -> dict[str, tuple[Seat, ...]]:
        """Leader and adversaries are one side."""
        pack = (("leadadversary", 0), *(("adversary", i) for i in range(self.num_adversaries - 1)))
        return {"adversary": pack, "agent": tuple(("agent", i) for i in range(self.num_good))}

    def action_names(self, group: str) -> ActionNames:
        return acts.action_names(self.continuous, words=_WORDS if group == "leadadversary" else 0)

    @property
    def play_fps(self) -> float:
        return acts.PLAY_FPS

    def default_params(self) -> Params:
        return Params()

    def reset(self, key: jax.Array, params: Params) -> State:
        n = self.num_adversaries + self.num_good
        landmarks = self.num_obstacles + self.num_food + self.num_forests
        place, _ = physics.places_and_choices(key, n + landmarks, ())
        return State(place[:n], jnp.zeros((n, 2)), 0.9 * place[n:], jnp.zeros((1, _WORDS)), jnp.int32(0))

    def step(self, key: jax.Array, state: State, actions: Actions, params: Params) -> tuple[State, Outcome]:
        leader, message = acts.steering_and_speech(actions["leadadversary"], _WORDS, self.continuous)
        others = jnp.concatenate([actions[name] for name in self.groups if name != "leadadversary"])
        steer = jnp.concatenate([leader, acts.steering(others, self.continuous)])
        force = steer * self._for_each(params.acceleration)[:, None] + self._contact(state, params)
        velocity = physics.accelerate(state.velocity, force, params.damping)
        state = State(
            position=physics.move(state.position, state.velocity),
            velocity=physics.limit_speed(velocity, self._for_each(params.max_speed)),
            landmark=state.landmark,
            message=message,
            t=state.t + 1,
        )
        reward, metrics = self._reward(state, params)
        return state, Outcome(reward, jnp.bool_(False), state.t >= self.max_steps, metrics)

    def observe(self, state: State, params: Params) -> dict[str, Observation]:
        first = self.num_adversaries
        inside = self._inside(state, params)
        visible = self._visible(inside)[..., None]
        landmarks = state.landmark[None] - state.position[:, None]
        others = jnp.where(visible, physics.relative_to_others(state.position), 0.0)
        speeds = jnp.where(visible, physics.without_own(state.velocity), 0.0)[:, -self.num_good :]
        forests = jnp.where(inside, 1.0, -1.0)
        heard = jnp.broadcast_to(state.message, (first, _WORDS))
        seen = [state.velocity, state.position, landmarks, others]
        # Of an adversary's others the agents are the last `num_good`; of an agent's, the last `num_good - 1`.
        hunted, running = speeds[:first], speeds[first:, 1:]
        hunters = physics.side_by_side([*(part[:first] for part in seen), hunted, forests[:first], heard])
        agents = physics.side_by_side([*(part[first:] for part in seen), forests[first:], running])
        views = {"leadadversary": hunters[:1], "adversary": hunters[1:], "agent": agents}
        return {name: Observation(views[name]) for name in self.groups}

    def scene_for(self, state: State, params: Params, seat: Seat) -> Scene:
        """Who is hidden by a forest is not drawn."""
        whole = self.scene(state, params)
        assert whole.circles is not None
        n, own = len(state.position), self._number(seat)
        others = self._visible(self._inside(state, params))[own]
        seen = jnp.concatenate([others[:own], jnp.ones(1, bool), others[own:]])
        places = jnp.ones(len(whole.circles.visible) - n, bool)
        return whole.replace(circles=whole.circles.replace(visible=jnp.concatenate([places, seen])))

    def _number(self, seat: Seat) -> int:
        """An agent's place in the order leader, adversaries, agents."""
        return {"leadadversary": 0, "adversary": 1, "agent": self.num_adversaries}[seat[0]] + seat[1]

    def scene(self, state: State, params: Params) -> Scene:
        obstacle, food, forest = self._landmarks(state)
        leader, pack, agents = state.position[:1], *jnp.split(state.position[1:], [self.num_adversaries - 1])
        return picture.picture(
            picture.Layer(forest, params.forest_radius, picture.TEAL),
            picture.Layer(obstacle, params.obstacle_radius, picture.GREY),
            picture.Layer(food, params.food_radius, picture.BLUE),
            picture.Layer(leader, params.radius[0], picture.PURPLE, "leadadversary"),
            picture.Layer(pack, params.radius[0], picture.RED, "adversary"),
            picture.Layer(agents, params.radius[1], picture.GREEN, "agent"),
            labels=picture.words(state.message, leader + jnp.array([0.0, 0.2])),
        )

    def _for_each(self, pair: tuple[float | jax.Array, float | jax.Array]) -> jax.Array:
        return physics.by_role(pair, self.num_adversaries, self.num_good)

    def _landmarks(self, state: State) -> list[jax.Array]:
        """Places of obstacles, food and forests."""
        return jnp.split(state.landmark, [self.num_obstacles, self.num_obstacles + self.num_food])

    def _contact(self, state: State, params: Params) -> jax.Array:
        everybody = physics.discs(state.position, self._for_each(params.radius))
        return physics.contact(everybody, physics.discs(self._landmarks(state)[0], params.obstacle_radius))

    def _reward(self, state: State, params: Params) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        adversaries = physics.discs(state.position[: self.num_adversaries], params.radius[0])
        agents = physics.discs(state.position[self.num_adversaries :], params.radius[1])
        food = physics.discs(self._landmarks(state)[1], params.food_radius)
        touches = physics.sum_over(physics.touching, agents, adversaries)
        meals = physics.sum_over(physics.touching, agents, food)
        catches = physics.total(touches)
        to_food = jnp.sqrt(physics.least(physics.all_pairs(physics.squared_distance, food, agents)))
        to_agent = jnp.sqrt(physics.least(physics.all_pairs(physics.squared_distance, agents, adversaries)))
        outside = physics.border_penalty(jnp.abs(agents.x)) + physics.border_penalty(jnp.abs(agents.y))
        hunt = _CATCH * catches - _ADVERSARY_TO_AGENT * to_agent
        run = _MEAL * meals - _CATCH * touches - _BORDER * outside - _AGENT_TO_FOOD * to_food
        reward = {"leadadversary": hunt[:1], "adversary": hunt[1:], "agent": run}
        return {name: reward[name] for name in self.groups}, {"catches": catches, "meals": physics.total(meals)}

    def _inside(self, state: State, params: Params) -> jax.Array:
        """Who is in which forest, `[n, forests]`."""
        everybody = physics.discs(state.position, self._for_each(params.radius))
        forests = physics.discs(self._landmarks(state)[2], params.forest_radius)
        return physics.all_pairs(physics.touching, everybody, forests) > 0

    def _visible(self, inside: jax.Array) -> jax.Array:
        """Whom each sees of the others, `[n, n - 1]`."""
        own, others = inside.T[:, :, None], jnp.moveaxis(physics.without_own(inside), -1, 0)
        same_forest = physics.either(own & others)
        both_outside = ~(physics.either(own) | physics.either(others))
        is_leader = jnp.arange(inside.shape[0])[:, None] == 0
        return same_forest | both_outside | is_leader
