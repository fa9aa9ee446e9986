"""Playing a world with random actions and watching whether it keeps the contract."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from shoal.core.spaces import Box, MultiDiscrete
from shoal.core.types import Group, Observation, Outcome, PyTree
from shoal.testing._agreement import compare_copies
from shoal.testing._explain import FAILED, attempt
from shoal.testing._programs import Programs, change_inactive, keys_of_step, sample_actions, select
from shoal.testing._scene import check_scene_values
from shoal.testing._trees import check_finite, difference, first_true, named_leaves, on_host
from shoal.testing.reference import Results, compare
from shoal.testing.report import Findings


@dataclasses.dataclass(frozen=True)
class PlayCount:
    """How much was played, summed over copies."""

    num_steps: int
    num_episodes: int


@dataclasses.dataclass(frozen=True)
class Game:
    """Copies of a world, played with random legal actions, each episode with params of its own. Every step is watched.

    refer: asks the reference, if there is one, as `function(state, actions, params)`.
    """

    groups: dict[str, Group]
    programs: Programs
    key: jax.Array
    num_envs: int
    refer: Callable[..., Results] | None
    tolerance: float
    findings: Findings

    def play(self, num_steps: int) -> PlayCount:
        """Plays that many steps of all copies."""
        rng = np.random.default_rng(np.asarray(jax.random.key_data(self.key)).ravel())
        keys = keys_of_step(self.key, 0, self.num_envs)
        carry = attempt(self.findings, "reset in a batch (vmap)", self.programs.begin, keys[0], keys[1])
        if carry is FAILED:
            return PlayCount(0, 0)
        now = on_host(carry)
        check_seen(self.findings, self.groups, now, "after reset")
        num_episodes = 0
        for step in range(num_steps):
            keys = keys_of_step(self.key, step + 1, self.num_envs)
            actions = sample_actions(rng, self.groups, now["observation"], (self.num_envs,))
            others = change_inactive(rng, self.groups, now["observation"], actions)
            args = (keys[2], carry["state"], actions, carry["params"])
            results = attempt(self.findings, "step in a batch (vmap)", self.programs.advance, *args)
            if results is FAILED:
                return PlayCount(step * self.num_envs, num_episodes)
            after = on_host(results)
            self._watch(step, now, actions, after)
            if not self.findings.has("hidden state", "mutation"):  # such a world differs from itself already
                self._compare(step, num_steps, args, others, after)
            ended = _ended(after["outcome"])
            num_episodes += int(ended.sum())
            carry = self._next(keys, ended, carry["params"], results)
            now = on_host(carry)
            if ended.any():
                check_seen(self.findings, self.groups, now, f"after the reset that followed step {step}")
        return PlayCount(num_steps * self.num_envs, num_episodes)

    def _watch(self, step: int, now: dict[str, Any], actions: dict[str, np.ndarray], after: dict[str, Any]) -> None:
        check_seen(self.findings, self.groups, after, f"in step {step}")
        check_outcome(self.findings, self.groups, now["observation"], after, step)
        for copy in range(self.num_envs if self.refer else 0):
            own, of, result = jax.tree.map(lambda leaf, copy=copy: leaf[copy], (now, actions, after))
            results = self.refer(own["state"], of, own["params"])  # pyright: ignore[reportOptionalCall]
            seen, outcome = result["observation"], result["outcome"]
            compare(self.findings, self.groups, results, seen, outcome, step, self.tolerance)

    def _compare(self, step: int, num_steps: int, args: Any, others: Any, after: dict[str, Any]) -> None:
        key, state, actions, params = args
        who = [name for name in self.groups if (actions[name] != others[name]).any()]
        if who:  # by the same program: another one may round in other places
            check_inactive(self.findings, who, after, on_host(self.programs.advance(key, state, others, params)), step)
        if step in (0, num_steps // 2):
            compare_copies(self.findings, self.programs, args, after, copy=step % self.num_envs)

    def _next(self, keys: jax.Array, ended: np.ndarray, params: PyTree, after: dict[str, Any]) -> Any:
        """What the next step begins with: new episodes where one ended."""
        going_on = {"params": params, **{name: part for name, part in after.items() if name != "outcome"}}
        return select(ended, self.programs.begin(keys[0], keys[1]), going_on) if ended.any() else going_on


def _ended(outcome: Outcome) -> np.ndarray:
    return np.asarray(outcome.terminated, bool) | np.asarray(outcome.truncated, bool)


def check_seen(findings: Findings, groups: dict[str, Group], seen: dict[str, Any], when: str) -> None:
    """Everything that can be seen of a batch of states (leaves `[E, ...]`, on the host)."""
    for name, group in groups.items():
        _check_observation(findings, name, group, seen["observation"][name], when)
    for leaf_name, leaf in named_leaves(seen["global_state"], "global_state"):
        check_finite(findings, "global_state", leaf_name, leaf, when, "copy")
    check_scene_values(findings, seen["scene"], when)


def _check_observation(findings: Findings, name: str, group: Group, obs: Observation, when: str) -> None:
    where = f"observe, group {name!r}"
    for leaf_name, leaf in named_leaves(obs.view, "view"):
        check_finite(findings, where, leaf_name, leaf, when, "copy", "agent")
    _check_bounds(findings, where, group, obs.view, when)
    active, present = _who(obs.active, group), _who(obs.present, group)
    at = first_true(active & ~present)
    if at is not None:
        what = f"agent {at[1]} is active and not present {when}"
        findings.add("active", where, what, "Who may act now is present: `present` must be true where `active` is")
    if group.movers is not None and (count := int(active.sum(-1).max())) > group.movers:
        what = f"{count} agents are active at once {when}, but the group declares movers={group.movers}"
        findings.add("movers", where, what, "Correct `active`, or raise `movers`, or leave it out")
    if obs.legal is not None:
        _check_legal(findings, where, group, np.asarray(obs.legal, bool), when)


def _who(flags: Any, group: Group) -> np.ndarray:
    return np.ones((1, group.size), bool) if flags is None else np.asarray(flags, bool)


def _check_legal(findings: Findings, where: str, group: Group, legal: np.ndarray, when: str) -> None:
    sizes = group.action.sizes if isinstance(group.action, MultiDiscrete) else (legal.shape[-1],)
    for part, mask in enumerate(np.split(legal, np.cumsum(sizes)[:-1], axis=-1)):
        at = first_true(~np.any(mask, axis=-1))
        if at is not None:
            choice = f" of choice {part}" if len(sizes) > 1 else ""
            what = f"no action{choice} of agent {at[1]} is legal {when}"
            fix = "Every row needs a true entry, also those of agents that are not active: allow one that does nothing"
            findings.add("legal", where, what, fix)


def _check_bounds(findings: Findings, where: str, group: Group, view: PyTree, when: str) -> None:
    boxes = jax.tree_util.tree_leaves_with_path(group.observation, is_leaf=lambda leaf: isinstance(leaf, Box))
    declared = {jax.tree_util.keystr(path): box for path, box in boxes}
    for name, leaf in named_leaves(view):
        box = declared.get(name)
        if box is None:
            continue
        values = leaf.astype(np.float64)
        at = first_true((values < box.low) | (values > box.high))
        if at is not None:
            what = f"view{name} is {leaf[at]} {when}, outside of the declared [{box.low}, {box.high}]"
            findings.add("spec", where, what, "Clip the view or widen the bounds of `Group.observation`")


def check_outcome(
    findings: Findings, groups: dict[str, Group], before: dict[str, Observation], after: dict[str, Any], step: int
) -> None:
    """Rewards and who is there, from one state to the next (before any reset)."""
    outcome = after["outcome"]
    when = f"in step {step}"
    for name, metric in named_leaves(outcome.metrics, "metrics"):
        check_finite(findings, "step", name, metric, when, "copy")
    for name, group in groups.items():
        where = f"step, group {name!r}"
        reward = outcome.reward[name]
        check_finite(findings, where, "reward", reward, when, "copy", "agent")
        was, is_now = _who(before[name].present, group), _who(after["observation"][name].present, group)
        at = first_true((reward != 0) & ~was)
        if at is not None:
            what = f"agent {at[1]} is paid {reward[at]} {when}, though it was not present when the step began"
            fix = "Pay nothing to who has left, or keep it present until its last reward"
            findings.add("pay", where, what, fix)
        at = first_true(is_now & ~was)
        if at is not None:
            what = f"agent {at[1]} is present after step {step}, though it had left this episode before"
            fix = "Who is not present stays away until the next reset; who may come back is present and not active"
            findings.add("return", f"observe, group {name!r}", what, fix)


def check_inactive(findings: Findings, who: list[str], after: dict, probe: dict, step: int) -> None:
    """Compares two steps that differ only in the actions of inactive agents of the groups `who`."""
    differing = (difference(after[part], probe[part], part) for part in ("state", "outcome"))
    words = next((words for words in differing if words), None)
    if words:
        names = " or ".join(repr(name) for name in who)
        what = f"in step {step} the actions of agents of {names} that are not active have an effect: {words}"
        fix = "Ignore their actions: `jnp.where(active, action, ...)`"
        findings.add("inactive", "step", what, fix)
