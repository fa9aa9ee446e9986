"""The scripts of `benchmarks` that count and keep, without measuring anything."""

import importlib.util
import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from shoal.ops import mlp

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def load(name):
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_headlines_that_are_measured_again_take_their_places():
    headline = load("headline")
    first, second, third = (work.name for work in headline.HEADLINE[:3])
    kept = [{"work": third, "rate": 1}, {"work": "of before", "rate": 2}, {"work": first, "rate": 3}]
    rows = headline.merge(kept, {"work": first, "rate": 4})
    assert rows == [{"work": first, "rate": 4}, {"work": third, "rate": 1}, {"work": "of before", "rate": 2}]
    assert [row["work"] for row in headline.merge(rows, {"work": second})][:3] == [first, second, third]


@pytest.fixture(scope="module")
def roofline():
    return load("roofline")


class TestRoofline:
    def test_products_and_elementwise_operations_by_hand(self, roofline):
        """Three times in a loop: (4 x 5) (5 x 6) is 240 operations, `tanh` and the sum 24 each."""

        def step(total, _):
            return total + jnp.sum(jnp.tanh(jnp.ones((4, 5)) * 2.0 @ jnp.ones((5, 6)))), None

        found = roofline.operations(jax.make_jaxpr(lambda: jax.lax.scan(step, 0.0, length=3)[0])().jaxpr)
        assert found["products"] == 3 * 240
        assert found["elementwise"] == 3 * (20 + 24 + 24 + 1)

    def test_the_dearest_branch_counts(self, roofline):
        def branches(i, x):
            return jax.lax.switch(i, [lambda x: x, lambda x: jnp.tanh(x) * jnp.exp(x)], x)

        assert roofline.operations(jax.make_jaxpr(branches)(0, jnp.ones(7)).jaxpr)["elementwise"] == 21

    @pytest.mark.parametrize("of_inputs", [False, True])
    def test_a_fused_network_counts_as_its_products(self, roofline, of_inputs):
        """As many as its plain twin, and its hidden layers once more."""
        shapes = list(itertools.pairwise((6, 16, 16, 3)))
        towers = [(jnp.ones(shape), jnp.ones(shape[1])) for shape in shapes]
        rows = jnp.ones((10, 6))

        def loss(compute):
            return lambda towers, x: jnp.sum(jnp.sin(jax.vmap(lambda x: compute(x, towers))(x)))

        def products(compute, *wrt):
            gradient = jax.grad(loss(compute), wrt) if wrt else loss(compute)
            return roofline.operations(jax.make_jaxpr(gradient)(towers, rows).jaxpr)["products"]

        fused = products(lambda x, towers: mlp.mlp([x], [towers], "tanh")[0], *((0, 1) if of_inputs else (0,)))
        plain = products(lambda x, towers: mlp.plain_mlp(x, towers, "tanh"), *((0, 1) if of_inputs else (0,)))
        forward = products(lambda x, towers: mlp.plain_mlp(x, towers, "tanh"))
        assert forward == 2 * 10 * (6 * 16 + 16 * 16 + 16 * 3)
        assert fused == plain + forward - 2 * 10 * 16 * 3
