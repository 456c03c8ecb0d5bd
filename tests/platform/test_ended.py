"""Records of ended instances: reason, events and log, for an hour and within bounds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aenv.client.platform_client import ApiClient
from aenv.engines.base import Exit, SandboxRef
from aenv.errors import InstanceEnded, NotFound
from aenv.platform.access.platform_tokens import OWNER, Caller
from aenv.platform.instances import ended
from aenv.platform.instances.ended import EndedInstances
from aenv.platform.instances.ledger import ENDED_TTL_SECONDS
from aenv.platform.instances.lifecycle import Instances
from aenv.schema.instances import EnvInstanceCreateRequest, EnvStatus
from aenv.storage.sqlite import SqliteStore
from tests.conftest import run
from tests.platform.parts import serving
from tests.platform.test_orphan_sandboxes import Counting


class Talking(Counting):
    """An engine whose sandboxes have all logged a line."""

    exit = Exit(0, "gone")

    async def poll(self, ref: SandboxRef) -> Exit | None:
        return None if ref.id in self.refs else self.exit

    def logs(self, ref: SandboxRef) -> str:
        return f"{ref.id} was here\n" if ref.id in self.refs or self.exit.cause != "lost" else ""


@pytest.fixture
def create_request(tmp_path: Path) -> EnvInstanceCreateRequest:
    (tmp_path / "env.py").write_text("")
    return EnvInstanceCreateRequest(envName="x", source=str(tmp_path), environment_variables={"KEY": "s3cret"})


def test_a_deleted_instance_keeps_its_reason_and_its_log(create_request: EnvInstanceCreateRequest) -> None:
    async def main() -> None:
        instances = Instances(Talking())
        made = await instances.create(create_request)
        await instances.delete(made.id)
        said = f"^instance {made.id} has ended: deleted$"
        with pytest.raises(NotFound, match=said):  # and not InstanceEnded, as existing clients expect
            await instances.get(made.id)
        with pytest.raises(NotFound, match=said):
            await instances.delete(made.id)
        with pytest.raises(InstanceEnded, match=said):
            instances.find(made.id)
        found = await instances.get(made.id, deleted=True)
        assert (found.status, found.reason, found.ended_by, found.fault) == (
            "Terminated", "deleted", "deleted", "infra",
        )  # fmt: skip
        assert instances.logs(made.id) == "0 was here\n"
        assert [event.type for event in instances.events(made.id)] == ["created", "running", "terminated"]
        with pytest.raises(InstanceEnded, match="has ended: deleted") as caught:
            instances.find(made.id)
        assert (caught.value.fault, caught.value.details["ended_by"]) == ("infra", "deleted")
        assert (await instances.page("*")).items == []
        other_user = Caller("bob", "user")
        for question in (
            instances.get(made.id, caller=other_user, deleted=True),
            instances.get_ended(made.id, other_user),
        ):
            with pytest.raises(NotFound):
                await question
        assert await instances.ended_error(made.id, other_user) is None

    run(main())


def test_an_instance_that_died_unnoticed_does_not_count_as_deleted(create_request: EnvInstanceCreateRequest) -> None:
    async def main() -> None:
        engine = Talking()
        engine.exit = Exit(3, "the environment's process ended with exit code 3", "exited")
        instances = Instances(engine)
        made = await instances.create(create_request)
        engine.refs.clear()
        await instances.delete(made.id)
        found = await instances.get(made.id)
        assert (found.ended_by, found.exit_code, found.fault) == ("exited", 3, "env")
        assert instances.logs(made.id) == "0 was here\n"
        with pytest.raises(NotFound):
            await instances.delete(made.id)

    run(main())


def test_the_next_server_on_the_store_still_knows_an_ended_instance(
    create_request: EnvInstanceCreateRequest, tmp_path: Path
) -> None:
    async def main() -> None:
        store = SqliteStore(tmp_path / "store.db")
        before = Instances(Talking(), ended=EndedInstances(store))
        deleted, stopped = await before.create(create_request), await before.create(create_request)
        await before.delete(deleted.id)
        await before.close()
        after = Instances(Talking(), ended=EndedInstances(store))
        assert (await after.get(deleted.id, deleted=True)).reason == "deleted"
        record = await after.get_ended(stopped.id, OWNER)
        assert (record.instance.reason, record.instance.ended_by) == ("the platform was stopped", "stopped")
        assert record.log == "1 was here\n"
        why = await after.ended_error(stopped.id)
        assert why is not None
        assert why.message == f"instance {stopped.id} has ended: the platform was stopped"
        with pytest.raises(NotFound):
            await after.get_ended("x-00000000")
        assert b"s3cret" not in b"".join(path.read_bytes() for path in tmp_path.glob("store.db*"))
        await store.close()

    run(main())


def test_an_ended_instance_is_forgotten_after_an_hour(create_request: EnvInstanceCreateRequest, tmp_path: Path) -> None:
    async def main() -> None:
        now = 0.0
        records = EndedInstances(clock=lambda: now)
        instances = Instances(Talking(), ended=records)
        made = await instances.create(create_request)
        await instances.delete(made.id)
        now = ENDED_TTL_SECONDS - 1
        assert (await instances.get(made.id, deleted=True)).status == EnvStatus.TERMINATED
        now = ENDED_TTL_SECONDS
        with pytest.raises(NotFound):
            await instances.get(made.id, deleted=True)
        await instances.sweep()
        assert len(records) == 0

    run(main())


def test_ended_records_are_bounded_and_deleted_ones_go_first(
    create_request: EnvInstanceCreateRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ended, "MOST", 5)
    monkeypatch.setattr(ended, "LOGS", 60)

    async def main() -> None:
        engine, store = Talking(), SqliteStore(tmp_path / "store.db")
        engine.exit = Exit(1, "died", "exited")
        records = EndedInstances(store)
        instances = Instances(engine, ended=records)
        died = [await instances.create(create_request) for _ in range(3)]
        engine.refs.clear()
        await instances.sweep()
        for _ in range(20):
            await instances.delete((await instances.create(create_request)).id)
        assert len(records) <= 3 + 5
        assert sum(len(record.last_log) for record in records) <= 60
        for each in died:
            assert (await instances.get(each.id)).reason == "died"
        await instances.close()
        written = [each async for each in store.dump()]
        assert {each.key for each in written} == {record.id for record in records}
        await store.close()

    run(main())


def test_a_restarted_platform_says_why_an_earlier_instance_ended(data: Path) -> None:
    """Over HTTP: an instance that was deleted before the restart, and one that ended with the server."""

    async def first(url: str) -> list[str]:
        from aenv.sdk.environment import Environment

        names = []
        async with ApiClient(url) as api:
            for _ in range(2):
                async with Environment("counter", aenv_url=url, keep_alive=True) as env:
                    await env.call_tool("speak", {"text": "heard"})
                    names.append((await env.get_env_info())["instance_id"])
            await api.delete_env_instance(names[0])
        return names

    async def second(url: str, names: list[str]) -> None:
        async with ApiClient(url) as api:
            for name, reason in zip(names, ("deleted", "the platform was stopped"), strict=True):
                found = await api.get_env_instance(name, deleted=True)
                assert (found.status, found.reason, found.fault) == ("Terminated", reason, "infra")
                assert await api.get_instance_logs(name) == "heard\n"
                assert (await api.get_instance_events(name))[-1].message == reason
                assert "".join([text async for text in api.follow_instance_logs(name)]) == "heard\n"

    with serving(data, auth=False) as platform:
        names = asyncio.run(first(platform.url))
    with serving(data, auth=False) as platform:
        asyncio.run(second(platform.url, names))
