"""Evolution: strategies, genomes, the program that evaluates members, and the run."""
