"""Batches whose instances differ, on a remote platform."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aenv.authoring.declarations import Registry
from aenv.client.platform_client import ApiClient
from aenv.errors import EnvironmentError
from aenv.sdk.environment import Environment
from tests.conftest import fetch, run
from tests.platform.parts import Served, serving
from tests.sdk.platform import platform as small_platform


@pytest.fixture
def remote(data: Path) -> Iterator[Served]:
    with serving(data, "--pool", "0", auth=False) as served:
        yield served


def test_a_batch_of_different_instances_is_one_request(remote: Served, data: Path) -> None:
    async def main() -> list[Any]:
        items = [{"environment_variables": {"TASK": f"t{n}"}, "labels": {"n": str(n)}, "seed": n} for n in range(4)]
        async with (
            Environment.batch("counter", items=items, aenv_url=remote.url) as batch,
            ApiClient(remote.url) as api,
        ):
            found = []
            for env in await batch.all():
                names = [(await env.call_tool("variable", {"name": name})).data for name in ("TASK", "AENV_SEED")]
                found.append((*names, (await api.get_env_instance(str(env.instance_id))).labels))
            return found

    assert run(main()) == [(f"t{n}", str(n), {"n": str(n)}) for n in range(4)]
    audit = (data / "platform" / "audit.jsonl").read_text().splitlines()
    assert [json.loads(line)["action"] for line in audit].count("create") == 1


def test_items_are_checked_like_requests(remote: Served) -> None:
    request = {"envName": "counter", "items": [{}, {"environment_variables": {"A=B": "x"}}]}
    status, answer = fetch(remote.url, "/env-instance", request)
    assert status == 400
    assert "environment_variables: invalid name 'A=B'" in answer["message"]
    status, answer = fetch(remote.url, "/env-instance", {"envName": "counter", "count": 3, "items": [{}]})
    assert status == 400
    assert "count is 3, but there are 1 items" in answer["message"]


def test_a_platform_that_does_not_know_items_gets_a_request_for_each(registry: Registry) -> None:
    async def main() -> list[Any]:
        async with small_platform(registry) as earlier:
            items = [{"environment_variables": {"TASK": name}} for name in ("a", "b")]
            async with Environment.batch("counter", items=items, aenv_url=earlier.url) as batch:
                await batch.all()
                live = [earlier.created[int(name.rpartition("-")[2]) - 1] for name in earlier.instances]
            return sorted(each["environment_variables"]["TASK"] for each in live)

    assert run(main()) == ["a", "b"]


def test_a_platform_that_ignores_resources_is_not_taken_at_its_word(registry: Registry) -> None:
    async def main() -> None:
        async with small_platform(registry) as earlier:
            with pytest.raises(EnvironmentError, match="does not support memory="):
                await Environment("counter", memory="8Gi", aenv_url=earlier.url).initialize()
            assert earlier.instances == {}

    run(main())
