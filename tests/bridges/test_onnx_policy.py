"""Policies as ONNX do in onnxruntime what they do in numpy, which other tests compare with JAX."""

import dataclasses
import sys

import numpy as np
import pytest

from shoal.algorithms import DQN, PPO
from shoal.bridges.export_formats import save_policies
from shoal.bridges.numpy_policy import export, load
from shoal.bridges.onnx_policy import save_onnx
from shoal.bridges.plain_policy import flat
from shoal.core.errors import OptionError, UnknownNameError
from shoal.core.spaces import Box
from tests.bridges.test_numpy_policy import CASES, CHOICES, FLAT, MANY, PARTS, made, seen

BATCH = 6
ALL = CASES | {
    "tanh, layer norm": (PPO, {"layer_norm": True}, FLAT, CHOICES),
    "relu, images": (PPO, {"activation": "relu"}, PARTS, CHOICES),
    "gelu, layer norm": (PPO, {"activation": "gelu", "layer_norm": True}, FLAT, CHOICES),
    "silu, layer norm": (PPO, {"activation": "silu", "layer_norm": True}, FLAT, MANY),
}
DUELLING = {"one choice": (FLAT, CHOICES), "several": (PARTS, MANY)}


def session(file):
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install onnxruntime")
    return runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])


def stored(plain, folder):
    pytest.importorskip("onnx", reason="onnx is not installed: pip install onnx")
    return save_onnx(load(plain.save(folder / "policy.npz")), folder / "policy")


def answers(run, view, legal, memory):
    named = {f"observation.{name}" if name else "observation": leaf for name, leaf in flat(view).items()}
    named |= {} if legal is None else {"legal": legal}
    named |= {f"memory{i}": part for i, part in enumerate(memory)}
    return dict(zip([out.name for out in run.get_outputs()], run.run(None, named), strict=True))


def some_legal(generator, plain, lead):
    """A mask with at least one legal choice in each part; None for boxes."""
    if plain.actions.kind == "box":
        return None
    legal = generator.random((*lead, sum(plain.actions.sizes))) < 0.5
    legal[..., [0, -1]] = True
    return legal


def assert_alike(plain, run, boxes):
    generator, memory = np.random.default_rng(0), plain.initial_memory(BATCH)
    for _ in range(3 if memory else 1):
        view = seen(generator, boxes, (BATCH,))
        legal = some_legal(generator, plain, (BATCH,))
        expected = plain(view, legal, memory)
        got = answers(run, view, legal, memory)
        np.testing.assert_allclose(got["numbers"], expected.numbers, atol=1e-5)
        np.testing.assert_allclose(got["action"], expected.action, atol=1e-5)
        assert (got["action"].dtype, got["action"].shape) == (expected.action.dtype, expected.action.shape)
        for i, part in enumerate(expected.memory):
            np.testing.assert_allclose(got[f"next_memory{i}"], part, atol=1e-5)
        memory = expected.memory


@pytest.mark.parametrize("case", ALL)
def test_outputs_are_those_of_numpy(case, tmp_path):
    kind, options, boxes, space = ALL[case]
    _, policy = made(kind, options, boxes, space)
    plain = export(policy, boxes)
    file = stored(plain, tmp_path)
    assert file.name == "policy.onnx"
    assert_alike(plain, session(file), boxes)


@pytest.mark.parametrize("case", DUELLING)
def test_duelling_heads(case, tmp_path):
    boxes, space = DUELLING[case]
    _, policy = made(DQN, {}, boxes, space, dueling=True)
    plain = export(policy, boxes)
    assert "base/kernel" in plain.arrays
    assert_alike(plain, session(stored(plain, tmp_path)), boxes)


def normalised():
    """A policy whose view, an image among it, is normalised; and the boxes of that view."""
    boxes = {"a": Box((3,)), "b": Box((9, 9, 1), dtype="uint8")}
    _, policy = made(PPO, {}, boxes, CHOICES)
    plain, generator = export(policy, boxes), np.random.default_rng(0)
    shapes = {"mean0": (1, (3,)), "std0": (2, (3,)), "mean1": (100, (9, 9, 1)), "std1": (50, (9, 9, 1))}
    more = {name: (level + generator.random(shape)).astype(np.float32) for name, (level, shape) in shapes.items()}
    return dataclasses.replace(plain, arrays={**plain.arrays, **more}), boxes


def test_normalised_views(tmp_path):
    plain, boxes = normalised()
    assert_alike(plain, session(stored(plain, tmp_path)), boxes)


def test_inputs_and_outputs_are_named(tmp_path):
    _, policy = made(PPO, {"recurrent": "lstm"}, PARTS, MANY)
    run = session(stored(export(policy, PARTS), tmp_path))
    parts = {"observation.map", "observation.near", "observation.own.grid", "observation.own.health"}
    assert {one.name for one in run.get_inputs()} == parts | {"legal", "memory0", "memory1"}
    assert [one.name for one in run.get_outputs()] == ["next_memory0", "next_memory1", "action", "numbers"]
    assert all(one.shape[0] == "batch" for one in run.get_inputs())
    assert {one.name: one.type for one in run.get_inputs()}["observation.map"] == "tensor(uint8)"
    assert run.get_modelmeta().custom_metadata_map == {"actions": "multi_discrete", "sizes": "[3, 2]"}


def test_the_dtype_of_images_must_be_known(tmp_path):
    pytest.importorskip("onnx", reason="onnx is not installed: pip install onnx")
    _, policy = made(PPO, {}, PARTS, CHOICES)
    with pytest.raises(ValueError, match=r"the dtype of the view 'map', an image, is not known"):
        save_onnx(dataclasses.replace(export(policy, PARTS), dtypes=()), tmp_path / "policy")


def test_without_the_package(tmp_path, monkeypatch):
    _, policy = made(PPO, {}, FLAT, CHOICES)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(OptionError, match=r"needs the package onnx: pip install 'shoal-rl\[onnx\]'"):
        save_onnx(export(policy, FLAT), tmp_path / "policy")
    assert not list(tmp_path.iterdir())


def test_formats_by_name(tmp_path):
    _, policy = made(PPO, {}, FLAT, CHOICES)
    policies = {"left/v1.2": export(policy, FLAT)}
    files = save_policies(policies, tmp_path / "new" / "out")
    assert files == {"left/v1.2": tmp_path / "new" / "out" / "left%2Fv1.2.npz"}
    assert load(files["left/v1.2"]).dtypes == ("float32",)
    with pytest.raises(OptionError, match="is there already"):
        save_policies(policies, tmp_path / "new" / "out")
    assert save_policies(policies, tmp_path / "new" / "out", force=True) == files
    with pytest.raises(UnknownNameError, match=r"unknown format 'onxx'. Did you mean 'onnx'"):
        save_policies(policies, tmp_path, "onxx")
