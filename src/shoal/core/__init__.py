"""The contracts of the package: worlds, spaces, algorithms, keys, batches of copies, seats, ids, errors."""
