"""The OpenAPI document of the control plane is complete, and the API withstands requests generated from it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import schemathesis
from schemathesis import GenerationMode

from aenv.platform.app import PlatformApp
from aenv.platform.instances.lifecycle import Instances
from aenv.platform.openapi import OPERATIONS, document
from tests.conftest import fetch
from tests.fuzz import withstand
from tests.platform.between import OneEngine
from tests.platform.parts import Served

ROOT = Path(__file__).parent.parent.parent
Tokens = Callable[..., str]


def test_the_document_is_published() -> None:
    published = json.loads((ROOT / "docs" / "reference" / "platform.openapi.json").read_text())
    assert published == json.loads(json.dumps(document())), (
        "run: python -m aenv.platform.openapi > docs/reference/platform.openapi.json"
    )
    page = (ROOT / "docs" / "reference" / "platform-http.md").read_text()
    for operation in OPERATIONS:
        path = re.sub(r"\{environment\}", "{name}", operation.path)
        assert path in page, f"{operation.method} {path} is not in docs/reference/platform-http.md"


def test_every_route_of_instances_is_in_the_document() -> None:
    app = PlatformApp(Instances(OneEngine("/nowhere")))
    said = {(each.method, re.sub(r"\{\w+\}", "x", each.path)) for each in OPERATIONS}
    routes = {(method, re.sub(r"\{\w+\}", "x", path)) for method, path, *_ in app.routes}
    assert routes <= said


def test_with_a_hub_in_the_same_server_its_routes_are_in_the_document_too(platform: Served) -> None:
    status, said = fetch(platform.url, "/openapi.json")
    assert (status, said["info"]["title"]) == (200, "AEnvironment platform")
    assert {"/env-instance", "/tokens", "/api/v1/environments"} <= said["paths"].keys()


def test_administrators_create_list_and_revoke_tokens(platform: Served, tokens: Tokens) -> None:
    admin = {"authorization": f"Bearer {platform.first_token}"}
    request = {"user": "zoe", "role": "user", "expires_in": 60, "allowance": {"instances": 1}}
    status, body = fetch(platform.url, "/tokens", request, headers=admin)
    assert status == 200
    made = body["data"]
    own = {"authorization": f"Bearer {made['token']}"}
    assert fetch(platform.url, "/env-instance/list", headers=own)[0] == 200
    for refused in (own, {"authorization": f"Bearer {tokens('rob', 'read-only')}"}):
        for method, path, sent in (("GET", "/tokens", None), ("POST", "/tokens", {}), ("DELETE", "/tokens/1", None)):
            assert fetch(platform.url, path, sent, method=method, headers=refused)[0] == 403
    assert fetch(platform.url, "/tokens")[0] == 401
    listed = {each["id"]: each for each in fetch(platform.url, "/tokens", headers=admin)[1]["data"]}
    assert (listed[made["id"]]["user"], listed[made["id"]]["token"]) == ("zoe", None)
    assert not any("hash" in each for each in listed.values())
    status, body = fetch(platform.url, f"/tokens/{made['id']}", method="DELETE", headers=admin)
    assert status == 200
    assert body["data"]["revoked_at"]
    assert fetch(platform.url, "/env-instance/list", headers=own)[0] == 401  # takes effect at once
    assert fetch(platform.url, "/tokens/nosuch", method="DELETE", headers=admin)[0] == 404
    assert fetch(platform.url, "/tokens", {"role": "king"}, headers=admin)[0] == 400
    assert made["token"] not in platform.log.read_text()


@pytest.mark.long
def test_the_api_withstands_requests_generated_from_its_document(platform: Served, tokens: Tokens) -> None:
    headers = {"Authorization": f"Bearer {platform.first_token}"}
    status, body = fetch(platform.url, "/env-instance", {"envName": "counter"}, headers=headers)
    assert status == 200
    schema = schemathesis.openapi.from_dict(json.loads(json.dumps(document())))
    schema.config.update(base_url=platform.url)
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) == len(OPERATIONS)

    def at_a_real_one(case: schemathesis.Case) -> None:
        case.path_parameters["id"] = body["data"]["id"]
        if "follow" in (case.query or {}):
            case.query["follow"] = "false"  # or the response never ends
        if case.operation.path.endswith("/files/watch") and (case.query or {}).get("path"):
            case.query["path"] = "/nowhere"  # likewise

    for operation in operations:
        for mode in GenerationMode:
            withstand(operation, mode, headers, examples=8)
            real = "{id}" in operation.path and operation.method != "delete" and "/tokens" not in operation.path
            if real:
                withstand(operation, mode, headers, examples=8, change=at_a_real_one)
    text = platform.log.read_text()
    assert "Traceback" not in text
    assert "aenv.http ERROR" not in text
