"""Exported policies do what the JAX ones do, and run where there is neither JAX nor Shoal."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.algorithms import DDPG, DQN, PPO, SAC
from shoal.bridges import plain_policy
from shoal.bridges.numpy_policy import export, load
from shoal.core.algorithm import LearnerSpec
from shoal.core.errors import OptionError
from shoal.core.spaces import Box, Discrete, MultiDiscrete
from shoal.core.types import Group, Observation
from shoal.networks.torsos import Network
from shoal.ops import normalisation

FLAT = Box((5,))
PARTS = {"near": Box((4,)), "map": Box((9, 10, 2), dtype="uint8"), "own": {"health": Box(()), "grid": Box((6, 5, 1))}}
SMALL = {"hidden": (16, 8), "filters": (3, 4), "recurrent_size": 8}
CHOICES, MANY, BOX = Discrete(4), MultiDiscrete((3, 2)), Box((2,), -2.0, 3.0)
CASES = {
    "tanh": (PPO, {}, FLAT, CHOICES),
    "relu": (PPO, {"activation": "relu", "layer_norm": True}, FLAT, MANY),
    "gelu": (PPO, {"activation": "gelu", "share_torso": True}, PARTS, BOX),
    "silu": (PPO, {"activation": "silu", "recurrent": "gru"}, FLAT, Box((3,))),
    "gru": (PPO, {"recurrent": "gru"}, PARTS, MANY),
    "lstm": (PPO, {"recurrent": "lstm", "share_torso": True}, FLAT, CHOICES),
    "min_gru": (PPO, {"recurrent": "min_gru"}, FLAT, MANY),
    "no layers": (PPO, {"hidden": ()}, FLAT, CHOICES),
    "values": (DQN, {"recurrent": "gru"}, FLAT, MANY),
    "ddpg": (DDPG, {"recurrent": "lstm"}, FLAT, BOX),
    "sac": (SAC, {"activation": "relu"}, PARTS, BOX),
    "sac, choices": (SAC, {}, FLAT, CHOICES),
}


def seen(generator, boxes, leading):
    def one(box):
        shape = (*leading, *box.shape)
        many = generator.integers(0, 256, shape) if box.dtype == "uint8" else generator.normal(size=shape)
        return many.astype(box.dtype)

    return jax.tree.map(one, boxes, is_leaf=lambda leaf: isinstance(leaf, Box))


def numbers_of(algorithm, params, view, memory):
    """Logits, values or means as the network of the algorithm itself gives them."""
    if hasattr(params, "actor"):
        carry = memory["actor"] if memory else ()
        return params.actor.apply(params.weights["actor"], view, carry)[0]
    if isinstance(algorithm, DQN):
        return params.network.apply(params.weights, view, memory)[0]
    view = view if params.view_stats is None else normalisation.normalise_tree(params.view_stats, view)
    return params.network.apply(params.weights, view, memory, method="actor")[0]


def made(kind, options, boxes, space, **more):
    algorithm = kind(network=Network(**SMALL | options), **more)
    group = Group(2, space, boxes)
    shapes = jax.tree.map(
        lambda box: jax.ShapeDtypeStruct((2, *box.shape), box.dtype), boxes, is_leaf=lambda leaf: isinstance(leaf, Box)
    )
    spec = LearnerSpec({"agent": group}, None, observations={"agent": Observation(shapes)}, num_envs=64, num_steps=1)
    shapes = jax.eval_shape(lambda key: algorithm.init(key, spec), jax.random.key(0)).params["agent"]
    return algorithm, drawn(shapes)


def drawn(policy):
    """Weights, biases included, of a size that makes differences count. Drawn here: there is nothing to compile."""
    generator = np.random.default_rng(1)

    def draw(leaf):
        fan_in = np.prod(leaf.shape[:-1]) if len(leaf.shape) > 1 else 4
        return jnp.asarray(generator.normal(size=leaf.shape) / np.sqrt(fan_in), leaf.dtype)

    return jax.tree.map(draw, policy)


@pytest.mark.parametrize("case", CASES)
def test_outputs_are_those_of_the_policy(case, tmp_path):
    kind, options, boxes, space = CASES[case]
    algorithm, policy = made(kind, options, boxes, space)
    plain = load(export(policy, boxes).save(tmp_path / "policy"))
    generator = np.random.default_rng(0)
    masked = not isinstance(space, Box)
    one = algorithm.initial_memory(policy)
    memory = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (6, *leaf.shape)), one)

    @jax.jit
    @jax.vmap
    def play(view, legal, memory):
        out = algorithm.act(policy, Observation(view, legal), memory, jax.random.key(0), False)
        return out.action, numbers_of(algorithm, policy, view, memory), out.memory

    held = ()
    for _ in range(3 if jax.tree.leaves(memory) else 1):
        view = seen(generator, boxes, (6,))
        legal = generator.random((6, 5 if space == MANY else 4)) < 0.5 if masked else None
        if legal is not None:
            legal[:, [0, -1]] = True
        action, numbers, memory = play(view, legal, memory)
        got = plain(view, legal, held)
        held = got.memory
        np.testing.assert_allclose(got.numbers, numbers if legal is None else np.where(legal, numbers, -1e9), atol=1e-5)
        np.testing.assert_allclose(got.action, action, atol=1e-5)
        assert (got.action.dtype, got.action.shape) == (action.dtype, action.shape)


def test_views_are_normalised(tmp_path):
    boxes = {"a": Box((3,)), "b": Box((9, 9, 1), dtype="uint8")}
    algorithm, policy = made(PPO, {}, boxes, CHOICES, normalise_views=True)
    views = seen(np.random.default_rng(0), boxes, (50,))
    empty = normalisation.init_tree({name: boxes[name] for name in boxes})
    policy = policy.replace(view_stats=jax.jit(normalisation.update_tree)(empty, views))
    plain = load(export(policy, Observation(boxes)).save(tmp_path / "policy.npz"))
    expected = jax.jit(jax.vmap(lambda view: numbers_of(algorithm, policy, view, ())))(views)
    np.testing.assert_allclose(plain(views).numbers, expected, atol=1e-5)
    pair = jax.tree.map(lambda leaf: leaf[:6].reshape(2, 3, *leaf.shape[1:]), views)
    np.testing.assert_allclose(plain(pair).numbers, expected[:6].reshape(2, 3, 4), atol=1e-5)


def test_draws_follow_the_chances():
    _, policy = made(PPO, {}, FLAT, CHOICES)
    plain = export(policy, FLAT)
    view = np.tile(np.linspace(-1, 1, 5, dtype=np.float32), (20_000, 1))
    legal = np.array([True, True, False, True])
    drawn = plain(view, legal, generator=np.random.default_rng(0))
    probabilities = np.exp(drawn.numbers[0] - drawn.numbers[0].max())
    shares = np.bincount(drawn.action, minlength=4) / len(view)
    np.testing.assert_allclose(shares, probabilities / probabilities.sum(), atol=0.02)
    assert shares[2] == 0


def test_it_runs_without_jax_and_shoal(tmp_path):
    _, policy = made(PPO, {"recurrent": "gru"}, FLAT, CHOICES)
    plain = export(policy, FLAT)
    file = plain.save(tmp_path / "policy.npz")
    script = tmp_path / "script.py"
    (tmp_path / "plain_policy.py").write_text(Path(plain_policy.__file__).read_text())
    script.write_text(
        "import sys\nsys.modules.update(dict.fromkeys(['jax', 'flax', 'shoal', 'torch']))\n"
        "import numpy as np\nimport plain_policy\n"
        f"print(plain_policy.load({str(file)!r})(np.ones(5, np.float32)).numbers.tolist())\n"
    )
    out = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    np.testing.assert_allclose(eval(out.stdout), plain(np.ones(5, np.float32)).numbers)


def test_bad_input(tmp_path):
    _, policy = made(PPO, {}, {"a": Box((3,))}, CHOICES)
    plain = export(policy, {"a": Box((3,))})
    with pytest.raises(ValueError, match=r"must have the parts \['a'\], got \['b'\]"):
        plain({"b": np.zeros(3)})
    with pytest.raises(ValueError, match=r"'a' must end in \(3,\), got \(2,\)"):
        plain({"a": np.zeros(2)})
    with pytest.raises(OptionError, match="no actor"):
        export({}, FLAT)
    file = tmp_path / "no.npz"
    np.savez(file, about=np.array([object()]))
    with pytest.raises(
        ValueError, match=r"no\.npz is no exported policy: it holds pickled objects, which are never read"
    ):
        load(file)
    file.write_text("not a policy at all")
    with pytest.raises(ValueError, match=r"is no exported policy: it is not a \.npz file$"):
        load(file)
    np.savez(file, weights=np.zeros(3))
    with pytest.raises(ValueError, match=r"it is a \.npz file of something else"):
        load(file)
    with pytest.raises(ValueError, match=r"no exported policy: .*No such file"):
        load(tmp_path / "nowhere.npz")


def test_views_masks_and_memories_that_do_not_fit():
    _, policy = made(PPO, {"recurrent": "lstm"}, FLAT, MANY)
    plain, view = export(policy, FLAT), np.ones((2, 5), np.float32)
    plain(view, np.ones(5, bool), plain.initial_memory(2))
    for wrong in (np.nan, np.inf):
        with pytest.raises(ValueError, match="entries that are NaN or infinite"):
            plain(np.full((2, 5), wrong, np.float32))
    with pytest.raises(ValueError, match="must be numbers, got object"):
        plain(np.full((2, 5), None))
    with pytest.raises(ValueError, match="no action is legal"):
        plain(view, np.array([True, True, True, False, False]))  # of the second part
    with pytest.raises(ValueError, match=r"legal must have the shape \(2, 5\), got \(2, 4\)"):
        plain(view, np.ones((2, 4), bool))
    with pytest.raises(ValueError, match=r"memory must be .*\(2, 8\), \(2, 8\)\].* got \[\(3, 8\), \(3, 8\)\]"):
        plain(view, memory=plain.initial_memory(3))
    with pytest.raises(ValueError, match="memory must be"):
        plain(view, memory=plain.initial_memory(2)[:1])


def test_the_command_names_its_loader_by_a_path_that_is_there():
    from shoal.cli.commands.export import LOADER

    assert LOADER == "shoal/bridges/plain_policy.py"
    assert Path(plain_policy.__file__).as_posix().endswith(LOADER)
