"""Populations of policies: PSRO, leagues, population-based training and evolution."""
