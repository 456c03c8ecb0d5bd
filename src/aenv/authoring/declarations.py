"""The decorators that make functions an environment.

They only record, and hand the function back unchanged: a module full of them imports in a unit test or a
notebook with no server anywhere. What is recorded is compiled (schemas, validators) when something asks.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

if TYPE_CHECKING:
    from aenv.authoring.tool import Tool

F = TypeVar("F", bound=Callable[..., Any])
Kind = Literal["tool", "function", "reward", "health"]

HTTP_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
REWARD_ENDPOINT = "/task/reward"
HEALTH_ENDPOINT = "/health"


@dataclass(frozen=True, slots=True)
class Declaration:
    """One decorated function."""

    kind: Kind
    name: str
    func: Callable[..., Any]
    description: str | None = None
    """As given to the decorator; None means that the docstring speaks."""
    endpoint: str = ""
    method: str = "POST"
    hidden: bool = False
    """Callable, but not listed to agents."""

    @property
    def where(self) -> str:
        """``file:line`` of the function."""
        code = getattr(inspect.unwrap(self.func), "__code__", None)
        if code is None:
            return f"{type(self.func).__module__}.{type(self.func).__qualname__}"
        return f"{code.co_filename}:{code.co_firstlineno}"

    @property
    def is_async(self) -> bool:
        """Whether calling it gives something to await."""
        return inspect.iscoroutinefunction(self.func) or inspect.iscoroutinefunction(
            getattr(self.func, "__call__", None)  # noqa: B004 - an object with an async __call__
        )

    def replaces(self, other: Declaration) -> bool:
        """Whether this is ``other`` defined again: a reloaded module or a notebook cell run twice."""
        mine, theirs = inspect.unwrap(self.func), inspect.unwrap(other.func)
        same_name = (getattr(mine, "__module__", 1), getattr(mine, "__qualname__", 1)) == (
            getattr(theirs, "__module__", 2),
            getattr(theirs, "__qualname__", 2),
        )
        interactive = getattr(mine, "__module__", "") == "__main__" and (
            hasattr(sys, "ps1") or "ipykernel" in sys.modules
        )
        return same_name and (interactive or self.where == other.where)


class Registry:
    """What an environment declares. Existing code knows it as the tool registry and the function registry."""

    def __init__(self) -> None:
        self._by_kind: dict[Kind, dict[str, Declaration]] = {
            "tool": {}, "function": {}, "reward": {}, "health": {},
        }  # fmt: skip

    def add(self, declaration: Declaration) -> None:
        """Record it; ValueError when the name, or a function's endpoint, is taken."""
        names = self._by_kind[declaration.kind]
        other = names.get(declaration.name)
        if other is not None and not declaration.replaces(other):
            raise ValueError(
                f"{declaration.kind} '{declaration.name}' is declared twice: "
                f"first at {other.where}, again at {declaration.where}; give one of them another name"
            )
        if declaration.kind == "function":
            for taken in names.values():
                if taken is not other and (taken.endpoint, taken.method) == (
                    declaration.endpoint,
                    declaration.method,
                ):
                    raise ValueError(
                        f"{declaration.method} {declaration.endpoint} is declared twice: by function "
                        f"'{taken.name}' at {taken.where} and by '{declaration.name}' at {declaration.where}"
                    )
        names[declaration.name] = declaration

    @property
    def tools(self) -> dict[str, Declaration]:
        """Tools by name, in the order of declaration."""
        return self._by_kind["tool"]

    @property
    def functions(self) -> dict[str, Declaration]:
        """Functions by name."""
        return self._by_kind["function"]

    @property
    def rewards(self) -> dict[str, Declaration]:
        """Rewards by name."""
        return self._by_kind["reward"]

    @property
    def health(self) -> dict[str, Declaration]:
        """Health checks by name."""
        return self._by_kind["health"]

    def clear(self) -> None:
        """Forget everything; for tests."""
        for names in self._by_kind.values():
            names.clear()

    # The methods below are what existing code calls.

    def register(self, func: F, name: str | None = None, description: str | None = None, hidden: bool = False) -> F:
        """Record a tool."""
        self.add(Declaration("tool", name or _name_of(func), func, description, hidden=hidden))
        return func

    def get_tool(self, name: str) -> Callable[..., Any] | None:
        """The tool's function."""
        declaration = self.tools.get(name)
        return declaration.func if declaration else None

    def get_tool_descriptor(self, name: str) -> Tool | None:
        """The tool as agents see it."""
        from aenv.authoring.tool import Tool

        declaration = self.tools.get(name)
        return Tool.of(declaration) if declaration else None

    def list_tools(self) -> list[Tool]:
        """All tools, hidden ones too."""
        from aenv.authoring.tool import Tool

        return [Tool.of(declaration) for declaration in self.tools.values()]

    def list_mcp_tools(self) -> list[Any]:
        """The tools that agents are shown, as objects of the MCP SDK."""
        return [tool.get_mcp_tool() for tool in self.list_tools() if not tool.hidden]

    def list_functions(self) -> dict[str, dict[str, Any]]:
        """Functions, rewards and health checks by name."""
        return {
            declaration.name: {
                "endpoint": declaration.endpoint,
                "method": declaration.method,
                "description": declaration.description or inspect.getdoc(declaration.func),
                "is_async": declaration.is_async,
            }
            for names in (self.functions, self.rewards, self.health)
            for declaration in names.values()
        }


_current = Registry()


def get_registry() -> Registry:
    """The registry that decorators record into."""
    return _current


get_function_registry = get_registry


@contextmanager
def fresh_registry() -> Iterator[Registry]:
    """Record into a new registry for the length of the block."""
    global _current
    before, _current = _current, Registry()
    try:
        yield _current
    finally:
        _current = before


@overload
def register_tool(func: F, /) -> F: ...
@overload
def register_tool(
    *, name: str | None = None, description: str | None = None, hidden: bool = False
) -> Callable[[F], F]: ...
def register_tool(
    func: F | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    hidden: bool = False,
) -> F | Callable[[F], F]:
    """Make a function a tool that agents call through MCP.

    Parameters and their descriptions come from the signature and the docstring's ``Args:`` section.
    """

    def record(f: F) -> F:
        _check(f, "register_tool")
        return _current.register(f, name, description, hidden)

    return record(func) if func is not None else record


@overload
def register_function(func: F, /) -> F: ...
@overload
def register_function(
    *,
    endpoint: str | None = None,
    method: str = "POST",
    name: str | None = None,
    description: str | None = None,
) -> Callable[[F], F]: ...
def register_function(
    func: F | None = None,
    /,
    *,
    endpoint: str | None = None,
    method: str = "POST",
    name: str | None = None,
    description: str | None = None,
) -> F | Callable[[F], F]:
    """Make a function reachable over HTTP and by ``call_function``; agents do not see it.

    ``endpoint`` defaults to ``/functions/<name>``. With GET, arguments come from the query string.
    """

    def record(f: F) -> F:
        _check(f, "register_function")
        verb = method.upper()
        if verb not in HTTP_METHODS:
            raise ValueError(f"method={method!r}: use one of {', '.join(HTTP_METHODS)}")
        own_name = name or _name_of(f)
        path = endpoint or f"/functions/{own_name}"
        path = path if path.startswith("/") else f"/{path}"
        _current.add(Declaration("function", own_name, f, description, path, verb))
        return f

    return record(func) if func is not None else record


@overload
def register_reward(func: F, /) -> F: ...
@overload
def register_reward(*, name: str | None = None, description: str | None = None) -> Callable[[F], F]: ...
def register_reward(
    func: F | None = None, /, *, name: str | None = None, description: str | None = None
) -> F | Callable[[F], F]:
    """Make a function a reward, computed by ``call_reward``.

    With several rewards the caller chooses one by name.
    """

    def record(f: F) -> F:
        _check(f, "register_reward")
        _current.add(Declaration("reward", name or _name_of(f), f, description, REWARD_ENDPOINT))
        return f

    return record(func) if func is not None else record


@overload
def register_health(func: F, /) -> F: ...
@overload
def register_health() -> Callable[[F], F]: ...
def register_health(func: F | None = None, /) -> F | Callable[[F], F]:
    """Make a function the health check, which answers ``/health`` and ``check_health``."""

    def record(f: F) -> F:
        _check(f, "register_health")
        declaration = Declaration("health", _name_of(f), f, None, HEALTH_ENDPOINT, "GET")
        for other in _current.health.values():
            if not declaration.replaces(other):
                raise ValueError(
                    "an environment has one health check, and two are declared: "
                    f"'{other.name}' at {other.where} and '{declaration.name}' at {declaration.where}"
                )
        _current.add(declaration)
        return f

    return record(func) if func is not None else record


def _name_of(func: Callable[..., Any]) -> str:
    inner = getattr(func, "func", func)  # functools.partial
    return getattr(inner, "__name__", type(inner).__name__)


def _check(func: object, decorator: str) -> None:
    if not callable(func):
        raise TypeError(f"@{decorator} goes on a function, not on {func!r}; options go by name: @{decorator}(name=...)")
    if isinstance(func, staticmethod | classmethod):
        raise TypeError(f"put @{decorator} below @{type(func).__name__}, next to the function")
