"""Decorators: ``register_tool``, ``register_function``, ``register_reward``, ``register_health``, ``register_tasks``.

They record a function and return it unchanged, so a module that uses them can be imported in a unit test or a
notebook without a server. Schemas and validators are compiled on first use.
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
Kind = Literal["tool", "function", "reward", "health", "tasks"]

HTTP_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
REWARD_ENDPOINT = "/task/reward"
HEALTH_ENDPOINT = "/health"
TASKS_ENDPOINT = "/task/list"


@dataclass(frozen=True, slots=True)
class Declaration:
    """A decorated function."""

    kind: Kind
    name: str
    func: Callable[..., Any]
    description: str | None = None
    """Description given to the decorator; None means that the docstring is used."""
    endpoint: str = ""
    method: str = "POST"
    hidden: bool = False
    """True for a tool that can be called but is not listed to agents."""

    @property
    def where(self) -> str:
        """``file:line`` of the function, for error messages."""
        code = getattr(inspect.unwrap(self.func), "__code__", None)
        if code is None:
            return f"{type(self.func).__module__}.{type(self.func).__qualname__}"
        return f"{code.co_filename}:{code.co_firstlineno}"

    @property
    def is_async(self) -> bool:
        """True if calling the function returns an awaitable."""
        return inspect.iscoroutinefunction(self.func) or inspect.iscoroutinefunction(
            getattr(self.func, "__call__", None)  # noqa: B004 - an object with an async __call__
        )

    def replaces(self, other: Declaration) -> bool:
        """Return whether this is ``other`` defined again, by a module reload or a repeated notebook cell."""
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
    """The declarations of an environment: tools, functions, rewards and health check.

    Code written for 0.1 knows it as the tool registry and as the function registry.
    """

    def __init__(self) -> None:
        self._by_kind: dict[Kind, dict[str, Declaration]] = {
            "tool": {}, "function": {}, "reward": {}, "health": {}, "tasks": {},
        }  # fmt: skip

    def add(self, declaration: Declaration) -> None:
        """Record a declaration.

        Raises:
            ValueError: the name, or a function's endpoint, is already declared elsewhere.
        """
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
        """Tools by name, in order of declaration."""
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

    @property
    def tasks(self) -> dict[str, Declaration]:
        """The function that lists the tasks, by name."""
        return self._by_kind["tasks"]

    def clear(self) -> None:
        """Remove all declarations; for tests."""
        for names in self._by_kind.values():
            names.clear()

    # --- methods of the registries of 0.1

    def register(self, func: F, name: str | None = None, description: str | None = None, hidden: bool = False) -> F:
        """Record a tool."""
        self.add(Declaration("tool", name or _name_of(func), func, description, hidden=hidden))
        return func

    def get_tool(self, name: str) -> Callable[..., Any] | None:
        """Return the function of a tool, or None."""
        declaration = self.tools.get(name)
        return declaration.func if declaration else None

    def get_tool_descriptor(self, name: str) -> Tool | None:
        """Return a tool as agents see it, or None."""
        from aenv.authoring.tool import Tool

        declaration = self.tools.get(name)
        return Tool.of(declaration) if declaration else None

    def list_tools(self) -> list[Tool]:
        """Return all tools, including hidden ones."""
        from aenv.authoring.tool import Tool

        return [Tool.of(declaration) for declaration in self.tools.values()]

    def list_mcp_tools(self) -> list[Any]:
        """Return the tools that are listed to agents, as objects of the MCP SDK."""
        return [tool.get_mcp_tool() for tool in self.list_tools() if not tool.hidden]

    def list_functions(self) -> dict[str, dict[str, Any]]:
        """Return endpoint, method and description of functions, rewards and health checks, by name."""
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

    def list_functions_simple(self) -> dict[str, str]:
        """Return the endpoints of functions, rewards and health checks, by name."""
        return {name: about["endpoint"] for name, about in self.list_functions().items()}

    def register_function(
        self,
        func: F,
        endpoint: str | None = None,
        method: str = "POST",
        name: str | None = None,
        description: str | None = None,
    ) -> F:
        """Record a function."""
        _check(func, "register_function")
        verb = method.upper()
        if verb not in HTTP_METHODS:
            raise ValueError(f"invalid method {method!r}; expected one of {', '.join(HTTP_METHODS)}")
        own_name = name or _name_of(func)
        path = endpoint or f"/functions/{own_name}"
        path = path if path.startswith("/") else f"/{path}"
        self.add(Declaration("function", own_name, func, description, path, verb))
        return func

    def set_server(self, server: object) -> None:
        """Do nothing: declarations need no server. Kept for existing code."""

    def get_server(self) -> None:
        """Return None: there is no server to register with. Kept for existing code."""


_current = Registry()


def get_registry() -> Registry:
    """Return the registry into which the decorators record.

    Example:
        ```python
        for tool in get_registry().list_tools():
            print(tool.name, tool.inputSchema)
        ```
    """
    return _current


get_function_registry = get_registry


@contextmanager
def fresh_registry() -> Iterator[Registry]:
    """Record into a new registry until the end of the block."""
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
    """Make a function a tool, which agents call through MCP and programs with `Environment.call_tool`.

    The input schema comes from the type hints, the descriptions from the docstring and its ``Args:`` section. The
    function may be sync (it runs in a thread) or async. An exception that it raises becomes an error result.

    Args:
        func: The function, when the decorator is used without parentheses.
        name: Name of the tool; by default the function's.
        description: Description for agents; by default the docstring.
        hidden: Do not list the tool to agents. It can still be called by name.

    Raises:
        ValueError: another tool has that name.
        TypeError: the decorated object is not a function.

    Example:
        ```python
        @register_tool
        def add(a: int, b: int = 0) -> int:
            "Add two numbers."
            return a + b
        ```
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
    """Make a function callable over HTTP and with `Environment.call_function`. Agents do not see it.

    Args:
        func: The function, when the decorator is used without parentheses.
        endpoint: HTTP path; by default ``/functions/<name>``.
        method: HTTP method: GET, POST, PUT, PATCH or DELETE. With GET, arguments come from the query string.
        name: Name of the function; by default its Python name.
        description: Description; by default the docstring.

    Raises:
        ValueError: another function has that name or endpoint, or the HTTP method is unknown.
        TypeError: the decorated object is not a function.

    Example:
        ```python
        @register_function
        def reset(seed: int = 0) -> dict:
            return game.reset(seed)
        ```
    """

    def record(f: F) -> F:
        return _current.register_function(f, endpoint, method, name, description)

    return record(func) if func is not None else record


@overload
def register_reward(func: F, /) -> F: ...
@overload
def register_reward(*, name: str | None = None, description: str | None = None) -> Callable[[F], F]: ...
def register_reward(
    func: F | None = None, /, *, name: str | None = None, description: str | None = None
) -> F | Callable[[F], F]:
    """Make a function a reward, which trainers call with `Environment.call_reward`. Agents do not see it.

    The function returns a finite number, or a dict of them. Raise `StateDestroyed` if the agent has destroyed what it
    would be graded on. Any other exception means that there is no reward.

    Args:
        func: The function, when the decorator is used without parentheses.
        name: Name of the reward; by default the function's. With several rewards the caller chooses one by name.
        description: Description; by default the docstring.

    Raises:
        ValueError: another reward has that name.
        TypeError: the decorated object is not a function.

    Example:
        ```python
        @register_reward
        def solved() -> float:
            return 1.0 if game.won else 0.0
        ```
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
    """Make a function the health check, served at ``/health`` and called with `Environment.check_health`.

    Without one, an instance is healthy as soon as its module is imported.

    Args:
        func: The function, when the decorator is used without parentheses.

    Raises:
        ValueError: the environment has another health check.
        TypeError: the decorated object is not a function.

    Example:
        ```python
        @register_health
        def health() -> dict:
            return {"status": "healthy" if database.is_open() else "starting"}
        ```
    """

    def record(f: F) -> F:
        _check(f, "register_health")
        _add_only(Declaration("health", _name_of(f), f, None, HEALTH_ENDPOINT, "GET"), "health check")
        return f

    return record(func) if func is not None else record


@overload
def register_tasks(func: F, /) -> F: ...
@overload
def register_tasks() -> Callable[[F], F]: ...
def register_tasks(func: F | None = None, /) -> F | Callable[[F], F]:
    """Make a function the list of the environment's tasks, for `aenv tasks` and `aenv rollout`. Agents do not see it.

    The function returns or yields rows: dicts with the fields of `Task`, or `Task` objects. It may have parameters,
    such as a split. Rows may come from files below ``private/``, which programs of agents cannot read.

    Args:
        func: The function, when the decorator is used without parentheses.

    Raises:
        ValueError: the environment has another function that lists its tasks.
        TypeError: the decorated object is not a function.

    Example:
        ```python
        @register_tasks
        def tasks():
            for line in private("tasks.jsonl").read_text().splitlines():
                yield json.loads(line)
        ```
    """

    def record(f: F) -> F:
        from aenv.authoring.task_rows import listing

        _check(f, "register_tasks")
        _add_only(Declaration("tasks", _name_of(f), listing(f), None, TASKS_ENDPOINT), "list of tasks")
        return f

    return record(func) if func is not None else record


def _add_only(declaration: Declaration, what: str) -> None:
    """Record a declaration of which an environment can have only one."""
    for other in _current._by_kind[declaration.kind].values():
        if not declaration.replaces(other):
            raise ValueError(
                f"an environment can have only one {what}, and two are declared: "
                f"'{other.name}' at {other.where} and '{declaration.name}' at {declaration.where}"
            )
    _current.add(declaration)


def _name_of(func: Callable[..., Any]) -> str:
    inner = getattr(func, "func", func)  # functools.partial
    return getattr(inner, "__name__", type(inner).__name__)


def _check(func: object, decorator: str) -> None:
    if not callable(func):
        raise TypeError(f"@{decorator} decorates functions, not {func!r}; pass options by name: @{decorator}(name=...)")
    if isinstance(func, staticmethod | classmethod):
        raise TypeError(f"put @{decorator} below @{type(func).__name__}, next to the function")
