"""Training on one machine: experiments, programs, the loop that runs them, run folders, evaluation, sweeps."""
