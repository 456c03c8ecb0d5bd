"""The Docker engine: one container for each instance, through the API of Docker or Podman."""
