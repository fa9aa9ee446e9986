"""What is recorded: runs of 20 updates, small enough to be quick, together large enough to enter every branch.

A case is a kind of run and what `config.json` of such a run holds: a format that old run folders keep in use, so that
a case outlives the modules that carry it out. What is left out has its default.
"""

import dataclasses
from typing import Any

UPDATES = 20
COPIES, STEPS = 8, 8
REPLAY = {"buffer_size": 1024, "warm_up": 64, "batch_size": 16, "gradient_steps": 2}
SEQUENCES = REPLAY | {"sequence": 5}
GRU = {"recurrent": "gru", "recurrent_size": 8}
LSTM = {"recurrent": "lstm", "recurrent_size": 8}


@dataclasses.dataclass(frozen=True)
class Case:
    """quick: whether `make test` runs it. devices: 0 where there is no choice."""

    kind: str
    config: dict[str, Any]
    devices: int = 1
    quick: bool = False


def algorithm(name: str, network: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    return {"name": name, "network": {"hidden": [16], **(network or {})}, **options}


def experiment(world: dict[str, Any], learners: dict[str, Any], **sizes: Any) -> dict[str, Any]:
    """learners: by name, or the algorithm of the only one."""
    if "name" in learners:
        learners = {"learner": {"algorithm": learners}}
    sizes = {"num_envs": COPIES, "num_steps": STEPS, **sizes}
    total = UPDATES * sizes["num_envs"] * sizes["num_steps"]
    return {**world, "learners": learners, "total_env_steps": total, "seed": 3, **sizes}


def training(world: dict[str, Any], learners: dict[str, Any], *, devices=1, quick=False, kind="training", **sizes):
    return Case(kind, {"experiment": experiment(world, learners, **sizes)}, devices, quick)


def world(env: str, **options: Any) -> dict[str, Any]:
    return {"env": env, "env_options": options}


SPREAD = world("mpe/simple_spread", num_agents=2, max_steps=10)
PULLS = world("mpe/simple_spread", num_agents=2, max_steps=10, continuous=True)
RIVALS = world("mpe/simple_adversary", max_steps=10)  # two groups
RIVAL_PULLS = world("mpe/simple_adversary", max_steps=10, continuous=True)
TURNS = world("cards/kuhn")  # agents wait for each other, and some actions are illegal
LONG_TURNS = world("cards/leduc")
GRID = world("tag/grid", num_taggers=2, grid_length=4, max_steps=12)  # ends early and late
FIELD = world(  # two choices an action; those who are tagged leave
    "tag/continuous", num_taggers=2, num_runners=3, max_steps=12, num_neighbours=2, tagging_distance=0.2
)
SWING = world("control/pendulum", max_steps=12)
POLE = world("control/cartpole")
BATTLE = world("battle/open", num_agents=3, map_size=8, view_radius=3, max_steps=12)  # views are images

_ON_POLICY: dict[str, dict[str, Any]] = {
    "a2c": {"name": "a2c"},
    "ppo": {"name": "ppo"},
    "impala": {"name": "impala"},
    "appo": {"name": "impala", "clipped": True, "epochs": 2, "minibatches": 2},
    "pqn": {"name": "pqn"},
}


def _feed_forward_and_recurrent() -> dict[str, Case]:
    """Every algorithm, each with and without a memory."""
    cases = {}
    for name, options in _ON_POLICY.items():
        quick = name in ("ppo", "impala", "pqn")
        cases[name] = training(SPREAD, algorithm(**options), quick=quick)
        cases[f"{name}_recurrent"] = training(SPREAD, algorithm(network=GRU, **options), quick=name == "ppo")
    td3 = {"twin": True, "policy_delay": 2, "target_noise": 0.2}
    for name, (where, options) in {
        "dqn": (SPREAD, {"name": "dqn"}),
        "ddpg": (PULLS, {"name": "ddpg"}),
        "td3": (SWING, {"name": "ddpg", **td3}),
        "sac": (PULLS, {"name": "sac"}),
        "ddpg_discrete": (SPREAD, {"name": "ddpg"}),
        "sac_discrete": (SPREAD, {"name": "sac"}),
    }.items():
        quick = name in ("ddpg", "sac_discrete")
        cases[name] = training(where, algorithm(**options, **REPLAY), quick=quick)
        recurrent = algorithm(network=GRU, **options, **SEQUENCES, burn_in=2)
        cases[f"{name}_recurrent"] = training(where, recurrent)
    return cases


def _mixers() -> dict[str, Case]:
    """Value decomposition: VDAC of three kinds, VDN and QMIX with and without a replay."""
    cases = {}
    for mixer in ("sum", "monotonic"):
        for name, options in _ON_POLICY.items():
            quick = (name, mixer) == ("a2c", "monotonic")
            cases[f"{name}_{mixer}"] = training(SPREAD, algorithm(**options, mixer=mixer), quick=quick)
        quick = mixer == "monotonic"
        cases[f"dqn_{mixer}"] = training(SPREAD, algorithm("dqn", **REPLAY, mixer=mixer), quick=quick)
    recurrent = {"network": GRU, "mixer": "monotonic"}
    cases["a2c_monotonic_recurrent"] = training(SPREAD, algorithm("a2c", **recurrent))
    cases["impala_monotonic_recurrent"] = training(SPREAD, algorithm("impala", **recurrent))
    cases["pqn_monotonic_recurrent"] = training(SPREAD, algorithm("pqn", **recurrent))
    cases["dqn_monotonic_recurrent"] = training(SPREAD, algorithm("dqn", **SEQUENCES, burn_in=2, **recurrent))
    cases["ppo_sum_in_turns"] = training(TURNS, algorithm("ppo", mixer="sum"))
    return cases


def _global_critics() -> dict[str, Case]:
    """Critics that see the global state, and everybody's actions."""
    return {
        "mappo": training(SPREAD, algorithm("ppo", critic="global"), quick=True),
        "mappo_recurrent": training(SPREAD, algorithm("ppo", GRU, critic="global")),
        "impala_global": training(SPREAD, algorithm("impala", critic="global")),
        "maddpg": training(RIVALS, algorithm("ddpg", **REPLAY, critic="global")),
        "maddpg_box": training(RIVAL_PULLS, algorithm("ddpg", **REPLAY, critic="global")),
        "maddpg_recurrent": training(RIVALS, algorithm("ddpg", GRU, **SEQUENCES, critic="global")),
        "masac": training(RIVALS, algorithm("sac", **REPLAY, critic="global")),
        "masac_box": training(RIVAL_PULLS, algorithm("sac", **REPLAY, critic="global")),
        "maac": training(RIVALS, algorithm("sac", **REPLAY, critic="attention")),
        "maac_box": training(RIVAL_PULLS, algorithm("sac", **REPLAY, critic="attention")),
        "maac_recurrent": training(RIVALS, algorithm("sac", GRU, **SEQUENCES, critic="attention")),
    }


def _options() -> dict[str, Case]:
    """Switches that change what is computed."""
    normalised = {"normalise_views": True, "normalise_values": True, "anneal": True}
    replayed = {"prioritised": True, "n_step": 3}
    return {
        "ppo_normalised": training(SWING, algorithm("ppo", **normalised)),
        "a2c_normalised_recurrent": training(SPREAD, algorithm("a2c", GRU, **normalised, normalise_advantages=True)),
        "impala_normalised": training(SWING, algorithm("impala", **normalised)),
        "mappo_monotonic_normalised": training(
            SPREAD, algorithm("ppo", critic="global", mixer="monotonic", **normalised)
        ),
        "ppo_lstm_shared": training(SPREAD, algorithm("ppo", LSTM | {"share_torso": True, "layer_norm": True})),
        "ppo_bfloat16": training(SPREAD, algorithm("ppo", {"dtype": "bfloat16", "activation": "relu"})),
        "ppo_in_chunks": training(SPREAD, algorithm("ppo", chunk_samples=16)),
        "ppo_convolutions": training(BATTLE, algorithm("ppo", {"filters": [4]})),
        "ppo_randomised": training(SWING, algorithm("ppo"), randomise=True),
        "ppo_wrapped": training(
            SPREAD | {"wrappers": [{"name": "frame_stack", "count": 2}, {"name": "agent_ids"}]}, algorithm("ppo")
        ),
        "ppo_two_seeds": training(SPREAD, algorithm("ppo"), num_seeds=2),
        "r2d2": training(SPREAD, algorithm("dqn", GRU, **SEQUENCES, burn_in=2, **replayed)),
        "dqn_prioritised_dueling": training(SPREAD, algorithm("dqn", **REPLAY, **replayed, dueling=True, double=False)),
        "qmix_prioritised": training(SPREAD, algorithm("dqn", **REPLAY, **replayed, mixer="monotonic")),
        "ddpg_n_step": training(SWING, algorithm("ddpg", **REPLAY, n_step=3)),
        "sac_fixed_temperature_n_step": training(SWING, algorithm("sac", **REPLAY, n_step=3, learn_temperature=False)),
    }


def _worlds() -> dict[str, Case]:
    """Agents who wait, may not do everything, come and go, or choose several things at once; several learners."""
    cases = {}
    for name, options in (_ON_POLICY | {name: {"name": name, **REPLAY} for name in ("dqn", "ddpg", "sac")}).items():
        cases[f"{name}_in_turns"] = training(TURNS, algorithm(**options))
        cases[f"{name}_that_leave"] = training(FIELD, algorithm(**options))
    for name in ("ppo", "impala"):
        cases[f"{name}_in_turns_recurrent"] = training(LONG_TURNS, algorithm(name, GRU))
    cases["dqn_in_turns_recurrent"] = training(LONG_TURNS, algorithm("dqn", GRU, **SEQUENCES, burn_in=2))
    cases["ppo_box"] = training(PULLS, algorithm("ppo"))
    cases["ppo_that_ends_early"] = training(GRID, algorithm("ppo"))
    learners = {
        "first": {"algorithm": algorithm("ppo"), "policies": {"tagger": ["tagger"]}},
        "second": {"algorithm": algorithm("dqn", **REPLAY), "policies": {"runner": ["runner"]}},
    }
    cases["ppo_against_dqn"] = training(GRID, learners)
    cases["ppo_against_frozen"] = training(GRID, {**learners, "second": {**learners["second"], "frozen": True}})
    own = {"one": ["agent[0]"], "other": ["agent[1]"]}
    cases["ppo_policy_each"] = training(SPREAD, {"learner": {"algorithm": algorithm("ppo"), "policies": own}})
    return cases


def _two_devices() -> dict[str, Case]:
    return {
        "ppo_two_devices": training(SPREAD, algorithm("ppo", minibatches=2, normalise_views=True), devices=2),
        "mappo_recurrent_two_devices": training(
            SPREAD, algorithm("ppo", GRU, critic="global", minibatches=2), devices=2
        ),
        "impala_monotonic_two_devices": training(SPREAD, algorithm("impala", mixer="monotonic"), devices=2),
        "dqn_two_devices": training(SPREAD, algorithm("dqn", **REPLAY, prioritised=True), devices=2),
        "pqn_two_devices": training(SPREAD, algorithm("pqn", minibatches=2), devices=2),
        "masac_two_devices": training(RIVALS, algorithm("sac", **REPLAY, critic="global"), devices=2),
    }


def _psro(solver: str, kind: str = "psro", iterations: int = 2, options: dict[str, Any] | None = None, **settings: Any):
    responder = algorithm("ppo", {"share_torso": True}, epochs=1, minibatches=2, gamma=1.0, normalise_values=True)
    players = {f"player_{i}": {"algorithm": responder, "policies": {f"player_{i}": [f"player[{i}]"]}} for i in (0, 1)}
    plan = {"meta_solver": solver, "solver_options": options or {}, "iterations": iterations, "episodes": 64}
    trained = experiment(TURNS, players, num_envs=32, num_steps=4)
    return Case(kind, {"psro": {"experiment": trained, "psro": plan, **settings}})


def _populations() -> dict[str, Case]:
    """Kinds of run other than training; for a population, an update is a member's, or a generation."""
    ppo = experiment(SPREAD, algorithm("ppo", normalise_views=True))
    rates = {"learning_rate": {"start": 1e-4, "stop": 1e-2, "log": True}}
    breeding = {"population": 8, "generations": UPDATES, "max_steps": 10}
    pbt = {"experiment": ppo, "pbt": {"over": rates, "members": 4, "interval": 4, "fraction": 0.25}}
    open_es = {"experiment": ppo, "evolution": {**breeding, "strategy": {"name": "open_es"}}}
    over = {"learning_rate": [3e-4, 3e-3], "clip_eps": [0.1, 0.3]}
    erl = {"name": "erl", "piece": 4, "elite_share": 0.25}
    hybrid = experiment(PULLS, algorithm("ddpg", **REPLAY))
    return {
        "psro": _psro("fictitious_play"),
        "psro_alpha_rank_greedy": _psro("alpha_rank", warm_start=True, greedy=True),
        "psro_anytime": _psro("anytime", iterations=1),
        "psro_pipeline": _psro("fictitious_play", levels=2),
        "psro_exact": _psro("fictitious_play", oracle="exact", iterations=4),
        "league": _psro("league", options={"exploit_every": 1}),
        "pbt": Case("pbt", pbt),
        "pbt_two_devices": Case("pbt", pbt, devices=2),
        "evolution": Case("evolution", open_es),
        "evolution_two_devices": Case("evolution", open_es, devices=2),
        "evolution_ga": Case("evolution", {"experiment": ppo, "evolution": {**breeding, "strategy": {"name": "ga"}}}),
        "evolution_ars": Case("evolution", {"experiment": ppo, "evolution": {**breeding, "strategy": {"name": "ars"}}}),
        "evolution_erl": Case("evolution", {"experiment": hybrid, "evolution": {**breeding, "strategy": erl}}),
        "sweep": Case("sweep", {"sweep": {"experiment": ppo, "over": over, "random": None, "measure": None}}),
    }


def _clusters() -> dict[str, Case]:
    """Synchronous runs on a cluster, whose workers are threads here; one whose workers are Ray's."""
    ppo = experiment(SPREAD, algorithm("ppo", normalise_views=True))
    recurrent = experiment(SPREAD, algorithm("impala", GRU, mixer="sum"))
    group = experiment(SPREAD, algorithm("ppo", minibatches=2))
    populations = _populations()
    return {
        "cluster_sync": Case("cluster", {"experiment": ppo, "cluster": {"recipe": "sync", "actors": 2}}, 0),
        "cluster_sync_recurrent": Case(
            "cluster", {"experiment": recurrent, "cluster": {"recipe": "sync", "actors": 2}}, 0
        ),
        "cluster_ddppo": Case("cluster", {"experiment": group, "cluster": {"recipe": "ddppo", "learners": 1}}, 0),
        "cluster_sync_ray": Case("cluster_ray", {"experiment": ppo, "cluster": {"recipe": "sync", "actors": 2}}, 0),
        "cluster_pbt": Case("cluster_pbt", populations["pbt"].config, 0),
        "cluster_evolution": Case("cluster_evolution", populations["evolution"].config, 0),
        "cluster_psro": Case("cluster_psro", populations["psro"].config, 0),
    }


def _host() -> dict[str, Case]:
    """Environments that step on the host."""
    return {
        "host": training(world("gymnasium:CartPole-v1"), algorithm("ppo", normalise_views=True)),
        "host_dqn": training(world("gymnasium:CartPole-v1"), algorithm("dqn", **REPLAY)),
    }


CASES: dict[str, Case] = {
    **_feed_forward_and_recurrent(),
    **_mixers(),
    **_global_critics(),
    **_options(),
    **_worlds(),
    **_two_devices(),
    **_populations(),
    **_clusters(),
    **_host(),
}
