"""Admission on a full platform: the order of the queue, timeouts and abandoned requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aenv.client.platform_client import ApiClient
from aenv.errors import CapacityExhausted, Overloaded, QuotaExceeded
from aenv.platform.instances.admission import Admission, AdmissionTicket, Capacity
from aenv.platform.instances.machine_capacity import MachineBound
from aenv.platform.operations.metrics import Metrics
from aenv.sdk.environment import Environment
from tests.conftest import fetch, run
from tests.platform.parts import Served, serving

CAPACITY = 3


@pytest.fixture
def full(data: Path) -> Iterator[Served]:
    """A platform with a capacity of three instances."""
    with serving(data, "--max-instances", str(CAPACITY), "--queue-seconds", "30", "--pool", "0", auth=False) as served:
        yield served


def order_of(admission: Admission, tickets: list[AdmissionTicket]) -> list[str]:
    """Return the order of admission if each admitted ticket is released at once."""
    order: list[str] = []
    while len(order) < len(tickets):
        inside = [ticket for ticket in tickets if ticket.admitted and ticket.count]
        order += [f"{ticket.experiment}/{ticket.owner}" for ticket in inside]
        for ticket in inside:
            for _ in range(ticket.count):
                ticket.release()
    return order


def test_experiments_take_turns_and_so_do_owners_within_one() -> None:
    async def main() -> list[str]:
        admission = Admission(Capacity(alive=1))
        pairs = [("wave", "ann")] * 4 + [("wave", "bob")] * 2 + [("small", "cyd")] * 2
        return order_of(admission, [admission.request(experiment, owner, 1) for experiment, owner in pairs])

    order = run(main())
    assert order == [
        "wave/ann",  # admitted at once
        "wave/ann", "small/cyd", "wave/bob", "small/cyd", "wave/ann", "wave/bob", "wave/ann",
    ]  # fmt: skip


def test_an_account_gains_no_share_by_naming_many_experiments_and_owners() -> None:
    async def main() -> list[str]:
        admission = Admission(Capacity(alive=1))
        inside = admission.request("", "cyd", 1, account="cyd")
        many = [admission.request(f"e{number}", f"o{number}", 1, account="ann") for number in range(4)]
        few = [admission.request("", "bob", 1, account="bob") for _ in range(2)]
        return order_of(admission, [inside, *many, *few])

    assert run(main()) == ["/cyd", "e0/o0", "/bob", "e1/o1", "/bob", "e2/o2", "e3/o3"]


def test_a_group_is_charged_for_each_of_its_instances() -> None:
    async def main() -> list[str]:
        admission = Admission(Capacity(alive=4))
        first = admission.request("first", "", 4)
        groups = [admission.request("groups", "", 4) for _ in range(2)]
        single = [admission.request("single", "", 1) for _ in range(4)]
        return order_of(admission, [first, *groups, *single])

    assert run(main()) == ["first/", "groups/", *["single/"] * 4, "groups/"]


def test_groups_that_together_do_not_fit_never_hold_half_each() -> None:
    async def main() -> None:
        admission = Admission(Capacity(alive=4))
        one, other, small = admission.request("a", "", 3), admission.request("b", "", 3), admission.request("c", "", 1)
        assert (one.admitted, other.admitted, small.admitted) == (True, False, False)
        one.release()
        assert not other.admitted
        one.release()
        assert other.admitted
        assert not small.admitted
        one.release()
        assert small.admitted
        with pytest.raises(QuotaExceeded, match="5 instances were requested at once"):
            admission.request("d", "", 5)

    run(main())


@given(
    st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from("12"), st.integers(1, 4)), max_size=25),
    st.lists(st.integers(0, 30), max_size=60),
)
def test_capacity_is_never_exceeded_and_every_ticket_is_admitted(
    requests: list[tuple[str, str, int]], releases: list[int]
) -> None:
    async def main() -> None:
        metrics = Metrics()
        admission = Admission(Capacity(alive=4), metrics)
        tickets: list[AdmissionTicket] = []
        for number in range(max(len(requests), len(releases))):
            if number < len(requests):
                experiment, owner, count = requests[number]
                tickets.append(admission.request(experiment, owner, count))
            if number < len(releases) and releases[number] < len(tickets):
                tickets[releases[number]].release()
            assert sum(ticket.count for ticket in tickets if ticket.admitted) <= 4
        while left := [ticket for ticket in tickets if ticket.admitted and ticket.count]:
            left[0].release()
        assert not [ticket for ticket in tickets if ticket.waiting and ticket.count]
        assert "queue_length{" not in metrics.text()

    run(main())


def test_existing_instances_count_even_above_the_capacity() -> None:
    async def main() -> None:
        admission = Admission(Capacity(alive=1))
        existing = [admission.admit_existing("old", "") for _ in range(2)]
        late = admission.request("new", "", 1)
        existing[0].release()
        assert not late.admitted
        existing[1].release()
        assert late.admitted

    run(main())


def test_a_create_that_the_machine_has_no_room_for_waits_and_is_then_refused_by_the_name_of_the_resource() -> None:
    async def main() -> None:
        bound = MachineBound(1, "open files of the platform (1,024)")
        admission = Admission(Capacity(wait=0.01).bounded_by(bound))
        inside, waiting = admission.request("", "", 1), admission.request("", "", 1)
        assert inside.admitted
        assert "open files of the platform (1,024)" in admission.queue_reason(waiting)
        with pytest.raises(CapacityExhausted, match=r"open files of the platform \(1,024\)") as refused:
            await waiting.wait()
        assert (refused.value.code, refused.value.retryable) == ("capacity", True)
        assert refused.value.details["retry_after"] > 0
        with pytest.raises(QuotaExceeded, match=r"at most 1, limited by open files of the platform \(1,024\)"):
            admission.request("", "", 2)  # no wait would help

    run(main())


def test_a_number_of_instances_that_an_administrator_chose_stays() -> None:
    assert Capacity(alive=5).bounded_by(MachineBound(1, "memory")) == Capacity(alive=5)
    assert Capacity().bounded_by(None) == Capacity()


def test_concurrent_creates_are_bounded_and_a_cancelled_one_takes_no_slot() -> None:
    async def main() -> None:
        admission = Admission(Capacity(creating=2))
        creating = most = 0

        async def create() -> None:
            nonlocal creating, most
            await admission.acquire_create_slot()
            creating += 1
            most = max(most, creating)
            await asyncio.sleep(0)
            creating -= 1
            admission.release_create_slot()

        tasks = [asyncio.create_task(create()) for _ in range(9)]
        await asyncio.sleep(0)
        tasks[4].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert most == 2
        await asyncio.wait_for(asyncio.gather(create(), create()), 5)

    run(main())


@pytest.mark.long
def test_a_create_is_listed_as_pending_until_another_instance_ends(full: Served) -> None:
    async def main() -> None:
        async with ApiClient(full.url) as api:
            made = [await api.create_env_instance("counter", labels={"experiment": "wave"}) for _ in range(CAPACITY)]
            waiting = asyncio.create_task(api.create_env_instance("counter", labels={"experiment": "late"}))
            while not (page := await api.page_env_instances(status="Pending")).items:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            (pending,) = page.items
            assert pending.created_at
            seen = await api.get_env_instance(pending.id)
            assert (seen.status, seen.reason) == (
                "Pending", "the platform is full (3 of 3 instances), and 0 are ahead in the queue",
            )  # fmt: skip
            status, text = await asyncio.to_thread(metrics, full)
            assert status == 200
            assert 'aenv_api_queue_length{experiment="late"} 1' in text
            assert 'aenv_api_places{state="used"} 3' in text
            await api.delete_env_instance(made[0].id)
            assert (await waiting).id == pending.id
            kinds = [event.type for event in await api.get_instance_events(pending.id)]
            assert kinds == ["created", "pending", "creating", "running"]
            _, text = await asyncio.to_thread(metrics, full)
            assert 'aenv_api_queue_total{experiment="late",outcome="admitted"} 1' in text
            assert "aenv_api_queue_wait_ms_count 1" in text

    run(main())


@pytest.mark.long
def test_a_create_that_waits_too_long_gets_a_retry_after(full: Served) -> None:
    async def main() -> None:
        async with ApiClient(full.url, max_retries=0) as api:
            await asyncio.gather(*(api.create_env_instance("counter") for _ in range(CAPACITY)))
            for seconds in (0, 0.1):
                request = {"envName": "counter", "queue_timeout": seconds}
                status, body = await asyncio.to_thread(fetch, full.url, "/env-instance", request)
                assert (status, body["error_code"]) == (503, "overloaded")
                assert body["details"]["retry_after"] >= 1
            group = await api.create_env_instances(2, envName="counter", queue_timeout=0.1)
            assert {each.status for each in group} <= {"Pending", "Creating"}
            for each in group:
                with pytest.raises(Overloaded, match=r"no capacity became free within 0\.1 s"):
                    await api.wait_for_status(each.id)
            with pytest.raises(QuotaExceeded, match="runs at most 3"):
                await api.create_env_instances(CAPACITY + 1, envName="counter")

    run(main())


@pytest.mark.long
def test_a_create_waits_no_longer_than_the_platform_says(data: Path) -> None:
    with serving(data, "--max-instances", "1", "--queue-seconds", "0.1", auth=False) as platform:

        async def main() -> None:
            async with ApiClient(platform.url, max_retries=0) as api:
                await api.create_env_instance("counter")
                with pytest.raises(Overloaded, match=r"no capacity became free within 0\.1 s"):
                    await api.create_env_instance("counter")  # the SDK asks for most of its own timeout

        run(main())


@pytest.mark.long
def test_a_batch_is_one_request_and_all_or_nothing(full: Served) -> None:
    async def main() -> None:
        async with Environment.batch("counter", CAPACITY, aenv_url=full.url) as batch:
            assert [(await env.call_tool("increment")).data for env in await batch.all()] == [1] * CAPACITY
        with pytest.raises(QuotaExceeded, match="runs at most 3"):
            async with Environment.batch("counter", CAPACITY + 1, aenv_url=full.url):
                pass

    run(main())
    audit = [json.loads(line) for line in (full.data / "platform" / "audit.jsonl").read_text().splitlines()]
    assert [each["status"] for each in audit if each["action"] == "create"][-2:] == [200, 403]


@pytest.mark.long
def test_a_client_that_disconnects_leaves_the_queue(full: Served) -> None:
    async def main() -> None:
        async with ApiClient(full.url) as api:
            made = await asyncio.gather(*(api.create_env_instance("counter") for _ in range(CAPACITY)))
            async with ApiClient(full.url) as other:
                gone = asyncio.create_task(other.create_env_instance("counter"))
                while not (await api.page_env_instances(status="Pending")).items:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                gone.cancel()
            last = asyncio.create_task(api.create_env_instance("counter"))
            while len(await api.list_env_instances()) != CAPACITY + 1:  # noqa: ASYNC110
                await asyncio.sleep(0.05)  # until only the connected client waits
            await api.delete_env_instance(made[0].id)
            assert (await last).status == "Running"
            assert len(await api.list_env_instances()) == CAPACITY

    run(main())


def test_two_waves_of_groups_both_finish(full: Served) -> None:
    """Each group needs all of its instances to go on, and together they need more than the capacity."""

    async def rollout(api: ApiClient, experiment: str) -> None:
        group = await api.create_env_instances(2, envName="counter", labels={"experiment": experiment})
        running = await asyncio.gather(*(api.wait_for_status(each.id, timeout=60) for each in group))
        await asyncio.gather(*(api.delete_env_instance(each.id) for each in running))

    async def main() -> None:
        async with ApiClient(full.url) as api:
            await asyncio.gather(*(rollout(api, experiment) for experiment in ("a", "b") for _ in range(4)))
            assert await api.list_env_instances() == []

    run(main())


def metrics(served: Served) -> tuple[int, str]:
    import urllib.request

    with urllib.request.urlopen(f"{served.url}/metrics", timeout=30) as answer:
        return answer.status, answer.read().decode()


@pytest.mark.long
def test_a_queued_create_says_what_it_waits_for(full: Served) -> None:
    request = {"envName": "counter", "request_id": "queued"}

    async def main() -> None:
        async with ApiClient(full.url) as api:
            made = [await api.create_env_instance("counter") for _ in range(CAPACITY)]
            queued = asyncio.create_task(asyncio.to_thread(fetch, full.url, "/env-instance", request))
            while True:  # until it is in the queue
                _, answer = await asyncio.to_thread(fetch, full.url, "/env-instance/activity?request_id=queued")
                if answer["data"]["waiting_for"] == "room on the platform, which is full":
                    break
                assert not queued.done(), queued.result()
            await api.delete_env_instance(made[0].id)
            assert (await queued)[0] == 200

    run(main())
