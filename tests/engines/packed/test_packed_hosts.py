"""Instances on packed hosts: placing, draining, losing a host, and room."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from aenv.engines.base import Exit
from aenv.errors import CapacityExhausted, ImageUnavailable, LoadError, Unavailable
from aenv.isolation.limits.cgroups import Limits
from aenv.isolation.network.policy import Network
from tests.conftest import run
from tests.engines.packed.hosts_here import LIMITS, packed
from tests.waiting import wait_until


def test_a_host_gets_a_project_once_and_sees_its_code(tmp_path: Path) -> None:
    async def main() -> None:
        async with packed(tmp_path) as made:
            ref = await made.start("one", made.spec(variables={"A": "1"}, tenant="t"))
            assert (ref.id, ref.healthy, ref.isolation) == ("one", True, "confined")
            assert made.hosts.exit_of("one") is None
            await made.start("two", made.spec(tenant="t"))
            (engine,) = made.pods.engines.values()
            first, second = engine.specs.values()
            assert first.project == second.project != made.spec().project
            assert (first.project / "env.py").read_text() == "# one"
            assert first.variables == {"A": "1"}
            assert made.hosts.count == 1

    run(main())


def test_hosts_are_added_up_to_the_limit_and_then_creates_fail_as_no_room(tmp_path: Path) -> None:
    async def main() -> None:
        async with packed(tmp_path) as made:
            await asyncio.gather(*(made.start(f"n{number}") for number in range(4)))
            assert made.hosts.count == made.pods.made == 2
            with pytest.raises(CapacityExhausted, match="all 2 hosts are full"):
                await made.start("n4")
            await made.hosts.stop("n0")
            await made.start("n5")
            assert made.pods.made == 2

    run(main())


def test_a_create_that_waits_gets_the_room_of_an_instance_that_ends(tmp_path: Path) -> None:
    async def main() -> None:
        async with packed(tmp_path, replace(LIMITS, hosts=1, wait_seconds=30.0)) as made:
            await asyncio.gather(made.start("a"), made.start("b"))
            waiting = asyncio.ensure_future(made.start("c"))
            await made.hosts.stop("a")
            assert (await waiting).id == "c"

    run(main())


def test_a_cancelled_create_gives_its_room_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with packed(tmp_path, replace(LIMITS, hosts=1)) as made:
            await made.start("a")
            (engine,) = made.pods.engines.values()
            engine.slow.clear()
            creating = asyncio.ensure_future(made.start("b"))
            await wait_until(lambda: made.hosts.has("b"))
            creating.cancel()
            with pytest.raises(asyncio.CancelledError):
                await creating
            engine.slow.set()
            await made.start("c")
            assert made.hosts.names == ["a", "c"]
            assert len(engine.specs) == 2

    run(main())


def test_tenants_and_networks_do_not_share_a_host_unless_told_to(tmp_path: Path) -> None:
    async def main() -> None:
        for share, hosts in ((False, 3), (True, 2)):
            async with packed(tmp_path / str(share), replace(LIMITS, hosts=9, share=share)) as made:
                await made.start("a", made.spec(tenant="ann"))
                await made.start("b", made.spec(tenant="bob"))
                await made.start("c", made.spec(tenant="bob", network=Network("host")))
                assert made.pods.made == hosts

    run(main())


def test_a_lost_host_ends_its_instances_as_infrastructure_and_nothing_else(tmp_path: Path) -> None:
    async def main() -> None:
        async with packed(tmp_path) as made:
            await asyncio.gather(*(made.start(f"n{number}") for number in range(3)))
            lost = next(iter(made.pods.servers))
            before = {name: made.hosts.host_of(name) for name in made.hosts.names}
            on_lost = {name for name, host in before.items() if host is not None and host.name == lost}
            await made.pods.lose(lost)
            await wait_until(lambda: any(made.hosts.exit_of(name) for name in before))
            for name in before:
                how = made.hosts.exit_of(name)
                assert (how is not None) == (name in on_lost)
                assert how is None or (how.fault, "its node is gone" in how.reason) == ("infra", True)
            for name in on_lost:
                await made.hosts.stop(name)
            await made.start("again")
            assert made.hosts.exit_of("again") is None

    run(main())


def test_the_end_of_an_instance_is_known_with_its_reason(tmp_path: Path) -> None:
    async def main() -> None:
        async with packed(tmp_path) as made:
            await asyncio.gather(made.start("a"), made.start("b"))
            (engine,) = made.pods.engines.values()
            engine.ends["sandbox-0"].set_result(Exit(-9, "out of memory", "out_of_memory"))
            await wait_until(lambda: made.hosts.exit_of("a"))
            assert made.hosts.exit_of("a") == Exit(-9, "out of memory", "out_of_memory")
            assert made.hosts.exit_of("b") is None

    run(main())


def test_a_host_that_is_leaving_keeps_its_instances_and_gets_no_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with packed(tmp_path) as made:
            await made.start("a")
            (first,) = made.pods.servers
            made.pods.leaving[first].set()
            await wait_until(lambda: not made.hosts.host_of("a").accepting)  # type: ignore[union-attr]
            await made.start("b")
            assert made.pods.made == 2
            assert made.hosts.exit_of("a") is None

    run(main())


def test_a_host_that_drains_itself_is_left_and_another_takes_the_create(tmp_path: Path) -> None:
    async def main() -> None:
        async with packed(tmp_path) as made:
            await made.start("a")
            (server,) = made.pods.servers.values()
            server.drain()
            drained = asyncio.ensure_future(server.until_drained())
            await made.start("b")
            assert made.pods.made == 2
            await made.hosts.stop("a")
            await drained

    run(main())


def test_an_empty_host_is_removed_after_a_while(tmp_path: Path) -> None:
    async def main() -> None:
        async with packed(tmp_path, replace(LIMITS, idle_seconds=0.0)) as made:
            await made.start("a")
            await asyncio.sleep(0)
            assert made.hosts.count == 1
            await made.hosts.stop("a")
            await wait_until(lambda: made.hosts.count == 0 and not made.pods.servers)

    run(main())


def test_errors_of_the_author_and_of_the_cluster_keep_their_kind(tmp_path: Path) -> None:
    async def main() -> None:
        async with packed(tmp_path) as made:
            made.pods.error = ImageUnavailable("no such image")
            with pytest.raises(ImageUnavailable, match="no such image"):
                await made.start("a")
            made.pods.error = None
            await made.start("b")
            (engine,) = made.pods.engines.values()
            engine.error = LoadError("no module named x")
            with pytest.raises(LoadError, match="no module named x"):
                await made.start("c")
            assert made.hosts.names == ["b"]

    run(main())


def test_a_host_that_has_removed_a_project_gets_it_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with packed(tmp_path, replace(LIMITS, hosts=1)) as made:
            await made.start("a")
            await made.hosts.stop("a")
            for number in range(33):  # more than a host keeps
                await made.start(f"n{number}", made.spec(f"other{number}"))
                await made.hosts.stop(f"n{number}")
            await made.start("b")
            assert made.hosts.exit_of("b") is None

    run(main())


def test_memory_that_requests_reserve_counts_for_the_room(tmp_path: Path) -> None:
    async def main() -> None:
        limits = replace(LIMITS, size=replace(LIMITS.size, memory=100 << 20), hosts=1)
        async with packed(tmp_path, limits) as made:
            await made.start("a", made.spec(requests=Limits(memory=90 << 20)))
            with pytest.raises(CapacityExhausted):
                await made.start("b", made.spec(requests=Limits(memory=20 << 20)))

    run(main())


def test_after_the_close_nothing_is_created(tmp_path: Path) -> None:
    async def main() -> None:
        async with packed(tmp_path) as made:
            await made.start("a")
            await made.hosts.close()
            with pytest.raises(Unavailable, match="stopping"):
                await made.start("b")

    run(main())
