"""What workers share: coordinator, parameters, dataset, journal."""
