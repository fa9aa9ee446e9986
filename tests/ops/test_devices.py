"""What devices send each other: the right values, and in one order in every compiled program."""

import functools
import itertools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from tests.golden.cases import CASES
from tests.golden.record import _config, _experiment

import shoal
from shoal.ops.devices import (
    after,
    join_over_devices,
    largest_over_devices,
    mean_over_devices,
    sum_over_devices,
)
from shoal.training.fused import make_fused_program

SOURCES = Path(shoal.__file__).parent
COLLECTIVE = re.compile(r"\s(?:all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(")
CALLED = re.compile(r"(?:body|condition|calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
COMPILED = ("training", "pbt", "evolution", "sweep")
CASES_HERE = [name for name, case in CASES.items() if case.kind in COMPILED and not name.startswith("host")]
QUICK = ("ppo", "dqn", "ppo_against_dqn")


def on_two(function, *arrays):
    """Over two devices, each with half of the rows."""
    mesh = Mesh(np.array(jax.devices()[:2]), ("d",))
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=P("d"), out_specs=P(), check_vma=False))(*arrays)


ROWS, COUNTS = jnp.array([[1.0, -2.0], [3.0, 5.0]]), jnp.array([4, 7])


def test_values():
    tree = on_two(lambda x, n: sum_over_devices({"x": x, "n": n, "y": (2 * x, n > 5)[0]}, "d"), ROWS, COUNTS)
    np.testing.assert_array_equal(tree["x"], [[4.0, 3.0]])
    np.testing.assert_array_equal(tree["y"], [[8.0, 6.0]])
    np.testing.assert_array_equal(tree["n"], [11])
    assert tree["n"].dtype == jnp.int32
    np.testing.assert_array_equal(on_two(lambda x: mean_over_devices(x, "d"), ROWS), [[2.0, 1.5]])
    np.testing.assert_array_equal(on_two(lambda x: largest_over_devices(x, "d"), ROWS), [[3.0, 5.0]])
    np.testing.assert_array_equal(on_two(lambda x: join_over_devices(x, "d"), ROWS), ROWS)
    for collect in (sum_over_devices, mean_over_devices, largest_over_devices, join_over_devices):
        assert collect(ROWS, None) is ROWS


@pytest.mark.parametrize("known", [1.0, np.nan, np.inf])
def test_waiting_changes_no_value(known):
    def waits(x, n):
        first = sum_over_devices(known * x, "d")
        with after((first, jnp.zeros((0,))), "d"), after(n, "d"):
            return largest_over_devices((x, n), "d")

    largest, most = on_two(waits, ROWS, COUNTS)
    np.testing.assert_array_equal(largest, [[3.0, 5.0]])
    np.testing.assert_array_equal(most, [7])


def computations(text):
    """Of a compiled program: the instructions of each computation, as (name, operands, what it calls, collective)."""
    found, current = {}, []
    for line in text.splitlines():
        if head := re.match(r"(?:ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{", line):
            current = found[head[1]] = []
        elif match := re.match(r"\s+(?:ROOT )?%?([\w.\-]+) = (.*)", line):
            body = match[2].split(", metadata=")[0]
            sends = bool(COLLECTIVE.search(f" {body}"))
            branches = [
                name.strip(" %")
                for one in re.findall(r"branch_computations=\{(.*?)\}", body)
                for name in one.split(",")
            ]
            called = branches + ([] if sends else CALLED.findall(body))
            operands = re.findall(
                r"%([\w.\-]+)", re.split(r", (?:body|condition|calls|to_apply|branch_comp|channel_id)", body)[0]
            )
            current.append((match[1], operands, called, sends))
    return found


def unordered(text):
    """Pairs of what is sent that do not depend on each other; and how much is sent."""
    found = computations(text)

    @functools.cache
    def sends(computation):
        return any(one or any(map(sends, called)) for _, _, called, one in found.get(computation, ()))

    pairs, count = [], 0
    for instructions in found.values():
        operands = {name: needed for name, needed, _, _ in instructions}
        senders = [name for name, _, called, one in instructions if one or any(map(sends, called))]
        count += sum(one for *_, one in instructions)
        for earlier, later in itertools.pairwise(senders):
            seen, waiting = set(), [later]
            while waiting:
                name = waiting.pop()
                if name not in seen:
                    seen.add(name)
                    waiting += operands.get(name, ())
            pairs += [(earlier, later)] if earlier not in seen else []
    return pairs, count


def test_what_is_not_ordered_is_seen():
    def careless(x):
        loop = jax.lax.fori_loop(0, 3, lambda _, y: y + jax.lax.psum(y, "d"), x)
        return loop, jax.lax.pmax(x, "d")

    def careful(x):
        loop = jax.lax.fori_loop(0, 3, lambda _, y: y + jax.lax.psum(y, "d"), x)
        with after(loop, "d"):
            return loop, largest_over_devices(x, "d")

    mesh, found = Mesh(np.array(jax.devices()[:2]), ("d",)), []
    for function in (careless, careful):
        spread = jax.shard_map(function, mesh=mesh, in_specs=P("d"), out_specs=P(), check_vma=False)
        found.append(unordered(jax.jit(spread).lower(ROWS).compile().as_text()))
    assert [count for _, count in found] == [2, 2]
    assert [len(pairs) for pairs, _ in found] == [1, 0]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CASES_HERE]
)
def test_programs_send_in_one_order(name):
    case = CASES[name]
    if case.kind == "training":
        program = make_fused_program(_experiment(case.config["experiment"]), 2)
    else:
        program = _config(case).program(2)
    text = program.advance.lower(program.begin(), program.counts[0]).compile().as_text()
    pairs, count = unordered(text)
    assert not pairs
    assert count > 1 or name == "evolution_erl"  # which trains on one device


def test_nothing_is_sent_but_through_here():
    """Programs that send once need no order."""
    sent = re.compile(r"lax\.(psum|pmean|pmax|pmin|all_gather|all_to_all|ppermute|psum_scatter)\(")
    found = {path.relative_to(SOURCES).as_posix(): sent.findall(path.read_text()) for path in SOURCES.rglob("*.py")}
    assert {name: len(calls) for name, calls in found.items() if calls} == {
        "ops/devices.py": 1,  # all_gather; the others are named without a call
        "training/bench.py": 1,
        "training/hosts.py": 1,
    }
