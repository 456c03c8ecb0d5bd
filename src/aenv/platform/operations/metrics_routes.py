"""Metrics over HTTP: with a token on the control plane, and without one on an optional loopback port."""

from __future__ import annotations

from aenv.errors import AEnvError, NotFound, UsageError
from aenv.http.guard import refuse_web_pages
from aenv.http.messages import Answer, Handler, Request, Response
from aenv.http.server import HttpServer
from aenv.platform.operations.metrics import Metrics
from aenv.platform.request_context import refusal
from aenv.schema import paths

LOOPBACK = "127.0.0.1"
_TEXT = b"content-type: text/plain; version=0.0.4; charset=utf-8\r\n"


def metrics_answer(metrics: Metrics) -> Response:
    """Return all metrics as a response."""
    return Response(200, metrics.text().encode(), _TEXT)


def metrics_plane(metrics: Metrics) -> Handler:
    """Return a handler of ``GET /metrics`` alone, for programs on this machine."""

    async def answer(request: Request) -> Answer:
        try:
            refuse_web_pages(request, "Scrape it as 127.0.0.1.")
            if request.path != paths.METRICS or request.method not in ("GET", "HEAD"):
                raise NotFound(f"only {paths.METRICS} is served here")
            return metrics_answer(metrics)
        except AEnvError as error:
            return refusal(error)

    return answer


async def listen(metrics: Metrics, port: int) -> tuple[HttpServer, str]:
    """Serve metrics on loopback. Returns the server and the URL of the metrics."""
    server = HttpServer(metrics_plane(metrics), max_body=0)
    try:
        listener = await server.listen(host=LOOPBACK, port=port)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {LOOPBACK}:{port}: {error.strerror or error}",
            {"hint": "Choose another port with --metrics-port."},
        ) from error
    return server, f"http://{LOOPBACK}:{listener.sockets[0].getsockname()[1]}{paths.METRICS}"
