"""A notebook's worth of Shoal: train two seeds, look at them, play them, and go on later from the folder.

Copied cell by cell into Jupyter, the plot, the evaluation and the replay show themselves. Every call uses all cores,
keeps compiled programs on disk and shows a progress bar.
"""

import tempfile
from pathlib import Path

import jax

import shoal


class Stop(shoal.Callback):
    """Ends a run as soon as it plays well enough."""

    def on_evaluation(self, event):
        if event.mean_return > -45:
            event.stop()


def main(total_env_steps=300_000):
    folder = Path(tempfile.mkdtemp()) / "spread"
    options = {"total_env_steps": total_env_steps, "num_seeds": 2, "eval_every": 30_000}
    run = shoal.train("ippo/simple_spread", folder, callbacks=[Stop()], loggers=["csv"], **options)
    print(run)

    # Metrics are a tidy table: pandas.DataFrame(run.metrics) works as it is.
    returns = run.metrics["value"][run.metrics["name"] == "return/agent"]
    print(f"return of training: {returns[0]:.1f} at first, {returns[-1]:.1f} in the end")
    run.plot("return").figure.savefig(folder / "return.png")
    run.replay().save(folder / "episode.html")

    trained, random = run.evaluate(episodes=500), shoal.evaluate("mpe/simple_spread", episodes=500)
    print(f"trained: {trained}\nrandom:  {random}")

    # Later, in another process: the policy that did best, as a function.
    policy = shoal.load(folder, checkpoint="best").policy("agent")
    envs = shoal.vectorise(run.experiment.world, 4)
    worlds = envs.reset(jax.random.key(0))
    actions, _ = policy(worlds.observation["agent"].view)
    worlds, *_ = jax.jit(envs.step)(worlds, {"agent": actions})
    print(f"actions of three agents in four copies:\n{actions}")
    return {"trained": min(trained.mean_return["agent"]), "random": random.mean_return["agent"], "folder": folder}


if __name__ == "__main__":
    main()
