"""One PyTorch PPO over two simulators: Shoal's `mpe/simple_spread` through `TorchWorlds`, and VMAS's `simple_spread`.

    python benchmarks/torch_ppo_speed.py benchmarks/results/torch_ppo_cpu.json
    python benchmarks/torch_ppo_speed.py benchmarks/results/torch_ppo_cuda.json --device cuda

The same learner, networks and numbers of steps for both, in one process; they take turns, so that whatever else the
machine does hits both alike. Three agents, three landmarks, discrete moves (5 in Shoal, 9 in VMAS), episodes of 25
steps. VMAS resets all copies at once, as all finish at once: its fastest way. A rollout includes the policy; `world`
stands for steps with given actions. The time of the hand-over (DLPack, checks, and the Python around it) is taken in
extra rollouts that wait after every piece. On a CPU everything runs on one core, and seconds are those of that core,
whatever else the machine does; on a GPU they are those of the clock. Needs jax, torch and vmas (with gym) only.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch needs room too

import jax
import torch
from torch import nn

from shoal.bridges.torch import TorchWorlds
from shoal.core.registry import make

EPISODE = 25
AGENTS = 3
GAMMA, LAMBDA, CLIP = 0.99, 0.95, 0.2


class ShoalSide:
    """`mpe/simple_spread` through `TorchWorlds`."""

    def __init__(self, num_envs: int, device: str):
        env = make("mpe/simple_spread", num_agents=AGENTS, max_steps=EPISODE)
        self.worlds = TorchWorlds(env, num_envs, device)
        self.choices = 5

    def reset(self) -> torch.Tensor:
        return self.worlds.reset()["agent"].view

    def step(self, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        seen, reward, terminated, truncated, _ = self.worlds.step({"agent": action})
        return seen["agent"].view, reward["agent"], terminated | truncated


class VmasSide:
    """VMAS's own `simple_spread`."""

    def __init__(self, num_envs: int, device: str):
        import vmas

        options = {"continuous_actions": False, "max_steps": EPISODE, "n_agents": AGENTS, "seed": 0}
        self.env = vmas.make_env("simple_spread", num_envs=num_envs, device=device, **options)
        self.choices = 9
        self.count = 0

    def reset(self) -> torch.Tensor:
        self.count = 0
        return torch.stack(self.env.reset(), 1)

    def step(self, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        seen, reward, done, _ = self.env.step([action[:, i : i + 1].clone() for i in range(AGENTS)])
        self.count += 1
        if self.count % EPISODE == 0:
            seen = self.env.reset()
        return torch.stack(seen, 1), torch.stack(reward, 1), done


class Learner:
    """PPO with a shared actor and critic for all agents."""

    def __init__(self, side: Any, num_envs: int, num_steps: int, device: str):
        self.side, self.num_steps = side, num_steps
        self.seen = side.reset()
        width = self.seen.shape[-1]
        torch.manual_seed(0)
        self.actor = mlp(width, side.choices).to(device)
        self.critic = mlp(width, 1).to(device)
        self.parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self.optimiser = torch.optim.Adam(self.parameters, lr=3e-4)
        shape = (num_steps, num_envs, AGENTS)
        self.views = torch.zeros(*shape, width, device=device)
        self.actions = torch.zeros(shape, dtype=torch.int64, device=device)
        self.log_probs, self.values, self.rewards = (torch.zeros(shape, device=device) for _ in range(3))
        self.ends = torch.zeros(shape[:2], device=device)
        self.given = torch.zeros_like(self.views[0])
        self.graph, self.decided = None, ()

    def record(self) -> None:
        """On a GPU the policy is a CUDA graph: one launch instead of 20, for both simulators."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(stream):
            for _ in range(3):
                self.decide(self.given)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            self.decided = self.decide(self.given)
        self.graph = graph

    def act(self) -> tuple[torch.Tensor, ...]:
        if self.graph is None:
            return self.decide(self.seen)
        self.given.copy_(self.seen)
        self.graph.replay()
        return self.decided

    def decide(self, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits = self.actor(seen).log_softmax(-1)
        noise = torch.empty_like(logits).exponential_()
        action = (logits.exp() / noise).argmax(-1)  # a draw, without a wait for the device
        return action, logits.gather(-1, action[..., None])[..., 0], self.critic(seen)[..., 0]

    @torch.no_grad()
    def rollout(self) -> None:
        for t in range(self.num_steps):
            self.views[t] = self.seen
            self.actions[t], self.log_probs[t], self.values[t] = self.act()
            self.seen, self.rewards[t], self.ends[t] = self.side.step(self.actions[t].int())

    def steps_alone(self) -> None:
        """As many steps, with actions that are there already."""
        for action in self.actions.int():
            self.seen, _, _ = self.side.step(action)

    def update(self, epochs: int = 4, minibatches: int = 4) -> None:
        with torch.no_grad():
            advantage = self.advantages(self.critic(self.seen)[..., 0])
            target = advantage + self.values
        for _ in range(epochs):
            for index in torch.randperm(self.views.shape[1], device=self.views.device).chunk(minibatches):
                self.descend(index, advantage[:, index], target[:, index])

    def descend(self, index: torch.Tensor, advantage: torch.Tensor, target: torch.Tensor) -> None:
        views, actions = self.views[:, index], self.actions[:, index]
        logits = self.actor(views).log_softmax(-1)
        ratio = (logits.gather(-1, actions[..., None])[..., 0] - self.log_probs[:, index]).exp()
        scaled = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        policy = -torch.minimum(ratio * scaled, ratio.clamp(1 - CLIP, 1 + CLIP) * scaled).mean()
        value = (self.critic(views)[..., 0] - target).square().mean()
        entropy = -(logits.exp() * logits).sum(-1).mean()
        self.optimiser.zero_grad()
        (policy + 0.5 * value - 0.01 * entropy).backward()
        nn.utils.clip_grad_norm_(self.parameters, 0.5)
        self.optimiser.step()

    def advantages(self, after: torch.Tensor) -> torch.Tensor:
        out, trace = torch.zeros_like(self.rewards), torch.zeros_like(after)
        for t in reversed(range(self.num_steps)):
            going = (1 - self.ends[t])[:, None]
            delta = self.rewards[t] + GAMMA * going * after - self.values[t]
            trace = delta + GAMMA * LAMBDA * going * trace
            out[t], after = trace, self.values[t]
        return out


def mlp(width: int, out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, out))


class Clock(NamedTuple):
    """How time is taken: what waits until the device is done, and the seconds."""

    wait: Callable[[], None]
    now: Callable[[], float]

    @staticmethod
    def of(device: str) -> "Clock":
        if device == "cuda":
            return Clock(torch.cuda.synchronize, time.perf_counter)
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        torch.set_num_threads(1)  # more on one core would wait for each other
        return Clock(lambda: None, time.process_time)

    def time(self, function: Callable[[], None]) -> float:
        self.wait()
        start = self.now()
        function()
        self.wait()
        return self.now() - start


def hand_over(learner: Learner, clock: Clock) -> dict[str, float]:
    """Seconds of one step by piece: policy, actions to JAX, the compiled program, what it made to PyTorch."""
    worlds, spent = learner.side.worlds, dict.fromkeys(("policy", "to_jax", "world", "to_torch"), 0.0)
    with torch.no_grad():
        for _ in range(learner.num_steps):
            clock.wait()
            times = [clock.now()]
            action = learner.act()[0].int()
            clock.wait()
            times.append(clock.now())
            stream = torch.cuda.current_stream() if worlds.device.type == "cuda" else None
            given = {"agent": worlds._wanted["agent"].taken(action, worlds.device, stream)}
            times.append(clock.now())
            worlds._carry, *made = worlds._compiled.step(worlds._carry, worlds._params, given)
            jax.block_until_ready((worlds._carry.worlds.clock, made))
            times.append(clock.now())
            seen = worlds._handed(*made, stream).observation
            times.append(clock.now())
            learner.seen = seen["agent"].view
            for name, begin, end in zip(spent, times, times[1:], strict=False):
                spent[name] += end - begin
    return {name: seconds / learner.num_steps for name, seconds in spent.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--num-envs", type=int, default=4096)
    parser.add_argument("--num-steps", type=int, default=EPISODE)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--graph", action="store_true", help="the policy as a CUDA graph, for both")
    args = parser.parse_args()
    clock = Clock.of(args.device)
    sides = {"shoal": ShoalSide(args.num_envs, args.device), "vmas": VmasSide(args.num_envs, args.device)}
    learners = {name: Learner(side, args.num_envs, args.num_steps, args.device) for name, side in sides.items()}
    if args.graph:
        for learner in learners.values():
            learner.record()
    spent = {name: {kind: [] for kind in ("rollout", "update", "world")} for name in learners}
    pieces = []
    for count in range(args.rounds + 1):  # the first compiles and warms up
        for name, learner in learners.items():
            works = {"rollout": learner.rollout, "update": learner.update, "world": learner.steps_alone}
            for kind, work in works.items():
                seconds = clock.time(work)
                spent[name][kind] += [seconds] if count else []
        pieces.append(hand_over(learners["shoal"], clock))
    result = summary(args, spent, pieces[1:])
    args.output.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps({name: result[name] for name in ("steps_per_second", "ratio", "hand_over")}, indent=2))


def summary(args: argparse.Namespace, spent: dict, pieces: list[dict[str, float]]) -> dict[str, Any]:
    steps = args.num_envs * args.num_steps
    median = {name: {kind: statistics.median(times) for kind, times in own.items()} for name, own in spent.items()}
    rollout = {name: round(steps / own["rollout"]) for name, own in median.items()}
    whole = {name: round(steps / (own["rollout"] + own["update"])) for name, own in median.items()}
    alone = {name: round(steps / own["world"]) for name, own in median.items()}
    piece = {name: statistics.median(one[name] for one in pieces) for name in pieces[0]}
    handed = (piece["to_jax"] + piece["to_torch"]) * args.num_steps
    shoal = median["shoal"]
    gpu = args.device == "cuda"
    return {
        "what": "one PyTorch PPO over simple_spread (3 agents) of Shoal and of VMAS, environment steps per second",
        "device": torch.cuda.get_device_name() if gpu else f"one core, {platform.machine()}",
        "versions": {"jax": jax.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "config": {
            "num_envs": args.num_envs,
            "num_steps": args.num_steps,
            "rounds": args.rounds,
            "cuda_graph": args.graph,
        },
        "steps_per_second": {"world": alone, "rollout": rollout, "rollout_and_update": whole},
        "ratio": {
            "world": round(alone["shoal"] / alone["vmas"], 2),
            "rollout": round(rollout["shoal"] / rollout["vmas"], 2),
            "rollout_and_update": round(whole["shoal"] / whole["vmas"], 2),
        },
        "hand_over": {
            "microseconds_of_a_step": {name: round(seconds * 1e6, 1) for name, seconds in piece.items()},
            "share_of_rollout": round(handed / shoal["rollout"], 4),
            "share_of_rollout_and_update": round(handed / (shoal["rollout"] + shoal["update"]), 4),
        },
        "seconds": spent,
    }


if __name__ == "__main__":
    main()
