"""The name under which existing code imports the platform's client."""

from aenv.client.api import ApiClient as AEnvSchedulerClient

__all__ = ["AEnvSchedulerClient"]
