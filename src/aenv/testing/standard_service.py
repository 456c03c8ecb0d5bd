"""Reference implementation of the standard engine contract, for one machine and without isolation.

    python -m aenv.testing.standard_service [--port 8180] [--token TOKEN]

Instances are plain processes on loopback. The service prints one line when it is ready, and stops all instances when it
ends.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic_core import from_json, to_json

from aenv.http.guard import bearer_token
from aenv.http.messages import Request, Response
from aenv.http.server import HttpServer
from aenv.schema import paths

MAX_BODY = 1 << 20


@dataclass
class _Instance:
    """An instance and its process."""

    id: str
    env: dict[str, Any]
    log: Path
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    process: asyncio.subprocess.Process | None = None
    address: str = ""
    status: str = "Creating"
    reason: str | None = None
    _log_copier: asyncio.Task[None] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the instance as JSON of the contract."""
        if self.status == "Running" and self.process is not None and self.process.returncode is not None:
            self.status, self.reason = "Terminated", f"the process ended with exit code {self.process.returncode}"
        about = {key: self.env.get(key) for key in ("name", "version")}
        return {
            "id": self.id, "env": about, "status": self.status, "ip": self.address, "token": self.token,
            "reason": self.reason,
        }  # fmt: skip

    async def start(self) -> None:
        """Start the process; return when it is ready or has failed."""
        deploy = self.env.get("deployConfig") or self.env.get("deploy_config") or {}
        code = unquote(urlsplit(self.env.get("codeUrl") or self.env.get("code_url") or "").path)
        name = f"{self.env['name']}@{self.env['version']}"
        arguments = [str(each) for each in deploy.get("arguments") or []]
        with self.log.open("wb") as output:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "aenv.main", code, "--host", "127.0.0.1", "--port", "0", "--name", name,
                "--grace", "1", "--", *arguments,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=output,
                env={**os.environ, **(deploy.get("environment_variables") or {}), "AENV_TOKEN": self.token},
            )  # fmt: skip
        assert self.process.stdout is not None
        line = (await self.process.stdout.readline()).decode()
        if " at http://" in line:
            self.address, self.status = line.rpartition("http://")[2].strip(), "Running"
            self._log_copier = asyncio.create_task(self._copy(self.process.stdout))
        else:
            await self.process.wait()
            error = self.log.read_text(errors="replace").removeprefix("Error: ").strip()
            self.status, self.reason = "Failed", error or f"exit code {self.process.returncode}"

    async def stop(self) -> None:
        """Stop the process; return when it is gone."""
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.terminate()
            try:
                await asyncio.wait_for(self.process.wait(), 5)
            except TimeoutError:
                self.process.kill()
                await self.process.wait()
        if self._log_copier is not None:
            await self._log_copier

    async def _copy(self, stream: asyncio.StreamReader) -> None:
        with self.log.open("ab") as output:
            while data := await stream.read(65536):
                output.write(data)
                output.flush()


class StandardService:
    """HTTP app of the service."""

    def __init__(self, folder: Path, token: str = "") -> None:
        self._folder = folder
        self._token = token
        self._instances: dict[str, _Instance] = {}

    async def __call__(self, request: Request) -> Response:
        """Answer one request."""
        if self._token and bearer_token(request) != self._token:
            return _refused(401, "the service's token is required")
        first, _, rest = request.path.removeprefix(paths.STANDARD).lstrip("/").partition("/")
        if not request.path.startswith(paths.STANDARD):
            return _refused(404, f"no such path: {request.path}")
        if request.method == "POST" and not first:
            return await self._create(request)
        if request.method == "GET" and not first:
            return self._list(dict(parse_qsl(request.query.decode("latin-1"))).get("envName"))
        if (request.method, first) == ("PUT", "action") and rest in ("warmup", "cleanup"):
            return _ok(None)  # no warm-up is needed
        found = self._instances.get(unquote(first))
        if found is None:
            return _refused(404, f"no instance {first}")
        if (request.method, rest) == ("GET", "logs"):
            return _ok(found.log.read_text(errors="replace"))
        if (request.method, rest) == ("GET", ""):
            return _ok(found.as_dict())
        if (request.method, rest) == ("DELETE", ""):
            del self._instances[found.id]
            await found.stop()
            return _ok("Deleted successfully")
        return _refused(404, f"no such route: {request.method} {request.path}")

    async def close(self) -> None:
        """Stop all instances."""
        await asyncio.gather(*(each.stop() for each in self._instances.values()))

    async def _create(self, request: Request) -> Response:
        try:
            env = from_json(request.body)
        except ValueError:
            return _refused(400, "the body is not JSON")
        if not isinstance(env, dict) or not all(isinstance(env.get(key), str) for key in ("name", "version")):
            return _refused(400, "name and version are required")
        name = f"{env['name']}-{secrets.token_hex(4)}"
        made = self._instances[name] = _Instance(name, env, self._folder / f"{name}.log")
        try:
            await made.start()
        except BaseException:
            self._instances.pop(name, None)
            await asyncio.shield(made.stop())
            raise
        if made.status == "Failed":
            self._instances.pop(name, None)
            return _refused(500, made.reason or "the instance could not be started")
        return _ok(made.as_dict())

    def _list(self, env: str | None) -> Response:
        found = [
            each for each in self._instances.values()
            if env in (None, "", "*", each.env["name"], f"{each.env['name']}@{each.env['version']}")
        ]  # fmt: skip
        return _ok([each.as_dict() for each in found])


def _ok(data: Any) -> Response:
    return Response(200, to_json({"success": True, "code": 0, "message": "", "data": data}))


def _refused(status: int, why: str) -> Response:
    return Response(status, to_json({"success": False, "code": status, "message": why, "data": None}))


async def _main(port: int, token: str) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with TemporaryDirectory(prefix="aenv-service-") as folder:
        service = StandardService(Path(folder), token)
        server = HttpServer(service, max_body=MAX_BODY)
        listener = await server.listen(host="127.0.0.1", port=port)
        port = listener.sockets[0].getsockname()[1]
        print(f"the service is ready at http://127.0.0.1:{port}", flush=True)  # noqa: T201
        await stop.wait()
        await server.close(grace=1.0)
        await service.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m aenv.testing.standard_service")
    parser.add_argument("--port", type=int, default=8180)
    parser.add_argument("--token", default=os.environ.get("AENV_ENGINE_TOKEN", ""))
    options = parser.parse_args()
    asyncio.run(_main(options.port, options.token))
