"""Particle worlds: discs in the plane that are steered, collide and seek or shun one another."""
