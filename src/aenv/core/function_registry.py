"""Names that existing code imports from here."""

from aenv.core.declarations import (
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
