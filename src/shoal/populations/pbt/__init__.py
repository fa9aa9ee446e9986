"""Population-based training: selection, program and run."""
