"""The requests of the Docker Engine API that the engine needs, over the daemon's unix socket.

Paths have no version: a daemon then answers in its newest one, and refuses old ones sooner or later. Everything used
here is the same in all of them, and in Podman's.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from pydantic_core import from_json, to_json

from aenv.errors import ConfigError, ImageUnavailable, NetworkError, Unavailable
from aenv.http.client import ConnectFailed, HttpClient
from aenv.http.url import ServerUrl

REQUEST_SECONDS = 60.0
PULL_SECONDS = 3600.0
_DEFAULT_REGISTRY = "https://index.docker.io/v1/"


class DockerError(Exception):
    """The daemon refused a request; ``answer`` is the HTTP status of its answer. It never leaves the engine."""

    def __init__(self, message: str, answer: int) -> None:
        super().__init__(message)
        self.message = message
        self.answer = answer


class DockerApi:
    """A connection to one daemon."""

    def __init__(self, socket: str) -> None:
        self._url = ServerUrl.parse(f"unix:{socket}")
        self._socket = socket
        self._client = HttpClient(self._url)

    def close(self) -> None:
        """Close the connection. Requests in flight fail."""
        self._client.close()

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        timeout: float | None = REQUEST_SECONDS,
        client: HttpClient | None = None,
        query: Mapping[str, str] | None = None,
    ) -> bytes:
        """Send a request and return the body of the response. ``body``: bytes, or a value to send as JSON.

        Raises:
            DockerError: the daemon refused it.
            Unavailable: the daemon does not answer.
        """
        where = f"{path}?{urlencode(query)}" if query else path
        data = body if body is None or isinstance(body, bytes) else to_json(body)
        try:
            answer = await (client or self._client).request(method, where, data, timeout=timeout)
        except ConnectFailed as error:
            raise Unavailable(
                f"no container engine answers at {self._socket}: {error.message}",
                details={"hint": "Start Docker (or 'podman system service'), or set DOCKER_HOST=unix:///PATH"},
            ) from error
        except NetworkError as error:
            raise Unavailable(f"the container engine at {self._socket} did not answer: {error.message}") from error
        if answer.status >= 400:
            raise DockerError(_message(answer.body), answer.status)
        return answer.body

    async def get(self, path: str, **query: str) -> Any:
        """Return the JSON of a response."""
        return from_json(await self.request("GET", path, query=query))

    async def containers(self, **labels: str) -> list[dict[str, Any]]:
        """Return all containers with these labels, ended ones too. An empty value: whatever the label says."""
        wanted = [f"{key}={value}" if value else key for key, value in labels.items()]
        found = await self.get("/containers/json", all="true", filters=json.dumps({"label": wanted}))
        return list(found)

    async def remove(self, container: str) -> None:
        """End and remove a container. Idempotent."""
        try:
            await self.request("DELETE", f"/containers/{container}", query={"force": "true", "v": "true"})
        except DockerError as error:
            if error.answer not in (404, 409):  # 409: its removal is under way
                raise

    async def pull(self, image: str) -> None:
        """Pull an image.

        Raises:
            ImageUnavailable: it cannot be pulled.
        """
        headers = [("X-Registry-Auth", token)] if (token := _credentials(image)) else []
        client = HttpClient(self._url, headers=headers)
        try:
            lines = await self.request(
                "POST",
                "/images/create",
                b"",
                query={"fromImage": _with_tag(image)},
                client=client,
                timeout=PULL_SECONDS,
            )
        except DockerError as error:
            raise ImageUnavailable(f"image {image} cannot be pulled: {error.message}") from error
        finally:
            client.close()
        for line in lines.splitlines():
            problem = from_json(line).get("error") if line.strip() else None
            if problem:
                raise ImageUnavailable(f"image {image} cannot be pulled: {problem}")


def container_path(name: str, *rest: str) -> str:
    """Return the path of a container, or of something of it."""
    return "/".join(("/containers", quote(name, safe=""), *rest))


def _message(body: bytes) -> str:
    try:
        found = from_json(body)
        return str(found.get("message") or found.get("cause") or found)
    except (ValueError, AttributeError):
        return body.decode(errors="replace").strip() or "no reason was given"


def _with_tag(image: str) -> str:
    """Return the image with a tag: without one, Docker pulls all tags."""
    return image if "@" in image or ":" in image.rpartition("/")[2] else f"{image}:latest"


def _registry(image: str) -> str:
    first, separator, _ = image.partition("/")
    named = bool(separator) and ("." in first or ":" in first or first == "localhost")
    return first if named else _DEFAULT_REGISTRY


def _credentials(image: str) -> str:
    """Return the value of X-Registry-Auth from ~/.docker/config.json; empty if that has nothing for the registry.

    Raises:
        ConfigError: the file cannot be read.
    """
    path = Path.home() / ".docker" / "config.json"
    try:
        known = json.loads(path.read_bytes()).get("auths") or {}
        entry = known.get(_registry(image)) or {}
        user, _, password = base64.b64decode(entry.get("auth", "")).decode().partition(":")
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"the registry's credentials cannot be read from {path}: {error}") from error
    if not user:
        return ""
    login = {"username": user, "password": password, "serveraddress": _registry(image)}
    return base64.urlsafe_b64encode(json.dumps(login).encode()).decode()
