"""The routes of an instance: MCP for every agent, plain JSON over HTTP for our SDK and for existing clients."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Any, Protocol
from urllib.parse import parse_qsl

from pydantic_core import from_json, to_json

from aenv.authoring.call import Call, Progress
from aenv.authoring.content import dump, dump_finite
from aenv.authoring.signature import Signature
from aenv.errors import (
    AEnvError,
    FunctionFailed,
    InvalidArguments,
    NotFound,
    Unauthorized,
    problem,
)
from aenv.http.guard import refuse_web_pages
from aenv.http.messages import MAX_ANSWER, Answer, ASGIApp, Request, Response, Stream, Timing
from aenv.runtime.calls import reward_deadline
from aenv.runtime.calls.endpoints import OUT_OF_MEMORY, Endpoint, EndpointCatalog
from aenv.runtime.calls.progress_stream import progress_stream
from aenv.runtime.sandbox_routes import SandboxRoutes
from aenv.schema import paths
from aenv.tracing.context import HEADER, SpanContext

_TOOL_PREFIX = paths.TOOLS + "/"
_FUNCTION_PREFIX = paths.FUNCTIONS + "/"
_NO_MEMORY = to_json(
    {"success": False, "error": OUT_OF_MEMORY, "code": FunctionFailed.code, "fault": FunctionFailed.fault}
)
"""Made ahead: there may be no memory for it when it is needed."""
_PROGRESS = paths.PROGRESS_QUERY.encode()


TakeVariables = Callable[[dict[str, str]], None]
"""Sets the variables of the request that a pooled instance is given to."""


class McpApp(Protocol):
    """The MCP endpoint, which is imported on first use."""

    async def ready(self) -> ASGIApp:
        """Return the ASGI application, once its session manager runs."""
        ...


class App:
    """Answers the requests that reach one instance."""

    def __init__(
        self,
        catalog: EndpointCatalog,
        mcp: McpApp,
        *,
        token: str | None = None,
        only_loopback: bool = True,
        no_pages: bool = False,
        inside: SandboxRoutes | None = None,
    ) -> None:
        self.catalog = catalog
        self._inside = inside
        self._take_variables: TakeVariables | None = None
        self._mcp = mcp
        self._bearer = b""
        self._only_loopback = only_loopback
        self._no_pages = no_pages
        if token:
            self.lock(token)
        self._fixed: dict[tuple[str, str], Callable[[Request], Awaitable[Answer]]] = {
            ("GET", paths.HEALTH): self._health,
            ("GET", paths.TOOLS): self._list_tools,
            ("GET", paths.FUNCTION_LIST): self._list_functions,
            ("GET", paths.STATS): self._stats,
            ("POST", paths.SETTLE): self._set_variables,
            ("POST", paths.REWARD): self._reward,
            ("POST", paths.TASK_LIST): self._list_tasks,
        }
        self._task_rows: tuple[bytes, list[dict[str, Any]]] | None = None  # of the last arguments

    def lock(self, token: str, take_variables: TakeVariables | None = None) -> None:
        """Require this token from now on. ``take_variables``: called once, with variables that come later."""
        self._bearer = f"Bearer {token}".encode()
        self._take_variables = take_variables

    async def __call__(self, request: Request) -> Answer:
        """Answer one request. An `AEnvError` becomes its JSON; the server answers other exceptions."""
        try:
            self.authorise(request)
            traced = request.header(HEADER)
            return await (self._timed(request, traced) if traced else self._route(request))
        except AEnvError as error:
            return Response(error.status, _problem(error))
        except MemoryError:
            return Response(500, _NO_MEMORY)

    def authorise(self, request: Request) -> None:
        """Raise Unauthorized if a request may not be answered."""
        if self._bearer:
            given = request.header(b"authorization")
            if not hmac.compare_digest(given, self._bearer) and request.path != paths.HEALTH:
                raise Unauthorized("send this instance's token as 'Authorization: Bearer <token>'")
        elif self._only_loopback:
            refuse_web_pages(request, "Start with a token (AENV_TOKEN) to be reached under other names.")
        elif self._no_pages:
            refuse_web_pages(request, "Start with a token (AENV_TOKEN) to serve web pages.", names=(b"origin",))

    async def _timed(self, request: Request, traced: bytes) -> Answer:
        """Answer a request that is traced: the sandbox records no spans, so the answer has the durations."""
        place = SpanContext.parse(traced)
        if place is None or not place.sampled:
            return await self._route(request)
        timing = request.timing = Timing(place)
        try:
            answer = await self._route(request)
        except AEnvError as error:
            answer = Response(error.status, _problem(error))
        if isinstance(answer, Response):
            answer.headers += timing.header()
        return answer

    async def _route(self, request: Request) -> Answer:
        """Dispatch a request: a tool, MCP, a fixed route, a function, or a route of the sandbox itself."""
        method, path = request.method, request.path
        if method == "POST" and path.startswith(_TOOL_PREFIX):
            return await self._tool(path[len(_TOOL_PREFIX) :], request)
        if path == paths.MCP:
            return Stream(await self._mcp.ready())
        fixed = self._fixed.get((method, path))
        if fixed is not None:
            return await fixed(request)
        endpoint = self.catalog.routes.get((method, path))
        if endpoint is None and method == "POST" and path.startswith(_FUNCTION_PREFIX):
            # A function with its own endpoint can be called by its name as well: the SDK knows only names.
            endpoint = self.catalog.function(path[len(_FUNCTION_PREFIX) :])
        if endpoint is not None:
            return await self._function(endpoint, request)
        answer = await self._inside.answer(request) if self._inside is not None else None
        if answer is not None:
            return answer
        raise NotFound(f"nothing at {method} {path}; see GET {paths.FUNCTION_LIST} and GET {paths.TOOLS}")

    async def _set_variables(self, request: Request) -> Response:
        take, self._take_variables = self._take_variables, None
        if take is None:
            raise NotFound("this instance has its variables")
        take(from_json(request.body))
        return Response(200, b'{"success":true,"data":null}')

    async def _tool(self, name: str, request: Request) -> Answer:
        if request.query == _PROGRESS:

            async def run(report: Progress) -> bytes:
                return (await self._tool_result(name, request, Call(name, report))).body

            return Stream(progress_stream(run))
        return await self._tool_result(name, request, _call(name, request.timing))

    async def _tool_result(self, name: str, request: Request, call: Call) -> Response:
        def read(signature: Signature) -> dict[str, Any]:
            return signature.validate_json(request.body)

        outcome = await self.catalog.call_tool(name, read, call)
        if request.timing is not None:
            request.timing.mark_tool_end()
        content = outcome.content
        data: dict[str, Any] = {"content": content.blocks, "is_error": content.is_error}
        if content.is_json:
            data["is_json"] = True
        if content.structured is not None:
            data["structured"] = content.structured
        if outcome.fault is not None:
            data["fault"] = outcome.fault
        response = _success(data)
        if len(response.body) > MAX_ANSWER:  # an agent must not end its episode with what it makes so long
            text = f"Error calling tool '{name}': {_too_long(response.body)}"
            return _success({"content": [{"type": "text", "text": text}], "is_error": True, "fault": "env"})
        return response

    async def _list_tools(self, request: Request) -> Response:
        return _success([tool.model_dump(exclude_none=True) for tool in self.catalog.listed_tools])

    async def _list_functions(self, request: Request) -> Response:
        catalog = self.catalog
        return _success(
            {
                "total": len(catalog.functions),
                "functions": [e.describe() for e in catalog.functions],
                "reward": [e.describe() for e in catalog.rewards],
                "health": [e.describe() for e in catalog.health],
            }
        )

    async def _stats(self, request: Request) -> Response:
        return _success({"calls": self.catalog.calls, "last_active": self.catalog.last_active})

    async def _function(self, endpoint: Endpoint, request: Request) -> Response:
        arguments = _arguments(endpoint.signature, request)
        call = _call(endpoint.name, request.timing)
        return _data(endpoint, await self._value(endpoint, arguments, call, request.timing))

    async def _value(self, endpoint: Endpoint, arguments: dict[str, Any], call: Call, timing: Timing | None) -> Any:
        try:
            return await self.catalog.call_function(endpoint, arguments, call)
        finally:
            if timing is not None:
                timing.mark_tool_end()

    async def _reward(self, request: Request) -> Response:
        query = dict(parse_qsl(request.query.decode("latin-1")))
        endpoint = self.catalog.reward(query.get(paths.REWARD_QUERY))
        arguments, call = (
            endpoint.signature.validate_json(request.body, lenient=True),
            _call(endpoint.name, request.timing),
        )
        work = self._value(endpoint, arguments, call, request.timing)
        seconds = reward_deadline.parse_seconds(query.get(paths.TIMEOUT_QUERY))
        value = await (work if seconds is None else reward_deadline.within(seconds, call, work))
        if value is None:
            raise FunctionFailed(f"reward '{endpoint.name}' returned nothing; return a number or a dict")
        try:
            return _checked(Response(200, b'{"success":true,"data":%s}' % dump_finite(value)))
        except ValueError as error:
            raise FunctionFailed(f"reward '{endpoint.name}': {error}") from None

    async def _list_tasks(self, request: Request) -> Response:
        """Return a page of the tasks. The function that lists them runs once for all pages."""
        if self._task_rows is None or self._task_rows[0] != request.body:
            endpoint = self.catalog.task_list()
            arguments = endpoint.signature.validate_json(request.body)
            rows = await self._value(endpoint, arguments, _call(endpoint.name, request.timing), request.timing)
            self._task_rows = request.body, rows
        query, rows = dict(parse_qsl(request.query.decode("latin-1"))), self._task_rows[1]
        try:
            start = int(query.get(paths.START_QUERY, "0"))
            end = start + int(query[paths.LIMIT_QUERY]) if paths.LIMIT_QUERY in query else None
        except ValueError:
            raise InvalidArguments("start and limit must be integers") from None
        return _success({"total": len(rows), "tasks": rows[start:end]})

    async def _health(self, request: Request) -> Response:
        if self._bearer and not hmac.compare_digest(request.header(b"authorization"), self._bearer):
            return _success({"status": "healthy"})  # without the token, nothing else
        checks = self.catalog.health
        if not checks:
            return _success(
                {
                    "status": "success",
                    "message": "MCP server is healthy",
                    "details": {"tool_count": len(self.catalog.tools)},
                    "last_active": self.catalog.last_active,
                }
            )
        query = dict(parse_qsl(request.query.decode("latin-1")))
        check = checks[0]
        try:
            value = await self.catalog.call_function(check, check.signature.validate_strings(query))
        except FunctionFailed as error:
            body = {**problem(error), "data": {"status": "error", "message": error.message}}
            return Response(503, to_json(body))
        return _data(check, value if isinstance(value, dict) else {"status": _status(value), "result": value})


def _call(name: str, timing: Timing | None) -> Call:
    if timing is None:
        return Call(name)
    timing.mark_tool_start()
    return Call(name, trace=timing.place)


def _arguments(signature: Signature, request: Request) -> dict[str, Any]:
    if request.method in ("GET", "DELETE") and not request.body:
        return signature.validate_strings(_query(request))
    return signature.validate_json(request.body, lenient=True)


def _query(request: Request) -> dict[str, Any]:
    """Parse the query string; a name that occurs twice has a list of values."""
    values: dict[str, Any] = {}
    for name, value in parse_qsl(request.query.decode("latin-1"), keep_blank_values=True):
        if name not in values:
            values[name] = value
        else:
            before = values[name]
            values[name] = [*before, value] if isinstance(before, list) else [before, value]
    return values


def _status(value: object) -> str:
    return "healthy" if value is None or value else "error"


def _problem(error: AEnvError) -> bytes:
    """Return the JSON of an error, whatever characters are in its message."""
    try:
        return to_json(problem(error), fallback=repr)
    except ValueError:
        error.message, error.details = error.message.encode(errors="replace").decode(), {}
        return to_json(problem(error))


def _success(data: Any) -> Response:
    return Response(200, to_json({"success": True, "data": data}))


def _checked(response: Response) -> Response:
    """Return the response; raise ValueError if clients do not read all of it."""
    if len(response.body) > MAX_ANSWER:
        raise ValueError(_too_long(response.body))
    return response


def _too_long(body: bytes) -> str:
    return f"its result has {len(body)} bytes as JSON; at most {MAX_ANSWER} can be returned"


def _data(endpoint: Endpoint, value: Any) -> Response:
    try:
        return _checked(Response(200, b'{"success":true,"data":%s}' % dump(value)))
    except ValueError as error:
        raise FunctionFailed(f"'{endpoint.name}': {error}") from None
