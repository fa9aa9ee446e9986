"""Game theory of normal-form games in numpy: meta-solvers, alpha-rank, ratings, exploitability."""
