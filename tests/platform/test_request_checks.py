"""Invalid create requests, and requests beyond what a token may use."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from aenv.client.platform_client import ApiClient
from aenv.engines.base import SandboxRef, SandboxSpec
from aenv.errors import NotJson, QuotaExceeded, RateLimited
from aenv.http.messages import Request, Response
from aenv.platform.access.platform_tokens import Allowance, Caller
from aenv.platform.app import PlatformApp
from aenv.platform.instances.lifecycle import Instances
from aenv.schema.instances import EnvInstanceCreateRequest
from tests.conftest import run
from tests.platform.between import NoSources, OneEngine

BAD: dict[str, dict[str, Any]] = {
    "an empty variable name": {"environment_variables": {"": "x"}},
    "a variable name with an equals sign": {"environment_variables": {"A=B": "x"}},
    "a variable name with a NUL": {"environment_variables": {"A\0B": "x"}},
    "a variable name of a lone surrogate": {"environment_variables": {"\ud800": "x"}},
    "a value with a NUL": {"environment_variables": {"A": "x\0y"}},
    "a value of a lone surrogate": {"environment_variables": {"A": "\udcff"}},
    "a value that is a number": {"environment_variables": {"A": 1}},
    "a value that is null": {"environment_variables": {"A": None}},
    "variables that are a list": {"environment_variables": ["A"]},
    "an argument with a NUL": {"arguments": ["a", "b\0"]},
    "an argument that is an object": {"arguments": [{}]},
    "a datasource with a NUL": {"datasource": "a\0b"},
    "an owner with a NUL": {"owner": "a\0b"},
    "an environment name with a NUL": {"envName": "x\0"},
    "a request id with a NUL": {"request_id": "\0"},
    "an empty label name": {"labels": {"": "x"}},
    "a label name with an equals sign": {"labels": {"a=b": "x"}},
    "a label with a NUL": {"labels": {"a": "\0"}},
    "a megabyte of labels": {"labels": {"a": "x" * (1 << 20)}},
    "many copies of large labels": {"labels": {"a": "x" * 60_000}, "count": 10_000},
    "a time to live of zero": {"ttl": "0s"},
    "a negative time to live": {"ttl": "-1s"},
    "a time to live of a thousand years": {"ttl": "9000000h"},
    "no instances": {"count": 0},
}


class CountingEngine(OneEngine):
    """An engine that counts starts."""

    def __init__(self) -> None:
        super().__init__("/nowhere")
        self.started = 0

    async def start(self, spec: SandboxSpec) -> SandboxRef:
        self.started += 1
        return SandboxRef(f"s{self.started}", "unix:/nowhere", "t")


def new_instances() -> tuple[Instances, CountingEngine]:
    engine = CountingEngine()
    return Instances(engine, NoSources(), direct=False), engine


async def post(instances: Instances, fields: dict[str, Any]) -> Response:
    request = Request()
    request.method, request.path, request.target = "POST", "/env-instance", b"/env-instance"
    request.body = json.dumps({"envName": "x", **fields}).encode()
    answer = await PlatformApp(instances)(request)
    assert isinstance(answer, Response)
    return answer


def limited(rate: float = 0, instances: int = 0) -> Caller:
    return Caller("ann", "user", "t1", Allowance(creates_per_second=rate, instances=instances))


def create_request(**fields: Any) -> EnvInstanceCreateRequest:
    return EnvInstanceCreateRequest(envName="x", **fields)


@pytest.mark.attack("malformed creates")
@pytest.mark.parametrize("what", BAD)
def test_a_malformed_create_is_a_400_and_changes_nothing(what: str) -> None:
    async def main() -> None:
        instances, engine = new_instances()
        answer = await post(instances, BAD[what])
        assert answer.status in (400, 413), answer.body
        assert engine.started == 0
        assert not instances.in_use
        assert (await post(instances, {})).status == 200

    run(main())


def test_a_refused_create_is_not_charged() -> None:
    async def main() -> None:
        instances, _ = new_instances()
        ann = limited(rate=0.5)
        for _ in range(5):
            with pytest.raises(Exception, match="a name is empty"):
                await instances.create(create_request(environment_variables={"": "x"}), ann)
        await instances.create(create_request(), ann)
        assert instances.quota.used("t1").instances == 1

    run(main())


def test_a_request_that_json_cannot_encode_is_the_callers_fault() -> None:
    async def main() -> None:
        async with ApiClient("http://127.0.0.1:1") as api:
            with pytest.raises(NotJson) as caught:
                await api.create_env_instance("x", environment_variables={"A": "\ud800"})
            assert caught.value.fault == "caller"

    run(main())


@pytest.mark.attack("limits")
def test_a_create_of_many_instances_is_charged_for_each() -> None:
    async def main() -> None:
        instances, _ = new_instances()
        ann = limited(rate=5)  # a burst of ten, then five per second
        await instances.create_many(create_request(count=100), 100, ann)
        with pytest.raises(RateLimited) as caught:
            await instances.create(create_request(), ann)
        assert caught.value.details["retry_after"] >= 18  # a debt of 90

    run(main())


@pytest.mark.attack("limits")
def test_a_request_id_of_which_some_instances_exist_is_charged_for_the_others() -> None:
    async def main() -> None:
        instances, engine = new_instances()
        ann = limited(rate=5)
        await instances.create_many(create_request(request_id="r"), 1, ann)
        await instances.create_many(create_request(request_id="r"), 9, ann)
        with pytest.raises(RateLimited):
            await instances.create_many(create_request(request_id="r"), 50, ann)
        again = await instances.create_many(
            create_request(request_id="r"), 9, ann
        )  # all exist already: nothing is charged
        assert len({each.id for each in again}) == 9
        while engine.started < 9:  # noqa: ASYNC110
            await asyncio.sleep(0)

    run(main())


@pytest.mark.attack("limits")
def test_a_group_beyond_the_quota_is_not_started() -> None:
    async def main() -> None:
        instances, engine = new_instances()
        before = await instances.create_many(create_request(request_id="r"), 2, limited(instances=5))
        with pytest.raises(QuotaExceeded):
            await instances.create_many(create_request(request_id="r"), 1000, limited(instances=5))
        assert {each.id for each in (await instances.page("*")).items} == {each.id for each in before}
        assert engine.started <= 2

    run(main())


def test_a_time_to_live_of_zero_is_refused_and_the_old_one_stays() -> None:
    async def main() -> None:
        instances, _ = new_instances()
        one = await instances.create(create_request(ttl="10m"))
        for ttl in ("0s", "0", "-1s", "9000000h", "soon"):
            with pytest.raises(Exception, match="ttl: ") as caught:
                await instances.renew(one.id, ttl)
            assert (caught.value.status, caught.value.fault) == (400, "caller")  # type: ignore[attr-defined]
        assert (await instances.renew(one.id, "")).ttl == "10m"

    run(main())
