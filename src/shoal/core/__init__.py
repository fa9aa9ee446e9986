"""The contracts that everything else keeps: worlds, spaces, algorithms, keys, batches of copies, seats, ids, errors."""
