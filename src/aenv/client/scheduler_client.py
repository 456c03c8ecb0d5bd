"""Import path of the platform client in existing code."""

from aenv.client.platform_client import ApiClient as AEnvSchedulerClient

__all__ = ["AEnvSchedulerClient"]
