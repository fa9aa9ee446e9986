"""Battles: many against many on a grid."""
