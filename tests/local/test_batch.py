"""Batches whose instances differ, and resources per create, on the local platform."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aenv import Environment, EnvironmentError, SyncEnvironment
from tests.conftest import run
from tests.local_instances import instance_of, local_api

ITEMS = [
    {"seed": 7, "environment_variables": {"TASK": "one"}, "labels": {"task": "1"}, "arguments": ["--first"]},
    {"seed": 8, "environment_variables": {"COMMON": "other"}, "datasource": "d2"},
    {},
]


async def seen_by(env: Environment) -> dict[str, Any]:
    """What an instance was given."""
    names = ("TASK", "COMMON", "AENV_SEED", "AENV_DATASOURCE")
    values = {name: (await env.call_tool("variable", {"name": name})).data for name in names}
    return {
        **values,
        "arguments": (await env.call_tool("arguments")).data,
        "labels": (await instance_of(env)).labels,
    }


def test_each_instance_of_a_batch_has_its_own_variables_arguments_labels_and_seed(project: Path) -> None:
    async def main() -> list[dict[str, Any]]:
        common = {"environment_variables": {"COMMON": "yes"}, "labels": {"run": "r"}, "arguments": ["--all"]}
        async with Environment.batch(str(project), items=ITEMS, **common) as batch:  # type: ignore[arg-type]
            return [await seen_by(env) for env in await batch.all()]

    assert run(main()) == [
        {
            "TASK": "one", "COMMON": "yes", "AENV_SEED": "7", "AENV_DATASOURCE": None, "arguments": ["--first"],
            "labels": {"run": "r", "task": "1"},
        },
        {
            "TASK": None, "COMMON": "other", "AENV_SEED": "8", "AENV_DATASOURCE": "d2", "arguments": ["--all"],
            "labels": {"run": "r"},
        },
        {
            "TASK": None, "COMMON": "yes", "AENV_SEED": None, "AENV_DATASOURCE": None, "arguments": ["--all"],
            "labels": {"run": "r"},
        },
    ]  # fmt: skip


def test_a_batch_without_async_yields_its_environments_and_releases_them(project: Path) -> None:
    with SyncEnvironment.batch(str(project), items=[{"seed": number} for number in range(3)]) as batch:
        seeds = {env.call_tool("variable", {"name": "AENV_SEED"}).data for env in batch}
        assert [env.call_tool("variable", {"name": "AENV_SEED"}).data for env in batch.all()] == ["0", "1", "2"]
        handles = batch.environments
    assert seeds == {"0", "1", "2"}
    assert all("not started" in repr(env) for env in handles)


def test_a_create_may_ask_for_other_resources_than_its_config_json(project: Path) -> None:
    async def main(**options: Any) -> tuple[Any, int]:
        async with Environment(str(project), **options) as env:
            done = await env.exec("dd if=/dev/zero of=/tmp/large bs=1M count=64")
            assert ("No space left" in done.stderr) == (done.exit_code != 0), done  # the message is not lost
            return (await instance_of(env)).resources, done.exit_code

    resources, code = run(main(memory="96Mi", storage="32Mi"))
    assert (resources.memory, resources.storage, resources.gpu) == (96 << 20, 32 << 20, 0)
    assert code != 0
    assert run(main()) == (None, 0)


def test_what_the_engine_cannot_give_is_refused_by_name(project: Path) -> None:
    with pytest.raises(
        EnvironmentError, match=r"gpu: this platform's engine cannot give an instance 1; it can set: .*memory"
    ):
        run(Environment(str(project), gpu=1).initialize())
    with pytest.raises(EnvironmentError, match="memory: 'lots' is not a size; write it like 2Gi"):
        run(Environment(str(project), memory="lots").initialize())

    async def batch() -> None:
        async with Environment.batch(str(project), 2, gpu=1):
            raise AssertionError("it must not start")

    with pytest.raises(EnvironmentError, match="gpu: this platform's engine"):
        run(batch())


def test_a_batch_that_is_released_leaves_no_instance_even_if_some_had_ended_before(project: Path) -> None:
    async def main() -> None:
        async with Environment.batch(str(project), 5) as batch:
            first, second, *_ = await batch.all()
            created = [env.instance_id for env in batch.environments]
            async with local_api() as api:
                assert await api.delete_env_instance(str(first.instance_id))
            await second.release()
        assert None not in created
        async with local_api() as api:
            assert {instance.id for instance in await api.list_env_instances()}.isdisjoint(created)
            assert await api.delete_env_instances([str(first.instance_id), "never-existed"]) == {}

    run(main())
