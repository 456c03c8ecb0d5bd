"""Services over HTTP: replicas, updates, crashes, storage and server restarts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aenv.client.platform_client import ApiClient
from aenv.errors import AEnvError, Conflict, Forbidden, InvalidArguments, NotFound, QuotaExceeded
from aenv.hub.local_hub import LocalHub
from aenv.hub.open_hub import HubLocation, open_catalog
from aenv.schema.instances import EnvService
from tests.conftest import fetch, run
from tests.hub.parts import push
from tests.platform.conftest import _remove
from tests.platform.parts import Served, environ, serving

CODE = """
import os
import time
from pathlib import Path

from aenv import register_function, register_tool

count = 0
DATA = Path("/home/admin/data")


@register_tool
def increment() -> int:
    global count
    count += 1
    return count


@register_function
def who() -> dict[str, str | None]:
    print("asked", flush=True)
    return {"version": os.environ["envversion"], "color": os.environ.get("COLOR"), "pid": str(id(DATA))}


@register_function
def slow(seconds: float) -> str:
    time.sleep(seconds)
    return os.environ["envversion"]


@register_function
def die() -> None:
    os._exit(3)


@register_function
def write(name: str, size: int) -> str:
    try:
        (DATA / name).write_bytes(b"x" * size)
    except OSError as error:
        return error.strerror
    return "written"


@register_function
def names() -> list[str]:
    return sorted(path.name for path in DATA.iterdir())
"""
BROKEN = CODE + "\nraise RuntimeError('no such model')\n"
SMALL = "1Mi"


async def publish_all(data: Path) -> None:
    hub = LocalHub(open_catalog(HubLocation.of(data=data)))
    try:
        for version, code in (("1.0.0", CODE), ("1.1.0", CODE), ("1.2.0", BROKEN)):
            await push(hub, "web", version, code, public=True)
    finally:
        await hub.close()


@pytest.fixture(scope="module")
def folder(sandboxes: None) -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="aenv-t-", dir="/tmp"))
    asyncio.run(publish_all(made))
    yield made
    left = [path for path in (made / "platform" / "storage").glob("*") if not path.name.startswith("kept")]
    _remove(made)
    assert left == []


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    with serving(folder) as platform:
        yield platform


class User:
    """A user with a token."""

    def __init__(self, served: Served, token: str) -> None:
        self.served = served
        self.headers = {"authorization": f"Bearer {token}"}
        self.api = ApiClient(served.url, api_key=token, max_retries=0)

    async def settled(self, name: str) -> EnvService:
        """Return a service once no change is under way."""
        while True:
            found = await self.api.get_env_service(name, wait=10)
            whole = found.status == "Running" and found.available_replicas == found.replicas
            if whole or found.status == "Failed":
                return found

    async def create(self, name: str, env: str = "web@1.0.0", **request: Any) -> EnvService:
        await self.api.create_env_service(env, name, **request)
        return await self.settled(name)

    async def call(self, service: str, path: str, **body: Any) -> Any:
        """Return what a function of a replica returns; fail on any error."""
        status, said = await self.raw(service, f"/functions/{path}", body)
        assert status == 200, said
        return said["data"]

    async def raw(self, service: str, path: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        url = f"{self.served.url}/service/{service}"
        return await asyncio.to_thread(fetch, url, path, body, headers={**self.headers, **(headers or {})})


def use(work: Awaitable[None], *users: User) -> None:
    """Run a coroutine, and close the users' connections in the same event loop."""

    async def main() -> None:
        try:
            await work
        finally:
            for user in users:
                await user.api.close()

    run(main())


@pytest.fixture
def ann(served: Served) -> Iterator[User]:
    yield from user_with_token(served, "ann")


def user_with_token(served: Served, name: str, *options: str) -> Iterator[User]:
    user = User(served, served.token(name, "user", *options))
    yield user

    async def clean() -> None:
        async with ApiClient(served.url, api_key=user.headers["authorization"][7:]) as api:
            for each in await api.list_env_services():
                await api.delete_env_service(each.id, delete_storage=True)

    asyncio.run(clean())


def test_requests_are_spread_over_replicas_and_a_crashed_one_is_replaced(ann: User) -> None:
    async def main() -> None:
        service = await ann.create("spread", replicas=2, labels={"team": "blue"}, owner="ann")
        assert (service.status, service.available_replicas, service.owner) == ("Running", 2, "ann")
        assert service.service_url == f"{ann.served.url}/service/spread"
        counts = [(await ann.raw("spread", "/tools/increment", {}))[1]["data"]["content"][0]["text"] for _ in range(4)]
        assert sorted(counts) == ["1", "1", "2", "2"]
        replicas = await ann.api.page_env_instances(labels={"service": "spread", "team": "blue"})
        assert sorted(each.id for each in replicas.items) == sorted(service.instances or [])
        assert all((each.expires_at or "") > "2100" for each in replicas.items)
        status, said = await ann.raw("spread", "/functions/die", {})
        assert (status, said["error_code"], said["details"]["sent"]) == (502, "unreachable", True)
        for _ in range(10):  # the other replica answers all the time
            assert (await ann.call("spread", "who"))["version"] == "1.0.0"
        service = await ann.settled("spread")
        assert (service.available_replicas, service.restarts) == (2, 1)
        kinds = [event.type for event in await ann.api.get_service_events("spread")]
        assert kinds[:3] == ["created", "running", "ended"]
        log = await ann.api.get_service_logs("spread")
        assert any(line.endswith("] asked") and line[1:-7] in (service.instances or []) for line in log.splitlines())
        assert len((await ann.api.get_service_logs("spread", tail=2)).splitlines()) == 2

    use(main(), ann)


def test_the_log_of_all_replicas_is_followed_until_the_service_is_deleted(ann: User) -> None:
    async def main() -> None:
        replicas = set((await ann.create("logged", replicas=2)).instances or [])
        lines: asyncio.Queue[str] = asyncio.Queue()

        async def follow() -> None:
            async for text in ann.api.follow_service_logs("logged", tail=0):
                for line in text.splitlines():
                    lines.put_nowait(line)

        following = asyncio.create_task(follow())
        seen: set[str] = set()
        while seen != {f"[{name}] asked" for name in replicas}:
            await ann.call("logged", "who")
            with contextlib.suppress(TimeoutError):
                seen.add(await asyncio.wait_for(lines.get(), 1))
        await ann.api.delete_env_service("logged")
        await following

    use(main(), ann)


def test_creating_a_service_is_idempotent_by_request_id(ann: User) -> None:
    async def main() -> None:
        made = [await ann.api.create_env_service("web@1.0.0", request_id="r1") for _ in range(2)]
        assert made[0].id == made[1].id
        assert made[0].id.startswith("web-svc-")
        named = [await ann.api.create_env_service("web@1.0.0", "twice", request_id="r2") for _ in range(2)]
        assert {each.id for each in named} == {"twice"}
        with pytest.raises(Conflict):
            await ann.api.create_env_service("web@1.0.0", "twice")
        assert len(await ann.api.list_env_services("web")) == 2

    use(main(), ann)


def test_an_update_is_rolled_out_without_losing_a_request(ann: User) -> None:
    async def main() -> None:
        await ann.create("rolled", replicas=2, environment_variables={"COLOR": "red", "SIZE": "1"})
        slow = [asyncio.create_task(ann.call("rolled", "slow", seconds=1.5)) for _ in range(2)]
        seen: set[tuple[str, str | None]] = set()
        stop = asyncio.Event()

        async def use() -> None:
            while not stop.is_set():
                said = await ann.call("rolled", "who")
                seen.add((said["version"], said["color"]))

        using = asyncio.create_task(use())
        await asyncio.sleep(0)
        changed = await ann.api.update_env_service("rolled", image="docker.io/aenv/web:1.1.0")
        assert (changed.status, changed.revision) == ("Updating", 2)
        done = await ann.settled("rolled")
        assert (done.revision, done.env and done.env.version, done.reason) == (2, "1.1.0", None)
        await ann.api.update_env_service("rolled", environment_variables={"COLOR": "blue"})
        done = await ann.settled("rolled")
        assert done.environment_variables == {"COLOR": "blue", "SIZE": "1"}
        while ("1.1.0", "blue") not in seen:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        stop.set()
        await using
        assert await asyncio.gather(*slow) == ["1.0.0", "1.0.0"]
        assert seen <= {("1.0.0", "red"), ("1.1.0", "red"), ("1.1.0", "blue")}
        while len(await ann.api.list_env_instances("web")) > 2:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    use(main(), ann)


def test_a_failed_update_keeps_the_running_version_and_says_why(ann: User) -> None:
    async def main() -> None:
        before = await ann.create("steady", replicas=2)
        await ann.api.update_env_service("steady", version="1.2.0")
        after = await ann.settled("steady")
        assert (after.env and after.env.version, after.revision) == ("1.0.0", 1)
        assert after.reason is not None
        assert "the update to web@1.2.0 failed" in after.reason
        assert "no such model" in after.reason
        assert set(after.instances or []) == set(before.instances or [])
        assert (await ann.call("steady", "who"))["version"] == "1.0.0"
        with pytest.raises(NotFound):
            await ann.api.update_env_service("steady", version="9.9.9")
        with pytest.raises(InvalidArguments, match="this service runs web"):
            await ann.api.update_env_service("steady", image="docker.io/library/nginx:1.27")
        await ann.api.update_env_service("steady", version="1.1.0")  # the failed update does not block the next one
        after = await ann.settled("steady")
        assert (after.env and after.env.version, after.revision, after.reason) == ("1.1.0", 3, None)

    use(main(), ann)


def test_a_service_that_never_starts_fails_with_the_reason_and_can_be_repaired(ann: User) -> None:
    async def main() -> None:
        failed = await ann.create("repaired", "web@1.2.0")
        assert failed.status == "Failed"
        assert failed.reason is not None
        assert "no such model" in failed.reason
        status, said = await ann.raw("repaired", "/functions/who", {})
        assert (status, said["error_code"], said["details"]["sent"]) == (503, "unavailable", False)
        await ann.api.update_env_service("repaired", version="1.0.0")
        repaired = await ann.settled("repaired")
        assert (repaired.status, repaired.reason) == ("Running", None)

    use(main(), ann)


def test_a_service_is_scaled_up_and_down_and_to_zero(ann: User) -> None:
    async def main() -> None:
        await ann.create("scaled")
        for count in (3, 1, 0, 1):
            await ann.api.update_env_service("scaled", replicas=count)
            found = await ann.settled("scaled")
            assert (found.replicas, found.available_replicas, len(found.instances or [])) == (count, count, count)
            while len(await ann.api.list_env_instances("web")) != count:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            status, said = await ann.raw("scaled", "/functions/who", {})
            assert status == (200 if count else 503), said
        gone = (await ann.settled("scaled")).instances or []
        await ann.api.delete_env_instance(gone[0])  # a replica deleted by mistake is replaced
        while (await ann.settled("scaled")).instances == gone:
            pass
        await ann.api.delete_env_service("scaled")
        with pytest.raises(NotFound):
            await ann.api.get_env_service("scaled")
        assert await ann.api.list_env_instances("web") == []
        status, said = await ann.raw("scaled", "/functions/who", {})
        assert (status, said["error_code"]) == (403, "forbidden")

    use(main(), ann)


def test_a_storage_outlives_crashes_and_updates_even_failed_ones(ann: User) -> None:
    async def main() -> None:
        service = await ann.create("writer", storage_size="10Mi")
        assert (service.pvc_name, service.mount_path) == ("web", "/home/admin/data")
        assert await ann.call("writer", "write", name="one", size=10) == "written"
        await ann.raw("writer", "/functions/die", {})
        await ann.settled("writer")
        assert await ann.call("writer", "names") == ["one"]
        await ann.api.update_env_service("writer", version="1.1.0")
        await ann.settled("writer")
        assert await ann.call("writer", "names") == ["one"]
        # The old replica has to stop first, and is started again when the update fails.
        await ann.api.update_env_service("writer", version="1.2.0")
        back = await ann.settled("writer")
        assert (back.env and back.env.version, await ann.call("writer", "names")) == ("1.1.0", ["one"])
        with pytest.raises(InvalidArguments, match="one writer"):
            await ann.api.update_env_service("writer", replicas=2)

    use(main(), ann)


def test_a_storage_outlives_its_service_unless_it_is_deleted_too(ann: User) -> None:
    request = {"pvc_name": "notes", "storage_size": "10Mi"}

    async def main() -> None:
        await ann.create("writer", **request)
        assert await ann.call("writer", "write", name="one", size=10) == "written"
        with pytest.raises(Conflict, match="belongs to service writer"):
            await ann.api.create_env_service("web", "second", **request)
        await ann.api.delete_env_service("writer")
        await ann.create("reader", pvc_name="notes")
        assert await ann.call("reader", "names") == ["one"]
        await ann.api.delete_env_service("reader", delete_storage=True)
        assert list((ann.served.data / "platform" / "storage").iterdir()) == []
        await ann.create("fresh", **request)
        assert await ann.call("fresh", "names") == []

    use(main(), ann)


@pytest.mark.long
def test_a_storage_above_its_size_is_read_only_until_it_grows(ann: User) -> None:
    async def main() -> None:
        await ann.create("full", storage_size=SMALL)
        assert await ann.call("full", "write", name="much", size=3 << 20) == "written"
        said = ""
        while said != "Read-only file system":
            await asyncio.sleep(0.3)
            status, body = await ann.raw("full", "/functions/write", {"name": "more", "size": 1})
            said = body["data"] if status == 200 else ""
        found = await ann.settled("full")
        assert found.reason is not None
        assert "more than its size" in found.reason
        assert "much" in await ann.call("full", "names")
        await ann.api.update_env_service("full", storage_size="2Mi")
        with pytest.raises(InvalidArguments, match="can grow, but not shrink"):
            await ann.api.update_env_service("full", storage_size=SMALL)
        await ann.api.update_env_service("full", storage_size="20Mi")
        while said != "written":
            await asyncio.sleep(0.1)
            status, body = await ann.raw("full", "/functions/write", {"name": "more", "size": 1})
            said = body["data"] if status == 200 else ""

    use(main(), ann)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"service_name": "Web_1"}, "is not a name"),
        ({"service_name": "w" * 64}, "at most 63"),
        ({"replicas": 5000}, "between 1 and 1000"),
        ({"storage_size": "10Mi", "replicas": 3}, "one writer"),
        ({"pvc_name": "new"}, "give its size"),
        ({"storage_size": "much"}, "is not a size"),
        ({"storage_size": "10Mi", "mount_path": "/usr/lib"}, "part of the instance's system"),
        ({"storage_size": "10Mi", "mount_path": "../x"}, "is not an absolute, normalized path"),
        ({"storage_size": "10Mi", "pvc_name": "../x"}, "is not a name"),
        ({"memory_limit": "lots"}, "is not a size"),
    ],
)
def test_an_invalid_service_request_is_refused(ann: User, fields: dict[str, Any], why: str) -> None:
    async def main() -> None:
        with pytest.raises(AEnvError, match=why) as caught:
            await ann.api.create_env_service("web", **fields)
        assert caught.value.fault in ("caller", "policy")
        assert await ann.api.list_env_services() == []

    use(main(), ann)


def test_services_belong_to_an_account_and_count_against_its_quota(served: Served, ann: User) -> None:
    bob = User(served, served.token("bob"))
    reader = User(served, served.token("ann", "read-only"))
    users = user_with_token(served, "sue", "--instances", "2")
    small = next(users)

    async def main() -> None:
        await ann.create("private", environment_variables={"KEY": "secret"})
        assert await bob.api.list_env_services() == []
        for work in (
            bob.api.get_env_service("private"),
            bob.api.update_env_service("private", replicas=0),
            bob.api.get_service_logs("private"),
        ):
            with pytest.raises(NotFound):
                await work
        assert await bob.api.delete_env_service("private") is False
        with pytest.raises(Conflict, match="choose another name"):
            await bob.api.create_env_service("web", "private")
        status, said = await bob.raw("private", "/functions/who", {})
        assert (status, said["error_code"]) == (403, "forbidden")
        assert (await asyncio.to_thread(fetch, f"{served.url}/service/private", "/functions/who", {}))[0] == 401
        assert (await reader.raw("private", "/functions/who", {}))[0] == 403
        assert (await reader.api.get_env_service("private")).environment_variables is None
        with pytest.raises(Forbidden):
            await reader.api.delete_env_service("private")
        with pytest.raises(QuotaExceeded):
            await small.api.create_env_service("web", "large", replicas=3)
        await small.create("small", replicas=2)
        with pytest.raises(QuotaExceeded):
            await small.api.create_env_instance("web")
        with pytest.raises(QuotaExceeded):
            await small.api.update_env_service("small", replicas=3)

    use(main(), ann, bob, reader, small)
    next(users, None)


def test_an_mcp_session_stays_with_its_replica(ann: User) -> None:
    async def main() -> None:
        await ann.create("sessions", replicas=2)
        about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        session = await asyncio.to_thread(_initialize, f"{ann.served.url}/service/sessions/mcp", about, ann.headers)
        headers = {"accept": "application/json, text/event-stream", "mcp-session-id": session}
        counts = []
        for number in range(4):
            body = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": "increment"}}
            status, said = await ann.raw("sessions", "/mcp", body, headers)
            assert status == 200, said
            counts.append(said["result"]["content"][0]["text"])
        assert counts == ["1", "2", "3", "4"]

    use(main(), ann)


def _initialize(url: str, about: dict[str, Any], headers: dict[str, str]) -> str:
    import urllib.request

    body = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": about}).encode()
    both = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    request = urllib.request.Request(url, body, {**headers, **both})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(answer.headers["mcp-session-id"])


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_services_run_again_after_a_server_restart(how: signal.Signals, sandboxes: None) -> None:
    data = Path(tempfile.mkdtemp(prefix="aenv-t-", dir="/tmp"))
    asyncio.run(publish_all(data))

    async def before(served: Served) -> None:
        async with ApiClient(served.url) as api:
            await api.create_env_service("web@1.0.0", "plain", replicas=2, environment_variables={"COLOR": "red"})
            await api.create_env_service("web@1.0.0", "stored", pvc_name="kept", storage_size="10Mi")
            for name in ("plain", "stored"):
                assert (await api.get_env_service(name, wait=20)).status == "Running"
        url = f"{served.url}/service/stored"
        status, said = await asyncio.to_thread(fetch, url, "/functions/write", {"name": "one", "size": 1})
        assert (status, said["data"]) == (200, "written")

    async def after(served: Served) -> None:
        async with ApiClient(served.url) as api:
            for name in ("plain", "stored"):
                found = await api.get_env_service(name, wait=20)
                assert (found.status, found.available_replicas) == ("Running", found.replicas), found
            assert len(await api.list_env_instances()) == 3
        said = await asyncio.to_thread(fetch, f"{served.url}/service/plain", "/functions/who", {})
        assert (said[1]["data"]["version"], said[1]["data"]["color"]) == ("1.0.0", "red")
        assert (await asyncio.to_thread(fetch, f"{served.url}/service/stored", "/functions/names", {}))[1]["data"] == [
            "one"
        ]

    try:
        with serving(data, auth=False) as served:
            run(before(served))
            served.process.send_signal(how)
            served.process.wait(30)
        with serving(data, auth=False) as served:
            run(after(served))
    finally:
        _remove(data)


@pytest.mark.long
def test_the_service_command_covers_the_whole_life_of_a_service(served: Served, tmp_path: Path) -> None:
    users = user_with_token(served, "cli")
    user = next(users)
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "name": "web",
                "version": "1.0.0",
                "deployConfig": {
                    "memory": "1Gi",
                    "service": {"enableStorage": True, "storageSize": "10Mi", "storageName": "kept-by-cli"},
                },
            }
        )
    )
    token = user.headers["authorization"][7:]
    env = {**environ(served.data), "AENV_SYSTEM_URL": served.url, "AENV_API_KEY": token}

    def aenv(*args: str, code: int = 0, json_output: bool = True) -> Any:
        words = [sys.executable, "-m", "aenv.cli", "service", *args, *(["--output", "json"] if json_output else [])]
        done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == code, done.stderr
        if code:
            return done.stderr
        return json.loads(done.stdout) if json_output else done.stdout

    made = aenv("create", "-s", "by-cli", "-e", "COLOR=red", "--wait", "30")
    assert (made["status"], made["pvc_name"], made["environment_variables"]) == (
        "Running", "kept-by-cli", {"COLOR": "red"},
    )  # fmt: skip
    assert [each["id"] for each in aenv("list", "-n", "web")] == ["by-cli"]
    assert aenv("update", "by-cli", "--version", "1.1.0", "-e", "COLOR=blue", "--wait", "30")["revision"] == 2
    assert "1.2.0 failed" in aenv("update", "by-cli", "--version", "1.2.0", "--wait", "30", code=1)
    assert aenv("update", "by-cli", "--replicas", "0", "--wait", "30")["available_replicas"] == 0
    assert "nothing to change" in aenv("update", "by-cli", code=2)
    assert aenv("get", "by-cli")["events"][0]["type"] == "created"
    assert "Storage Name  kept-by-cli" in aenv("get", "by-cli", json_output=False)
    assert "1 replica" in aenv("create", "web", "-r", "2", "--enable-storage", code=2)
    assert aenv("logs", "by-cli", json_output=False) == ""
    assert aenv("delete", "by-cli", "-y", "--delete-storage")["storage_deleted"] is True
    assert "aenv service list" in aenv("delete", "by-cli", "-y", code=1)
    next(users, None)
