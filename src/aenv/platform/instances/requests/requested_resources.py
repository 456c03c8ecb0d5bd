"""CPU, memory, storage and GPUs that a create request asks for, in place of those in config.json."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from aenv.engines.base import Engine, Resource
from aenv.errors import UsageError
from aenv.isolation.limits.cgroups import Limits
from aenv.project.manifest import Manifest
from aenv.schema import quantities
from aenv.schema.instances import EnvInstanceCreateRequest, InstanceResources

_TELL_APART = frozenset(
    f"{what}_{end}" for what in ("cpu", "memory", "ephemeral_storage") for end in ("request", "limit")
)
"""Keys of deployConfig that set the amount to reserve apart from the limit."""


def refuse_unsupported(request: EnvInstanceCreateRequest, engine: Engine) -> None:
    """Raise UsageError for a resource whose amount this engine cannot set for one instance."""
    able = engine.adjustable()
    for name, amount in requested(request).items():
        if name not in able:
            can = f"it can set: {', '.join(sorted(able))}" if able else "it can set none"
            raise UsageError(f"{name}: this platform's engine cannot give an instance {amount}; {can}")


def requested(request: EnvInstanceCreateRequest) -> dict[Resource, str | int]:
    """Return the resources that the request asks for, by name."""
    found: dict[Resource, str | int | None] = {
        "cpu": request.cpu,
        "memory": request.memory,
        "storage": request.storage,
        "gpu": request.gpu,
    }
    return {name: amount for name, amount in found.items() if amount is not None}


def apply_requested(request: EnvInstanceCreateRequest, limits: Limits) -> Limits:
    """Return the limits with the request's amounts in place of the environment's.

    Raises:
        UsageError: an amount is invalid.
    """
    cpu = _parsed("cpu", request.cpu, quantities.millicores)
    memory = _parsed("memory", request.memory, quantities.size)
    disk = _parsed("storage", request.storage, quantities.size)
    return replace(
        limits,
        cpus=limits.cpus if cpu is None else cpu / 1000,
        memory=limits.memory if memory is None else memory,
        disk=limits.disk if disk is None else disk,
    )


def fit_files_in_memory(request: EnvInstanceCreateRequest, limits: Limits, engine: Engine) -> Limits:
    """Return the limits with at most half of the memory for files, on an engine that keeps files in memory.

    Files count against the memory limit there. Without this bound, a program that fills the file system would not get
    ENOSPC: the kernel would end processes of the instance.

    Raises:
        UsageError: the request itself asks for more.
    """
    most = limits.memory // 2
    if limits.disk <= most or engine.capabilities.storage_media != {"memory"}:
        return limits
    if request.storage is not None:
        raise UsageError(
            f"storage: files of an instance live in its memory here, so they get at most half of it, {most >> 20}Mi; "
            f"ask for more memory, or for less storage than {request.storage}"
        )
    return replace(limits, disk=most)


def reported(request: EnvInstanceCreateRequest, limits: Limits) -> InstanceResources | None:
    """Return what the instance got, if the request asked for any resource: so its client knows that it was heard."""
    if not requested(request):
        return None
    return InstanceResources(cpu=limits.cpus, memory=limits.memory, storage=limits.disk, gpu=request.gpu or 0)


def reserved(request: EnvInstanceCreateRequest, manifest: Manifest, limits: Limits) -> Limits | None:
    """Return the amounts to reserve, where config.json tells them from the limits with the deprecated keys.

    An amount of the request is both. None: all amounts are the limits.
    """
    if _TELL_APART.isdisjoint(manifest.deploy_config.model_fields_set):
        return None
    declared = manifest.resources()
    cpus = quantities.millicores(declared.cpu.request) / 1000
    memory, disk = quantities.size(declared.memory.request), quantities.size(declared.ephemeral_storage.request)
    return replace(
        limits,
        cpus=min(cpus, limits.cpus) if request.cpu is None else limits.cpus,
        memory=min(memory, limits.memory) if request.memory is None else limits.memory,
        disk=min(disk, limits.disk) if request.storage is None else limits.disk,
    )


def _parsed(name: str, amount: str | None, parse: Callable[[str], int]) -> int | None:
    if amount is None:
        return None
    try:
        return parse(amount)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None
