"""Policies as ONNX do in onnxruntime what they do in numpy, which other tests compare with JAX."""

import sys

import numpy as np
import pytest

from shoal.algorithms import PPO
from shoal.bridges.numpy_policy import export
from shoal.bridges.onnx_policy import input_dtypes, save_onnx
from shoal.bridges.plain_policy import flat
from shoal.core.errors import OptionError
from shoal.core.spaces import Box
from tests.bridges.test_numpy_policy import CASES, CHOICES, FLAT, MANY, PARTS, made, seen

BATCH = 6


def session(file):
    pytest.importorskip("onnx", reason="onnx is not installed: pip install onnx")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install onnxruntime")
    return runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])


def answers(run, view, legal, memory):
    named = {f"observation.{name}" if name else "observation": leaf for name, leaf in flat(view).items()}
    named |= {} if legal is None else {"legal": legal}
    return dict(
        zip(
            [out.name for out in run.get_outputs()],
            run.run(None, named | {f"memory{i}": part for i, part in enumerate(memory)}),
            strict=True,
        )
    )


def assert_alike(plain, run, boxes):
    generator, memory = np.random.default_rng(0), plain.initial_memory(BATCH)
    width = sum(plain.actions.sizes)
    for _ in range(3 if memory else 1):
        view = seen(generator, boxes, (BATCH,))
        legal = None
        if plain.actions.kind != "box":
            legal = generator.random((BATCH, width)) < 0.5
            legal[:, [0, -1]] = True
        expected = plain(view, legal, memory)
        got = answers(run, view, legal, memory)
        np.testing.assert_allclose(got["numbers"], expected.numbers, atol=1e-5)
        np.testing.assert_allclose(got["action"], expected.action, atol=1e-5)
        assert (got["action"].dtype, got["action"].shape) == (expected.action.dtype, expected.action.shape)
        for i, part in enumerate(expected.memory):
            np.testing.assert_allclose(got[f"next_memory{i}"], part, atol=1e-5)
        memory = expected.memory


@pytest.mark.parametrize("case", CASES)
def test_outputs_are_those_of_numpy(case, tmp_path):
    pytest.importorskip("onnx", reason="onnx is not installed: pip install onnx")
    kind, options, boxes, space = CASES[case]
    _, policy = made(kind, options, boxes, space)
    plain = export(policy, boxes)
    file = save_onnx(plain, tmp_path / "policy", input_dtypes(boxes))
    assert file.name == "policy.onnx"
    assert_alike(plain, session(file), boxes)


def test_normalised_views(tmp_path):
    pytest.importorskip("onnx", reason="onnx is not installed: pip install onnx")
    boxes = {"a": Box((3,)), "b": Box((9, 9, 1), dtype="uint8")}
    _, policy = made(PPO, {}, boxes, CHOICES)
    plain = export(policy, boxes)
    generator = np.random.default_rng(0)
    arrays = {
        "mean0": np.ones(3),
        "std0": np.full(3, 2.0),
        "mean1": np.full((9, 9, 1), 100.0),
        "std1": np.full((9, 9, 1), 50.0),
    }
    plain.arrays.update(
        {
            name: array.astype(np.float32) + generator.random(array.shape).astype(np.float32)
            for name, array in arrays.items()
        }
    )
    assert_alike(plain, session(save_onnx(plain, tmp_path / "policy", input_dtypes(boxes))), boxes)


def test_inputs_and_outputs_are_named(tmp_path):
    pytest.importorskip("onnx", reason="onnx is not installed: pip install onnx")
    _, policy = made(PPO, {"recurrent": "lstm"}, PARTS, MANY)
    run = session(save_onnx(export(policy, PARTS), tmp_path / "policy", input_dtypes(PARTS)))
    parts = {"observation.map", "observation.near", "observation.own.grid", "observation.own.health"}
    assert {one.name for one in run.get_inputs()} == parts | {"legal", "memory0", "memory1"}
    assert [one.name for one in run.get_outputs()] == ["next_memory0", "next_memory1", "action", "numbers"]
    assert all(one.shape[0] == "batch" for one in run.get_inputs())
    assert {one.name: one.type for one in run.get_inputs()}["observation.map"] == "tensor(uint8)"


def test_without_the_package(tmp_path, monkeypatch):
    _, policy = made(PPO, {}, FLAT, CHOICES)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(OptionError, match=r"needs the package onnx: pip install 'shoal-rl\[onnx\]'"):
        save_onnx(export(policy, FLAT), tmp_path / "policy")
    assert not list(tmp_path.iterdir())
