"""What every service of the standard engine contract must do.

Subclass it, give it a ``service`` fixture, and pytest runs it over yours. A service that takes environments in another
way than by a ``codeUrl`` on its own machine, an image say, also gives an ``environment`` fixture.
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
    """Where a service is."""

    url: str
    token: str = ""


class StandardContract:
    """``service`` is a fixture that gives a `ServiceAt`, on which nothing runs but what these tests ask for."""

    @pytest.fixture
    def environment(self, tmp_path: Path) -> dict[str, Any]:
        """One with the tools ``increment`` and ``variable`` of `aenv.testing.contracts.SOURCE`."""
        (tmp_path / "env.py").write_text(SOURCE)
        return {"name": "contract", "version": "1.0.0", "codeUrl": f"file://{tmp_path}", "deployConfig": {}}

    def test_an_instance_is_made_found_called_and_ended(self, service: ServiceAt, environment: dict[str, Any]) -> None:
        async def use(ask: _Ask) -> None:
            made = await ask.made(environment)
            assert (await ask("GET", f"/{made['id']}"))["data"]["id"] == made["id"]
            for query in ("", "?envName=contract", "?envName=contract@1.0.0"):
                query = query.replace("contract", environment["name"]).replace("1.0.0", environment["version"])
                assert [each["id"] for each in (await ask("GET", query))["data"]] == [made["id"]], query
            assert (await ask("GET", "?envName=another"))["data"] in ([], None)
            assert await _increment(made) == "1"
            assert (await ask("DELETE", f"/{made['id']}"))["success"] is True
            await ask.gone(made["id"])
            assert (await ask("GET", ""))["data"] in ([], None)

        _run(service, use)

    def test_two_of_one_environment_share_nothing(self, service: ServiceAt, environment: dict[str, Any]) -> None:
        async def use(ask: _Ask) -> None:
            one, other = await asyncio.gather(ask.made(environment), ask.made(environment))
            assert one["id"] != other["id"]
            assert [await _increment(each) for each in (one, one, other)] == ["1", "2", "1"]
            await asyncio.gather(*(ask("DELETE", f"/{each['id']}") for each in (one, other)))

        _run(service, use)

    def test_variables_reach_the_environment(self, service: ServiceAt, environment: dict[str, Any]) -> None:
        async def use(ask: _Ask) -> None:
            deploy = {**environment.get("deployConfig", {}), "environment_variables": {"MINE": "1"}}
            made = await ask.made({**environment, "deployConfig": deploy, "deploy_config": deploy})
            assert await _call(made, "variable", name="MINE") == "1"
            await ask("DELETE", f"/{made['id']}")

        _run(service, use)

    def test_what_is_not_there_is_404_in_the_envelope(self, service: ServiceAt) -> None:
        async def use(ask: _Ask) -> None:
            for method in ("GET", "DELETE"):
                said = await ask(method, "/no-such-instance", status=404)
                assert (said["success"], said["code"]) == (False, 404)
                assert said["message"]

        _run(service, use)

    def test_what_is_no_environment_is_refused(self, service: ServiceAt) -> None:
        async def use(ask: _Ask) -> None:
            bodies: tuple[Any, ...] = ({}, {"name": "x"}, [], "x")
            for body in bodies:
                said = await ask("POST", "", body, status=400)
                assert said["success"] is False
            assert (await ask("GET", ""))["data"] in ([], None)

        _run(service, use)

    def test_a_warm_up_may_be_asked_for(self, service: ServiceAt, environment: dict[str, Any]) -> None:
        async def use(ask: _Ask) -> None:
            assert (await ask("PUT", "/action/warmup", environment))["success"] is True

        _run(service, use)


class _Ask:
    """Requests, of which every answer must be in the envelope."""

    def __init__(self, service: ServiceAt) -> None:
        self._http = HttpClient(ServerUrl.parse(service.url), token=service.token or None)

    async def __call__(self, method: str, rest: str, body: Any = None, *, status: int = 200) -> dict[str, Any]:
        sent = None if body is None else to_json(body)
        answer = await self._http.request(method, paths.STANDARD + rest, sent, timeout=SECONDS)
        said: dict[str, Any] = from_json(answer.body)
        assert answer.status == status, (method, rest, answer.status, said)
        assert {"success", "code", "data"} <= said.keys(), said
        assert said["code"] == (0 if status == 200 else status)
        return said

    async def made(self, environment: dict[str, Any]) -> dict[str, Any]:
        """One that runs and answers."""
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

    async def gone(self, name: str) -> None:
        """404, or known for a while to have ended."""
        async with asyncio.timeout(SECONDS):
            while True:
                answer = await self._http.request("GET", f"{paths.STANDARD}/{name}", timeout=SECONDS)
                if answer.status == 404 or from_json(answer.body)["data"]["status"] in ("Terminated", "Failed"):
                    return
                await asyncio.sleep(0.1)

    def close(self) -> None:
        self._http.close()


def _run(service: ServiceAt, use: Callable[[_Ask], Awaitable[None]]) -> None:
    async def main() -> None:
        ask = _Ask(service)
        try:
            await use(ask)
        finally:
            ask.close()

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
