"""Checkpoints come back to the bit, and neither damage, a full disk nor SIGKILL ever costs one already written."""

import errno
import json
import os
import subprocess
import sys
import textwrap
import threading
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from flax import struct
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from shoal.core.errors import OptionError, RunError
from shoal.training import checkpoint, sealed_archive


@struct.dataclass
class Learner:
    weights: dict
    count: jax.Array
    label: str = struct.field(pytree_node=False, default="unnamed")


DTYPES = [
    *(
        "bool",
        "int8",
        "uint8",
        "int16",
        "uint16",
        "int32",
        "uint32",
        "int64",
        "uint64",
        "float16",
        "float32",
        "float64",
    ),
    *("complex64", "complex128", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"),
]


def assert_same_bits(got, expected):
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        if jnp.issubdtype(theirs.dtype, jax.dtypes.prng_key):
            assert ours.dtype == theirs.dtype
            ours, theirs = jax.random.key_data(ours), jax.random.key_data(theirs)
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        assert ours.tobytes() == theirs.tobytes()


def round_trip(folder, tree):
    return checkpoint.load(checkpoint.save(folder, 0, tree, {}), tree)


def small_tree(fill=1.0):
    return {"w": np.full((3, 4), fill, np.float32), "n": np.int32(7)}


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back_to_the_bit(tmp_path, dtype):
    bits = np.random.default_rng(0).integers(0, 256, 16 * 3 * 5, dtype=np.uint8)
    if dtype == "bool":
        bits %= 2
    if dtype in ("int4", "uint4"):
        bits %= 16
    array = np.frombuffer(bits.tobytes(), np.dtype(dtype))[:15].reshape(3, 5)
    assert_same_bits(round_trip(tmp_path, {"x": array, "t": array.T}), {"x": array, "t": array.T})


def test_nan_payloads_signed_zeros_and_infinities_survive(tmp_path):
    patterns = np.array([0x7FC00001, 0xFFC12345, 0x7F800001, 0x80000000, 0x7F800000, 0xFF800000], np.uint32)
    short = np.array([0x7FC1, 0xFFC2, 0x7F81, 0x8000, 0x7F80], np.uint16)
    tree = {"f": patterns.view(np.float32), "b": short.view(ml_dtypes.bfloat16)}
    loaded = round_trip(tmp_path, tree)
    np.testing.assert_array_equal(loaded["f"].view(np.uint32), patterns)
    np.testing.assert_array_equal(loaded["b"].view(np.uint16), short)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    arrays=st.dictionaries(
        st.text("abcXYZ_./ é", min_size=1, max_size=6),
        npst.arrays(
            st.sampled_from([np.float32, np.uint32, np.bool_, np.float16]),
            npst.array_shapes(min_dims=0, min_side=0, max_side=4),
        ),
        max_size=4,
    )
)
def test_any_dict_of_arrays_comes_back(tmp_path, arrays):
    assert_same_bits(round_trip(tmp_path, arrays), arrays)


def test_jax_arrays_keys_scalars_and_optimiser_states_come_back(tmp_path):
    weights = {"kernel": jnp.arange(6.0).reshape(2, 3), "half": jnp.ones((2,), jnp.bfloat16)}
    tree = {
        "learner": Learner(weights, jnp.int32(3), label="A"),
        "optimiser": optax.adam(1e-3).init(weights),
        "key": jax.random.key(5),
        "keys": jax.random.split(jax.random.key(6, impl="rbg"), (2, 3)),
        "scalar": jnp.float32(2.5),
        "nothing": None,
        "empty": (),
    }
    loaded = round_trip(tmp_path, tree)
    assert_same_bits(loaded, tree)
    assert loaded["learner"].label == "A"
    np.testing.assert_array_equal(jax.random.uniform(loaded["key"], (3,)), jax.random.uniform(tree["key"], (3,)))


@pytest.mark.parametrize("tree", [{}, (), None, {"a": ()}])
def test_trees_without_leaves(tmp_path, tree):
    assert round_trip(tmp_path, tree) == tree


def test_a_bare_array_and_a_0_d_array(tmp_path):
    assert_same_bits(round_trip(tmp_path, np.float32(1.5)), np.float32(1.5))
    assert_same_bits(round_trip(tmp_path, jnp.arange(3)), jnp.arange(3))


def test_a_loaded_array_is_writable_and_owns_its_memory(tmp_path):
    loaded = round_trip(tmp_path, small_tree())
    loaded["w"][0, 0] = 9
    assert loaded["w"][0, 0] == 9


def test_structure_and_static_metadata_come_from_like(tmp_path):
    path = checkpoint.save(tmp_path, 0, Learner({"w": jnp.ones(2)}, jnp.int32(1), label="saved"), {})
    like = jax.eval_shape(lambda: Learner({"w": jnp.zeros(2)}, jnp.int32(0), label="asked for"))
    loaded = checkpoint.load(path, like)
    assert loaded.label == "asked for"
    np.testing.assert_array_equal(loaded.weights["w"], np.ones(2))
    assert b"saved" not in path.read_bytes()


def test_shape_structs_serve_as_like_for_keys(tmp_path):
    path = checkpoint.save(tmp_path, 0, {"key": jax.random.key(1)}, {})
    loaded = checkpoint.load(path, jax.eval_shape(lambda: {"key": jax.random.key(0)}))
    assert_same_bits(loaded, {"key": jax.random.key(1)})


def test_meta_and_arrays_can_be_read_without_the_tree(tmp_path):
    meta = {"seed": 3, "names": ["a", "b"], "nested": {"x": None, "y": 0.1}}
    tree = {"params": {"k": np.ones((2, 2), ml_dtypes.bfloat16)}, "key": jax.random.key(4)}
    path = checkpoint.save(tmp_path, 12, tree, meta)
    assert checkpoint.read_meta(path) == meta
    arrays = checkpoint.read_arrays(path)
    assert set(arrays) == {"params/k", "key"}
    assert arrays["params/k"].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(arrays["key"], jax.random.key_data(jax.random.key(4)))


def test_the_file_is_an_ordinary_uncompressed_npz(tmp_path):
    path = checkpoint.save(tmp_path, 42, {"params": {"w": np.arange(3.0)}}, {"a": 1})
    assert path == tmp_path / "step-0000000042.npz"
    with np.load(path, allow_pickle=False) as archive:
        np.testing.assert_array_equal(archive["params/w"], np.arange(3.0))
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert all(info.compress_type == zipfile.ZIP_STORED for info in archive.infolist())
        manifest = json.loads(archive.read("manifest.json"))
    assert manifest["format"] == checkpoint.FORMAT_VERSION
    assert manifest["leaves"] == [{"path": "params/w", "shape": [3], "dtype": "float64", "key": None}]


def test_equal_trees_give_equal_files(tmp_path):
    first = checkpoint.save(tmp_path / "a", 1, small_tree(), {"x": 1}).read_bytes()
    assert first == checkpoint.save(tmp_path / "b", 1, small_tree(), {"x": 1}).read_bytes()


def test_saving_and_loading_make_no_hidden_transfer(tmp_path):
    tree = {"w": jnp.arange(3.0), "key": jax.random.key(0)}
    with jax.transfer_guard("disallow"):
        loaded = checkpoint.load(checkpoint.save(tmp_path, 0, tree, {}), tree)
    assert_same_bits(loaded, tree)


def test_the_newest_are_kept(tmp_path):
    for step in (1, 5, 3, 20, 100):
        checkpoint.save(tmp_path, step, small_tree(step), {}, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-0000000020.npz", "step-0000000100.npz"]
    assert checkpoint.latest(tmp_path) == tmp_path / "step-0000000100.npz"


def test_the_file_just_written_is_never_pruned(tmp_path):
    checkpoint.save(tmp_path, 200, small_tree(), {}, keep=1)
    path = checkpoint.save(tmp_path, 150, small_tree(), {}, keep=1)
    assert path.exists()


def test_latest_orders_by_step_and_ignores_everything_else(tmp_path):
    assert checkpoint.latest(tmp_path) is None
    assert checkpoint.latest(tmp_path / "absent") is None
    long = checkpoint.save(tmp_path, 10**10, small_tree(), {})
    checkpoint.save(tmp_path, 9_999_999_999, small_tree(), {})
    for name in ("step-0000000099.npz.tmp", "step-99999999999.npz.part", "step-x.npz", "notes.npz"):
        (tmp_path / name).write_bytes(b"")
    assert checkpoint.latest(tmp_path) == long


def test_leftovers_of_a_killed_process_are_swept_and_other_files_stay(tmp_path):
    (tmp_path / "step-0000000003.npz.tmp").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    checkpoint.save(tmp_path, 4, small_tree(), {}, keep=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "step-0000000004.npz"]


def test_saving_a_step_again_replaces_it(tmp_path):
    checkpoint.save(tmp_path, 4, small_tree(1), {})
    path = checkpoint.save(tmp_path, 4, small_tree(2), {})
    assert_same_bits(checkpoint.load(path, small_tree()), small_tree(2))


def test_threads_may_save_side_by_side(tmp_path):
    threads = [
        threading.Thread(target=checkpoint.save, args=(tmp_path, step % 2, small_tree(step % 2), {}))
        for step in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for step in (0, 1):
        path = tmp_path / f"step-{step:010d}.npz"
        assert_same_bits(checkpoint.load(path, small_tree()), small_tree(step))


def test_the_latest_is_the_one_with_the_highest_step(tmp_path):
    checkpoint.save(tmp_path, 1, small_tree(1), {"step": 1})
    checkpoint.save(tmp_path, 2, small_tree(2), {"step": 2})
    newest = checkpoint.latest(tmp_path)
    assert_same_bits(checkpoint.load(newest, small_tree()), small_tree(2))
    assert checkpoint.read_meta(newest) == {"step": 2}
    assert list(checkpoint.steps(tmp_path)) == [1, 2]
    assert checkpoint.latest(tmp_path / "absent") is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"step": -1}, "step must be 0 or more, got -1"),
        ({"keep": 0}, "keep must be 1 or more, got 0"),
        ({"meta": {"x": np.ones(2)}}, "meta must be plain JSON"),
        ({"meta": {"x": float("nan")}}, "meta must be plain JSON"),
        ({"tree": {"a": np.array([object()])}}, "the leaf 'a' must be an array of numbers"),
        ({"tree": {"a": "text"}}, "the leaf 'a' must be an array of numbers"),
        ({"tree": {"a": {"b": np.ones(1)}, "a/b": np.ones(1)}}, "two leaves of the tree have the path 'a/b'"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_written(tmp_path, arguments, words):
    with pytest.raises(OptionError, match=words):
        checkpoint.save(tmp_path, **{"step": 0, "tree": small_tree(), "meta": {}, **arguments})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("like", "words"),
    [
        (
            {"w": np.zeros((3, 5), np.float32), "n": np.int32(0)},
            r"w: the file has float32\[3, 4\], expected float32\[3, 5\]",
        ),
        (
            {"w": np.zeros((3, 4), np.float64), "n": np.int32(0)},
            r"w: the file has float32\[3, 4\], expected float64\[3, 4\]",
        ),
        ({"w": np.zeros((3, 4), np.float32)}, "n: in the file, but not expected"),
        ({**small_tree(), "extra": np.zeros(1)}, "extra: missing from the file"),
        (
            {"w": np.zeros((3, 4), np.float32), "n": jax.random.key(0)},
            r"n: the file has int32\[\], expected key<fry>\[\]",
        ),
    ],
)
def test_a_checkpoint_of_another_network_shape_is_refused(tmp_path, like, words):
    path = checkpoint.save(tmp_path, 0, small_tree(), {})
    with pytest.raises(RunError, match=words) as caught:
        checkpoint.load(path, like)
    assert "another network shape" in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_part_of_the_tree_can_be_loaded_but_must_be_there_in_full(tmp_path):
    path = checkpoint.save(tmp_path, 0, small_tree(5), {})
    assert_same_bits(checkpoint.load(path, {"n": np.int32(0)}, partial=True), {"n": np.int32(7)})
    with pytest.raises(RunError, match="extra: missing from the file"):
        checkpoint.load(path, {"extra": np.int32(0)}, partial=True)
    with pytest.raises(RunError, match=r"n: the file has int32\[\], expected float32\[\]"):
        checkpoint.load(path, {"n": np.float32(0)}, partial=True)


def test_many_differences_are_cut_short(tmp_path):
    path = checkpoint.save(tmp_path, 0, {f"layer{i}": np.ones(3) for i in range(9)}, {})
    with pytest.raises(RunError, match=r"layer4: .*; and 4 more"):
        checkpoint.load(path, {f"layer{i}": np.ones(4) for i in range(9)})


def test_keys_of_another_generator_are_refused(tmp_path):
    path = checkpoint.save(tmp_path, 0, jax.random.key(0, impl="rbg"), {})
    with pytest.raises(RunError, match="the file has key<rbg>"):
        checkpoint.load(path, jax.random.key(0))


def write_sealed(path, members):
    """A file with a valid seal and any content, as only a forger or a newer version would make."""
    arrays = {name: array for name, array in members.items() if name != "manifest.json"}
    sealed_archive.write(path, "manifest.json", members["manifest.json"], arrays)
    return path


def manifest(**changes):
    entry = {"path": "x", "shape": [2], "dtype": "float32", "key": None}
    return json.dumps({"format": 1, "shoal": "0.1.0", "leaves": [entry], "meta": {}, **changes}).encode()


def test_a_newer_format_asks_for_an_upgrade(tmp_path):
    content = {"manifest.json": manifest(format=2, shoal="9.0"), "x": np.zeros(2, np.float32)}
    path = write_sealed(tmp_path / "step-0000000000.npz", content)
    for read in (checkpoint.read_meta, checkpoint.read_arrays, lambda path: checkpoint.load(path, {})):
        with pytest.raises(RunError, match=r"written by Shoal 9\.0 in format 2.*Upgrade shoal"):
            read(path)


@pytest.mark.parametrize(
    "members",
    [
        {"manifest.json": b"{}"},
        {"manifest.json": b"\xff not json"},
        {"manifest.json": b"[1]"},
        {"manifest.json": manifest(leaves=3)},
        {"manifest.json": manifest(leaves=[{"path": "x"}])},
        {"manifest.json": manifest()},
        {"manifest.json": manifest(), "x": np.zeros(3, np.float32)},
        {"manifest.json": manifest(), "x": np.zeros(2, np.float64)},
    ],
)
def test_a_file_that_contradicts_itself_is_refused(tmp_path, members):
    path = write_sealed(tmp_path / "step-0000000000.npz", members)
    with pytest.raises(RunError, match="not a checkpoint written by Shoal"):
        checkpoint.load(path, {"x": np.zeros(2, np.float32)})


class Bomb:
    """Unpickling it would be noticed."""

    def __reduce__(self):
        return (os.mkdir, (str(Bomb.target),))

    target: Path


def test_pickled_objects_are_never_loaded(tmp_path, monkeypatch):
    Bomb.target = tmp_path / "exploded"
    real = np.lib.format.write_array
    monkeypatch.setattr(
        np.lib.format, "write_array", lambda fp, array, allow_pickle: real(fp, array, allow_pickle=True)
    )
    content = {"manifest.json": manifest(), "x": np.array([Bomb(), None], dtype=object)}
    path = write_sealed(tmp_path / "step-0000000000.npz", content)
    with pytest.raises(RunError, match="objects are never loaded"):
        checkpoint.load(path, {"x": np.zeros(2, np.float32)})
    assert not Bomb.target.exists()


def test_a_missing_or_foreign_file(tmp_path):
    with pytest.raises(RunError, match="No such file"):
        checkpoint.load(tmp_path / "step-0000000000.npz", {})
    np.savez(tmp_path / "foreign.npz", x=np.ones(2))
    with pytest.raises(RunError, match="damaged"):
        checkpoint.load(tmp_path / "foreign.npz", {"x": np.ones(2)})


@pytest.fixture(scope="module")
def good_bytes(tmp_path_factory):
    return checkpoint.save(tmp_path_factory.mktemp("good"), 1, small_tree(), {"seed": 1}).read_bytes()


def assert_refused(path, content):
    path.write_bytes(content)
    for read in (lambda path: checkpoint.load(path, small_tree()), checkpoint.read_meta, checkpoint.read_arrays):
        with pytest.raises(RunError, match=r"step-0000000001\.npz is damaged or cut short"):
            read(path)


def test_every_single_flipped_byte_is_noticed(tmp_path, good_bytes):
    for offset in range(len(good_bytes)):
        damaged = bytearray(good_bytes)
        damaged[offset] ^= 1 << (offset % 8)
        assert_refused(tmp_path / "step-0000000001.npz", bytes(damaged))


def test_every_shorter_and_longer_file_is_noticed(tmp_path, good_bytes):
    for length in range(len(good_bytes)):
        assert_refused(tmp_path / "step-0000000001.npz", good_bytes[:length])
    assert_refused(tmp_path / "step-0000000001.npz", good_bytes + b"\0")
    assert_refused(tmp_path / "step-0000000001.npz", b"\0" + good_bytes)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_overwritten_stretches_are_noticed(tmp_path, good_bytes, data):
    start = data.draw(st.integers(0, len(good_bytes) - 1))
    patch = data.draw(st.binary(min_size=1, max_size=len(good_bytes) - start))
    damaged = good_bytes[:start] + patch + good_bytes[start + len(patch) :]
    if damaged != good_bytes:
        assert_refused(tmp_path / "step-0000000001.npz", damaged)


def test_a_damaged_newest_names_the_newest_intact_and_is_not_skipped(tmp_path):
    paths = [checkpoint.save(tmp_path, step, small_tree(step), {}, keep=9) for step in (1, 2, 3, 4)]
    for path in paths[2:]:
        path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(RunError) as caught:
        checkpoint.load(checkpoint.latest(tmp_path), small_tree())
    assert "step-0000000004.npz is damaged" in str(caught.value)
    assert "newest intact one, step-0000000002.npz" in str(caught.value)
    for path in paths[:2]:
        path.unlink()
    with pytest.raises(RunError, match="no intact checkpoint beside it"):
        checkpoint.load(checkpoint.latest(tmp_path), small_tree())


def assert_intact(folder, step):
    assert [path.name for path in folder.iterdir()] == [f"step-{step:010d}.npz"]
    assert_same_bits(checkpoint.load(checkpoint.latest(folder), small_tree()), small_tree(step))


def test_a_disk_that_fills_up_at_any_moment_harms_nothing(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, 1, small_tree(1), {})
    monkeypatch.setattr(sealed_archive, "open_file", Filling)
    size = checkpoint.latest(tmp_path).stat().st_size
    for room in range(0, size, 97):
        Filling.room = room
        with pytest.raises(RunError, match=r"step-0000000002\.npz: No space left.*earlier checkpoints are intact"):
            checkpoint.save(tmp_path, 2, small_tree(2), {})
        Filling.room = 10**9
        assert_intact(tmp_path, 1)


class Filling:
    """A file on a disk with little room left."""

    room = 0

    def __init__(self, path, mode):
        self._file = open(path, mode)  # noqa: SIM115

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def write(self, data):
        if len(data) > Filling.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        Filling.room -= len(data)
        return self._file.write(data)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_failing_system_calls_harm_nothing(tmp_path, monkeypatch, call):
    checkpoint.save(tmp_path, 1, small_tree(1), {})

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(RunError, match="No space left"):
        checkpoint.save(tmp_path, 2, small_tree(2), {})
    assert_intact(tmp_path, 1)


def test_an_interrupt_while_writing_leaves_no_temporary_file(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, 1, small_tree(1), {})

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(tmp_path, 2, small_tree(2), {})
    assert_intact(tmp_path, 1)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="could not save the checkpoint"):
        checkpoint.save(tmp_path / "file" / "checkpoints", 0, small_tree(), {})


def run_python(source, *arguments):
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(source), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )


@pytest.mark.skipif(os.name != "posix", reason="needs a limit on file sizes")
def test_a_real_limit_on_file_size_harms_nothing(tmp_path):
    """The operating system itself refuses the write, in the middle of an array."""
    checkpoint.save(tmp_path, 1, small_tree(1), {})
    result = run_python(
        """
        import resource, sys
        import numpy as np
        from shoal.core.errors import RunError
        from shoal.training import checkpoint
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        try:
            checkpoint.save(sys.argv[1], 2, {"w": np.ones(1_000_000)}, {})
        except RunError as error:
            print(error)
        """,
        tmp_path,
    )
    assert result.returncode == 0, result.stderr
    assert "File too large. The earlier checkpoints are intact." in result.stdout
    assert_intact(tmp_path, 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_sigkill_at_any_moment_leaves_a_loadable_latest(tmp_path):
    """Twenty-five writers are killed; each time the newest file is whole and no older than what had been announced."""
    result = run_python(
        """
        import os, random, signal, sys, time
        import numpy as np
        from shoal.training import checkpoint

        folder, like = sys.argv[1], {"a": np.zeros(150_000, np.float32), "b": np.zeros(9, np.int32)}

        def write_for_ever(pipe, step):
            while True:
                step += 1
                tree = {"a": np.full(150_000, step, np.float32), "b": np.full(9, step, np.int32)}
                checkpoint.save(folder, step, tree, {"step": step}, keep=2)
                os.write(pipe, b"x")

        random.seed(0)
        saved = 0
        for _ in range(25):
            receive, send = os.pipe()
            child = os.fork()
            if child == 0:
                write_for_ever(send, saved)
            time.sleep(random.uniform(0.005, 0.08))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(send)
            announced = saved + len(os.read(receive, 100_000))
            os.close(receive)
            if checkpoint.latest(folder) is None:
                assert announced == 0
                continue
            newest = checkpoint.latest(folder)
            tree, meta = checkpoint.load(newest, like), checkpoint.read_meta(newest)
            saved = meta["step"]
            assert announced <= saved <= announced + 1, (announced, saved)
            assert (tree["a"] == saved).all() and (tree["b"] == saved).all()
        print("saved", saved)
        """,
        tmp_path,
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout.split()[1]) > 25
    assert len(list(tmp_path.glob("step-*.npz.tmp"))) <= 1


def test_older_checkpoints_lose_what_only_the_newest_has(tmp_path):
    first = checkpoint.save(tmp_path, 1, small_tree(1.0), {"update": 1})
    second = checkpoint.save(tmp_path, 2, small_tree(2.0), {"update": 2}, newest_only={"n"})
    assert checkpoint.stored_names(first) == {"w"}
    assert checkpoint.stored_names(second) == {"w", "n"}
    assert checkpoint.read_meta(first) == {"update": 1}
    assert_same_bits(checkpoint.load(first, {"w": small_tree()["w"]}), {"w": small_tree(1.0)["w"]})


def test_an_older_checkpoint_that_cannot_be_replaced_stays(tmp_path, monkeypatch):
    """A full disk, while one is written without a leaf: the old file is whole, and nothing half-written is left."""
    first = checkpoint.save(tmp_path, 1, small_tree(), {})
    content, write = first.read_bytes(), sealed_archive.write

    def fills_up(path, *rest):
        if path.name.startswith(first.name):
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, *rest)

    monkeypatch.setattr(sealed_archive, "write", fills_up)
    second = checkpoint.save(tmp_path, 2, small_tree(), {}, newest_only={"n"})
    assert first.read_bytes() == content
    assert sorted(tmp_path.iterdir()) == [first, second]


def test_a_damaged_older_checkpoint_is_not_made_whole(tmp_path):
    first = checkpoint.save(tmp_path, 1, small_tree(), {})
    content = bytearray(first.read_bytes())
    content[content.index(small_tree()["w"].tobytes())] ^= 1
    first.write_bytes(content)
    checkpoint.save(tmp_path, 2, small_tree(), {}, newest_only={"n"})
    assert first.read_bytes() == content
