"""Create requests: checks, resources, labels, datasources, and the environment that each one names."""
