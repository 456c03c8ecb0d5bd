from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from pydantic_core import from_json, to_json

from aenv.authoring.declarations import Registry, fresh_registry
from aenv.client import local_platforms
from aenv.http.client import HttpClient
from aenv.http.server import HttpServer
from aenv.http.url import ServerUrl
from aenv.isolation.confined.level import confined_refusal
from aenv.isolation.files import rootfs
from aenv.isolation.host_support import unsupported_reason
from aenv.runtime.app import App
from aenv.runtime.calls.endpoints import EndpointCatalog
from aenv.runtime.mcp import McpEndpoint

pytest_plugins = ["tests.attacks.ledger", "tests.earlier_package"]

HERE = Path(__file__).parent
ENVS = HERE / "envs"

# No test fails on a clock: the machine may be busy with something else.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


SLOWEST_FIRST = (
    "kill/test_kill", "platform/test_handover", "e2e/test_life_of_a_project", "docs/test_snippets",
    "examples/test_examples", "hub/test_builtin", "platform/test_serve", "bench/test_terminal",
    "platform/test_services", "platform/test_nested", "local/test_local", "platform/test_rollouts",
    "cli/test_stdio", "platform/test_admission", "images/test_dockerfile", "rollout/test_kill_and_resume",
)  # fmt: skip
"""Files that take longest. A worker takes whole files: one that starts last keeps the others waiting."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, and keep the order of tests in a file."""
    places = {str(HERE / f"{name}.py"): place for place, name in enumerate(SLOWEST_FIRST)}
    items.sort(key=lambda item: places.get(str(item.path), len(places)))


def pytest_configure(config: pytest.Config) -> None:
    """Undo what a shell does to jobs in the background: programs that ignore SIGINT could not be tested with it."""
    for number in (signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """For `scripts/again`: whether the run went to its end."""
    if not hasattr(session.config, "workerinput") and session.config.pluginmanager.has_plugin("cacheprovider"):
        session.config.cache.set("aenv/exit", int(exitstatus))


@pytest.fixture(autouse=True, scope="session")
def _programs_of_failed_tests_are_killed() -> Iterator[None]:
    """`with Popen(...)` waits for its program, for ever where the test failed before it told the program to end."""
    leave = subprocess.Popen.__exit__

    def kill_and_leave(self: subprocess.Popen[Any], failure: Any, *rest: Any) -> None:
        if failure is not None:
            self.kill()
        leave(self, failure, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__exit__", kill_and_leave)
        yield


@pytest.fixture(autouse=True)
def _signals_stay_as_they_are() -> Iterator[None]:
    """Later tests send SIGINT to programs, which would inherit that it is ignored."""
    before = signal.getsignal(signal.SIGINT)
    yield
    assert signal.getsignal(signal.SIGINT) is before


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith("AENV_")] + ["DUMMY_INSTANCE_IP"]:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def sandboxes() -> None:
    """For tests that need real sandboxes: they are skipped where the host does not let this user make any."""
    reason = unsupported_reason()
    if reason is not None:
        pytest.skip(f"no sandboxes here: {reason}")


@pytest.fixture(scope="session")
def confined_sandboxes() -> None:
    """For tests of sandboxes without namespaces: they are skipped where the host offers too little for those."""
    reason = confined_refusal()
    if reason is None and os.geteuid() == 0:  # such sandboxes have a user of their own
        paths = [Path(path) for path in rootfs.interpreter_paths()]
        hidden = {str(part) for path in paths for part in (path, *path.parents) if not part.stat().st_mode & 0o001}
        reason = f"other users may not read {', '.join(sorted(hidden))}, where this Python is" if hidden else None
    if reason is not None:
        pytest.skip(f"no confined sandboxes here: {reason}")


@pytest.fixture
def registry() -> Iterator[Registry]:
    with fresh_registry() as fresh:
        yield fresh


def run(work: Awaitable[Any]) -> Any:
    """Run a coroutine; fail if it leaves a task behind."""

    async def main() -> Any:
        async with asyncio.timeout(60):
            result = await work
        await asyncio.sleep(0)
        left = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        assert not left, f"tasks left behind: {left}"
        return result

    return asyncio.run(main())


@asynccontextmanager
async def served(registry: Registry, *, max_body: int = 1 << 26, **options: Any) -> AsyncIterator[str]:
    """The declared functions, behind a real server in this process; its URL."""
    catalog = EndpointCatalog(registry)
    mcp = McpEndpoint(catalog, name="test", version="1", max_body=max_body)
    server = HttpServer(App(catalog, mcp, **options), max_body=max_body)
    listener = await server.listen(host="127.0.0.1", port=0)
    try:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        await server.close(grace=2.0)
        await mcp.close()
        catalog.workers.close()


@pytest.fixture(autouse=True)
def _no_threads_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [t for t in threading.enumerate() if t not in before and not t.name.startswith(("aenv-sync", "asyncio_"))]
    for thread in left:
        thread.join(5)
    assert not [t for t in left if t.is_alive()], f"threads left behind: {left}"


async def afetch(url: str, path: str, body: Any = None) -> tuple[int, Any]:
    """The same as `fetch`, for many at a time."""
    client = HttpClient(ServerUrl.parse(url))
    try:
        answer = await client.request("GET" if body is None else "POST", path, None if body is None else to_json(body))
    finally:
        client.close()
    return answer.status, from_json(answer.body)


def fetch(url: str, path: str, body: Any = None, *, method: str | None = None, headers: Any = None) -> tuple[int, Any]:
    """A plain HTTP exchange with the standard library: status and JSON."""
    import json
    import urllib.error
    import urllib.request

    data = None if body is None else (body if isinstance(body, bytes) else json.dumps(body).encode())
    request = urllib.request.Request(
        url + path, data, {"content-type": "application/json", **(headers or {})}, method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read() or b"null")


def stop_all(runtime: Path) -> None:
    """End all local platforms that have their folders there."""
    for where in local_platforms.all_of_user(local_platforms.LocalPaths(runtime)):
        local_platforms.stop(where)


def left_in(runtime: Path) -> list[str]:
    """What should not be there any more when no local platform runs there."""
    lasting = re.compile(r"account|ended\.db(-\w+)?|[0-9a-f]{8}(/(lock|alive|platform\.log))?")
    found = {
        os.path.relpath(os.path.join(folder, name), runtime)
        for folder, *kinds in os.walk(runtime)
        for name in chain(*kinds)
    }
    return sorted(name for name in found if not lasting.fullmatch(name))
