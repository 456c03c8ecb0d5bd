"""The hub's HTTP routes: the legacy JSON format, invalid requests, and the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import schemathesis
from schemathesis import GenerationMode

from aenv.client.hub_client import HubClient
from tests.conftest import fetch, run
from tests.fuzz import withstand
from tests.hub.parts import Served, push, serving

Serve = Callable[..., AbstractContextManager[Served]]

ENV = {
    "name": "old",
    "version": "1.0.0",
    "tags": ["linux"],
    "status": "Ready",
    "codeUrl": "oss://x/old.tar",
    "artifacts": [{"type": "image", "content": "r/old:1"}],
    "buildConfig": {"dockerfile": "./Dockerfile"},
    "testConfig": {"script": "pytest"},
    "deployConfig": {"cpu": "1C"},
    "somethingNew": 1,
}


def ok(answer: tuple[int, object]) -> object:
    status, body = answer
    assert isinstance(body, dict)
    assert (status, body["success"], body["code"], body["message"]) == (200, True, 0, "")
    return body["data"]


def test_legacy_clients_get_their_json_format(serve: Serve) -> None:
    with serve() as hub:
        url = hub.url
        assert ok(fetch(url, "/env/old/1.0.0/exists")) == {"exists": False}
        assert ok(fetch(url, "/env/", ENV)) is True
        assert ok(fetch(url, "/env/old/1.0.0/exists")) == {"exists": True, "status": 6}
        env = ok(fetch(url, "/env/old/1.0.0"))
        assert isinstance(env, dict)
        assert {key: env[key] for key in env if key not in ("created_at", "updated_at")} == {
            "id": "old-1.0.0",
            "name": "old",
            "description": "",
            "version": "1.0.0",
            "tags": ["linux"],
            "code_url": "oss://x/old.tar",
            "status": 6,
            "artifacts": [{"type": "image", "content": "r/old:1"}],
            "build_config": {"dockerfile": "./Dockerfile"},
            "test_config": {"script": "pytest"},
            "deploy_config": {"cpu": "1C"},
        }
        assert env["created_at"]
        assert ok(fetch(url, "/env/old/1.0.0/status")) == {"status": "Ready"}
        change = {"description": "now with words", "status": "Testing"}
        assert ok(fetch(url, "/env/old/1.0.0", change, method="PUT")) is True
        changed = ok(fetch(url, "/env/old/1.0.0"))
        assert isinstance(changed, dict)
        assert (changed["description"], changed["status"], changed["tags"]) == ("now with words", 4, ["linux"])
        assert changed["build_config"] == ENV["buildConfig"]
        assert ok(fetch(url, "/env/old/1.0.0/aci_trigger", {"image": "r/old:2"})) is True
        listed = ok(fetch(url, "/env/?limit=100&offset=0"))
        assert isinstance(listed, list)
        mine = next(each for each in listed if each["name"] == "old")
        assert mine["artifacts"] == [{"type": "image", "content": "r/old:2"}]
        assert ok(fetch(url, "/env/old/1.0.0/release", b"", method="POST")) is True
        assert ok(fetch(url, "/env/old/1.0.0/status")) == {"status": "Released"}
        assert ok(fetch(url, "/health")) == {"status": "healthy", "version": fetch(url, "/health")[1]["version"]}
        assert fetch(url, "/health")[1]["status"] == "healthy"
        assert ok(fetch(url, "/data?scenario=swebench&instance=astropy")) is None


def test_legacy_clients_get_their_error_statuses(serve: Serve) -> None:
    with serve() as hub:
        url = hub.url
        ok(fetch(url, "/env/", ENV))
        ok(fetch(url, "/env/old/1.0.0/release", b"", method="POST"))
        refused = [
            (409, fetch(url, "/env/", ENV)),
            (400, fetch(url, "/env/", {"name": "old"})),
            (400, fetch(url, "/env/", b"{")),
            (400, fetch(url, "/env/", {**ENV, "version": "2.0.0", "status": "Sleeping"})),
            (404, fetch(url, "/env/new/1.0.0")),
            (404, fetch(url, "/env/old/1", method="GET")),
            (404, fetch(url, "/env/old/2.0.0/status")),
            (404, fetch(url, "/env/old/2.0.0", ENV, method="PUT")),
            (404, fetch(url, "/env/old/2.0.0/release", b"", method="POST")),
            (403, fetch(url, "/env/old/1.0.0", {"tags": []}, method="PUT")),
            (403, fetch(url, "/env/old/1.0.0/release", b"", method="POST")),
            (403, fetch(url, "/env/old/1.0.0/aci_trigger", {"image": "x"})),
            (503, fetch(url, "/env/old/1.0.0/sign", b"", method="POST")),
            (400, fetch(url, "/data?scenario=swebench")),
        ]
        for status, (got, body) in refused:
            assert (got, body["code"], body["success"], body["data"]) == (status, status, False, None), body
            assert body["message"]


def test_legacy_clients_see_a_pushed_version(serve: Serve) -> None:
    async def use(url: str) -> None:
        client = HubClient(url)
        await push(client, "new", "1.0.0", description="with files")
        await client.close()

    with serve() as hub:
        run(use(hub.url))
        env = ok(fetch(hub.url, "/env/new/1.0.0"))
        assert isinstance(env, dict)
        assert (env["description"], env["status"]) == ("with files", 6)


@pytest.mark.long
def test_legacy_token_routes_create_validate_change_and_revoke_tokens(serve: Serve) -> None:
    with serve("--auth") as hub:
        own = {"authorization": f"Bearer {hub.first_token}"}
        made = ok(fetch(hub.url, "/token/", {"user": "ada", "maxInstanceCount": 5}, headers=own))
        assert isinstance(made, dict)
        known = {"id": made["id"], "user": "ada", "maxInstanceCount": 5}
        assert ok(fetch(hub.url, f"/token/validate/{made['token']}")) == {**known, "token": made["token"]}
        assert ok(fetch(hub.url, f"/token/info/{made['id']}", headers=own)) == {**known, "token": ""}
        change = {"id": made["id"], "user": "ada", "maxInstanceCount": 9}
        changed = ok(fetch(hub.url, "/token/", change, method="PUT", headers=own))
        assert changed == {**known, "maxInstanceCount": 9, "token": ""}
        assert ok(fetch(hub.url, f"/token/{made['id']}", method="DELETE", headers=own)) is True
        status, body = fetch(hub.url, f"/token/validate/{made['token']}")
        assert (status, body["code"], "revoked" in body["message"]) == (401, 401, True)
        assert fetch(hub.url, "/token/", {"user": "eve"})[0] == 401


@pytest.mark.long
def test_an_invalid_request_gets_an_error_that_names_the_mistake(serve: Serve) -> None:
    with serve() as hub:
        cases = [
            (404, "/nowhere", None, "GET", "openapi"),
            (405, "/api/v1/environments", {}, "PUT", "use GET or POST"),
            (422, "/api/v1/environments?limit=0", None, "GET", "limit"),
            (422, "/api/v1/environments?limit=1&limit=2", None, "GET", "duplicate"),
            (422, "/api/v1/environments?colour=red", None, "GET", "colour"),
            (422, "/api/v1/environments?offset=" + "9" * 5000, None, "GET", "offset"),
            (422, "/api/v1/environments", {"bundle": {}, "what": 1}, "POST", "what"),
            (422, "/api/v1/environments", {"bundle": {}}, "POST", "manifest is not valid"),
            (422, "/api/v1/environments", b"[" * 100_000, "POST", "body"),
            (422, "/api/v1/environments/Bad_Name", None, "GET", "bad-name"),
            (422, "/api/v1/environments/x%00y", None, "GET", "not a name"),
            (422, "/api/v1/blobs/sha256:zz", b"x", "PUT", "invalid digest"),
        ]
        for status, path, body, method, words in cases:
            got, answer = fetch(hub.url, path, body, method=method)
            assert (got, words in answer["error"]) == (status, True), answer
        assert fetch(hub.url, "/api/v1/environments", bytes(25 << 20), method="POST")[0] == 413


# --- the OpenAPI document


@pytest.mark.long
def test_generated_requests_never_cause_an_internal_error(serve: Serve, store_url: str) -> None:
    auth = store_url.startswith("redis")  # with tokens on one store, without on the other
    with serve("--auth" if auth else "--no-auth") as hub:
        headers = {"Authorization": f"Bearer {hub.first_token}"} if auth else {}
        schema = schemathesis.openapi.from_url(f"{hub.url}/openapi.json")
        operations = [result.ok() for result in schema.get_all_operations()]
        assert len(operations) >= 35
        for operation in operations:
            for mode in GenerationMode:
                # A hub without a bucket answers /sign with 503, as the legacy hub does.
                withstand(operation, mode, headers, server_errors=operation.path.endswith("/sign"))
        assert "Traceback" not in hub.log.read_text()


def test_the_openapi_document_lists_every_route_and_its_errors(tmp_path: Path) -> None:
    with serving(f"sqlite:{tmp_path}/hub.db", tmp_path / "blobs", tmp_path) as hub:
        status, document = fetch(hub.url, "/openapi.json")
    assert (status, document["openapi"]) == (200, "3.1.0")
    assert {"get", "post"} <= document["paths"]["/api/v1/environments"].keys()
    ids = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    assert len(ids) == len(set(ids)) >= 35
    push_operation = document["paths"]["/api/v1/environments"]["post"]
    assert push_operation["security"] == [{"token": []}]
    assert "409" in push_operation["responses"]
