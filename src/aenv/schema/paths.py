"""URL paths, said once for clients and servers."""

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
"""``/port/8000`` becomes the way to a port in the instance's own network."""
ARCHIVE = "/archive"
"""A folder as a tar, of any size."""
SETTLE = "/aenv/settle"
"""Gives an instance that was made for nobody in particular the variables of who is to have it."""
STATS = "/aenv/stats"
"""How often it was called."""

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
"""Names the server that passed a request on: who gets it answers for its own instances and passes it on no further."""

INSTANCE_HEADER = "AEnvCore-EnvInstance-ID"
PROXY_HEADER = "AEnvCore-MCPProxy-URL"

DATA_PORT = 8081
CONTROL_PORT = 8080

STANDARD = "/aenvironment/instance"
"""Of a service that makes instances for a platform."""

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
"""The user, percent-encoded, whose rights a reading request is narrowed to: a platform asks so for its callers."""
OPENAPI = "/openapi.json"
HUB_PORT = 8083
