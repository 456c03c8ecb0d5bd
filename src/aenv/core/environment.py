"""Earlier import path of ``Environment``; the code is in ``aenv.sdk``."""

from aenv.authoring.results import ToolResult
from aenv.authoring.tool import Tool
from aenv.client.platform_client import ApiClient as AEnvSchedulerClient
from aenv.errors import EnvironmentError, ToolError, UnrecoverableEnvironmentError
from aenv.schema.instances import EnvInstance, EnvStatus
from aenv.sdk.environment import Environment, make_mcp_url, split_env_name_version

__all__ = [
    "AEnvSchedulerClient",
    "EnvInstance",
    "EnvStatus",
    "Environment",
    "EnvironmentError",
    "Tool",
    "ToolError",
    "ToolResult",
    "UnrecoverableEnvironmentError",
    "make_mcp_url",
    "split_env_name_version",
]
