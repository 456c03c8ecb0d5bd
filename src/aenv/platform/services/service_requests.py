"""Fields of service requests: checks, defaults and conversions."""

from __future__ import annotations

import hashlib
import re
import secrets

from aenv.errors import InvalidArguments
from aenv.platform.instances.instance_record import Replica
from aenv.project.locate import Located
from aenv.schema import paths, quantities
from aenv.schema.instances import EnvServiceCreateRequest, EnvServiceUpdateRequest
from aenv.schema.names import check_name

MAX_REPLICAS = 1000
"""Replicas of one service."""
MAX_NAME_LENGTH = 63
_IMAGE = re.compile(r"(?:.*/)?(?P<name>[a-z0-9-]+)[:@](?P<version>[0-9A-Za-z.+-]+)")


def env_of(project: Located, requested: str) -> str:
    """Return a project's ``name@version``; ``requested`` if it has no config.json."""
    if project.loaded is None:
        return requested
    manifest = project.loaded.manifest
    return f"{manifest.name}@{manifest.version}"


def service_name(given: str | None, env: str, seed: str) -> str:
    """Return the given name, checked; else a generated one. ``seed``: the same seed gives the same name."""
    if given is None:
        end = hashlib.sha256(seed.encode()).hexdigest()[:8] if seed else secrets.token_hex(4)
        return f"{env.partition('@')[0][: MAX_NAME_LENGTH - 13]}-svc-{end}"
    try:
        check_name(given)
    except ValueError as error:
        raise InvalidArguments(f"service_name: {error}") from None
    if len(given) > MAX_NAME_LENGTH:
        raise InvalidArguments(f"service_name: at most {MAX_NAME_LENGTH} characters")
    return given


def check_replicas(count: int, least: int = 1) -> int:
    """Return the number of replicas, if it is valid."""
    if not least <= count <= MAX_REPLICAS:
        raise InvalidArguments(f"replicas: must be between {least} and {MAX_REPLICAS}, not {count}")
    return count


def check_port(port: int | None) -> int | None:
    """Return the port that a service's URL leads to; None for the environment's own server."""
    if port is not None and not 1 <= port <= 65535:
        raise InvalidArguments(f"port: must be between 1 and 65535, not {port}")
    return None if port == paths.DATA_PORT else port


def replica_settings(request: EnvServiceCreateRequest) -> Replica:
    """Return the resource limits of a request. A resource request counts as the limit if there is none."""
    try:
        cpu = request.cpu_limit or request.cpu_request
        memory = request.memory_limit or request.memory_request
        disk = request.ephemeral_storage_limit or request.ephemeral_storage_request
        return Replica(
            cpus=quantities.millicores(cpu) / 1000 if cpu else None,
            memory=quantities.size(memory) if memory else None,
            disk=quantities.size(disk) if disk else None,
        )
    except ValueError as error:
        raise InvalidArguments(str(error)) from None


def check_size(field: str, text: str) -> str:
    """Return a size as it is written, if it is valid."""
    try:
        quantities.size(text)
    except ValueError as error:
        raise InvalidArguments(f"{field}: {error}") from None
    return text


def updated_env(env: str, request: EnvServiceUpdateRequest, *, runs_images: bool = False) -> str:
    """Return the ``name@version`` that an update asks for, by its version or its image; else the present one.

    ``runs_images``: the engine runs images, which decides the advice for an image of something else.
    """
    name, _, version = env.partition("@")
    if request.image is not None:
        found = _IMAGE.fullmatch(request.image)
        if found is None or found["name"] != name:
            raise InvalidArguments(
                f"image: this service runs {name}; name a version of it, like {name}:1.0.1, not '{request.image}'",
                details={"hint": _other_image(request.image, runs_images=runs_images)},
            )
        version = found["version"]
    return f"{name}@{request.version or version}"


def _other_image(image: str, *, runs_images: bool) -> str:
    """Return how a service comes to run an image that is no version of its environment."""
    if runs_images:
        entry = f'"artifacts": [{{"type": "image", "content": "{image}"}}]'
        first = f"To run another image, add {entry} to config.json"
    else:
        first = (
            "This platform runs an image as the system below an environment: on its machine, run "
            f"'docker save -o image.tar {image}' and 'aenv base add BASE image.tar', and set \"base\": \"BASE\" in "
            "deployConfig of config.json"
        )
    return f"{first}. Then publish it as a new version with 'aenv push', and update the service with --version"
