"""Our environments as other libraries expect them."""
