"""The console beside an API: its files under ``/console/``, everything else to the API.

The API and the console have one web origin, and the API passes on what environments answer. So an answer that a browser
would show as a page is put into a sandbox, where its scripts do not run.
"""

from __future__ import annotations

from pydantic_core import to_json

from aenv.console import assets
from aenv.console.socket_token import take_socket_token
from aenv.errors import AEnvError
from aenv.http.guard import refuse_web_pages
from aenv.http.messages import Answer, Handler, Request, Response
from aenv.http.page_sandbox import is_navigation, sandboxed

PATH = "/console"
SETTINGS = f"{PATH}/settings.json"


def mounted(api: Handler, *, only_loopback: bool, trace_url: str = "") -> Handler:
    """Return a handler of the console and the API.

    ``only_loopback``: only this machine reaches the server, so another name of it in ``Host`` is an attack.
    ``trace_url``: where traces can be looked at, with ``{trace}`` for the id.
    """

    async def answer(request: Request) -> Answer:
        if request.path == PATH or request.path.startswith(f"{PATH}/"):
            return console_answer(request, only_loopback=only_loopback, trace_url=trace_url)
        if request.path == "/" and is_navigation(request):
            return _redirect(b"console/")
        take_socket_token(request)
        found = await api(request)
        return sandboxed(found) if is_navigation(request) else found

    return answer


def console_answer(request: Request, *, only_loopback: bool, trace_url: str = "") -> Response:
    """Return a file of the console. Nothing here changes anything, whatever the method."""
    if only_loopback:
        try:
            refuse_web_pages(request, "Open the console as 127.0.0.1 or localhost.")
        except AEnvError as error:
            return _refusal(error.status, error.message)
    if request.method not in ("GET", "HEAD"):
        return _refusal(405, "only GET and HEAD")
    if request.path == PATH:
        return _redirect(b"console/")
    if request.path == SETTINGS:
        head = assets.HEADERS + b"content-type: application/json\r\n"
        return Response(200, to_json({"trace_url": trace_url}), head)
    asset = assets.load().get(request.path.removeprefix(f"{PATH}/"))
    return asset.answer(request) if asset is not None else _refusal(404, "the console has no such file")


def _redirect(place: bytes) -> Response:
    return Response(302, b"", assets.HEADERS + b"location: %s\r\n" % place)


def _refusal(status: int, text: str) -> Response:
    return Response(status, f"{text}\n".encode(), assets.HEADERS + b"content-type: text/plain; charset=utf-8\r\n")
