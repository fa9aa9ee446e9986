"""Populations: banks of policies, who plays whom, what it is worth, and how they grow. Imports no runner."""
