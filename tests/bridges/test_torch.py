"""Tensors share memory with arrays, worlds step as they do in JAX, and what was handed out keeps its values."""

import dataclasses
import math
import os
import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal.batching.regroup import regroup
from shoal.batching.vectorise import Vectorised
from shoal.core.algorithm import ActOutput, Traits
from shoal.core.errors import OptionError, ShoalError
from shoal.core.host import HostEnvProxy
from shoal.core.spaces import Box, Discrete, MultiDiscrete
from shoal.core.types import Group, Observation, Outcome

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from shoal.bridges.torch._actions import check_values  # noqa: E402
from shoal.bridges.torch.env import (  # noqa: E402
    TorchWorlds,
    _dlpack,
    to_jax,
    to_torch,
)
from shoal.bridges.torch.match import TorchSeat, play_match  # noqa: E402


def both_have_cuda():
    try:
        return bool(jax.local_devices(backend="cuda")) and torch.cuda.is_available()
    except RuntimeError:
        return False


# On a machine with a GPU: JAX_PLATFORMS=cuda,cpu pytest tests/bridges/test_torch.py
NO_CUDA = pytest.mark.skipif(not both_have_cuda(), reason="no CUDA device that both JAX and PyTorch can use")
DEVICES = ["cpu"] if os.environ.get("SHOAL_REQUIRE_ALL") else ["cpu", pytest.param("cuda", marks=NO_CUDA)]


@dataclasses.dataclass(frozen=True)
class Count(shoal.Env):
    """Each agent is paid its action plus 10 times the step, and sees the sum of its actions. Ends after `length`."""

    length: int = 3

    @property
    def groups(self):
        return {"a": Group(2, Discrete(4)), "b": Group(1, Box((2,), -1.0, 1.0))}

    def reset(self, key, params):
        return {"t": jnp.int32(0), "sum": jnp.zeros((2, 3))}

    def step(self, key, state, actions, params):
        t = state["t"] + 1
        state = {"t": t, "sum": state["sum"] + actions["a"][:, None]}
        reward = {"a": (actions["a"] + 10 * t).astype(jnp.float32), "b": jnp.sum(actions["b"], -1)}
        return state, Outcome(reward, jnp.asarray(False), t >= self.length, {"t": t.astype(jnp.float32)})

    def observe(self, state, params):
        legal = jnp.arange(4) != 3
        a = Observation(state["sum"], jnp.broadcast_to(legal, (2, 4)))  # a part of the state itself is handed out
        return {"a": a, "b": Observation({"t": state["t"][None].astype(jnp.float32)})}


@dataclasses.dataclass(frozen=True)
class Always:
    """A Shoal policy that plays `params`, or once it has seen `memory` steps, 0."""

    traits = Traits()
    name = "always"

    def initial_memory(self, params):
        return jnp.int32(0)

    def act(self, params, observation, memory, key, explore):
        return ActOutput(jnp.where(memory < 2, params, 0).astype(params.dtype), memory + 1)


@pytest.fixture(params=["direct", "public"])
def way(request, monkeypatch):
    """With JAX's own functions underneath, and without."""
    assert _dlpack.direct(), "this JAX has other functions: look at _dlpack.py"
    monkeypatch.setattr(_dlpack, "direct", lambda: request.param == "direct")
    return request.param


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint32", "uint8", "bool", "bfloat16", "float16"])
def test_memory_is_shared_both_ways(way, device, dtype):
    array = jax.device_put(jnp.ones((8, 3), dtype), jax.local_devices(backend=device)[0])
    tensor = to_torch(array)
    assert tensor.device.type == device
    assert (tuple(tensor.shape), str(tensor.dtype)) == ((8, 3), f"torch.{dtype}")
    assert tensor.data_ptr() == array.unsafe_buffer_pointer()
    back = to_jax(tensor, copy=False)
    assert back.unsafe_buffer_pointer() == array.unsafe_buffer_pointer()
    assert back.dtype == array.dtype
    taken = to_jax(tensor)
    assert taken.unsafe_buffer_pointer() == array.unsafe_buffer_pointer()
    assert (taken.dtype, taken.shape, taken.device) == (array.dtype, array.shape, array.device)
    made = torch.arange(64, device=device).to(torch.int32)
    assert to_jax(made, copy=False).unsafe_buffer_pointer() == made.data_ptr()


def test_what_cannot_be_shared(way):
    with pytest.raises(OptionError, match="random keys stay with JAX"):
        to_torch(jax.random.key(0))
    with pytest.raises(OptionError, match=r"no torch.int64 .* tensor.int\(\)"):
        to_jax(torch.arange(3))
    strided = torch.arange(12.0).reshape(3, 4)[:, ::2]
    np.testing.assert_array_equal(to_jax(strided), [[0, 2], [4, 6], [8, 10]])
    with pytest.raises(OptionError, match="strides"):
        to_jax(strided, copy=False)
    with pytest.raises(OptionError, match="not aligned"):
        to_jax(torch.zeros(64)[1:], copy=False)
    np.testing.assert_array_equal(to_jax(torch.arange(64.0)[1:]), np.arange(1, 64))  # a copy
    np.testing.assert_array_equal(to_jax(torch.zeros(0, 3)), np.zeros((0, 3)))
    np.testing.assert_array_equal(to_jax(torch.complex(*torch.ones(2, 3)).conj()), [1 - 1j] * 3)
    np.testing.assert_array_equal(to_jax(torch.complex(*torch.ones(2, 3)).conj().imag), [-1, -1, -1])
    with pytest.raises(OptionError, match="conjugate"):
        to_jax(torch.complex(*torch.ones(2, 3)).conj(), copy=False)
    np.testing.assert_array_equal(to_jax(torch.ones(3, requires_grad=True)), [1, 1, 1])
    with pytest.raises(OptionError, match=r"a torch tensor, got numpy\.ndarray"):
        to_jax(np.zeros(3))


@pytest.mark.parametrize("device", DEVICES)
def test_steps_are_those_of_the_world(device):
    env = shoal.make("mpe/simple_spread", max_steps=4)
    worlds = TorchWorlds(env, 5, device, seed=3, finals=True, with_state=True)
    vectorised = Vectorised(env, 5, with_state=True)
    expected = vectorised.reset(jax.random.key(3))
    seen = worlds.reset()
    generator, step = np.random.default_rng(0), jax.jit(vectorised.step)
    for count in range(1, 7):
        np.testing.assert_allclose(seen["agent"].view.cpu(), expected.observation["agent"].view, atol=1e-5)
        np.testing.assert_allclose(seen["agent"].state.cpu(), expected.observation["agent"].state, atol=1e-5)
        action = generator.integers(0, 5, (5, 3))
        seen, reward, terminated, truncated, infos = worlds.step({"agent": torch.as_tensor(action, device=device)})
        expected, outcome, ended = step(expected, {"agent": jnp.asarray(action, jnp.int32)})
        np.testing.assert_allclose(reward["agent"].cpu(), outcome.reward["agent"], atol=1e-5)
        assert truncated.tolist() == [count == 4] * 5
        assert not terminated.any()
        final = vectorised.observe(ended.params, ended.state, 5)["agent"].view
        np.testing.assert_allclose(infos.final["agent"].view.cpu(), final, atol=1e-5)
        np.testing.assert_allclose(infos.returns["agent"].cpu(), ended.returns["agent"], atol=1e-4)
        assert infos.length.tolist() == [count if count <= 4 else count - 4] * 5
    assert seen["agent"].view.is_contiguous()


@pytest.mark.parametrize("device", DEVICES)
def test_what_was_handed_out_keeps_its_values(device):
    """Views that are parts of the state, rewards, flags and infos stay; and writing to them changes no world."""
    worlds = TorchWorlds(Count(length=50), 64, device, finals=True)
    held, copies, actions = [worlds.reset()], [], {}
    copies.append(jax.tree.map(lambda leaf: leaf.clone(), held[0]))
    for count in range(12):
        actions = {
            "a": torch.full((64, 2), count % 3, dtype=torch.int32, device=device),
            "b": torch.full((64, 1, 2), 0.5, device=device),
        }
        seen, reward, terminated, truncated, infos = worlds.step(actions)
        actions["a"].fill_(3)  # the step has them already
        everything = (seen, reward, terminated, truncated, infos.final, infos.returns, infos.length, infos.metrics)
        held.append(everything)
        copies.append(jax.tree.map(lambda leaf: leaf.clone(), everything))
    for was, now in zip(jax.tree.leaves(copies), jax.tree.leaves(held), strict=True):
        assert torch.equal(was, now)
    assert held[-1][0]["a"].view[0, 0, 0] == 4 * (0 + 1 + 2)
    live = [leaf for leaf in jax.tree.leaves(held) if leaf.numel()]
    assert len({leaf.data_ptr() for leaf in live}) == len(live)  # no two share memory
    for leaf in live:
        leaf.zero_()
    actions["a"].fill_(1)
    assert worlds.step(actions).observation["a"].view[0, 0, 0] == 13


def test_seeds():
    def first(worlds, **options):
        return worlds.reset(**options)["agent"].view.clone()

    worlds, again = (TorchWorlds("mpe/simple_spread", 2, seed=1) for _ in range(2))
    one, two = first(worlds), first(worlds)
    assert torch.equal(one, first(again))
    assert not torch.equal(one, two)
    assert torch.equal(first(worlds, seed=1), one)


def test_bad_input():
    worlds = TorchWorlds(Count(), 2, "cpu")
    good = {"a": torch.zeros(2, 2, dtype=torch.int64), "b": torch.zeros(2, 1, 2)}
    with pytest.raises(OptionError, match="reset"):
        worlds.step(good)
    worlds.reset()
    with pytest.raises(OptionError, match=r"needs actions of \['a', 'b'\], got \['a'\]"):
        worlds.step({"a": good["a"]})
    with pytest.raises(OptionError, match=r"'b' must be \(2, 1, 2\) on cpu, got \(2, 1\)"):
        worlds.step(good | {"b": torch.zeros(2, 1)})
    with pytest.raises(OptionError, match="finals"):
        _ = worlds.step(good).infos.final
    with pytest.raises(ShoalError, match="unknown group 'c'"):
        TorchWorlds(Count(), 2, policies={"c": (Always(), jnp.int32(0))})
    with pytest.raises(OptionError, match="num_envs"):
        TorchWorlds(Count(), 0)
    with pytest.raises(OptionError, match="device"):
        TorchWorlds(Count(), 2, "meta")
    with pytest.raises(OptionError, match="lives on the host"):
        TorchWorlds(HostEnvProxy("gymnasium:X-v0", {}, {}, lambda count: None), 2)


@pytest.mark.parametrize(
    ("group", "action", "said"),
    [
        ("a", torch.tensor([[0, 9], [1, 2]]), r"'a' is outside its space Discrete\(n=4\): got 9"),
        ("a", torch.tensor([[0, -2], [1, 2]]), "'a' is outside .* got -2"),
        ("a", torch.full((2, 2), 2**40), "'a' is outside"),
        ("a", torch.zeros(2, 2), "'a' must be whole numbers .* got torch.float32"),
        ("a", np.zeros((2, 2), np.int32), "'a' must be a torch tensor, got numpy.ndarray"),
        ("a", None, "'a' must be a torch tensor, got NoneType"),
        ("b", torch.full((2, 1, 2), math.nan), "'b' is outside .* got nan"),
        ("b", torch.full((2, 1, 2), 1.5), r"'b' is outside .* got 1\.5"),
    ],
)
def test_actions_that_are_not_of_the_space(group, action, said):
    worlds = TorchWorlds(Count(), 2, "cpu")
    worlds.reset()
    good = {"a": torch.full((2, 2), 3), "b": torch.full((2, 1, 2), 1.0)}
    worlds.step(good)
    with pytest.raises(OptionError, match=f"Count: .*{said}"):
        worlds.step(good | {group: action})
    with pytest.raises(OptionError, match=r"Count: step needs actions of \['a', 'b'\], got NoneType"):
        worlds.step(None)
    unlooked = TorchWorlds(Count(), 2, "cpu", check=False)
    unlooked.reset()
    unlooked.step(good | {"a": torch.full((2, 2), 9)})


def test_parts_of_an_action_have_their_own_bounds():
    space = MultiDiscrete((2, 3))
    check_values("w", "g", space, torch.tensor([[1, 2], [0, 2]]))
    with pytest.raises(OptionError, match=r"w: an action of 'g' is outside .* got 2"):
        check_values("w", "g", space, torch.tensor([[2, 2], [0, 2]]))


@pytest.mark.parametrize("device", DEVICES)
def test_shoal_policies_play_inside_the_step(device):
    """One that plays 2 for two steps of an episode, then 0; the memory is reset in every episode."""
    worlds = TorchWorlds(Count(), 2, device, policies={"a": (Always(), jnp.int32(2))})
    worlds.reset()
    action = {"b": torch.zeros(2, 1, 2, device=device)}
    rewards = [worlds.step(action).reward["a"][0, 0].item() for _ in range(5)]
    assert rewards == [12, 22, 30, 12, 22]


class Fixed(torch.nn.Module):
    def __init__(self, numbers):
        super().__init__()
        self.numbers = torch.nn.Parameter(torch.tensor(numbers))

    def forward(self, view):
        leaf = view["t"] if isinstance(view, dict) else view
        return self.numbers.expand(*leaf.shape[:2], -1)


@pytest.mark.parametrize("device", DEVICES)
def test_a_match(device):
    """Logits prefer 3, which is illegal: 2 is played. 3 steps pay 2 + 10 t each; the Shoal policy 0.5 + 0.5, twice."""
    players = {"a": Fixed([0.0, 1.0, 2.0, 3.0]).to(device), "b": (Always(), jnp.full(2, 0.5))}
    scores = play_match(Count(), players, 6, device)
    np.testing.assert_allclose(scores["a"].mean, [66, 66])
    np.testing.assert_allclose(scores["b"].mean, [2])
    np.testing.assert_allclose(scores["a"].standard_error, [0, 0])
    assert scores["a"].episodes == 6
    box = {"a": (Always(), jnp.int32(1)), "b": Fixed([5.0, -0.25]).to(device)}  # clamped to 1
    np.testing.assert_allclose(play_match(Count(), box, 4, device)["b"].mean, [3 * 0.75])


def test_seats_of_one_group_are_told_apart():
    env = regroup(Count(), {"left": ["a[0]"], "right": ["a[1]"], "b": ["b"]})
    half = Fixed([0.0, 0.0, -1e9, 0.0])
    players = {"left": half, "right": (Always(), jnp.int32(2)), "b": (Always(), jnp.zeros(2))}
    scores = play_match(env, players, 4000, "cpu", explore=True)
    np.testing.assert_allclose(scores["left"].mean, 60 + 1.5, atol=4 * np.sqrt(0.75 / 4000))  # 0 or 1, 3 times
    np.testing.assert_allclose(scores["left"].standard_error, np.sqrt(0.75 / 4000), rtol=0.1)
    np.testing.assert_allclose(scores["right"].mean, 64)


def test_match_with_bad_players():
    with pytest.raises(OptionError, match=r"given for \['a', 'b'\], got \['a'\]"):
        play_match(Count(), {"a": Fixed([0.0])}, 2, "cpu")
    with pytest.raises(OptionError, match="4 logits"):
        play_match(Count(), {"a": Fixed([0.0]), "b": Fixed([0.0, 0.0])}, 2, "cpu")
    with pytest.raises(ShoalError, match="did not end within 2 steps"):
        play_match(Count(), {"a": Fixed([0.0] * 4), "b": Fixed([0.0, 0.0])}, 2, "cpu", max_steps=2)


class Plays:
    def __init__(self, actions):
        self.actions = actions

    def act(self, observation, first):
        return self.actions


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("player", "said"),
    [
        ("x", "the player of 'a' must be a PyTorch module.* got str 'x'"),
        ((1, 2, 3), "the player of 'a' must be"),
        (Fixed([0.0, math.nan, 0.0, 0.0]), "player of 'a'.* NaN or infinite"),
        (Plays(torch.full((2, 2), 9)), "action of 'a' is outside .* got 9"),
        (torch.nn.Linear(5, 4), "player of 'a', shown views of .*RuntimeError"),
        (lambda view: np.zeros((2, 2, 4)), "player of 'a'.* a torch tensor, got numpy.ndarray"),
    ],
)
def test_match_with_players_that_do_not_fit(device, player, said):
    player = player.to(device) if isinstance(player, torch.nn.Module) else player
    player = Plays(player.actions.to(device)) if isinstance(player, Plays) else player
    with pytest.raises(OptionError, match=f"Count: .*{said}"):
        play_match(Count(), {"a": player, "b": Fixed([0.0, 0.0]).to(device)}, 2, device)


def test_parts_of_an_action_are_chosen_apart():
    seat = TorchSeat(lambda view: torch.tensor([0.0, 1.0, 5.0, 3.0, 4.0]).expand(2, 1, 5), MultiDiscrete((2, 3)))
    legal = torch.tensor([True, True, False, True, True]).expand(2, 1, 5)
    assert seat.act(Observation(torch.zeros(2, 1, 1), legal), torch.ones(2)).tolist() == [[[1, 2]]] * 2


@pytest.mark.slow
def test_the_example_learns():
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "torch_policy.py"))
    threads = torch.get_num_threads()
    returns = example["main"](updates=25, num_envs=64)
    torch.set_num_threads(threads)
    assert returns["trained"] > returns["untrained"] + 1
