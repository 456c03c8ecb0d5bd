"""Contract tests for services that implement the standard engine contract.

Subclass `StandardContract` with a ``service`` fixture to run them on a service. If the service does not take
environments as a ``codeUrl`` on its own machine, but as an image for example, override the ``environment`` fixture too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic_core import from_json, to_json

from aenv.client.instance_client import InstanceClient
from aenv.errors import NetworkError
from aenv.http.client import HttpClient
from aenv.http.url import ServerUrl
from aenv.schema import paths
from aenv.testing.contracts import SOURCE

SECONDS = 300.0


class ServiceAt(NamedTuple):
    """Address of a service."""

    url: str
    token: str = ""


class StandardContract:
    """Contract of every service. The ``service`` fixture is the `ServiceAt` of a service that runs nothing else."""

    @pytest.fixture
    def environment(self, tmp_path: Path) -> dict[str, Any]:
        """Return an environment with the tools ``increment`` and ``variable`` of `aenv.testing.contracts.SOURCE`."""
        (tmp_path / "env.py").write_text(SOURCE)
        return {"name": "contract", "version": "1.0.0", "codeUrl": f"file://{tmp_path}", "deployConfig": {}}

    def test_an_instance_can_be_created_found_called_and_deleted(
        self, service: ServiceAt, environment: dict[str, Any]
    ) -> None:
        async def use(client: _ContractClient) -> None:
            made = await client.create(environment)
            assert (await client("GET", f"/{made['id']}"))["data"]["id"] == made["id"]
            for query in ("", "?envName=contract", "?envName=contract@1.0.0"):
                query = query.replace("contract", environment["name"]).replace("1.0.0", environment["version"])
                assert [each["id"] for each in (await client("GET", query))["data"]] == [made["id"]], query
            assert (await client("GET", "?envName=another"))["data"] in ([], None)
            assert await _increment(made) == "1"
            assert (await client("DELETE", f"/{made['id']}"))["success"] is True
            await client.wait_gone(made["id"])
            assert (await client("GET", ""))["data"] in ([], None)

        _run(service, use)

    def test_two_instances_of_one_environment_share_nothing(
        self, service: ServiceAt, environment: dict[str, Any]
    ) -> None:
        async def use(client: _ContractClient) -> None:
            one, other = await asyncio.gather(client.create(environment), client.create(environment))
            assert one["id"] != other["id"]
            assert [await _increment(each) for each in (one, one, other)] == ["1", "2", "1"]
            await asyncio.gather(*(client("DELETE", f"/{each['id']}") for each in (one, other)))

        _run(service, use)

    def test_variables_reach_the_environment(self, service: ServiceAt, environment: dict[str, Any]) -> None:
        async def use(client: _ContractClient) -> None:
            deploy = {**environment.get("deployConfig", {}), "environment_variables": {"MINE": "1"}}
            made = await client.create({**environment, "deployConfig": deploy, "deploy_config": deploy})
            assert await _call(made, "variable", name="MINE") == "1"
            await client("DELETE", f"/{made['id']}")

        _run(service, use)

    def test_an_unknown_instance_is_404_in_the_envelope(self, service: ServiceAt) -> None:
        async def use(client: _ContractClient) -> None:
            for method in ("GET", "DELETE"):
                answer = await client(method, "/no-such-instance", status=404)
                assert (answer["success"], answer["code"]) == (False, 404)
                assert answer["message"]

        _run(service, use)

    def test_a_request_without_an_environment_is_refused(self, service: ServiceAt) -> None:
        async def use(client: _ContractClient) -> None:
            bodies: tuple[Any, ...] = ({}, {"name": "x"}, [], "x")
            for body in bodies:
                answer = await client("POST", "", body, status=400)
                assert answer["success"] is False
            assert (await client("GET", ""))["data"] in ([], None)

        _run(service, use)

    def test_a_warm_up_request_is_accepted(self, service: ServiceAt, environment: dict[str, Any]) -> None:
        async def use(client: _ContractClient) -> None:
            assert (await client("PUT", "/action/warmup", environment))["success"] is True

        _run(service, use)


class _ContractClient:
    """Client that checks the envelope of every response."""

    def __init__(self, service: ServiceAt) -> None:
        self._http = HttpClient(ServerUrl.parse(service.url), token=service.token or None)

    async def __call__(self, method: str, rest: str, body: Any = None, *, status: int = 200) -> dict[str, Any]:
        sent = None if body is None else to_json(body)
        answer = await self._http.request(method, paths.STANDARD + rest, sent, timeout=SECONDS)
        envelope: dict[str, Any] = from_json(answer.body)
        assert answer.status == status, (method, rest, answer.status, envelope)
        assert {"success", "code", "data"} <= envelope.keys(), envelope
        assert envelope["code"] == (0 if status == 200 else status)
        return envelope

    async def create(self, environment: dict[str, Any]) -> dict[str, Any]:
        """Create an instance; return it once it runs and answers."""
        made: dict[str, Any] = (await self("POST", "", environment))["data"]
        async with asyncio.timeout(SECONDS):
            while made["status"] != "Running":
                assert made["status"] in ("Pending", "Creating"), made
                await asyncio.sleep(0.1)
                made = (await self("GET", f"/{made['id']}"))["data"]
            client = HttpClient(_url(made), token=made.get("token"))
            try:
                while not await _answers(client):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            finally:
                client.close()
        return made

    async def wait_gone(self, name: str) -> None:
        """Wait until an instance is gone: status 404, or reported as ended."""
        async with asyncio.timeout(SECONDS):
            while True:
                answer = await self._http.request("GET", f"{paths.STANDARD}/{name}", timeout=SECONDS)
                if answer.status == 404 or from_json(answer.body)["data"]["status"] in ("Terminated", "Failed"):
                    return
                await asyncio.sleep(0.1)

    def close(self) -> None:
        self._http.close()


def _run(service: ServiceAt, use: Callable[[_ContractClient], Awaitable[None]]) -> None:
    async def main() -> None:
        client = _ContractClient(service)
        try:
            await use(client)
        finally:
            client.close()

    asyncio.run(main())


async def _answers(client: HttpClient) -> bool:
    try:
        return (await client.request("GET", paths.HEALTH, timeout=10)).status == 200
    except NetworkError:
        return False


async def _increment(made: dict[str, Any]) -> str | None:
    return await _call(made, "increment")


async def _call(made: dict[str, Any], tool: str, **arguments: Any) -> str | None:
    client = InstanceClient(_url(made), token=made.get("token"))
    try:
        data = await client.call(f"{paths.TOOLS}/{tool}", arguments, timeout=60)
    finally:
        client.close()
    return data["content"][0]["text"] if data["content"] else None


def _url(made: dict[str, Any]) -> ServerUrl:
    return ServerUrl.parse(made.get("data_url") or made["ip"], default_port=paths.DATA_PORT)
