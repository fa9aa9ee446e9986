"""The runs below a folder: found, listed, read and annotated; see `catalogue`."""

from shoal.training.catalogue.catalogue import STATUSES, Catalogue, Entry, Series, matches, runs

__all__ = ["STATUSES", "Catalogue", "Entry", "Series", "matches", "runs"]
