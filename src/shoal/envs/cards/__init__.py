"""Card games for two: small enough to be solved exactly, and the yardstick of methods that learn by self-play."""
