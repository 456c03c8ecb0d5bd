"""Quotas of a token: concurrent usage and the rate of creates."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aenv.client.platform_client import ApiClient
from aenv.errors import QuotaExceeded, RateLimited
from aenv.isolation.limits.cgroups import Limits
from aenv.platform.access.platform_tokens import Allowance, Caller
from aenv.platform.access.quota import Quota
from tests.conftest import fetch, run
from tests.platform.parts import Served


def caller(**allowance: float) -> Caller:
    return Caller("ann", "user", "t1", Allowance.model_validate(allowance))


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 5), st.integers(1, 4))
def test_a_quota_is_never_exceeded_and_all_usage_is_given_back(takes: list[bool], instances: int, cpus: int) -> None:
    quota, one, held = Quota(), Limits(cpus=1.0, memory=1 << 30), 0
    ann = caller(instances=instances, cpus=cpus, memory=3 << 30)
    most = min(instances, cpus, 3)
    for take in takes:
        if take:
            try:
                quota.take(ann, one)
                held += 1
            except QuotaExceeded:
                assert held == most
        elif held:
            quota.give_back("t1", one)
            held -= 1
        assert quota.used("t1").instances == held <= most
    for _ in range(held):
        quota.give_back("t1", one)
    assert quota.used("t1").memory == 0


def test_a_rate_limit_admits_a_burst_and_then_says_when_to_retry() -> None:
    now = 100.0
    quota = Quota(lambda: now)
    ann = caller(creates_per_second=5)
    for _ in range(10):
        quota.admit(ann, 1)
    with pytest.raises(RateLimited) as caught:
        quota.admit(ann, 4)
    assert caught.value.details["retry_after"] == 1
    now += 1.0
    quota.admit(ann, 4)
    now += 60.0
    quota.admit(ann, 1000)  # more than the bucket can hold: it leaves a debt, but is not refused forever
    with pytest.raises(RateLimited):
        quota.admit(ann, 1)


def test_the_settings_fill_in_limits_that_a_token_leaves_open() -> None:
    both = Allowance(instances=3).over(Allowance(instances=10, cpus=4))
    assert (both.instances, both.cpus) == (3, 4)


def test_a_token_creates_no_more_instances_than_its_allowance(platform: Served) -> None:
    token = platform.token("quinn", "user", "--instances", "2")

    async def main() -> None:
        async with ApiClient(platform.url, api_key=token) as api:
            first = await api.create_env_instance("counter")
            await api.create_env_instance("counter", ttl="1s")
            with pytest.raises(QuotaExceeded, match="2 of 2 instances"):
                await api.create_env_instance("counter")
            with pytest.raises(QuotaExceeded):
                await api.create_env_instances(5, envName="counter")
            while len(await api.list_env_instances()) > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.05)  # until its time to live frees the quota
            again = await api.create_env_instance("counter")
            await api.delete_env_instance(first.id)
            last = await api.create_env_instance("counter")
            for each in (again, last):
                await api.delete_env_instance(each.id)

    run(main())
    status, body = fetch(
        platform.url, "/env-instance", {"envName": "counter", "count": 3}, headers={"authorization": f"Bearer {token}"}
    )
    assert (status, body["error_code"]) == (403, "quota_exceeded")


def test_the_sdk_waits_and_retries_when_its_rate_is_limited(platform: Served) -> None:
    token = platform.token("rae", "user", "--rate", "1")

    async def main() -> None:
        async with ApiClient(platform.url, api_key=token, max_retries=8) as api:
            made = await asyncio.gather(*(api.create_env_instance("counter") for _ in range(4)))
            assert len({each.id for each in made}) == 4
            for each in made:
                await api.delete_env_instance(each.id)

    run(main())


def test_a_rate_limited_create_says_when_to_retry(platform: Served) -> None:
    header = {"authorization": f"Bearer {platform.token('rex', 'user', '--rate', '0.001')}"}
    status, body = fetch(platform.url, "/env-instance", {"envName": "counter"}, headers=header)
    assert status == 200
    name = body["data"]["id"]
    status, body = fetch(platform.url, "/env-instance", {"envName": "counter"}, headers=header)
    assert (status, body["error_code"]) == (429, "rate_limited")
    assert body["details"]["retry_after"] > 500
    assert fetch(platform.url, f"/env-instance/{name}", method="DELETE", headers=header)[0] == 200
