"""Requests to the Kubernetes API: the one importer of the client (``kubernetes_asyncio``).

The client does authentication, TLS and connections. Objects are plain JSON here: the client's model classes follow one
version of Kubernetes and refuse some answers of others, and building them costs more than the request.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urlencode, urlsplit

from pydantic_core import from_json

from aenv.errors import CapacityExhausted, ConfigError, Unavailable

try:
    import aiohttp
    from kubernetes_asyncio import client, config
    from kubernetes_asyncio.config.config_exception import ConfigException
except ImportError as error:
    raise ConfigError(
        f"the Kubernetes engine needs the Kubernetes client: {error}",
        {"hint": "Install it with: pip install 'aenvironment[kubernetes]'"},
    ) from error

# It warns of a missing kubeconfig, as the ConfigError below does; Python prints warnings that have no handler.
logging.getLogger("kubernetes_asyncio").addHandler(logging.NullHandler())

REQUEST_SECONDS = 30.0
CONNECT_SECONDS = 10.0
CONNECTIONS = 64
"""Connections to the API server at most. Further requests wait in this process."""
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_OUR_WORDS = {"exceeded quota", "maximum pod count"}


class ApiError(Exception):
    """The API server refused a request; ``answer`` is the HTTP status of its answer. It never leaves the engine."""

    def __init__(self, message: str, answer: int) -> None:
        super().__init__(message)
        self.message = message
        self.answer = answer


class ClusterApi:
    """A connection to one namespace of a cluster."""

    def __init__(self, api_client: Any, namespace: str) -> None:
        self._client = api_client
        self.namespace = namespace

    @classmethod
    async def connect(cls, *, namespace: str = "", context: str = "") -> Self:
        """Connect as the pod's service account, or with the kubeconfig (``KUBECONFIG``, or ~/.kube/config).

        Raises:
            ConfigError: there is no usable configuration.
        """
        settings = client.Configuration()
        settings.connection_pool_maxsize = CONNECTIONS
        try:
            if not context and "KUBECONFIG" not in os.environ and _NAMESPACE_FILE.exists():
                config.load_incluster_config(client_configuration=settings)
                default = _NAMESPACE_FILE.read_text().strip()
            else:
                await config.load_kube_config(context=context or None, client_configuration=settings)
                default = _context_namespace(context)
        except (ConfigException, OSError, ssl.SSLError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"no connection to a Kubernetes cluster is configured: {error}",
                {"hint": "Set KUBECONFIG to a kubeconfig file, or run in a pod with a service account"},
            ) from error
        return cls(client.ApiClient(settings), namespace or default or "default")

    @property
    def server_address(self) -> tuple[str, int]:
        """Host and port of the API server."""
        url = urlsplit(self._client.configuration.host)
        return url.hostname or "localhost", url.port or (443 if url.scheme == "https" else 80)

    async def request(
        self,
        method: str,
        kind: str,
        name: str = "",
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Send a request about objects of the namespace. ``kind``: a key of `_PATHS`.

        Raises:
            ApiError: the API server refused it.
            CapacityExhausted: a quota of the namespace is used up.
            Unavailable: the API server does not answer.
        """
        async with self._answer(method, self._path(kind, name), body, query, REQUEST_SECONDS) as answer:
            found = from_json(await answer.read())
        return found if isinstance(found, dict) else {}

    async def version(self) -> str:
        """Return the version of Kubernetes, such as ``v1.31.2``."""
        async with self._answer("GET", "/version", None, None, REQUEST_SECONDS) as answer:
            return str(from_json(await answer.read()).get("gitVersion"))

    async def may(self, verb: str, group: str, resource: str) -> bool:
        """Return whether this user may do this in the namespace. ``resource``: such as ``pods`` or ``pods/log``."""
        kind, _, part = resource.partition("/")
        asked = {"namespace": self.namespace, "verb": verb, "group": group, "resource": kind, "subresource": part}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        async with self._answer("POST", path, body, None, REQUEST_SECONDS) as answer:
            return bool((from_json(await answer.read()).get("status") or {}).get("allowed"))

    async def log(self, pod: str, container: str, *, tail_bytes: int) -> str:
        """Return the end of a container's output."""
        path = f"{self._path('pods', pod)}/log"
        query = {"container": container, "tailLines": "10000"}
        async with self._answer("GET", path, None, query, REQUEST_SECONDS) as answer:
            data: bytes = await answer.read()
        return data[-tail_bytes:].decode(errors="replace")

    async def watch(self, kind: str, query: Mapping[str, str], seconds: int) -> AsyncIterator[dict[str, Any]]:
        """Iterate over changes until the API server ends the watch, after some ``seconds``."""
        wanted = {**query, "watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
        async with self._answer("GET", self._path(kind, ""), None, wanted, seconds + REQUEST_SECONDS) as answer:
            while line := await answer.content.readline():
                event = from_json(line)
                if event.get("type") == "ERROR":
                    status = event.get("object") or {}
                    raise ApiError(str(status.get("message")), int(status.get("code") or 500))
                yield event

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    def _path(self, kind: str, name: str) -> str:
        path = f"/{_PATHS[kind]}/namespaces/{self.namespace}/{kind}"
        return f"{path}/{quote(name, safe='')}" if name else path

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, body: Any, query: Mapping[str, str] | None, seconds: float
    ) -> AsyncIterator[Any]:
        """Yield the response to a request, if it was accepted."""
        headers = {"Accept": "application/json, text/plain, */*", "Content-Type": "application/json"}
        full = f"{path}?{urlencode(query)}" if query else path
        try:
            answer = await self._client.call_api(
                full, method, header_params=headers, body=body, auth_settings=["BearerToken"], _preload_content=False,
                _request_timeout=aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS),
            )  # fmt: skip
            async with answer:
                if answer.status >= 400:
                    raise _refusal(method, path, answer.status, await answer.read())
                yield answer
        except (aiohttp.ClientError, OSError, TimeoutError, ssl.SSLError) as error:
            host, port = self.server_address
            reason = str(error) or type(error).__name__
            raise Unavailable(f"the Kubernetes API at {host}:{port} does not answer: {reason}") from error


_PATHS = {
    "configmaps": "api/v1",
    "leases": "apis/coordination.k8s.io/v1",
    "networkpolicies": "apis/networking.k8s.io/v1",
    "persistentvolumeclaims": "api/v1",
    "pods": "api/v1",
    "secrets": "api/v1",
}


def _refusal(method: str, path: str, status: int, body: bytes) -> ApiError | CapacityExhausted:
    try:
        message = str(from_json(body).get("message"))
    except (ValueError, AttributeError):
        message = body[:500].decode(errors="replace")
    if status == 403 and any(words in message for words in _OUR_WORDS):
        return CapacityExhausted(f"the cluster has no room for another instance: {message}")
    return ApiError(f"Kubernetes refused {method} {path}: {message} (HTTP status {status})", status)


def _context_namespace(context: str) -> str:
    """Return the namespace of a kubeconfig's context."""
    contexts, active = config.list_kube_config_contexts()
    found = next((each for each in contexts if each["name"] == context), active) if context else active
    return str((found.get("context") or {}).get("namespace") or "")
