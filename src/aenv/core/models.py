"""Names that existing code imports from here."""

from aenv.schema.instance import (
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
