"""Games given by a table of payoffs: everybody chooses at once, once or again and again."""
