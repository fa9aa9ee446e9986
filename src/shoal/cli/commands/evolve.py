"""`shoal evolve TARGET --strategy NAME`: a population of policies, bred by returns. `shoal evolve RUN` resumes one."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from rich.console import Console
from tyro.conf import OmitArgPrefixes, arg

from shoal.api.calls import OFF_POLICY, UNUSED, shrink_networks
from shoal.api.changes import take
from shoal.api.progress import summary
from shoal.cli import run_results, runs, stored_runs
from shoal.cli.arguments import option_field, options_from, parse_pairs, repeated, scan
from shoal.cli.run_options import PoolOptions, ResumeOptions, SavedRunOptions, SceneOptions
from shoal.cli.runs import PolicyRunView
from shoal.cli.targets import parse_target
from shoal.cli.terminal import display_path, pluralise, say
from shoal.core.errors import OptionError
from shoal.populations.evolution.plan import Evolution
from shoal.populations.evolution.program import EvolutionProgram
from shoal.populations.evolution.strategies import STRATEGIES, Evosax, OpenES
from shoal.training.devices import prepare_jax
from shoal.training.loop import TrainingResult
from shoal.training.run import RunFolder
from shoal.training.run_kinds import EVOLUTION
from shoal.training.runner import Local


@dataclasses.dataclass(frozen=True)
@options_from(Evolution, leave=("experiment", "strategy"))
class EvolveOptions(SavedRunOptions, SceneOptions, PoolOptions):
    """Options of `shoal evolve` itself."""

    unused: ClassVar[Mapping[str, str]] = dict.fromkeys(
        UNUSED, "the copies of the world are --population times --episodes, and a run lasts for --generations"
    )

    strategy: Annotated[str, arg(metavar="NAME")] = OpenES.name  # open_es, ars, ga, erl, or any strategy of evosax


def run(args: Sequence[str]) -> int:
    """Evolves the policies of a world or a preset in a new run folder, or resumes a run."""
    prepare_jax()
    if runs.names_run(args, EVOLUTION):
        return stored_runs.resume(args, "shoal evolve")
    plan, options = parse_plan(args)
    return runs.start_and_report(EvolutionView, plan, options, "shoal evolve", plan.strategy.name.replace(":", "-"))


def resume_run(run: RunFolder, options: ResumeOptions) -> int:
    """Continues an evolution from its newest checkpoint."""
    return stored_runs.resume_and_report(EvolutionView, run, options)


def parse_plan(args: Sequence[str]) -> tuple[Evolution, Any]:
    """The plan of an evolution, and the command's options. Those of the strategy follow from its name."""
    names = scan(args, "--strategy")
    name = names[-1] if names else EvolveOptions.strategy
    if name == "erl" and not scan(args, "--algo"):
        args = [*args, "--algo", OFF_POLICY]
    if name in STRATEGIES:
        strategy = STRATEGIES[name]()
        field: Any = (
            "search",
            OmitArgPrefixes[Annotated[type(strategy), arg(help="Options of the strategy.")]],
            strategy,
        )
    else:
        Evosax(name)  # is there one?
        help = "a parameter of the strategy, by evosax's name, or learning_rate or std"
        field = ("option", repeated("NAME=VALUE"), option_field((), help))
    experiment, options, (search,) = parse_target(EvolveOptions, args, "shoal evolve", [field])
    given = name == "erl" or any("network.hidden" in argument for argument in args)
    strategy = search if name in STRATEGIES else _evosax(name, search)
    own = take(Evolution, dict(vars(options)), leave=("strategy",))
    return Evolution(experiment if given else shrink_networks(experiment), strategy, **own), options


def _evosax(name: str, texts: Sequence[str]) -> Evosax:
    given = parse_pairs(texts, "--option", "NAME=VALUE, such as std=0.1")
    return Evosax(name, {key: _value(key, text) for key, text in given.items()})


def _value(key: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise OptionError(f"--option {key}={text}: {text!r} is not a number") from None


class EvolutionView(PolicyRunView[Evolution]):
    """How an evolution is reported."""

    done: ClassVar[str] = "generations are bred"

    def opening(self) -> tuple[str, str]:
        plan = self.plan
        program = self.on.program if isinstance(self.on, Local) else plan.program(1)
        assert isinstance(program, EvolutionProgram)
        who = f"{', '.join(program.evolving)} by {plan.strategy.name}, {program.genome.size:,} weights"
        size = f"{pluralise(plan.population, 'member')} x {pluralise(plan.episodes, 'episode')}"
        ages = pluralise(plan.generations, "generation")
        title = f"{plan.experiment.env}: {who}; {size}, {ages}; seed {plan.experiment.seed}"
        return title, f"run folder: {display_path(self.run.path)}; {self.next}"

    def report(self, out: Console, result: TrainingResult) -> None:
        last = run_results.last_line(self.run)
        run_results.say_speed(out, last.get("env_steps", 0), result)
        figures = [f"{name} {text}" for name, text in summary(last).items()]
        figures += [f"{name} {last[name]:.2f}" for name in ("fitness/best", "fitness/policy") if name in last]
        say(out, "last generation: " + " | ".join(figures))

    def summary(self, result: TrainingResult) -> dict[str, Any]:
        last = run_results.last_line(self.run)
        return run_results.summary_of(self.run, result) | {
            "strategy": self.plan.strategy.name,
            "population": self.plan.population,
            "generations": result.update,
            "env_steps": last.get("env_steps", 0),
            "fitness": {name.removeprefix("fitness/"): last[name] for name in last if name.startswith("fitness/")},
        }
