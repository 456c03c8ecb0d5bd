"""The name under which existing code imports the platform's client."""

from aenv.client.platform_client import ApiClient as AEnvSchedulerClient

__all__ = ["AEnvSchedulerClient"]
