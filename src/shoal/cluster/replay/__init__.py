"""A replay in shards, and the actors and learners around it."""
