"""What a client of the earlier version does with a platform: tokens of its hub, versions, metrics."""

from __future__ import annotations

import pytest

from aenv.errors import AEnvError, QuotaExceeded, Unauthorized
from tests.conftest import fetch, run
from tests.platform.parts import Served


def _bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_a_token_that_the_hub_made_is_valid_for_instances(platform: Served) -> None:
    admin = platform.token("root", "admin")
    made = fetch(platform.url, "/token/", {"user": "bob", "maxInstanceCount": 1}, headers=_bearer(admin))[1]["data"]

    async def main() -> None:
        async with platform.environment("counter", made["token"]) as env:
            assert (await env.call_tool("increment")).data == 1
            info = await env.get_env_info()
            mine = fetch(platform.url, "/env-instance/*/list", headers=_bearer(made["token"]))[1]["data"]
            assert [each["id"] for each in mine] == [info["instance_id"]]
            with pytest.raises(QuotaExceeded):
                await platform.environment("counter", made["token"], max_retries=0).initialize()

    run(main())
    other = fetch(platform.url, "/api/v1/tokens", {"user": "eve", "scope": "push"}, headers=_bearer(admin))[1]["data"]
    with pytest.raises(AEnvError) as refused:
        run(platform.environment("counter", other["token"]).initialize())
    assert isinstance(refused.value, Unauthorized)


@pytest.mark.parametrize("name", ["counter", "counter@1", "counter@1.2.0"])
def test_the_version_in_an_instance_is_the_resolved_one(platform: Served, name: str) -> None:
    async def main() -> list[str]:
        async with platform.environment(name, platform.token("ann")) as env:
            return [(await env.call_tool("variable", {"name": each})).data for each in ("envNAME", "envversion")]

    assert run(main()) == ["counter", "1.2.0"]


def test_metrics_tell_the_uptime_of_each_instance(platform: Served) -> None:
    admin, token = platform.token("root", "admin"), platform.token("ann")

    async def main() -> None:
        async with platform.environment("counter", token, labels={"experiment": "e1"}) as env:
            name = (await env.get_env_info())["instance_id"]
            text = _text(platform.url, "/metrics", admin)
            line = next(line for line in text.splitlines() if f'instance_id="{name}"' in line)
            assert line.startswith("aenv_api_instance_uptime_seconds{")
            assert 'experiment="e1"' in line

    run(main())


def _text(url: str, path: str, token: str) -> str:
    import urllib.request

    request = urllib.request.Request(f"{url}{path}", headers=_bearer(token))
    with urllib.request.urlopen(request, timeout=20) as answer:
        return str(answer.read().decode())
