"""Earlier import path of the function registry; the code is in ``aenv.authoring.declarations``."""

from aenv.authoring.declarations import (
    Registry,
    get_function_registry,
    register_function,
    register_health,
    register_reward,
)

BaseRegistry = FunctionRegistry = Registry

__all__ = [
    "BaseRegistry",
    "FunctionRegistry",
    "get_function_registry",
    "register_function",
    "register_health",
    "register_reward",
]
