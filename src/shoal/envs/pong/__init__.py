"""Pong for two, with a view of numbers or of pixels."""
