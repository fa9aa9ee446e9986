"""What other libraries call our options: a name that is typed in vain leads to ours."""

_GROUPS = {
    "learning-rate": "lr learningrate step-size alpha-lr policy-lr critic-lr vf-lr",
    "actor-learning-rate": "actor-lr policy-lr pi-lr",
    "gamma": "discount discount-factor discounting",
    "gae-lambda": "lambda lam lambd gae lambda-gae td-lambda",
    "trace-lambda": "lambda lam lambd td-lambda",
    "entropy-coef": "ent-coef entropy-coeff entropy-coefficient entropy entropy-bonus entropy-cost ent-weight beta",
    "value-coef": "vf-coef vf-coeff vf-loss-coeff value-loss-coef value-coefficient critic-coef baseline-cost",
    "max-grad-norm": "grad-clip clip-grad gradient-clip grad-norm max-norm grad-clipping clip-gradients",
    "clip-eps": "clip-range clip-param clip-coef clip clip-ratio epsilon-clip ppo-clip clip-epsilon eps-clip",
    "epochs": "n-epochs num-epochs update-epochs ppo-epochs num-sgd-iter ppo-epoch n-updates-per-batch",
    "minibatches": "num-minibatches n-minibatches num-mini-batch minibatch-size batch-size nminibatches",
    "batch-size": "train-batch-size minibatch-size batchsize",
    "normalise-advantages": "norm-adv normalize-advantage normalize-advantages advantage-normalization",
    "normalise-views": "normalize-obs norm-obs normalize-observations obs-norm normalise-observations",
    "normalise-values": "normalize-values value-norm popart use-popart normalize-rewards norm-reward",
    "anneal": "anneal-lr lr-decay lr-schedule use-linear-lr-decay linear-decay",
    "buffer-size": "buffer replay-size replay-buffer-size memory-size capacity buffer-capacity buffer-len",
    "warm-up": "learning-starts start-steps warmup warmup-steps random-steps init-random-frames min-replay-size",
    "gradient-steps": "train-steps updates-per-step utd utd-ratio train-intensity n-train-steps num-updates-per-iter",
    "target-rate": "tau polyak soft-update target-update-tau target-network-update-freq target-update-interval",
    "epsilon-start": "eps-start start-e exploration-initial-eps initial-epsilon epsilon",
    "epsilon-end": "eps-end end-e eps-finish exploration-final-eps final-epsilon eps-final epsilon-final",
    "epsilon-fraction": "exploration-fraction eps-decay epsilon-decay epsilon-anneal-time epsilon-timesteps",
    "temperature": "alpha ent-coef entropy-coef init-alpha initial-alpha",
    "target-entropy-share": "target-entropy target-entropy-scale",
    "exploration-noise": "noise action-noise act-noise expl-noise exploration-std",
    "policy-delay": "policy-freq policy-frequency actor-delay",
    "n-step": "nstep multi-step n-steps-return bootstrap-steps",
    "prioritised": "per prioritized prioritized-replay use-per",
    "double": "double-dqn double-q",
    "sequence": "seq-len sequence-length trace-length max-seq-len bptt",
    "burn-in": "burnin burn-in-length",
    "mixer": "mixing mixing-network mixer-type",
    "critic": "centralised-critic centralized-critic share-critic use-centralized-v",
    "network.hidden": "hidden-sizes hidden-size hidden-dim hidden-layers hiddens net-arch fcnet-hiddens layers mlp",
    "network.activation": "act-fn activation-fn fcnet-activation nonlinearity",
    "network.recurrent": "rnn lstm gru mingru use-rnn use-lstm use-recurrent-policy recurrence recurrent-policy",
    "network.recurrent-size": "rnn-hidden-dim gru-hidden-dim lstm-cell-size rnn-hidden-size recurrent-hidden-size",
    "num-envs": "n-envs nenvs envs num-envs-per-env-runner parallel-envs batch-size-run n-rollout-threads copies",
    "env-workers": "num-env-runners num-rollout-workers num-workers",
    "num-steps": "n-steps nsteps rollout-length rollout-steps unroll-length rollout-fragment-length horizon "
    "train-batch-size-per-learner",
    "total-env-steps": "total-timesteps timesteps total-steps max-steps env-steps frames num-env-steps t-max steps "
    "stop num-iterations training-iterations",
    "eval-every": "evaluation-interval eval-interval eval-freq evaluation-freq eval-frequency",
    "eval-episodes": "evaluation-duration n-eval-episodes num-eval-episodes",
    "sharing": "policy-mapping-fn policy-mapping policies share-policy share-policy-params parameter-sharing",
    "freeze": "policies-to-train frozen-policies",
    "env": "env-config env-kwargs env-args environment-kwargs",
    "num-seeds": "seeds n-seeds nseeds runs trials",
    "seed": "random-seed rng-seed",
    "dry-run": "print-config show-config plan-only check what-if simulate dryrun",
    "run-dir": "output out out-dir output-dir logdir log-dir save-dir save-path dir folder exp-dir run-name",
    "devices": "gpus num-gpus num-devices cores n-jobs num-cpus device",
    "checkpoint-minutes": "checkpoint-freq checkpoint-interval save-interval save-freq save-every",
    "algo": "algorithm alg agent trainer",
    "weights": "checkpoint load-model pretrained model init-from restore from-checkpoint",
    "wrap": "wrapper wrappers",
    "import": "imports module include plugin",
    "episodes": "num-episodes n-episodes n-eval-episodes eval-episodes",
    "explore": "stochastic sample deterministic greedy",
    "members": "population population-size pop-size num-samples",
    "population": "pop-size population-size popsize members",
    "generations": "num-generations gens iterations",
    "over": "param grid search-space space parameters",
    "env.num-agents": "n-agents num-agents agents",
}
SYNONYMS: dict[str, list[str]] = {}
"""Our options, without their first prefix, by the names that others have for them."""
for _ours, _theirs in _GROUPS.items():
    for _name in _theirs.split():
        SYNONYMS.setdefault(_name, []).append(_ours)


def meant_by(name: str, known: dict[str, str]) -> list[str]:
    """The options that a name of another library stands for, among the known ones: flags by the option without `--`."""
    last = name.rpartition(".")[2]
    wanted = SYNONYMS.get(last) or SYNONYMS.get(last.removeprefix("num-")) or []
    found = [flag for ours in wanted for option, flag in known.items() if option == ours or option.endswith(f".{ours}")]
    return [flag for flag in found if not flag.startswith("--learners.")] or found
