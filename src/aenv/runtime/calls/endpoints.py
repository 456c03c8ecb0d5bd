"""The tools, functions and rewards of an environment, compiled for calls."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, TypeGuard

from aenv.authoring.call import Call
from aenv.authoring.content import Content, to_content
from aenv.authoring.declarations import Declaration, Registry
from aenv.authoring.output_schema import is_object
from aenv.authoring.signature import Signature
from aenv.authoring.tool import Tool
from aenv.errors import (
    AEnvError,
    Conflict,
    EnvironmentTimeoutError,
    Fault,
    FunctionFailed,
    InvalidArguments,
    NotFound,
    StateDestroyed,
)
from aenv.runtime.calls.instance_exhaustion import exhausted_resource
from aenv.runtime.calls.workers import Brevity, Workers
from aenv.schema.suggestions import did_you_mean

log = logging.getLogger("aenv.runtime")

OUT_OF_MEMORY = "out of memory: its processes used more than its memory limit"

CALL_TIMEOUT = "AENV_CALL_TIMEOUT"
"""Carries ``timeouts.call`` of config.json into the instance, in seconds."""
COMPATIBILITY = "AENV_COMPATIBILITY"
"""Carries ``compatibility`` of config.json into the instance."""


class CallTimeLimit(EnvironmentTimeoutError):
    """A call took longer than its environment allows."""


class Endpoint:
    """A declared function that can be called with JSON arguments."""

    def __init__(self, declaration: Declaration, workers: Workers) -> None:
        self.declaration = declaration
        self.name = declaration.name
        self.signature = Signature(declaration.func, declaration.where)
        self.description = declaration.description or self.signature.description
        self._workers = workers
        self._is_async = declaration.is_async
        self._brevity = Brevity()

    async def call(self, arguments: dict[str, Any], call: Call) -> Any:
        """Call the function off the server's loop. Its exceptions pass through unchanged."""
        positional, named = self.signature.split(arguments)
        func = self.declaration.func
        if self._is_async:
            return await self._workers.run_async(lambda: func(*positional, **named), call)
        result = await self._workers.run(lambda: func(*positional, **named), call, self._brevity)
        if inspect.isawaitable(result):  # a sync function that returns a coroutine
            pending = result

            async def finish() -> Any:
                return await pending

            return await self._workers.run_async(finish, call)
        return result

    def matches_schema(self, content: Content) -> bool:
        """Return whether the result is an object if its schema says so; clients refuse the answer otherwise."""
        if content.is_error or content.structured is not None:
            return True
        if content.is_json and content.blocks[0]["text"].startswith("{"):
            return True
        schema = self.signature.output_schema  # last: building it can take longer than the call
        return schema is None or not is_object(schema)

    def describe(self) -> dict[str, Any]:
        """Return its entry for ``/functions/list``."""
        schema = self.signature.input_schema
        return {
            "name": self.name,
            "endpoint": self.declaration.endpoint,
            "method": self.declaration.method,
            "description": self.description,
            "parameters": {
                name: {"type": _type_name(prop), "default": prop.get("default")}
                for name, prop in schema["properties"].items()
            },
            "inputSchema": schema,
            "is_async": self.declaration.is_async,
        }


class ToolOutcome:
    """The result of a tool call: always an answer, with the party at fault if it is an error."""

    __slots__ = ("content", "fault")

    def __init__(self, content: Content, fault: Fault | None = None) -> None:
        self.content = content
        self.fault = fault


class EndpointCatalog:
    """The declared tools, functions, rewards and health check of one environment."""

    def __init__(self, registry: Registry) -> None:
        self.workers = Workers()
        self._tools = self._compile(registry.tools)
        self._functions = self._compile(registry.functions)
        self._rewards = self._compile(registry.rewards)
        self._health = self._compile(registry.health)
        self._tasks = self._compile(registry.tasks)
        self.routes = {(e.declaration.method, e.declaration.endpoint): e for e in self._functions.values()}
        self.last_active = time.time()
        self.calls = 0
        """Number of calls of tools, functions and rewards so far."""

    def _compile(self, declarations: dict[str, Declaration]) -> dict[str, Endpoint]:
        return {name: Endpoint(declaration, self.workers) for name, declaration in declarations.items()}

    @property
    def tools(self) -> list[Endpoint]:
        """The tools, in the order of declaration."""
        return list(self._tools.values())

    @property
    def functions(self) -> list[Endpoint]:
        """The functions."""
        return list(self._functions.values())

    @property
    def rewards(self) -> list[Endpoint]:
        """The rewards."""
        return list(self._rewards.values())

    @property
    def health(self) -> list[Endpoint]:
        """The health check, if the environment has one."""
        return list(self._health.values())

    @cached_property
    def listed_tools(self) -> list[Tool]:
        """The tools that agents see."""
        tools = [Tool.of(e.declaration, e.signature) for e in self.tools]
        return [tool for tool in tools if not tool.hidden]

    def check(self) -> None:
        """Build every schema now. Raises LoadError for one that cannot be built."""
        for endpoint in (*self.tools, *self.functions, *self.rewards, *self.health, *self._tasks.values()):
            endpoint.describe()
        self.listed_tools  # noqa: B018

    def input_schema(self, tool: str) -> Mapping[str, Any] | None:
        """Return the input schema of a tool."""
        endpoint = self._tools.get(tool)
        return endpoint.signature.input_schema if endpoint else None

    def output_schema(self, tool: str) -> dict[str, Any] | None:
        """Return the output schema of a tool, if it has one."""
        endpoint = self._tools.get(tool)
        return endpoint.signature.output_schema if endpoint else None

    async def call_tool(self, name: str, read: Callable[[Signature], dict[str, Any]], call: Call) -> ToolOutcome:
        """Call a tool. ``read`` extracts and validates the arguments."""
        self.last_active = time.time()
        self.calls += 1
        endpoint = self._tools.get(name)
        if endpoint is None:
            return _failed(f"Unknown tool: {name}{did_you_mean(name, self._tools)}", "policy")
        try:
            arguments = read(endpoint.signature)
        except InvalidArguments as error:
            return _failed(f"Error calling tool '{name}': invalid arguments: {error.message}", "policy")
        try:
            content = to_content(await self._called(endpoint, arguments, call))
        except CallTimeLimit as error:
            return _failed(f"Error calling tool '{name}': {error.message}", "timeout")
        except Exception as error:
            _log_failure(endpoint, error)
            fault: Fault = error.fault if _is_not_authors(error) else "env"
            return _failed(f"Error calling tool '{name}': {_text(error)}", fault)
        if not endpoint.matches_schema(content):
            return _failed(f"Error calling tool '{name}': it returned something else than its annotation says", "env")
        return ToolOutcome(content)

    async def call_function(self, endpoint: Endpoint, arguments: dict[str, Any], call: Call | None = None) -> Any:
        """Call a function, a reward or a health check. Raises FunctionFailed if the environment's code raises."""
        self.last_active = time.time()
        if endpoint.declaration.kind != "health":
            self.calls += 1
        try:
            return await self._called(endpoint, arguments, call or Call(endpoint.name))
        except CallTimeLimit:
            raise
        except Exception as error:
            _log_failure(endpoint, error)
            if _is_not_authors(error):
                raise
            if endpoint.declaration.kind == "reward":
                _raise_if_agent_at_fault(error)
            raise FunctionFailed(_text(error), details={endpoint.declaration.kind: endpoint.name}) from None

    async def _called(self, endpoint: Endpoint, arguments: dict[str, Any], call: Call) -> Any:
        """Call a function within the time limit that the environment sets, if it sets one."""
        limit = self._limit
        if limit is None or endpoint.declaration.kind == "health":
            return await endpoint.call(arguments, call)
        # Not asyncio.timeout: the server may run this outside of a task.
        task = asyncio.get_running_loop().create_task(endpoint.call(arguments, call))
        try:
            done, _ = await asyncio.wait({task}, timeout=limit)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if done:
            return task.result()
        task.cancel()
        raise CallTimeLimit(
            f"it took longer than the {limit:g} s that this environment allows (timeouts.call)",
            details={"budget": "call", "seconds": limit},
        )

    @cached_property
    def _limit(self) -> float | None:
        """Read at the first call: a pooled instance gets its variables after it was loaded."""
        text = os.environ.get(CALL_TIMEOUT)
        return float(text) if text else None

    def function(self, name: str) -> Endpoint:
        """Return the function of that name."""
        endpoint = self._functions.get(name)
        if endpoint is None:
            known = ", ".join(self._functions) or "none"
            raise NotFound(
                f"no function '{name}' in this environment; there are: {known}{did_you_mean(name, self._functions)}"
            )
        return endpoint

    def reward(self, name: str | None) -> Endpoint:
        """Return the reward of that name. Without a name: the only one; in a project of version 0.1, the first."""
        known = ", ".join(self._rewards)
        if name is not None:
            if name not in self._rewards:
                raise NotFound(f"no reward '{name}' in this environment; there are: {known or 'none'}")
            return self._rewards[name]
        if not self._rewards:
            raise NotFound("this environment declares no reward; mark one with @register_reward")
        if len(self._rewards) > 1 and os.environ.get(COMPATIBILITY) != "0.1":
            raise Conflict(f"this environment has several rewards; name one of: {known}")
        return next(iter(self._rewards.values()))

    def task_list(self) -> Endpoint:
        """Return the function that lists the tasks."""
        for endpoint in self._tasks.values():
            return endpoint
        raise NotFound("this environment declares no tasks; mark the function that lists them with @register_tasks")


def _failed(text: str, fault: Fault) -> ToolOutcome:
    return ToolOutcome(Content([{"type": "text", "text": text}], is_error=True), fault)


def _log_failure(endpoint: Endpoint, error: BaseException) -> None:
    """Log the traceback, from the first line of the environment's code on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(("aenv.", "asyncio.")):
        trace = trace.tb_next
    exc_info = (type(error), error, trace)
    log.error("%s %s raised %s", endpoint.declaration.kind, endpoint.name, type(error).__name__, exc_info=exc_info)


def _raise_if_agent_at_fault(error: BaseException) -> None:
    """Raise StateDestroyed if a reward failed because of state that the agent destroyed or resources that it used
    up.
    """
    if isinstance(error, StateDestroyed):
        raise error
    lacking = exhausted_resource(error)
    if lacking is not None:
        raise StateDestroyed(f"the instance has no {lacking} left: {_text(error)}") from None


def _is_not_authors(error: BaseException) -> TypeGuard[AEnvError]:
    """Return whether another party is at fault: an environment that this one calls, or a simulated user."""
    return isinstance(error, AEnvError) and error.fault in ("infra", "user")


def _text(error: BaseException) -> str:
    """Return an exception's text, with the class where that alone says little: str(KeyError('id')) is only 'id'."""
    try:
        text = str(error).encode(errors="replace").decode()
    except Exception:  # a __str__ of the environment's code
        text = ""
    if isinstance(error, MemoryError):  # where no control group ends the process first
        return f"{OUT_OF_MEMORY} ({text})" if text else OUT_OF_MEMORY
    if isinstance(error, KeyError) or not text:
        return f"{type(error).__name__}: {text}".removesuffix(": ")
    return text


def _type_name(schema: Mapping[str, Any]) -> str:
    if "type" in schema:
        return str(schema["type"])
    return "any" if "anyOf" not in schema and "$ref" not in schema else "object"
