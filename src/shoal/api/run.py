"""A training that was made or loaded: its metrics, its policies, and what can be done with them."""

import dataclasses
import functools
import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.algorithms.names import name_of
from shoal.api.changes import as_whole
from shoal.api.films import FilmedRun, film_runs
from shoal.api.replay import record_page
from shoal.api.seats import seat_policies
from shoal.api.targets import attributed_to
from shoal.api.words import names_arguments
from shoal.bridges.export_formats import save_policies
from shoal.bridges.numpy_policy import export
from shoal.core.algorithm import Algorithm
from shoal.core.errors import OptionError, require, unknown_name
from shoal.core.files import write_file
from shoal.core.types import Observation, PyTree
from shoal.training.evaluate import Evaluation, Evaluator, stack_evaluations
from shoal.training.experiment import Experiment, Setup
from shoal.training.metrics import read_metrics, tidy
from shoal.training.statistics import interval, iqm
from shoal.viz.curves import Curve, read_curves
from shoal.viz.plot import Band, plot_curves
from shoal.viz.reel import Look


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Run:
    """What was trained. `path` is its folder; None if it is in memory alone.

    policies: trained weights by name; with several seeds, each leaf has one more axis in front. lines: as in
    `metrics.jsonl`. interrupted: it was stopped early; `shoal.resume(run)` goes on with one that has a folder.
    standing: what some kinds of runs have to say besides; of population-based training `member`, `scores`, `values`.
    """

    experiment: Experiment
    policies: dict[str, PyTree]
    update: int
    lines: Sequence[Mapping[str, Any]]
    seconds: float
    compile_seconds: float = 0.0
    interrupted: bool = False
    path: Path | None = None
    standing: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def env_steps(self) -> int:
        """How many were made, of each seed."""
        return self.update * self.experiment.num_envs * self.experiment.num_steps

    @functools.cached_property
    def metrics(self) -> dict[str, np.ndarray]:
        """A tidy table with the columns update, env_steps, seed, name and value: `pandas.DataFrame(run.metrics)`.

        `return` and `length` are those of episodes that ended: an update in which none did has no rows of them.
        """
        first = self.experiment.seed
        return tidy(self.lines, range(first, first + self.experiment.num_seeds))

    def plot(self, metric: str = "return", axes: Any = None) -> Any:
        """Draws a metric over env steps, and returns matplotlib's axes; `return` is drawn by group.

        Of several seeds, the interquartile mean and its 95 % interval by bootstrap. axes: where to draw it; by default
        new ones, which show themselves in a notebook. pyplot is not touched.
        """
        curves = {curve.name: curve for curve in read_curves(self.lines)}
        groups = [name for name in curves if name.startswith("return/")]
        chosen = groups if metric == "return" and len(groups) > 1 else [metric]
        for name in chosen:
            if name not in curves:
                raise unknown_name("metric", name, curves)
        bands = {name.removeprefix("return/"): _band(curves[name]) for name in chosen}
        return plot_curves(bands, title=self.experiment.env, label=metric, axes=axes)

    @names_arguments
    def evaluate(
        self,
        episodes: int = 1000,
        seed: int = 0,
        explore: bool = False,
        opponents: "Mapping[str, str | Path | Run | Policy] | None" = None,
        **stepping: Any,
    ) -> Evaluation:
        """Plays so many episodes with the policies of each seed, greedily unless told to `explore`.

        The result has returns by group: `mean_return`, `interval` (95 %), and all of them, `returns`. opponents: who
        plays otherwise, a policy, a player or seats such as `agent[1]`: as in another run, its folder, a policy, or
        "random".
        """
        setup = self.experiment.setup
        others, episodes = _opponents(opponents, setup), as_whole(int, episodes)
        with attributed_to(self.experiment.env, "evaluation"):
            if not others:
                return Evaluator(setup, episodes, seed, explore, **stepping)(self.policies)
            seeds = [self.of_seed(i) for i in range(self.experiment.num_seeds)]
            seated = [seat_policies(setup, policies, others, "opponents") for policies in seeds]
            play = Evaluator(seated[0][0], episodes, seed, explore, **stepping)
            found = [play(policies) for _, policies in seated]
            return found[0] if len(found) == 1 else stack_evaluations(found)

    def policy(self, name: str | None = None, seed_index: int = 0) -> "Policy":
        """A policy by its name; without one, the only one. seed_index: of which of the seeds, counted from 0."""
        if name is None and len(self.policies) == 1:
            name = next(iter(self.policies))
        if name not in self.policies:
            raise unknown_name("policy", str(name), self.policies)
        setup = self.experiment.setup
        view = jax.tree.map(lambda leaf: leaf.shape[1:], setup.spec.observations[name].view)
        return Policy(name, setup.algorithms[name], self.of_seed(seed_index)[name], view, setup.spec.state)

    def replay(self, seed: int = 0, seed_index: int = 0, explore: bool = False) -> "Replay":
        """Records an episode as a page that plays it: it shows itself in a notebook, `save(path)` writes it.

        seed: of the episode. seed_index: whose policies, of several seeds, counted from 0.
        """
        with attributed_to(self.experiment.env, "the episode"):
            page = record_page(self.experiment.setup, self.of_seed(seed_index), self.update, seed, explore, filmed=True)
        return Replay(page)

    @names_arguments
    def film(
        self,
        path: str | Path,
        *,
        episodes: int = 1,
        seed: int = 0,
        seed_index: int = 0,
        explore: bool = False,
        opponents: "Mapping[str, str | Path | Run | Policy] | None" = None,
        beside: "Run | Sequence[Run]" = (),
        **look: Any,
    ) -> Path:
        """Records episodes as a film, `run.film("x.webp")`; the end of the name says the format: gif, webp, mp4 or png.

        opponents: as in `evaluate`. beside: other runs, which play the same seeds side by side. look: `size` (pixels of
        the longer side of a panel), `fps`, `speed` (1: 15 steps a second), `theme` ("light" or "dark"), `at`
        (steps, side by side in a png), `bare`, `colours`: see `shoal.viz.Look`.
        """
        for name in look:
            if name not in Look.__dataclass_fields__:
                raise unknown_name("argument of film", name, Look.__dataclass_fields__)
        shape = Look(**look)
        filmed = []
        for run in (self, *([beside] if isinstance(beside, Run) else beside)):
            require(isinstance(run, Run), "run.film", "beside", run, "a run, or a list of runs")
            setup, policies = run.experiment.setup, run.of_seed(seed_index)
            if opponents:
                setup, policies = seat_policies(setup, policies, _opponents(opponents, setup), "opponents")
            filmed.append(FilmedRun(setup, policies, run.update, run.path.name if run.path else ""))
        with attributed_to(self.experiment.env, "the film"):
            film_runs([path], filmed, shape, episodes=as_whole(int, episodes), seed=seed, explore=explore)
        return Path(path)

    def export(
        self, folder: str | Path, format: str = "numpy", *, seed_index: int = 0, force: bool = False
    ) -> dict[str, Path]:
        """Writes the policies as files that need neither JAX nor Shoal, one each; the files by policy.

        format: "numpy" (see `shoal.bridges.plain_policy`), "onnx" or "js" (a web page). seed_index: whose policies, of
        several seeds, counted from 0. force: replace files that are there already.
        """
        groups = self.experiment.setup.spec.groups
        plain = {name: export(policy, groups[name].observation) for name, policy in self.of_seed(seed_index).items()}
        return save_policies(plain, folder, format, force)

    def of_seed(self, seed_index: int) -> dict[str, PyTree]:
        """The policies of one of the seeds, counted from 0."""
        seeds = self.experiment.num_seeds
        require(0 <= seed_index < seeds, "run", "seed_index", seed_index, f"between 0 and {seeds - 1}")
        return self.policies if seeds == 1 else jax.tree.map(lambda leaf: leaf[seed_index], self.policies)

    def __repr__(self) -> str:
        names = ", ".join(sorted({name_of(learner.algorithm) for learner in self.experiment.learners.values()}))
        seeds = self.experiment.num_seeds
        parts = [f"{self.experiment.env} by {names}", f"{self.env_steps:,} env steps"]
        parts += [f"{seeds} seeds"] if seeds > 1 else []
        parts += ["stopped early"] if self.interrupted else []
        parts += [str(self.path) if self.path else "in memory"]
        return f"Run({'; '.join(parts)})"


def weights_of(policies: Any, setup: Setup, owner: str) -> dict[str, PyTree] | None:
    """Weights by name, of policies that are given as such, as `Policy` or as the runs that have them."""
    if policies is None:
        return None
    require(isinstance(policies, Mapping), owner, "policies", policies, "a mapping of names to policies")
    found = {}
    for name, policy in policies.items():
        if name not in setup.algorithms:
            raise unknown_name("policy", str(name), setup.algorithms)
        if isinstance(policy, Run | Policy):
            found[name] = _weights(policy, name, setup)
            continue
        arrays = jax.tree.leaves(policy)
        weights = bool(arrays) and all(isinstance(leaf, jax.Array | np.ndarray | np.generic) for leaf in arrays)
        require(weights, owner, f"policies[{name!r}]", policy, "weights such as run.policies has, a policy or a run")
        found[name] = policy
    return found


def _weights(source: "Run | Policy", name: str, setup: Setup) -> PyTree:
    """The weights of a policy, or of the one of that name in a run, which the algorithm of the setup plays."""
    if isinstance(source, Run) and name not in source.policies:
        raise unknown_name("policy", name, source.policies)
    algorithm = source.algorithm if isinstance(source, Policy) else source.experiment.setup.algorithms[name]
    if algorithm != setup.algorithms[name]:
        raise OptionError(
            f"{source!r} does not play {name!r} here: it has another algorithm, or other options of it. "
            "shoal.match plays runs with unlike ones against each other."
        )
    return source.params if isinstance(source, Policy) else source.policies[name]


def _opponents(given: Any, setup: Setup) -> dict[str, str | dict[str, PyTree]]:
    """Opponents as folders or, of runs and policies in memory, as weights by policy."""
    kinds = "a run, its folder, a policy, or 'random'"
    require(given is None or isinstance(given, Mapping), "shoal", "opponents", given, f"a mapping, who: {kinds}")
    found: dict[str, str | dict[str, PyTree]] = {}
    for who, other in (given or {}).items():
        require(isinstance(other, str | Path | Run | Policy), "shoal", f"opponents[{who!r}]", other, kinds)
        if isinstance(other, Run):
            found[who] = other.of_seed(0)
        else:
            found[who] = dict.fromkeys(setup.algorithms, other.params) if isinstance(other, Policy) else str(other)
    return found


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of metrics of a run folder; none if it has not written any yet."""
    file = path / "metrics.jsonl"
    return read_metrics(file) if file.is_file() else []


def _band(curve: Curve) -> Band:
    """Moving averages of the seeds as a line and, of several seeds, an interval, where all of them have a value."""
    whole = np.isfinite(curve.smooth).all(axis=1)
    if curve.smooth.shape[1] == 1 or not whole.any():
        return Band(curve.steps, curve.mean)
    values = curve.smooth[whole]
    return Band(curve.steps[whole], iqm(values), *interval(values))


@dataclasses.dataclass(frozen=True)
class Replay:
    """A page that plays an episode, whole in itself."""

    page: bytes = dataclasses.field(repr=False)

    def save(self, path: str | Path) -> Path:
        """Writes the page; to be opened in any browser."""
        write_file(path, self.page)
        return Path(path)

    def _repr_html_(self) -> str:
        document = html.escape(self.page.decode())
        return (
            f'<iframe srcdoc="{document}" sandbox="allow-scripts" width="100%" height="620" frameborder="0"></iframe>'
        )


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Policy:
    """A trained policy: `action, memory = policy(view)`, for one agent, or for many at once.

    Views may have any number of axes in front of those of one agent, such as `[environments, agents]`; actions and
    memory have the same. The memory of one step is handed to the next; None at the start of an episode.

    It is a pytree of its weights, so it goes through `jit` and `vmap` as an argument; all else about it is static.
    """

    name: str
    algorithm: Algorithm
    params: PyTree
    shape: PyTree  # of one agent's view
    state: PyTree  # the global state's spec, which critics see

    def __call__(
        self, view: PyTree, memory: PyTree = None, *, legal: Any = None, key: jax.Array | None = None
    ) -> tuple[jax.Array, PyTree]:
        """The best action. legal: which actions are allowed. key: draws from the policy, as in training, instead."""
        lead = self._leading_axes(view)
        if memory is None:
            one = self.algorithm.initial_memory(self.params)
            memory = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*lead, *jnp.shape(leaf))), one)
        keys = jax.random.key(0) if key is None else key
        keys = jax.random.split(keys, lead) if lead else keys
        view = jax.tree.map(jnp.asarray, view)
        legal = None if legal is None else jnp.asarray(legal, bool)
        return self._act(view, memory, legal, keys, explore=key is not None, axes=len(lead))

    @functools.cached_property
    def _act(self) -> Any:
        # A critic's opinion of the state is no part of an action, so any state will do.
        state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self.state)

        def act(view: PyTree, memory: PyTree, legal: Any, key: jax.Array, explore: bool, axes: int) -> Any:
            def one(view: PyTree, memory: PyTree, legal: Any, key: jax.Array) -> tuple[jax.Array, PyTree]:
                out = self.algorithm.act(self.params, Observation(view, legal, state=state), memory, key, explore)
                return out.action, out.memory

            for _ in range(axes):
                one = jax.vmap(one)
            return one(view, memory, legal, key)

        return jax.jit(act, static_argnames=("explore", "axes"))

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        """The weights, and what is static, in a form that can be hashed."""
        static = self.name, self.algorithm, _hashable(self.shape), _hashable(self.state)
        return ((jax.tree_util.GetAttrKey("params"), self.params),), static

    @classmethod
    def tree_unflatten(cls, static: Any, children: Any) -> "Policy":
        name, algorithm, *trees = static
        return cls(name, algorithm, *children, *(jax.tree.unflatten(form, leaves) for leaves, form in trees))

    def _leading_axes(self, view: PyTree) -> tuple[int, ...]:
        shapes = jax.tree.structure(self.shape, is_leaf=_is_shape)
        if jax.tree.structure(view) != shapes:
            raise OptionError(
                f"policy {self.name!r}: a view must have the parts {self.shape}, got {type(view).__name__}"
            )
        wanted = jax.tree.leaves(self.shape, is_leaf=_is_shape)
        found = [np.shape(leaf) for leaf in jax.tree.leaves(view)]
        leads = {shape[: len(shape) - len(own)] for shape, own in zip(found, wanted, strict=True)}
        fits = all(len(s) >= len(own) and s[len(s) - len(own) :] == own for s, own in zip(found, wanted, strict=True))
        if not fits or len(leads) > 1:
            raise OptionError(
                f"policy {self.name!r}: one agent's view has the shape {self.shape}, and as many axes as you like "
                f"before it; got {found[0] if len(found) == 1 else found}"
            )
        return leads.pop()

    def __repr__(self) -> str:
        return f"Policy({self.name!r}, views of shape {self.shape})"


def _hashable(tree: PyTree) -> tuple[Any, Any]:
    leaves, form = jax.tree.flatten(tree, is_leaf=_is_shape)
    return tuple(leaves), form


def _is_shape(node: Any) -> bool:
    return isinstance(node, tuple) and all(isinstance(size, int) for size in node)
