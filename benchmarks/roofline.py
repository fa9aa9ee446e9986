"""How near the rows of `h200/headline.json` come to what one H200 can do: operations and bytes, counted in the trace.

    python benchmarks/roofline.py benchmarks/results/h200/roofline.json [--only PART]

Each row's program is traced as for a GPU whose kernels are trusted; nothing is compiled or run, so no GPU is needed.
docs/benchmarks/roofline.md says what is counted. Rates are those that were measured.
"""

import argparse
import itertools
import json
import math
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import jax

from shoal.api.suite import HEADLINE, Work, commit
from shoal.batching.rollout import rollout
from shoal.batching.vectorise import Vectorised
from shoal.core.files import write_atomically
from shoal.ops import neighbours
from shoal.ops.kernels import trust
from shoal.ops.kernels.choices import record_choices
from shoal.training import liveness
from shoal.training.bench import random_rollout, versions
from shoal.training.experiment import Experiment, make_world
from shoal.training.fused import FusedProgram, policies_of
from shoal.training.kernel_use import describe_kernels
from shoal.training.liveness import num_bytes, programs_of

RESULTS = Path(__file__).parent / "results" / "h200"
CHIP = {"bytes_per_s": 4.3e12, "tf32_products_per_s": 494e12, "bf16_products_per_s": 989e12, "float32_per_s": 67e12}
"""An H200: memory as a copy measures it; dense products and float32 operations as NVIDIA gives them."""
ELEMENTWISE = {
    "add", "add_any", "sub", "mul", "div", "max", "min", "neg", "abs", "sign", "floor", "ceil", "round", "exp", "exp2",
    "expm1", "log", "log1p", "tanh", "logistic", "sin", "cos", "tan", "atan2", "sqrt", "rsqrt", "cbrt", "pow", "rem",
    "integer_pow", "square", "erf", "erf_inv", "clamp", "nextafter", "cumsum", "cumprod", "cummax",
}  # fmt: skip
"""Operations that are counted once for each float that they write."""
REDUCING = {"reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "argmax", "argmin"}
"""Operations that are counted once for each float that they read."""
ADAM_PASSES = 8
"""Arrays as large as the weights that an optimiser step reads or writes: gradients twice, weights and two moments."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    measured = {row["work"]: row for row in json.loads((RESULTS / "headline.json").read_text())}
    pretend_gpu()
    rows = []
    for work in (work for work in HEADLINE if args.only in work.name and work.name in measured):
        rows.append({"work": work.name} | count(work) | rates(measured[work.name]))
        rows[-1] |= shares(rows[-1])
        print(json.dumps(rows[-1]), flush=True)
    record = {"command": "python benchmarks/roofline.py benchmarks/results/h200/roofline.json", "commit": commit()}
    record |= {"chip": CHIP, "versions": versions(), "rows": rows}
    write_atomically(args.output, json.dumps(record, indent=1) + "\n")


def pretend_gpu() -> None:
    """Traces are those of a GPU whose kernels are trusted."""
    jax.default_backend = lambda: "gpu"
    trust.find_problem = lambda trial: None
    liveness.platform_name = lambda: "cuda"


def rates(row: dict[str, Any]) -> dict[str, Any]:
    return {"env_steps_per_s": row["env_steps_per_s"], "precision": row["precision"], "measured_at": row["commit"]}


def count(work: Work) -> dict[str, Any]:
    """What one env step takes, of one call of the program: one update, or so many steps of all copies."""
    return count_training(work) if work.trains else count_stepping(work)


def count_training(work: Work) -> dict[str, Any]:
    experiment = work.experiment
    program = FusedProgram(experiment.setup, jax.sharding.Mesh(jax.devices()[:1], ("copies",)))
    carry, copies, steps = program.shapes(), experiment.num_envs, experiment.num_envs * experiment.num_steps
    parts = {"state": 2 * num_bytes(carry.worlds) / copies, "weights": 0.0, "recorded": 0.0}
    for learner in experiment.learners.values():
        epochs, minibatches = getattr(learner.algorithm, "epochs", 1), learner.algorithm.traits.minibatches
        parts["recorded"] += (1 + epochs) * recorded_bytes(program, carry) / steps
        weights = num_bytes(policies_of(carry.learners))
        parts["weights"] += weights / copies + ADAM_PASSES * epochs * minibatches * weights / steps
    about = {"bytes": parts, "env_steps_a_call": steps, "kernels": program.kernels}
    return per_step(program.traced.local.jaxpr, steps) | about


def recorded_bytes(program: FusedProgram, carry: Any) -> int:
    """Bytes of what a rollout hands to the update."""
    experiment = program.experiment

    def record(carry: Any) -> Any:
        copies, policies = program.setup.vectorised(experiment.num_envs), policies_of(carry.learners)
        steps = rollout(copies, program._actor, policies, carry.worlds, carry.memory, experiment.num_steps)[2]
        ends = steps.first, steps.terminated, steps.truncated
        return steps.observation, steps.action, steps.extras, steps.reward, ends

    return num_bytes(jax.eval_shape(record, carry))


def count_stepping(work: Work) -> dict[str, Any]:
    num_envs, num_steps = work.sizes["num_envs"], work.sizes["num_steps"]
    copies = Vectorised(make_world(Experiment(env=work.target, env_options=dict(work.options))), num_envs)
    worlds = jax.eval_shape(copies.reset, jax.random.key(0))
    with record_choices() as choices:
        jaxpr = jax.make_jaxpr(lambda worlds: random_rollout(copies, worlds, num_steps))(worlds)
    state = worlds.replace(observation=None)  # views are summed up as they are made
    about = {"bytes": {"state": 2 * num_bytes(state) / num_envs}, "env_steps_a_call": num_envs * num_steps}
    return per_step(jaxpr.jaxpr, num_envs * num_steps) | about | {"kernels": describe_kernels(jaxpr, choices)}


def per_step(jaxpr: Any, steps: int) -> dict[str, Any]:
    """Operations of a program, for each env step."""
    found = operations(jaxpr)
    return {name: found[name] / steps for name in ("products", "elementwise", "searched_pairs", "random_words")}


def operations(jaxpr: Any) -> Counter[str]:
    """Floating-point operations: of products (two for each pair of numbers), and elementwise; and what is drawn."""
    total: Counter[str] = Counter()
    for equation in jaxpr.eqns:
        inner = [operations(program) for program in programs_of(equation)]
        if equation.primitive.name == "cond" and inner:
            inner = [max(inner, key=lambda branch: sum(branch.values()))]
        repeats = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for one in inner:
            total.update({name: repeats * value for name, value in one.items()})
        if not inner:
            total.update(own_operations(equation))
    return total


def own_operations(equation: Any) -> dict[str, int]:
    name, out = equation.primitive.name, equation.outvars[0].aval
    if name == "dot_general":
        ((contracted, _), _) = equation.params["dimension_numbers"]
        return {"products": 2 * out.size * math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)}
    if name in ("mlp", "mlp_vjp"):
        return of_network(equation)
    if neighbours.is_kernel(equation):
        worlds, n, k = out.shape
        pairs = n * (n - 1) if neighbours._kernel_of(n, k)[0] == "brute" else n * k
        return {"searched_pairs": worlds * pairs, "elementwise": 5 * worlds * pairs}
    if name in ("random_bits", "threefry2x32"):
        return {"random_words": out.size}
    is_float = jax.numpy.issubdtype(out.dtype, jax.numpy.floating)
    if name in ELEMENTWISE and is_float:
        return {"elementwise": out.size}
    given = equation.invars[0].aval if equation.invars else out
    if name in REDUCING and jax.numpy.issubdtype(given.dtype, jax.numpy.floating):
        return {"elementwise": given.size}
    return {}


def of_network(equation: Any) -> dict[str, int]:
    """Of a fused network: each weight once a row; backward, hidden layers again, and all twice for the gradients."""
    towers, total = equation.params["towers"], Counter()
    for i, widths in enumerate(towers):
        groups, rows, _ = equation.invars[i].aval.shape
        weights = sum(a * b for a, b in itertools.pairwise(widths))
        units = sum(widths[1:])
        if equation.primitive.name == "mlp":
            passes, activations = weights, units
        else:
            of_inputs = 0 if equation.params["wrt"][i] else widths[0] * widths[1]
            passes, activations = 3 * weights - widths[-2] * widths[-1] - of_inputs, 3 * units
        total.update({"products": 2 * groups * rows * passes, "elementwise": groups * rows * activations})
    return dict(total)


def shares(row: dict[str, Any]) -> dict[str, float]:
    """The part of the chip's rates that was reached."""
    rate, num_bytes = row["env_steps_per_s"], sum(row["bytes"].values())
    products_per_s = CHIP["bf16_products_per_s" if "bfloat16" in row["precision"] else "tf32_products_per_s"]
    return {
        "share_of_bandwidth": rate * num_bytes / CHIP["bytes_per_s"],
        "share_of_products": rate * row["products"] / products_per_s,
        "share_of_float32": rate * row["elementwise"] / CHIP["float32_per_s"],
    }


if __name__ == "__main__":
    sys.exit(main())
