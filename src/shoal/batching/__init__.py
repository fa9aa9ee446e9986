"""From one environment and one agent to many: copies, masks, agents, groups of policies, rollouts."""
