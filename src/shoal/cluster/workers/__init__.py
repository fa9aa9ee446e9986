"""Actors and learners."""
