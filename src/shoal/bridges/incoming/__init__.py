"""Environments of other libraries, to train in."""
