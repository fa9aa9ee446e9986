"""The host's side of evolution: run folders, metrics, checkpoints, going on with a run that was stopped.

A run of an evolution is a run folder like any other, with one more entry in `config.json`, so that `shoal eval` and
`shoal watch` play what has evolved. An update of it is a generation.
"""

from collections.abc import Callable
from pathlib import Path

from shoal.populations.evolution.program import Evolution, EvolutionProgram, make_evolution_program
from shoal.training import checkpoint
from shoal.training.loop import Listener, Loop, TrainingResult, resume_program
from shoal.training.run import RunFolder, create, open_run
from shoal.training.run_kinds import EVOLUTION, open_entry

Spread = Callable[[EvolutionProgram], EvolutionProgram]


def evolve(
    plan: Evolution,
    run_dir: str | Path | None = None,
    *,
    devices: int | None = None,
    listener: Listener | None = None,
    checkpoint_seconds: float = 60.0,
    spread: Spread | None = None,
) -> TrainingResult:
    """Evolves from the start; with a `run_dir`, metrics and checkpoints are kept there.

    spread: makes of the program one whose generations are bred elsewhere.
    """
    program = make_evolution_program(plan, devices)
    program = spread(program) if spread else program
    run = create(Path(run_dir), plan.played, EVOLUTION, plan.to_dict()) if run_dir is not None else None
    return Loop(program, run, listener, checkpoint_seconds).run(program.begin(), None)[0]


def resume_evolution(
    run_dir: str | Path,
    *,
    devices: int | None = None,
    listener: Listener | None = None,
    checkpoint_seconds: float = 60.0,
    spread: Spread | None = None,
) -> TrainingResult:
    """Continues a run from its newest checkpoint, to the same bits as if it had never stopped.

    It runs on as many devices as before, if they are there; on another number it agrees to rounding only, and warns.
    """
    run, plan = open_evolution(Path(run_dir))
    begun = checkpoint.latest(run.checkpoints) is not None

    def rebuilt(devices: int | None) -> EvolutionProgram:
        program = make_evolution_program(plan, devices, begun)
        return spread(program) if spread else program

    return resume_program(run, rebuilt, devices, listener, checkpoint_seconds)[0]


def open_evolution(path: Path) -> tuple[RunFolder, Evolution]:
    """An existing run of an evolution."""
    run = open_run(path)
    return run, open_entry(path, EVOLUTION, lambda data: Evolution.from_dict(run.experiment, data))
