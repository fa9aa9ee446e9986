"""Tasks for a pool of workers: population training, best responses, evolution."""
