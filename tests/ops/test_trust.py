"""Kernels are tried before they are used; a device, kernels and errors stand in for those of a GPU."""

import dataclasses
import json
import warnings
from types import SimpleNamespace

import jax
import pytest

from shoal.ops import mlp
from shoal.ops.kernels import trust


def make_trial(measure=lambda: 0.0, **changes):
    if not callable(measure):
        error = measure

        def measure():
            if isinstance(error, str):
                raise jax.errors.JaxRuntimeError(error)
            return error

    return dataclasses.replace(trust.Trial("mlp", "tested", 8.0, "networks are plain", measure, 1e-2), **changes)


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """A machine with a GPU; verdicts are kept in a folder of the test's own."""
    client = SimpleNamespace(platform_version="PJRT C API\ncuda 13000")
    device = SimpleNamespace(platform="gpu", device_kind="H200", compute_capability="9.0", client=client)
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    monkeypatch.setattr(trust, "DRIVER", tmp_path / "version")
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 2025\n")
    before = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    forget()
    yield device
    forget()
    jax.config.update("jax_compilation_cache_dir", before)


def forget():
    """As a new process."""
    trust._find_verdict.cache_clear()
    trust._say_once.cache_clear()


def kept(tmp_path):
    file = tmp_path / trust.FILE
    return json.loads(file.read_text()) if file.exists() else {}


def test_what_is_right_is_used_and_not_tried_again(gpu, tmp_path):
    assert trust.find_problem(make_trial()) is None
    (key,) = kept(tmp_path)
    for part in ("H200", "driver 580.65.06", "cuda 13000", f"jax {jax.__version__}", "mlp ", "tested"):
        assert part in key
    forget()
    assert trust.find_problem(make_trial(lambda: pytest.fail("tried again"))) is None


def test_an_old_gpu_is_said_once_and_nothing_is_tried(gpu, tmp_path):
    gpu.compute_capability = "7.0"
    trial = make_trial(lambda: pytest.fail("tried"))
    with pytest.warns(UserWarning, match="networks are plain, without the kernel: compute capability 7.0"):
        assert trust.find_problem(trial) == "compute capability 7.0, it needs 8.0"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert trust.find_problem(trial)
    assert kept(tmp_path) == {}


@pytest.mark.parametrize("error", [0.3, float("nan")])
def test_a_disagreement_is_said_once_and_kept(gpu, tmp_path, error):
    with pytest.warns(UserWarning, match="disagrees with the plain form by"):
        problem = trust.find_problem(make_trial(error))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert trust.find_problem(make_trial(error)) == problem
    forget()
    with pytest.warns(UserWarning, match="disagrees"):  # once in this process, too
        assert trust.find_problem(make_trial(lambda: pytest.fail("tried again"))) == problem
    assert trust.find_kept_problems() == {
        key.partition(f"jax {jax.__version__}, ")[2]: problem for key in kept(tmp_path)
    }


def test_a_refusal_is_kept(gpu, tmp_path):
    with pytest.warns(UserWarning, match="the device refused it: INTERNAL: the code is of a newer version"):
        trust.find_problem(make_trial("INTERNAL: the code is of a newer version\nmore"))
    assert "newer version" in str(kept(tmp_path))


@pytest.mark.parametrize(
    "error",
    [
        "RESOURCE_EXHAUSTED: Allocating 8 bytes.",
        "INTERNAL: CUDA_ERROR_OUT_OF_MEMORY",
        "UNAVAILABLE: busy",
    ],
)
def test_what_may_pass_is_not_kept(gpu, tmp_path, error):
    with pytest.warns(UserWarning, match="the device refused it"):
        problem = trust.find_problem(make_trial(error))
    assert trust.find_problem(make_trial()) == problem  # until the process ends: half a program would be odd
    assert kept(tmp_path) == {}
    forget()
    assert trust.find_problem(make_trial()) is None
    assert list(kept(tmp_path).values()) == [None]


@pytest.mark.parametrize(
    "change",
    [
        lambda gpu, folder: setattr(gpu, "device_kind", "H100"),
        lambda gpu, folder: (folder / "version").write_text("Kernel Module  590.1.2"),
        lambda gpu, folder: setattr(gpu.client, "platform_version", "cuda 13010"),
    ],
)
def test_another_device_driver_or_compiler_is_tried_anew(gpu, tmp_path, change):
    assert trust.find_problem(make_trial()) is None
    change(gpu, tmp_path)
    with pytest.warns(UserWarning, match="disagrees"):
        assert trust.find_problem(make_trial(0.5))
    assert len(kept(tmp_path)) == 2


def test_each_kernel_has_a_verdict_of_its_own(gpu, tmp_path):
    assert trust.find_problem(make_trial()) is None
    with pytest.warns(UserWarning, match="disagrees"):
        assert trust.find_problem(make_trial(0.5, name="another"))
    assert trust.find_problem(make_trial()) is None


def test_without_the_driver_s_file_its_version_is_unknown(gpu, tmp_path):
    (tmp_path / "version").unlink()
    assert ", driver unknown, " in trust.device_key()


def test_gpus_of_others_have_none(gpu):
    gpu.client.platform_version, gpu.compute_capability = "rocm 6.4", "gfx90a"
    assert trust.find_problem(make_trial()) == trust.NO_DEVICE


def test_a_trial_may_be_asked_for_while_a_program_is_traced(gpu):
    verdicts = []
    trial = make_trial(lambda: float(jax.numpy.ones(3).sum()) - 3.0)
    jax.jit(lambda x: verdicts.append(trust.keep_verdict(trial, "traced", None)) or x)(1.0)
    assert verdicts == [None]


def test_damaged_verdicts_are_made_anew(tmp_path):
    for content in ("", "[1]", '{"key": 3}'):
        (tmp_path / trust.FILE).write_text(content)
        assert trust.keep_verdict(make_trial(), "key", str(tmp_path)) is None
        assert kept(tmp_path) == {"key": None}


def test_verdicts_of_others_are_not_lost(tmp_path):
    """Another process may have tried something while this one did."""

    def measure():
        (tmp_path / trust.FILE).write_text('{"theirs": "wrong"}')
        return 0.0

    trust.keep_verdict(make_trial(measure), "ours", str(tmp_path))
    assert kept(tmp_path) == {"theirs": "wrong", "ours": None}


def test_the_trial_of_a_network_can_be_kept(gpu):
    """Equal sizes are one trial."""
    same = mlp.make_trial([(18, 64, 5)], "tanh"), mlp.make_trial([(20, 32, 32, 7)], "tanh")
    assert same[0] == same[1]
    assert len({*same, mlp.make_trial([(18, 64, 5)], "relu"), mlp.make_trial([(40, 64, 5)], "tanh")}) == 3
