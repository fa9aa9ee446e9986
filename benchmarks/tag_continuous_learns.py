"""Do the taggers of `tag/continuous` learn? Trains WarpDrive's set-up and compares them with random taggers.

    python benchmarks/tag_continuous_learns.py benchmarks/results/tag_continuous --env-steps 20_000_000

Both play against the same runners, those trained beside them and frozen. Keeps the learning curve as JSON and as a
picture.
"""

import argparse
import dataclasses
import json
from pathlib import Path

from shoal import presets
from shoal.training.bench import versions
from shoal.training.evaluate import evaluate
from shoal.training.runner import run
from shoal.viz import draw_curves


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path, help="path without suffix")
    parser.add_argument("--env-steps", type=int, default=20_000_000)
    parser.add_argument("--episodes", type=int, default=400)
    args = parser.parse_args()
    experiment = dataclasses.replace(presets.get("reference/tag_continuous_a2c"), total_env_steps=args.env_steps)
    result = run(experiment)
    setup = experiment.setup
    runners = {"runner": result.policies["runner"]}
    figures = {}
    for name, policies in {"trained": result.policies, "random taggers": runners, "all random": None}.items():
        outcome = evaluate(setup, policies, args.episodes, explore=True)
        figures[name] = {"mean_return": outcome.mean_return, "standard_error": outcome.standard_error}
        print(name, figures[name], flush=True)
    kept = {
        "experiment": experiment.to_dict(),
        "versions": versions(),
        "seconds": result.seconds,
        "evaluation": figures,
    }
    kept |= {"compile_seconds": result.compile_seconds, "curve": result.lines}
    args.output.with_suffix(".json").write_text(json.dumps(kept) + "\n")
    draw_curves(args.output.with_suffix(".png"), result.lines, title="tag/continuous, A2C, one policy per side")


if __name__ == "__main__":
    main()
