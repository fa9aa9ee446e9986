"""What the page asks the server for: one module per group, each with its `ROUTES`."""
