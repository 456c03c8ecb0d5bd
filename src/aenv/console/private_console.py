"""A console of one user on this machine: behind a one-time link, in front of any platform.

The local platform listens on a unix socket, which no browser reaches, and a remote one may have no console. So this
server stands between: it has the console's files, and passes requests of a browser that is logged in on to the API.
"""

from __future__ import annotations

from pydantic_core import from_json, to_json

from aenv.console import model_chat, mount, web_user
from aenv.console.logins import Logins
from aenv.console.socket_token import take_socket_token
from aenv.console.web_user import WebUser
from aenv.errors import AEnvError, Forbidden, Unauthorized
from aenv.http.guard import bearer_token, refuse_web_pages
from aenv.http.messages import Answer, Handler, Request, Response
from aenv.http.server import HttpServer
from aenv.rollout.model import Model

SESSION = f"{mount.PATH}/session"
MAX_BODY = 16 * 1024 * 1024
STREAM_OVER = 64 * 1024


class PrivateConsole:
    """Serves the console and an API to whoever has the link."""

    def __init__(
        self, api: Handler, model: Model | None = None, trace_url: str = "", user: WebUser | None = None
    ) -> None:
        self._api = api
        self._model = model
        self._trace_url = trace_url
        self._user = user
        self._logins = Logins()
        self._server = HttpServer(self._answer, max_body=MAX_BODY, stream_over=STREAM_OVER)
        self._url = ""

    async def listen(self, port: int = 0) -> None:
        """Listen on 127.0.0.1.

        Raises:
            OSError: the port is in use.
        """
        listening = await self._server.listen(host="127.0.0.1", port=port)
        self._url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}{mount.PATH}/"

    def new_link(self) -> str:
        """Return a link that logs a browser in, once. What follows the ``#`` is not sent to any server.

        It leads to the overview, or to the page of the user that a rollout asks.
        """
        return f"{self._url}#code={self._logins.new_code()}{'&user' if self._user is not None else ''}"

    async def close(self) -> None:
        """Stop serving."""
        await self._server.close(0.5)

    async def _answer(self, request: Request) -> Answer:
        try:
            refuse_web_pages(request, "Open the console as 127.0.0.1.")
            if request.path == SESSION:
                return self._exchange(request)
            if request.path == model_chat.PATH:
                self._need_login(request)
                return await model_chat.chat_answer(self._model, request)
            if request.path == web_user.PATH and self._user is not None:
                self._need_login(request)
                return await self._user.page_answer(request)
            if request.path == mount.PATH or request.path.startswith(f"{mount.PATH}/"):
                return mount.console_answer(request, only_loopback=True, trace_url=self._trace_url)
            take_socket_token(request)
            self._need_login(request)
            return await self._api(request)
        except AEnvError as error:
            return refusal(error)

    def _need_login(self, request: Request) -> None:
        if not self._logins.knows(bearer_token(request)):
            raise Unauthorized("this link was not used to log in", details={"hint": "Run: aenv console"})

    def _exchange(self, request: Request) -> Response:
        origin = request.header(b"origin")
        if request.method != "POST" or (origin and origin != b"http://" + request.header(b"host")):
            raise Forbidden("a code is exchanged by the console alone")
        try:
            code = str(from_json(request.body)["code"])
        except (ValueError, KeyError, TypeError):
            code = ""
        token = self._logins.exchange(code)
        if token is None:
            raise Unauthorized("this link was used already, or is too old", details={"hint": "Run: aenv console"})
        return Response(
            200, to_json({"token": token}), b"content-type: application/json\r\ncache-control: no-store\r\n"
        )


def refusal(error: AEnvError) -> Response:
    """Return an error as the platform's API does."""
    body = {
        "success": False, "code": error.status, "message": error.message, "data": None,
        "error_code": error.code, "fault": error.fault, "details": error.details,
    }  # fmt: skip
    return Response(error.status, to_json(body))
