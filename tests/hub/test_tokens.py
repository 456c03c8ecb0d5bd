"""Tokens over HTTP against a real server: scopes, namespaces, expiry, and secrets kept out of logs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from aenv.client.hub_client import HubClient
from aenv.errors import Forbidden, NotFound, Unauthorized
from aenv.hub.access.hub_tokens import HubCaller, HubTokens, covers
from aenv.hub.web.legacy_routes import upload_name
from aenv.storage.sqlite import SqliteStore
from tests.attacks.ledger import Attacks
from tests.conftest import fetch, run
from tests.hub.parts import Served, push

Serve = Callable[..., AbstractContextManager[Served]]

BUILT_IN = {folder.name for folder in (Path(__file__).parents[2] / "envs").iterdir()}


def make_token(url: str, admin: str, **request: Any) -> dict[str, Any]:
    status, body = fetch(url, "/api/v1/tokens", request, headers={"authorization": f"Bearer {admin}"})
    assert status == 200, body
    made: dict[str, Any] = body["data"]
    return made


async def as_(url: str, token: str | None, use: Callable[[HubClient], Any]) -> Any:
    client = HubClient(url, token)
    try:
        return await use(client)
    finally:
        await client.close()


def test_scopes_and_namespaces_are_enforced_over_http(serve: Serve) -> None:
    with serve("--auth") as hub:
        admin = hub.first_token
        reader = make_token(hub.url, admin, user="reader", scope="read")["token"]
        pusher = make_token(hub.url, admin, user="pusher", scope="push", namespaces=["team"])["token"]

        run(as_(hub.url, pusher, lambda client: push(client, "team-env", "1.0.0")))
        run(as_(hub.url, admin, lambda client: push(client, "elsewhere", "1.0.0")))
        with pytest.raises(NotFound):
            run(as_(hub.url, reader, lambda client: client.get("team-env")))
        run(as_(hub.url, pusher, lambda client: client.grant("team-env", "reader", "read")))
        assert run(as_(hub.url, reader, lambda client: client.get("team-env"))).author == "pusher"

        refused: list[tuple[str | None, Callable[[HubClient], Any], type[Exception], str]] = [
            (None, lambda c: push(c, "team-env", "2.0.0"), Unauthorized, "a token is required"),
            (reader, lambda c: push(c, "team-env", "2.0.0"), Forbidden, "scope push"),
            (pusher, lambda c: push(c, "teamwork", "1.0.0"), Forbidden, "restricted to team"),
            (pusher, lambda c: c.release("elsewhere", "1.0.0"), Forbidden, "restricted to team"),
            (reader, lambda c: c.release("team-env", "1.0.0"), Forbidden, "scope push"),
            (reader, lambda c: c.delete("team-env", "1.0.0", "no"), Forbidden, "scope push"),
            (reader, lambda c: c.set_public("team-env", True), Forbidden, "scope push"),
            (reader, lambda c: c.missing(["sha256:" + "0" * 64]), Forbidden, "scope push"),
            (None, lambda c: c.put_blob("sha256:" + "0" * 64, b""), Unauthorized, "a token is required"),
            ("aenv_000000000000_guess", lambda c: c.list(), Unauthorized, "token is wrong"),
            ("something else", lambda c: c.list(), Unauthorized, "token is wrong"),
            (None, lambda c: c.get("team-env"), NotFound, "no environment team-env"),
            (pusher, lambda c: c.get("elsewhere"), NotFound, "no environment elsewhere"),
        ]
        for token, what, error, words in refused:
            with pytest.raises(error, match=words) as caught:
                run(as_(hub.url, token, what))
            assert caught.value.details["hint"], words  # type: ignore[attr-defined]
        run(as_(hub.url, pusher, lambda client: client.release("team-env", "1.0.0")))
        with pytest.raises(Forbidden, match="scope admin"):
            run(as_(hub.url, pusher, lambda client: client.delete("team-env", "1.0.0", "mine")))
        for path in ("/api/v1/tokens", "/api/v1/webhooks"):
            assert fetch(hub.url, path)[0] == 401
            assert fetch(hub.url, path, headers={"authorization": f"Bearer {pusher}"})[0] == 403
        status, body = fetch(hub.url, "/api/v1/environments", headers={"authorization": "Basic abc"})
        assert (status, "Bearer" in body["error"]) == (401, True)


def test_private_environments_need_a_token_and_public_ones_do_not(serve: Serve) -> None:
    async def seen(client: HubClient) -> set[str]:
        return {item.name for item in (await client.list()).items}

    async def found(client: HubClient) -> set[str]:
        return {item.name for item in (await client.search("quixotic")).items}

    with serve("--auth") as hub:
        admin = hub.first_token
        mine = make_token(hub.url, admin, scope="read", namespaces=["a"])["token"]
        for name, public in (("a", None), ("b", None), ("c", True)):
            run(as_(hub.url, admin, lambda c, n=name, p=public: push(c, n, "1.0.0", description="quixotic", public=p)))
        assert run(as_(hub.url, None, seen)) == {"c"} | BUILT_IN
        assert run(as_(hub.url, mine, seen)) == {"a", "c"} | BUILT_IN
        assert run(as_(hub.url, admin, seen)) == {"a", "b", "c"} | BUILT_IN
        assert run(as_(hub.url, None, found)) == {"c"}
        assert run(as_(hub.url, mine, found)) == {"a", "c"}
        version = run(as_(hub.url, None, lambda c: c.get("c")))
        assert run(as_(hub.url, None, lambda c: c.get_blob(version.digest)))
        run(as_(hub.url, admin, lambda c: c.set_public("c", False)))
        run(as_(hub.url, admin, lambda c: c.set_public("b", True)))
        assert run(as_(hub.url, None, seen)) == {"b"} | BUILT_IN
        assert {env["name"] for env in fetch(hub.url, "/env/")[1]["data"]} == {"b"} | BUILT_IN


def test_a_revoked_or_expired_token_is_refused_with_the_reason(tmp_path: Path) -> None:
    now = time.time()

    async def use() -> None:
        store = SqliteStore(tmp_path / "store.db")
        tokens = HubTokens(store, clock=lambda: now)
        later = HubTokens(store, clock=lambda: now + 3600)
        short, text = await tokens.create(scope="push", expires_at=now + 60)
        assert await tokens.authenticate(text) == HubCaller(short.id, "push")
        with pytest.raises(Unauthorized, match="expired at 2") as caught:
            await later.authenticate(text)
        assert caught.value.details["hint"]
        other, text = await tokens.create(user="Ada")
        assert (await tokens.authenticate(text)).name == "Ada"
        await tokens.revoke(other.id)
        with pytest.raises(Unauthorized, match="revoked"):
            await tokens.authenticate(text)
        assert (await tokens.revoke(other.id)).revoked_at == now
        with pytest.raises(NotFound):
            await tokens.revoke("nobody")
        assert {token.id for token in await tokens.all()} == {short.id, other.id}
        await store.close()

    run(use())


def test_tokens_are_stored_as_hashes_and_the_first_is_shown_once(tmp_path: Path) -> None:
    async def use() -> None:
        store = SqliteStore(tmp_path / "store.db")
        tokens = HubTokens(store)
        first = await tokens.first()
        assert first is not None
        assert (await tokens.authenticate(first)).scope == "admin"
        assert await tokens.first() is None
        stored = b"".join([put.value async for put in store.dump()])
        assert first.split("_", 2)[2].encode() not in stored
        await store.close()

    run(use())


def test_a_namespace_covers_its_name_and_names_that_start_with_it_and_a_dash() -> None:
    assert covers(["team"], "team")
    assert covers(["team"], "team-a")
    assert not covers(["team"], "teamwork")
    assert not covers(["team-a"], "team")
    assert covers(["x", "*"], "anything")


def test_the_command_line_creates_lists_and_revokes_tokens(serve: Serve, store_url: str) -> None:
    def aenv(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "aenv.cli", "hub", "token", *words, "--store", store_url],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout

    with serve("--auth") as hub:
        text = aenv("create", "--user", "ci", "--scope", "push", "--namespace", "ci", "--expires", "1h").strip()
        run(as_(hub.url, text, lambda client: push(client, "ci-env", "1.0.0")))
        listed = json.loads(aenv("list", "--output", "json"))
        mine = next(token for token in listed if token["user"] == "ci")
        assert (mine["scope"], mine["namespaces"]) == ("push", ["ci"])
        assert "hash" not in mine
        assert text.split("_", 2)[2] not in aenv("list")
        assert mine["id"] in aenv("revoke", mine["id"])
        with pytest.raises(Unauthorized, match="revoked"):
            run(as_(hub.url, text, lambda client: client.list()))


def test_logs_contain_no_token_secret_or_password(
    serve: Serve, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AENV_LOG_LEVEL", "DEBUG")
    with serve("--auth") as hub:
        admin = hub.first_token
        made = make_token(hub.url, admin, scope="push")
        hook = {"url": "http://127.0.0.1:9/hook?key=hook-password"}
        status, body = fetch(hub.url, "/api/v1/webhooks", hook, headers={"authorization": f"Bearer {admin}"})
        assert status == 200
        run(as_(hub.url, made["token"], lambda client: push(client, "a", "1.0.0", readme="the-readme")))
        assert fetch(hub.url, f"/token/validate/{made['token']}")[0] == 200
        assert fetch(hub.url, f"/token/validate/{made['token']}x")[0] == 401
        assert fetch(hub.url, f"/nowhere/{made['token']}")[0] == 404
        fetch(hub.url, "/api/v1/environments", headers={"authorization": f"Bearer {made['token']}wrong"})
        fetch(hub.url, "/api/v1/environments", b"{", method="POST", headers={"authorization": f"Bearer {admin}"})
        log = hub.log.read_text()
    assert "POST /api/v1/environments by" in log, "the log says what was done"
    assert log.count(admin) == 1, "the first token is shown once"
    secrets = [made["token"], made["token"].split("_", 2)[2], body["data"]["secret"], "hook-password", "open-sesame"]
    for secret in [*secrets, "the-readme"]:
        assert secret not in log


def test_without_auth_web_pages_cannot_reach_a_hub_on_this_machine(serve: Serve) -> None:
    with serve() as hub:
        assert fetch(hub.url, "/api/v1/environments")[0] == 200
        for header in ("host", "origin"):
            status, body = fetch(hub.url, "/api/v1/environments", headers={header: "http://evil.example"})
            assert (status, body["code"]) == (403, "forbidden")


def test_a_hub_that_other_machines_can_reach_requires_tokens(serve: Serve) -> None:
    with serve("--host", "0.0.0.0") as hub:
        url = hub.url.replace("0.0.0.0", "127.0.0.1")
        assert fetch(url, "/api/v1/tokens")[0] == 401
        assert fetch(url, "/api/v1/tokens", headers={"authorization": f"Bearer {hub.first_token}"})[0] == 200
    with serve("--host", "0.0.0.0") as hub:
        assert "aenv_" not in hub.log.read_text(), "the first token is shown once"


def test_a_hub_on_a_unix_socket_serves_its_user_without_a_token(serve: Serve, tmp_path: Path) -> None:
    socket = tmp_path / "hub.sock"
    with serve("--uds", str(socket)) as hub:
        assert hub.url == f"unix:{socket}"
        page = run(as_(hub.url, None, lambda client: client.list()))
        assert "hello-env" in [item.name for item in page.items]
    assert not socket.exists()


def test_an_admin_token_for_a_namespace_cannot_administer_the_hub(serve: Serve, attacks: Attacks) -> None:
    """With any of these requests, a token for one namespace could get access to others."""
    with serve("--auth") as hub:
        root = {"authorization": f"Bearer {hub.first_token}"}
        victim = make_token(hub.url, hub.first_token, user="ann", scope="push")
        team = make_token(hub.url, hub.first_token, user="lead", scope="admin", namespaces=["team"])["token"]
        hook = fetch(hub.url, "/api/v1/webhooks", {"url": "http://127.0.0.1:9/"}, headers=root)[1]["data"]["id"]
        tries = [
            ("POST", "/api/v1/tokens", {"user": "lead", "scope": "admin"}),
            ("POST", "/api/v1/tokens", {"user": "ann", "scope": "read", "namespaces": ["team"]}),
            ("GET", "/api/v1/tokens", None),
            ("DELETE", f"/api/v1/tokens/{victim['id']}", None),
            ("POST", "/token", {"user": "ann"}),
            ("PUT", "/token", {"id": victim["id"], "user": "lead"}),
            ("GET", f"/token/info/{victim['id']}", None),
            ("DELETE", f"/token/{victim['id']}", None),
            ("POST", "/api/v1/webhooks", {"url": "http://127.0.0.1:9/"}),
            ("GET", "/api/v1/webhooks", None),
            ("DELETE", f"/api/v1/webhooks/{hook}", None),
            ("GET", "/api/v1/usage?user=ann", None),
            ("PUT", "/api/v1/quotas", {"user": "lead", "limit": 0}),
            ("POST", "/api/v1/namespaces", {"name": "other", "user": "lead"}),
        ]
        for method, path, body in tries:
            status, _ = fetch(hub.url, path, body, method=method, headers={"authorization": f"Bearer {team}"})
            attacks.record("tenants", f"{method} {path}", held=status == 403)
        mine = {"name": "team-own", "user": "lead"}
        status, _ = fetch(hub.url, "/api/v1/namespaces", mine, headers={"authorization": f"Bearer {team}"})
        assert status == 200
    attacks.all_held()


@pytest.mark.attack("tenants")
def test_metrics_of_a_hub_count_requests_by_route_and_need_an_administrator(serve: Serve) -> None:
    with serve("--auth") as hub:
        headers = {"authorization": f"Bearer {hub.first_token}"}
        fetch(hub.url, "/env/nothing/1.0.0/exists", headers=headers)
        assert fetch(hub.url, "/metrics")[0] == 401
        request = urllib.request.Request(f"{hub.url}/metrics", headers=headers)
        with urllib.request.urlopen(request, timeout=20) as answer:
            text = answer.read().decode()
    where = 'endpoint="/env/{name}/{version}/exists",method="GET",status="200"'
    assert f"http_requests_total{{{where}}} 1.0" in text
    assert "http_request_duration_seconds_count" in text
    assert "nothing" not in text


def test_upload_names_are_unique_for_each_environment_and_version() -> None:
    pairs = [(name, version) for name in ("game", "game-2", "game-2-3") for version in ("1", "1.0", "2-1.0", "3-1-1.0")]
    pairs += [("game", "2-3-1.0"), ("game", "2-3-3-1-1.0"), ("game", "1.0.0-rc1"), ("game", "1.0.0-2")]
    assert len({upload_name(name, version) for name, version in pairs}) == len(pairs)
    assert upload_name("game", "1.0.0-rc1") == "game-1.0.0-rc1.tar"
