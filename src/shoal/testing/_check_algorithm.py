"""`check_algorithm`: does an algorithm keep the contract, and does it learn what can be learnt?

First its declarations and, by tracing, every shape and type, for all kinds of actions. If these hold, it is trained for
a few updates in a small environment with turns, absent agents and illegal choices: again from the same seed, stopped
and resumed, side by side with another seed, over several devices. Last, it is trained in environments whose answers are
known (see `probes`).
"""

import copy
import dataclasses
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.algorithms.registry import check_class, check_registered
from shoal.batching.policies import Policies
from shoal.batching.rollout import make_experience, rollout
from shoal.core.algorithm import Algorithm, Experience, LearnerSpec, float_options
from shoal.core.contract import TRACED, contract_problems
from shoal.core.env import Env
from shoal.core.errors import AlgorithmError, OptionError, ShoalError
from shoal.core.registry import register
from shoal.core.spaces import ActionSpace, Box, Discrete, MultiDiscrete, num_logits
from shoal.core.types import Group, Observation, PyTree
from shoal.networks.torsos import Network
from shoal.testing._explain import FAILED, attempt
from shoal.testing._trees import check_finite, difference, named_leaves, on_host
from shoal.testing.probes import Bandit, Memory, Target, Turns, TwoStep
from shoal.testing.report import Findings, Report
from shoal.training import checkpoint, fused
from shoal.training.devices import use_all_cores
from shoal.training.evaluate import play
from shoal.training.experiment import Experiment, Learner

SPACES = {"Discrete": Discrete(3), "MultiDiscrete": MultiDiscrete((2, 3)), "Box": Box((2,), -1.0, 1.0)}
STEPS = 8
"""Of each copy between two updates, in the programs of a check."""
TOLERANCE = 1e-4
"""Between two programs that compute the same in another order, relative to the size of an array."""


@dataclasses.dataclass(frozen=True)
class Probe:
    """An environment with a known answer: the return that greedy play must reach, the best, and advice if not."""

    env: type[Env]
    at_least: float
    best: float
    hint: str
    longer: int = 1  # factor on the number of steps


PROBES = {
    "bandit": Probe(Bandit, 0.89, 0.9, "Nothing is learnt from: look at the sign of the loss, and at the advantages"),
    "two_step": Probe(TwoStep, 0.95, 1.0, "Pay that comes a step later is not credited: look at returns and targets"),
    "turns": Probe(
        Turns,
        1.9,
        2.0,
        "Weigh the policy's loss by `active` and the value's by `present`, and never choose what is not `legal`",
    ),
    "memory": Probe(
        Memory, 0.9, 1.0, "Start from the memory of the experience, and reset it where a step is `first`", longer=4
    ),
    "target": Probe(Target, -0.05, 0.0, "Actions of a Box are not learnt: look at how they are drawn and scaled"),
}


def check_algorithm(
    algorithm: Algorithm | type[Algorithm],
    *,
    learns: bool = True,
    total_env_steps: int = 60_000,
    num_seeds: int = 2,
    raise_on_problems: bool = True,
) -> Report:
    """Checks an algorithm, or a class with its default options, and explains what to fix.

    learns: whether to train it in the probes, too, for `total_env_steps` each, with that many seeds; give it options
    that suit such short runs (a learning rate of 5e-3, a small network). What has a memory, such as a network
    with `recurrent="gru"`, is trained in one probe more.

    Raises `AlgorithmError` listing every problem, unless `raise_on_problems` is off. Warnings never raise.
    """
    use_all_cores()  # what is checked is often trained next
    checked, findings, done = _build(algorithm), Findings(), []
    if _check_declared(findings, checked):
        accepted = _check_spaces(findings, checked, done)
        if not findings.has("contract"):
            _check(findings, checked, accepted, done)
            if learns and not findings.has("contract", "raises", "not finite"):
                _check_learning(findings, checked, accepted, (total_env_steps, num_seeds), done)
    report = Report(type(checked).__name__, findings.all(), contract="algorithm", done=tuple(done))
    if raise_on_problems and not report.ok:
        raise AlgorithmError(str(report))
    return report


def _build(algorithm: Any) -> Any:
    """The algorithm; of a class, one with its default options."""
    if not isinstance(algorithm, type):
        return algorithm
    try:
        return algorithm()
    except Exception as error:  # the user's code may raise anything
        told = f"{algorithm.__name__} is a class, and {algorithm.__name__}() fails: {type(error).__name__}: {error}"
        raise AlgorithmError(f"check_algorithm: {told}. Give an algorithm, with its options.") from error


def _check_declared(findings: Findings, algorithm: Any) -> bool:
    """Class, options and name. Whether it makes sense to go on."""
    cls = type(algorithm)
    try:
        check_class(getattr(cls, "name", cls.__name__), cls)
    except OptionError as error:
        findings.add("contract", "class", str(error), "See docs/your-own-algorithm.md")
        return False
    try:
        check_registered(algorithm, "it")
    except OptionError as error:
        findings.add("name", "class", str(error), "Until then it trains without a run folder only", is_warning=True)
    return True


def _check_spaces(findings: Findings, algorithm: Algorithm, done: list[str]) -> list[str]:
    """The kinds of actions that it accepts; shapes and types are looked at for each, with a memory, too."""
    accepted, refused = [], []
    for name, space in SPACES.items():
        try:
            problems = list(contract_problems(algorithm, _spec(space)))
        except ShoalError as error:  # it says by itself that it does not take such actions
            refused.append(f"{name} actions are refused: {error}")
            continue
        accepted.append(name)
        for problem in problems:
            findings.add("contract", f"{problem.where} ({name})", problem.what, problem.fix)
    if not accepted:
        findings.add("contract", "init", f"it accepts no actions at all: {'; '.join(refused)}", "Accept one kind")
        return accepted
    done.append(f"shapes for {', '.join(accepted)} actions")
    recurrent = _with_memory(algorithm)
    if recurrent is not None:
        for problem in contract_problems(recurrent, _spec(SPACES[accepted[0]])):
            findings.add("contract", f"{problem.where} (recurrent network)", problem.what, problem.fix)
        done.append("shapes with a memory")
    return accepted


def _spec(space: ActionSpace) -> LearnerSpec:
    """Two groups of agents with such actions that wait, leave and, except for boxes, have action masks."""

    def shape(*sizes: int, dtype: Any = jnp.float32) -> Any:
        return jax.ShapeDtypeStruct(sizes, dtype)

    legal = None if isinstance(space, Box) else shape(2, num_logits(space), dtype=bool)
    seen = Observation(shape(2, 4), legal, shape(2, dtype=bool), shape(2, dtype=bool))
    groups = {name: Group(2, space, Box((4,))) for name in ("first", "second")}
    return LearnerSpec(groups, shape(5), 10, dict.fromkeys(groups, seen), num_envs=8, num_steps=STEPS)


def _with_memory(algorithm: Algorithm) -> Algorithm | None:
    """The algorithm with a recurrent network; None if that is no option of it, or not without others."""
    network = getattr(algorithm, "network", None)
    if not isinstance(network, Network) or network.has_memory:
        return None
    try:
        recurrent = dataclasses.replace(network, recurrent="gru", recurrent_size=8)
        return dataclasses.replace(algorithm, network=recurrent)  # pyright: ignore[reportCallIssue]
    except ShoalError:
        return None


def _check(findings: Findings, algorithm: Algorithm, accepted: list[str], done: list[str]) -> None:
    """A few updates of one small program, and of others that must come to the same."""
    env = Turns if "Discrete" in accepted else Target
    experiment = _experiment(algorithm, env, updates=4)
    program = attempt(findings, "training", _checked_program, experiment)
    if program is FAILED:
        return
    _check_traced(findings, program)
    after = attempt(findings, "training", lambda: on_host(_advance(program, program.init(), 4)))
    if after is FAILED:
        return
    for name, leaf in named_leaves(_weights(after), "params"):
        check_finite(findings, "update", name, leaf, "after 4 updates", "place")
    if findings.has("not finite"):
        return
    if difference(_weights(after), _weights(on_host(program.init())), "params") is None:
        findings.add("idle", "update", "four updates leave the policies as they were", "Return the new state")
    _check_repeats(findings, program, after)
    done.append("jit, resumed to the bit")
    _check_spread(findings, experiment, program, done)
    if env is Turns:
        _check_turns(findings, program)
        done.append("turns, absence and masks")


def _experiment(algorithm: Algorithm, env: type[Env], updates: int = 1, **sizes: Any) -> Experiment:
    """An experiment in a probe, with enough copies that every update learns."""
    name = f"probe/{env.__name__.lower()}"
    register(name, env)
    unit, warm_up = math.lcm(algorithm.traits.minibatches, 2), algorithm.traits.warm_up
    copies = math.ceil(max(8, (warm_up + 1) / STEPS) / unit) * unit
    default: dict[str, Any] = {"num_envs": copies, "num_steps": STEPS, "total_env_steps": updates * copies * STEPS}
    return Experiment(name, learners={"learner": Learner(algorithm)}, **default | sizes)


def _advance(program: fused.FusedProgram, carry: Any, count: int) -> Any:
    while count > 0:
        carry, _ = program.advance(carry, program.counts[min(count, program.most)])
        count -= program.most
    return carry


def _weights(carry: Any) -> PyTree:
    return carry.learners["learner"].params


def _check_traced(findings: Findings, program: fused.FusedProgram) -> None:
    """Float options must be read from the state: with others on the algorithm itself, the program must be the same."""
    algorithm, spec = program.setup.learners["learner"]
    whole = jax.eval_shape(_play(program), _weights(program.shapes()))

    def traced(*spoilt: str) -> str:
        one = copy.copy(algorithm)
        for name in spoilt:
            object.__setattr__(one, name, math.nan)
        state = jax.eval_shape(lambda: algorithm.init(jax.random.key(0), spec))
        made = jax.make_jaxpr(lambda state, whole: one.update(state, whole, jax.random.key(1)))(state, whole)
        return f"{made}{made.consts}"

    right, options = traced(), float_options(type(algorithm))
    if attempt(findings, "update", traced, *options) != right:
        wrong = [name for name in options if _differs(lambda name=name: traced(name), right)]
        what = f"{', '.join(wrong) or 'a float option'} is read from the algorithm, not from the state"
        findings.add("traced", "update", f"{what}: a sweep would give every point the same", TRACED)


def _differs(trace: Callable[[], str], right: str) -> bool:
    try:
        return trace() != right
    except Exception:  # it has read the NaN, whatever it does with it
        return True


def _check_repeats(findings: Findings, program: fused.FusedProgram, after: Any) -> None:
    """The same again, at once and with a stop in between, to the bit."""
    again = on_host(_advance(program, program.init(), 4))
    words = difference(after, again, "carry")
    if words:
        fix = "All randomness comes from `key`, and all that changes is in the state"
        findings.add("hidden state", "update", f"the same seed gives something else: {words}", fix)
        return
    half = _advance(program, program.init(), 2)
    with tempfile.TemporaryDirectory() as folder:
        tree, meta = program.stored(half)
        path = attempt(findings, "saving the state", lambda: checkpoint.save(Path(folder), 2, tree, meta))
        resumed = attempt(findings, "loading the state", lambda: program.restore(path, meta | {"update": 2}))
    if resumed is FAILED:
        return
    words = difference(after, on_host(_advance(program, resumed, 2)), "carry")
    if words:
        fix = "All that changes must be in the state that `init` makes and `update` returns"
        findings.add("resume", "update", f"stopped and resumed, it goes on otherwise: {words}", fix)


def _checked_program(experiment: Experiment) -> fused.FusedProgram:
    program = fused.make_fused_program(experiment, 1)
    program.check()
    return program


def _check_spread(findings: Findings, experiment: Experiment, program: fused.FusedProgram, done: list[str]) -> None:
    """Trains beside another seed, over two devices if available: both at once, and separately if that fails."""
    alone = on_host(_weights(_advance(program, program.init(), 2)))

    def differs(num_seeds: int, devices: int) -> str | None:
        other = fused.make_fused_program(dataclasses.replace(experiment, num_seeds=num_seeds), devices)
        after = on_host(_weights(_advance(other, other.init(), 2)))
        first = after if num_seeds == 1 else jax.tree.map(lambda leaf: leaf[0], after)
        drawn_apart = devices > 1 and experiment.learners["learner"].algorithm.traits.replay is not None
        return None if drawn_apart else difference(alone, first, "params", TOLERANCE)

    devices = min(2, len(jax.local_devices()))
    words = attempt(findings, "several seeds (vmap)", differs, 2, devices)
    done.append("vmap over seeds")
    done.append("2 devices" if devices > 1 else "one device: jax.config.update('jax_num_cpu_devices', 2) comes first")
    if words is None or words is FAILED:
        return
    words = differs(2, 1)
    if words:
        fix = "Use nothing but `jax.numpy` on arrays, so that `jax.vmap` can add an axis in front"
        findings.add("vmap", "update", f"beside another seed it learns something else: {words}", fix)
    words = differs(1, devices)
    if words:
        fix = "Sum gradients and statistics over `axis` where it is given: shoal.ops.devices.sum_over_devices"
        findings.add("devices", "update", f"over 2 devices it learns something else: {words}", fix)


def _play(program: fused.FusedProgram, explore: bool = True) -> Callable[[PyTree], Experience]:
    """From policies to the experience of one update."""
    setup = program.setup
    actor = Policies(setup.algorithms, setup.spec.groups, explore)

    def played(params: PyTree) -> Experience:
        worlds = setup.vectorised().reset(jax.random.key(2))
        memory = actor.initial_memory(params, setup.experiment.num_envs)
        after, last, steps = rollout(setup.vectorised(), actor, params, worlds, memory, STEPS)
        return make_experience(steps, memory, after.observation, last)

    return played


def _check_turns(findings: Findings, program: fused.FusedProgram) -> None:
    """No agent takes an illegal action, and actions of inactive agents and views of absent ones change nothing."""
    algorithm, spec = program.setup.learners["learner"]
    state = jax.jit(lambda: algorithm.init(jax.random.key(3), spec))()
    for explore in (False, True):
        whole = jax.jit(_play(program, explore))(state.params)
        track = on_host(whole.trajectories["agent"])
        allowed = np.take_along_axis(track.observation.legal, track.action[..., None], -1)[..., 0]
        if (track.observation.active & ~allowed).any():
            how = "exploring" if explore else "greedy"
            fix = "Mask the logits, or the values, of choices that are not `legal` with a large negative number"
            findings.add("legal", "act", f"it takes illegal actions when {how}", fix)
    track = whole.trajectories["agent"]
    seen = track.observation
    view = jnp.where(seen.present[..., None], seen.view, 7.0)
    other = track.replace(
        action=jnp.where(seen.active, track.action, 1 - track.action), observation=seen.replace(view=view)
    )
    update = jax.jit(lambda state, whole: algorithm.update(state, whole, jax.random.key(4)))
    (one, _), (two, _) = (update(state, whole.replace(trajectories={"agent": one})) for one in (track, other))
    words = difference(on_host(one.params), on_host(two.params), "params")
    if words:
        what = f"what those do who may not act, or see who are not there, changes what is learnt: {words}"
        fix = "Weigh the policy's loss, and statistics, by `active`, the value's loss by `present`"
        findings.add("inactive", "update", what, fix)


def _check_learning(
    findings: Findings, algorithm: Algorithm, accepted: list[str], sizes: tuple[int, int], done: list[str]
) -> None:
    probes = ["bandit", "two_step", "turns"] if "Discrete" in accepted else []
    probes += ["target"] if "Box" in accepted and not probes else []
    probes += ["memory"] if probes and jax.tree.leaves(_initial_memory(algorithm, accepted[0])) else []
    for name in probes:
        probe = PROBES[name]
        total = sizes[0] * probe.longer
        reached = attempt(findings, f"training in the probe {name}", _score, algorithm, probe, total, sizes[1])
        if reached is FAILED:
            continue
        done.append(f"{name} {min(reached):.2f} of {probe.best:g}")
        if min(reached) < probe.at_least:
            what = f"after {total:,} steps it reaches {min(reached):.2f}, where {probe.best:g} is right"
            fix = f"{probe.hint}. If it only needs longer: a higher learning rate, or total_env_steps"
            findings.add("probe", f"training in the probe {name}", what, fix)


def _initial_memory(algorithm: Algorithm, kind: str) -> PyTree:
    spec = _spec(SPACES[kind])
    return jax.eval_shape(lambda: algorithm.initial_memory(algorithm.init(jax.random.key(0), spec).params["first"]))


def _score(algorithm: Algorithm, probe: Probe, total: int, num_seeds: int) -> list[float]:
    """Greedy mean returns after training, of each seed."""
    unit = algorithm.traits.minibatches
    sizes = {"num_envs": math.ceil(64 / unit) * unit, "num_steps": STEPS * (2 if probe.env is Memory else 1)}
    total = max(total, 2 * algorithm.traits.warm_up)
    experiment = _experiment(algorithm, probe.env, **sizes, total_env_steps=total, num_seeds=num_seeds)
    program = fused.make_fused_program(experiment, 1)
    params = _weights(_advance(program, program.init(), experiment.num_updates))
    setup = experiment.setup
    judge = play(setup, Policies(setup.algorithms, setup.spec.groups, explore=False))
    lanes = [params if num_seeds == 1 else jax.tree.map(lambda leaf, i=i: leaf[i], params) for i in range(num_seeds)]
    returns = [judge(one, jax.random.key(0), jnp.arange(256))[0] for one in lanes]
    return [sum(float(jnp.mean(value)) for value in one.values()) for one in returns]
