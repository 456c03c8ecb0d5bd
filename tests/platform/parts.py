"""A platform in a process of its own, for the length of a block."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aenv.sdk.environment import Environment

STOP_SECONDS = 30.0

ENV = '''
import asyncio
import os
import urllib.request
from pathlib import Path

from aenv import register_function, register_reward, register_tool

count = 0


@register_tool
def increment() -> int:
    """Add one."""
    global count
    count += 1
    return count


@register_tool
def echo(text: str) -> str:
    return text


@register_tool
def variable(name: str) -> str | None:
    return os.environ.get(name)


@register_tool
def speak(text: str) -> None:
    print(text, flush=True)


@register_tool
def write(path: str, text: str) -> None:
    Path(path).write_text(text)


@register_tool
def read(path: str) -> str:
    return Path(path).read_text()


@register_tool
def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.read().decode()


@register_tool
def die() -> None:
    os._exit(3)


@register_tool
async def wait(path: str) -> None:
    """Run until the caller disconnects."""
    Path(path).write_text("waiting")
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        Path(path).write_text("cancelled")
        raise


@register_function
def double(n: int) -> int:
    return 2 * n


@register_reward
def reward() -> float:
    return float(count)
'''


class Served:
    """A running ``aenv serve``."""

    def __init__(self, process: subprocess.Popen[str], data: Path, log: Path) -> None:
        self.process = process
        self.data = data
        self.log = log
        assert process.stdout is not None
        lines: list[str] = []
        while not lines or lines[-1] != "}\n":
            line = process.stdout.readline()
            assert line, f"the platform did not start:\n{log.read_text()}"
            lines.append(line)
        said = json.loads("".join(lines))
        self.url: str = said["url"]
        self.data_url: str = said["data_url"]
        self.auth: bool = said["auth"]

    @property
    def first_token(self) -> str:
        """Return the administrator token that it showed at its first start."""
        lines = self.log.read_text().splitlines()
        return next(line.strip() for line in lines if line.strip().startswith("aenv_"))

    def token(self, user: str, role: str = "user", *options: str) -> str:
        """Create a token."""
        return str(self.aenv("serve", "token", "create", "--user", user, "--role", role, *options)["token"])

    def aenv(self, *args: str) -> Any:
        """Return the output of a command on the platform's machine."""
        done = subprocess.run(
            [sys.executable, "-m", "aenv.cli", *args, "--output", "json"],
            env=environ(self.data), capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def environment(self, name: str = "counter", token: str | None = None, **options: Any) -> Environment:
        """Return a handle on one of its instances."""
        return Environment(name, aenv_url=self.url, api_key=token, **options)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            assert self.process.wait(STOP_SECONDS) == 0, self.log.read_text()

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End it by a signal."""
        self.process.send_signal(number)
        self.process.wait(STOP_SECONDS)


async def waiting_call(env: Environment) -> asyncio.Task[Any]:
    """Start a call that never ends by itself, and return once it runs in the instance."""
    call = asyncio.create_task(env.call_tool("wait", {"path": "/tmp/mark"}))
    while (await env.exec("cat /tmp/mark")).stdout != "waiting":  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return call


async def hang_up(env: Environment) -> None:
    """Disconnect in the middle of a call, and return once it was cancelled in the instance."""
    call = await waiting_call(env)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    while (await env.exec("cat /tmp/mark")).stdout != "cancelled":  # noqa: ASYNC110
        await asyncio.sleep(0.05)


def environ(data: Path) -> dict[str, str]:
    return {**os.environ, "AENV_DATA_DIR": str(data), "XDG_CACHE_HOME": str(data / "cache"), "TMPDIR": str(data)}


@contextmanager
def serving(data: Path, *options: str, auth: bool = True, one_port: bool = True) -> Iterator[Served]:
    """Serve in a process of its own, whose instances end with it. Its sockets are below ``data``, a short path."""
    log = data / f"serve-{len(list(data.glob('serve-*.log')))}.log"
    planes = ["--one-port"] if one_port else ["--data-port", "0"]
    with log.open("ab") as stderr:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "aenv.cli", "serve", "--port", "0", *planes, "--output", "json",
                "--adopt-within", "0", "--auth" if auth else "--no-auth", *options,
            ],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environ(data),
        )  # fmt: skip
    with process:
        try:
            served = Served(process, data, log)
            yield served
            served.stop()
            text = log.read_text()
            assert "Traceback" not in text, text
            assert "never retrieved" not in text, text
        finally:
            process.kill()
