"""Concurrent pushes of one version through two servers that share a store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager

from aenv.client.hub_client import HubClient
from aenv.errors import Conflict
from aenv.schema.bundle import parse
from tests.conftest import run
from tests.hub.parts import Served, push

ROUNDS = 20


def test_one_of_two_concurrent_pushes_to_two_servers_wins_and_the_other_conflicts(
    serve: Callable[..., AbstractContextManager[Served]],
) -> None:
    async def use(first: str, second: str) -> None:
        clients = [HubClient(first), HubClient(second)]
        winners = set()
        for number in range(ROUNDS):
            version = f"1.0.{number}"
            results = await asyncio.gather(
                *(push(client, "race", version, f"{number} {at}") for at, client in enumerate(clients)),
                return_exceptions=True,
            )
            lost = [at for at, result in enumerate(results) if isinstance(result, Conflict)]
            assert len(lost) == 1, results
            winner = 1 - lost[0]
            winners.add(winner)
            for client in clients:
                found = await client.get("race", version)
                bundle = parse(await client.get_blob(found.digest))
                assert await client.get_blob(bundle.files[0].blobs[0]) == f"{number} {winner}".encode()
        for client in clients:
            assert (await client.get("race")).version == f"1.0.{ROUNDS - 1}"
            assert (await client.get("race")).versions == ROUNDS
            assert len((await client.versions("race")).items) == ROUNDS
            await client.close()

    with serve() as first, serve() as second:
        run(use(first.url, second.url))
