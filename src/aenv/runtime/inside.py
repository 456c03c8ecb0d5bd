"""Commands and files inside a sandbox, for whoever holds its token. Only sandboxes offer it: elsewhere it would be a
door into the host.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import to_json

from aenv.core.call import Call
from aenv.errors import FunctionFailed, InvalidArguments
from aenv.runtime.messages import Request, Response
from aenv.runtime.workers import Workers
from aenv.schema import paths

MAX_OUTPUT = 8 * 1024 * 1024  # bytes kept of each stream
_BINARY = b"content-type: application/octet-stream\r\n"


class Command(BaseModel):
    """One command to run."""

    model_config = ConfigDict(extra="forbid")

    command: str | list[str]
    """A line for the shell, or a program and its arguments."""
    timeout: float | None = None
    cwd: str | None = None
    stdin: str = ""


class Inside:
    """Answers ``/exec`` and ``/files``."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    async def answer(self, request: Request) -> Response | None:
        """None when the request is not for us."""
        if (request.method, request.path) == ("POST", paths.EXEC):
            return await self._exec(request)
        if request.path == paths.FILES and request.method in ("GET", "PUT"):
            return await self._file(request)
        return None

    async def _exec(self, request: Request) -> Response:
        try:
            command = Command.model_validate_json(request.body)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            raise InvalidArguments(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        call = Call("exec")
        done = await self._workers.run(lambda: _run(command, call), call)
        return Response(200, to_json({"success": True, "data": done}))

    async def _file(self, request: Request) -> Response:
        path = dict(parse_qsl(request.query.decode("latin-1"))).get("path")
        if not path:
            raise InvalidArguments("path: missing; say ?path=/where")
        try:
            if request.method == "GET":
                data = await self._workers.run(Path(path).read_bytes, Call("read"))
                return Response(200, data, _BINARY)
            await self._workers.run(lambda: _write(Path(path), request.body), Call("write"))
        except OSError as error:
            raise FunctionFailed(f"{error.strerror or error}: {path}") from None
        return Response(200, to_json({"success": True, "data": {"path": path, "size": len(request.body)}}))


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _run(command: Command, call: Call) -> dict[str, Any]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as given:
        given.write(command.stdin.encode())
        given.seek(0)
        try:
            process = subprocess.Popen(
                command.command,
                shell=isinstance(command.command, str),
                cwd=command.cwd,
                stdin=given,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        except OSError as error:
            return {"exit_code": 127, "stdout": "", "stderr": str(error), "timed_out": False}
        timed_out = not _finished(process, command.timeout, call)
        if timed_out:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        texts = {}
        for name, stream in (("stdout", out), ("stderr", err)):
            stream.seek(0)
            texts[name] = stream.read(MAX_OUTPUT).decode(errors="replace")
        return {"exit_code": process.returncode, "timed_out": timed_out, **texts}


def _finished(process: subprocess.Popen[bytes], timeout: float | None, call: Call) -> bool:
    """Whether it ended by itself, in time, and while somebody waited for it."""
    left = timeout if timeout is not None else float("inf")
    while left > 0 and not call.cancelled:
        try:
            process.wait(min(left, 0.5))
        except subprocess.TimeoutExpired:
            left -= 0.5
        else:
            return True
    return False
