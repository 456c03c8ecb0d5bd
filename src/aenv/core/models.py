"""Earlier import path of the wire models; the code is in ``aenv.schema.instances``."""

from aenv.schema.instances import (
    Address,
    APIError,
    APIResponse,
    Env,
    EnvInstance,
    EnvInstanceCreateRequest,
    EnvInstanceListResponse,
    EnvService,
    EnvServiceCreateRequest,
    EnvServiceListResponse,
    EnvServiceUpdateRequest,
    EnvStatus,
    ServiceStatus,
)

__all__ = [
    "APIError",
    "APIResponse",
    "Address",
    "Env",
    "EnvInstance",
    "EnvInstanceCreateRequest",
    "EnvInstanceListResponse",
    "EnvService",
    "EnvServiceCreateRequest",
    "EnvServiceListResponse",
    "EnvServiceUpdateRequest",
    "EnvStatus",
    "ServiceStatus",
]
