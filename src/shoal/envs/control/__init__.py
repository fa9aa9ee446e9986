"""Classic control: one agent against gravity. Step by step the worlds of the same names in Gymnasium."""
