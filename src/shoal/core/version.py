"""The version and the name of the distribution, in one place."""

VERSION = "0.1.0"
DISTRIBUTION = "shoal-rl"
"""What `pip` knows Shoal by; `shoal` is another project on the public index."""
