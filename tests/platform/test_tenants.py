"""Isolation of tenants: no route shows or changes what belongs to another user."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from aenv.client.hub_client import HubClient
from aenv.client.platform_client import ApiClient
from aenv.errors import Forbidden, NotFound
from aenv.hub.local_hub import LocalHub
from aenv.hub.open_hub import HubLocation, open_catalog
from aenv.platform.access.platform_tokens import Caller
from aenv.platform.instances.requests.env_sources import Sources
from aenv.schema.bundle import digest_of
from aenv.schema.instances import EnvInstanceCreateRequest, HubAccess
from tests.attacks.ledger import Attacks
from tests.conftest import fetch, run
from tests.hub.parts import push
from tests.hub.parts import serving as serving_hub
from tests.platform.parts import Served, environ, serving

Tokens = Callable[..., str]

CODE = """
from aenv import register_tool

WORD = "xyzzy-of-ann"

@register_tool
def word() -> str:
    return WORD
"""
WORD = "secret"
"""Part of every name that belongs to ann; must not be in any answer to bob."""
ENV, SERVICE, SPACE = "ann-secret-env", "ann-secret-service", "ann-secret-space"
DIGEST = digest_of(CODE.encode())


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def platform(published: Path) -> Iterator[Served]:
    with serving(published, "--metrics-port", "0") as served:
        yield served


@pytest.fixture(scope="module")
def ann(platform: Served, tokens: Tokens) -> dict[str, Any]:
    """Create an environment, an instance, a service and a namespace for ann, and a webhook for the administrator."""

    async def main() -> dict[str, Any]:
        hub, root = HubClient(platform.url, tokens("ann")), HubClient(platform.url, platform.first_token)
        async with ApiClient(platform.url, api_key=tokens("ann")) as api:
            await push(hub, ENV, "1.0.0", CODE, description="secret words", tags=["secret"])
            await root.reserve(SPACE, "ann")
            made = await api.create_env_instance(ENV, labels={"about": "secret"})
            await api.create_env_service(ENV, SERVICE)
            while (await api.get_env_service(SERVICE, wait=20)).status != "Running":  # noqa: ASYNC110
                await asyncio.sleep(0)
            digest = (await hub.get(ENV)).digest
            tasks = [{"id": "secret", "instruction": "x"}]
            [episode] = [each async for each in api.rollouts.run(environment=ENV, agent="nop", tasks=tasks)]
            [rollout] = await api.rollouts.list()
        await hub.close()
        await root.close()
        request_body = {"url": "http://127.0.0.1:9/secret"}
        status, hook = fetch(platform.url, "/api/v1/webhooks", request_body, headers=bearer(platform.first_token))
        assert status == 200
        return {
            "id": made.id,
            "ip": made.ip,
            "digest": digest,
            "hook": hook["data"]["id"],
            "rollout": rollout.id,
            "episode": episode.episode,
        }

    found: dict[str, Any] = run(main())
    return found


class Try(NamedTuple):
    """A request of bob for something that belongs to ann, and the statuses that may answer it."""

    path: str
    body: Any = None
    statuses: tuple[int, ...] = (403, 404)


REASON, VERSION = {"reason": "anns_hub now"}, f"/api/v1/environments/{ENV}/versions/1.0.0"
NONE = "sha256:" + "0" * 64
OWN = (200,)
"""A route about the caller's own things: bob gets an answer, with nothing of ann in it."""


def attempts(ann: dict[str, Any], tokens: Tokens) -> dict[tuple[str, str], Try]:
    """Return a request for every method and path of the OpenAPI document."""
    instance, service = f"/env-instance/{ann['id']}", f"/env-service/{SERVICE}"
    rollout = f"/rollouts/{ann['rollout']}"
    env, older, space = f"/api/v1/environments/{ENV}", f"/env/{ENV}/1.0.0", f"/api/v1/namespaces/{SPACE}"
    bundle = {"name": ENV, "version": "1.0.0", "files": [], "config": {"name": ENV, "version": "1.0.0"}}
    return {
        # instances
        ("POST", "/env-instance"): Try("/env-instance", {"envName": f"{ENV}@1.0.0"}),
        ("GET", "/env-instance/list"): Try("/env-instance/list?owner=ann&label=about%3Dsecret", None, OWN),
        ("GET", "/env-instance/activity"): Try("/env-instance/activity?request_id=anns", None, OWN),
        ("GET", "/env-instance/{environment}/list"): Try(f"/env-instance/{ENV}/list", None, OWN),
        ("GET", "/env-instance/{id}"): Try(instance),
        ("DELETE", "/env-instance/{id}"): Try(instance),
        ("PUT", "/env-instance/{id}/ttl"): Try(f"{instance}/ttl", {"ttl": "1s"}),
        ("POST", "/env-instance/{id}/fork"): Try(f"{instance}/fork", {"items": [{}]}),
        ("POST", "/env-instance/{id}/checkpoint"): Try(f"{instance}/checkpoint", {}),
        ("POST", "/env-instance/{id}/rewind"): Try(f"{instance}/rewind", {"checkpoint": ann["id"]}),
        ("GET", "/env-instance/{id}/branches"): Try(f"{instance}/branches"),
        ("GET", "/env-instance/{id}/events"): Try(f"{instance}/events"),
        ("GET", "/env-instance/{id}/logs"): Try(f"{instance}/logs"),
        ("POST", "/env-instance/{id}/presign-url"): Try(f"{instance}/presign-url", {"port": 8081}),
        ("POST", "/env-instance/{id}/exec"): Try(f"{instance}/exec", {"command": "true"}),
        ("GET", "/env-instance/{id}/files"): Try(f"{instance}/files?path=/etc/passwd"),
        ("PUT", "/env-instance/{id}/files"): Try(f"{instance}/files?path=/tmp/x", {}),
        ("GET", "/env-instance/{id}/archive"): Try(f"{instance}/archive?path=/etc"),
        ("PUT", "/env-instance/{id}/archive"): Try(f"{instance}/archive?path=/tmp", {}),
        ("GET", "/env-instance/{id}/exec"): Try(f"{instance}/exec"),
        ("GET", "/env-instance/{id}/exec/{process}"): Try(f"{instance}/exec/1"),
        ("GET", "/env-instance/{id}/exec/{process}/output"): Try(f"{instance}/exec/1/output"),
        ("POST", "/env-instance/{id}/exec/{process}/stdin"): Try(f"{instance}/exec/1/stdin", b"x"),
        ("POST", "/env-instance/{id}/exec/{process}/signal"): Try(f"{instance}/exec/1/signal", {"signal": "KILL"}),
        ("DELETE", "/env-instance/{id}/files"): Try(f"{instance}/files?path=/tmp/x"),
        ("GET", "/env-instance/{id}/files/stat"): Try(f"{instance}/files/stat?path=/etc"),
        ("GET", "/env-instance/{id}/files/list"): Try(f"{instance}/files/list?path=/etc"),
        ("POST", "/env-instance/{id}/files/folder"): Try(f"{instance}/files/folder?path=/tmp/y", {}),
        ("GET", "/env-instance/{id}/files/watch"): Try(f"{instance}/files/watch?path=/tmp"),
        # pools
        ("POST", "/env-pool"): Try("/env-pool", {"envName": ENV, "size": 1}),
        ("GET", "/env-pool/list"): Try("/env-pool/list", None, OWN),
        ("DELETE", "/env-pool/{environment}"): Try(f"/env-pool/{ENV}"),
        # rollouts; one of an environment that bob may not read fails with his rights, as any create does
        ("POST", "/rollouts"): Try("/rollouts", {"environment": ENV, "model": {"name": "m", "url": "http://10.0.0.1"}}),
        ("GET", "/rollouts"): Try("/rollouts", None, OWN),
        ("GET", "/rollouts/{id}"): Try(rollout),
        ("DELETE", "/rollouts/{id}"): Try(rollout),
        ("GET", "/rollouts/{id}/stream"): Try(f"{rollout}/stream"),
        ("GET", "/rollouts/{id}/episodes/{episode}"): Try(f"{rollout}/episodes/{ann['episode']}"),
        # trajectories; an upload under the id of ann's episode would be bob's own
        ("GET", "/trajectories"): Try("/trajectories?task=secret", None, OWN),
        ("GET", "/trajectories/{id}"): Try(f"/trajectories/{ann['episode']}"),
        ("GET", "/trajectories/{id}/events"): Try(f"/trajectories/{ann['episode']}/events"),
        ("PUT", "/trajectories/{id}"): Try(f"/trajectories/{ann['episode']}", b"x\n", (400,)),
        ("DELETE", "/trajectories/{id}"): Try(f"/trajectories/{ann['episode']}"),
        ("POST", "/trajectories/prune"): Try("/trajectories/prune", {"owner": "ann"}),
        ("GET", "/trajectory-runs"): Try(f"/trajectory-runs?run={ann['rollout']}", None, OWN),
        ("POST", "/trajectory-runs"): Try("/trajectory-runs", {"id": ann["rollout"], "created": 1.0}, OWN),
        # services
        ("POST", "/env-service"): Try("/env-service", {"envName": ENV, "service_name": "bobs"}),
        ("GET", "/env-service/list"): Try("/env-service/list", None, OWN),
        ("GET", "/env-service/{environment}/list"): Try(f"/env-service/{ENV}/list", None, OWN),
        ("GET", "/env-service/{id}"): Try(service),
        ("PUT", "/env-service/{id}"): Try(service, {"replicas": 0}),
        ("DELETE", "/env-service/{id}"): Try(f"{service}?deleteStorage=true"),
        ("GET", "/env-service/{id}/events"): Try(f"{service}/events"),
        ("GET", "/env-service/{id}/logs"): Try(f"{service}/logs"),
        # the platform's tokens
        ("GET", "/tokens"): Try("/tokens"),
        ("POST", "/tokens"): Try("/tokens", {"user": "ann", "role": "admin"}),
        ("DELETE", "/tokens/{id}"): Try(f"/tokens/{tokens('ann').split('_')[1]}"),
        # environments
        ("GET", "/api/v1/environments"): Try("/api/v1/environments?name=ann&tags=secret", None, OWN),
        ("POST", "/api/v1/environments"): Try("/api/v1/environments?force=true", {"bundle": bundle}),
        ("GET", "/api/v1/search"): Try("/api/v1/search?q=words", None, OWN),
        ("GET", "/api/v1/environments/{name}"): Try(f"{env}?ref={ann['digest']}"),
        ("PATCH", "/api/v1/environments/{name}"): Try(env, {"public": True}),
        ("GET", "/api/v1/environments/{name}/grants"): Try(f"{env}/grants"),
        ("POST", "/api/v1/environments/{name}/grants"): Try(f"{env}/grants", {"user": "bob", "access": "write"}),
        ("DELETE", "/api/v1/environments/{name}/grants"): Try(f"{env}/grants?user=ann"),
        ("POST", "/api/v1/environments/{name}/transfer"): Try(f"{env}/transfer", {"user": "bob"}),
        ("GET", "/api/v1/environments/{name}/versions"): Try(f"{env}/versions"),
        ("GET", "/api/v1/environments/{name}/versions/{version}"): Try(VERSION),
        ("DELETE", "/api/v1/environments/{name}/versions/{version}"): Try(f"{VERSION}?reason=anns_hub"),
        ("POST", "/api/v1/environments/{name}/versions/{version}/release"): Try(f"{VERSION}/release", {}),
        ("POST", "/api/v1/environments/{name}/versions/{version}/deprecate"): Try(f"{VERSION}/deprecate", REASON),
        ("POST", "/api/v1/environments/{name}/versions/{version}/yank"): Try(f"{VERSION}/yank", REASON),
        # blobs
        ("POST", "/api/v1/blobs/missing"): Try("/api/v1/blobs/missing", {"digests": [NONE]}, OWN),
        ("PUT", "/api/v1/blobs/{digest}"): Try(f"/api/v1/blobs/{DIGEST}", b"other bytes", (400, 422)),
        ("GET", "/api/v1/blobs/{digest}"): Try(f"/api/v1/blobs/{DIGEST}"),
        # namespaces and storage
        ("GET", "/api/v1/namespaces"): Try("/api/v1/namespaces", None, OWN),
        ("POST", "/api/v1/namespaces"): Try("/api/v1/namespaces", {"name": "ann", "user": "bob"}),
        ("DELETE", "/api/v1/namespaces/{name}"): Try(space),
        ("POST", "/api/v1/namespaces/{name}/grants"): Try(f"{space}/grants", {"user": "bob", "access": "write"}),
        ("DELETE", "/api/v1/namespaces/{name}/grants"): Try(f"{space}/grants?user=ann"),
        ("GET", "/api/v1/usage"): Try("/api/v1/usage?user=ann"),
        ("PUT", "/api/v1/quotas"): Try("/api/v1/quotas", {"user": "ann", "limit": 1}),
        # the hub's tokens and webhooks
        ("GET", "/api/v1/tokens"): Try("/api/v1/tokens"),
        ("POST", "/api/v1/tokens"): Try("/api/v1/tokens", {"user": "ann", "scope": "admin"}),
        ("DELETE", "/api/v1/tokens/{id}"): Try("/api/v1/tokens/000000000000"),
        ("GET", "/api/v1/webhooks"): Try("/api/v1/webhooks"),
        ("POST", "/api/v1/webhooks"): Try("/api/v1/webhooks", {"url": "http://127.0.0.1:9/bob"}),
        ("DELETE", "/api/v1/webhooks/{id}"): Try(f"/api/v1/webhooks/{ann['hook']}"),
        # routes of older clients
        ("GET", "/env/{name}/{version}/exists"): Try(f"{older}/exists", None, OWN),
        ("GET", "/env/{name}/{version}/status"): Try(f"{older}/status"),
        ("POST", "/env/{name}/{version}/release"): Try(f"{older}/release", {}),
        ("POST", "/env/{name}/{version}/sign"): Try(f"{older}/sign?style=read", {}),
        ("POST", "/env/{name}/{version}/aci_trigger"): Try(f"{older}/aci_trigger", {"image": "bobs:1"}),
        ("GET", "/env/{name}/{version}"): Try(older),
        ("PUT", "/env/{name}/{version}"): Try(older, {"description": "bobs"}),
        ("POST", "/env"): Try("/env/", {"name": ENV, "version": "2.0.0"}),
        ("GET", "/env"): Try("/env/", None, OWN),
        ("GET", "/data"): Try("/data?scenario=swebench&instance=x", None, OWN),
        ("POST", "/token"): Try("/token/", {"user": "ann"}),
        ("PUT", "/token"): Try("/token/", {"id": "000000000000"}),
        ("GET", "/token/validate/{token}"): Try("/token/validate/aenv_0_0", None, (401,)),
        ("GET", "/token/info/{id}"): Try("/token/info/000000000000"),
        ("DELETE", "/token/{id}"): Try("/token/000000000000"),
    }


METHODS = ("get", "put", "post", "patch", "delete")


def test_no_route_shows_or_changes_anything_of_another_user(
    platform: Served, tokens: Tokens, ann: dict[str, Any], attacks: Attacks
) -> None:
    document = fetch(platform.url, "/openapi.json")[1]
    said = {(m.upper(), path) for path, about in document["paths"].items() for m in METHODS if m in about}
    table = attempts(ann, tokens)
    assert said == set(table), "attempts() must list every route of the document, and no other"
    bob = tokens("bob")
    before = everything(platform, ann)
    for (method, path), one in table.items():
        status, answer = ask(platform, one.path, one.body, method, bob)
        held = status in one.statuses and (status != 200 or WORD not in answer)
        attacks.record("tenants", f"{method} {path}: {status} {answer[:200]}", held=held)
    attacks.all_held()
    assert everything(platform, ann) == before


def ask(platform: Served, path: str, body: Any, method: str, token: str) -> tuple[int, str]:
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(platform.url + path, data, bearer(token), method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def everything(platform: Served, ann: dict[str, Any]) -> list[Any]:
    """Return everything that belongs to ann, as an administrator sees it."""
    paths = [
        f"/env-instance/{ann['id']}", f"/env-service/{SERVICE}", f"/api/v1/environments/{ENV}",
        f"/api/v1/environments/{ENV}/grants", f"/api/v1/environments/{ENV}/versions", "/api/v1/namespaces",
        "/api/v1/usage?user=ann", "/api/v1/tokens", "/api/v1/webhooks", "/tokens", "/env-service/list",
    ]  # fmt: skip
    found = [fetch(platform.url, path, headers=bearer(platform.first_token)) for path in paths]
    for _, body in found:
        if isinstance(body["data"], dict):
            body["data"].pop("usage", None)
    return found


@pytest.mark.attack("tenants")
def test_the_data_plane_and_head_requests_show_nothing_of_another_user(
    platform: Served, tokens: Tokens, ann: dict[str, Any]
) -> None:
    bob = bearer(tokens("bob"))
    for path in (f"/instance/{ann['id']}/tools", f"/service/{SERVICE}/tools", f"/instance/{ann['id']}/port/8081/"):
        assert fetch(platform.url, path, headers=bob)[0] in (403, 404), path
    for header in ({"AEnvCore-EnvInstance-ID": ann["id"]}, {"AEnvCore-MCPProxy-URL": f"http://{ann['ip']}:8081"}):
        assert fetch(platform.data_url, "/tools", headers={**bob, **header})[0] in (403, 404), header
    for path in (f"/api/v1/blobs/{DIGEST}", f"/api/v1/blobs/{ann['digest']}", f"/api/v1/environments/{ENV}"):
        status, body = ask(platform, path, None, "HEAD", tokens("bob"))
        assert (status, body) == (404, ""), path
        assert ask(platform, path, None, "HEAD", tokens("ann"))[0] == 200


def test_a_user_with_read_access_may_run_an_environment_until_it_is_revoked(
    platform: Served, tokens: Tokens, ann: dict[str, Any]
) -> None:
    async def main() -> None:
        hub = HubClient(platform.url, tokens("ann"))
        async with ApiClient(platform.url, api_key=tokens("cyd"), max_retries=0) as api:
            with pytest.raises(NotFound):
                await api.create_env_instance(ENV)
            with pytest.raises(NotFound):
                await api.create_env_service(ENV, "cyds")
            for _ in range(3):  # a change holds for the very next create
                await hub.grant(ENV, "cyd", "read")
                made = await api.create_env_instance(ENV)
                assert await api.delete_env_instance(made.id)
                await hub.revoke(ENV, "cyd")
                with pytest.raises(NotFound):
                    await api.create_env_instance(ENV)
        await hub.close()

    run(main())


@pytest.mark.attack("tenants")
def test_metrics_are_for_scrapers_and_administrators(platform: Served, tokens: Tokens) -> None:
    def scrape(token: str) -> int:
        return ask(platform, "/metrics", None, "GET", token)[0]

    assert fetch(platform.url, "/metrics")[0] == 401
    assert (scrape(tokens("bob")), scrape(tokens("bob-reads", "read-only"))) == (403, 403)
    scraper = tokens("prometheus", "metrics")
    assert (scrape(scraper), scrape(platform.first_token)) == (200, 200)
    for path in ("/env-instance/list", "/env-service/list", "/tokens"):
        assert fetch(platform.url, path, headers=bearer(scraper))[0] == 403
    assert fetch(platform.url, "/env-instance", {"envName": "counter"}, headers=bearer(scraper))[0] == 403
    listed = fetch(platform.url, "/api/v1/environments", headers=bearer(scraper))[1]["data"]["items"]
    assert all(each["public"] for each in listed)


def test_a_setting_opens_a_loopback_port_for_metrics_without_a_token(platform: Served) -> None:
    line = next(line for line in platform.log.read_text().splitlines() if "metrics are at" in line)
    url = line.partition("metrics are at ")[2].partition("/metrics")[0]
    assert url.startswith("http://127.0.0.1:")
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        assert b"aenv_api_requests_total" in answer.read()
    assert fetch(url, "/env-instance/list")[0] == 404
    assert fetch(url, "/metrics", headers={"host": "evil.example"})[0] == 403


# --- the hub that a platform takes environments from


@pytest.mark.attack("tenants")
def test_an_environment_found_for_one_user_is_not_found_for_another(tmp_path: Path) -> None:
    """A cached lookup of one caller is not used for another, neither soon after nor while the hub is down."""

    async def main() -> None:
        catalog = open_catalog(HubLocation.of(data=tmp_path))
        anns_hub = LocalHub(catalog, hub_caller("ann"))
        await push(anns_hub, ENV, "1.0.0", CODE)
        sources = Sources(lambda access: LocalHub(catalog), only_hub=HubAccess(data="", cache=str(tmp_path / "cache")))
        create_request = EnvInstanceCreateRequest(envName=ENV)
        assert (await sources.find(create_request, Caller("ann", "user"))).root
        with pytest.raises(NotFound):
            await sources.find(create_request, Caller("bob", "user"))
        assert (await sources.find(create_request, Caller("root", "admin"))).root
        await sources.close()

    run(main())
    for path in tmp_path.rglob("*"):
        if path.is_dir():
            path.chmod(0o700)


def hub_caller(name: str) -> Any:
    from aenv.hub.access.hub_tokens import HubCaller

    return HubCaller(name, "push")


@pytest.mark.attack("tenants")
def test_a_remote_hub_is_asked_on_behalf_of_the_user(tmp_path: Path) -> None:
    async def main(url: str, admin: str, ann: str) -> None:
        anns_hub = HubClient(url, ann)
        await push(anns_hub, ENV, "1.0.0", CODE)
        await anns_hub.close()
        access = HubAccess(url=url, token=admin, data="", cache=str(tmp_path / "cache"))
        sources = Sources(lambda access: HubClient(str(access.url), access.token), only_hub=access)
        create_request = EnvInstanceCreateRequest(envName=ENV)
        with pytest.raises(NotFound):
            await sources.find(create_request, Caller("bob", "user"))
        assert (await sources.find(create_request, Caller("ann", "user"))).root
        await sources.close()
        impostor = HubClient(url, ann).on_behalf_of("admin")
        assert (await impostor.get("hello-env")).builtin
        with pytest.raises(NotFound):
            await impostor.get(ENV)
        with pytest.raises(Forbidden):
            await impostor.release(ENV, "1.0.0")
        await impostor.close()

    with serving_hub(f"sqlite:{tmp_path}/hub.db", tmp_path / "blobs", tmp_path, "--auth") as hub:
        made = fetch(hub.url, "/api/v1/tokens", {"user": "ann", "scope": "push"}, headers=bearer(hub.first_token))
        run(main(hub.url, hub.first_token, made[1]["data"]["token"]))
    for path in tmp_path.rglob("*"):
        if path.is_dir():
            path.chmod(0o700)


def test_the_command_line_grants_shows_and_revokes(platform: Served, tokens: Tokens, ann: dict[str, Any]) -> None:
    def aenv(user: str, *words: str, code: int = 0) -> Any:
        token = platform.first_token if user == "root" else tokens(user)
        done = subprocess.run(
            [sys.executable, "-m", "aenv.cli", "hub", *words],
            env={**environ(platform.data), "AENV_HUB_URL": platform.url, "AENV_API_KEY": token},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout) if "json" in words else done.stdout + done.stderr

    said = aenv("ann", "grant", ENV, "--user", "dan", "--access", "write", "-o", "json")
    assert (said["owner"], said["grants"]) == ("ann", {"dan": "write"})
    assert "dan: write" in aenv("ann", "grants", ENV)
    assert "only the owner" in aenv("dan", "grants", ENV, code=1)
    assert aenv("ann", "visibility", ENV, "--public", "-o", "json")["public"] is True
    assert "private" in aenv("ann", "visibility", ENV, "--private")
    assert aenv("ann", "revoke", ENV, "--user", "dan", "-o", "json")["grants"] == {}
    assert "no environment" in aenv("dan", "grants", ENV, code=1)
    assert aenv("root", "namespace", "reserve", "cli", "--user", "ann", "-o", "json")["owner"] == "ann"
    assert aenv("ann", "namespace", "grant", "cli", "--user", "dan", "-o", "json")["grants"] == {"dan": "read"}
    assert [each["name"] for each in aenv("dan", "namespace", "list", "-o", "json")] == ["cli"]
    assert "dan" not in aenv("ann", "namespace", "revoke", "cli", "--user", "dan")
    assert "no longer reserved" in aenv("root", "namespace", "release", "cli")
    assert aenv("root", "quota", "set", "--user", "ann", "--limit", "2Gi", "-o", "json")["limit"] == 2 << 30
    assert "2.00 GiB" in aenv("ann", "quota", "show")
    assert aenv("root", "quota", "set", "--user", "ann", "--limit", "default", "-o", "json")["limit"] == 50 << 30
    assert aenv("ann", "transfer", ENV, "--user", "ann", "-o", "json")["owner"] == "ann"


def test_the_hint_for_a_stronger_token_names_the_platforms_command(platform: Served, tokens: Tokens) -> None:
    async def main() -> None:
        hub = HubClient(platform.url, tokens("bob"))
        try:
            with pytest.raises(Forbidden, match="scope admin is required") as caught:
                await hub.reserve("bobs-space", "bob")
        finally:
            await hub.close()
        assert caught.value.details["hint"].endswith(": aenv serve token create --role admin")

    run(main())
