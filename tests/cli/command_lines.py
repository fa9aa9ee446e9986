"""Random command lines: all commands and options, values of every kind, names that are nearly right."""

import random
import string
from collections.abc import Sequence

from shoal.algorithms import NAMES
from shoal.api.synonyms import SYNONYMS
from shoal.cli.app import COMMANDS

TARGETS = (
    *(
        "demo",
        "mpe/simple_spread",
        "mpe/simple_tag",
        "tag/grid",
        "pong",
        "cards/kuhn",
        "control/cartpole",
        "matrix/game",
    ),
    *("qmix/simple_spread", "psro/leduc", "swarm/coverage", "mpe/simple_spred", "grid", "leduc", "foo/pong", "runs"),
    *("RUN", "RUN", "RUN", "RUN --import FILE", "test/tiny --import FILE"),
    *("gymnasium:CartPole-v1", "gymnasium:", "nobody:x", "a:b:c", "pettingzoo:nothing", "my world", "../..", "/"),
)
PLAIN = (
    *(
        "--num-envs",
        "--num-steps",
        "--total-env-steps",
        "--seed",
        "--num-seeds",
        "--randomise",
        "--no-randomise",
        "--wrap",
    ),
    *("--algo", "--sharing", "--freeze", "--weights", "--devices", "--import", "--json", "--run-dir", "--cluster"),
    *(
        "--checkpoint-minutes",
        "--recipe",
        "--actors",
        "--learners",
        "--shards",
        "--backups",
        "--patience",
        "--task-timeout",
        "--checkpoint-every",
        "--actor-cpus",
    ),
    *("--over", "--random", "--seeds", "--measure", "--out", "--members", "--interval", "--fraction", "--factor"),
    *(
        "--strategy",
        "--population",
        "--generations",
        "--episodes",
        "--evolve",
        "--own-starts",
        "--max-steps",
        "--option",
    ),
    *(
        "--meta-solver",
        "--oracle",
        "--uniform-share",
        "--iterations",
        "--target-error",
        "--target-nash-conv",
        "--improvement",
    ),
    *("--levels", "--warm-start", "--greedy", "--symmetric", "--import-policies", "--exploit-every", "--workers"),
    *(
        "--by",
        "--metric",
        "--at",
        "--normalise",
        "--watch",
        "--exploit",
        "--opponent",
        "--explore",
        "--training",
        "--seed-index",
        "--port",
        "--output",
        "--force",
        "--seconds",
    ),
    *("--env-option", "--pattern", "-h", "--help", "--version", "-", "--", "---", "-x", "--=", "--num-envs="),
)
DOTTED = (
    *("--algo.learning-rate", "--algo.gamma", "--algo.network.hidden", "--algo.network.activation", "--algo.epochs"),
    *(
        "--algo.network.recurrent",
        "--algo.mixer",
        "--algo.critic",
        "--algo.anneal",
        "--algo.minibatches",
        "--algo.burn-in",
    ),
    *("--env.num-agents", "--env.max-steps", "--env.payoffs", "--env.grid-length", "--env.view", "--env.num-rounds"),
    *("--learners.agent.frozen", "--learners.agent.weights", "--learners.agent.algorithm.gamma", "--search.std"),
)
NUMBERS = (
    *("0", "1", "-1", "2", "7", "64", "1e6", "1M", "500k", "1_000", "1e400", "-1e400", "nan", "inf", "-inf", "1e-400"),
    *("2.5", "9" * 400, "0x10", "1e", "٣", "1,5", "1/2", "true", "None", "-0", "+3", "1e30", "4294967296"),
)
TEXTS = (
    *("", " ", "agent", "adversary", "agent=runs/x", "agent=", "=x", "a=b=c", "all", "group", "none", "auto", "random"),
    *(
        "demo",
        "no/such/folder",
        "/dev/null",
        "/proc/self/mem",
        ".",
        "..",
        "~",
        "\t",
        "ünï✨",
        "-x",
        "--json",
        "$(id)",
        "*",
    ),
    *("learning_rate=1e-4:1e-2:4:log", "gamma=0.9,0.99", "gamma=0.9:0.99", "lr=1", "gamma=", "x=1:2", "gamma=a:b:c"),
    *("frame_stack:count=4", "frame_stack:", "time_limit:max_steps=x", "pad", "agent_ids", "reward_scale:scale=nan"),
    *(
        "[[1, -1], [-1, 1]]",
        "[[1,",
        "{}",
        "[]",
        "x" * 3000,
        "agent[0]=random",
        "agent[9]=random",
        "max_cycles=50",
        "3,5",
    ),
    *("open_es", "ars", "ga", "erl", "CMA_ES", "nash", "exact", "league", "127.0.0.1:1", "return/agent", "std=0.1"),
)
LETTERS = string.ascii_lowercase + "-_.=/ é0"


def command_line(source: random.Random) -> list[str]:
    """One random command line: usually a command, usually a target, then some options with values."""
    words = source.choice([*COMMANDS, *COMMANDS, "", "tran", "bench", "cluster", "--help", "-V"]).split()
    if source.random() < 0.05:
        words = [misspelt(source, word) for word in words]
    if source.random() < 0.85:
        target, _, file = source.choice(TARGETS).partition(" --import ")
        words += [target, "--import", file] if file else [target]
    for _ in range(source.choice((0, 1, 1, 2, 2, 3, 5))):
        words += option(source)
    if source.random() < 0.1:
        words.append(source.choice(TEXTS))
    if source.random() < 0.1 and len(words) > 2:
        source.shuffle(words)
    return words


def option(source: random.Random) -> list[str]:
    """An option, usually with a value; sometimes it is written wrongly, is twice there, or has none."""
    kind = source.random()
    name = source.choice(PLAIN) if kind < 0.6 else source.choice(DOTTED)
    if kind > 0.93:
        name = f"--{source.choice(('', 'algo.', 'env.'))}{source.choice(list(SYNONYMS))}"
    if source.random() < 0.1:
        name = misspelt(source, name)
    value = source.choice(source.choice((NUMBERS, NUMBERS, TEXTS, list(NAMES), TARGETS)))
    form = source.random()
    if form < 0.1:
        return [name]
    if form < 0.2:
        return [f"{name}={value}"]
    if form < 0.25:
        return [name, value, name, source.choice(NUMBERS)]
    return [name, value]


def misspelt(source: random.Random, word: str) -> str:
    """A word with a letter added, left out, changed or moved."""
    if not word:
        return source.choice(LETTERS)
    i = source.randrange(len(word))
    edits: Sequence[str] = (
        word[:i] + word[i + 1 :],
        word[:i] + source.choice(LETTERS) + word[i:],
        word[:i] + source.choice(LETTERS) + word[i + 1 :],
        word[:i] + word[i:][::-1],
        word.upper(),
    )
    return source.choice(edits)
