"""URL paths, header names and ports shared by clients and servers."""

# an instance
MCP = "/mcp"
HEALTH = "/health"
TOOLS = "/tools"
FUNCTIONS = "/functions"
FUNCTION_LIST = "/functions/list"
REWARD = "/task/reward"
EXEC = "/exec"
FILES = "/files"
PORT = "/port"
"""``/port/8000`` forwards to a port in the instance's own network."""
ARCHIVE = "/archive"
"""Transfers a folder as a tar stream of any size."""
SETTLE = "/aenv/settle"
"""Gives a pooled instance the variables of the request that it is assigned to."""
STATS = "/aenv/stats"
"""Call counts of an instance."""

REWARD_QUERY = "reward"
"""``POST /task/reward?reward=NAME`` chooses one of several rewards."""
TIMEOUT_QUERY = "timeout"
"""``POST /task/reward?timeout=60``: seconds for which the caller waits."""

# the platform
INSTANCES = "/env-instance"
SERVICES = "/env-service"
INSTANCE_PATH = "/instance"
"""``/instance/ID/mcp`` is an instance's ``/mcp`` through the gateway."""
SERVICE_PATH = "/service"
"""``/service/ID/mcp`` is the ``/mcp`` of one of a service's replicas through the gateway."""
METRICS = "/metrics"
PLATFORM_TOKENS = "/tokens"
READY = "/ready"
LEASE = "/lease"
LEASE_HEADER = "aenv-lease"
PEER_HEADER = "aenv-peer"
"""Names the server that forwarded a request. The receiver answers for its own instances and does not forward again."""

INSTANCE_HEADER = "AEnvCore-EnvInstance-ID"
PROXY_HEADER = "AEnvCore-MCPProxy-URL"

DATA_PORT = 8081
CONTROL_PORT = 8080

STANDARD = "/aenvironment/instance"
"""Base path of the standard engine contract: a service that creates instances for a platform."""

# the hub
ENVIRONMENTS = "/api/v1/environments"
SEARCH = "/api/v1/search"
BLOBS = "/api/v1/blobs"
TOKENS = "/api/v1/tokens"
WEBHOOKS = "/api/v1/webhooks"
NAMESPACES = "/api/v1/namespaces"
USAGE = "/api/v1/usage"
QUOTAS = "/api/v1/quotas"
BEHALF_HEADER = "aenv-on-behalf-of"
"""Percent-encoded user whose rights limit a read request; a platform sends it for its callers."""
OPENAPI = "/openapi.json"
HUB_PORT = 8083
