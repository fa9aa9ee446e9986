"""Training without the command line: three agents learn to cover three landmarks, then play against the clock.

An `Experiment` is plain data. `train` compiles it into one program and runs it; with a folder it also keeps metrics
and checkpoints there, so that `resume`, `load_policies` and the `shoal` command can take over later.
"""

import dataclasses
import tempfile
from pathlib import Path

from shoal import presets
from shoal.training.devices import use_all_cores
from shoal.training.evaluate import evaluate
from shoal.training.loop import train
from shoal.training.run import load_policies


def main(total_env_steps=300_000):
    use_all_cores()  # on a CPU, spread the copies over all cores; must come before JAX is first used
    experiment = dataclasses.replace(presets.get("mpe/simple_spread"), total_env_steps=total_env_steps, seed=1)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "spread"
        result = train(experiment, run, listener=report)
        setup, policies, _ = load_policies(run)  # the same policies as result.policies, read back from the checkpoint
    print(f"{result.update} updates in {result.seconds:.1f} s, after compiling for {result.compile_seconds:.1f} s")
    scores = {
        "random": evaluate(setup, None, episodes=1000).total_mean_return,
        "trained": evaluate(setup, policies, episodes=1000).total_mean_return,
    }
    for name, score in scores.items():
        print(f"{name:8} mean return of an episode, summed over the agents: {score:.1f}")
    return scores


def report(progress):
    """Called after every call of the compiled program, while the next one is already running."""
    if progress.line:
        print(f"update {progress.update} of {progress.num_updates}: return {progress.line['return']:.1f}")


if __name__ == "__main__":
    main()
