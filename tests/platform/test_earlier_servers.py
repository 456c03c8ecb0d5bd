"""Our SDK with servers that run the earlier package: directly, and behind a platform's external engine."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from aenv import Environment
from aenv.errors import AEnvError, FunctionFailed
from tests.conftest import run
from tests.earlier_package import earlier_server
from tests.platform.parts import Served, serving

PROJECT = '''
import base64
from aenv import register_function, register_reward, register_tool

count = 0

@register_tool
def increment(by: int = 1) -> int:
    """Add to the counter."""
    global count
    count += by
    return count

@register_tool
def wrap(text: str) -> dict:
    return {"result": text}

@register_tool
def fail() -> str:
    raise ValueError("no luck")

@register_function
def double(n: int):
    return 2 * n

@register_function
def broken():
    raise ValueError("oh")

@register_reward
def even():
    return float(count % 2 == 0)
'''


@pytest.fixture(scope="module")
def server(earlier: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("project")
    (folder / "env.py").write_text(PROJECT)
    with earlier_server(earlier, folder) as address:
        yield address


async def _use(env: Environment) -> None:
    assert [tool["name"].rpartition("/")[2] for tool in await env.list_tools()] == ["increment", "wrap", "fail"]
    first = (await env.call_tool("increment")).data
    assert (await env.call_tool("increment", {"by": 2})).data == first + 2
    wrapped = await env.call_tool("wrap", {"text": "a"})
    assert (wrapped.content, wrapped.data) == ([{"type": "text", "text": '{"result":"a"}'}], {"result": "a"})
    failed = await env.call_tool("fail")
    assert (failed.is_error, failed.fault) == (True, "env")
    assert "no luck" in failed.text
    for name, arguments in (("nothing", {}), ("increment", {"by": "x"})):
        refused = await env.call_tool(name, arguments)
        assert (refused.is_error, refused.fault) == (True, "policy")
    assert await env.call_function("double", {"n": 4}) == 8
    with pytest.raises(FunctionFailed, match="oh"):
        await env.call_function("broken")
    assert await env.call_reward({}) in (0.0, 1.0)
    assert (await env.list_functions())["functions"][0]["name"] == "double"
    many = await asyncio.gather(*(env.call_tool("increment") for _ in range(8)))
    assert len({each.data for each in many}) == 8


@pytest.mark.long
def test_the_sdk_uses_a_server_of_the_earlier_package(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUMMY_INSTANCE_IP", f"http://{server}")

    async def main() -> None:
        async with Environment("counter@1.0.0") as env:
            await _use(env)

    run(main())


@pytest.mark.long
def test_the_sdk_uses_the_earlier_package_behind_an_external_engine(data: Path, server: str) -> None:
    with _service(server) as url, serving(data, "--engine", url, auth=True) as platform:
        token = platform.token("ann")

        async def main() -> None:
            async with platform.environment("counter", token) as env:
                await _use(env)

        run(main())


@pytest.mark.long
def test_a_restarted_server_of_the_earlier_package_gets_a_new_session(
    earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "env.py").write_text(PROJECT)

    async def main() -> None:
        with earlier_server(earlier, tmp_path) as address:
            monkeypatch.setenv("DUMMY_INSTANCE_IP", f"http://{address}")
            env = Environment("counter@1.0.0")
            assert (await env.call_tool("increment", {"by": 5})).data == 5
        with earlier_server(earlier, tmp_path, int(address.rpartition(":")[2])):
            assert (await env.call_tool("increment")).data == 1
            await env.release()

    run(main())


CONFIG = {
    "name": "oldie",
    "version": "1.0.0",
    "tags": ["x"],
    "status": "Ready",
    "codeUrl": "",
    "artifacts": [{"id": "", "type": "image", "content": "docker.io/aenv/oldie:1.0.0"}],
    "buildConfig": {"dockerfile": "./Dockerfile"},
    "testConfig": {"script": ""},
    "deployConfig": {"cpu": "1", "memory": "2Gi", "os": "linux", "environmentVariables": {}},
}


def _push_with_the_earlier_cli(programs: Path, platform: Served, token: str, home: Path) -> Path:
    project = home / "oldie"
    (project / "src").mkdir(parents=True)
    (project / "config.json").write_text(json.dumps(CONFIG))
    (project / "src" / "env.py").write_text(PROJECT)
    variables = {"PATH": os.environ["PATH"], "HOME": str(home), "COLUMNS": "200", "HUB_BACKEND": platform.url}
    for command in (["config", "set", "hub_config.api_key", token], ["push"]):
        done = subprocess.run(
            [programs / "aenv", *command], cwd=project, env=variables, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return project


@pytest.mark.long
def test_an_environment_that_the_earlier_cli_pushed_runs_where_the_engine_runs_images(
    earlier: Path, data: Path, server: str, tmp_path: Path
) -> None:
    with _service(server) as url, serving(data, "--engine", url, auth=True) as platform:
        token = platform.token("ann")
        _push_with_the_earlier_cli(earlier, platform, token, tmp_path)

        async def main() -> None:
            async with platform.environment("oldie@1.0.0", token, ttl="45m", labels={"experiment": "e1"}) as env:
                await _use(env)

        run(main())
        body = REQUESTS[-1]
        assert body["artifacts"][0]["content"] == "docker.io/aenv/oldie:1.0.0"
        assert (body["deployConfig"]["ttl"], body["deployConfig"]["labels"]) == ("45m", {"experiment": "e1"})


@pytest.mark.long
def test_an_environment_that_the_earlier_cli_pushed_needs_its_files_where_the_engine_runs_none(
    earlier: Path, data: Path, tmp_path: Path
) -> None:
    with serving(data, auth=True) as platform:
        token = platform.token("ann")
        project = _push_with_the_earlier_cli(earlier, platform, token, tmp_path)

        async def create() -> object:
            async with platform.environment("oldie@1.0.0", token) as env:
                return (await env.call_tool("increment")).data

        with pytest.raises(AEnvError, match=r"only the image docker.io/aenv/oldie:1.0.0.*aenv push"):
            run(create())
        variables = {"HOME": str(tmp_path), "AENV_HUB_URL": platform.url, "AENV_API_KEY": token}
        push = [sys.executable, "-m", "aenv.cli", "push"]
        done = subprocess.run(
            push, cwd=project, env={**os.environ, **variables}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert run(create()) == 1


def test_a_second_container_is_refused_by_name_where_the_engine_has_none(data: Path, tmp_path: Path) -> None:
    config = {**CONFIG, "deployConfig": {"podTemplate": "DualContainer", "imagePrefix": "registry.example/x:"}}
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "env.py").write_text(PROJECT)
    (tmp_path / "config.json").write_text(json.dumps(config))

    async def main() -> None:
        with pytest.raises(AEnvError, match="podTemplate dualContainer needs a second container"):
            await Environment(str(tmp_path)).initialize()

    run(main())


REQUESTS: list[dict[str, Any]] = []
"""Bodies of the create requests that `_service` got."""


@contextmanager
def _service(address: str) -> Iterator[str]:
    """A service of the standard engine contract whose instances are all the server at ``address``."""
    made: list[dict[str, object]] = []

    class Handler(BaseHTTPRequestHandler):
        def _answer(self, data: object) -> None:
            body = json.dumps({"success": True, "data": data}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            REQUESTS.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            made.append({"id": f"earlier-{len(made)}", "status": "Running", "ip": address})
            self._answer(made[-1])

        def do_GET(self) -> None:
            name = self.path.removeprefix("/aenvironment/instance").strip("/")
            self._answer(next(each for each in made if each["id"] == name) if name else made)

        def do_DELETE(self) -> None:
            for each in made:
                if self.path.endswith(f"/{each['id']}"):
                    each["status"] = "Terminated"
            self._answer(True)

        def log_message(self, *args: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
