"""Two virtual CPU devices, strict types, and no skipping where everything is installed."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=1")  # most of the time here goes into compiling

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_numpy_dtype_promotion", "standard")
jax.config.update("jax_compilation_cache_dir", os.path.join(os.path.dirname(__file__), "..", ".cache", "xla"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


LONG = (
    "algorithms/test_dqn_runs.py::test_two_devices_share_a_learner",
    "algorithms/test_impala.py::test_fresh_experience_makes_it_a2c[env1-gru-False]",
    "algorithms/test_off_policy_runs.py::test_beside_learners_that_see_more",
    "algorithms/test_off_policy_runs.py::test_images_and_warm_up[DDPG]",
    "algorithms/test_probes.py::test_discrete_probe[dqn-masked]",
    "algorithms/test_probes.py::test_discrete_probe[sac-delayed]",
    "algorithms/test_sac.py::test_critics_hear_the_other_group[attention]",
    "algorithms/test_sac.py::test_masks_and_turns[attention]",
    "algorithms/test_vdac.py::test_a_checkpoint_holds_the_mixer",
    "algorithms/test_vdac.py::test_alone_the_sum_changes_nothing",
    "algorithms/test_vdac.py::test_fresh_experience_makes_impala_a2c[env0-monotonic-none]",
    "bridges/test_torch.py::test_the_example_learns",
    "cli/test_cli_commands.py::test_frozen_opponents_and_several_seeds",
    "cli/test_pbt.py::test_going_on_gives_the_same_bits",
    "cli/test_sweep.py::test_json_and_a_point_that_failed",
    "cli/test_sweep.py::test_no_episode_ended",
    "contracts/test_joint_critic.py::test_a_joint_critic_trains_two_different_groups",
    "contracts/test_outside_loop.py::test_outside_equals_fused[tag/grid-gru]",
    "contracts/test_turn_based.py::test_it_learns_what_cards_are_worth",
    "docs/test_algorithm_pages.py::test_a_team_by_ppo_against_a_frozen_one_by_dqn",
    "envs/test_contract.py::test_check_env[battle/open]",
    "envs/test_contract.py::test_check_env[swarm/coverage]",
    "envs/test_contract.py::test_check_env[swarm/delivery]",
    "envs/test_contract.py::test_check_env[swarm/formation]",
    "envs/test_contract.py::test_check_env[swarm/pursuit]",
    "execution/test_evolution.py::test_a_run_of_training_is_no_evolution",
    "execution/test_evolution.py::test_erl_trains_a_learner_and_takes_its_actor_in",
    "execution/test_fused.py::test_nan_in_a_final_view_is_blamed_on_the_world",
    "execution/test_fused.py::test_nan_in_the_loss_is_reported",
    "execution/test_fused.py::test_nan_in_the_metrics_of_a_world",
    "execution/test_fused.py::test_nan_is_traced_to_its_source[reward-1]",
    "execution/test_fused.py::test_two_devices_agree_with_one[recurrent]",
    "execution/test_host.py::test_learns_as_the_fused_runner_does[cards/leduc-options1-algorithm1-policies1]",
    "execution/test_host.py::test_learns_as_the_fused_runner_does[mpe/simple_tag-options2-algorithm2-policies2]",
    "execution/test_population.py::test_resume_to_the_bit",
    "execution/test_sweep.py::test_a_point_is_the_training_it_would_be_alone[ppo, two devices]",
    "execution/test_sweep.py::test_a_point_that_fails_leaves_the_others_alone",
    "networks/test_mixers.py::test_no_gradient_is_ever_negative",
)
"""Tests of ten seconds and more whose subject has a shorter one beside them: slow, that is for `make test-all`."""


def pytest_collection_modifyitems(items):
    for item in items:
        if item.nodeid.removeprefix("tests/") in LONG:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """With SHOAL_REQUIRE_ALL, a test that would be skipped fails instead."""
    outcome = yield
    report = outcome.get_result()
    if report.skipped and os.environ.get("SHOAL_REQUIRE_ALL") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped although everything must be installed here: {report.longrepr}"


@pytest.fixture(autouse=True)
def _no_world_stays_behind():
    """A world that a test registers is known to that test alone, whichever tests its process runs next."""
    from shoal.core import registry

    before = set(registry._worlds)
    yield
    for id in set(registry._worlds) - before:
        del registry._worlds[id]
